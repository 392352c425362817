"""The benchmark of zones reads its figures correctly, and measures what it says."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from rich.console import Console

from proxy.core.racks import read_racks
from proxy.protocol.messages import read
from proxy.protocol.schemas import METADATA
from tools.bench import (
    connections,
    zone_brokers,
    zone_bytes,
    zone_cpu,
    zone_latency,
    zone_others,
    zone_reader,
    zone_returns,
)
from tools.bench.figures import (
    AGAIN,
    AUDIT,
    BEFORE,
    DIRECT,
    GATEWAY,
    KILLED,
    NAMED,
    NO_RACK,
    OWN_RACK,
    REPLICA,
    STOPPED,
    WRITTEN,
)
from tools.bench.frames import METADATA_VERSION, metadata_request, metadata_response
from tools.bench.stage import BenchStage
from tools.bench.stub import MANY, TOPIC_ID, SessionStub
from tools.bench.zone_bytes import Crossed
from tools.bench.zone_cpu import MODES, TRAFFICS, CpuWindow
from tools.kafka import raw
from tools.kafka.metadata import read_metadata

READERS = (*zone_reader.CLIENTS, zone_returns.AT_END)
STUB = ("127.0.0.1", 9092)
RESPONSE_HEAD = 4 + 4 + 1
"""The bytes of a flexible response's length, correlation id and tags."""


def stage(*, seconds: float = 1.0) -> BenchStage:
    return BenchStage(seconds=seconds, quick=True, console=Console(quiet=True))


class TestFrames:
    def test_a_metadata_response_is_one_that_the_gateway_reads_to_its_last_byte(self) -> None:
        frame = metadata_response(7, {1: "R1", 2: "R2"}, TOPIC_ID, 3, host="kafka", port=9092)
        found = read(METADATA, raw.METADATA, METADATA_VERSION, frame, RESPONSE_HEAD)
        (topic,) = found["topics"]
        assert [each["leader_id"] for each in topic["partitions"]] == [1, 2, 1]
        brokers, _ = read_racks(raw.METADATA, METADATA_VERSION, frame[RESPONSE_HEAD:])
        assert [(each.node_id, each.port, each.rack) for each in brokers] == [
            (1, 9092, "R1"),
            (2, 9093, "R2"),
        ]

    def test_the_stub_names_a_broker_in_each_rack(self) -> None:
        stub = SessionStub(STUB, 0, ("R1", "R2"))
        request = raw.frame(raw.request(raw.METADATA, 1, raw.array([]), "me", 5))
        response = stub._response(request)
        assert response[4:8] == (5).to_bytes(4)
        assert read_metadata(response[8:]).brokers == {1: STUB, 2: (STUB[0], 9093)}

    def test_the_stub_has_a_topic_with_many_partitions(self) -> None:
        stub = SessionStub(STUB, 0, ("R1", "R2"))
        response = stub._response(metadata_request(6, TOPIC_ID))
        assert response[4:8] == (6).to_bytes(4)
        found = read(METADATA, raw.METADATA, METADATA_VERSION, response, RESPONSE_HEAD)
        assert len(found["topics"][0]["partitions"]) == MANY


class TestCpu:
    @pytest.mark.parametrize("traffic", TRAFFICS, ids=lambda traffic: traffic.name)
    def test_each_gateway_does_what_its_column_says(self, traffic: zone_cpu.ZoneTraffic) -> None:
        """Only one of them writes its rack of two bytes, and all give the client the same."""
        sent, received = {}, {}
        with ExitStack() as stack:
            for name in MODES:
                inside = zone_cpu._inside(stack, name, traffic.exchanges)
                for number in range(1, 4):
                    frames = traffic.exchanges.frames(number)
                    _, sent[name], received[name] = inside.exchange(*frames)
        more = 2 if traffic.listed != connections.METADATA else 0
        base = sent[NO_RACK]
        assert sent == {name: base + (more if name == WRITTEN else 0) for name in MODES}
        assert len(set(received.values())) == 1

    def test_what_is_added_is_measured_for_each_gateway(self) -> None:
        found = zone_cpu.added(stage(), TRAFFICS[0])
        assert found.keys() == MODES.keys()
        assert found[NO_RACK] == [0.0]

    def test_what_is_added_counts_beside_the_whole_cpu(self) -> None:
        rounds = {name: [CpuWindow(each) for each in (90.0, 100.0, 120.0)] for name in MODES}
        rounds[AUDIT] = [CpuWindow(each) for each in (99.0, 100.0, 144.0)]
        more = {NO_RACK: [0.0] * 3, AGAIN: [0.0] * 3, AUDIT: [0.9, 1.0, 5.0]}
        more |= {WRITTEN: [4.0], REPLICA: [2.0], NAMED: [50.0]}
        rows = {row.name: row for row in zone_cpu._table(TRAFFICS[0], rounds, more, 0.5).rows}

        assert rows["in that without a rack: median"].values[AUDIT] == pytest.approx(1.1)
        assert rows["third quartile"].values[AUDIT] == pytest.approx(1.15)
        assert rows["added inside: median"].values[AUDIT] == 1.0
        assert rows["most of all repeats"].values[AUDIT] == 5.0
        audit = rows["CPU with what is added: audit"]
        assert (audit.values, audit.met) == ({AGAIN: 1.0, AUDIT: 1.01}, True)
        reads = rows["CPU with what is added: rack written"]
        assert (reads.values, reads.met) == ({WRITTEN: 1.04, REPLICA: 1.02}, False)


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


class TestReturns:
    @pytest.mark.parametrize(
        ("times", "longest"),
        [
            ([1.0, 9.5, 10.5, 13.0, 13.5], 2.5),
            ([1.0, 9.5, 13.0], 3.5),
            ([1.0], 13.0),
            ([], 4.0),
            ([11.0, 15.0], 3.0),
        ],
    )
    def test_a_gap_is_the_longest_time_without_a_record(self, times: list[float], longest: float) -> None:
        """Those before the failure do not count, unless they last until it."""
        assert zone_returns.gap(times, 10.0, 14.0) == longest

    def events(self, route: str, *gaps: float) -> list[dict[tuple[str, str], float]]:
        routes = (NO_RACK, OWN_RACK, WRITTEN)
        base = {(client, name): 50.0 for client in READERS for name in routes}
        return [base | {("librdkafka", route): gap} for gap in gaps]

    def test_a_client_is_held_against_itself_without_a_gateway(self) -> None:
        found = {
            "killed": self.events(WRITTEN, 100.0, 150.0, 200.0),
            "stopped": self.events(WRITTEN, 2000.0, 3100.0),
        }
        rows = {row.name: row for row in zone_returns.table(found).rows}
        assert rows["librdkafka, replica killed: median"].values == {
            NO_RACK: 50.0,
            OWN_RACK: 50.0,
            WRITTEN: 150.0,
        }
        more = rows["librdkafka, replica killed: more than the client by itself, median"]
        assert (more.values, more.met) == ({WRITTEN: 100.0}, True)
        assert rows["librdkafka, replica stopped: worst"].met is False
        assert rows["kafka-python, replica stopped: worst"].met is True


class TestOthers:
    def test_records_count_in_the_window_in_which_they_were_made(self) -> None:
        made = [int(1e9 * each) for each in (0.5, 1.0, 1.5, 2.0)]
        records = [(each + 1_000_000 * number, each) for number, each in enumerate(made, 1)]
        assert zone_others.figures(records, 1.0, 2.0) == {"p50": 3.0, "p99": 3.0, "worst": 3.0}
        assert zone_others.figures(records, 5.0, 6.0) == {}

    def test_what_is_added_is_that_of_the_same_failure(self) -> None:
        def window(p99: float) -> dict[str, float]:
            return {"p50": 1.0, "p99": p99, "worst": 9.0, "crossed": 2.0}

        clients = zone_returns.FOLLOWERS
        found = {
            KILLED: {each: {BEFORE: window(5.0), KILLED: window(7.0)} for each in clients},
            STOPPED: {each: {BEFORE: window(6.0), STOPPED: {"crossed": 0.0}} for each in clients},
        }
        rows = {row.name: row.values for row in zone_others.table(found, 8.0).rows}
        assert rows["librdkafka: p99"] == {BEFORE: 5.0, KILLED: 7.0}
        assert rows["librdkafka: added to p99"] == {KILLED: 2.0}
        assert rows["librdkafka: records from other zones"] == {BEFORE: 2.0, KILLED: 2.0, STOPPED: 0.0}


def test_a_reader_notes_when_each_record_was_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stdin = (tmp_path / "stdin").open("w+")

    def values() -> Iterator[bytes | None]:
        yield None
        yield (5).to_bytes(8) + b"more"
        yield (6).to_bytes(8)
        monkeypatch.setattr("select.select", lambda *_: ([stdin], [], []))
        yield None

    monkeypatch.setattr("select.select", lambda *_: ([], [], []))
    assert [made for _, made in zone_reader.read(values(), 0.0)] == [5, 6]
    assert capsys.readouterr().out == "ready\n"
    stdin.close()


@pytest.mark.integration
@pytest.mark.soak
def test_a_reader_and_a_gateway_in_front_of_brokers_in_racks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zone_bytes, "FOLLOWERS", {"librdkafka": zone_bytes.FOLLOWERS["librdkafka"]})
    monkeypatch.setattr(zone_bytes, "OTHERS", {})
    monkeypatch.setattr(zone_latency, "RATES", {100: 1.0})
    monkeypatch.setattr(zone_returns, "WATCHED", {"killed": 4.0})
    with zone_brokers.cluster() as brokers:
        (crossed,) = zone_bytes.run(stage(), brokers)
        (latency,) = zone_latency.run(stage(), brokers)
        (returns,) = zone_returns.run(stage(), brokers, 0.0)
    first = crossed.rows[0].values
    assert first[AUDIT] > 0
    assert first[WRITTEN] == 0
    assert all(row.values[GATEWAY] > 0 for row in latency.rows)
    assert {row.name.partition(":")[0] for row in returns.rows} == {
        f"{client}, replica killed" for client in READERS
    }
    assert all(value > 0 for row in returns.rows[:2] for value in row.values.values())


@pytest.mark.integration
@pytest.mark.soak
def test_the_stub_is_forwarded_by_each_gateway() -> None:
    found = zone_cpu.measured(stage(seconds=4.0), TRAFFICS[0])
    assert found.keys() == MODES.keys()
    assert all(window.cpu > 0 for windows in found.values() for window in windows)
