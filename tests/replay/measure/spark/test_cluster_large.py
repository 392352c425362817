"""A capture of 1 GB with 50,000 connections is measured on a Spark cluster that loses a worker.

All connections are found, and the driver needs little memory.
"""

import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.replay.measure.spark.test_cluster import tasks
from tools.bench.captures import Shape, make
from tools.bench.cluster import cluster, environment
from tools.bench.measured import peak

pytestmark = [pytest.mark.integration, pytest.mark.soak, pytest.mark.timeout(3600)]

BEFORE = 5
"""The number of finished tasks after which a worker is killed. 16 tasks read the capture."""
DRIVER = 512 * 1_000_000
"""The limit of memory for the Python process of the Spark driver, in bytes."""


@pytest.mark.parametrize(("size", "connections"), [(1_000_000_000, 50_000)])
def test_a_large_capture_outlives_a_worker(tmp_path: Path, size: int, connections: int) -> None:
    file, out, log = tmp_path / "large.pcap", tmp_path / "report.json", tmp_path / "log"
    truth = make(file, size, Shape(filled=0, connections=connections))
    with cluster(tmp_path) as two_workers, out.open("wb") as output, log.open("wb") as errors:
        most = 0
        command = two_workers.measure(str(file), conf=("spark.ui.enabled=true",))
        with subprocess.Popen(command, stdout=output, stderr=errors, env=environment(tmp_path)) as running:
            while not (page := re.search(r"http://\S+", log.read_text())) or tasks(page[0]) < BEFORE:
                assert running.poll() is None, log.read_text()
                time.sleep(0.1)
            os.kill(two_workers.workers.pop().pid, signal.SIGKILL)
            while running.poll() is None:
                most = max(most, peak(running.pid))
                time.sleep(1)

    assert running.returncode == 0, log.read_text()
    report = json.loads(out.read_text())
    actual = report["fetch"]["actual"]
    assert report["input"]["bytes"] == truth.bytes
    assert report["input"]["packets"] == truth.packets
    assert report["input"]["connections"] == connections
    assert actual["requests"] == truth.fetches
    assert actual["request_bytes"] == truth.fetch_request_bytes
    assert actual["response_bytes"] == truth.fetch_response_bytes
    assert 0 < most < DRIVER
