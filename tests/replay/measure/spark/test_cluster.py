"""A real cluster makes the same report as a single machine, byte for byte, even if a worker is killed."""

import gzip
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from replay.capture.files.sources import check_seen, expand
from replay.measure.here import measure_here
from replay.measure.rows import RowFilter
from replay.measure.spark import run
from replay.measure.work import Work
from tests.replay.capture import crafting
from tests.replay.capture.encrypting import begun, encrypted, ends, frames
from tests.replay.measure.spark.measuring import CAPTURES, here, measured, work
from tests.replay.measure.spark.test_session import STAGES
from tests.replay.measure.traffic import every_kind, traffic
from tests.replay.tables import reported
from tools.bench.captures import split
from tools.bench.cluster import Cluster, cluster, environment

NAME = "many-clients-any.pcap"

# A master, two workers and a driver are Java programs that a busy machine starts one after the other.
pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cluster")


@pytest.fixture(scope="module")
def two_workers(folder: Path) -> Iterator[Cluster]:
    with cluster(folder) as started:
        yield started


def printed(version: str, *inputs: Path | str) -> str:
    """Measure captures in this process, and return the report as JSON text."""
    return json.dumps({**here(work(*inputs)), "version": version}, indent=2) + "\n"


@pytest.mark.integration
@pytest.mark.soak
def test_a_cluster_gives_the_same_report_of_fifty_captures_with_relative_paths(
    folder: Path, two_workers: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = folder / "shared"
    own.mkdir()
    for number, part in enumerate(split((CAPTURES / "librdkafka-100p.pcap").read_bytes(), 50)):
        (own / f"{number}.pcap").write_bytes(part)
    command = two_workers.measure("shared", "--csv", "report.csv")
    ran = subprocess.run(
        command, capture_output=True, text=True, cwd=folder, env=environment(folder), check=False
    )

    assert ran.returncode == 0, ran.stderr
    monkeypatch.chdir(folder)
    assert ran.stdout == printed(json.loads(ran.stdout)["version"], "shared")
    assert json.loads(ran.stdout)["input"]["files"] == 50
    assert (folder / "report.csv").exists()
    assert re.fullmatch(STAGES, ran.stderr)


def any_captures(folder: Path) -> Work:
    """Write captures of all kinds: compressed, a pcapng, and TLS with the key log `keys/keys.log`."""
    both = ends(folder / "keys")
    own = folder / "any"
    own.mkdir()
    made = crafting.pcap(frames(traffic([every_kind(4), every_kind(13)])), crafting.RAW, nano=True)
    hidden = frames(encrypted(begun(traffic([every_kind(11)])), both))
    later = [replace(frame, time=frame.time + 10**12) for frame in hidden]
    real = crafting.take_apart((CAPTURES / "aiokafka-rebalance.pcap").read_bytes())
    (own / "made.pcap").write_bytes(made)
    (own / "tls.pcap.gz").write_bytes(gzip.compress(crafting.pcap(later, crafting.RAW, nano=True)))
    (own / "real.pcapng").write_bytes(crafting.pcapng(*crafting.relink(real[: len(real) // 2], "sll2")))
    return work(own, secrets=both.secrets())


@pytest.mark.integration
@pytest.mark.soak
@pytest.mark.parametrize("way", ["fast", "plain"])
def test_a_cluster_gives_the_same_report_of_any_captures_and_of_their_table(
    spark: SparkSession, tmp_path: Path, folder: Path, two_workers: Cluster, way: str
) -> None:
    asked = any_captures(tmp_path)
    table, keys = str(tmp_path / "table"), str(tmp_path / "keys" / "keys.log")
    variables = {**environment(folder), "FETCHGATE_REPLAY": way}
    of_captures = str(tmp_path / "any"), "--keylog", keys, "--cooperative", "4", "--parquet", table
    of_table = table, "--policy", "always"
    told = []
    for arguments in (of_captures, of_table):
        command = two_workers.measure(*arguments)
        ran = subprocess.run(command, capture_output=True, text=True, env=variables, check=False)
        assert ran.returncode == 0, ran.stderr
        told.append(ran.stdout)

    choices = RowFilter(members=4), RowFilter(policy="always")
    for printed_there, choice in zip(told, choices, strict=True):
        found = measure_here(replace(asked, choice=choice))
        assert found is not None
        reports = reported(found, choice), measured(spark, replace(asked, choice=choice))
        version = json.loads(printed_there)["version"]
        expected = [json.dumps({**report, "version": version}, indent=2) + "\n" for report in reports]
        assert expected == [printed_there] * 2


@pytest.mark.integration
@pytest.mark.soak
def test_a_worker_that_is_killed_changes_nothing(folder: Path, two_workers: Cluster) -> None:
    inputs = [str(path) for path in sorted(CAPTURES.glob("*.pcap"))]
    shares = "import replay.measure.spark.run as run; run._CLUSTER_SHARE = run._PARTITION = 100_000; "
    command = two_workers.measure(*inputs, conf=("spark.ui.enabled=true",))
    command[2] = shares + command[2]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=environment(folder)) as running:
        assert running.stderr is not None
        page = next(filter(None, (re.search(r"http://\S+", line) for line in running.stderr)))
        while (done := tasks(page[0])) < 3:
            assert running.poll() is None
            time.sleep(0.05)
        os.kill(two_workers.workers.pop().pid, signal.SIGKILL)
        out, err = running.communicate()

    assert running.returncode == 0, err
    assert out == printed(json.loads(out)["version"], *inputs), done


def tasks(page: str) -> int:
    """Return the number of tasks that are done.

    If the page does not answer, return 0. On a busy machine one request may fail, and the next one succeed.
    """
    try:
        [application] = asked(f"{page}/api/v1/applications")
        stages = asked(f"{page}/api/v1/applications/{application['id']}/stages")
    except (OSError, http.client.HTTPException, ValueError):
        return 0
    return sum(stage["numCompleteTasks"] for stage in stages)


def asked(url: str) -> list[dict[str, int]]:
    with urllib.request.urlopen(url, timeout=30) as response:
        found: list[dict[str, int]] = json.load(response)
        return found


def test_a_page_that_gives_no_answer_has_no_tasks_done_yet() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as thread:
        asking = thread.submit(tasks, f"http://127.0.0.1:{listener.getsockname()[1]}")
        with listener.accept()[0] as asked_once:
            asked_once.recv(65536)
        assert asking.result() == 0


def test_a_worker_that_can_not_open_a_capture_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / NAME).write_bytes((CAPTURES / NAME).read_bytes())
    monkeypatch.chdir(tmp_path)
    [source] = expand([NAME])
    monkeypatch.chdir("/")
    check_seen([source])

    (tmp_path / NAME).unlink()
    with pytest.raises(
        FileNotFoundError, match=rf"^{NAME}: the worker on .* can't open {tmp_path}/.*under the"
    ):
        check_seen([source])


@pytest.mark.parametrize(
    ("size", "cores", "partitions", "share"),
    [
        (0, 2, 1, 16 << 20),
        (1 << 30, 2, 8, (256 << 20) + 1),
        (1 << 30, None, 65, 64 << 20),
        (1 << 50, None, 10_000, (1 << 50) // 10_000 + 1),
    ],
)
def test_on_a_cluster_the_size_alone_decides_on_the_tasks(
    size: int, cores: int | None, partitions: int, share: int
) -> None:
    assert run.partitions_for(size, cores) == partitions
    assert run.share_of(size, cores) == share
