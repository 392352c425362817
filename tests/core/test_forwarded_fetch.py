"""Fetch responses are forwarded chunk by chunk, and only the addresses in them are changed (KIP-951).

The last byte of a large response causes little work, whatever the size of the reads.
"""

import random
from collections import Counter
from typing import Any

import pytest

from proxy.core.events import Passthrough, Refusal
from proxy.core.forwarded_fetch import ForwardedFetch
from proxy.core.responses import AddressRewriting, rewritten_tags
from proxy.protocol.addresses import Resolve
from proxy.protocol.fetch_response import Received
from proxy.protocol.primitives import Buffer
from proxy.session.partitions import PartitionTable
from tests.frames import SESSION_VERSIONS, VERSIONS, Want, entry, fetch, fetch_response, framed
from tests.model import wire
from tests.model.primitives import Tags
from tests.playbook import SESSION_ID, Playbook, T, asks, full, request

HINTED = entry(1, error=6, tags=(wire.current_leader_tag(2, 9),))


def endpoints(*nodes: tuple[int, str, int], rack: str | None = None) -> tuple[tuple[int, bytes], ...]:
    return (
        wire.node_endpoints_tag(
            [wire.NodeEndpoint(node_id=i, host=host, port=port, rack=rack) for i, host, port in nodes]
        ),
    )


def gateway(node_id: int, _host: str, _port: int, /) -> tuple[str, int] | None:
    """Map broker N to gw:19092+N, and broker 9 to no address."""
    return None if node_id == 9 else ("gw", 19_092 + node_id)


def longer(node_id: int, _host: str, _port: int, /) -> tuple[str, int] | None:
    return "gateway.of.a.long.name", 19_092 + node_id


def asking(play: Playbook, version: int = 16) -> Playbook:
    """Send a fetch of one partition, which uses no session."""
    asked = fetch(version, ("t", 1), correlation=4)
    return play.client(asked).to_broker(asked)


def asking_full(version: int = 16, resolve: Resolve | None = None) -> Playbook:
    """Send the fetch that requests a session."""
    play = Playbook(resolve=resolve).knows()
    for number in (1, 2):
        play.exchange(fetch(version, *T, correlation=number), full(version, T, correlation_id=number))
    return play.client(fetch(version, *T, correlation=4)).to_broker(asks(version, T, (0, 0), correlation=4))


def told(version: int = 16, *, session_id: int = 0, **fields: object) -> bytes:
    elements = (("t", [entry(0, 5), entry(1, 9, records=b"r" * 700)]), ("u", [entry(0, 5)]))
    return fetch_response(version, *elements, session_id=session_id, correlation_id=4, **fields)


# --- as they come ---------------------------------------------------------------------------------


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("chunk", [1, 3, 17, 100, 10_000])
def test_sessionless_responses_pass_byte_for_byte(version: int, chunk: int) -> None:
    play = asking(Playbook().knows(), version)
    part = entry(1, 9, records=b"r" * 300, **({} if version >= 5 else {"log_start_offset": -1}))
    frame = fetch_response(version, ("t", [part]), throttle_time_ms=3, correlation_id=4)
    play.broker(frame, chunk=chunk)
    assert play.takes_client() == frame


@pytest.mark.parametrize("chunk", [1, 7, 64])
def test_nothing_is_held_but_what_is_still_to_be_understood(chunk: int) -> None:
    play = asking(Playbook(resolve=gateway).knows())
    frame = fetch_response(16, ("t", [entry(1, 9, records=bytes(5000))]), correlation_id=4)
    passed = b""
    for at in range(0, len(frame), chunk):
        play.broker(frame[at : at + chunk])
        passed += play.takes_client()
        assert at + chunk - len(passed) < 70 + chunk
        assert play.connection.buffered < 70 + chunk
    assert passed == frame
    assert play.connection.buffered == 0


# --- the session's id is the gateway's own --------------------------------------------------------


@pytest.mark.parametrize("version", SESSION_VERSIONS)
@pytest.mark.parametrize("chunk", [1, 5, 16, 100_000])
def test_a_session_that_was_made_is_not_named_to_the_client(version: int, chunk: int) -> None:
    """Traps 12 and 52: the id of the gateway's new session does not reach the client."""
    play = asking_full(version)
    play.broker(told(version, session_id=SESSION_ID), chunk=chunk)
    assert play.takes_client() == told(version)
    assert play.connection.session_id == SESSION_ID


@pytest.mark.parametrize("chunk", [1, 9, 100_000])
def test_a_failed_request_for_a_session_is_not_for_the_client(chunk: int) -> None:
    """Trap 12: if the request for a session fails, the client gets the response to a fetch without a
    session.
    """
    play = asking_full(16)
    frame = fetch_response(16, error_code=71, session_id=SESSION_ID, correlation_id=4)
    play.broker(frame, chunk=chunk).to_broker(fetch(16, *T, correlation=4))
    play.broker(told(), chunk=chunk)
    assert play.takes_client() == told()


# --- addresses ------------------------------------------------------------------------------------


DIRECT = endpoints((2, "b2", 9092))
THROUGH = endpoints((2, "gw", 19_094))
MORE = ((5, b"five"), (300, b""))
UNREADABLE = b"\x02\x00\x00\x00\x02\x7fb2"


@pytest.mark.parametrize(
    ("version", "resolve", "tags", "shown"),
    [
        *((version, gateway, DIRECT, THROUGH) for version in (16, 17, 18)),
        (16, gateway, endpoints((2, "b2", 9092), rack="r"), endpoints((2, "gw", 19_094), rack="r")),
        (
            *(16, gateway, endpoints((2, "broker-2.example", 9092), (3, "b3", 1))),
            endpoints((2, "gw", 19_094), (3, "gw", 19_095)),
        ),
        # In transparent mode they lead through the gateway already. Below v16 there are none.
        (16, None, DIRECT, DIRECT),
        (15, gateway, DIRECT, DIRECT),
        # A broker for which the gateway has no port is left out.
        (16, gateway, endpoints((9, "b9", 9092), (2, "b2", 9092)), THROUGH),
        # If they can't be read, their tag gets a number that no client knows.
        (16, gateway, ((0, UNREADABLE),), ((0x7F, UNREADABLE),)),
        (16, gateway, (*DIRECT, *MORE), (*THROUGH, *MORE)),
        (16, gateway, MORE, MORE),
    ],
)
def test_endpoints_are_where_the_client_is_to_find_them(
    version: int, resolve: Resolve | None, tags: Tags, shown: Tags
) -> None:
    """Case 66, trap 49: the node endpoints in a fetch response get addresses of the gateway."""
    play = Playbook(resolve=resolve).knows()
    for _ in range(2):
        asking(play, version)
        play.broker(fetch_response(version, ("t", [HINTED]), tags=tags, correlation_id=4))
        play.to_client(fetch_response(version, ("t", [HINTED]), tags=shown, correlation_id=4))


def test_a_response_without_tags_stays() -> None:
    assert AddressRewriting.tags_from == 16
    assert rewritten_tags(b"\x00", [], gateway) == b"\x00"


def test_endpoints_of_a_full_response_that_makes_a_session() -> None:
    """Case 66: addresses are changed in a full response that creates a session."""
    play = asking_full(16, gateway)
    play.broker(told(session_id=SESSION_ID, tags=endpoints((2, "b2", 9092))))
    play.to_client(told(tags=endpoints((2, "gw", 19_094))))


def test_endpoints_of_an_expanded_response() -> None:
    """Case 66: addresses are changed in a response that is completed from the session."""
    play = Playbook(resolve=gateway).established(16, T)
    play.client(fetch(16, *T, correlation=4)).to_broker(asks(16, [], (SESSION_ID, 1), correlation=4))
    tags = endpoints((2, "broker-2.of.a.long.name", 9092))
    play.broker(fetch_response(16, ("t", [HINTED]), tags=tags, session_id=SESSION_ID, correlation_id=4))
    elements = (("t", [entry(0, 5), HINTED]), ("u", [entry(0, 5)]))
    play.to_client(fetch_response(16, *elements, tags=endpoints((2, "gw", 19_094)), correlation_id=4))


def test_endpoints_of_a_throttled_response() -> None:
    """Trap 44: addresses are changed in a throttled response. From v16 on it may have endpoints without
    entries.
    """
    play = Playbook(resolve=gateway).established(16, T)
    play.client(fetch(16, *T, correlation=4)).to_broker(asks(16, [], (SESSION_ID, 1), correlation=4))
    tags = endpoints((2, "b2", 9092))
    play.broker(fetch_response(16, throttle_time_ms=9, tags=tags, session_id=SESSION_ID, correlation_id=4))
    shown = endpoints((2, "gw", 19_094))
    play.to_client(fetch_response(16, throttle_time_ms=9, tags=shown, correlation_id=4))


@pytest.mark.parametrize("resolve", [gateway, longer])
@pytest.mark.parametrize("chunk", [1, 11, 60])
def test_endpoints_behind_bytes_that_have_gone_never_show_a_brokers_address(
    resolve: Resolve, chunk: int
) -> None:
    """No broker address reaches the client, even if a response is already partly forwarded.

    The length of the frame can't change any more. So an address of another length is hidden in an unknown
    tag.
    """
    play = asking(Playbook(resolve=resolve).knows())
    data = entry(1, 9, records=b"r" * 100)
    other = entry(2, error=6, tags=(wire.current_leader_tag(2, 9),))
    for host in ("b2", "b-2", "broker-2.example.of.some.name"):
        frame = fetch_response(16, ("t", [data, other]), tags=endpoints((2, host, 9092)), correlation_id=4)
        play.broker(frame, chunk=chunk)
        got = play.takes_client()
        decoded = wire.decode_response(got[4:], 16)
        assert len(got) == 4 + int.from_bytes(got[:4])
        assert decoded.topics == wire.decode_response(frame[4:], 16).topics
        ((tag, payload),) = decoded.tags
        if tag == 0:
            assert host.encode() not in payload
            assert payload == endpoints((2, *(resolve(2, host, 9092) or ("", 0))))[0][1]
        else:
            assert (tag, len(frame)) == (0x7F, len(got))
        asking(play)


def test_same_length_behind_bytes_that_have_gone_is_rewritten() -> None:
    play = asking(Playbook(resolve=gateway).knows())
    frame = fetch_response(16, ("t", [HINTED]), tags=endpoints((2, "b2", 9092)), correlation_id=4)
    play.broker(frame, chunk=20)
    assert play.takes_client() == fetch_response(
        16, ("t", [HINTED]), tags=endpoints((2, "gw", 19_094)), correlation_id=4
    )


@pytest.mark.parametrize("chunk", [20, 10_000])
def test_the_response_to_a_fetch_too_large_to_be_looked_into_has_its_addresses_rewritten(chunk: int) -> None:
    play = Playbook(resolve=gateway).knows()
    asked = request(1, 16, 4, bytes(1 << 20))
    play.client(asked).to_broker(asked)
    frame = fetch_response(16, ("t", [HINTED]), tags=endpoints((2, "b2", 9092)), correlation_id=4)
    play.broker(frame, chunk=chunk)
    assert play.takes_client() == fetch_response(
        16, ("t", [HINTED]), tags=endpoints((2, "gw", 19_094)), correlation_id=4
    )


# --- not understood -------------------------------------------------------------------------------


def spoilt(frame: bytes) -> bytes:
    """Add an extra byte at the end of the frame's contents."""
    return framed(frame[4:] + b"\0")


@pytest.mark.parametrize("chunk", [1, 13, 100_000])
@pytest.mark.parametrize(("version", "resolve"), [(16, None), (15, gateway)])
def test_a_response_that_is_not_understood_passes(chunk: int, version: int, resolve: Resolve | None) -> None:
    play = asking(Playbook(resolve=resolve).knows(), version)
    frame = spoilt(fetch_response(version, ("t", [entry(1, 5)]), correlation_id=4))
    play.broker(frame, chunk=chunk)
    assert play.takes_client() == frame
    assert play.events(Passthrough) == [Passthrough(reason="a response was not understood")]


@pytest.mark.parametrize("chunk", [1, 13, 100_000])
@pytest.mark.parametrize("version", [16, 17, 18])
def test_one_that_may_name_brokers_is_refused(chunk: int, version: int) -> None:
    """KIP-951: an unreadable response that may contain addresses ends the connection. The client would
    otherwise get a broker's real address.
    """
    play = asking(Playbook(resolve=gateway).knows(), version)
    tags = endpoints((2, "direct.example", 9092))
    frame = fetch_response(version, ("t", [HINTED]), tags=tags, correlation_id=4)
    play.broker(spoilt(frame), chunk=chunk)
    assert b"direct.example" not in play.takes_client()
    assert play.connection.tally.refused == {Refusal.NOT_UNDERSTOOD: 1}
    assert play.connection.fault is not None
    assert play.connection.buffered == 0


def test_endpoints_behind_another_tag_are_not_overlooked() -> None:
    """The response is unreadable, because tags must be in ascending order (KIP-482)."""
    play = asking(Playbook(resolve=gateway).knows())
    tags = ((5, b"x"), *endpoints((2, "direct.example", 9092)))
    play.broker(fetch_response(16, ("t", [HINTED]), tags=tags, correlation_id=4))
    assert b"direct.example" not in play.takes_client()
    assert play.connection.tally.refused == {Refusal.NOT_UNDERSTOOD: 1}


def test_endpoints_in_the_response_to_a_fetch_that_is_not_understood() -> None:
    play = Playbook(resolve=gateway).knows()
    asked = spoilt(fetch(16, ("t", 1), correlation=4))[:-9]
    asked = framed(asked[4:])
    play.client(asked).to_broker(asked)
    assert play.connection.tally.passthrough["not understood"] == 1
    tags = endpoints((2, "direct.example", 9092))
    play.broker(fetch_response(16, ("t", [HINTED]), tags=tags, correlation_id=4))
    through = endpoints((2, "gw", 19_094))
    play.to_client(fetch_response(16, ("t", [HINTED]), tags=through, correlation_id=4))


@pytest.mark.parametrize("chunk", [1, 13, 100_000])
def test_a_full_response_that_is_not_understood_passes_without_the_sessions_id(chunk: int) -> None:
    """An unreadable response that created a session is forwarded with session id 0. The next request for a
    session names this session, so that the broker drops it.
    """
    play = asking_full(16)
    play.broker(spoilt(told(session_id=SESSION_ID)), chunk=chunk)
    assert play.takes_client() == spoilt(told())
    assert play.connection.session_id == 0
    play.client(fetch(16, *T, correlation=7)).to_broker(asks(16, T, (SESSION_ID, 0), correlation=7))


@pytest.mark.parametrize("chunk", [1, 13, 100_000])
def test_a_response_of_the_session_that_is_not_understood_is_had_again(chunk: int) -> None:
    play = Playbook().established(16, T)
    play.client(fetch(16, *T, correlation=4)).to_broker(asks(16, [], (SESSION_ID, 1), correlation=4))
    play.broker(spoilt(fetch_response(16, session_id=SESSION_ID, correlation_id=4)), chunk=chunk)
    play.to_broker(fetch(16, *T, correlation=4))
    assert play.connection.buffered == 0
    play.broker(full(16, T, hw=6, correlation_id=4)).to_client(full(16, T, hw=6, correlation_id=4))


def test_a_response_that_ends_too_early_passes() -> None:
    play = asking(Playbook().knows())
    frame = framed(fetch_response(16, ("t", [entry(1, 5)]), correlation_id=4)[4:-5])
    play.broker(frame).to_client(frame)


COUNT = 300
SIZE = 5_000


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count two kinds of steps: pieces of the frame that are visited, and look-ups in the session's table."""
    counted: Counter[str] = Counter()
    span, row = Received.span, PartitionTable.row

    def spanned(self: Received, start: int, end: int) -> list[memoryview]:
        found = span(self, start, end)
        counted["pieces"] += len(found)
        return found

    def looked_up(self: PartitionTable, key: bytes, partition: int) -> int:
        counted["entries"] += 1
        return row(self, key, partition)

    monkeypatch.setattr(Received, "span", spanned)
    monkeypatch.setattr(PartitionTable, "row", looked_up)
    return counted


@pytest.mark.parametrize("read", [1_448, 20_000, 1 << 18])
@pytest.mark.parametrize("topics", [1, 20])
@pytest.mark.parametrize("version", [11, 12])
def test_the_last_byte_has_little_to_do(version: int, topics: int, read: int, steps: Counter[str]) -> None:
    """Every partition has changes, in the broker's own order."""
    wants: list[Want] = [(f"t{number % topics}", number // topics) for number in range(COUNT)]
    wants.sort()
    play = Playbook().established(version, wants)
    play.client(fetch(version, *wants, correlation=4)).takes_broker()
    shuffled = random.Random(1).sample(wants, COUNT)
    news = {
        (name, index): entry(index, 9, records=index.to_bytes(2) * (SIZE // 2)) for name, index, *_ in wants
    }
    told = fetch_response(
        version,
        *((name, [news[name, index]]) for name, index, *_ in shuffled),
        session_id=SESSION_ID,
        correlation_id=4,
    )
    steps.clear()
    play.broker(told[:-1], chunk=read)
    assert steps["entries"] >= COUNT - 1
    steps.clear()
    play.broker(told[-1:])
    assert steps["entries"] <= 1
    assert steps["pieces"] <= 2 * (1 + max(read, 1 << 16) // SIZE)
    topics_in_order: dict[str, list[int]] = {}
    for name, index, *_ in wants:
        topics_in_order.setdefault(name, []).append(index)
    elements = [(name, [news[name, index] for index in each]) for name, each in topics_in_order.items()]
    pieces = play.connection.to_client
    assert len(pieces) <= COUNT + len(told) // (1 << 14) + topics + 2
    play.to_client(fetch_response(version, *elements, correlation_id=4))


@pytest.mark.parametrize("read", [100, 1_448])
def test_long_tags_that_drip_in_are_copied_a_few_times(read: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes that can't be sent yet are kept, and joined once."""
    kept: list[int] = []
    up_to = ForwardedFetch._up_to

    def counted(self: ForwardedFetch, *args: Any) -> list[Buffer]:
        pieces = up_to(self, *args)
        kept.append(len(self._chunks))
        return pieces

    monkeypatch.setattr(ForwardedFetch, "_up_to", counted)
    play = Playbook(resolve=lambda *_: ("gw", 1)).knows()
    asked = fetch(16, ("t", 0), correlation=4)
    play.client(asked).to_broker(asked)
    told = fetch_response(16, ("t", [entry(0, 5)]), correlation_id=4, tags=((9, bytes(100_000)),))
    play.broker(told[:-1], chunk=read)
    assert kept[-1] >= 100_000 // read - 1
    first = play.takes_client()
    play.broker(told[-1:])
    assert first + play.takes_client() == told
