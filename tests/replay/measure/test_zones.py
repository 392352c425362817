"""Bytes by zone add up to what was captured, and racks are those that were told last."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from proxy.protocol.api import ApiKey
from replay.capture.files.sources import expand
from replay.capture.kafka.exchange import ConnectionEnd, Exchange
from replay.capture.packets.tcp import EVERYTHING
from replay.measure.collected import collect, groups_in
from replay.measure.here import measure_here
from replay.measure.racks import NO_RACKS, Racks, broker_rack, client_rack, racks
from replay.measure.report import About, report
from replay.measure.rows import RowFilter, rows
from replay.measure.work import Work
from replay.report.model import Filters, Report
from replay.report.zones_model import ZonesReport
from tests.frames import entry, fetch, fetch_response
from tests.golden.made import CAPTURES
from tests.replay.protocol.test_cluster import metadata
from tests.replay.tables import NO_FILTERS, reported

KINDS = ("record_bytes", "listing_bytes", "produce_bytes", "other_bytes")
NAMED = racks([broker_rack("10.0.0.2=R1"), broker_rack("10.0.0.3=R2")], [client_rack("10.0.0.1=R1")])
RECORDS = bytes(100)


def measured(capture: Path, named: Racks) -> Report:
    sources = tuple(expand([str(capture)]))
    choice = RowFilter(racks=named)
    found = measure_here(Work(keep=EVERYTHING, choice=choice, topics=frozenset(), sources=sources))
    assert found is not None
    return reported(found, choice)


def zones_of(made: Report) -> ZonesReport:
    assert "zones" in made
    return made["zones"]


def whole(zones: Any) -> int:
    return sum(sum(zones[kind].values()) for kind in KINDS)


class Talk:
    """One client's connection to a broker, as exchanges."""

    def __init__(self, broker: str = "10.0.0.2:9092", client: str = "10.0.0.1:5000", **named: str) -> None:
        self._ends: dict[str, Any] = {
            "connection": f"{client} > {broker} #0",
            "client": client,
            "broker": broker,
            "client_id": "c",
            "software": "",
            **named,
        }
        self._time = 0
        self.events: list[Exchange | ConnectionEnd] = []

    def say(self, key: int, version: int, request: bytes, response: bytes, *, at: int = 0) -> None:
        self._time = at or self._time + 10
        self.events.append(
            Exchange(
                **self._ends,
                number=len(self.events),
                api_key=key,
                api_version=version,
                correlation_id=len(self.events),
                request_time=self._time - 5,
                response_time=self._time,
                request_bytes=len(request),
                response_bytes=len(response),
                request=request,
                response=[response],
            )
        )

    def fetch(
        self, topic: str = "t", partition: int = 0, version: int = 11, records: bytes = RECORDS
    ) -> None:
        told = fetch_response(version, (topic, [entry(partition, 9, records=records)]))
        self.say(ApiKey.FETCH, version, fetch(version, (topic, partition, 0)), told)

    def metadata(self, *nodes: tuple[int, str, str], at: int = 0, cluster: str = "c") -> None:
        brokers = [
            {"node_id": node_id, "host": host.encode(), "port": 9092, "rack": rack.encode() or None}
            for node_id, host, rack in nodes
        ]
        told = metadata(12, brokers=brokers, cluster_id=cluster.encode())
        self.say(ApiKey.METADATA, 12, bytes(30), told, at=at)

    def end(self) -> list[Exchange | ConnectionEnd]:
        return [*self.events, ConnectionEnd(**self._ends)]


def told(*talks: Talk, named: Racks = NO_RACKS, filters: Filters = NO_FILTERS) -> Report:
    choice = RowFilter(racks=named, clients=frozenset(filters["clients"]))
    events = [event for talk in talks for event in talk.end()]
    found = collect([group for batch in rows(events, choice) for group in groups_in(batch)])
    return report(found, About(version="0", policy="gateway", filters=filters, racks=named))


def racks_of(*talks: Talk, named: Racks = NO_RACKS) -> dict[str, str | None]:
    return {row["broker"]: row["rack"] for row in zones_of(told(*talks, named=named))["brokers"]}


def test_without_a_rack_there_are_no_zones() -> None:
    talk = Talk()
    talk.metadata((1, "10.0.0.2", ""))
    talk.fetch()

    assert "zones" not in told(talk)


@pytest.mark.parametrize("capture", CAPTURES, ids=lambda capture: capture.stem)
def test_all_bytes_of_requests_and_responses_are_in_a_pair(capture: Path) -> None:
    made = measured(capture, named=racks([broker_rack("1=R1")], [client_rack("127.0.0.0/8=R2")]))
    zones = zones_of(made)

    captured = made["readable"]["readable_bytes"] + made["readable"]["left_out_bytes"]
    assert sum(row["bytes"] for row in zones["pairs"]) == whole(zones) == captured
    actual = made["fetch"]["actual"]
    assert sum(zones["record_bytes"].values()) == actual["record_bytes"]  # type: ignore[arg-type]
    assert sum(zones["listing_bytes"].values()) == (  # type: ignore[arg-type]
        actual["request_bytes"] + actual["response_bytes"] - actual["record_bytes"]
    )


@pytest.mark.parametrize("capture", CAPTURES, ids=lambda capture: capture.stem)
def test_rows_add_up(capture: Path) -> None:
    zones = zones_of(measured(capture, named=racks([broker_rack("1=R1")], [client_rack("127.0.0.1=R1")])))

    def added(table: Sequence[Any], kind: str) -> dict[str, int]:
        return {zone: sum(row[kind][zone] for row in table) for zone in ("same", "other", "unknown")}

    assert all(added(zones["by_client"], kind) == cast("Any", zones)[kind] for kind in KINDS)
    assert all(added(zones["by_topic"], kind) == cast("Any", zones)[kind] for kind in KINDS[:2])
    assert zones["by_topic"][-1]["topic"] is None
    assert not any(zones["by_topic"][-1]["record_bytes"].values())


def test_bytes_stay_cross_or_are_unknown() -> None:
    here, there, nowhere = Talk("10.0.0.2:9092"), Talk("10.0.0.3:9092"), Talk("10.0.0.4:9092")
    for talk in (here, there, nowhere):
        talk.fetch()
    stranger = Talk("10.0.0.3:9092", "10.0.0.9:5000", client_id="d")
    stranger.fetch()
    there.say(ApiKey.PRODUCE, 9, bytes(300), bytes(30))
    here.say(ApiKey.HEARTBEAT, 4, bytes(40), bytes(20))
    zones = zones_of(told(here, there, nowhere, stranger, named=NAMED))

    assert zones["record_bytes"] == {"same": 100, "other": 100, "unknown": 200}
    assert zones["produce_bytes"] == {"same": 0, "other": 330, "unknown": 0}
    assert zones["other_bytes"] == {"same": 60, "other": 0, "unknown": 0}
    assert [(row["client_id"], row["record_bytes"]["unknown"]) for row in zones["by_client"]] == [
        ("c", 100),
        ("d", 100),
    ]
    asked, got = (len(there.events[0].request), len(b"".join(there.events[0].response)))  # type: ignore[union-attr]
    pairs = {(row["from"], row["to"]): row["bytes"] for row in zones["pairs"]}
    assert pairs == {
        ("R1", "R1"): asked + got + 60,
        ("R1", "R2"): asked + 300,
        ("R2", "R1"): got + 30,
        ("R1", None): asked,
        (None, "R1"): got,
        (None, "R2"): asked,
        ("R2", None): got,
    }
    assert zones["clients"] == [{"rack": None, "connections": 1}, {"rack": "R1", "connections": 3}]


def test_a_rack_is_that_of_the_newest_response_on_any_connection() -> None:
    first, second = Talk(), Talk("10.0.0.3:9092")
    first.metadata((1, "10.0.0.2", "new"), (2, "10.0.0.3", "b"), at=50)
    second.metadata((1, "10.0.0.2", "old"), at=40)
    second.metadata((2, "10.0.0.3", ""), at=60)  # it lost its rack

    assert (
        racks_of(first, second) == racks_of(second, first) == {"10.0.0.2:9092": "new", "10.0.0.3:9092": None}
    )


def test_clusters_have_node_ids_of_their_own() -> None:
    first, second = Talk(), Talk("10.0.0.3:9092")
    first.metadata((1, "10.0.0.2", "a"))
    second.metadata((1, "10.0.0.3", "b"), cluster="d")

    assert racks_of(first, second) == {"10.0.0.2:9092": "a", "10.0.0.3:9092": "b"}


def test_what_the_user_names_counts_before_what_was_captured() -> None:
    talk = Talk()
    talk.metadata((1, "10.0.0.2", "a"), (2, "10.0.0.3", "b"), (3, "kafka-3", "c"), (4, "10.0.0.5", "d"))
    named = racks([broker_rack("1=A"), broker_rack("10.0.0.0/30=B")], [])

    assert racks_of(talk, named=named) == {"10.0.0.2:9092": "A", "10.0.0.3:9092": "B", "10.0.0.5:9092": "d"}


def test_a_broker_that_advertises_a_name_is_unknown_until_its_address_is_named() -> None:
    talk = Talk()
    talk.metadata((1, "kafka-1", "a"))

    assert racks_of(talk) == {"10.0.0.2:9092": None}
    assert racks_of(talk, named=racks([broker_rack("10.0.0.2=a")], [])) == {"10.0.0.2:9092": "a"}


def test_only_the_chosen_clients_count() -> None:
    chosen, other = Talk(client_id="x"), Talk(client_id="y", client="10.0.0.1:6000")
    for talk in (chosen, other):
        talk.fetch()
        talk.say(ApiKey.PRODUCE, 9, bytes(300), bytes(30))
    zones = zones_of(told(chosen, other, named=NAMED, filters={**NO_FILTERS, "clients": ["x"]}))

    assert [row["client_id"] for row in zones["by_client"]] == ["x"]
    assert (zones["record_bytes"]["same"], zones["produce_bytes"]["same"]) == (100, 330)
