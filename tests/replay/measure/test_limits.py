"""Responses above their limit and starving partitions are found, in hand-made frames and in real captures."""

import dataclasses
from typing import Any

import pytest

from replay.capture.kafka.exchange import Exchange
from replay.measure.limits import NO_LIMIT, WORST, LimitLog
from replay.measure.report import About
from replay.measure.rows import RowFilter
from replay.simulate.engine import Engine
from tests.frames import entry, fetch, fetch_response
from tests.replay.tables import CAPTURES, NO_FILTERS, rows_of, single, table
from tests.replay.tables import report_of as report

SECOND = 1_000_000_000
VERSIONS = [4, 7, 11, 12, 13, 18]


class Play:
    """The exchanges of one connection, one each second, and the `LimitLog` that reads them."""

    def __init__(self, version: int, max_fetch_bytes: int = 0) -> None:
        self.version = version
        self.log = LimitLog(max_fetch_bytes)
        self._engine = Engine("always", plain=True)
        self._time = 0

    def exchange(self, request: bytes, response: bytes) -> None:
        self._time += SECOND
        sizes = len(request), len(response)
        exchange = Exchange(
            "c", "a:1", "b:2", 0, "", "", 1, self.version, 1, self._time - 5, self._time, *sizes
        )
        exchange.request, exchange.response = request, [response]
        for outcome in self._engine.add(exchange):
            self.log.add(outcome)

    def fetch(self, offsets: list[int], entries: list[Any], **fields: Any) -> None:
        """Add a full fetch of partitions 0, 1, ... of a topic, with its response."""
        asked = fetch(self.version, *(("t", at, offset) for at, offset in enumerate(offsets)), **fields)
        self.exchange(asked, fetch_response(self.version, ("t", entries)))

    def starved(self) -> list[tuple[int, float, int, int]]:
        """Return the figures of each starved partition.

        They are the partition's number, the seconds, the responses in this time, and the lag in offsets.
        """
        return [(one.partition, one.lasted / SECOND, one.responses, one.behind) for one in self.log.longest()]

    @property
    def figures(self) -> dict[str, int]:
        ((version, figures),) = self.log.by_version().items()
        assert version == self.version
        return dataclasses.asdict(figures)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_partition_starves_until_it_gets_records(version: int) -> None:
    play = Play(version)
    for offset in (0, 1, 2):
        play.fetch([offset, 5, 9], [entry(0, 99, records=b"x" * 40), entry(1, 8), entry(2, 9)])
    play.fetch([3, 5, 9], [entry(0, 99), entry(1, 8, records=b"x"), entry(2, 9)])

    # Partition 0 has more in the last response, but it got none there.
    assert sorted(play.starved()) == [(0, 0.0, 1, 96), (1, 3.0, 3, 3)]
    assert (play.figures["starved"], play.figures["starved_ns"]) == (2, 3 * SECOND)


def test_nobody_starves_where_nobody_got_records() -> None:
    play = Play(11)
    play.fetch([0, 0], [entry(0, 9), entry(1, 9)])
    play.exchange(fetch(11, ("t", 0), ("t", 1)), fetch_response(11, throttle_time_ms=100))

    assert not play.starved()


def test_a_partition_with_an_error_or_one_to_read_elsewhere_does_not_starve() -> None:
    play = Play(11)
    play.fetch(
        [0, 0, 0],
        [entry(0, 9, records=b"x"), entry(1, error=6), entry(2, 9, preferred_read_replica=3)],
    )

    assert not play.starved()


def test_read_committed_reads_up_to_the_last_stable_offset() -> None:
    play = Play(11)
    for isolation in (1, 0):
        play.fetch(
            [0, 5],
            [entry(0, 9, records=b"x"), entry(1, 9, last_stable_offset=5, aborted=())],
            isolation_level=isolation,
        )

    assert play.starved() == [(1, 0.0, 1, 4)]


@pytest.mark.parametrize("version", [7, 12, 18])
def test_a_session_of_the_clients_own_leaves_starved_partitions_out(version: int) -> None:
    play = Play(version)
    wants = [("t", at) for at in range(3)]
    first = [entry(0, 9, records=b"x"), entry(1, 9), entry(2, 0)]
    play.exchange(fetch(version, *wants, session=(0, 0)), fetch_response(version, ("t", first), session_id=7))
    more = fetch_response(version, ("t", [entry(0, 9, records=b"x")]), session_id=7)
    play.exchange(fetch(version, ("t", 0, 1), session=(7, 1)), more)
    play.exchange(fetch(version, ("t", 0, 2), session=(7, 2), forget=[("t", 1)]), more)

    assert play.starved() == [(1, 2.0, 2, 9)]


def test_a_session_whose_beginning_was_not_captured_is_left_alone() -> None:
    play = Play(11)
    play.exchange(
        fetch(11, ("t", 0), session=(7, 5)),
        fetch_response(11, ("t", [entry(0, 9, records=b"x"), entry(1, 9)]), session_id=7),
    )

    assert (play.figures["responses"], play.starved()) == (1, [])


def test_what_is_kept_is_bounded() -> None:
    play = Play(11)
    count = 100
    for at in range(400):
        play.fetch(
            [0] * count,
            [entry(place, 9, records=b"x" if place == at % count else b"") for place in range(count)],
        )

    assert len(play.starved()) == WORST
    assert play.figures["starved"] == 400 + count - 2  # each begins again when it was fed, but for the last
    assert len(play.log._worst) <= 4 * WORST


def test_responses_are_measured_by_their_own_limit_or_by_a_lower_one() -> None:
    sizes = (100, 2_000)
    for ceiling, over in ((0, (1, 1_000)), (500, (1, 1_500)), (5_000, (1, 1_000))):
        play = Play(11, ceiling)
        for size in sizes:
            play.fetch([0], [entry(0, 9, records=b"x" * size)], max_bytes=1_000)
        figures = play.figures
        assert (figures["over_limit"], figures["over_limit_bytes"]) == over
        assert (figures["max_bytes"], figures["largest_record_bytes"]) == (1_000, 2_000)


def old(version: int, max_bytes: int, *records: int) -> tuple[bytes, bytes]:
    """Return a fetch of v0 to v3, and its response.

    `records` is the number of record bytes for each partition.
    """
    head = b"\0\1" + version.to_bytes(2) + bytes(4) + b"\0\1c"
    limits = b"\xff" * 4 + bytes(8) + (max_bytes.to_bytes(4) if version >= 3 else b"")
    entries = b"".join(at.to_bytes(4) + bytes(12) for at, _ in enumerate(records))
    asked = head + limits + b"\0\0\0\1\0\1t" + len(records).to_bytes(4) + entries
    came = bytes(4 + (4 if version >= 1 else 0)) + b"\0\0\0\1\0\1t" + len(records).to_bytes(4)
    for at, size in enumerate(records):
        came += at.to_bytes(4) + bytes(10) + size.to_bytes(4) + b"x" * size
    return len(asked).to_bytes(4) + asked, len(came).to_bytes(4) + came


@pytest.mark.parametrize("version", [0, 1, 2, 3])
def test_fetches_below_v4_are_read_for_their_size(version: int) -> None:
    play = Play(version, 60)
    play.exchange(*old(version, 80, 30, 0, 40))
    own = Play(version)
    own.exchange(*old(version, 80, 30, 0, 70))

    assert (play.figures["largest_record_bytes"], play.figures["over_limit_bytes"]) == (70, 10)
    assert play.figures["max_bytes"] == (80 if version == 3 else 0)
    # Without a limit of its own, a fetch is measured by the default of clients that have one.
    assert own.figures["over_limit_bytes"] == (20 if version == 3 else 0)
    assert NO_LIMIT == 50 << 20


@pytest.mark.parametrize("version", [2, 3])
def test_what_is_no_response_is_not_counted(version: int) -> None:
    play = Play(version)
    asked, came = old(version, 80, 30)
    play.exchange(asked, came[:20])

    assert (play.log.by_version(), play.log.longest()) == ({}, [])


def test_real_captures_against_a_lower_limit() -> None:
    choice = RowFilter(max_fetch_bytes=1_000)
    about = About(version="1", policy="gateway", filters=NO_FILTERS, max_fetch_bytes=1_000)
    rows = rows_of(table(choice, CAPTURES / "many-clients-any.pcap", CAPTURES / "java-100p.pcap"))
    made = report(single(rows), about)["limits"]

    by_client = {row["client_id"]: row for row in made["by_client"]}
    assert made["max_fetch_bytes"] == 1_000
    # Each record takes 270 bytes there: librdkafka got four of them once, and Java six.
    assert (by_client["rdk"]["over_limit"], by_client["rdk"]["over_limit_bytes"]) == (1, 80)
    assert by_client["kjs"]["max_bytes"] == 10_485_760
    assert (made["largest_record_bytes"], made["starved"]) == (1_620, 0)
    for figure in ("responses", "over_limit", "over_limit_bytes"):
        assert made[figure] == sum(row[figure] for row in made["by_client"])
