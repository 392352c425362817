"""What floors of min_bytes and max_wait_ms would save: the model, from hand-made frames and real captures."""

import dataclasses
import json
from typing import Any

import pytest

from proxy.__main__ import main
from proxy.features.limits import options as gateway
from replay.capture.kafka.exchange import Exchange
from replay.measure import options
from replay.measure.floors import NO_FLOORS, FloorLog, Floors
from replay.report.floors import fetches_left
from replay.report.model import Report
from replay.simulate.outcome import Outcome, read_fetch
from tests.frames import entry, fetch, fetch_response
from tests.replay.tables import CAPTURES

SECOND = 1_000_000_000
NOTHING = {"fewer": 0, "saved_bytes": 0, "gathered_bytes": 0, "later": 0, "later_at_most_ms": 0}


class Play:
    """The exchanges of one connection, and the `FloorLog` that reads them."""

    def __init__(self, floors: Floors, version: int = 12) -> None:
        self.version = version
        self.log = FloorLog(floors)
        self.bytes_without_records = 0

    def fetch(self, records: int, times: int = 1, *, answered: bool = True, **fields: Any) -> None:
        """Add fetches that get this many bytes of records, and that list one partition."""
        asked = fetch(self.version, ("t", 0), **{"max_wait_ms": 500, "min_bytes": 1} | fields)
        told = fetch_response(self.version, ("t", [entry(0, 9, records=b"x" * records)]))
        for _ in range(times):
            sizes = len(asked), len(told) if answered else 0
            exchange = Exchange("c", "a:1", "b:2", 0, "", "", 1, self.version, 1, 5, 9, *sizes)
            exchange.request, exchange.response = asked, [told] if answered else []
            self.bytes_without_records += sum(sizes) - records
            outcome = Outcome(exchange)
            read_fetch(outcome, None)
            self.log.add(outcome)

    def figures(self, seconds: float) -> dict[str, int]:
        """Return the figures, if the connection was captured for this time."""
        ((version, figures),) = self.log.by_version(round(seconds * SECOND)).items()
        assert version == self.version
        return dataclasses.asdict(figures)


@pytest.mark.parametrize("version", [4, 7, 12, 18])
def test_fetches_end_when_they_have_enough(version: int) -> None:
    """100 KB come in 10 s. A fetch of 1,000 bytes is full after 0.1 s."""
    play = Play(Floors(min_bytes=1_000, max_wait_ms=2_000), version)
    play.fetch(100, 1_000)
    assert play.figures(10) == {
        "fewer": 900,
        "saved_bytes": play.bytes_without_records * 9 // 10,
        "gathered_bytes": 100_000,
        "later": 50 * 100_000,
        "later_at_most_ms": 2_000,
    }


def test_the_longest_wait_is_that_of_the_gateway() -> None:
    assert options.MAX_WAIT == gateway.MAX_WAIT


def test_fetches_end_when_they_have_waited() -> None:
    """100 KB come in 10 s, and 1 MB would be enough."""
    play = Play(Floors(min_bytes=1_000_000, max_wait_ms=2_000))
    play.fetch(100, 1_000)
    figures = play.figures(10)
    assert (figures["fewer"], figures["later"]) == (995, 1_000 * 100_000)


def test_without_a_longer_wait_the_clients_own_counts() -> None:
    play = Play(Floors(min_bytes=1_000_000))
    play.fetch(100, 1_000)
    assert (play.figures(10)["fewer"], play.figures(10)["later_at_most_ms"]) == (980, 500)


def test_a_longer_wait_alone_costs_no_latency() -> None:
    """Each response with records stays, and an empty one comes every 2 s."""
    play = Play(Floors(max_wait_ms=2_000))
    play.fetch(100, 3)
    play.fetch(0, 17)
    assert play.figures(10) == NOTHING | {
        "fewer": 15,
        "saved_bytes": play.bytes_without_records * 15 // 20,
    }
    busy = Play(Floors(max_wait_ms=2_000))
    busy.fetch(100, 50)
    assert busy.figures(10) == NOTHING


def test_there_are_never_more_fetches() -> None:
    """The client fetches less often than it waits."""
    play = Play(Floors(min_bytes=1_000, max_wait_ms=1_000))
    play.fetch(100, 3)
    assert play.figures(10) == NOTHING


@pytest.mark.parametrize(
    "fields",
    [
        {"max_wait_ms": 0},
        {"min_bytes": 0},
        {"max_wait_ms": 2_000, "min_bytes": 1_000},
        {"max_wait_ms": 9_000},
        {"version": 10, "values": {"log_start_offset": 0}},
    ],
    ids=["at once", "whatever there is", "asks for more", "waits for long", "kafka-go"],
)
def test_fetches_that_the_gateway_leaves_as_they_are(fields: dict[str, Any]) -> None:
    play = Play(Floors(min_bytes=1_000, max_wait_ms=1_000), fields.pop("version", 12))
    play.fetch(100, 1_000, **fields)
    assert play.figures(10) == NOTHING


def test_a_partition_gives_no_more_than_its_limit() -> None:
    play = Play(Floors(min_bytes=1_000_000, max_wait_ms=5_000))
    play.fetch(100, 1_000, values={"partition_max_bytes": 500})
    assert play.figures(10)["fewer"] == 800


def test_what_is_not_counted() -> None:
    """Other fetches than consumers', those without a response, and everything without floors."""
    play = Play(Floors(min_bytes=1_000))
    play.fetch(100, replica_id=1)
    play.fetch(100, answered=False)
    without = Play(NO_FLOORS)
    without.fetch(100)
    assert (play.log.by_version(SECOND), without.log.by_version(SECOND)) == ({}, {})


@pytest.mark.parametrize(
    ("fetches", "seconds", "wait", "filled", "left"),
    [(100, 10, 0.5, 0, 20), (100, 10, 5, 30, 30), (10, 10, 0.5, 0, 10), (10, 0, 0.5, 0, 0)],
)
def test_how_many_fetches_are_left(
    fetches: int, seconds: float, wait: float, filled: float, left: float
) -> None:
    assert fetches_left(fetches, seconds, wait=wait, filled=filled) == left


def reported(*options: str, capsys: pytest.CaptureFixture[str]) -> Report:
    main(["replay", "measure", str(CAPTURES / "many-clients-any.pcap"), "--json", *options])
    found: Report = json.loads(capsys.readouterr().out)
    return found


def test_real_captures(capsys: pytest.CaptureFixture[str]) -> None:
    """The rows are those of the clients, and add up. Everything else in the report stays."""
    made = reported("--fetch-min-bytes", "64KiB", "--fetch-max-wait", "1s", capsys=capsys)
    without = reported(capsys=capsys)
    found = made.pop("floors")
    assert (made, "floors" in without) == (without, False)
    assert (found["fetch_min_bytes"], found["fetch_max_wait_seconds"]) == (65_536, 1.0)
    assert [row["client_id"] for row in found["by_client"]] == [row["client_id"] for row in made["by_client"]]
    for figure in ("requests", "fewer_requests", "saved_bytes"):
        assert found[figure] == sum(row[figure] for row in found["by_client"])
    assert found["requests"] == made["fetch"]["actual"]["requests"]
    rows = {row["client_id"]: row for row in found["by_client"]}
    assert rows["kafkago"]["fewer_requests"] == 0
    # The clients fetch ten times a second, and records come seldom: each fetch waits for its whole time.
    assert (rows["java"]["requests"], rows["java"]["fewer_requests"]) == (49, 43)
    assert rows["java"]["later_at_most_seconds"] == 1.0
