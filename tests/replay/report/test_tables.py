"""Rows of tables are sorted, the rest is summed up, and nothing is lost."""

from collections.abc import Sequence
from typing import Any

import pytest

from replay.report.model import ClientRow, FetchReport, Report, TopicRow, actual_bytes, predicted_bytes
from replay.report.table import ReportTable
from replay.report.tables import by_broker, by_client, by_topic, connections, to_do
from replay.report.wording import REST
from tests.replay.report import sample


def names(table: ReportTable, count: int) -> list[tuple[str, ...]]:
    """Return the names of each line, which are its first values."""
    return [tuple(line.values[:count]) for line in table.lines]


def figures(table: ReportTable, count: int) -> list[Sequence[Any]]:
    """Return the figures after so many names: fetches, captured, eligible and predicted bytes, saving."""
    return [line.values[count:] for line in table.lines]


def test_what_saves_most_comes_first() -> None:
    table = by_client(sample.report(), 10)
    assert names(table, 3) == [
        ("billing-enricher", "librdkafka 2.16.0", "v16"),
        ("search-indexer", "aiokafka 0.12.0", "v11"),
        ("(none)", "unknown", "v4"),
        ("fraud-scorer", "apache-kafka-java 4.3.0", "v18"),
        ("audit-archiver", "sarama 1.61.1", "v11"),
    ]
    rows = figures(table, 3)
    assert rows[0][1] - rows[0][3] == rows[0][4].saved_bytes > 0
    assert rows[3][2] == rows[3][4].saved_bytes == rows[3][4].ratio == 0


@pytest.mark.parametrize("limit", [1, 2, 3, 5, 6])
def test_the_tail_is_summed_up_and_nothing_lost(limit: int) -> None:
    report = sample.report()
    table = by_client(report, limit)
    rows = figures(table, 3)
    assert len(rows) == min(limit, 5)
    assert sum(row[0] for row in rows) == report["fetch"]["actual"]["requests"]
    assert sum(row[1] for row in rows) == actual_bytes(report["fetch"])
    assert sum(row[3] for row in rows) == predicted_bytes(report["fetch"])
    assert sum(row[4].saved_bytes for row in rows) == report["fetch"]["saved_bytes"]
    assert [line.bar for line in table.lines] == [(row[1], row[3]) for row in rows]
    if limit < 5:
        assert names(table, 3)[-1] == (f"{5 - limit + 1} other clients", "", "")


def test_the_rest_of_the_frames_comes_last_whatever_it_weighs() -> None:
    report = sample.report()
    table = by_topic(report, 2)
    rows = figures(table, 1)
    assert names(table, 1) == [("events",), ("3 other topics",), (REST,)]
    assert sum(row[1] for row in rows) == actual_bytes(report["fetch"])
    assert rows[0][0] == report["by_topic"][0]["fetch"]["actual"]["partitions_answered"]


def test_brokers_and_the_whole() -> None:
    report = sample.report()
    table = by_broker(report, 10)
    *rows, whole = figures(table, 1)
    assert [line.total for line in table.lines] == [False, False, False, True]
    assert whole[0] == report["fetch"]["actual"]["requests"]
    assert whole[1] == sum(row[1] for row in rows)
    assert whole[4].ratio == report["fetch"]["saved_ratio"]


def test_connections_are_ranked_by_what_they_carried() -> None:
    table = connections(sample.report(), 3)
    captured = [row[1] for row in figures(table, 2)]
    assert captured == sorted(captured, reverse=True)
    assert names(table, 2)[0] == ("10.20.1.1:40000 > 10.20.0.11:9092 #0", "billing-enricher")


def test_equal_rows_have_an_order_and_no_bytes_have_a_ratio() -> None:
    nothing = sample.combined(lambda *_: 0)
    clients: list[ClientRow] = [
        {
            "client_id": name,
            "software": "",
            "fetch_version": 4,
            "connections": 1,
            "connection_seconds": 1.0,
            "fetch": nothing,
            "passed": {},
        }
        for name in "cab"
    ]
    report: Report = {**sample.empty(), "by_client": clients}
    table = by_client(report, 10)
    assert [name for name, *_ in names(table, 3)] == ["a", "b", "c"]
    assert figures(table, 3)[0][4].ratio == 0.0
    assert by_client(sample.empty(), 10).lines == by_topic(sample.empty(), 10).lines == []


def test_clients_beyond_the_limit_are_told_of() -> None:
    last = to_do(sample.report(), 3).lines[-1]

    assert last.values == ("others", "", "", "The JSON and the CSV have 2 more clients.")
    assert len(to_do(sample.report(), 5).lines) == 5


def test_a_topic_that_saves_nothing_says_whether_its_fetches_passed() -> None:
    def fetch(eligible: int) -> FetchReport:
        figures = {("actual", "request_bytes"): 100, ("eligible", "request_bytes"): eligible}
        sessions = {("sessions", "request_bytes"): eligible}
        return sample.combined(lambda group, field: {**figures, **sessions}.get((group, field), 0))

    topics: list[TopicRow] = [
        {"topic": "a", "fetch": fetch(0)},
        {"topic": "b", "fetch": fetch(50)},
        {"topic": None, "fetch": fetch(50)},
    ]
    plain = sample.report()
    lines = by_topic({**plain, "by_topic": topics}, 10).lines

    assert [(line.values[0], line.note) for line in lines] == [
        ("a", "its fetches stay as captured"),
        ("b", "all entries had something new"),
        ("(rest of each frame)", "sessions only leave out entries"),
    ]
    whole: FetchReport = {
        **plain["fetch"],
        "sessions": {**plain["fetch"]["sessions"], "full": 0, "incremental": 0},
    }
    lines = by_topic({**plain, "by_topic": topics, "fetch": whole}, 10).lines
    assert {line.note for line in lines[:2]} == {"its fetches stay as captured"}
