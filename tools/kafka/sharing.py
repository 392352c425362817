"""Class data sharing: what Java makes of a release's classes, kept in a file beside the release's jars.

With it a broker starts in two thirds of the CPU seconds. A file suits one Java and one folder of jars; Java
looks whether it does, and does without where it does not.
"""

from pathlib import Path

from tools.kafka.jars import cache_folder
from tools.kafka.java import java, version_of


def archive(version: str) -> Path:
    """Say where the archive of a release is, or would be, for the Java that runs it."""
    return cache_folder() / f"{version}-java-{version_of(java())}.jsa"


def sharing(version: str) -> list[str]:
    """Give Java's options for a broker of a release: none where `python -m tools.kafka` made no archive."""
    file = archive(version)
    return [f"-XX:SharedArchiveFile={file}"] if file.exists() else []


def making(file: Path) -> list[str]:
    """Give Java's options for a broker that leaves an archive of its classes when it is stopped."""
    return [f"-XX:ArchiveClassesAtExit={file}"]
