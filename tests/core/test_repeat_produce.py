"""An idempotent Produce request is retried at the new leader of its partition.

The tests play the connections step by step.
"""

import struct
import tracemalloc
from typing import Any, Final, Self

import pytest

from proxy.core.budget import RequestBudget
from proxy.core.connection import Connection
from proxy.core.events import NotFollowed
from proxy.core.repeat import MAX_BYTES, MAX_SECONDS
from proxy.core.siblings import ProduceOrder, Siblings
from proxy.protocol.api import ApiKey
from proxy.protocol.produce import read_idempotent
from tests.core.following import NEW, OLD, OURS, TOPIC, gateway, metadata_request, metadata_response, play
from tests.frames import framed
from tests.playbook import Playbook, request, response

PRODUCER: Final = 7000
VERSIONS: Final = (7, 8, 9)


def batch(sequence: int, records: int = 2, *, producer: int = PRODUCER, attributes: int = 0) -> bytes:
    """Build a record batch. Only its header is valid, because the brokers here read nothing else."""
    data = b"records" * records
    head = struct.pack(
        ">ibIhiqqqhii", -1, 2, 0, attributes, records - 1, 0, 0, producer, 0, sequence, records
    )
    return struct.pack(">qi", 0, len(head) + len(data)) + head + data


def produce(
    version: int,
    *batches: tuple[int, bytes],
    correlation: int = 5,
    acks: int = -1,
    transaction: str | None = None,
) -> bytes:
    """Build a Produce request for one topic. `batches` are pairs of partition and batch."""
    head = struct.pack(">hhihc", 0, version, correlation, 1, b"c")
    if version < 9:
        name = b"\xff\xff" if transaction is None else len(transaction).to_bytes(2) + transaction.encode()
        entries = [at.to_bytes(4) + len(data).to_bytes(4) + data for at, data in batches]
        topic = len(TOPIC).to_bytes(2) + TOPIC.encode() + len(entries).to_bytes(4) + b"".join(entries)
        return framed(head + name + struct.pack(">hi", acks, 30_000) + b"\0\0\0\1" + topic)
    entries = [at.to_bytes(4) + uvarint(len(data) + 1) + data + b"\0" for at, data in batches]
    topic = uvarint(len(TOPIC) + 1) + TOPIC.encode() + uvarint(len(entries) + 1) + b"".join(entries) + b"\0"
    return framed(head + b"\0\0" + struct.pack(">hi", acks, 30_000) + b"\2" + topic + b"\0")


def produced(version: int, *told: tuple[int, int, int], correlation: int = 5) -> bytes:
    """Build a Produce response. `told` are triples of partition, error code and base offset."""
    entries = []
    for at, error, offset in told:
        entry = struct.pack(">ihqqq", at, error, offset, -1, 0)
        if version == 8:
            entry += b"\0\0\0\0\xff\xff"
        entries.append(entry + (b"\1\0\0" if version == 9 else b""))
    if version < 9:
        topic = len(TOPIC).to_bytes(2) + TOPIC.encode() + len(entries).to_bytes(4) + b"".join(entries)
        return response(correlation, b"\0\0\0\1" + topic + bytes(4))
    topic = uvarint(len(TOPIC) + 1) + TOPIC.encode() + uvarint(len(entries) + 1) + b"".join(entries) + b"\0"
    return response(correlation, b"\0\2" + topic + bytes(4) + b"\0")


def uvarint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*out, value))


class Producer:
    """A producer with connections to the old and the new leader."""

    def __init__(self, version: int = 7) -> None:
        self.version = version
        self.siblings = Siblings(produces=True)
        self.old, self.new = self.play(OLD), self.play(NEW)

    def play(self, node_id: int) -> Playbook:
        played = Playbook(
            resolve=gateway, core=Connection, siblings=self.siblings, host="10.0.0.7", node_id=node_id
        )
        played.exchange(request(18, 0, 1), response(1, bytes(6)))
        return played.exchange(request(ApiKey.HEARTBEAT, 0, 1), response(1, b"\0\0"))

    def produce(self, sequence: int, correlation: int = 5, **fields: Any) -> bytes:
        return produce(self.version, (0, batch(sequence)), correlation=correlation, **fields)

    def told(self, error: int, offset: int = -1, correlation: int = 5) -> bytes:
        return produced(self.version, (0, error, offset), correlation=correlation)

    def sends(self, *sequences: int) -> Self:
        """Send batches with the given sequence numbers to the old leader.

        Each request has the correlation id 100 + its sequence number.
        """
        for each in sequences:
            asked = self.produce(each, 100 + each)
            self.old.client(asked).to_broker(asked)
        return self

    def refused(self, sequence: int) -> Self:
        self.old.broker(self.told(6, correlation=100 + sequence))
        return self

    def leads(self, *behind: int) -> Self:
        """Let the old leader refuse the batches in `behind`, and then name the new leader."""
        self.old.to_broker(metadata_request(False))
        for each in behind:
            self.refused(each)
        self.old.broker(metadata_response(False, {0: (NEW, 5)}))
        return self

    def repeats(self, sequence: int) -> Self:
        self.new.to_broker(self.produce(sequence, OURS))
        return self

    def accepts(self, offset: int) -> Self:
        self.new.broker(self.told(0, offset, OURS)).nothing()
        return self

    def counted(self) -> tuple[dict[str, int], dict[str, int]]:
        tally = self.old.connection.tally
        return dict(+tally.leaders_followed), dict(+tally.leaders_not_followed)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("chunk", [11, 1 << 30])
def test_a_producer_without_kip_951_gets_the_answer_of_the_new_leader(version: int, chunk: int) -> None:
    two = Producer(version)
    asked = two.produce(0)
    two.old.client(asked, chunk=chunk).to_broker(asked)
    two.old.broker(two.told(6), chunk=chunk)
    two.leads().repeats(0).accepts(40)
    two.old.to_client(two.told(0, 40))
    assert two.counted() == ({"produce": 1}, {})
    # The next one needs no Metadata.
    asked = two.produce(2)
    two.old.client(asked).to_broker(asked).broker(two.told(6)).nothing()
    two.repeats(2).accepts(42)
    two.old.to_client(two.told(0, 42))


def test_only_what_failed_is_repeated() -> None:
    two = Producer()
    asked = produce(7, (0, batch(0)), (1, batch(0)), (2, batch(0)))
    two.old.client(asked).to_broker(asked)
    two.old.broker(produced(7, (0, 0, 10), (1, 6, -1), (2, 29, -1)))
    two.old.to_broker(metadata_request(False)).broker(metadata_response(False, {1: (NEW, 5)}))
    two.new.to_broker(produce(7, (1, batch(0)), correlation=OURS))
    two.new.broker(produced(7, (1, 0, 20), correlation=OURS)).nothing()
    two.old.to_client(produced(7, (0, 0, 10), (1, 0, 20), (2, 29, -1)))


def test_later_batches_follow_in_their_order() -> None:
    two = Producer()
    two.sends(0, 2, 4).refused(0).leads(2, 4).old.nothing()
    two.repeats(0)
    two.new.broker(two.told(0, 40, OURS))
    two.repeats(2)
    two.old.to_client(two.told(0, 40, 100))
    two.new.broker(two.told(0, 42, OURS))
    two.repeats(4)
    two.old.to_client(two.told(0, 42, 102))
    two.accepts(44)
    two.old.to_client(two.told(0, 44, 104))
    assert two.counted() == ({"produce": 3}, {})


@pytest.mark.parametrize("error", [3, 6, 7, 19, 45, 46, 47])
def test_no_batch_overtakes_one_that_failed(error: int) -> None:
    """After a failed batch, the gateway retries no later batch of the same producer and partition.

    A leader that does not know the producer would accept a later batch as the producer's first one.
    """
    two = Producer()
    two.sends(0, 2).refused(0).leads(2).repeats(0).sends(4)
    two.new.broker(two.told(error, correlation=OURS)).nothing()
    two.old.to_client(two.told(6, correlation=100), two.told(6, correlation=102))
    two.refused(4).old.to_client(two.told(6, correlation=104))
    assert two.counted() == ({}, {NotFollowed.REFUSED: 1, NotFollowed.NOT_NEXT: 2})
    # The client sends the first one again, to the new leader by itself; then all is as before.
    asked = two.produce(0)
    two.new.client(asked).to_broker(asked).broker(two.told(0, 40)).to_client(two.told(0, 40))
    two.sends(2).refused(2).leads().repeats(2)


def test_a_batch_of_which_the_gateway_has_not_seen_the_one_before_is_not_repeated() -> None:
    two = Producer()
    two.sends(2).refused(2).old.to_client(two.told(6, correlation=102))
    assert two.counted() == ({}, {NotFollowed.NOT_NEXT: 1})


def test_the_clients_own_produce_at_the_new_leader_waits_for_the_ones_before() -> None:
    """If the client itself sends its next batch to the new leader, this batch waits for the earlier batches.

    Otherwise the batch would be out of order at the new leader.
    """
    two = Producer()
    two.sends(0, 2)
    own = two.produce(4, 9)
    two.new.client(own).nothing()
    assert not two.new.connection.reads_client
    two.refused(0).leads(2).repeats(0)
    two.new.broker(two.told(0, 40, OURS))
    two.repeats(2)
    two.old.to_client(two.told(0, 40, 100))
    two.new.broker(two.told(0, 42, OURS)).to_broker(own)
    two.old.to_client(two.told(0, 42, 102))
    assert two.new.connection.reads_client
    two.new.broker(two.told(0, 44, 9)).to_client(two.told(0, 44, 9))


def test_it_waits_a_second_at_most_and_then_nothing_is_repeated_behind_it() -> None:
    two = Producer()
    two.sends(0)
    own = two.produce(2, 9)
    two.new.client(own).nothing()
    two.new.connection.retry.tick(MAX_SECONDS)
    two.new.to_broker(own)
    two.refused(0).old.to_client(two.told(6, correlation=100))
    assert two.counted() == ({}, {NotFollowed.NOT_NEXT: 1})


def test_other_partitions_and_producers_do_not_wait() -> None:
    two = Producer()
    two.sends(0)
    for other in (
        produce(7, (1, batch(0)), correlation=9),
        produce(7, (0, batch(0, producer=7001)), correlation=9),
    ):
        two.new.client(other).to_broker(other)


def test_a_connection_that_ends_lets_the_others_go_on() -> None:
    two = Producer()
    two.sends(0)
    own = two.produce(2, 9)
    two.new.client(own).nothing()
    two.old.connection.ended()
    two.new.to_broker(own)


@pytest.mark.parametrize("late", [False, True])
def test_a_producer_gets_its_error_if_the_new_leader_is_silent_or_gone(late: bool) -> None:
    two = Producer()
    two.sends(0, 2).refused(0).leads(2).repeats(0)
    if late:
        two.old.connection.retry.tick(MAX_SECONDS)
    else:
        two.new.connection.broker_ended()
    two.old.to_client(two.told(6, correlation=100), two.told(6, correlation=102))
    why = NotFollowed.LATE if late else NotFollowed.CLOSED
    assert two.counted() == ({}, {why: 1, NotFollowed.NOT_NEXT: 1})


def test_a_connection_that_closes_holds_no_produce() -> None:
    two = Producer()
    two.sends(0, 2).refused(0).leads(2).repeats(0)
    two.old.close().to_client(two.told(6, correlation=100), two.told(6, correlation=102))
    assert two.old.connection.done
    assert two.old.connection.buffered == 0


@pytest.mark.parametrize(
    "asked",
    [
        produce(7, (0, batch(-1, producer=-1))),
        produce(7, (0, batch(0)), (1, batch(-1, producer=-1))),
        produce(7, (0, batch(0, attributes=0x10))),
        produce(7, (0, batch(0)), transaction="t"),
        produce(7, (0, batch(0)), (0, batch(2))),
        produce(7, (0, batch(0) + batch(2))),
        produce(7, (0, batch(0)[:40])),
        produce(7, (0, batch(0, MAX_BYTES // 7))),
    ],
)
def test_what_is_not_idempotent_for_sure_passes(asked: bytes) -> None:
    """A Produce request that is not surely idempotent is not repeated at the new leader.

    With acks=all, error 6 may come after the batch was replicated, so a repeat could append the batch twice.
    """
    two = Producer()
    two.old.client(asked, chunk=1 << 16).to_broker(asked)
    two.old.broker(two.told(6)).to_client(two.told(6))
    assert two.counted() == ({}, {})


def test_a_produce_without_a_response_passes() -> None:
    two = Producer()
    asked = two.produce(0, acks=0)
    two.old.client(asked).to_broker(asked)
    beat, told = request(ApiKey.HEARTBEAT, 0, 6), response(6, b"\0\0")
    two.old.exchange(beat, told)


@pytest.mark.parametrize("produces", [False, True])
def test_with_fetch_alone_no_produce_is_looked_into(produces: bool) -> None:
    two = Producer()
    two.siblings.produces = produces
    two.old, two.new = two.play(OLD), two.play(NEW)
    two.sends(0).refused(0)
    if produces:
        two.leads()
    else:
        two.old.to_client(two.told(6, correlation=100))


def test_a_lane_is_forgotten_when_there_are_too_many() -> None:
    lanes = ProduceOrder(most=1)
    two = Producer()
    two.siblings.order = lanes
    two.old = two.play(OLD)
    for producer in (1, 2):
        asked = produce(7, (0, batch(0, producer=producer)))
        two.old.client(asked).to_broker(asked).broker(two.told(0, 1)).to_client(two.told(0, 1))
    assert repr(lanes) == "<ProduceOrder known=1 in_flight=0>"


def test_responses_that_wait_for_one_another_wait_a_second_at_most_all_together() -> None:
    """If several responses wait for new leaders, they wait one second in total, not one second each.

    librdkafka sends one request for each partition, so it has many such responses.
    """
    two = Producer()
    for at in range(3):
        asked = produce(7, (at, batch(0)), correlation=at)
        two.old.client(asked).to_broker(asked)
    two.old.broker(*(produced(7, (at, 6, -1), correlation=at) for at in range(3)))
    two.old.to_broker(metadata_request(False))
    two.old.connection.retry.tick(MAX_SECONDS)
    two.old.to_client(*(produced(7, (at, 6, -1), correlation=at) for at in range(3)))


@pytest.mark.parametrize("late", [False, True])
def test_a_batch_that_the_former_leader_found_out_of_order_follows_the_one_before(late: bool) -> None:
    """A batch that the old leader refused as out of order is retried at the new leader.

    The old leader refused it because an earlier batch had failed there. The new leader gets the earlier batch
    first.
    """
    two, out_of_order = Producer(), produced(7, (0, 45, -1), correlation=102)
    if late:
        two.sends(0).refused(0).leads().repeats(0).sends(2)
        two.new.broker(two.told(0, 40, OURS))
        two.old.to_client(two.told(0, 40, 100)).broker(out_of_order)
        two.repeats(2)
    else:
        two.sends(0, 2).refused(0).old.to_broker(metadata_request(False)).broker(out_of_order)
        two.old.broker(metadata_response(False, {0: (NEW, 5)}))
        two.repeats(0)
        two.new.broker(two.told(0, 40, OURS))
        two.repeats(2)
        two.old.to_client(two.told(0, 40, 100))
    two.accepts(42)
    two.old.to_client(two.told(0, 42, 102))
    assert two.counted() == ({"produce": 2}, {})


def test_out_of_order_is_an_error_as_any_other_if_nothing_before_it_was_repeated() -> None:
    two = Producer()
    two.sends(0)
    two.old.broker(two.told(0, 40, 100)).to_client(two.told(0, 40, 100))
    for sequence in (2, 8):
        two.sends(sequence)
        told = two.told(45, correlation=100 + sequence)
        two.old.broker(told).to_client(told)
    two.sends(2, 4).refused(2).old.to_broker(metadata_request(False))
    told = two.told(45, correlation=104)
    two.old.broker(told).connection.retry.tick(MAX_SECONDS)
    two.old.to_client(two.told(6, correlation=102), told)
    assert two.counted() == ({}, {NotFollowed.NO_LEADER: 1})


@pytest.mark.parametrize("other", [{"host": "10.0.0.8"}, {"client": b"d"}])
def test_nobody_waits_for_the_batches_of_another_client(other: dict[str, Any]) -> None:
    """A client's batches do not wait for another client's batches.

    Otherwise a client could use the producer id of another client, and delay each of its batches by a second.
    """
    two = Producer()
    stranger = play(two.siblings, NEW, **other)
    sent = two.produce(0, 9)
    stranger.client(sent).to_broker(sent)
    two.sends(0)


def test_a_client_is_known_by_its_first_request_if_that_is_a_produce() -> None:
    two = Producer()
    two.sends(0)
    new = Playbook(resolve=gateway, core=Connection, siblings=two.siblings, host="10.0.0.7", node_id=NEW)
    new.client(two.produce(2, 9)).nothing()


def test_what_is_kept_of_many_small_batches_is_counted() -> None:
    """The request budget counts the memory that many small batches really need (within a factor of two).

    This is more than their bytes. After the response, nothing is counted.
    """
    two, budget = Producer(), RequestBudget(1 << 30)
    played = Playbook(
        resolve=gateway, core=Connection, siblings=two.siblings, host="a", node_id=OLD, request_budget=budget
    )
    asked = produce(7, *((at, batch(0, 1)) for at in range(5000)))
    tracemalloc.start()
    try:
        played.client(asked).to_broker(asked)
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert budget.total / 2 < taken < 2 * budget.total
    told = produced(7, *((at, 0, 1) for at in range(5000)))
    played.broker(told).to_client(told)
    assert budget.total == 0


def test_without_room_a_produce_passes_and_is_not_followed() -> None:
    two, budget = Producer(), RequestBudget(300)
    played = Playbook(
        resolve=gateway, core=Connection, siblings=two.siblings, host="a", node_id=OLD, request_budget=budget
    )
    asked, told = two.produce(0), two.told(6)
    played.client(asked).to_broker(asked).broker(told).to_client(told)
    assert budget.total == 0
    assert two.siblings.order is not None
    assert " in_flight=0>" in repr(two.siblings.order)


def test_a_produce_without_room_does_not_hide_that_its_broker_hangs() -> None:
    """A broker still counts as hanging if the gateway had no room to keep a later Produce to it.

    Other connections have already waited for this broker as long as allowed. They do not wait again until it
    responds.
    """
    two = Producer()
    two.old.client(two.produce(0, 100)).takes_broker()
    two.new.client(two.produce(2, 102)).nothing()
    two.new.connection.tick(MAX_SECONDS)
    two.new.to_broker(two.produce(2, 102)).broker(two.told(0, 42, 102)).to_client(two.told(0, 42, 102))
    two.old.connection._state.request_budget = RequestBudget(0)
    two.old.client(two.produce(4, 104)).to_broker(two.produce(4, 104))
    two.new.client(two.produce(6, 106)).to_broker(two.produce(6, 106))
    two.old.broker(two.told(0, 40, 100)).to_client(two.told(0, 40, 100))


def test_a_produce_response_that_is_larger_than_any_is_not_kept() -> None:
    two = Producer()
    two.sends(0)
    told = response(100, bytes(MAX_BYTES))
    for at in range(0, len(told), 1 << 18):
        piece = told[at : at + (1 << 18)]
        two.old.broker(piece).to_client(piece)
    own = two.produce(2, 9)
    two.new.client(own).to_broker(own)


def test_no_topic_has_a_longer_name() -> None:
    """A Produce request with a topic name of more than 249 bytes is not read.

    Acknowledged batches are remembered by topic name, so its length must be limited.
    """
    topics: list[tuple[str, bool]] = [("t" * 249, True), ("t" * 250, False)]
    for name, known in topics:
        asked = produce(7, (0, batch(0))).replace(b"\0\6orders", len(name).to_bytes(2) + name.encode())
        asked = framed(asked[4:])
        assert (read_idempotent(asked, 7) is not None) is known
