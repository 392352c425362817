"""`--max-fetch-bytes` limits max_bytes (KIP-74) of every fetch, with and without a session."""

from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from proxy.core.connection import MakeStage
from proxy.core.eligibility import BrokerVersions, SessionLimits
from proxy.core.events import FetchKind
from proxy.features.limits.fetch_floors import FetchLimits
from proxy.features.limits.max_fetch_bytes import MaxFetchBytes
from tests.connections import connect
from tests.core.test_expanded_equals_direct import API_VERSIONS
from tests.core.test_keep_order import Reader
from tests.frames import Want, entry, fetch, fetch_response
from tests.model.broker import ModelBroker
from tests.model.compare import in_request_order
from tests.model.gate import Gate
from tests.model.wire import FetchRequest, decode_response, encode_request
from tests.playbook import SESSION_ID, Playbook, T, api_versions, asks, full
from tests.protocol.test_old_fetch import asked as old_fetch

MOST = 1_000
ASKED: dict[str, Any] = {"max_bytes": 50 << 20, "min_bytes": 5_000}
LOWERED: dict[str, Any] = {"max_bytes": MOST, "min_bytes": MOST}
VERSIONS = [4, 7, 11, 12, 13, 15, 18]


class Limited(Playbook):
    """A connection with `--max-fetch-bytes`."""

    def __init__(self, ceilings: dict[str, int]) -> None:
        self.ceilings = FetchLimits(max_bytes=ceilings)
        super().__init__(stages=(partial(MaxFetchBytes, self.ceilings),))

    def reload(self, ceilings: dict[str, int]) -> None:
        self.ceilings.max_bytes = ceilings
        self.sessions.generation += 1


def ceiling(ceilings: dict[str, int]) -> MakeStage:
    return partial(MaxFetchBytes, FetchLimits(max_bytes=ceilings))


def limited(ceilings: dict[str, int] | None = None) -> Limited:
    return Limited(ceilings or {"": MOST})


def repeats(play: Playbook, version: int, wants: list[Want], numbers: range, due: dict[str, Any]) -> None:
    """Play fetches that are forwarded with the limits `due`."""
    for number in numbers:
        play.client(fetch(version, *wants, correlation=number, **ASKED))
        play.to_broker(fetch(version, *wants, correlation=number, **due))
        told = full(version, wants, correlation_id=number)
        play.broker(told).to_client(told)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_fetch_that_is_forwarded_asks_for_no_more(version: int) -> None:
    """max_bytes is lowered in fetches of one partition. From the second fetch on, the fast path does this."""
    play = limited().knows()
    repeats(play, version, T[:1], range(10, 15), LOWERED)
    assert play.connection.passed > 5
    for smaller in (MOST, MOST - 1, 0, -1):
        limits: dict[str, Any] = {"max_bytes": smaller, "min_bytes": 5_000}
        asked = fetch(version, *T[:1], correlation=20, **limits)
        play.exchange(asked, full(version, T[:1], correlation_id=20))
    assert play.connection.tally.passthrough == {"one partition": 9}


@pytest.mark.parametrize("ceilings", [{}, {"": 0}, {"other": MOST}, {"": MOST, "c": 0}])
def test_without_a_ceiling_for_the_client_nothing_changes(ceilings: dict[str, int]) -> None:
    play = limited(ceilings or {"": 0}).knows()
    repeats(play, 16, T[:1], range(10, 15), ASKED)


def test_a_client_id_has_a_ceiling_of_its_own() -> None:
    play = limited({"": 5, "c": MOST}).knows()
    repeats(play, 16, T[:1], range(10, 13), LOWERED)


def test_another_ceiling_applies_at_run_time() -> None:
    """A limit changed at run time applies to the next fetch, even on the fast path."""
    play = limited({"": 0}).knows()
    repeats(play, 16, T[:1], range(10, 13), ASKED)
    play.reload({"": MOST})
    repeats(play, 16, T[:1], range(13, 16), LOWERED)
    play.reload({"": 2 * MOST})
    repeats(play, 16, T[:1], range(16, 19), {"max_bytes": 2 * MOST, "min_bytes": 2 * MOST})
    play.reload({})
    repeats(play, 16, T[:1], range(19, 22), ASKED)


@pytest.mark.parametrize("version", VERSIONS)
def test_the_fetches_of_a_session_ask_for_no_more(version: int) -> None:
    """max_bytes is lowered in all fetches of a session: full, incremental, with a rotated list, and
    repeated.
    """
    play = limited().knows()
    wants: list[Want] = [("t", at) for at in range(8)]
    asked, forwarded = (fetch(version, *wants, correlation=3, **limits) for limits in (ASKED, LOWERED))
    while (sent := play.client(asked).takes_broker()) == forwarded:
        play.broker(full(version, wants, correlation_id=3)).takes_client()
    assert sent == asks(version, wants, (0, 0), correlation=3, **LOWERED)
    play.broker(full(max(version, 7), wants, correlation_id=3, session_id=SESSION_ID)).takes_client()
    for epoch in range(1, 9):
        number = 10 + epoch
        wants = [*wants[1:], wants[0]]
        play.client(fetch(version, *wants, correlation=number, **ASKED))
        play.to_broker(asks(version, [], (SESSION_ID, epoch), correlation=number, **LOWERED))
        play.broker(fetch_response(max(version, 7), session_id=SESSION_ID, correlation_id=number))
        play.to_client(full(version, wants, correlation_id=number))
    assert (play.connection.passed > 5) is (version >= 7), "v4 to v6 have no fast path"
    play.client(fetch(version, *wants, correlation=30, **ASKED))
    play.to_broker(asks(version, [], (SESSION_ID, 9), correlation=30, **LOWERED))
    play.broker(fetch_response(max(version, 7), error_code=70, correlation_id=30))
    play.to_broker(asks(version, wants, (0, 0), correlation=30, **LOWERED))


@pytest.mark.parametrize("version", [7, 12, 18])
def test_another_ceiling_applies_after_a_fetch_that_is_in_flight(version: int) -> None:
    """A limit changes while a fetch of a session is in flight. It applies to the next fetch, even if the next
    fetch has the same list.
    """
    wants: list[Want] = [("t", at) for at in range(8)]
    play = limited({"": 0}).established(version, wants)
    for number in range(10, 16):
        play.client(fetch(version, *wants, correlation=number, **ASKED))
        due = ASKED if number < 14 else LOWERED
        play.to_broker(asks(version, [], (SESSION_ID, number - 9), correlation=number, **due))
        if number == 13:
            play.reload({"": MOST})
        moved = [("t", [entry(0, number)])] if number == 13 else []
        told = fetch_response(version, *moved, session_id=SESSION_ID, correlation_id=number)
        play.broker(told).takes_client()


@pytest.mark.parametrize("version", [7, 12, 18])
def test_a_session_of_the_clients_own_asks_for_no_more(version: int) -> None:
    play = limited().knows()
    told = fetch_response(version, session_id=5, correlation_id=4)
    for session, forget in (((0, 0), []), ((5, 1), [("u", 0)]), ((5, 2), [])):
        play.client(fetch(version, *T, session=session, forget=forget, correlation=4, **ASKED))
        play.to_broker(fetch(version, *T, session=session, forget=forget, correlation=4, **LOWERED))
        play.broker(told).to_client(told)


@pytest.mark.parametrize(
    "fields",
    [
        {"replica_id": 1},
        {"values": {"tags": ((5, b"x"),)}},
        {"forget": [("u", 0)]},
    ],
    ids=["a follower", "tags", "forgets without a session"],
)
def test_what_is_no_plain_consumers_fetch_stays_as_it_is(fields: dict[str, Any]) -> None:
    """Traps 1 and 2: a fetch that no plain consumer sends is forwarded unchanged."""
    play = limited().knows()
    for number in (1, 2):
        asked = fetch(12, *T, correlation=number, **ASKED, **fields)
        play.exchange(asked, full(12, T, correlation_id=number))


def test_a_fetch_that_is_not_understood_or_too_large_stays_as_it_is() -> None:
    play = limited().knows()
    wants: list[Want] = [("t", at) for at in range(40_000)]
    for asked in (fetch(16, *T, **ASKED)[:-1] + b"\x01", fetch(16, *wants, **ASKED)):
        play.client(asked).to_broker(asked)


# --- v2 and v3 ------------------------------------------------------------------------------------

PROBE = b"\0\0\0\x0b\0\x12\0\0fgat\0\1c"
TOPICS = {"t": [0, 1], "u": [4]}
TURNED = {"u": [4], "t": [0, 1]}


def old_exchange(play: Playbook, asked: bytes, sent: bytes) -> None:
    """Play a fetch of v2 or v3. The response looks the same in both versions."""
    told = (12).to_bytes(4) + asked[8:12] + bytes(8)
    play.client(asked).to_broker(sent)
    play.broker(told).to_client(told)


@pytest.mark.parametrize("release", ["1.0", "3.9"])
def test_fetches_of_v2_get_a_limit(release: str) -> None:
    play = limited().knows(release)
    asked = old_fetch(2, TOPICS)
    old_exchange(play, asked, old_fetch(3, TOPICS, max_bytes=MOST))
    old_exchange(play, asked, old_fetch(3, TURNED, max_bytes=MOST))
    tally = play.connection.tally
    assert tally.broker.fetch_request_bytes == tally.client.fetch_request_bytes + 8
    assert tally.broker.bytes_out == tally.client.bytes_in + 8
    assert tally.passthrough == {"not looked into": 2}


def test_fetches_of_v3_ask_for_no_more() -> None:
    play = limited().knows("1.0")
    old_exchange(play, old_fetch(3, TOPICS, max_bytes=9_000), old_fetch(3, TOPICS, max_bytes=MOST))
    same = old_fetch(3, TOPICS, max_bytes=MOST - 1)
    old_exchange(play, same, same)


def test_fetches_of_v2_stay_until_the_broker_is_known() -> None:
    play, asked = limited(), old_fetch(2, TOPICS)
    play.client(asked).to_broker(PROBE, asked)
    told = (12).to_bytes(4) + asked[8:12] + bytes(8)
    versions = api_versions("1.0")[1]
    play.broker(versions[:4] + b"fgat" + versions[8:], told).to_client(told)
    old_exchange(play, asked, old_fetch(3, TOPICS, max_bytes=MOST))


def test_what_the_broker_said_to_other_clients_is_enough() -> None:
    shared: dict[str, Any] = {"versions": BrokerVersions(), "stages": (ceiling({"": MOST}),)}
    limits = SessionLimits(max_sessions=10)
    other = Playbook(limits, **shared).knows("1.0")
    play, asked = Playbook(limits, **shared), old_fetch(2, TOPICS)
    old_exchange(play, asked, old_fetch(3, TOPICS, max_bytes=MOST))
    other.connection.ended()
    another = Playbook(limits, **shared)
    another.client(asked).to_broker(PROBE, asked)


def test_fetches_of_v2_stay_where_the_broker_has_no_v3() -> None:
    """A v2 fetch is not changed if the broker has no Fetch v3, like Kafka 0.10.0 (section 1.7)."""
    asked, told = api_versions("1.0")
    ranges = b"\0\1\0\0\0\2"
    old = (4 + 2 + 4 + len(ranges)).to_bytes(4) + told[4:8] + b"\0\0" + b"\0\0\0\1" + ranges
    play = limited().exchange(asked, old)
    for _ in range(2):
        same = old_fetch(2, TOPICS)
        old_exchange(play, same, same)


@pytest.mark.parametrize("version", [0, 1, 2, 3])
def test_without_a_ceiling_fetches_below_v4_stay_as_they_are(version: int) -> None:
    for play in (Playbook().knows("1.0"), limited({"": 0}).knows("1.0"), limited({"d": 5}).knows("1.0")):
        asked = old_fetch(3 if version == 3 else 2, TOPICS, max_bytes=9_000)
        same = asked[:6] + version.to_bytes(2) + asked[8:]
        old_exchange(play, same, same)


@pytest.mark.parametrize("version", [0, 1])
def test_v0_and_v1_stay_as_they_are(version: int) -> None:
    """Fetches of v0 and v1 are not changed, because their records have an older format (section 1.6)."""
    asked = old_fetch(2, TOPICS)
    same = asked[:6] + version.to_bytes(2) + asked[8:]
    old_exchange(limited().knows("1.0"), same, same)


def test_fetches_of_v2_in_pieces_and_one_that_breaks_off() -> None:
    play, asked = limited().knows("1.0"), old_fetch(2, TOPICS)
    play.client(asked[:30]).nothing()
    play.client(asked[30:]).to_broker(old_fetch(3, TOPICS, max_bytes=MOST))
    broken = old_fetch(2, TOPICS)[:-3]
    broken = (len(broken) - 4).to_bytes(4) + broken[4:]
    play.client(broken).to_broker(broken)


@pytest.mark.parametrize("version", [2, 3])
def test_a_header_that_can_t_be_read(version: int) -> None:
    """If the header of a v2 or v3 fetch can't be read, its response is forwarded unread. A fuzzer found that
    the gateway tried to read it.
    """
    asked = old_fetch(version, TOPICS)
    broken = asked[:12] + b"\x7f\xff" + asked[14:]
    old_exchange(limited().knows("1.0"), broken, broken)


# --- who gets what --------------------------------------------------------------------------------


class LimitedReader(Reader):
    """A consumer with a limit of max_bytes. The direct fetches for comparison have the same limit."""

    def __init__(self, release: str, version: int, seed: int) -> None:
        super().__init__(release, version, seed, keep_order=True)
        self.ceiling = self.chance.choice([120, 250])
        sessions = SessionLimits(max_sessions=10, keep_order=True)
        self.gate = Gate(connect(sessions, stages=(ceiling({"": self.ceiling}),)), self.broker)
        self.gate.exchange([API_VERSIONS], 0.0)

    def step(self, number: int) -> None:
        for _ in range(self.chance.choice([0, 0, 0, 1, 4])):
            partition = self.topic.partitions[self.chance.randrange(6)]
            partition.append(b"r" * self.chance.choice([20, 100, 200]))
        request, now = self.request(number), 15.0 * number
        lowered = replace(request, max_bytes=min(request.max_bytes, self.ceiling))
        direct = decode_response(self.broker.handle(encode_request(lowered), now), self.version)
        (through,) = self.gate.exchange([encode_request(request)], now)
        got = decode_response(through, self.version)
        assert in_request_order(got, request) == in_request_order(direct, request)
        for topic in got.topics:
            for data in topic.partitions:
                self.goes_on(data.partition_index, len(data.records or b""))


@pytest.mark.parametrize(("release", "version"), [("2.8.2", 7), ("3.9.1", 12), ("4.3.0", 16)])
def test_the_client_gets_what_a_fetch_with_the_lower_limit_gets(release: str, version: int) -> None:
    """The client gets the same records as with a direct fetch that has the lower limit.

    `--keep-order` is on, so the order of a session makes no difference.
    """
    incremental = 0
    for seed in range(2):
        reader = LimitedReader(release, version, seed)
        for number in range(150):
            reader.step(number)
        incremental += reader.gate.connection.tally.broker.fetches[FetchKind.INCREMENTAL]
    assert incremental > 30


def test_each_batch_comes_though_it_is_larger_than_the_ceiling() -> None:
    """A batch larger than the limit is still delivered, by the rule of KIP-74 for the first batch (cases 59
    and 62).
    """
    broker = ModelBroker(release="4.3.0")
    topic = broker.create_topic("t", 6)
    for partition in topic.partitions.values():
        for _ in range(3):
            partition.append(b"r" * 500)
    gate = Gate(connect(SessionLimits(max_sessions=10), stages=(ceiling({"": 1}),)), broker)
    gate.exchange([API_VERSIONS], 0.0)
    reader = Reader("4.3.0", 16, 1, keep_order=False)
    reader.topic = topic
    read = 0
    for number in range(18 + 2):
        request: FetchRequest = replace(reader.request(number), max_bytes=50 << 20)
        (through,) = gate.exchange([encode_request(request)], 15.0 * number)
        for element in decode_response(through, 16).topics:
            for data in element.partitions:
                read += bool(data.records)
                reader.goes_on(data.partition_index, len(data.records or b""))
    assert read == 18
    assert set(reader.offsets.values()) == {3}
