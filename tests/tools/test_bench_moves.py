"""The benchmark of moving leaders finds the gaps in captured frames, and rates them correctly."""

import struct
from pathlib import Path

import pytest
from rich.console import Console

from proxy.protocol.api import ApiKey
from replay.capture.kafka.exchange import Exchange
from tests.model.wire import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
    TopicData,
    current_leader_tag,
    encode_request,
    encode_response,
)
from tests.replay.capture.crafting import RAW, Talk, pcap
from tools.bench import moves
from tools.bench.figures import FOLLOW
from tools.bench.gaps import gaps, read
from tools.bench.moves import Found, MovesWindow
from tools.bench.moving import VERSIONS
from tools.bench.stage import BenchStage
from tools.kafka import jars
from tools.kafka.raw import array, blob, compact_array, compact_string, frame, request, string, uvarint

TOPIC, ID = "moving", bytes(range(16))
OLD, NEW = "10.0.0.2:9092", "10.0.0.3:9092"
PRODUCE, FETCH = ApiKey.PRODUCE, ApiKey.FETCH
NONE, NOT_LEADER, FENCED, UNKNOWN = 0, 6, 74, 3


def produce_request(
    version: int, partitions: list[int], client_id: str = "me", correlation_id: int = 1
) -> bytes:
    if version < 9:
        entries = [struct.pack(">i", at) + blob(b"records") for at in partitions]
        body = string(None) + struct.pack(">hi", -1, 1000) + array([string(TOPIC) + array(entries)])
    else:
        key = ID if version >= 13 else compact_string(TOPIC)
        entries = [struct.pack(">i", at) + uvarint(8) + b"records" + b"\0" for at in partitions]
        topics = compact_array([key + compact_array(entries) + b"\0"])
        body = compact_string(None) + struct.pack(">hi", -1, 1000) + topics + b"\0"
    return frame(request(PRODUCE, version, body, client_id, correlation_id))


def produce_response(version: int, errors: dict[int, int], correlation_id: int = 1) -> bytes:
    fixed = {at: struct.pack(">ihqqq", at, error, -1, -1, 0) for at, error in errors.items()}
    head = struct.pack(">i", correlation_id)
    if version < 9:
        wrong = array([struct.pack(">i", 0) + string("a record")]) + string("why") if version >= 8 else b""
        body = array([string(TOPIC) + array([entry + wrong for entry in fixed.values()])])
        return frame(head + body + bytes(4))
    key = ID if version >= 13 else compact_string(TOPIC)
    wrong = compact_array([struct.pack(">i", 0) + compact_string("a record") + b"\0"]) + compact_string("why")
    leader = b"\1\0" + uvarint(9) + struct.pack(">iib", 3, 8, 0) if version >= 10 else b"\0"
    body = compact_array([key + compact_array([entry + wrong + leader for entry in fixed.values()]) + b"\0"])
    return frame(head + b"\0" + body + bytes(4) + b"\0")


def fetch_request(version: int, partitions: list[int]) -> bytes:
    places = tuple(FetchPartition(partition=at, fetch_offset=5) for at in partitions)
    topics = (FetchTopic(topic=TOPIC, topic_id=ID, partitions=places),)
    return frame(encode_request(FetchRequest(version=version, topics=topics)))


def fetch_response(version: int, errors: dict[int, int]) -> bytes:
    leader = (current_leader_tag(3, 8),) if version >= 12 else ()
    places = tuple(
        PartitionData(partition_index=at, error_code=error, tags=leader if error else ())
        for at, error in errors.items()
    )
    topics = (TopicData(topic=TOPIC, topic_id=ID, partitions=places),)
    return frame(encode_response(FetchResponse(version=version, correlation_id=1, topics=topics)))


def exchange(
    broker: str, asked: bytes, told: bytes, *, begins: float, ends: float, missing: int = 0
) -> Exchange:
    """Build an exchange from the bytes of a request and a response. The times are in ms."""
    return Exchange(
        connection=f"me > {broker}",
        client="me",
        broker=broker,
        number=0,
        client_id="me",
        software="",
        api_key=int.from_bytes(asked[4:6]),
        api_version=int.from_bytes(asked[6:8]),
        correlation_id=1,
        request_time=round(begins * 1e6),
        response_time=round(ends * 1e6),
        request_bytes=len(asked),
        response_bytes=len(told),
        request=asked,
        response=[told[:7], told[7:]],
        request_missing=missing,
    )


def produced(broker: str, begins: float, ends: float, **errors: int) -> Exchange:
    """Build a produce exchange. `errors` gives the error codes of its partitions p0, p1 and so on."""
    found = {int(name[1:]): error for name, error in errors.items()}
    asked, told = produce_request(13, list(found)), produce_response(13, found)
    return exchange(broker, asked, told, begins=begins, ends=ends)


class TestGaps:
    @pytest.mark.parametrize("version", [7, 8, 9, 10, 13])
    def test_a_produce_begins_it_with_its_error_and_ends_it_at_the_new_leader(self, version: int) -> None:
        failed = produce_response(version, {0: NONE, 1: NOT_LEADER})
        first = exchange(OLD, produce_request(version, [0, 1]), failed, begins=0, ends=10)
        again = produce_request(version, [1]), produce_response(version, {1: NONE})
        second = exchange(NEW, *again, begins=12.5, ends=14)

        assert gaps([second, first], PRODUCE) == [2.5]
        assert gaps([first, second], FETCH) == []

    @pytest.mark.parametrize("error", [NOT_LEADER, FENCED])
    @pytest.mark.parametrize("version", [4, 7, 11, 12, 13, 16, 18])
    def test_a_fetch_begins_it_with_either_error(self, version: int, error: int) -> None:
        failed = fetch_response(version, {0: NONE, 1: error, 2: error})
        first = exchange(OLD, fetch_request(version, [0, 1, 2]), failed, begins=0, ends=10)
        later = exchange(NEW, fetch_request(version, [2]), fetch_response(version, {}), begins=110, ends=111)
        at_once = exchange(NEW, fetch_request(version, [1]), fetch_response(version, {}), begins=11, ends=12)

        assert gaps([first, later, at_once], FETCH) == [1.0, 100.0]

    def test_another_error_begins_none(self) -> None:
        assert gaps([produced(OLD, 0, 10, p1=UNKNOWN), produced(NEW, 11, 12, p1=NONE)], PRODUCE) == []
        fenced = [produced(OLD, 0, 10, p1=FENCED), produced(NEW, 11, 12, p1=NONE)]
        assert gaps(fenced, PRODUCE) == []

    def test_the_same_broker_again_ends_none_and_its_next_error_begins_none(self) -> None:
        found = [
            produced(OLD, 0, 10, p1=NOT_LEADER),
            produced(OLD, 20, 30, p1=NOT_LEADER),
            produced(NEW, 50, 60, p1=NONE),
        ]
        assert gaps(found, PRODUCE) == [40.0]

    def test_an_error_that_comes_after_the_client_has_turned_begins_none(self) -> None:
        found = [
            produced(OLD, 0, 10, p1=NOT_LEADER),
            produced(OLD, 1, 13, p1=NOT_LEADER),
            produced(NEW, 12, 14, p1=NONE),
            produced(NEW, 200, 201, p1=NONE),
        ]
        assert gaps(found, PRODUCE) == [2.0]

    def test_a_leader_that_comes_back_before_the_client_has_turned_ends_none(self) -> None:
        found = [
            produced(OLD, 0, 10, p1=NOT_LEADER),
            produced(OLD, 20, 30, p1=NONE),
            produced(NEW, 50, 60, p1=NONE),
        ]
        assert gaps(found, PRODUCE) == []

    def test_leaders_that_move_back_give_another_one(self) -> None:
        found = [
            produced(OLD, 0, 10, p1=NOT_LEADER),
            produced(NEW, 11, 20, p1=NOT_LEADER),
            produced(OLD, 23, 24, p1=NONE),
        ]
        assert gaps(found, PRODUCE) == [1.0, 3.0]

    def test_what_never_ends_or_is_not_whole_is_none(self) -> None:
        assert gaps([produced(OLD, 0, 10, p1=NOT_LEADER)], PRODUCE) == []
        asked, told = produce_request(13, [1]), produce_response(13, {1: NOT_LEADER})
        cut = exchange(OLD, asked, told, begins=0, ends=10, missing=1)
        assert gaps([cut, produced(NEW, 11, 12, p1=NONE)], PRODUCE) == []

    def test_a_capture_gives_the_exchanges_of_the_clients_that_are_asked_for(self, tmp_path: Path) -> None:
        talks = []
        for port, client_id in ((50_000, "moves-producer"), (50_001, "broker-2-fetcher-0")):
            talk = Talk(client=("10.0.0.1", port)).open()
            talk.segment(produce_request(13, [1], client_id))
            talk.segment(produce_response(13, {1: NOT_LEADER}), broker=True)
            talks += talk.frames
        file = tmp_path / "moves.pcap"
        file.write_bytes(pcap(talks, RAW))

        (found,) = read(file, frozenset({9092}), frozenset({"moves-producer"}))

        assert found.broker == OLD
        assert b"".join(found.response) == produce_response(13, {1: NOT_LEADER})


class TestMoves:
    def test_the_slowest_record_is_that_of_each_move(self) -> None:
        records = [(5, 90), (10, 2_000_000), (19, 3_000_000), (20, 1_000_000), (99, 4_000_000)]
        assert moves.worst(records, [10, 20]) == [3.0, 4.0]
        assert moves.worst([], [10]) == [0.0]

    @pytest.mark.parametrize(
        ("text", "choice"),
        [
            ("usage: [--follow-leader off|fetch] [--workers N]\n", "fetch"),
            ("usage: [--workers N]\n  --follow-leader off|fetch|idempotent\n", "idempotent"),
            ("  --listen HOST:PORT\n", ""),
        ],
    )
    def test_the_gateway_says_whether_it_can_follow(self, text: str, choice: str) -> None:
        assert moves.follow_choice(text) == choice

    def windows(self, *gaps_of: float, fetch: float = 20.0, worst: float = 150.0) -> list[MovesWindow]:
        return [MovesWindow({"produce": [gap, gap], "fetch": [fetch]}, [worst, worst]) for gap in gaps_of]

    def test_a_client_that_is_told_the_leader_is_held_against_itself_without_gateway(self) -> None:
        rounds = {"direct": self.windows(10.0, 20.0, 30.0), "gateway": self.windows(11.0, 21.0, 60.0)}
        rows = {row.name.partition(" 4.3.0")[2]: row for row in moves.table(Found({"Java": rounds})).rows}

        assert rows[", produce: gap, median"].values == {"direct": 20.0, "gateway": 21.0}
        assert rows[", produce: gap, longest"].values == {"direct": 30.0, "gateway": 60.0}
        assert rows[", produce: median gap in the direct one's"].values == {"gateway": 1.1}
        assert rows[", produce: median gap in the direct one's"].met is True
        assert rows[", produce: gap, median"].met is None
        assert rows[": slowest record of a move, median"].values == {"direct": 150.0, "gateway": 150.0}

    def test_where_the_gateway_follows_its_own_gap_has_a_limit(self) -> None:
        rounds = {
            "direct": self.windows(100.0),
            "gateway": self.windows(101.0),
            FOLLOW: self.windows(101.0, fetch=71.0),
        }
        found = Found({"aiokafka": rounds}, follows=("fetch",))
        rows = {row.name.partition(", ")[2]: row for row in moves.table(found).rows}

        assert rows["produce: gap, median"].limit is None
        assert (rows["fetch: gap, median"].limit, rows["fetch: gap, median"].met) == (10.0, False)
        assert (rows["fetch: gap, longest"].limit, rows["fetch: gap, longest"].met) == (70.0, False)

    def test_gaps_that_were_not_seen_are_no_figures(self) -> None:
        quiet = [MovesWindow({"produce": [1.0], "fetch": []}, [150.0])]
        table = moves.table(Found({"aiokafka": {"direct": quiet}}))
        assert [row.values for row in table.rows[2:4]] == [{}, {}]
        assert table.notes == ["aiokafka, fetch, direct: a window without any error to turn away from."]

        unseen = [MovesWindow({"produce": [], "fetch": []}, [150.0])]
        table = moves.table(Found({"aiokafka": {"direct": unseen}}))
        assert table.notes == ["Gaps: there is no tcpdump here, or this user may not use it."]
        assert table.rows[-1].values == {"direct": 150.0}

    def test_clients_that_can_not_run_are_left_out_and_named(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fetch(version: str, *, tools: bool) -> str:
            raise RuntimeError(f"{version} could not be fetched, {tools=}")

        monkeypatch.setenv("PATH", str(tmp_path))
        monkeypatch.setattr(jars, "classpath", fetch)
        found = Found()
        stage = BenchStage(seconds=1, quick=False, console=Console(quiet=True))

        assert moves._clients(stage, found) == ["librdkafka", "aiokafka", "kafka-python"]
        assert found.notes == [
            "Java: left out, its tools could not be downloaded.",
            "Sarama: left out, there is no go here.",
            "franz-go: left out, there is no go here.",
        ]
        assert moves._clients(BenchStage(seconds=1, quick=True, console=Console(quiet=True)), found) == [
            "librdkafka"
        ]

    def test_each_client_has_a_version(self) -> None:
        assert all(version()[0].isdigit() for version in VERSIONS.values())

    def test_without_tcpdump_there_is_no_capture(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("PATH", str(tmp_path))
        with moves.tcpdump(tmp_path / "moves.pcap", frozenset({9092})) as captures:
            assert not captures

        refused = tmp_path / "tcpdump"
        refused.write_text("#!/bin/sh\necho 'tcpdump: lo: you may not' >&2\nexit 1\n")
        refused.chmod(0o755)
        with moves.tcpdump(tmp_path / "moves.pcap", frozenset({9092})) as captures:
            assert not captures


@pytest.mark.integration
@pytest.mark.soak
def test_leaders_move_under_a_client_by_each_route(tmp_path: Path) -> None:
    with moves.tcpdump(tmp_path / "moves.pcap", frozenset({9092})) as captures:
        pass
    with BenchStage(seconds=1, quick=True, console=Console(quiet=True)) as stage:
        found = moves.measured(stage)

    ((client, rounds),) = found.rounds.items()
    assert client == "librdkafka"
    assert set(rounds) == {"direct", "gateway"}
    for (window,) in rounds.values():
        assert len(window.worst) == moves.QUICK_MOVES
        assert all(took > 0 for took in window.worst)
        if captures:
            assert window.gaps["produce"]
            assert all(gap >= 0 for each in window.gaps.values() for gap in each)
