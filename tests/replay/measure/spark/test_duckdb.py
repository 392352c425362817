"""Tests of the table for people: the queries of docs/users/tables.md give the results shown there.

They also check that the added columns have the right values.
"""

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest
from pyspark.sql import SparkSession

from tests.replay.measure.spark.measuring import CAPTURES, measured, work
from tests.replay.source.test_columns import rows
from tests.replay.tables import measured as at_once

pytestmark = [pytest.mark.integration, pytest.mark.nightly]

PAGE = (Path(__file__).parents[4] / "docs" / "users" / "tables.md").read_text(encoding="utf-8")
FIRST, SECOND = CAPTURES / "many-clients-any.pcap", CAPTURES / "aiokafka-rebalance.pcap"
VIEW, *QUESTIONS = re.findall(r"^```sql\n([\s\S]+?)^```\n(?:\n((?:\|.*\n)+))?", PAGE, re.MULTILINE)


@pytest.fixture(scope="module")
def folder(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the table that the page's queries read. Return the folder of the table."""
    folder = tmp_path_factory.mktemp("duckdb")
    measured(spark, work(FIRST, SECOND, parquet=str(folder / "table")))
    return folder


@pytest.fixture
def asked(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Open DuckDB with the view of the page."""
    monkeypatch.chdir(folder)
    with duckdb.connect() as connection:
        connection.execute(VIEW[0])
        yield connection


def shown(asked: Any, query: str) -> str:
    """Return the result of a query as a table in Markdown."""
    result = asked.sql(f"SELECT columns(*)::VARCHAR FROM ({query})")
    lines = [result.columns, ["---"] * len(result.columns), *result.fetchall()]
    return "".join(f"| {' | '.join(value or '' for value in line)} |\n" for line in lines)


def test_the_page_has_three_queries_with_results() -> None:
    assert [bool(result) for _, result in QUESTIONS] == [True] * 3


@pytest.mark.parametrize(("query", "result"), QUESTIONS)
def test_a_query_gives_the_result_on_the_page(asked: Any, query: str, result: str) -> None:
    assert shown(asked, query) == result


def test_what_sessions_save_is_what_the_report_says(asked: Any) -> None:
    report = at_once("gateway", FIRST, SECOND)
    saved = asked.sql("SELECT client_id, sum(saved_bytes) FROM stored WHERE counted GROUP BY ALL").fetchall()
    expected: Counter[str] = Counter()
    for row in report["by_client"]:
        expected[row["client_id"]] += row["fetch"]["saved_bytes"]

    assert {client: int(size) for client, size in saved} == expected


def test_errors_and_times_are_those_of_the_captures(asked: Any) -> None:
    found = asked.sql(
        "SELECT connection, coalesce(api, ''), if(api IS NULL, -1, correlation_id), epoch_us(time), "
        "request_bytes, response_bytes, seconds, list_transform(errors, lambda one: one.error) "
        "FROM stored WHERE row IN ('exchange', 'request', 'response')"
    ).fetchall()
    expected = [
        (
            row["connection"],
            row["api"] or "",
            -1 if row["correlation_id"] is None else row["correlation_id"],
            round(row["time"].timestamp() * 1_000_000),
            row["request_bytes"] or 0,
            row["response_bytes"] or 0,
            row["seconds"],
            row["error"],
        )
        for row in rows(FIRST, SECOND)
    ]
    pairs = list(zip(sorted(found), sorted(expected), strict=True))

    assert [one[:-1] for one, _ in pairs] == [other[:-1] for _, other in pairs]
    assert all(other[-1] in (one[-1] or [None]) for one, other in pairs)
    assert Counter(row[-1] for row in expected)["REBALANCE_IN_PROGRESS"] > 1


def test_what_is_not_known_is_null(asked: Any) -> None:
    def count(of: str, where: str) -> int:
        found: list[tuple[int]] = asked.sql(f"SELECT count({of}) FROM stored WHERE {where}").fetchall()
        return found[0][0]

    assert count("*", "row = 'file'") == 2
    for name in ("broker", "client", "connection", "api", "request_bytes", "client_id", "place"):
        assert count(name, "row = 'file'") == 0
    assert count("*", "request_time_ns = 0 OR response_time_ns = 0 OR api_key < 0 OR software = ''") == 0
    assert count("*", "row = 'closing' AND seconds IS NOT NULL") == 0
    assert count("saved_bytes", "eligible IS NULL") == 0
    assert count("*", "row = 'exchange' AND errors IS NULL AND api = 'Fetch'") == 0
