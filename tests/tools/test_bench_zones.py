"""The benchmark of zones reads its figures correctly, and measures what it says."""

import pytest
from rich.console import Console

from tools.bench import zone_bytes, zone_latency, zones
from tools.bench.figures import AUDIT, DIRECT, GATEWAY, NAMED, WRITTEN
from tools.bench.stage import BenchStage
from tools.bench.zone_bytes import Crossed


class TestBytes:
    def rows(self, client: str, *names: str, crossed: int) -> dict[str, bool | None]:
        ways = {name: Crossed(records=0 if name == AUDIT else crossed, every=9, own=5) for name in names}
        table = zone_bytes.table({client: ways}, [])
        return {row.name.partition(": ")[2]: row.met for row in table.rows}

    @pytest.mark.parametrize(("crossed", "met"), [(0, True), (1000, False)])
    def test_a_client_that_follows_must_read_all_from_its_zone(self, crossed: int, met: bool) -> None:
        assert self.rows("librdkafka", AUDIT, WRITTEN, crossed=crossed)["records from other zones"] is met

    def test_another_one_must_where_the_replica_is_named_as_the_leader(self) -> None:
        assert self.rows("aiokafka", AUDIT, WRITTEN, crossed=1000)["records from other zones"] is None
        assert self.rows("aiokafka", AUDIT, NAMED, crossed=1000)["records from other zones"] is False


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
    monkeypatch.setattr(zone_bytes, "FOLLOWERS", {"librdkafka": zone_bytes.FOLLOWERS["librdkafka"]})
    monkeypatch.setattr(zone_bytes, "OTHERS", {})
    monkeypatch.setattr(zone_latency, "RATES", {100: 1.0})
    stage = BenchStage(seconds=1.0, quick=True, console=Console(quiet=True))
    crossed, latency = zones.run(stage)
    first = crossed.rows[0].values
    assert first[AUDIT] > 0
    assert first[WRITTEN] == 0
    assert all(row.values[GATEWAY] > 0 for row in latency.rows)
