"""How much memory there is to measure in."""

from contextlib import suppress
from pathlib import Path
from typing import Final

_MEMINFO: Final = Path("/proc/meminfo")
_CGROUP: Final = Path("/sys/fs/cgroup")
_SHARE: Final = 4
"""Measuring needs up to four times the bytes of the segments, because they are copied in another order."""
_MOST: Final = (1 << 31) - 1
"""The largest size of a binary column of Arrow, in bytes."""
_UNKNOWN: Final = 1 << 30


def room(meminfo: Path = _MEMINFO, cgroup: Path = _CGROUP) -> int:
    """Return how many bytes of segments may be in memory: a quarter of the free memory.

    The free memory is that of the machine, or that of the container if it has less (cgroup v2).
    """
    free = _UNKNOWN
    with suppress(OSError, KeyError, ValueError):
        free = _figures(meminfo)["MemAvailable:"] << 10
    with suppress(OSError, KeyError, ValueError):  # without a limit, it is "max"
        limit, used = (int((cgroup / name).read_text("ascii")) for name in ("memory.max", "memory.current"))
        cached = _figures(cgroup / "memory.stat")["inactive_file"]  # the kernel gives it back
        free = min(free, max(limit - used + cached, 0))
    return min(free // _SHARE, _MOST)


def _figures(file: Path) -> dict[str, int]:
    rows = (line.split() for line in file.read_text(encoding="ascii").splitlines())
    return {row[0]: int(row[1]) for row in rows}
