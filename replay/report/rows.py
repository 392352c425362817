"""Rows of the report's tables, ready to show: the largest savings first, the sum of the rest last."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from proxy.text.printable import printable
from replay.report.decision import why
from replay.report.model import (
    ClientRow,
    FetchReport,
    Passed,
    Report,
    ToDo,
    actual_bytes,
    eligible_bytes,
    predicted_bytes,
)
from replay.report.wording import REST, plural, shown


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportRow:
    """A row of a table. Its bytes are of both directions."""

    names: tuple[str, ...]
    """Printable, one for each column of names."""
    connections: int = 0
    count: int
    """Fetches. In a row of a topic, its entries in responses."""
    actual: int
    eligible: int
    predicted: int
    saved: int
    why: str = ""
    """Why nothing is saved; "" if something is saved, or if nothing was fetched."""
    total: bool = False

    @property
    def ratio(self) -> float:
        return self.saved / self.actual if self.actual else 0.0


def total_row(report: Report) -> ReportRow:
    """Return the row of the whole capture."""
    row = _row(("all",), report["fetch"], connections=report["input"]["connections"], passed=report["passed"])
    return replace(row, total=True)


def client_rows(report: Report, limit: int) -> list[ReportRow]:
    """Return rows by client id, software and fetch version."""
    rows = (
        _row(
            _client_names(client),
            client["fetch"],
            connections=client["connections"],
            passed=client["passed"],
        )
        for client in report["by_client"]
    )
    return _ranked(rows, limit, "client")


def topic_rows(report: Report, limit: int) -> list[ReportRow]:
    """Return rows by topic. The last row has the bytes that belong to no topic."""
    sessions = report["fetch"]["sessions"]
    topics = [
        _row((shown(topic["topic"]),), topic["fetch"], count=topic["fetch"]["actual"]["partitions_answered"])
        for topic in report["by_topic"]
        if topic["topic"] is not None
    ]
    if not sessions["full"] + sessions["incremental"]:
        topics = [replace(row, why="its fetches stay as captured") if row.why else row for row in topics]
    rest = [_row((REST,), topic["fetch"]) for topic in report["by_topic"] if topic["topic"] is None]
    rest = [replace(row, why="sessions only leave out entries") if row.why else row for row in rest]
    return [*_ranked(topics, limit, "topic"), *rest]


def broker_rows(report: Report, limit: int) -> list[ReportRow]:
    """Return rows by broker."""
    rows = (
        _row(
            (shown(broker["broker"]),),
            broker["fetch"],
            connections=broker["connections"],
            passed=broker["passed"],
        )
        for broker in report["by_broker"]
    )
    return _ranked(rows, limit, "broker")


def connection_rows(report: Report, limit: int) -> list[ReportRow]:
    """Return rows of the largest connections. The report does not have the rest of them."""
    rows = (
        _row(
            (shown(connection["connection"]), shown(connection["client_id"])),
            connection["fetch"],
            passed=connection["passed"],
        )
        for connection in report["connections"]
    )
    return sorted(rows, key=lambda row: (-row.actual, row.names))[:limit]


def _row(
    names: tuple[str, ...],
    fetch: FetchReport,
    *,
    connections: int = 0,
    count: int | None = None,
    passed: Mapping[str, Passed] | None = None,
) -> ReportRow:
    reason = why(fetch, passed) if passed is not None else _why_of_topic(fetch)
    return ReportRow(
        names=names,
        connections=connections,
        count=fetch["actual"]["requests"] if count is None else count,
        actual=actual_bytes(fetch),
        eligible=eligible_bytes(fetch),
        predicted=predicted_bytes(fetch),
        saved=fetch["saved_bytes"],
        why=shown(reason, empty=""),
    )


def _why_of_topic(fetch: FetchReport) -> str:
    """Return why nothing is saved for a topic. It is a general reason: reasons are not counted by topic."""
    if fetch["saved_bytes"] > 0 or not actual_bytes(fetch):
        return ""
    return "all entries had something new" if eligible_bytes(fetch) else "its fetches stay as captured"


def passed_rows(report: Report, limit: int) -> list[tuple[tuple[str, ...], str, Passed]]:
    """Return client, reason and counts of fetches without a session. Most bytes come first."""
    rows = [
        (_client_names(client), reason, passed)
        for client in report["by_client"]
        for reason, passed in client["passed"].items()
    ]
    rows.sort(key=lambda row: (-row[2]["bytes"], row[0], row[1]))
    if len(rows) <= limit:
        return rows
    others = [passed for _, _, passed in rows[limit - 1 :]]
    rest = Passed(
        exchanges=sum(one["exchanges"] for one in others), bytes=sum(one["bytes"] for one in others)
    )
    return [*rows[: limit - 1], (("others", "", ""), "", rest)]


def to_do_rows(report: Report, limit: int) -> list[tuple[tuple[str, ...], str]]:
    """Return the advice for each client: its names, and one sentence."""
    rows = report["decision"]["to_do"]
    found = [(_client_names(row), printable(row["sentence"])) for row in rows[:limit]]
    if more := len(rows[limit:]):
        found.append((("others", "", ""), f"The JSON and the CSV have {plural(more, 'more client')}."))
    return found


def _client_names(client: ClientRow | ToDo) -> tuple[str, ...]:
    return (
        shown(client["client_id"]),
        shown(client["software"], empty="unknown"),
        f"v{client['fetch_version']}",
    )


def _ranked(rows: Iterable[ReportRow], limit: int, noun: str) -> list[ReportRow]:
    ranked = sorted(rows, key=lambda row: (-row.saved, -row.actual, row.names))
    if len(ranked) <= limit:
        return ranked
    others = ranked[limit - 1 :]
    names = (f"{plural(len(others), f'other {noun}')}", *("" for _ in ranked[0].names[1:]))
    return [*ranked[: limit - 1], _summed(names, others)]


def _summed(names: tuple[str, ...], rows: list[ReportRow]) -> ReportRow:
    return ReportRow(
        names=names,
        connections=sum(row.connections for row in rows),
        count=sum(row.count for row in rows),
        actual=sum(row.actual for row in rows),
        eligible=sum(row.eligible for row in rows),
        predicted=sum(row.predicted for row in rows),
        saved=(saved := sum(row.saved for row in rows)),
        why="" if saved > 0 else rows[0].why,
    )
