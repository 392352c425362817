"""`measure` gives equal results for a complete capture, even if taps, networks or clocks disturb its order.

Only times differ, so the tests compare everything except times.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from replay.capture.kafka.exchange import ConnectionEnd
from tests.examples import examples, few
from tests.replay.capture import crafting
from tests.replay.capture.crafting import CAPTURES, Frame
from tests.replay.tables import connections, measured

MS = 1_000_000
NAMES = (*crafting.NAMES, *sorted(path.name.split(".")[0] for path in CAPTURES.glob("*.manifest.json")))
QUICK = ("librdkafka-midstream", "aiokafka-gateway", "librdkafka-rebalance")
UNTIMED = (
    "input",
    "fetch",
    "by_client",
    "by_topic",
    "by_broker",
    "connections",
    "where",
    "readable",
    "not_eligible",
)
"""The parts of the report that have no times. The figures of files and packets in `input` are left out."""


@cache
def frames_of(name: str) -> list[Frame]:
    return crafting.take_apart(crafting.capture(name))


def from_client(frame: Frame) -> bool:
    """Return whether a client sent a packet. In these captures brokers listen on the lower ports."""
    return frame.data[20:22] > frame.data[22:24]


def two_clocks(frames: Sequence[Frame], nanoseconds: int, drift: float = 0.0) -> list[Frame]:
    """Return packets as two taps would capture them, one for each direction, merged by time.

    The clock of the broker's tap is ahead by `nanoseconds`, and by more later if there is a drift.
    """
    start = frames[0].time
    moved = [
        frame
        if from_client(frame)
        else replace(frame, time=frame.time + nanoseconds + int((frame.time - start) * drift))
        for frame in frames
    ]
    return sorted(moved, key=lambda frame: frame.time)


def jittered(frames: Sequence[Frame], nanoseconds: int, seed: int = 1) -> list[Frame]:
    """Return packets whose times are up to `nanoseconds` too late, sorted by these times."""
    chance = Random(seed)
    moved = [replace(frame, time=frame.time + chance.randrange(nanoseconds + 1)) for frame in frames]
    return sorted(moved, key=lambda frame: frame.time)


def late(frames: Sequence[Frame], nanoseconds: int, seed: int = 1) -> list[Frame]:
    """Return packets in an order in which each packet is up to `nanoseconds` late.

    Each packet keeps its time.
    """
    chance = Random(seed)
    return sorted(frames, key=lambda frame: frame.time + chance.random() * nanoseconds)


def both_twice(frames: Sequence[Frame], nanoseconds: int) -> list[Frame]:
    """Return packets as two taps would capture them, if each captures both directions with its own clock."""
    again = [replace(frame, time=frame.time + nanoseconds) for frame in frames]
    return sorted([*frames, *again], key=lambda frame: frame.time)


DISTURBED: dict[str, Callable[[Sequence[Frame]], list[Frame]]] = {
    "clocks 2 ms apart": lambda frames: two_clocks(frames, 2 * MS),
    "clocks 5 ms apart, the broker's behind": lambda frames: two_clocks(frames, -5 * MS),
    "clocks 100 ms apart": lambda frames: two_clocks(frames, 100 * MS),
    "clocks 100 ms apart, the broker's behind": lambda frames: two_clocks(frames, -100 * MS),
    "clocks that drift": lambda frames: two_clocks(frames, 20 * MS, 50e-6),
    "jitter of 1 ms": lambda frames: jittered(frames, MS),
    "jitter of 20 ms": lambda frames: jittered(frames, 20 * MS),
    "late by 5 ms": lambda frames: late(frames, 5 * MS),
    "swapped": lambda frames: crafting.swap(frames, 0.3, 1),
    "seen twice, 100 ms apart": lambda frames: both_twice(frames, 100 * MS),
    "seen twice": lambda frames: crafting.repeat(frames, 0.5, 1),
}


def written(folder: Path, frames: Sequence[Frame]) -> Path:
    path = folder / "disturbed.pcap"
    path.write_bytes(crafting.pcap(frames, crafting.RAW, nano=True))
    return path


def found_in(path: Path) -> list[Any]:
    """Return all exchanges of a capture and the ends of its connections.

    They are ordered by connection and number. Their times are left out.
    """
    found = []
    for events in connections(path):
        for event in events:
            if isinstance(event, ConnectionEnd):
                plain = event.client, event.broker, event.client_bytes, event.broker_bytes, event.reason
                found.append((event.connection, 1 << 30, str((*plain, event.closed, event.gaps))))
            else:
                values = asdict(replace(event, request_time=0, response_time=0, response=[]))
                values["response"] = b"".join(event.response)
                found.append((event.connection, event.number, str(values)))
    return sorted(found)


def untimed(path: Path) -> dict[str, Any]:
    """Return the report of `measure` for a capture, without its times."""
    report: dict[str, Any] = {**measured("gateway", path)}
    left_out = {"bytes", "packets", "clocks_apart_seconds"}
    report["input"] = {name: value for name, value in report["input"].items() if name not in left_out}
    for client in report["by_client"]:
        del client["connection_seconds"]
    return {name: report[name] for name in UNTIMED}


@cache
def clean(name: str) -> tuple[list[Any], dict[str, Any]]:
    path = CAPTURES / f"{name}.pcap"
    return found_in(path), untimed(path)


def assert_same(name: str, path: Path) -> None:
    exchanges, report = clean(name)
    assert found_in(path) == exchanges
    assert untimed(path) == report


@pytest.mark.parametrize("how", DISTURBED)
@pytest.mark.parametrize("name", few(NAMES, "librdkafka-midstream"))
def test_a_disturbed_capture_gives_what_the_clean_one_gives(name: str, how: str, tmp_path: Path) -> None:
    assert_same(name, written(tmp_path, DISTURBED[how](frames_of(name))))


@examples(10, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    name=st.sampled_from(QUICK),
    apart=st.integers(-100, 100),
    jitter=st.sampled_from([0, 10_000, MS, 10 * MS]),
    delay=st.sampled_from([0, 100_000, 5 * MS]),
    twice=st.sampled_from([0, 0.1, 1]),
    seed=st.integers(0, 1 << 30),
    wrapped=st.sampled_from([0, 0x7FFF_FFFF, 0xFFFF_FF00]),
)
def test_any_disturbance_gives_what_the_clean_capture_gives(
    *, name: str, apart: int, jitter: int, delay: int, twice: float, seed: int, wrapped: int, tmp_path: Path
) -> None:
    frames = crafting.repeat(two_clocks(frames_of(name), apart * MS), twice, seed)
    frames = late(jittered(crafting.wrap(frames, wrapped), jitter, seed), delay, seed)
    assert_same(name, written(tmp_path, frames))
