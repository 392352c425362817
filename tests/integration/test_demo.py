"""`make demo` and `make demo-link` as a stranger runs them, only shorter."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).parents[2]
DEMO, LINK = "tools.demo", "tools.demo_link"


def run(*options: str, module: str = DEMO, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", module, *options],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=280,
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


def test_a_short_demo_of_the_link_reads_the_same_and_takes_what_a_native_session_takes() -> None:
    done = run("--seconds", "6", module=LINK, NO_COLOR="1", COLUMNS="120")
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    assert "Records: 150 of 150 are the same, compared one by one" in done.stdout
    assert "\x1b" not in done.stdout
    rows = [line.split("│")[1:-1] for line in done.stdout.splitlines() if line.startswith("│")]
    table = {name.strip(): [cell.strip().replace(",", "") for cell in cells] for name, *cells in rows}
    direct, link, native = (int(cell) for cell in table["both"][:3])
    assert link == native < direct / 10
    assert all(int(cell) > 0 for cell in table["fetches that were counted"][:3])


def test_help_of_the_link_has_examples_and_exit_codes() -> None:
    done = run("--help", module=LINK)
    assert (done.returncode, done.stderr) == (0, "")
    assert "examples:\n  make demo-link " in done.stdout
    assert "exit codes: 0: " in done.stdout


@pytest.mark.parametrize("module", [DEMO, LINK])
def test_wrong_seconds_are_refused_in_one_line_before_anything_starts(module: str) -> None:
    done = run("--seconds", "0", module=module)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == (
        f"python -m {module}: error: argument --seconds: 0 is not between 1 and 3600"
    )


@pytest.mark.parametrize(
    ("module", "step"),
    [(DEMO, "Kafka 4.3.0: starting"), (LINK, "Kafka 4.3.0, with 0 slots for sessions: starting")],
)
def test_a_broker_that_does_not_start_is_told_with_its_remedy(tmp_path: Path, module: str, step: str) -> None:
    done = run(module=module, TMPDIR=str(tmp_path), FETCHGATE_CACHE=str(_broken_cache(tmp_path)))
    assert done.returncode == 1
    assert done.stderr.startswith(f"demo: {step} a broker: ")
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


@pytest.mark.parametrize(
    ("module", "step", "gateways"),
    [(DEMO, "Reading for 60 s", 2), (LINK, "Writing and reading for 30 s", 3)],
)
def test_ctrl_c_leaves_nothing_behind(module: str, step: str, gateways: int) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", module, "--seconds", "60"],
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
            if line.startswith(step):
                break
        time.sleep(2)
        children = psutil.Process(process.pid).children(recursive=True)
        assert len(children) >= 1 + gateways  # and a broker
        process.send_signal(signal.SIGINT)
        rest = process.communicate(timeout=60)[0]
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 130
    assert "demo: interrupted; everything that it started was stopped" in rest
    psutil.wait_procs(children, timeout=10)
    assert [child for child in children if child.is_running()] == []
