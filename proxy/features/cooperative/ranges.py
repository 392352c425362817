"""Key ranges, and how a partition is split into lanes.

A *key range* is a pair of hashes, the first and the last one. A *lane* is one member's part of a partition:
one or more key ranges.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, TypeAlias

from proxy.features.cooperative.key_hash import SPACE, murmur2_of

KeyRange: TypeAlias = tuple[int, int]
KeyRanges: TypeAlias = tuple[KeyRange, ...]
"""One or more key ranges."""
FULL: Final[KeyRanges] = ((0, SPACE - 1),)
NOBODY: Final = -1
_CACHED_BYTES: Final = 1 << 20
"""How many bytes of keys each `Split` remembers. If there are more, it drops all of them before it adds the
next new keys. A member may have a thousand `Split` objects."""
_KEY_BYTES: Final = 128
"""The number of bytes that a remembered key needs in addition to the bytes of the key."""


class RangeError(ValueError):
    """The key ranges are invalid. The message is one line."""


class Split:
    """The lanes of a partition.

    A *step* is an interval of hashes that belong to one lane, or to nobody. The steps are in order and cover
    all hashes. At each of the `cuts` a new step begins, even if the lane does not change.

    Raises:
        RangeError: a range ends before it begins or is not within 0 to 2^32 - 1, or two ranges overlap.
    """

    __slots__ = ("_room", "_steps", "lanes", "owners", "starts")

    def __init__(self, lanes: Sequence[KeyRanges], *, cuts: Iterable[int] = ()) -> None:
        self.lanes = tuple(lanes)
        self.starts: list[int] = []
        """The first hash of each step."""
        self.owners: list[int] = []
        """For each step, the number of the lane that owns the step, or `NOBODY`."""
        owned = dict(_steps(lanes))
        for start in sorted(owned.keys() | set(cuts)):
            self.starts.append(start)
            self.owners.append(owned[start] if start in owned else self.owners[-1])
        self._steps: dict[bytes | int, int]
        """The step of each recent key. It saves hashing, which is slow. Step numbers are keys of this dict as
        well: each one maps to itself."""
        self._room: int
        """The number of bytes of keys for which there is still room. If it is negative, all remembered keys
        are dropped before the next new key is added."""
        self._forget()

    def __repr__(self) -> str:
        return f"<Split lanes={len(self.lanes)} steps={len(self.starts)}>"

    def steps_of(self, keys: Sequence[bytes | int]) -> list[int]:
        """Return the step of each key. An integer in `keys` is already a step."""
        try:
            return [*map(self._steps.__getitem__, keys)]
        except KeyError:
            return [*map(self._with({key for key in keys if isinstance(key, bytes)}).__getitem__, keys)]

    def step_of(self, hashed: int) -> int:
        return bisect_right(self.starts, hashed) - 1

    def _with(self, keys: set[bytes]) -> dict[bytes | int, int]:
        """Add the steps of new keys to the remembered steps. Return the steps of all remembered keys."""
        if self._room < 0:
            self._forget()
        steps = self._steps  # another thread may replace the attribute meanwhile
        unknown = keys - steps.keys()
        self._room -= sum(map(len, unknown)) + _KEY_BYTES * len(unknown)
        for key, hashed in murmur2_of(unknown).items():
            steps[key] = self.step_of(hashed)
        return steps

    def _forget(self) -> None:
        self._steps = {step: step for step in range(len(self.starts))}
        self._room = _CACHED_BYTES


def within(ranges: KeyRanges, others: KeyRanges) -> bool:
    """Return whether each of `ranges` lies within one of `others`."""
    return all(any(low <= start and end <= high for low, high in others) for start, end in ranges)


def overlap(one: KeyRanges, other: KeyRanges) -> bool:
    """Return whether the two lanes have any hash in common."""
    return any(low <= end and start <= high for low, high in one for start, end in other)


def _steps(lanes: Sequence[KeyRanges]) -> Iterator[tuple[int, int]]:
    """Yield the first hash of each step, and the number of the lane that owns the step, or `NOBODY`."""
    owned = sorted((low, high, lane) for lane, ranges in enumerate(lanes) for low, high in ranges)
    at, before = 0, None
    for low, high, lane in owned:
        if low > high:
            raise RangeError(f"the low end of the range {low:x}-{high:x} is above its high end")
        if not 0 <= low <= high < SPACE:
            raise RangeError(f"the range {low:x}-{high:x} is not within 0-{SPACE - 1:x}")
        if low < at:
            raise RangeError(f"the range {low:x}-{high:x} overlaps another one, which ends with {at - 1:x}")
        if low > at:
            if before != NOBODY:
                yield at, NOBODY
            before = NOBODY
        if lane != before:
            yield low, lane
        at, before = high + 1, lane
    if at < SPACE:
        yield at, NOBODY
