"""Named lanes, declared by the operator: key ranges of partitions, for one group."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from proxy.cooperative.positions import TopicPartition
from proxy.cooperative.ranges import FULL, KeyRanges, RangeError, Split

NAME: Final = "[A-Za-z0-9_-]{1,64}"
"""The name of a lane, as in a client.id."""


class NamedLane(NamedTuple):
    """A lane of the options file."""

    group: bytes
    ranges: Mapping[TopicPartition, KeyRanges]
    """Ranges by topic and partition. The lane has no other partitions."""


def named_lanes(text: str) -> dict[str, NamedLane]:
    """Read lanes by name from JSON: ``{"group": {"lane": {"topic": {"partition": [[low, high], ...]}}}}``.

    Without a range, a lane has the whole partition.

    Raises:
        RangeError: the JSON is invalid, or two lanes of a group overlap.
    """
    try:
        document = json.loads(text)
    except json.JSONDecodeError as error:
        raise RangeError(f"it is not JSON: {error}") from None
    lanes: dict[str, NamedLane] = {}
    for group, of_group in _items(document, "it"):
        for name, of_lane in _items(of_group, group):
            if not re.fullmatch(NAME, name):
                raise RangeError(f"lane {name!r}: a name has 1 to 64 characters A-Z a-z 0-9 _ -")
            if name in lanes:
                raise RangeError(f"two groups have a lane {name}: give one of them another name")
            lanes[name] = NamedLane(group.encode(), dict(_ranges(name, of_lane)))
    _check(lanes)
    return lanes


def _ranges(lane: str, document: object) -> Iterator[tuple[TopicPartition, KeyRanges]]:
    for topic, of_topic in _items(document, f"lane {lane}"):
        for partition, pairs in _items(of_topic, f"lane {lane}, topic {topic}"):
            if not (partition.isascii() and partition.isdecimal()):
                raise RangeError(
                    f"lane {lane}, topic {topic}: {partition} is not the number of a partition; "
                    "put a topic with dots into quotes"
                )
            where = f"lane {lane}, {topic}-{partition}"
            if not isinstance(pairs, list):
                raise RangeError(f"{where}: give a list of ranges, as in [[0, 1000]]")
            ranges = tuple(sorted(_pair(where, pair) for pair in pairs))
            yield (topic.encode(), int(partition)), ranges or FULL


def _pair(where: str, pair: object) -> tuple[int, int]:
    match pair:
        case [int(low), int(high)] if not (isinstance(low, bool) or isinstance(high, bool)):
            return low, high
    raise RangeError(f"{where}: {pair!r} is not a range: give two numbers, as in [0x0, 0x7fffffff]")


def _check(lanes: Mapping[str, NamedLane]) -> None:
    """Check that no hash of a partition has two lanes.

    Raises:
        RangeError: a hash has two lanes.
    """
    by_place: dict[tuple[bytes, TopicPartition], dict[str, KeyRanges]] = {}
    for name, lane in lanes.items():
        for place, ranges in lane.ranges.items():
            by_place.setdefault((lane.group, place), {})[name] = ranges
    for (_, (topic, partition)), owners in by_place.items():
        try:
            Split(list(owners.values()))
        except RangeError as error:
            names = "lane" if len(owners) == 1 else "lanes"
            raise RangeError(
                f"{names} {', '.join(owners)} on {topic.decode()}-{partition}: {error}"
            ) from None


def _items(document: object, what: str) -> Iterator[tuple[str, object]]:
    if not isinstance(document, dict):
        raise RangeError(f"{what}: {document!r} is not a table; see docs/cooperative.md")
    yield from document.items()
