"""The report of `replay drive` in three forms: JSON, a table of figures, and text for a terminal."""

import csv
import json
from io import StringIO

import pytest
from rich.console import Console

from replay.drive.options import OffsetPolicy
from replay.drive.report import (
    DriveReport,
    figures,
    left_out_rows,
    render,
    render_plan,
    to_csv,
)
from replay.drive.saving import GatewayCounters, measured
from replay.drive.script import LeftOut
from replay.drive.tally import DriveTotals
from replay.protocol.errors import Errors
from replay.protocol.fetches import read_fetch
from tests.frames import entry, fetch_response


def tally() -> DriveTotals:
    counted = DriveTotals()
    frame = fetch_response(12, ("t", [entry(0, 5, records=bytes(90)), entry(1, error=3)]))
    for number in range(4):
        counted.sent(1, 1000)
        counted.answered(1, len(frame), 0.001 * (number + 1))
        counted.fetched(read_fetch(12, 0, [frame]))
    counted.fetched(read_fetch(12, 0, [fetch_response(12, error_code=71)]))
    counted.sent(3, 50)
    return counted


def report() -> DriveReport:
    counted = GatewayCounters(broker_request=400, broker_response=600, broker_records=360)
    direct = DriveTotals()
    direct.sent(1, 4000)
    direct.answered(1, 6000, 0.1)
    direct.of(1).record_bytes = 360
    return {
        "version": "1.2.3",
        "settings": {
            "target": "gate:19092",
            "against": "kafka:9092",
            "speed": "max",
            "rate": None,
            "connections": 1,
            "loop": 1,
            "offsets": OffsetPolicy.CLAMP.value,
            "read_to": "captured",
            "max_wait_ms": 0,
            "min_bytes": None,
        },
        "connections": 1,
        "captured_seconds": 10.0,
        "seconds": 2.5,
        "planned": 6,
        "sent": 5,
        "lost": {"target": 1, "against": 0},
        "behind_seconds": 1.5,
        "left_out": left_out_rows({LeftOut(11, "a write; --include plays it"): 3}),
        "created_topics": {"made": 12},
        "missing_topics": {"gone": 7},
        "led_elsewhere": {"other": 9},
        "interrupted": False,
        "stopped_by": "",
        "left_out_ratio": 0.0,
        "stopped_at": None,
        "timed_out": False,
        "connection_errors": {"gate:19092: closed by the peer": 1},
        "figures": [
            *figures("capture", tally()),
            *figures("target", tally()),
            *figures("against", DriveTotals()),
        ],
        "saving": measured(counted, DriveTotals(), direct),
        "compare": None,
        "problems": ["a.pcap: 3 bytes after the last packet"],
    }


def printed(renderable: object, width: int = 100) -> str:
    out = StringIO()
    Console(file=out, width=width, highlight=False, no_color=True).print(renderable)
    return out.getvalue()


def test_figures_are_those_of_all_requests_and_of_each_api() -> None:
    everything, fetches, metadata = figures("target", tally())

    assert (everything["api"], fetches["api"], metadata["api"]) == ("all", "Fetch", "Metadata")
    assert (everything["sent"], fetches["sent"], metadata["sent"]) == (5, 4, 1)
    assert everything["request_bytes"] == 4050
    assert fetches["errors"] == {"71": 1}
    assert fetches["partition_errors"] == {"3": 4}
    assert fetches["record_bytes"] == 360
    assert fetches["latency_ms"] == {"p50": 2.0, "p90": 4.0, "p99": 4.0, "max": 4.0}


def test_the_saving_is_of_the_direct_bytes() -> None:
    saving = report()["saving"]

    assert saving is not None
    assert (saving["saved_bytes"], saving["saved_ratio"]) == (9000, 0.9)


@pytest.mark.parametrize(("count", "words"), [(1, "1 time: gate"), (2, "2 times: gate")])
def test_an_error_is_told_as_often_as_it_came(count: int, words: str) -> None:
    made = report()
    made["connection_errors"] = {"gate:19092: closed by the peer": count}

    assert words in printed(render(made))


def test_the_time_at_which_a_stopped_run_goes_on_is_told_exactly() -> None:
    made = report()
    made["stopped_at"] = 360_000.000708

    assert "Stopped 4 d 4 h into the capture: --from 360000.000708 goes on" in printed(render(made))


@pytest.mark.parametrize(("connections", "line"), [(1, "target sent 2.5 times the captured"), (3, "")])
def test_more_record_bytes_than_captured_are_told_in_one_line(connections: int, line: str) -> None:
    made = report()
    made["settings"]["connections"] = connections
    made["settings"]["loop"] = 1
    for row in made["figures"]:
        if row["side"] == "target":
            row["record_bytes"] = row["record_bytes"] * 5 // 2

    assert line in printed(render(made))
    assert ("the captured record bytes" in printed(render(made))) is bool(line)


def test_the_report_is_json() -> None:
    assert json.loads(json.dumps(report())) == report()


def test_the_table_has_a_row_for_each_side_and_api() -> None:
    rows = list(csv.DictReader(StringIO(to_csv(report()))))

    assert [(row["side"], row["api"]) for row in rows] == [
        ("capture", "all"),
        ("capture", "Fetch"),
        ("capture", "Metadata"),
        ("target", "all"),
        ("target", "Fetch"),
        ("target", "Metadata"),
        ("against", "all"),
    ]
    assert {row["seconds"] for row in rows[:3]} == {"10.0"}
    assert {row["seconds"] for row in rows[3:]} == {"2.5"}
    assert rows[4] == {
        "side": "target",
        "api": "Fetch",
        "sent": "4",
        "answered": "4",
        "request_bytes": "4000",
        "response_bytes": rows[1]["response_bytes"],
        "record_bytes": "360",
        "partitions_answered": "8",
        "failed": "5",
        "errors": "71:1",
        "partition_errors": "3:4",
        "unreadable": "0",
        "latency_ms_p50": "2.0",
        "latency_ms_p90": "4.0",
        "latency_ms_p99": "4.0",
        "latency_ms_max": "4.0",
        "seconds": "2.5",
    }


def test_a_reader_is_told_all_of_it() -> None:
    text = printed(render(report()))

    for told in (
        "5 of 6 requests played at gate:19092 and kafka:9092, as fast as responses came, in 2.5 s",
        "error 71 INVALID_FETCH_SESSION_EPOCH 1 1 0",
        "partitions with 3 UNKNOWN_TOPIC_OR_PARTITION 4 4 0",
        "Topics with partitions that another broker of the target leads (left out of fetches): other",
        "90.0 % of fetch bytes saved, as measured: 1.00 kB between gateway and broker",
        "10.0 kB directly",
        "3 JoinGroup: a write; --include plays it",
        "gone",
        "Topics created: made (12 partitions)",
        "gate:19092: closed by the peer",
        "Without a response at target: 1",
        "1.5 s behind",
        "a.pcap: 3 bytes after the last packet",
    ):
        assert told in " ".join(text.split()), told


def test_errors_of_every_api_stand_first_with_how_many_failed() -> None:
    group = DriveTotals()
    for _ in range(27):
        group.sent(12, 60)
        group.answered(12, 20, 0.001)
        group.failed(12, Errors((25,)))
    group.sent(13, 60)
    group.answered(13, 20, 0.001)
    group.failed(13, Errors((), (25, 16)))
    told = report()
    told["figures"] = [*figures("capture", DriveTotals()), *figures("target", group)]

    lines = [" ".join(line.split()) for line in printed(render(told)).splitlines()]

    assert lines[2] == "Responses with errors at target: 27 of 27 Heartbeat, 1 of 1 LeaveGroup"
    at = lines.index("Heartbeat")
    assert lines[at + 1 : at + 4] == ["answered 27", "with errors 27", "error 25 UNKNOWN_MEMBER_ID 0 27"]
    at = lines.index("LeaveGroup")
    assert lines[at + 3 : at + 5] == [
        "entries with 16 NOT_COORDINATOR 0 1",
        "entries with 25 UNKNOWN_MEMBER_ID 0 1",
    ]


def test_names_of_peers_are_no_markup_and_no_control() -> None:
    hostile = report()
    hostile["missing_topics"] = {"[red]x\x1b[2J": 1}

    assert "[red]x\\x1b[2J" in printed(render(hostile))


def test_it_fits_a_narrow_terminal() -> None:
    assert all(len(line) <= 80 for line in printed(render(report()), 80).splitlines())
    assert "Fetch" not in printed(render(report()), 80).splitlines()[0]


def test_a_dry_run_says_what_would_go() -> None:
    planned = report()
    planned["planned"], planned["settings"]["connections"] = 18, 3

    text = " ".join(
        printed(render_plan(planned, {("Fetch", 16): (5, 1234), ("Metadata", 12): (1, 40)})).split()
    )

    assert text.startswith("Would send 18 requests: 1 connection, captured in 10.0 s, 3 times")
    assert "Fetch 16 5 1.23 kB Metadata 12 1 40 B" in text
    assert "Nothing was sent" in text
