"""Kafka's jars, downloaded once by Maven or jgo, in `.cache/kafka/VERSION` or below `$FETCHGATE_CACHE`."""

import fcntl
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

LOGGER = "org.slf4j:slf4j-simple:1.7.36"
"""It logs to stderr without a configuration file. Kafka 1.0 to 4.3 all use slf4j 1.7."""

REPLACED = ("slf4j-log4j12", "slf4j-reload4j", "slf4j-nop", "logback-classic")
"""Bindings of older Kafka releases, removed so that slf4j does not use them instead."""


def classpath(version: str, *, tools: bool = False) -> str:
    """Return Java's class path for a release, with the console clients and others if `tools`."""
    return f"{fetch(version, tools=tools)}/*"


def fetch(version: str, *, tools: bool = False) -> Path:
    """Return the folder of a release's jars."""
    return fetch_as(f"{version}-tools" if tools else version, coordinates(version, tools=tools))


def fetch_as(name: str, wanted: Sequence[str]) -> Path:
    """Return the folder of artifacts (`group:artifact:version`) and what they need, fetched once."""
    folder = cache_folder() / name
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _locked(folder.with_name(f"{folder.name}.lock")):
        if not folder.is_dir():
            _fill(folder, wanted)
    return folder


def cache_folder() -> Path:
    """Return the folder where jars are kept. Git ignores it."""
    root = os.environ.get("FETCHGATE_CACHE")
    return (Path(root) if root else Path(__file__).parents[2] / ".cache") / "kafka"


def coordinates(version: str, *, tools: bool = False) -> list[str]:
    """Return a release's artifacts. Builds for Scala 2.13 exist since 2.4, before for 2.12."""
    scala = "2.13" if parse_version(version) >= (2, 4) else "2.12"
    wanted = [f"org.apache.kafka:kafka_{scala}:{version}", LOGGER]
    if tools:
        wanted.append(f"org.apache.kafka:kafka-tools:{version}")
    return wanted


def parse_version(version: str) -> tuple[int, ...]:
    """Turn "4.3.0" into (4, 3, 0), which compares as versions do."""
    return tuple(int(part) for part in version.split("."))


def _fill(folder: Path, wanted: Sequence[str]) -> None:
    """Download into a scratch folder and rename it, so that nobody sees an incomplete release."""
    ways: dict[str, Callable[[Sequence[str], Path], None]] = {"jgo": _with_jgo}
    if shutil.which("mvn"):
        ways = {"Maven": _with_maven, **ways}
    complaints = []
    began = time.monotonic()
    for name, way in ways.items():
        print(f"Fetching {wanted[0]} with {name} (once, about 40 s) ...", flush=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix="fetching-") as scratch:
            jars = Path(scratch) / "jars"
            jars.mkdir()
            try:
                way(wanted, jars)
            # requests' own errors are OSErrors
            except (OSError, RuntimeError, subprocess.TimeoutExpired) as error:
                complaints.append(f"{name}: {error}")
                continue
            for jar in jars.iterdir():
                if jar.name.startswith(REPLACED):
                    jar.unlink()
            jars.rename(folder)
        count = len(list(folder.iterdir()))
        print(f"Fetched {count} jars into {folder} in {time.monotonic() - began:.0f} s", flush=True)
        return
    raise RuntimeError(_remedy(folder, wanted, complaints))


def _remedy(folder: Path, wanted: Sequence[str], complaints: Sequence[str]) -> str:
    lines = [f"{wanted[0]} could not be fetched:", *(f"  {complaint[-1500:]}" for complaint in complaints)]
    lines.append(
        "Is this machine online? Behind a proxy set HTTPS_PROXY; where a company's certificate is needed"
    )
    lines.append(
        "set REQUESTS_CA_BUNDLE; with a mirror of Maven artifacts install Maven and name the mirror in its"
    )
    lines.append(f"settings. Or copy the jars of {', '.join(wanted)} and what they need into {folder}.")
    return "\n".join(lines)


def _with_maven(wanted: Sequence[str], into: Path) -> None:
    """Download with `mvn dependency:copy-dependencies`, from a POM that names only these artifacts."""
    pom = into.with_name("pom.xml")
    pom.write_text(_pom(wanted))
    command = ["mvn", "-q", "-B", "-f", str(pom), "dependency:copy-dependencies"]
    command += [f"-DoutputDirectory={into}", "-DincludeScope=runtime"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=900)
    if done.returncode:
        raise RuntimeError(f"exit code {done.returncode}: {done.stdout[-1000:]}{done.stderr[-500:]}")


def _pom(wanted: Sequence[str]) -> str:
    entries = ""
    for group, artifact, version in (coordinate.split(":") for coordinate in wanted):
        entries += f"<dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId>"
        entries += f"<version>{version}</version></dependency>"
    return (
        "<project><modelVersion>4.0.0</modelVersion>"
        "<groupId>fetchgate</groupId><artifactId>jars</artifactId><version>1</version><packaging>pom</packaging>"
        f"<dependencies>{entries}</dependencies></project>"
    )


def _with_jgo(wanted: Sequence[str], into: Path) -> None:
    """Download with jgo, into a temporary store: jgo would use an incomplete file of an earlier run."""
    try:
        from jgo.maven import MavenContext  # noqa: PLC0415 - only needed if jars are missing
    except ImportError:
        raise RuntimeError("not installed: pip install jgo") from None
    context = MavenContext(repo_cache=into.with_name("store"), timeout=60)
    requested, others = context.resolver.resolve([context.create_dependency(name) for name in wanted])
    artifacts = [each.artifact for each in requested + others if each.scope in (None, "compile", "runtime")]
    with ThreadPoolExecutor(8) as pool:
        for path in pool.map(lambda artifact: artifact.resolve(), artifacts):
            shutil.copy(path, into)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold a lock between processes. Print a line if another process has it."""
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"Waiting for another process that fetches {path.stem} ...", flush=True)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
