"""Compares each record that was produced with the records that were received and the records in the log."""

import hashlib
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeAlias

GENERATION: Final = "generation"
"""The header that tells how often the topic had been made again when a record was produced."""

Headers: TypeAlias = Sequence[tuple[str, bytes | None]]


@dataclass(frozen=True, slots=True, order=True)
class RecordPlace:
    """A partition of a topic, in one generation: the topic is deleted and made again."""

    topic: str
    generation: int
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}" + f" ({self.generation})" * bool(self.generation)


@dataclass(frozen=True, slots=True)
class SoakRecord:
    """All parts of a record that a client can see, except for topic, partition and offset."""

    timestamp: int
    key: bytes | None
    value: bytes
    headers: Headers

    def digest(self) -> int:
        """Return a digest: a number that is equal for equal records, and never 0."""
        value = f"{len(self.value)}:{hashlib.sha256(self.value).hexdigest()}"
        key = None if self.key is None else self.key.hex()
        headers = ((name, None if content is None else content.hex()) for name, content in self.headers)
        return _digest(self.timestamp, key, value, headers)


class Written(NamedTuple):
    """The producer id, epoch and sequence number that a producer has given to a record (KIP-98)."""

    producer_id: int
    epoch: int
    sequence: int


def digest_of(line: Mapping[str, Any]) -> int:
    """Return the digest of a record, from a consumer program's output."""
    headers = ((name, content) for name, content in line["headers"])
    return _digest(line["timestamp"], line["key"], line["value"], headers)


def generation_of(line: Mapping[str, Any]) -> int:
    """Return the generation in a consumer program's line, -1 if its record has none."""
    found = dict(map(tuple, line["headers"])).get(GENERATION)
    return -1 if found is None else int(bytes.fromhex(found))


def _digest(timestamp: int, key: str | None, value: str, headers: Iterable[tuple[str, str | None]]) -> int:
    text = repr((timestamp, key, value, list(headers)))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest()) or 1


class RecordLog:
    """The digests of the records in a log, by place and offset."""

    def __init__(self) -> None:
        self._columns: defaultdict[RecordPlace, array[int]] = defaultdict(lambda: array("Q"))
        self.count = 0

    def get(self, place: RecordPlace, offset: int) -> int:
        """Return the digest of the record at a place and offset, or 0 if there is none."""
        column = self._columns.get(place)
        return column[offset] if column is not None and offset < len(column) else 0

    def put(self, place: RecordPlace, offset: int, digest: int) -> None:
        """Note the digest of the record at a place and offset."""
        column = self._columns[place]
        if offset >= len(column):
            column.frombytes(bytes(8 * (offset + 1 - len(column))))
        self.count += not column[offset]
        column[offset] = digest

    def items(self) -> Iterable[tuple[RecordPlace, int, int]]:
        """Return the place, offset and digest of each record in the log."""
        for place, column in list(self._columns.items()):
            for offset, digest in enumerate(list(column)):
                if digest:
                    yield place, offset, digest

    def twice(self) -> dict[int, list[tuple[RecordPlace, int]]]:
        """Return the records that are in the log at several places, with these by digest."""
        times = Counter(digest for _, _, digest in self.items())
        found: defaultdict[int, list[tuple[RecordPlace, int]]] = defaultdict(list)
        for place, offset, digest in self.items():
            if times[digest] > 1:
                found[digest].append((place, offset))
        return dict(found)

    def missing_from(self, other: "RecordLog") -> list[tuple[RecordPlace, int]]:
        """Return the places and offsets of records that another log lacks, or has with other contents."""
        found = []
        for place, column in list(self._columns.items()):
            theirs = other._columns.get(place, array("Q"))  # noqa: SLF001 - of the same class
            if column == theirs:
                continue
            found += [
                (place, offset)
                for offset, digest in enumerate(list(column))
                if digest and (offset >= len(theirs) or theirs[offset] != digest)
            ]
        return found


@dataclass(slots=True)
class ProducedRecords:
    """The records that the producers sent, and their results."""

    sent: set[int] = field(default_factory=set)
    acknowledged: RecordLog = field(default_factory=RecordLog)
    without_offset: list[int] = field(default_factory=list)
    """Acknowledged without an offset, as a broker does with a record that it received twice."""
    given_up: int = 0
    errors: Counter[str] = field(default_factory=Counter)

    def delivered(self, place: RecordPlace, offset: int | None, digest: int) -> None:
        """Note an acknowledgement by the broker. `offset` is None if it has none."""
        if offset is None or offset < 0:
            self.without_offset.append(digest)
        else:
            self.acknowledged.put(place, offset, digest)

    def failed(self, reason: str) -> None:
        """Note that the producer has reported a failure for a record."""
        self.given_up += 1
        self.errors[reason] += 1

    def problems(
        self,
        log: RecordLog,
        generations: Mapping[str, int],
        written: Mapping[tuple[RecordPlace, int], Written],
    ) -> list[str]:
        """Return the problems in the brokers' log.

        A problem is an acknowledged record that is missing, a record that nobody sent, or a record that is in
        the log more than once. Records of earlier `generations` of a topic were deleted. `written` has
        producer and sequence of records that are in the log at several offsets.
        """
        found = []
        missing = self.acknowledged.missing_from(log)
        if lost := [where for where in missing if where[0].generation == generations.get(where[0].topic, 0)]:
            found.append(f"{len(lost)} acknowledged records are not in the log: {describe(lost)}")
        times = Counter(digest for _, _, digest in log.items())
        if lacking := sum(digest not in times for digest in self.without_offset):
            found.append(f"{lacking} records that were acknowledged without an offset are not in the log")
        twice = [copies for copies in log.twice().values() if not doubled_by_the_producer(copies, written)]
        if twice:
            found.append(f"{len(twice)} records are in the log more than once: {describe(twice[0])}")
        if invented := sum(digest not in self.sent for digest in times):
            found.append(f"{invented} records are in the log that nobody sent")
        return found


def doubled_by_the_producer(
    copies: Sequence[tuple[RecordPlace, int]], written: Mapping[tuple[RecordPlace, int], Written]
) -> bool:
    """Return whether the producer itself has written a record several times to its partition.

    An idempotent producer can do this, each time in another of its epochs. If a batch fails, and a later
    batch reaches the new leader first, the broker reports a wrong order. librdkafka then starts a new epoch
    and resends records that may have been written (its issue 4953). Nothing between client and broker can
    cause this: batches have a checksum, and within one epoch a broker accepts a sequence number only once
    (KIP-98).
    """
    numbers = [(place, written.get((place, offset))) for place, offset in copies]
    known = [(place, number) for place, number in numbers if number is not None and number.producer_id >= 0]
    producers = {(place, number.producer_id) for place, number in known}
    return len(producers) == 1 and len({number.epoch for _, number in known}) == len(copies)


def describe(places: Sequence[tuple[RecordPlace, int]]) -> str:
    """Return the first four places and offsets as text."""
    shown = ", ".join(f"{place} at {offset}" for place, offset in places[:4])
    return shown + ", ..." * (len(places) > 4)


class ReceivedRecords:
    """The records that one consumer received, or that the members of one group received."""

    def __init__(self, sent: set[int]) -> None:
        self.log = RecordLog()
        self.repeated = 0
        """Received again: after a rebalance, a member continues from the last commit."""
        self.again = 0
        """The number of records that a member received again although the group had not rebalanced."""
        self.changed: list[tuple[RecordPlace, int]] = []
        self.invented: list[tuple[RecordPlace, int]] = []
        self._sent = sent
        self._last: dict[int, dict[RecordPlace, int]] = defaultdict(dict)

    def rebalanced(self, member: int) -> None:
        """Note a rebalance: the member may continue at an earlier offset."""
        self._last[member].clear()

    def record(self, member: int, line: Mapping[str, Any]) -> None:
        """Note a record that a member received. `line` is the consumer program's output for the record."""
        digest, offset = digest_of(line), line["offset"]
        place = RecordPlace(line["topic"], generation_of(line), line["partition"])
        if digest not in self._sent:
            self.invented.append((place, offset))
            return
        if before := self.log.get(place, offset):
            self.repeated += 1
            if before != digest:
                self.changed.append((place, offset))
        last = self._last[member]
        self.again += offset <= last.get(place, -1)
        last[place] = offset
        self.log.put(place, offset, digest)
