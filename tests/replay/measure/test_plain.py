"""With FETCHGATE_REPLAY=plain a report has the same bytes. It may only take longer."""

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, get_args
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from proxy.cli import main
from replay.capture.kafka import exchanges
from replay.measure import command
from replay.measure.collected import Collected
from replay.measure.report import About
from replay.measure.rows import RowFilter
from replay.measure.work import Work
from replay.simulate.captured_response import CapturedResponse
from replay.simulate.engine import Policy
from tests.examples import examples
from tests.replay.capture import crafting
from tests.replay.capture.crafting import Frame
from tests.replay.measure.test_order import MS, frames_of, late, two_clocks, written
from tests.replay.tables import NO_FILTERS, report_of, rows_of, single, table
from tools.bench.captures import Shape, make


@cache
def idle(folder: Path) -> list[Frame]:
    """Return the packets of two connections, most of whose fetches only rotate their list."""
    make(folder / "idle.pcap", 500_000, Shape(filled=0, connections=2))
    return crafting.take_apart((folder / "idle.pcap").read_bytes())


@cache
def busy(folder: Path) -> list[Frame]:
    """Return the packets of two connections whose fetches all bring records of two partitions."""
    make(folder / "busy.pcap", 500_000, Shape(connections=2, records=1_000))
    return crafting.take_apart((folder / "busy.pcap").read_bytes())


def report(path: Path, policy: Policy, *, plain: bool) -> str:
    found = table(RowFilter(policy=policy, plain=plain), path)
    about = About(version="0", policy=policy, filters=NO_FILTERS)
    return json.dumps(report_of(single(rows_of(found)), about))


def assert_same(folder: Path, frames: Sequence[Frame], policy: Policy) -> None:
    path = written(folder, frames)
    with patch.object(exchanges, "WORTH", 1):
        found = report(path, policy, plain=False)
        with patch.object(CapturedResponse, "lists", return_value=False):  # nothing is looked up together
            assert found == report(path, policy, plain=True)


@examples(40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    name=st.sampled_from(["idle", "busy", "aiokafka-gateway", "librdkafka-midstream"]),
    policy=st.sampled_from(get_args(Policy)),
    changes=st.fixed_dictionaries(
        {
            "lost": st.sampled_from([0, 0, 0.005]),
            "again": st.sampled_from([0, 0, 0.02]),
            "swapped": st.sampled_from([0, 0, 0.02]),
            "cut": st.sampled_from([0, 0, 1400]),
            "apart": st.sampled_from([0, 0, 3, -40]),
            "late": st.sampled_from([0, 0, 5 * MS]),
            "wrapped": st.sampled_from([0, 0xFFFF_FF00]),
        }
    ),
    seed=st.integers(0, 1 << 30),
)
def test_any_capture_gives_the_same_report(
    *,
    name: str,
    policy: Policy,
    changes: dict[str, Any],
    seed: int,
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    made = {"idle": idle, "busy": busy}.get(name)
    frames = frames_of(name) if made is None else made(tmp_path_factory.getbasetemp())
    frames = crafting.wrap(frames, changes["wrapped"])
    frames = crafting.swap(crafting.lose(frames, changes["lost"], seed), changes["swapped"], seed)
    frames = two_clocks(crafting.repeat(frames, changes["again"], seed), changes["apart"] * MS)
    frames = late(frames, changes["late"], seed)
    assert_same(tmp_path, crafting.cut(frames, changes["cut"]) if changes["cut"] else frames, policy)


@pytest.mark.parametrize("choice", [RowFilter(raw=True), RowFilter(members=3)])
def test_frames_and_records_by_key_are_the_same(
    choice: RowFilter, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.getbasetemp()
    captures = written(folder, idle(folder)), crafting.CAPTURES / "librdkafka-midstream.pcap"
    assert table(choice, *captures) == table(replace(choice, plain=True), *captures)


@pytest.mark.parametrize(("value", "plain"), [("plain", True), ("", False)])
def test_the_environment_chooses_the_plain_way(
    monkeypatch: pytest.MonkeyPatch, value: str, plain: bool
) -> None:
    seen: list[bool] = []

    def stop(work: Work, _: object) -> Collected:
        seen.append(work.choice.plain)
        raise KeyboardInterrupt

    monkeypatch.setenv("FETCHGATE_REPLAY", value)
    monkeypatch.setattr(command, "_here", stop)
    main(["replay", "measure", str(crafting.CAPTURES / "aiokafka-gateway.pcap"), "--json"])
    assert seen == [plain]
