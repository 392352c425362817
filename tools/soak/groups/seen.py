"""Judges a run from two sources only: the records that members processed, and the records in the log."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from proxy.features.cooperative.key_hash import murmur2
from proxy.features.cooperative.positions import Positions

Record: TypeAlias = tuple[str, int, int]
Log: TypeAlias = Mapping[Record, bytes]
Span: TypeAlias = tuple[float, float]
Down: TypeAlias = Mapping[int, Sequence[Span]]
"""When each gateway, by its number, was not running or cut off from the broker."""
Moved: TypeAlias = tuple[float, tuple[str, int], Positions]
"""A change of a partition's committed positions: the time, the partition, and the new positions."""
EXAMPLES: Final = 8


@dataclass(slots=True, eq=False)
class SeenLife:
    """One process of a group member. Times are seconds since 1970."""

    name: str
    did: list[tuple[float, Record, bytes]] = field(default_factory=list)
    killed_at: float = 0.0
    gateway: int = 0


@dataclass(slots=True)
class SeenVerdict:
    """The result of a run: records that were lost, came twice, or came out of order."""

    records: int = 0
    processed: int = 0
    lost: list[str] = field(default_factory=list)
    twice: list[str] = field(default_factory=list)
    """Records that came twice, although their member was not killed in between, and its gateway was up."""
    after_kills: int = 0
    unordered: list[str] = field(default_factory=list)
    invented: int = 0

    def lines(self) -> list[str]:
        """Return the verdict as lines, with examples."""
        counts = (
            f"records {self.records}, processed {self.processed}, lost {len(self.lost)}, "
            f"twice {len(self.twice)}, twice after a kill {self.after_kills}, "
            f"out of order {len(self.unordered)}, of no record {self.invented}"
        )
        lines = [counts]
        for what, examples in ("lost", self.lost), ("twice", self.twice), ("out of order", self.unordered):
            lines += [f"{what}: {example}" for example in examples[:EXAMPLES]]
        return lines


def judge(log: Log, lives: Sequence[SeenLife], down: Down, moved: Sequence[Moved] = ()) -> SeenVerdict:
    """Find records lost, twice or out of order. Only down times of a member's own gateway excuse it."""
    events = sorted(
        ((at, record, key, life) for life in lives for at, record, key in life.did), key=lambda each: each[0]
    )
    seen = {record for _, record, _, _ in events}
    verdict = SeenVerdict(len(log), len(events))
    compacted = {record[0] for record in seen - log.keys()}
    verdict.invented = sum(record not in log for record in seen if not record[0].endswith("-latest"))
    by_key: dict[tuple[str, int, bytes], list[tuple[float, int, SeenLife]]] = defaultdict(list)
    for at, record, key, life in events:
        by_key[record[0], record[1], key].append((at, record[2], life))
    for record in sorted(log.keys() - seen):
        text = _told_lost(record, log[record], by_key, moved)
        verdict.lost.append(text + (" (of a compacted topic)" if record[0] in compacted else ""))
    for (topic, partition, key), some in by_key.items():
        _judge_key(f"{topic}-{partition} key {key.decode()}", some, down, verdict)
    return verdict


def _judge_key(
    where: str, events: Iterable[tuple[float, int, SeenLife]], down: Down, verdict: SeenVerdict
) -> None:
    before: dict[int, tuple[float, SeenLife]] = {}
    highest = -1
    for at, offset, life in events:
        if offset in before:
            earlier, owner = before[offset]
            killed = earlier <= owner.killed_at <= at
            spans = down.get(owner.gateway, ())
            if killed or any(began <= at and ended >= earlier for began, ended in spans):
                verdict.after_kills += 1
            else:
                verdict.twice.append(
                    f"{where} offset {offset} by {owner.name} at {earlier:.3f} and {life.name} at {at:.3f}"
                )
        elif offset < highest:
            verdict.unordered.append(f"{where} offset {offset} by {life.name} at {at:.3f} after {highest}")
        before[offset] = at, life
        highest = max(highest, offset)


def _told_lost(
    record: Record,
    key: bytes,
    by_key: Mapping[tuple[str, int, bytes], Sequence[tuple[float, int, SeenLife]]],
    moved: Sequence[Moved],
) -> str:
    topic, partition, offset = record
    hashed = murmur2(key)
    text = f"{topic}-{partition} offset {offset} key {key.decode()} hash {hashed:08x}"
    events = by_key.get((topic, partition, key), [])
    earlier = [each for each in events if each[1] < offset]
    later = [each for each in events if each[1] > offset]
    if earlier:
        at, other, life = max(earlier, key=lambda each: each[1])
        text += f"; {other} before it by {life.name} at {at:.3f}"
    if later:
        at, other, life = min(later, key=lambda each: each[1])
        text += f"; {other} after it by {life.name} at {at:.3f}"
    previous = -1
    for at, place, positions in moved:
        if place != (topic, partition):
            continue
        now = positions.at(hashed)
        if previous <= offset < now:
            text += f"; committed from {previous} to {now} at {at:.3f}"
        previous = now
    return text
