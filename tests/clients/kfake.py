"""Runs the tests of franz-go's fake broker (kfake), with or without a gateway before each cluster."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from tests.clients.programs import BUILT, HERE, build, tool
from tests.clients.runner import ROOT

MODULE = "github.com/twmb/franz-go/pkg/kfake"
SUITE_SECONDS = 600
DEADLINE = re.compile(r"(WithTimeout\(context\.Background\(\)), (\d+\*time\.Second)")
"""A deadline in the tests: 3 to 10 seconds. An idle machine needs less than one second."""
RESULT = re.compile(r"^--- (PASS|FAIL|SKIP): (\w+)", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """The results of a run of the tests."""

    passed: list[str]
    others: list[str]
    """The names of the tests that failed or were skipped."""
    output: str
    fetches: Counter[tuple[str, str]]
    """The number of fetches through all gateways, by (side, kind). Empty for a direct run."""


def build_suite() -> Path:
    """Build the tests of `kfake/kafka_tests` with the franz-go of our `go.mod`.

    The gateway is inserted by `through.go`, which replaces three functions of a cluster. Deadlines in the
    tests are multiplied by ten, because this machine may be busy.
    """
    go = tool("go")
    folder, output = BUILT / "kfake", BUILT / "go" / "kafka_tests"
    folder.mkdir(parents=True, exist_ok=True)
    output.parent.mkdir(parents=True, exist_ok=True)
    for name in ("go.mod", "go.sum"):
        shutil.copyfile(HERE / "go" / "kfake" / name, folder / name)
    told = subprocess.run(
        [go, "mod", "download", "-json", MODULE],
        cwd=folder,
        check=True,
        capture_output=True,
        text=True,
        timeout=240,
    )
    _copy(Path(json.loads(told.stdout)["Dir"]), folder / "source")
    build(go, "mod", "edit", f"-replace={MODULE}=./source", folder=folder)
    build(go, "test", "-c", "-o", str(output), f"{MODULE}/kafka_tests", folder=folder)
    return output


def _copy(source: Path, into: Path) -> None:
    """Copy the sources to a folder that can be written. Go's module cache is read-only."""
    shutil.rmtree(into, ignore_errors=True)
    for folder in (into, into / "kafka_tests"):
        folder.mkdir()
        for file in source.joinpath(folder.relative_to(into)).iterdir():
            if file.name == "go.mod" or file.suffix == ".go":
                folder.joinpath(file.name).write_text(DEADLINE.sub(r"\1, 10*\2", file.read_text()))
    cluster = into / "cluster.go"
    text = cluster.read_text()
    for old, new in (
        ("func NewCluster(", "func newClusterAlone("),
        ("func (c *Cluster) Close(", "func (c *Cluster) closeAlone("),
        ("func (c *Cluster) ListenAddrs(", "func (c *Cluster) listenAddrs("),
    ):
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    cluster.write_text(text)
    shutil.copyfile(HERE / "go" / "kfake" / "through.go", into / "through.go")


def run_suite(program: Path, folder: Path, *, gateway: bool) -> Suite:
    """Run all tests of kfake."""
    counted = folder / "counted"
    counted.touch()
    environment = {"FETCHGATE_COUNTED": str(counted), "FETCHGATE_FOLDER": str(ROOT)}
    if gateway:
        environment["FETCHGATE_BEFORE"] = f"{sys.executable} -m tests.clients.before"
    done = subprocess.run(
        [str(program), "-test.v", "-test.parallel=4", f"-test.timeout={SUITE_SECONDS}s"],
        cwd=folder,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=SUITE_SECONDS + 30,
    )
    results = RESULT.findall(done.stdout)
    return Suite(
        passed=sorted(name for result, name in results if result == "PASS"),
        others=sorted(f"{result} {name}" for result, name in results if result != "PASS"),
        output=done.stdout[-8_000:] + done.stderr[-2_000:],
        fetches=_fetches(counted),
    )


def _fetches(counted: Path) -> Counter[tuple[str, str]]:
    """Return the fetches of all gateways together, by (side, kind)."""
    total = Counter[tuple[str, str]]()
    for line in counted.read_text().splitlines():
        for name, value in json.loads(line).items():
            found = re.fullmatch(r"fetchgate_fetches_total\{(.*)\}", name)
            if found:
                labels = dict(re.findall(r'(\w+)="(\w+)"', found[1]))
                total[labels["side"], labels["kind"]] += int(value)
    return total
