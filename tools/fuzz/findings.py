"""Makes the input of a finding small, and stores it in a file that a test replays."""

import hashlib
import time
from pathlib import Path
from typing import Final

from tools.fuzz.target import Finding, FuzzTarget, examine

REGRESSIONS: Final = Path(__file__).parents[2] / "tests" / "fuzz" / "regressions"
_MOST_TRIES: Final = 1000
_SECONDS: Final = 20.0


def regressions(target: FuzzTarget) -> list[Path]:
    """Return the regression files of a target."""
    return sorted((REGRESSIONS / target.name).glob("*"))


def keep(target: FuzzTarget, data: bytes, folder: Path = REGRESSIONS) -> tuple[Path, Finding] | None:
    """Check an input again, untraced. Make it smaller and write it, or return None without a finding."""
    found = examine(target, data)
    if found is None:
        return None
    data = smaller(target, data, found)
    place = folder / target.name
    place.mkdir(parents=True, exist_ok=True)
    file = place / f"{found.kind}-{hashlib.sha256(found.where.encode()).hexdigest()[:8]}"
    if not file.exists() or file.stat().st_size > len(data):
        file.write_bytes(data)
    return file, found


def smaller(target: FuzzTarget, data: bytes, found: Finding) -> bytes:
    """Return a smaller input with the same finding: parts that are not needed are removed."""
    tries, until = 0, time.monotonic() + _SECONDS
    size = len(data) // 2
    while size and tries < _MOST_TRIES:
        at = 0
        while at < len(data) and tries < _MOST_TRIES and time.monotonic() < until:
            shorter = data[:at] + data[at + size :]
            tries += 1
            again = examine(target, shorter)
            if again is not None and (again.kind, again.kind == "crash" and again.where) == (
                found.kind,
                found.kind == "crash" and found.where,
            ):
                data = shorter
            else:
                at += size
        size //= 2
    return data
