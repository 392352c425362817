"""Rows of tables are sorted, the rest is summed up, and nothing is lost."""

import pytest

from replay.report.model import ClientRow, FetchReport, Report, TopicRow, actual_bytes, predicted_bytes
from replay.report.rows import broker_rows, client_rows, connection_rows, to_do_rows, topic_rows, total_row
from replay.report.wording import REST
from tests.replay.report import sample


def test_what_saves_most_comes_first() -> None:
    rows = client_rows(sample.report(), 10)
    assert [row.names for row in rows] == [
        ("billing-enricher", "librdkafka 2.16.0", "v16"),
        ("search-indexer", "aiokafka 0.12.0", "v11"),
        ("(none)", "unknown", "v4"),
        ("fraud-scorer", "apache-kafka-java 4.3.0", "v18"),
        ("audit-archiver", "sarama 1.61.1", "v11"),
    ]
    assert rows[0].connections == 3
    assert rows[0].actual - rows[0].predicted == rows[0].saved > 0
    assert rows[3].eligible == rows[3].saved == rows[3].ratio == 0


@pytest.mark.parametrize("limit", [1, 2, 3, 5, 6])
def test_the_tail_is_summed_up_and_nothing_lost(limit: int) -> None:
    report = sample.report()
    rows = client_rows(report, limit)
    assert len(rows) == min(limit, 5)
    assert sum(row.actual for row in rows) == actual_bytes(report["fetch"])
    assert sum(row.predicted for row in rows) == predicted_bytes(report["fetch"])
    assert sum(row.saved for row in rows) == report["fetch"]["saved_bytes"]
    assert sum(row.count for row in rows) == report["fetch"]["actual"]["requests"]
    if limit < 5:
        assert rows[-1].names == (f"{5 - limit + 1} other clients", "", "")


def test_the_rest_of_the_frames_comes_last_whatever_it_weighs() -> None:
    report = sample.report()
    rows = topic_rows(report, 2)
    assert [row.names for row in rows] == [("events",), ("3 other topics",), (REST,)]
    assert sum(row.actual for row in rows) == actual_bytes(report["fetch"])
    assert rows[0].count == report["by_topic"][0]["fetch"]["actual"]["partitions_answered"]


def test_brokers_and_the_whole() -> None:
    report = sample.report()
    whole, rows = total_row(report), broker_rows(report, 10)
    assert whole.total
    assert not any(row.total for row in rows)
    assert (whole.connections, whole.count) == (36, report["fetch"]["actual"]["requests"])
    assert whole.actual == sum(row.actual for row in rows)
    assert whole.ratio == report["fetch"]["saved_ratio"]


def test_connections_are_ranked_by_what_they_carried() -> None:
    rows = connection_rows(sample.report(), 3)
    assert [row.actual for row in rows] == sorted((row.actual for row in rows), reverse=True)
    assert rows[0].names == ("10.20.1.1:40000 > 10.20.0.11:9092 #0", "billing-enricher")


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
    rows = client_rows(report, 10)
    assert [row.names[0] for row in rows] == ["a", "b", "c"]
    assert rows[0].ratio == 0.0
    assert client_rows(sample.empty(), 10) == topic_rows(sample.empty(), 10) == []


def test_clients_beyond_the_limit_are_told_of() -> None:
    names, sentence = to_do_rows(sample.report(), 3)[-1]

    assert (names, sentence) == (("others", "", ""), "The JSON and the CSV have 2 more clients.")
    assert len(to_do_rows(sample.report(), 5)) == 5


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
    rows = topic_rows({**plain, "by_topic": topics}, 10)

    assert [(row.names[0], row.why) for row in rows] == [
        ("a", "its fetches stay as captured"),
        ("b", "all entries had something new"),
        ("(rest of each frame)", "sessions only leave out entries"),
    ]
    whole: FetchReport = {
        **plain["fetch"],
        "sessions": {**plain["fetch"]["sessions"], "full": 0, "incremental": 0},
    }
    rows = topic_rows({**plain, "by_topic": topics, "fetch": whole}, 10)
    assert {row.why for row in rows[:2]} == {"its fetches stay as captured"}
