"""The fuzzers report the right results as findings, and store them."""

import random
import time
from pathlib import Path

from tools.fuzz.findings import keep
from tools.fuzz.mutate import mutated
from tools.fuzz.plain import Watch, plain
from tools.fuzz.target import FuzzTarget, examine

SEEDS = [b"\0" * 40, b"quiet bytes"]


def _run(data: bytes) -> None:
    if b"\xff" in data:
        raise ValueError("a byte that it does not like")
    if b"\x80" in data:
        until = time.process_time() + 0.04
        while time.process_time() < until:
            pass
    if b"\x7f" in data:
        bytearray(3 << 20)
    if b"\x81" in data:
        time.sleep(0.04)


def _crash(data: bytes) -> None:
    _run(data.translate(None, b"\x7f\x80\x81"))


QUICK = FuzzTarget(name="toy", run=_crash, seeds=lambda: SEEDS, modules=())
TARGET = FuzzTarget(name="toy", run=_run, seeds=lambda: SEEDS, modules=(), memory=2 << 20)


def test_a_crash_a_hang_and_growth_are_told_apart() -> None:
    found = [examine(TARGET, data) for data in (b"\xff", b"\x80", b"\x7f", b"nothing")]
    assert [each and each.kind for each in found] == ["crash", "hang", "growth", None]
    assert found[0] is not None
    assert "ValueError at test_fuzz.py" in found[0].where


def test_an_input_that_only_waits_is_no_hang() -> None:
    assert examine(TARGET, b"\x81") is None
    watch = Watch(TARGET)
    watch.feed(b"\x81")
    watch.feed(b"\x80")
    assert [name.split()[0] for name in watch.suspects] == ["hang"]


def test_the_mutator_finds_a_crash_and_its_input_becomes_one_byte(tmp_path: Path) -> None:
    watch = plain(QUICK, 5000, 60, 1, lambda *_: None)
    crashes = [data for name, data in watch.suspects.items() if name.startswith("crash")]
    assert crashes
    kept = keep(QUICK, crashes[0], tmp_path)
    assert kept is not None
    file, finding = kept
    assert file.read_bytes() == b"\xff"
    assert file.name.startswith("crash-")
    assert finding.kind == "crash"


def test_what_is_no_finding_leaves_no_file(tmp_path: Path) -> None:
    assert keep(TARGET, b"nothing", tmp_path) is None
    assert not list(tmp_path.iterdir())


def test_inputs_stay_within_their_bound_and_repeat_with_their_seed() -> None:
    def some() -> list[bytes]:
        choose = random.Random(3)
        return [mutated(SEEDS[0], SEEDS, choose, 50) for _ in range(300)]

    assert max(map(len, some())) <= 50
    assert some() == some()
    assert len(set(some())) > 250
