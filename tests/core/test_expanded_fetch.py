"""Entries that the gateway fills in look like the broker's own entries, whatever broker it is.

franz-go's kfake, for example, sends null for a fetch without aborted transactions, even for read_committed.
With read_committed, a partition that got no records because of a byte limit has the same entry as without a
session.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import pytest

from proxy.core.eligibility import SessionLimits
from proxy.session.rotation import Rotation
from tests.frames import Want as Listed
from tests.frames import entry, fetch, fetch_response
from tests.model import wire
from tests.model.asker import Requests, Want
from tests.model.broker import ModelBroker
from tests.model.compare import check
from tests.model.gate import Gate
from tests.model.wire import FetchRequest, FetchResponse, decode_response, encode_request
from tests.playbook import SESSION_ID, Playbook
from tests.sessionless import API_VERSIONS
from tests.twin import Twin

WANTS: list[Want] = [(name, index) for name in ("t", "u") for index in range(8)]


class Client(Requests):
    """A client without sessions whose responses are compared with those of direct fetches."""

    def __init__(
        self,
        version: int,
        *,
        wants: list[Want] = WANTS,
        model: type[ModelBroker] = ModelBroker,
        **broker: Any,
    ) -> None:
        super().__init__(version=version)
        self.broker = model(**broker)
        for name in ("t", "u"):
            self.ids[name] = self.broker.create_topic(name, 8).topic_id
        self.wants = list(wants)
        self.now = 0.0
        self.offsets: dict[tuple[str, int], int] = {}
        self.gate = Gate(
            Twin(sessions=SessionLimits(max_sessions=10), resolve=None),
            self.broker,
        )
        self.gate.exchange([API_VERSIONS], 0.0)

    def send(self, request: FetchRequest) -> FetchResponse:
        direct = decode_response(self.broker.handle(encode_request(request), self.now), self.version)
        told = self.through(request)
        check(request, told, direct)
        return told

    def through(self, request: FetchRequest) -> FetchResponse:
        (response,) = self.gate.exchange([encode_request(request)], self.now)
        return decode_response(response, self.version)

    def poll(self, isolation_level: int, **fields: int) -> FetchResponse:
        wants = [(name, index, self.offsets.get((name, index), 0)) for name, index, *_ in self.wants]
        told = self.fetch(*wants, isolation_level=isolation_level, **fields)
        self.wants = self.wants[1:] + self.wants[:1]
        return told

    def read_to_the_end(self) -> None:
        for name, index, *_ in self.wants:
            self.offsets[name, index] = self.broker.partition(name, index).log_end


@pytest.mark.parametrize("version", [4, 7, 11, 12, 16])
@pytest.mark.parametrize("dialect", ["", "null", "list"])
@pytest.mark.parametrize("isolation_level", [0, 1])
@pytest.mark.parametrize("wants", [WANTS, WANTS[:8]], ids=["two topics", "one topic"])
def test_filled_in_entries_end_as_this_broker_writes_them(
    version: int, dialect: str, isolation_level: int, wants: list[Want]
) -> None:
    """The partition is idle, gets records, then an aborted transaction, and is idle again."""
    client = Client(version, wants=wants, dialect=dialect)
    partition = client.broker.partition("t", 2)
    partition.append(b"in transaction", producer=1)
    partition.end_transaction(1, commit=False)
    client.poll(isolation_level)
    client.read_to_the_end()
    for step in range(12):
        if step == 4:
            client.broker.partition("t", 3).append(b"data")
        elif step == 6:
            partition.append(b"in transaction", producer=1)
            partition.end_transaction(1, commit=False)
        client.poll(isolation_level)
        if step % 2:
            client.read_to_the_end()
    assert client.gate.connection.tally.broker.fetches[1] > 8


@pytest.mark.parametrize("version", [4, 7, 11, 12, 16])
def test_records_are_null_only_where_the_broker_wrote_so_itself(version: int) -> None:
    """For other partitions, null records would crash librdkafka (section 6.2)."""
    client = Client(version, dialect="null records")
    for step in range(8):
        if step == 5:
            client.broker.partition("t", 3).append(b"data")
        client.poll(0)
        client.read_to_the_end()
    assert client.gate.connection.tally.broker.fetches[1] > 4


@pytest.mark.parametrize("version", [7, 12])
@pytest.mark.parametrize("dialect", ["", "null"])
def test_a_batch_that_does_not_fit_says_nothing_of_later_entries(version: int, dialect: str) -> None:
    """Section 1.4: the entry of a batch that did not fit has null instead of a list of aborted transactions.

    The gateway does not copy this null into later entries: filled-in entries have a list again.
    """
    client = Client(version, wants=WANTS[:8], dialect=dialect)
    for _ in range(3):
        client.poll(1)
    for index in (1, 5):
        client.broker.partition("t", index).append(b"r" * 300)
    client.poll(1, max_bytes=450)
    client.offsets["t", 1] = 1
    client.poll(1, max_bytes=450)
    client.offsets["t", 5] = 1
    for _ in range(3):
        client.poll(1)


@pytest.mark.parametrize("version", [4, 7, 12])
def test_a_broker_that_throttles_without_emptying_loses_no_entries(version: int) -> None:
    """Trap 13: a broker without KIP-219 throttles and still sends entries, and no entry is lost.

    The gateway sees this in the first throttled response, and completes all later ones.
    """
    client = Client(version, empties=False)
    client.broker.throttle_ms = 30
    for _ in range(6):
        told = client.poll(0)
        assert told.throttle_time_ms == 30
        assert sum(len(topic.partitions) for topic in told.topics) == len(WANTS)
    assert client.gate.connection.tally.broker.fetches[1] > 3


RECORDS = b"r" * 300
LIMIT = 1_000
STARVED: dict[str, list[tuple[str, int, int]]] = {
    "one topic": [("t", number, 5) for number in range(12)],
    "two topics": [("t" if number < 6 else "u", number, 5) for number in range(12)],
}


BACK = range(3)
"""The partitions in which the client seeks back to offset 2."""


def responds(
    version: int, wants: Iterable[Listed], given: dict[int, wire.PartitionData], **fields: Any
) -> bytes:
    """Build a response. Partitions that are not in `given` have an unchanged entry."""
    elements: list[tuple[str, list[wire.PartitionData]]] = []
    for name, number, *_ in wants:
        data = given.get(number) or idle(version, number)
        if elements and elements[-1][0] == name:
            elements[-1][1].append(data)
        else:
            elements.append((name, [data]))
    return fetch_response(version, *elements, **fields)


def idle(version: int, number: int, **fields: Any) -> wire.PartitionData:
    if version == 4:
        fields["log_start_offset"] = -1
    return entry(number, 5, **{"aborted": ()} | fields)


class Scene:
    """A session of a read_committed client. Every high watermark and last stable offset is 5."""

    def __init__(self, version: int, wants: Sequence[Listed]) -> None:
        self.version, self.wants = version, wants
        self.spoken = max(version, 7)
        self.correlation = 0
        self.play = Playbook().knows()
        while not self.play.connection.session_id:
            asked = self.fetch(wants)
            asks = self.play.client(asked).takes_broker() != asked
            session = {"session_id": SESSION_ID} if asks else {}
            spoken = self.spoken if asks else version
            told = responds(spoken, wants, {}, correlation_id=self.correlation, **session)
            self.play.broker(told).to_client(responds(version, wants, {}, correlation_id=self.correlation))

    def fetch(self, wants: Sequence[Listed]) -> bytes:
        self.correlation += 1
        return fetch(self.version, *wants, correlation=self.correlation, isolation_level=1, max_bytes=LIMIT)

    def turn(
        self,
        wants: Sequence[Listed],
        told: dict[int, wire.PartitionData],
        given: dict[int, wire.PartitionData],
    ) -> None:
        """Play one fetch, and check the response that the client gets.

        Args:
            wants: the partitions that the client fetches.
            told: the entries that the broker sends.
            given: entries that the client must get in place of `told`, or in addition. All others must be
                unchanged.
        """
        self.play.client(self.fetch(wants))
        assert len(self.play.takes_broker()) < len(fetch(self.version, *wants))
        sent = [want for want in wants if want[1] in told]
        fields = {"correlation_id": self.correlation, "session_id": SESSION_ID}
        self.play.broker(responds(self.spoken, sent, told, **fields))
        self.play.to_client(responds(self.version, wants, told | given, correlation_id=self.correlation))


@pytest.mark.parametrize("version", [4, 7, 11, 12, 16])
@pytest.mark.parametrize("what", STARVED)
def test_what_did_not_fit_has_no_list_of_aborted_transactions(version: int, what: str) -> None:
    wants = STARVED[what]
    scene = Scene(version, wants)
    back = [(name, number, 2 if number in BACK else 5) for name, number, _ in wants]
    starved = {number: idle(version, number, aborted=None) for number in BACK}
    first = {0: idle(version, 0, records=RECORDS)}
    scene.turn(back, first, {1: starved[1], 2: starved[2]})
    back[0] = wants[0]
    second = {1: idle(version, 1, records=RECORDS)}
    scene.turn(back, second, {2: starved[2]})
    # Nothing is left of max_bytes: the broker reads nothing at all then, and tells of no transaction.
    scene.turn(back, {1: idle(version, 1, records=bytes(LIMIT))}, {})
    # No partition had records: there was nothing to read.
    scene.turn(back, {}, {})
    scene.turn(wants, {}, {})
    scene.turn(wants, {7: idle(version, 7, records=RECORDS)}, {})


def test_who_is_not_behind_stays_on_the_short_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """If no partition lacks records because of the byte limit, the response is built in the fast way.

    A partition that just got records does not count as lacking them, although the client has not fetched the
    rest yet.
    """
    ways: list[int] = []
    expand, full = Rotation.expand, Rotation.full

    def counted(self: Rotation, first: int, *rest: Any, **fields: Any) -> Any:
        ways.append(first)
        return expand(self, first, *rest, **fields)

    def counted_fast(self: Rotation, first: int, *rest: Any) -> Any:
        ways.append(first)
        return full(self, first, *rest)

    monkeypatch.setattr(Rotation, "expand", counted)
    monkeypatch.setattr(Rotation, "full", counted_fast)
    wants = STARVED["one topic"]
    scene = Scene(12, wants)
    for _ in range(2):
        scene.turn(wants, {}, {})
    for offset in range(6, 9):
        told = {3: entry(3, offset, aborted=(), records=RECORDS)}
        wants = [(name, number, offset - 1 if number == 3 else 5) for name, number, _ in wants]
        cached = {3: entry(3, offset, aborted=(), records=RECORDS)}
        scene.turn(wants, told, cached)
    assert len(ways) == 2 * 5  # with the fast path and without: the playbook plays both
    table = scene.play.connection.session_table
    assert table is not None
    assert table.behind == {3}
