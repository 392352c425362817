"""The demos of the Makefile as a new user runs them, but shorter."""

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
DEMO, LINK, COOPERATIVE = "tools.demo", "tools.demo.link", "tools.demo.cooperative"
ZONES = "tools.demo.zones"


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
    """The demo reads the same records both ways. Its exit code is 0 only if it saved enough bytes.

    On a busy machine, it may save fewer bytes.
    """
    done = run("--seconds", "6", NO_COLOR="1", COLUMNS="120")
    assert "Records: 300 of 300 are the same, compared one by one" in done.stdout, done.stdout + done.stderr
    assert "\x1b" not in done.stdout
    assert done.stderr == ""
    counters = re.search(
        r"Without records: ([\d,]+) bytes with the client, ([\d,]+) with the broker",
        " ".join(done.stdout.split()),
    )
    assert counters is not None
    client, broker = (int(number.replace(",", "")) for number in counters.groups())
    assert broker < client / 2
    enough = broker <= client / 10
    assert done.returncode == (0 if enough else 1)
    assert ("FAILED" in done.stdout) is not enough
    assert "--sessions off, which forwards all bytes unchanged" in " ".join(done.stdout.split())
    rows = [line.split("│") for line in done.stdout.splitlines() if line.startswith("│")]
    claim = {
        row[1].strip(): tuple(int(cell.replace(",", "")) for cell in row[2:4])
        for row in rows
        if len(row) == 5
    }
    assert len(claim) == 5
    assert all(predicted == measured for predicted, measured in claim.values())
    others = claim["full fetches"][0] + claim["sessionless fetches"][0]
    assert claim["incremental fetches"][0] > 5 * others, "how many there are depends on how busy it is"
    assert "of 500 slots" in done.stdout
    assert "broker 1 gave demo-client a session of 100 partitions" in done.stdout
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


def test_a_short_demo_of_a_cooperative_group_keeps_what_it_promises() -> None:
    """The demo loses no record. Its exit code is 0 only if the group was at least 3 times as fast.

    On a busy machine, it may be slower.
    """
    done = run("--records", "1500", module=COOPERATIVE, NO_COLOR="1", COLUMNS="120")
    assert done.stderr == "", done.stdout + done.stderr
    assert "\x1b" not in done.stdout
    rows = [line.split("│")[1:-1] for line in done.stdout.splitlines() if line.startswith("│")]
    table = {name.strip(): [cell.strip() for cell in cells] for name, *cells in rows}
    assert table["members at work until then"] == ["1 of 4", "4 of 4"]
    for name in ("records lost", "out of order within their key", "again: without need"):
        assert table[name] == ["0", "0"], done.stdout
    times = re.search(r"was ([\d.]+) times as fast", done.stdout)
    assert times is not None
    assert done.returncode == (float(times[1]) < 3)
    assert ("FAILED" in done.stdout) is bool(done.returncode)
    assert "Try next:" in done.stdout


@pytest.mark.soak
def test_a_short_demo_of_zones_loses_no_record_and_keeps_them_in_the_zone() -> None:
    """The demo loses no record. Its exit code is 0 only if clients read in their zone while nothing fails.

    On a busy machine, a broker may be late, and then they do not.
    """
    done = run("--seconds", "3", module=ZONES, NO_COLOR="1", COLUMNS="120")
    assert done.stderr == "", done.stdout + done.stderr
    assert "\x1b" not in done.stdout
    rows = [line.split("│")[1:-1] for line in done.stdout.splitlines() if line.startswith("│")]
    cells = [[cell.strip().replace(",", "") for cell in row] for row in rows]
    periods = [
        (name, int(same), int(other)) for name, same, other, _ in (c for c in cells if len(c) == 4) if same
    ]
    checked = {name: counts for name, *counts in (row for row in cells if len(row) == 6)}
    assert len(checked) == 4
    assert all(produced > "0" and set(wrong) == {"0"} for produced, *wrong in checked.values()), done.stdout
    assert len(periods) == 16
    assert all(other > same > 0 for name, same, other in periods if name == "before")
    moved = [other < same / 10 for name, same, other in periods if name in {"after", "it is back"}]
    assert len(moved) == 8
    assert done.returncode == (not all(moved)), done.stdout
    assert ("FAILED" in done.stdout) is bool(done.returncode)
    assert "Try next:" in done.stdout


@pytest.mark.parametrize("module", [LINK, COOPERATIVE, ZONES])
def test_help_has_examples_and_exit_codes(module: str) -> None:
    done = run("--help", module=module)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"examples:\n  make {module.removeprefix('tools.').replace('.', '-')} " in done.stdout
    assert "exit codes: 0: " in done.stdout


@pytest.mark.parametrize("records", ["10", "many"])
def test_a_wrong_number_of_records_is_refused_in_one_line(records: str) -> None:
    done = run("--records", records, module=COOPERATIVE)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == (
        f"python -m tools.demo.cooperative: error: argument --records: {records} is not a number "
        "between 1000 and 1000000"
    )


@pytest.mark.parametrize(("module", "seconds"), [(DEMO, "0"), (LINK, "0"), (ZONES, "ten")])
def test_wrong_seconds_are_refused_in_one_line_before_anything_starts(module: str, seconds: str) -> None:
    done = run("--seconds", seconds, module=module)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == (
        f"python -m {module}: error: argument --seconds: {seconds} is not a number between 1 and 3600"
    )


@pytest.mark.parametrize(
    ("module", "step"),
    [
        (DEMO, "Kafka 4.3.0: starting a broker"),
        (LINK, "Kafka 4.3.0, with 0 slots for sessions: starting a broker"),
        (COOPERATIVE, "Kafka 4.3.0: starting a broker"),
        (ZONES, "Kafka 4.3.0: starting three brokers in three racks"),
    ],
)
def test_a_broker_that_does_not_start_is_told_with_its_remedy(tmp_path: Path, module: str, step: str) -> None:
    done = run(module=module, TMPDIR=str(tmp_path), FETCHGATE_CACHE=str(_broken_cache(tmp_path)))
    assert done.returncode == 1
    assert done.stderr.startswith(f"demo: {step}: ")
    assert "A broker needs about 1 GB of free memory" in done.stderr
    assert "Traceback" not in done.stdout + done.stderr


def _broken_cache(folder: Path) -> Path:
    """Make a cache with a release's folder, but without its jars."""
    cache = folder / "cache"
    (cache / "kafka" / "4.3.0").mkdir(parents=True)
    return cache


def heed_ctrl_c() -> None:
    """Restore Ctrl-C, which a shell disables for background processes."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.mark.parametrize(
    ("module", "length", "step", "started"),
    [
        (DEMO, ("--seconds", "60"), "Reading for 60 s", 2),
        (LINK, ("--seconds", "60"), "Writing and reading for 30 s", 3),
        pytest.param(COOPERATIVE, (), "orders-plain: 6,000 records", 5, marks=pytest.mark.soak),
        pytest.param(
            ZONES, ("--seconds", "60"), "Without help: reading for 60 s", 10, marks=pytest.mark.soak
        ),
    ],
)
def test_ctrl_c_leaves_nothing_behind(module: str, length: tuple[str, ...], step: str, started: int) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", module, *length],
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
        assert len(children) >= 1 + started  # and a broker
        process.send_signal(signal.SIGINT)
        rest = process.communicate(timeout=200)[0]
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 130
    assert "demo: interrupted; everything that it started was stopped" in rest
    psutil.wait_procs(children, timeout=60)
    assert [child for child in children if child.is_running()] == []
