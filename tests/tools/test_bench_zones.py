"""The benchmark of zones reads its figures correctly, and measures what it says."""

import pytest
from rich.console import Console

from tools.bench import zone_bytes, zone_latency, zones
from tools.bench.figures import AUDIT, DIRECT, GATEWAY, NAMED
from tools.bench.stage import BenchStage
from tools.bench.zone_bytes import Crossed


@pytest.mark.parametrize(("crossed", "met"), [(0, True), (1000, False)])
def test_a_client_must_read_all_from_its_zone_if_the_replica_is_named(crossed: int, met: bool) -> None:
    ways = {AUDIT: Crossed(records=2000, every=9, own=5), NAMED: Crossed(records=crossed, every=9, own=5)}
    table = zone_bytes.table({"librdkafka": ways}, [])
    assert {row.name: row.met for row in table.rows}["librdkafka: records from other zones"] is met


def test_latencies_have_a_row_for_each_rate_and_replica() -> None:
    figures = {"p50": 1.0, "p99": 2.0, "most": 3.0}
    keys = [(what, route) for what in zone_latency.READS for route in (DIRECT, GATEWAY)]
    table = zone_latency.table({10: dict.fromkeys(keys, figures)}, 20.0)
    assert [(row.name, row.values[GATEWAY]) for row in table.rows][2:4] == [
        ("10 records/s, leader: worst", 3.0),
        ("10 records/s, replica: p50", 1.0),
    ]


@pytest.mark.integration
@pytest.mark.soak
def test_a_gateway_in_front_of_brokers_in_racks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zone_bytes, "CLIENTS", {"librdkafka": zone_bytes.CLIENTS["librdkafka"]})
    monkeypatch.setattr(zone_latency, "RATES", {100: 1.0})
    stage = BenchStage(seconds=1.0, quick=True, console=Console(quiet=True))
    crossed, latency = zones.run(stage)
    first = crossed.rows[0].values
    assert first[AUDIT] > 0
    assert first[NAMED] == 0
    assert all(value > 0 for row in latency.rows for value in row.values.values())
