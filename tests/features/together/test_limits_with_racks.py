"""Limits of fetches, together with clients that read from replicas."""

from functools import partial
from typing import Any

from proxy.features.limits.fetch_floors import FetchFloorsStage, FetchLimits
from tests.features.racks.test_raise_fetch import connect, raises
from tests.frames import fetch


def test_a_fetch_of_kafka_go_keeps_its_limits() -> None:
    """It is known by its version. The floors of fetches would keep its records from it."""
    floors = partial(FetchFloorsStage, FetchLimits({"": 65_536}, {"c": 5000}))
    play = connect(stages=(floors,))
    values = {"log_start_offset": 0}
    for number in range(10, 13):
        raises(play, ("t", 0), correlation=number, values=values, max_wait_ms=500, min_bytes=1)
    asked: dict[str, Any] = {"values": values, "max_wait_ms": 500}
    floored: dict[str, Any] = asked | {"max_wait_ms": 5000, "min_bytes": 65_536}
    other = connect(stages=(floors,))
    other.client(fetch(11, ("t", 0), min_bytes=1, **asked)).to_broker(fetch(11, ("t", 0), **floored))
