"""Bytes by zone add up to what was captured, and racks are those that were told last."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from proxy.protocol.api import ApiKey
from replay.capture.files.counts import FileCounts
from replay.capture.files.sources import expand
from replay.capture.kafka.exchange import ConnectionEnd, Exchange
from replay.capture.packets.tcp import EVERYTHING
from replay.measure.collected import collect
from replay.measure.here import measure_here
from replay.measure.racks import NO_RACKS, Racks, broker_rack, client_rack, racks
from replay.measure.report import About, report
from replay.measure.rows import RowFilter, groups
from replay.measure.work import Work
from replay.measure.zone_moves import latency
from replay.report.model import Filters, Report, actual_bytes
from replay.report.zones_model import ZonesReport
from tests.frames import entry, fetch, fetch_response, topic_id
from tests.golden.measured import CAPTURES
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
        self.syn_seen = True
        self.topics: dict[bytes, str] = {}
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
        self, partition: int = 0, version: int = 12, records: bytes = RECORDS, end: int = 9, **more: Any
    ) -> None:
        told = fetch_response(version, ("t", [entry(partition, end, records=records)]))
        self.say(ApiKey.FETCH, version, fetch(version, ("t", partition, 0), **more), told)

    def metadata(
        self,
        *nodes: tuple[int, str, str],
        at: int = 0,
        cluster: str = "c",
        isr: Sequence[Sequence[int]] = (),
    ) -> None:
        """Tell the brokers, and the ISR of each partition of the topic t. Its first replica is the leader."""
        brokers = [
            {"node_id": node_id, "host": host.encode(), "port": 9092, "rack": rack.encode() or None}
            for node_id, host, rack in nodes
        ]
        partitions: list[Any] = [(place, each[0], [*each], [*each], []) for place, each in enumerate(isr)]
        topics: list[Any] = [("t", partitions)] if isr else []
        told = metadata(12, topics, brokers=brokers, cluster_id=cluster.encode())
        self.say(ApiKey.METADATA, 12, bytes(30), told, at=at)

    def end(self) -> list[Exchange | ConnectionEnd]:
        return [*self.events, ConnectionEnd(**self._ends, syn_seen=self.syn_seen, topics=self.topics)]


def told(
    *talks: Talk,
    named: Racks = NO_RACKS,
    filters: Filters = NO_FILTERS,
    files: Iterable[FileCounts] = (),
) -> Report:
    choice = RowFilter(racks=named, clients=frozenset(filters["clients"]))
    events = [event for talk in talks for event in talk.end()]
    found = collect(groups(events, choice, files))
    return report(found, About(version="0", policy="gateway", filters=filters, racks=named))


def racks_of(*talks: Talk, named: Racks = NO_RACKS) -> dict[str, str | None]:
    return {row["broker"]: row["rack"] for row in zones_of(told(*talks, named=named))["brokers"]}


def test_without_a_rack_there_are_no_zones() -> None:
    talk = Talk()
    talk.metadata((1, "10.0.0.2", ""))
    talk.fetch()

    assert "zones" not in told(talk)


@pytest.mark.parametrize("capture", CAPTURES, ids=lambda capture: capture.stem)
def test_all_bytes_are_in_a_pair_and_rows_add_up(capture: Path) -> None:
    named = racks([broker_rack("1=R1"), broker_rack("2=R2")], [client_rack("127.0.0.0/8=R2")])
    made = measured(capture, named)
    zones: Any = zones_of(made)

    captured = made["readable"]["readable_bytes"] + made["readable"]["left_out_bytes"]
    assert sum(row["bytes"] for row in zones["pairs"]) == whole(zones) == captured
    actual = made["fetch"]["actual"]
    assert sum(zones["record_bytes"].values()) == actual["record_bytes"]
    assert sum(zones["listing_bytes"].values()) == actual_bytes(made["fetch"]) - actual["record_bytes"]
    for table, kinds in (("by_client", KINDS), ("by_topic", KINDS[:2])):
        for kind in kinds:
            added = {zone: sum(row[kind][zone] for row in zones[table]) for zone in zones[kind]}
            assert added == zones[kind]
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


RACKED = ((1, "10.0.0.2", "R1"), (2, "10.0.0.3", "R2"), (3, "10.0.0.4", "R3"), (4, "10.0.0.5", ""))
CLIENTS = racks([], [client_rack("10.0.0.1=R1")])
JAVA, FRANZ = "apache-kafka-java 4.3.0", "kgo v1.22.2"


def moved(*talks: Talk) -> tuple[int, dict[str, int], int, dict[str, int]]:
    """Return what A and B move and what stays, and check that everything adds up."""
    zones = zones_of(told(*talks, named=CLIENTS))
    by_rack, by_leader = zones["client_rack"], zones["rack_clients"]
    records = sum(cast("dict[str, int]", zones["record_bytes"]).values())
    produced = sum(cast("dict[str, int]", zones["produce_bytes"]).values())
    for way in (by_rack, by_leader):
        assert way["moved_bytes"] + sum(way["stays"].values()) == records + produced
    tables: tuple[Sequence[Any], ...] = (zones["by_client"], zones["by_topic"])
    for table in tables:
        assert sum(row["client_rack_bytes"] for row in table) == by_rack["moved_bytes"]
        assert sum(row["rack_clients_bytes"] for row in table) == by_leader["moved_bytes"]
    return by_rack["moved_bytes"], by_rack["stays"], by_leader["moved_bytes"], by_leader["stays"]


@pytest.mark.parametrize(
    ("isr", "stays"),
    [
        ([2, 1, 3], ""),
        ([2, 1, 4], ""),
        ([2, 3], "no replica in the zone"),
        ([2, 4], "unknown"),
        ([2, 9], "unknown"),  # no response describes it
        ([], "unknown"),
    ],
)
def test_records_move_if_an_in_sync_replica_is_in_the_clients_zone(isr: list[int], stays: str) -> None:
    talk, other = Talk("10.0.0.3:9092", software=JAVA), Talk("10.0.0.4:9092", "10.0.0.9:1")
    other.metadata(*RACKED, isr=[isr] if isr else ())  # told on any connection
    talk.fetch()
    expected = (0, {stays: 100}) if stays else (100, {})

    assert moved(talk, other) == (*expected, *expected)


def test_the_last_isr_counts() -> None:
    talk = Talk("10.0.0.3:9092", software=JAVA)
    talk.metadata(*RACKED, isr=[[2, 1]], at=10)
    talk.fetch()
    talk.metadata(*RACKED, isr=[[2, 3]], at=90)

    assert moved(talk)[0] == 0


@pytest.mark.parametrize(
    ("version", "software", "syn_seen", "by_rack", "by_leader"),
    [
        (12, JAVA, True, "", ""),
        (12, "sarama v1.61.1", True, "", ""),
        (12, "confluent-kafka-python 2.16.1-rdkafka-2.16.0", True, "", ""),
        (12, "librdkafka 2.16.0", True, "", ""),
        (12, "kafka-python 3.0.11", True, "", ""),
        (11, "kafka-python 2.3.0", True, "client unknown", ""),
        (12, FRANZ, True, "does not follow", ""),
        (12, "platformatic-kafka 1.35.0", True, "does not follow", ""),
        (12, "platformatic-kafka 2.2.3", True, "", ""),
        (11, "", True, "does not follow", ""),  # KafkaJS and aiokafka
        (11, "", False, "client unknown", ""),  # its beginning was not captured
        (11, JAVA, True, "", ""),
        (12, "", True, "client unknown", ""),
        (12, "other 1.0", True, "client unknown", ""),
        (10, JAVA, True, "below v11", ""),
        (9, JAVA, True, "below v11", "below v10"),
        (4, "", True, "below v11", "below v10"),
    ],
)
def test_it_takes_a_version_and_a_client_that_follows(
    version: int, software: str, syn_seen: bool, by_rack: str, by_leader: str
) -> None:
    talk = Talk("10.0.0.3:9092", software=software)
    talk.syn_seen = syn_seen
    talk.metadata(*RACKED, isr=[[2, 1]])
    talk.fetch(version=version)
    first, second = ((0, {reason: 100}) if reason else (100, {}) for reason in (by_rack, by_leader))

    assert moved(talk) == (*first, *second)


def test_a_client_without_a_name_that_tells_epochs_is_unknown() -> None:
    talk = Talk("10.0.0.3:9092")
    talk.metadata(*RACKED, isr=[[2, 1]])
    talk.fetch(version=11, values={"current_leader_epoch": 4})

    assert moved(talk)[1] == {"client unknown": 100}


def test_what_stays_otherwise() -> None:
    here, there = Talk("10.0.0.2:9092", software=JAVA), Talk("10.0.0.3:9092", software=JAVA)
    here.metadata(*RACKED, isr=[[2, 1]])
    here.fetch()
    there.fetch(rack_id="R1")
    there.fetch(replica_id=2)
    there.say(ApiKey.PRODUCE, 9, bytes(300), bytes(30))
    stranger = Talk("10.0.0.3:9092", "10.0.0.9:1", software=JAVA)
    stranger.fetch()

    stays = {"broker in the zone": 100, "not a consumer": 100, "produce": 330, "unknown": 100}
    assert moved(here, there, stranger) == (0, {**stays, "rack of its own": 100}, 100, stays)


def test_topics_with_ids_are_found_by_their_names() -> None:
    talk = Talk("10.0.0.3:9092", software=JAVA)
    talk.metadata(*RACKED, isr=[[2, 1]])
    talk.fetch(version=13)

    assert moved(talk)[0] == 0  # no response has the id
    talk.topics[topic_id("t")] = "t"
    assert moved(talk)[0] == 100


def test_without_a_clients_zone_all_records_are_unknown() -> None:
    talk = Talk("10.0.0.3:9092", "10.0.0.9:1", software=JAVA)
    talk.metadata(*RACKED, isr=[[2, 1]])
    talk.fetch()

    assert moved(talk) == (0, {"unknown": 100}, 0, {"unknown": 100})


def test_records_a_second_are_the_growth_of_logs() -> None:
    one, other = Talk("10.0.0.3:9092", software=JAVA), Talk("10.0.0.4:9092", software=JAVA)
    one.metadata(*RACKED, isr=[[2, 1], [2, 1], [3, 1]])
    for end in (100, 300, 250):
        one.fetch(0, end=end)
    one.fetch(1, end=50)
    one.fetch(1, records=b"", end=70)
    one.fetch(0, records=b"", end=-1)
    for end in (40, 340):
        other.fetch(2, end=end)
        other.fetch(0, end=310)  # from a replica that is not the leader
    file = FileCounts(file="f")
    file.add_stretches([[1_000_000_000, 11_000_000_000]])
    leaders = zones_of(told(one, other, named=CLIENTS, files=[file]))["leaders"]

    assert [(row["leader"], row["rack"], row["records_per_second"]) for row in leaders] == [
        (3, "R3", 30.0),
        (2, "R2", 23.0),
    ]
    assert [row["leader_records_per_second"] for row in leaders] == [30.0, 23.0]
    assert {row["latency"]["records_per_second"] for row in leaders} == {10}


@pytest.mark.parametrize(
    ("rate", "known"), [(0.0, 2), (2.0, 2), (9.9, 2), (10.0, 10), (999, 100), (5_000, 1_000)]
)
def test_the_next_lower_rate_counts(rate: float, known: int) -> None:
    assert latency(rate)["records_per_second"] == known


def of_zones(name: str) -> tuple[dict[str, Any], ZonesReport]:
    """Return the manifest of a capture with three brokers in three racks, and its report on zones."""
    manifest = json.loads((CAPTURES[0].parent / f"{name}.manifest.json").read_text())
    named = racks([], [client_rack(f"127.0.0.0/8={manifest['client_rack']}")])
    return manifest, zones_of(measured(CAPTURES[0].parent / f"{name}.pcap", named))


@pytest.mark.parametrize("name", ["librdkafka-zones", "librdkafka-zones-rack"])
def test_racks_are_those_of_the_brokers(name: str) -> None:
    manifest, zones = of_zones(name)

    ports = manifest["ports"]["client_side"]
    assert sorted((row["broker"], row["node_id"], row["rack"]) for row in zones["brokers"]) == sorted(
        (f"127.0.0.1:{port}", node_id, manifest["racks"][str(node_id)])
        for node_id, port in enumerate(ports, 1)
    )


def test_the_predicted_records_are_those_that_moved() -> None:
    """The second capture has the same records, read by a client with a rack."""
    manifest, before = of_zones("librdkafka-zones")
    _, after = of_zones("librdkafka-zones-rack")

    for way in (before["client_rack"], before["rack_clients"]):
        assert before["record_bytes"]["same"] + way["moved_bytes"] == after["record_bytes"]["same"]
        assert before["record_bytes"]["other"] - way["moved_bytes"] == after["record_bytes"]["other"]
        assert way["stays"]["no replica in the zone"] == after["record_bytes"]["other"] > 0
    moved = {row["topic"]: row["client_rack_bytes"] for row in before["by_topic"]}
    partitions = [each for each in manifest["replicas"]["events"].values() if each[0] != 2]
    assert moved["orders"] == moved[None] == 0
    assert moved["events"] % len(partitions) == 0
    assert after["client_rack"]["stays"].keys() == {"broker in the zone", "rack of its own"}
