"""`make demo` as a stranger runs it, only shorter."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-m", "tools.demo"]


def run(*options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *options],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )


def test_a_short_demo_reads_the_same_and_shows_what_was_saved() -> None:
    """A busy machine fetches less often and saves less: the exit code must follow the figure."""
    done = run("--seconds", "6", NO_COLOR="1", COLUMNS="120")
    assert "Records: 300 of 300 are the same, compared one by one" in done.stdout, done.stdout + done.stderr
    assert "\x1b" not in done.stdout
    assert done.stderr == ""
    counters = re.search(
        r"own counters: ([\d,]+) bytes with the client, ([\d,]+) with the broker", done.stdout
    )
    assert counters is not None
    client, broker = (int(number.replace(",", "")) for number in counters.groups())
    assert broker < client / 2
    enough = broker <= client / 10
    assert done.returncode == (0 if enough else 1)
    assert ("FAILED" in done.stdout) is not enough
    assert "--sessions off, which forwards all bytes unchanged" in " ".join(done.stdout.split())
    rows = [line.split("│") for line in done.stdout.splitlines() if line.startswith("│")]
    claim = {row[1].strip(): (row[2].strip(), row[3].strip()) for row in rows if len(row) == 5}
    assert len(claim) == 5
    assert all(predicted == measured for predicted, measured in claim.values())
    assert claim["incremental fetches"] > ("100", "")
    assert "of 500 slots" in done.stdout
    assert "Try next:" in done.stdout


def test_wrong_seconds_are_refused_in_one_line_before_anything_starts() -> None:
    done = run("--seconds", "0")
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == (
        "python -m tools.demo: error: argument --seconds: 0 is not between 1 and 3600"
    )


def test_a_broker_that_does_not_start_is_told_with_its_remedy(tmp_path: Path) -> None:
    done = run(TMPDIR=str(tmp_path), FETCHGATE_CACHE=str(_broken_cache(tmp_path)))
    assert done.returncode == 1
    assert done.stderr.startswith("demo: Kafka 4.3.0: starting a broker: ")
    assert "A broker needs about 1 GB of free memory" in done.stderr
    assert "Traceback" not in done.stdout + done.stderr


def _broken_cache(folder: Path) -> Path:
    """Make a cache in which a release is, but without its jars."""
    cache = folder / "cache"
    (cache / "kafka" / "4.3.0").mkdir(parents=True)
    return cache


def heed_ctrl_c() -> None:
    """Undo what a shell does to what it runs in the background: to have it ignore Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_ctrl_c_leaves_nothing_behind() -> None:
    process = subprocess.Popen(
        [*COMMAND, "--seconds", "60"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        preexec_fn=heed_ctrl_c,  # noqa: PLW1509 - no thread is running that could hold a lock
    )
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("Reading for 60 s"):
                break
        time.sleep(2)
        children = psutil.Process(process.pid).children(recursive=True)
        assert len(children) >= 3  # a broker and two gateways
        process.send_signal(signal.SIGINT)
        rest = process.communicate(timeout=60)[0]
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 130
    assert "demo: interrupted; everything that it started was stopped" in rest
    psutil.wait_procs(children, timeout=10)
    assert [child for child in children if child.is_running()] == []
