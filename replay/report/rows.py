"""Rows of the report's tables, ready to show: largest savings first, the last row adds up the rest."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from replay.report.model import FetchReport, Report, actual_bytes, eligible_bytes, predicted_bytes
from replay.report.wording import REST, duration, number, plural, shown, size


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A row of a table. Its bytes are of both directions."""

    names: tuple[str, ...]
    """Printable names, one for each column of names."""
    connections: int = 0
    count: int
    """Fetches; for a topic, its entries in responses."""
    actual: int
    eligible: int
    predicted: int
    saved: int
    total: bool = False

    @property
    def ratio(self) -> float:
        """The part of the row's captured bytes that is saved."""
        return self.saved / self.actual if self.actual else 0.0


def total_row(report: Report) -> Row:
    """Return the row of the whole capture."""
    row = _row(("all",), report["fetch"], connections=report["input"]["connections"])
    return replace(row, total=True)


def client_rows(report: Report, limit: int) -> list[Row]:
    """Return rows by client id, software and fetch version."""
    rows = (
        _row(
            (
                shown(client["client_id"]),
                shown(client["software"], empty="unknown"),
                f"v{client['fetch_version']}",
            ),
            client["fetch"],
            connections=client["connections"],
        )
        for client in report["by_client"]
    )
    return _ranked(rows, limit, "client")


def topic_rows(report: Report, limit: int) -> list[Row]:
    """Return rows by topic; the last one is the rest of each frame."""
    topics = (
        _row((shown(topic["topic"]),), topic["fetch"], count=topic["fetch"]["actual"]["partitions_answered"])
        for topic in report["by_topic"]
        if topic["topic"] is not None
    )
    rest = (_row((REST,), topic["fetch"]) for topic in report["by_topic"] if topic["topic"] is None)
    return [*_ranked(topics, limit, "topic"), *rest]


def broker_rows(report: Report, limit: int) -> list[Row]:
    """Return rows by broker."""
    rows = (
        _row((shown(broker["broker"]),), broker["fetch"], connections=broker["connections"])
        for broker in report["by_broker"]
    )
    return _ranked(rows, limit, "broker")


def connection_rows(report: Report, limit: int) -> list[Row]:
    """Return rows of the largest connections. The report has no others, so none adds up the rest."""
    rows = (
        _row((shown(connection["connection"]), shown(connection["client_id"])), connection["fetch"])
        for connection in report["connections"]
    )
    return sorted(rows, key=lambda row: (-row.actual, row.names))[:limit]


def _row(
    names: tuple[str, ...], fetch: FetchReport, *, connections: int = 0, count: int | None = None
) -> Row:
    return Row(
        names=names,
        connections=connections,
        count=fetch["actual"]["requests"] if count is None else count,
        actual=actual_bytes(fetch),
        eligible=eligible_bytes(fetch),
        predicted=predicted_bytes(fetch),
        saved=fetch["saved_bytes"],
    )


def _ranked(rows: Iterable[Row], limit: int, noun: str) -> list[Row]:
    ranked = sorted(rows, key=lambda row: (-row.saved, -row.actual, row.names))
    if len(ranked) <= limit:
        return ranked
    others = ranked[limit - 1 :]
    names = (f"{plural(len(others), f'other {noun}')}", *("" for _ in ranked[0].names[1:]))
    return [*ranked[: limit - 1], _summed(names, others)]


def _summed(names: tuple[str, ...], rows: list[Row]) -> Row:
    return Row(
        names=names,
        connections=sum(row.connections for row in rows),
        count=sum(row.count for row in rows),
        actual=sum(row.actual for row in rows),
        eligible=sum(row.eligible for row in rows),
        predicted=sum(row.predicted for row in rows),
        saved=sum(row.saved for row in rows),
    )


def limit_rows(report: Report, limit: int) -> Sequence[tuple[str, ...]]:
    """Return who got more than a limit or starved: names, then figures; those with the most first."""
    return [
        (
            shown(row["client_id"]),
            f"v{row['fetch_version']}",
            size(row["max_bytes"]) if row["max_bytes"] else "none",
            size(row["largest_record_bytes"]),
            number(row["over_limit"]),
            size(row["over_limit_bytes"]),
            number(row["starved"]),
        )
        for row in report["limits"]["by_client"]
        if row["over_limit"] or row["starved"]
    ][:limit]


def starved_rows(report: Report) -> Sequence[tuple[str, ...]]:
    """Return the partitions that starved longest: names, then figures."""
    return [
        (
            f"{shown(row['topic'])}-{row['partition']}",
            shown(row["client_id"]),
            duration(row["seconds"]),
            number(row["responses"]),
            number(row["behind"]),
        )
        for row in report["limits"]["longest"]
    ]
