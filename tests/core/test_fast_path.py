"""With and without the fast path, the bytes to both sides and the counts are the same.

`Twin` compares two cores after each step. It also plays all transcripts of `Playbook`, and the histories of
`test_expanded_equals_direct`. The conversations in this file are made for the fast path.
"""

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core.connection import Connection
from proxy.core.eligibility import SessionLimits
from proxy.core.expanded_fetch import SessionPlan
from proxy.core.fast_path import MAX_JOINED
from proxy.core.in_flight import MAX_IN_FLIGHT
from proxy.protocol.addresses import Resolve
from tests.examples import examples
from tests.frames import VERSIONS, Want, entry, fetch, fetch_response, framed, named
from tests.model import wire
from tests.playbook import SESSION_ID, Playbook, api_versions, asks, full, request, response, split
from tests.twin import Joining, Twin

PRODUCE, FETCH, METADATA, HEARTBEAT, SASL_HANDSHAKE, API_VERSIONS = 0, 1, 3, 12, 17, 18
LEADER = wire.node_endpoints_tag([wire.NodeEndpoint(node_id=2, host="b2", port=9092)])


def gateway(node_id: int, _host: str, _port: int, /) -> tuple[str, int]:
    return "gw", 19_092 + node_id


def produce(
    correlation: int, version: int = 10, *, acks: int = -1, size: int = 20, client: bytes = b"c"
) -> bytes:
    """Build a Produce request with header v1 or v2. Its topics are arbitrary bytes, because nothing reads
    them.
    """
    tags, transactional_id = (b"\0", b"\0") if version >= 9 else (b"", b"\xff\xff" if version >= 3 else b"")
    body = tags + transactional_id + acks.to_bytes(2, signed=True) + b"\0\0\x75\x30" + bytes(size)
    return request(PRODUCE, version, correlation, body, client)


def produced(correlation: int, offset: int = 0, *, tags: bytes = b"\0") -> bytes:
    """Build a Produce v10 response for one partition."""
    head = b"\0" + b"\x02" + b"\x02t" + b"\x02" + bytes(6)
    part = offset.to_bytes(8) + b"\xff" * 8 + bytes(8) + b"\x01\0\0"
    return response(correlation, head + part + b"\0" + bytes(4) + tags)


def passing(play: Playbook) -> int:
    """Return how many reads of data from the client or the broker have taken the fast path."""
    twin = play.connection
    assert isinstance(twin, Twin)
    return twin.passed


# --- what takes it --------------------------------------------------------------------------------


@pytest.mark.parametrize("resolve", [None, gateway])
def test_produces_pass(resolve: Resolve | None) -> None:
    play = Playbook(resolve=resolve)
    for number in range(4):
        play.exchange(produce(number, size=10 * number), produced(number, offset=number))
    assert passing(play) == 6


def test_a_produce_whose_response_names_a_leader_is_rewritten() -> None:
    """KIP-951: if a Produce response (v10 and later) names a leader, the leader's address is rewritten."""
    play = Playbook(resolve=gateway)
    named = wire.node_endpoints_tag([wire.NodeEndpoint(node_id=2, host="gw", port=19_094)])
    play.exchange(produce(1), produced(1)).exchange(produce(2), produced(2))
    before = passing(play)
    play.client(produce(3)).to_broker(produce(3))
    play.broker(produced(3, tags=_tagged(LEADER))).to_client(produced(3, tags=_tagged(named)))
    assert passing(play) == before + 1  # the request alone
    play.exchange(produce(4), produced(4))
    play.exchange(produce(5), produced(5))
    assert passing(play) > before + 2


def _tagged(tag: tuple[int, bytes]) -> bytes:
    return b"\x01" + bytes([tag[0], len(tag[1])]) + tag[1]


def test_acks_0_has_no_response() -> None:
    """Trap 32, case 86: a Produce with acks=0 has no response, so nothing waits for one."""
    play = Playbook().exchange(produce(1), produced(1))
    play.client(produce(2, acks=0)).to_broker(produce(2, acks=0))
    play.client(produce(3, acks=0)).to_broker(produce(3, acks=0))
    assert passing(play) == 1
    play.exchange(produce(4), produced(4))
    assert not play.connection.busy


@pytest.mark.parametrize("version", VERSIONS)
def test_fetches_of_one_partition_pass(version: int) -> None:
    play = Playbook().knows()
    log_start = {} if version >= 5 else {"log_start_offset": -1}
    for number in range(1, 6):
        asked = fetch(version, ("t", 1, number), correlation=number)
        part = entry(1, number, records=b"r" * 100 * (number % 3), **log_start)
        play.exchange(asked, fetch_response(version, ("t", [part]), correlation_id=number))
    assert passing(play) == 8
    assert play.connection.tally.passthrough["one partition"] == 5


def test_other_requests_pass_by_their_kind_alone() -> None:
    play = Playbook()
    for number in range(1, 4):
        play.exchange(request(HEARTBEAT, 3, number, bytes(number)), response(number, bytes(number)))
    assert passing(play) == 4


def test_many_in_flight_and_many_in_a_read() -> None:
    play = Playbook().exchange(produce(0), produced(0))
    asked = [produce(number) for number in range(1, 8)]
    play.client(*asked).to_broker(*asked)
    told = [produced(number) for number in range(1, 8)]
    play.broker(*told).to_client(*told)
    assert passing(play) == 2


# --- what leaves it -------------------------------------------------------------------------------


def test_what_is_in_flight_stays_in_its_order() -> None:
    """The fast path is not used again until the other request among the pipelined ones is answered."""
    play = Playbook(resolve=gateway).exchange(produce(0), produced(0)).exchange(produce(1), produced(1))
    play.client(produce(2)).to_broker(produce(2))
    asked, _ = api_versions("4.3.0", 3)
    play.client(asked).to_broker(asked)
    play.client(produce(4)).to_broker(produce(4))
    play.broker(produced(2)).to_client(produced(2))
    play.broker(api_versions("4.3.0", 3)[1]).takes_client()
    before = passing(play)
    play.broker(produced(4)).to_client(produced(4))
    assert passing(play) == before + 1


def test_a_response_out_of_order_is_a_fault() -> None:
    play = Playbook().exchange(produce(0), produced(0))
    play.client(produce(1), produce(2)).to_broker(produce(1), produce(2))
    play.broker(produced(2))
    assert "a response to request 2 before that to request 1" in str(play.connection.fault)


def test_the_switch_for_sessions_is_asked_each_time() -> None:
    play = Playbook().knows()
    for number in range(1, 4):
        play.exchange(fetch(16, ("t", 1), correlation=number), told_one(number))
    play.sessions.reload(off_for=frozenset({"c"}))
    play.exchange(fetch(16, ("t", 1), correlation=4), told_one(4))
    play.sessions.reload(on=False)
    play.exchange(fetch(16, ("t", 1), correlation=5), told_one(5))
    assert play.connection.tally.passthrough == {"one partition": 3, "sessions off": 2}


@pytest.mark.parametrize("at", [-1, -5], ids=["the end", "tags of an entry"])
def test_a_byte_behind_what_has_changed_is_compared(at: int) -> None:
    play = Playbook().knows()
    for number in range(1, 4):
        play.exchange(fetch(16, ("t", 1), correlation=number), told_one(number))
    asked = bytearray(fetch(16, ("t", 1), correlation=4))
    asked[at] = 1  # the tags of the entry come before those of the topic, the forgotten topics, rack and tags
    play.client(bytes(asked)).to_broker(bytes(asked))
    assert play.connection.tally.passthrough == {"one partition": 3, "not understood": 1}


def test_responses_by_the_core_and_by_the_fast_path_are_measured_alike() -> None:
    play = Playbook().knows()
    for number in range(1, 8):
        wants: list[Want] = [("t", 1)] if number % 4 else [("t", 0), ("u", 1), ("t", 2)]
        told = [entry(1, 9, records=bytes(10 * number))] if number % 4 else [entry(0, 9)]
        asked = fetch(16, *wants, correlation=number)
        play.now += 0.25
        play.client(asked).to_broker(asked)
        play.now += 0.25
        response_ = fetch_response(16, ("t", told), correlation_id=number)
        play.broker(response_).to_client(response_)
    assert passing(play) == 4
    play.connection.check_measured()


def test_a_correlation_id_that_is_used_again() -> None:
    """A client may use a correlation id twice. Responses are matched only by their order."""
    play = Playbook().exchange(produce(1), produced(1))
    play.client(request(METADATA, 0, 1)).to_broker(request(METADATA, 0, 1))
    play.client(produce(1)).to_broker(produce(1))
    play.broker(response(1, bytes(3))).to_client(response(1, bytes(3)))
    assert play.connection.busy
    play.broker(produced(1)).to_client(produced(1))


def told_one(number: int) -> bytes:
    return fetch_response(16, ("t", [entry(1, number)]), correlation_id=number)


@pytest.mark.parametrize("more", [0, 3])
def test_a_response_that_makes_room_does_not_take_it(more: int) -> None:
    """A response that ends a pause in reading the client is handled by the core, not by the fast path. The
    core then also sends the requests that waited.
    """
    play = Playbook().exchange(produce(0), produced(0)).exchange(produce(1), produced(1))
    numbers = range(2, MAX_IN_FLIGHT + 2 + more)
    play.client(*map(produce, numbers)).to_broker(*map(produce, numbers[:MAX_IN_FLIGHT]))
    fast, _ = play.connection.cores
    assert not fast.reads_client
    assert fast.fast_path.response(produced(2), 1.0, 1.0) == (0, b"")
    play.broker(produced(2)).to_broker(*map(produce, numbers[MAX_IN_FLIGHT:][:1]), more=True)
    play.to_client(produced(2))
    assert fast.reads_client is (more == 0)


@pytest.mark.parametrize("chunk", [1, 7, 100, 1000])
def test_the_middle_of_large_frames(chunk: int) -> None:
    play = Playbook().knows().exchange(produce(0), produced(0))
    large = produce(1, size=2000)
    play.client(large, chunk=chunk).to_broker(large)
    play.broker(response(1, bytes(2000)), chunk=chunk).to_client(response(1, bytes(2000)))
    for number in (2, 3):
        asked = fetch(16, ("t", 1), correlation=number)
        told = fetch_response(16, ("t", [entry(1, 9, records=bytes(2000))]), correlation_id=number)
        play.client(asked).to_broker(asked)
        play.broker(told, chunk=chunk).to_client(told)
    assert passing(play) >= 8_000 // chunk - 3
    assert play.connection.tally.client.fetch_record_bytes == 4_000


def test_fetches_in_flight_behind_versions_are_counted() -> None:
    """A fetch is counted correctly if an ApiVersions response comes while the fetch is in flight. Such a
    response makes the fast path forget the form of fetches.
    """
    play = Playbook().knows()
    for number in range(1, 4):
        play.exchange(fetch(16, ("t", 1), correlation=number), told_one(number))
    asked, told = api_versions("4.3", 9)
    play.client(asked).to_broker(asked)
    play.client(fetch(16, ("t", 1), correlation=10)).takes_broker()
    play.broker(told).takes_client()
    play.broker(told_one(10)).to_client(told_one(10))
    assert play.connection.tally.client.partitions_answered == 4
    play.connection.check_measured()


def test_nothing_passes_after_a_fault() -> None:
    play = Playbook(resolve=gateway).knows()
    play.exchange(request(HEARTBEAT, 0, 1), response(1))
    asked = request(METADATA, 1, 2, bytes(4))
    play.client(asked).to_broker(asked)
    play.client(request(HEARTBEAT, 0, 3)).takes_broker()
    play.broker(response(2, b"\0")).nothing()  # not understood, and it may name brokers
    assert play.connection.fault
    play.broker(response(3)).nothing()


def test_a_request_that_is_too_long_is_a_fault() -> None:
    play = Playbook(max_request_bytes=200).exchange(produce(1), produced(1))
    play.client(produce(2, size=400)).nothing()
    assert "max_request_bytes is 200" in str(play.connection.fault)


def test_listeners_open_amid_a_large_request() -> None:
    """The gateway opens a broker's listener while it forwards a large request of a client.

    The part of the request that was already forwarded is not expected a second time.
    """
    opening = {2}
    play = Playbook(resolve=gateway, opening=opening.__contains__)
    play.exchange(produce(1), produced(1)).exchange(produce(2), produced(2))
    play.client(produce(3)).takes_broker()
    play.broker(produced(3, tags=_tagged(LEADER))).nothing()
    play.connection.ask_seldom()
    large = produce(4, size=5000)
    for start, end in ((0, 1000), (1000, 2000)):
        play.client(large[start:end]).to_broker(large[start:end])
    opening.clear()
    play.connection.brokers_opened(frozenset({2}))
    assert play.takes_client()
    play.client(large[2000:]).to_broker(large[2000:])
    play.client(produce(5)).to_broker(produce(5))
    play.broker(produced(4), produced(5)).to_client(produced(4), produced(5))


def test_closing_with_requests_in_flight() -> None:
    play = Playbook().exchange(produce(0), produced(0))
    play.client(produce(1)).to_broker(produce(1))
    play.close()
    assert not play.connection.done
    play.broker(produced(1)).to_client(produced(1))
    assert play.connection.done


def test_closing_amid_a_large_request() -> None:
    play = Playbook()
    large = produce(0, size=1 << 20)
    play.client(large[: 1 << 19]).to_broker(large[: 1 << 19])
    play.close()
    assert play.connection.done
    play.client(large[1 << 19 : -1]).to_broker()


# --- responses that come in pieces ----------------------------------------------------------------


@pytest.mark.parametrize("version", [4, 11, 16])
def test_a_small_response_that_comes_in_pieces_is_looked_at_once(version: int) -> None:
    """A small response that comes in parts is processed once, when it is complete. A broker writes the head,
    the records and the end separately.
    """
    play = Playbook(core=Joining).knows()
    log_start = {} if version >= 5 else {"log_start_offset": -1}
    for number in range(1, 6):
        asked = fetch(version, ("t", 1, number), correlation=number)
        part = entry(1, number, records=b"r" * 100, **log_start)
        told = fetch_response(version, ("t", [part]), correlation_id=number)
        play.client(asked).to_broker(asked)
        play.broker(told, chunk=90)
        assert play.takes_client() == told
    # The core has the first fetch, and two responses: the second one shows the form.
    assert passing(play) == 4 + 3
    assert play.connection.kept == 4
    play.connection.check_measured()


def test_the_time_of_a_response_is_that_of_its_first_byte() -> None:
    play = Playbook(core=Joining)
    for number in range(1, 4):
        play.client(produce(number)).takes_broker()
        play.now += 0.25
        play.broker(produced(number)[:20])
        begun = play.takes_client()
        play.now += 0.5
        play.broker(produced(number)[20:])
        assert begun + play.takes_client() == produced(number)
    assert play.connection.kept == 2
    play.connection.check_measured()


def test_the_time_of_one_that_comes_with_the_rest_of_another_is_its_own() -> None:
    play = Playbook(core=Joining).exchange(produce(1), produced(1))
    play.now = 1.0
    play.client(produce(2)).takes_broker()
    play.now = 1.25
    play.broker(produced(2)[:20])
    begun = play.takes_client()
    play.now = 2.0
    play.client(produce(3)).takes_broker()
    play.now = 2.5
    play.broker(produced(2)[20:] + produced(3))
    assert begun + play.takes_client() == produced(2) + produced(3)
    assert play.connection.kept == 1
    play.connection.check_measured()


def test_a_large_response_is_not_kept() -> None:
    play = Playbook(core=Joining).exchange(request(HEARTBEAT, 0, 1), response(1))
    large = response(2, bytes(MAX_JOINED))
    play.client(request(HEARTBEAT, 0, 2)).takes_broker()
    play.broker(large[:100])
    assert play.takes_client() == large[:100]
    play.broker(large[100:])
    assert play.takes_client() == large[100:]


def test_another_response_than_the_one_that_is_due_is_a_fault_at_once() -> None:
    play = Playbook(core=Joining).exchange(request(HEARTBEAT, 0, 1), response(1))
    play.client(request(HEARTBEAT, 0, 2)).takes_broker()
    play.broker(response(3, bytes(20))[:10])
    assert play.connection.fault is not None


def test_what_was_kept_goes_to_the_client_when_the_broker_closes() -> None:
    core = Connection(sessions=SessionLimits(max_sessions=1), resolve=None)
    for number in (1, 2):
        asked = request(HEARTBEAT, 0, number)
        done, _ = core.fast_path.request(asked, 1.0)
        if not done:
            core.receive_client(asked, 1.0)
        told = core.fast_path.join(response(number, bytes(20))[: 28 if number == 1 else 10], 1.0)
        if told:
            core.receive_broker(told, 1.0)
    core.drain_client()
    assert told == b""
    core.broker_ended()
    assert b"".join(core.drain_client()) == response(2, bytes(20))[:10]
    assert core.tally.broker.bytes_in == 28 + 10


# --- sessions -------------------------------------------------------------------------------------

THREE: list[Want] = [("t", 0), ("t", 1), ("t", 2)]


def polls(play: Playbook, version: int, first: int, count: int, records: bytes = b"", offset: int = 0) -> int:
    """Play a consumer with a session. Return how many reads of data took the fast path.

    The consumer's list of partitions rotates. With records, the offset of partition 1 advances.
    """
    before = passing(play)
    for number in range(first, first + count):
        moved = number if records else offset
        wants: list[Want] = [(*want[:2], moved if want[1] == 1 else 0) for want in THREE]
        turned = wants[number % 3 :] + wants[: number % 3]
        play.client(fetch(version, *turned, correlation=number))
        altered: list[Want] = [("t", 1, moved)] if records else []
        play.to_broker(asks(version, altered, (SESSION_ID, number - 3), correlation=number))
        part = entry(1, number, records=records)
        elements = [("t", [part])] if records else []
        play.broker(fetch_response(version, *elements, session_id=SESSION_ID, correlation_id=number))
        play.takes_client()
    return passing(play) - before


@pytest.mark.parametrize("version", [7, 11, 12, 13, 16, 18])
def test_fetches_of_a_session_take_it(version: int) -> None:
    play = Playbook().established(version, THREE)
    assert polls(play, version, 4, 6) >= 8
    assert polls(play, version, 10, 6, b"r" * 300) >= 8
    assert polls(play, version, 16, 3, offset=15) >= 3
    play.connection.check_measured()


def test_tags_of_an_entry_that_has_moved_are_seen() -> None:
    """An unknown tag is found in the entry of a partition that just got records."""
    play = Playbook().established(16, THREE)
    polls(play, 16, 4, 4, b"r" * 300)
    asked = bytearray(fetch(16, *THREE, correlation=8))
    at = asked.index(b"\0\0\0\2" + b"\xff" * 4)  # partition 2; partition 1's tags stand before it
    asked[at - 1] = 1
    play.client(bytes(asked)).to_broker(bytes(asked))
    assert play.connection.tally.passthrough["not understood"] == 1


def test_the_last_epoch_is_followed_by_1() -> None:
    """Case 17: the epoch after 2^31-1 is 1."""
    play = Playbook().established(16, THREE)
    polls(play, 16, 4, 4)
    for core in play.connection.cores:
        core._fetches.session.epoch = 0x7FFF_FFFF
    for number, epoch in ((8, 0x7FFF_FFFF), (9, 1), (10, 2)):
        play.client(fetch(16, *THREE, correlation=number))
        play.to_broker(asks(16, [], (SESSION_ID, epoch), correlation=number))
        play.broker(fetch_response(16, session_id=SESSION_ID, correlation_id=number)).takes_client()


@pytest.mark.parametrize(
    "told",
    [
        fetch_response(16, session_id=SESSION_ID, error_code=70, correlation_id=8),
        fetch_response(16, session_id=SESSION_ID, error_code=71, correlation_id=8),
        fetch_response(16, session_id=0, correlation_id=8),
        fetch_response(16, session_id=SESSION_ID, throttle_time_ms=40, correlation_id=8),
        fetch_response(16, ("t", [entry(1, error=6)]), session_id=SESSION_ID, correlation_id=8),
        fetch_response(16, ("t", [entry(0, 9)]), session_id=SESSION_ID, correlation_id=8),
        fetch_response(16, ("t", [entry(0, 9), entry(1, 9)]), session_id=SESSION_ID, correlation_id=8),
        fetch_response(16, ("u", [entry(0, 9)]), session_id=SESSION_ID, correlation_id=8),
        fetch_response(
            16, ("t", [entry(1, 9, preferred_read_replica=2)]), session_id=SESSION_ID, correlation_id=8
        ),
        fetch_response(16, ("t", [entry(1, 9, records=None)]), session_id=SESSION_ID, correlation_id=8),
        fetch_response(16, session_id=SESSION_ID, tags=(LEADER,), correlation_id=8),
        fetch_response(16, session_id=SESSION_ID, correlation_id=9),
        b"\0\0\0\x04",
    ],
    ids=lambda told: told[8:].hex(),
)
@pytest.mark.parametrize("records", [b"", b"r" * 300])
def test_any_other_response_in_a_session_is_the_cores(told: bytes, records: bytes) -> None:
    """Cases 17, 27, 48, 71 and others: a response that the fast path does not know is handled by the core, as
    if the core had also sent the fetch.
    """
    play = Playbook().established(16, THREE)
    polls(play, 16, 4, 4, records)
    play.client(fetch(16, *THREE, correlation=8)).takes_broker()
    play.broker(told).takes_client()
    play.takes_broker()
    play.client(fetch(16, *THREE, correlation=9)).takes_broker()
    play.connection.check_measured()


def test_what_saves_keeps_the_session() -> None:
    """A session is closed after 64 fetches in a row that saved nothing. One that saves resets this."""
    play = Playbook().established(16, THREE)
    polls(play, 16, 4, 4)
    for core in play.connection.cores:
        core._fetches.unused = 63
    for number in (8, 9, 10, 11):  # all partitions move: nothing is saved; then nothing is new
        moved: list[Want] = [(*want[:2], min(number, 10)) for want in THREE]
        turned = moved[number % 3 :] + moved[: number % 3]
        play.client(fetch(16, *turned, correlation=number)).takes_broker()
        parts = [entry(want[1], number, records=b"r") for want in THREE] if number < 10 else []
        elements = [("t", parts)] if parts else []
        play.broker(fetch_response(16, *elements, session_id=SESSION_ID, correlation_id=number))
        play.takes_client()
    play.client(fetch(16, ("t", 0), ("t", 0), correlation=12)).takes_broker()
    assert play.connection.session_id == SESSION_ID


@pytest.mark.parametrize("off", [{"on": False}, {"off_for": frozenset({"c"})}], ids=str)
def test_sessions_are_switched_off_while_a_fetch_is_outstanding(off: dict[str, Any]) -> None:
    """The core handles the response. The next fetch is forwarded unchanged."""
    play = Playbook().established(16, THREE)
    polls(play, 16, 4, 4)
    play.client(fetch(16, *THREE, correlation=8)).to_broker(asks(16, [], (SESSION_ID, 5), correlation=8))
    play.sessions.reload(**off)
    told = fetch_response(16, ("t", [entry(0, 9)]), session_id=SESSION_ID, correlation_id=8)
    play.broker(told).takes_client()
    play.client(fetch(16, *THREE, correlation=9))
    play.to_broker(asks(16, [], (SESSION_ID, -1), correlation=3), fetch(16, *THREE, correlation=9))
    assert play.connection.decided == "sessions off"


@pytest.mark.parametrize("outstanding", [False, True])
def test_the_client_calls_itself_something_else(outstanding: bool) -> None:
    """With the new client id, which comes in an ApiVersions request, sessions are off."""
    play = Playbook(SessionLimits(max_sessions=10, off_for=frozenset({"d"}))).established(16, THREE)
    polls(play, 16, 4, 4)
    told = fetch_response(16, ("t", [entry(0, 9)]), session_id=SESSION_ID, correlation_id=8)
    if outstanding:
        play.client(fetch(16, *THREE, correlation=8)).takes_broker()
    renamed = request(API_VERSIONS, 0, 9, client=b"d")
    play.client(renamed).to_broker(renamed)
    if outstanding:
        play.broker(told).takes_client()
    play.client(fetch(16, *THREE, correlation=10)).takes_broker()
    assert play.connection.decided == "sessions off"


def test_a_fetch_of_a_session_behind_versions_is_counted() -> None:
    """A session's fetch is counted correctly if an ApiVersions response comes while the fetch is in flight.
    The core handles the response to the fetch.
    """
    play = Playbook().established(16, THREE)
    polls(play, 16, 4, 4)
    asked, told = api_versions("4.3", 90)
    play.client(asked).to_broker(asked)
    play.client(fetch(16, *THREE, correlation=8)).to_broker(asks(16, [], (SESSION_ID, 5), correlation=8))
    play.broker(told).takes_client()
    play.broker(fetch_response(16, session_id=SESSION_ID, correlation_id=8))
    play.to_client(full(16, THREE, correlation_id=8))
    play.connection.check_measured()


def test_another_fetch_while_one_is_outstanding() -> None:
    """Trap 18: as an incremental fetch, the second one would fail if the first one fails."""
    play = Playbook().established(16, THREE)
    polls(play, 16, 4, 4)
    play.client(fetch(16, *THREE, correlation=8)).takes_broker()
    play.client(fetch(16, *THREE, correlation=9)).to_broker(fetch(16, *THREE, correlation=9))
    assert play.connection.tally.passthrough["session busy"] == 1
    play.broker(fetch_response(16, session_id=SESSION_ID, correlation_id=8)).to_client(
        full(16, THREE, correlation_id=8)
    )
    play.broker(full(16, THREE, correlation_id=9)).to_client(full(16, THREE, correlation_id=9))
    play.client(fetch(16, *THREE, correlation=10)).takes_broker()
    assert play.connection.decided is None


@pytest.mark.parametrize("version", [7, 8])
def test_brokers_that_forget_leader_epochs_are_left_to_the_core(version: int) -> None:
    """KAFKA-9338, case 68: the core checks each fetch for leader epochs."""
    play = Playbook().established(version, THREE, release="1.1.1" if version == 7 else "2.0.1")
    assert polls(play, version, 4, 6) == 0


def test_a_session_closes_amid_a_fetch_of_the_fast_path() -> None:
    """Trap 21: the client leaves meanwhile."""
    play = Playbook().established(16, THREE)
    polls(play, 16, 4, 4)
    play.client(fetch(16, *THREE, correlation=8)).takes_broker()
    play.close()
    assert play.takes_broker()
    play.broker(fetch_response(16, session_id=SESSION_ID, correlation_id=8)).takes_client()


def test_a_count_that_the_fast_path_forgets_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    play = Playbook().established(16, THREE)
    monkeypatch.setattr(SessionPlan, "count", lambda *_: None)
    with pytest.raises(AssertionError, match=r"tally\.client\.fetches: \[0, 0, .*\] with the fast path"):
        polls(play, 16, 4, 4)


# --- any conversation -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Says:
    """The values in the broker's responses from now on."""

    records: int = 0
    high: int = 5
    error: int = 0
    leads: bool = False
    """Whether the response names a leader (KIP-951)."""
    tagged: bool = False
    """Whether an entry has tags."""
    null: bool = False
    """Whether records are null."""
    aborted: bool = False
    hot: tuple[int, ...] = ()
    """The partitions in the response to an incremental fetch."""
    lag: int = 0
    """The distance of the last stable offset from the high watermark."""
    refuses: int = 0
    """The error code for a fetch in a session, or 0."""
    throttle_time_ms: int = 0


ASKS = st.one_of(
    st.builds(
        lambda version, acks, size, client: ("produce", version, acks, size, client),
        st.sampled_from([2, 7, 9, 10, 10, 10]),
        st.sampled_from([-1, -1, -1, 1, 0]),
        st.sampled_from([5, 5, 300]),
        st.sampled_from([b"c", b"c", b"", b"longer"]),
    ),
    st.builds(
        lambda version, partitions, offset, session, client: (
            "fetch",
            version,
            partitions,
            offset,
            session,
            client,
        ),
        st.sampled_from([3, 4, 7, 11, 12, 16, 16, 16, 19]),
        st.sampled_from([[0], [0], [0], [1], [0, 1, 2], [1, 2, 0], [0, 1, 2, 3], []]),
        st.integers(0, 2),
        st.sampled_from([(0, -1), (0, -1), (0, -1), (0, -1), (0, 0), (5, 1)]),
        st.sampled_from(["c", "c", "c", None]),
    ),
    st.builds(
        lambda key, client: ("other", key, client),
        st.sampled_from([HEARTBEAT, METADATA, API_VERSIONS, SASL_HANDSHAKE]),
        st.sampled_from([b"c", b"c", b"d"]),
    ),
)
CUTS = st.lists(st.integers(1, 120), max_size=3)
STEPS = st.one_of(
    st.tuples(st.just("asks"), st.lists(ASKS, min_size=1, max_size=3), CUTS),
    st.tuples(st.just("repeats"), st.integers(1, 4), st.just([])),
    st.tuples(st.just("repeats"), st.integers(1, 4), CUTS),
    st.tuples(st.just("polls"), st.integers(3, 9), st.booleans(), st.just(0)),
    st.tuples(st.just("polls"), st.integers(3, 9), st.booleans(), st.integers(0, 1)),
    st.tuples(st.just("poll"), st.integers(0, 3), st.integers(0, 3), st.integers(0, 1)),
    st.tuples(st.just("answers"), st.integers(1, 3), CUTS),
    st.tuples(st.just("answers"), st.integers(1, 3), st.just([])),
    st.tuples(
        st.just("answers_so"),
        st.builds(
            Says,
            records=st.sampled_from([0, 0, 30, 3000]),
            high=st.integers(0, 9),
            error=st.sampled_from([0, 0, 0, 1, 6]),
            leads=st.booleans(),
            tagged=st.booleans(),
            null=st.booleans(),
            aborted=st.booleans(),
            hot=st.sampled_from([(), (), (1,), (1,), (0, 2), (9,)]),
            lag=st.sampled_from([0, 0, 0, 2]),
            refuses=st.sampled_from([0, 0, 0, 0, 70, 71, 106]),
            throttle_time_ms=st.sampled_from([0, 0, 0, 9]),
        ),
    ),
    st.tuples(
        st.just("switch"),
        st.sampled_from(["on", "on", "off", "off for c", "off for d", "keep order", "crowded"]),
    ),
    st.tuples(st.just("opens"), st.booleans()),
    st.tuples(st.just("mistake"), st.binary(max_size=20)),
    st.tuples(st.just("garbage"), st.binary(max_size=20)),
    st.tuples(st.just("close")),
)


class Talk:
    """A client, a broker that answers in order, and between them two cores whose output is compared."""

    def __init__(self, resolve: Resolve | None, *, foreign: bool, twin: type[Twin] = Twin) -> None:
        self.sessions = SessionLimits(max_sessions=1)
        self._opening: set[int] = set()
        opening = self._opening.__contains__
        self.twin = twin(sessions=self.sessions, resolve=resolve, maybe_not_kafka=foreign, opening=opening)
        self._says = Says()
        self.correlation = 0
        self.now = 1.0
        self._last: list[Any] = [("produce", 10, -1, 5, b"c")]
        self._silent: set[bytes] = set()
        self._asked: list[bytes] = []
        self._left = b""

    def asks(self, what: list[Any], cuts: list[int]) -> None:
        self._last = what
        for piece in _cut(b"".join(map(self._frame, what)), cuts):
            self.twin.receive_client(piece, self.now)
            self._take()

    def repeats(self, times: int, cuts: list[int]) -> None:
        for _ in range(times):
            self.asks(self._last, cuts)
            self.answers(1, cuts)

    def polls(self, times: int, moves: bool, isolation: int) -> None:
        """Play fetches of a consumer with four partitions. The list of partitions rotates with each fetch."""
        for number in range(times):
            self.poll(number, number if moves else 0, isolation)
            self.answers(9, [])

    def poll(self, number: int, offset: int, isolation: int) -> None:
        """Send a fetch, and do not answer it yet."""
        wants = [0, 1, 2, 3][number % 4 :] + [0, 1, 2, 3][: number % 4]
        self.asks([("fetch", 16, wants, offset, (0, -1), "c", isolation)], [])

    def answers(self, count: int, cuts: list[int]) -> None:
        told = b"".join(_told(frame, self._says) for frame in self._asked[:count])
        del self._asked[:count]
        self.now += 0.01
        for piece in _cut(told, cuts):
            self.twin.receive_broker(piece, self.now)
            self.twin.drain_client()
            self._take()

    def answers_so(self, says: Says) -> None:
        self._says = says

    def switch(self, to: str) -> None:
        off_for = frozenset({to[-1]} if to.startswith("off for") else ())
        self.sessions.reload(on=to != "off", off_for=off_for, keep_order=to == "keep order")
        self.sessions.crowded = to == "crowded"

    def opens(self, later: bool) -> None:
        """Start to open a listener. With `later`, the listener is not open yet when this returns."""
        self._opening.add(2)
        if not later:
            self._opening.clear()
            self.twin.brokers_opened(frozenset({2}))
            self.twin.drain_client()

    def mistake(self, data: bytes) -> None:
        self.twin.receive_client(data, self.now)
        self._take()

    def garbage(self, data: bytes) -> None:
        self.twin.receive_broker(data, self.now)

    def close(self) -> None:
        self.twin.close_session(self.now)
        self._take()

    def _frame(self, what: Any) -> bytes:
        self.correlation += 1
        match what:
            case "produce", version, acks, size, client:
                if not acks:
                    self._silent.add(self.correlation.to_bytes(4))
                return produce(self.correlation, version, acks=acks, size=size, client=client)
            case "fetch", version, partitions, offset, session, client, *isolation:
                if not 4 <= version <= 18:
                    return request(FETCH, version, self.correlation, bytes(30))
                wants: list[Want] = [("t", index, offset * (index == 1)) for index in partitions]
                told = session if version >= 7 else (0, -1)
                level = sum(isolation)  # it is told of polls
                return fetch(
                    version,
                    *wants,
                    correlation=self.correlation,
                    session=told,
                    client=client,
                    isolation_level=level,
                )
            case "other", key, client:
                return request(key, 0, self.correlation, b"\0\0\0\0", client)
        raise AssertionError(what)

    def _take(self) -> None:
        frames = split(self._left + b"".join(map(bytes, self.twin.drain_broker())))
        self._left = b""
        for frame in frames:
            if len(frame) < 12 or len(frame) < 4 + int.from_bytes(frame[:4]):
                self._left = frame
            elif frame[8:12] not in self._silent:
                self._asked.append(frame)


def _cut(data: bytes, sizes: list[int]) -> list[bytes]:
    pieces = []
    for size in sizes:
        pieces.append(data[:size])
        data = data[size:]
    return [piece for piece in (*pieces, data) if piece]


def _told(frame: bytes, says: Says) -> bytes:
    key, version, correlation = frame[5], int.from_bytes(frame[6:8]), int.from_bytes(frame[8:12], signed=True)
    if key == FETCH and 4 <= version <= 18:
        asked = wire.decode_request(frame[4:])
        elements = [
            wire.TopicData(
                topic=topic.topic,
                topic_id=topic.topic_id,
                partitions=tuple(_part(part.partition, version, says) for part in topic.partitions),
            )
            for topic in asked.topics
        ]
        if says.hot and asked.session_epoch > 0:
            parts = tuple(_part(index, version, says) for index in says.hot)
            elements = [wire.TopicData(**named(version, "t"), partitions=parts)]
        elif asked.session_epoch > 0:
            elements = []
        error = says.refuses if asked.session_epoch >= 0 else 0
        told = wire.FetchResponse(
            version=version,
            correlation_id=correlation,
            session_id=77 if asked.session_epoch >= 0 and version >= 7 and not error else 0,
            error_code=error if version >= 7 else 0,
            throttle_time_ms=says.throttle_time_ms,
            topics=() if error else tuple(elements),
            tags=(LEADER,) if says.leads and version >= 16 else (),
        )
        return framed(wire.encode_response(told))
    if key == API_VERSIONS:
        return api_versions("4.3.0", correlation)[1]
    if key == PRODUCE and version == 10:
        return produced(correlation, says.high, tags=_tagged(LEADER) if says.leads else b"\0")
    return response(correlation, bytes(says.records))


def _part(index: int, version: int, says: Says) -> wire.PartitionData:
    fields: dict[str, Any] = {} if version >= 5 else {"log_start_offset": -1}
    if says.tagged and version >= 12:
        fields["tags"] = (wire.current_leader_tag(2, 9),)
    if says.aborted:
        fields["aborted"] = (wire.AbortedTransaction(producer_id=1, first_offset=0),)
    records = None if says.null else bytes(says.records)
    if says.lag:
        fields["last_stable_offset"] = max(0, says.high - says.lag)
    if says.error:
        return entry(index, error=says.error, records=records, **fields)
    return entry(index, says.high, records=records, **fields)


@examples(400)
@given(
    steps=st.lists(STEPS, max_size=40),
    resolve=st.sampled_from([None, gateway]),
    foreign=st.booleans(),
    seldom=st.booleans(),
)
def test_any_conversation(steps: list[Any], resolve: Resolve | None, foreign: bool, seldom: bool) -> None:
    talk = Talk(resolve, foreign=foreign)
    if seldom:
        talk.twin.ask_seldom()
    for step, *arguments in steps:
        getattr(talk, step)(*arguments)
    talk.twin.ended()
    talk.twin.check_measured()


@examples(400)
@given(
    steps=st.lists(STEPS.filter(lambda step: step[0] != "garbage"), max_size=40),
    resolve=st.sampled_from([None, gateway]),
)
def test_any_conversation_with_responses_that_are_joined(steps: list[Any], resolve: Resolve | None) -> None:
    talk = Talk(resolve, foreign=False, twin=Joining)
    for step, *arguments in steps:
        getattr(talk, step)(*arguments)
    talk.twin.ended()
    talk.twin.check_measured()
