"""The table of captures in Spark has the right rows for real captures, and for parts of them."""

import json
import re
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest

from replay.capture.files.sources import expand
from replay.capture.kafka.exchange import Exchange
from replay.capture.packets.tcp import EVERYTHING, Filter
from replay.cli import main
from replay.source.columns import COLUMNS, EXCHANGES, batches
from replay.source.kafka_pcap import _events
from tests.replay.truths import CAPTURES, truth

NAMES = sorted(path.stem for path in CAPTURES.glob("*.truth.json"))
DOCS = Path(__file__).parents[3] / "docs" / "reference" / "columns.md"


def rows(*captures: Path, keep: Filter = EVERYTHING) -> list[dict[str, Any]]:
    events = _events(expand(map(str, captures)), keep)
    return [row for batch in batches(events) for row in batch.to_pylist()]


@pytest.mark.parametrize("name", [name.removesuffix(".truth") for name in NAMES])
def test_a_capture_has_the_rows_that_its_truth_tells(name: str) -> None:
    found, true = rows(CAPTURES / f"{name}.pcap"), truth(name)
    fetches = [row for row in found if row["api"] == "Fetch"]
    paired = [row for row in found if row["request_bytes"] and row["response_bytes"]]

    assert len(paired) == true["totals"]["exchanges_paired"]
    assert len({row["connection"] for row in found}) <= true["totals"]["connections"]
    assert sum(row["request_bytes"] for row in fetches) == true["fetch"]["fetch_request_bytes"]
    assert sum(row["response_bytes"] or 0 for row in fetches) == true["fetch"]["fetch_response_bytes"]
    assert sum(row["partitions"] for row in fetches) == true["fetch"]["partitions_requested"]
    assert all(row["seconds"] >= 0 for row in paired)
    assert all((row["error"] is None) == (not row["error_code"]) for row in found)


@pytest.mark.parametrize("name", ["many-clients-any", "librdkafka-midstream"])
def test_the_sums_by_connection_and_api_are_those_of_inspect(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", str(CAPTURES / f"{name}.pcap"), "--json"]) == 0
    told = {
        (connection["connection"], api.removeprefix("response to an unseen request")): tuple(
            of_api[figure] for figure in ("requests", "request_bytes", "responses", "response_bytes")
        )
        for connection in json.loads(capsys.readouterr().out)["connections"]
        for api, of_api in connection["apis"].items()
    }
    sums: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    for row in rows(CAPTURES / f"{name}.pcap"):
        figures = sums[row["connection"], row["api"] or ""]
        for place, column in ((0, "request_bytes"), (2, "response_bytes")):
            figures[place] += row[column] is not None
            figures[place + 1] += row[column] or 0

    assert {key: tuple(figures) for key, figures in sums.items()} == told


def test_errors_have_kafkas_names_in_every_api() -> None:
    found = rows(CAPTURES / "aiokafka-gateway.pcap", CAPTURES / "many-clients-any.pcap")

    assert Counter((row["api"], row["error"]) for row in found if row["error"]) == {
        ("JoinGroup", "MEMBER_ID_REQUIRED"): 9,
        ("Heartbeat", "REBALANCE_IN_PROGRESS"): 4,
        ("JoinGroup", "COORDINATOR_LOAD_IN_PROGRESS"): 2,
        ("FindCoordinator", "COORDINATOR_NOT_AVAILABLE"): 2,
        ("ApiVersions", "UNSUPPORTED_VERSION"): 2,
    }


def test_a_part_that_was_not_captured_is_null() -> None:
    [row] = [row for row in rows(CAPTURES / "librdkafka-midstream.pcap") if row["api"] is None]

    unknown = ("seconds", "version", "correlation_id", "request_bytes", "partitions", "error_code", "error")
    assert {row[name] for name in unknown} == {None}
    assert row["response_bytes"] > 0
    assert row["time"] is not None


def test_the_parts_of_a_capture_have_all_connections_once() -> None:
    capture = CAPTURES / "many-clients-any.pcap"
    parts = [rows(capture, keep=Filter(parts=3, part=part)) for part in range(3)]
    connections = [{row["connection"] for row in part} for part in parts]

    assert all(connections)
    assert sum(map(len, connections)) == len(set.union(*connections))
    assert sorted(repr(row) for part in parts for row in part) == sorted(map(repr, rows(capture)))


@pytest.mark.parametrize(
    ("api_key", "version", "request_frame"),
    [(1, 12, bytes(9)), (1, 99, bytes.fromhex("0000000a 0001 0063 00000001 ffff")), (3, 1, b"")],
)
def test_what_can_not_be_parsed_is_null(api_key: int, version: int, request_frame: bytes) -> None:
    broken = Exchange(
        connection="c",
        client="a:1",
        broker="b:2",
        number=0,
        client_id="",
        software="",
        api_key=api_key,
        api_version=version,
        correlation_id=1,
        request_time=1000,
        response_time=2000,
        request_bytes=9,
        response_bytes=9,
        request=request_frame,
        response=[bytes(9)],
    )
    [batch] = batches([broken])
    [row] = batch.to_pylist()

    assert batch.schema == EXCHANGES
    assert (row["partitions"], row["error_code"], row["seconds"]) == (None, None, 1e-6)


def test_every_column_is_explained() -> None:
    section = DOCS.read_text(encoding="utf-8").partition("## `kafka-pcap`")[2]

    assert re.findall(r"^- `(\w+)` \(", section, re.MULTILINE) == [one.name for one in COLUMNS]
    assert all(one.meaning for one in COLUMNS)
