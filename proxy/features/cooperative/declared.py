"""Key ranges in a client.id. It is the only field that every client library sends in each request.

    billing.kr-00000000-3fffffff                      the first quarter of the hashes, on every partition
    billing.kr-0-3fffffff-80000000-bfffffff           two ranges
    billing.lane-blue                                 a lane of the gateway's options file

The broker gets the client's own id, without the suffix, because quotas and logs use it. A named lane is
declared by the operator in the options file: key ranges of certain partitions, for one group.
"""

import json
import re
from collections.abc import Iterator, Mapping
from reprlib import repr as brief
from typing import Final, NamedTuple

from proxy.addresses import MAX_INT32, whole_number
from proxy.features.cooperative.positions import TopicPartition
from proxy.features.cooperative.ranges import FULL, KeyRanges, RangeError, Split

NAME: Final = "[A-Za-z0-9_-]{1,64}"
"""A regular expression for the name of a lane in a client.id."""

MAX_RANGES: Final = 64
"""How many ranges a client may declare. The gateway compares each range with those of other clients. In a
commit, each range adds steps to the map of positions."""
MAX_SHOWN: Final = 256
_SUFFIX: Final = re.compile(rb"\.(kr|lane)-([A-Za-z0-9._-]*)$")
_RANGES: Final = re.compile(rb"[0-9a-f]{1,8}-[0-9a-f]{1,8}(-[0-9a-f]{1,8}-[0-9a-f]{1,8})*")
_NAME: Final = re.compile(NAME.encode())


class Declared(NamedTuple):
    """The key ranges or the lane that a client declares in its client.id."""

    own_id: bytes
    """The application's own client.id, without the suffix for fetchgate."""
    ranges: KeyRanges = ()
    lane: str = ""
    """The name of the declared lane, or "" if the client declares ranges."""


def declared(client_id: bytes) -> Declared | None:
    """Read the declaration in a client.id. Return None if there is none.

    Raises:
        RangeError: the client.id has the suffix, but its ranges or its name are invalid. Such a client must
            not get all records.
    """
    found = _SUFFIX.search(client_id)
    if found is None:
        return None
    own_id, text = client_id[: found.start()], found[2]
    if found[1] == b"lane":
        if not _NAME.fullmatch(text):
            raise RangeError(f"{shown(client_id)}: the name of a lane has 1 to 64 characters A-Z a-z 0-9 _ -")
        return Declared(own_id, lane=text.decode())
    if not _RANGES.fullmatch(text):
        raise RangeError(
            f"{shown(client_id)}: write ranges as .kr-LOW-HIGH, in lower-case hexadecimal digits"
        )
    if text.count(b"-") >= 2 * MAX_RANGES:
        raise RangeError(f"{shown(client_id)}: more than {MAX_RANGES} ranges")
    bounds = [int(bound, 16) for bound in text.split(b"-")]
    ranges = tuple(sorted(zip(bounds[::2], bounds[1::2], strict=True)))
    try:
        Split([ranges])
    except RangeError as error:
        raise RangeError(f"{shown(client_id)}: {error}") from None
    return Declared(own_id, ranges)


def shown(client_id: bytes) -> str:
    """Return a client.id for a message, cut to `MAX_SHOWN` characters: it may be up to 32 KiB long."""
    text = client_id.decode(errors="replace")
    return f"client.id {text if len(text) <= MAX_SHOWN else text[:MAX_SHOWN] + '...'}"


# Named lanes


class NamedLane(NamedTuple):
    """A lane with a name, as defined in the options file."""

    group: bytes
    ranges: Mapping[TopicPartition, KeyRanges]
    """The key ranges, by topic and partition. Other partitions are not part of the lane."""


def named_lanes(text: str) -> dict[str, NamedLane]:
    """Read named lanes from JSON: ``{"group": {"lane": {"topic": {"partition": [[low, high], ...]}}}}``.

    An empty list of ranges means the whole partition.

    Raises:
        RangeError: the JSON, a name or a range is invalid, two groups have a lane of the same name, or ranges
            of a group overlap.
    """
    try:
        document = json.loads(text)
    except json.JSONDecodeError as error:
        raise RangeError(f"it is not JSON: {error}") from None
    except RecursionError:
        raise RangeError("its tables are nested too deeply") from None
    except ValueError:  # int() refuses thousands of digits
        raise RangeError("a number has thousands of digits") from None
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
            if (number := whole_number(partition, 0, MAX_INT32)) is None:
                raise RangeError(
                    f"lane {lane}, topic {topic}: {partition} is not the number of a partition; "
                    "put a topic with dots into quotes"
                )
            where = f"lane {lane}, {topic}-{partition}"
            if not isinstance(pairs, list):
                raise RangeError(f"{where}: give a list of ranges, as in [[0, 1000]]")
            ranges = tuple(sorted(_pair(where, pair) for pair in pairs))
            yield (topic.encode(), number), ranges or FULL


def _pair(where: str, pair: object) -> tuple[int, int]:
    match pair:
        case [int(low), int(high)] if not (isinstance(low, bool) or isinstance(high, bool)):
            return low, high
    raise RangeError(f"{where}: {brief(pair)} is not a range: give two numbers, as in [0x0, 0x7fffffff]")


def _check(lanes: Mapping[str, NamedLane]) -> None:
    """Check that in a group, each hash of a partition is in at most one range."""
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
        raise RangeError(f"{what}: {brief(document)} is not a table; see docs/users/cooperative.md")
    yield from document.items()
