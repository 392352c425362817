"""Adds up exchanges in groups, as reports need them. Sans-IO.

The exchanges of a group differ only in what a report adds up. So no table has to be made for a report.
"""

from collections.abc import Iterator, Mapping
from operator import add, attrgetter
from typing import Any, Final, TypeAlias

import pyarrow as pa

from replay.capture.kafka.exchange import ConnectionEnd, Exchange
from replay.measure import sums
from replay.measure.table import CODECS, FETCH_COLUMNS, Detail, kind_of

GROUPED: Final = (
    "row",
    "connection",
    "client",
    "broker",
    "client_id",
    "software",
    "api_key",
    "api_version",
    "answer_due",
    "counted",
    "eligible",
    "reason",
)
_OF_FETCH: Final = tuple(column.name for column in FETCH_COLUMNS if column.name in sums.SUMMED)
SUMMED: Final = ("request_bytes", "response_bytes", *_OF_FETCH)

Group: TypeAlias = Mapping[str, Any]
"""A group: the columns `GROUPED`, the sums of `SUMMED`, `count` (the number of exchanges), and `details`, a
list of `Detail`."""

_of_exchange: Final = attrgetter(*GROUPED[1:9])
_of_fetch: Final = attrgetter(*_OF_FETCH)
_NO_SUMS: Final = dict.fromkeys(SUMMED, 0)
_NO_EXCHANGE: Final = dict.fromkeys(GROUPED[6:])


class GroupWriter:
    """Collects the groups of a connection, with the methods of `RowWriter`."""

    def __init__(self) -> None:
        self._counts: dict[tuple[Any, ...], int] = {}
        self._sums: dict[tuple[Any, ...], list[int]] = {}
        self._details: list[Group] = []

    def drain(self) -> list[Group]:
        found: list[Group] = [
            dict(zip(GROUPED, key, strict=True))
            | dict(zip(SUMMED, self._sums[key], strict=True))
            | {"count": count, "details": ()}
            for key, count in self._counts.items()
        ]
        found += self._details
        self._counts, self._sums, self._details = {}, {}, []
        return found

    def exchange(
        self,
        exchange: Exchange,
        outcome: Any = None,
        *,
        counted: bool | None = None,
        row: str = "",
    ) -> None:
        of_fetch = (None, None) if outcome is None else (outcome.eligible, outcome.reason)
        key = (row or kind_of(exchange), *_of_exchange(exchange), counted, *of_fetch)
        values: list[int] = [exchange.request_bytes, exchange.response_bytes]
        values += [0] * len(_OF_FETCH) if outcome is None else _of_fetch(outcome)
        self._counts[key] = self._counts.get(key, 0) + (1 if outcome is None else outcome.times)
        known = self._sums.get(key)
        self._sums[key] = values if known is None else [*map(add, known, values)]

    def detail(self, kind: str, detail: Detail, end: ConnectionEnd | None = None) -> None:
        names = {name: getattr(end, name) if end else "" for name in GROUPED[1:6]}
        self._details.append(
            {"row": kind, **names, **_NO_EXCHANGE, **_NO_SUMS, "count": 1, "details": [detail]}
        )


def groups_in(rows: pa.RecordBatch) -> Iterator[Group]:
    """Yield each row of a table as a group. With a column `count`, it is a sum of that many exchanges."""
    plain = [name for name in (*GROUPED, *SUMMED, "count") if name in rows.schema.names]
    details = [one.read(rows.column(name)) for name, one in CODECS.items()]
    for row, *own in zip(rows.select(plain).to_pylist(), *details, strict=True):
        sums_of = {name: row[name] or 0 for name in SUMMED}
        found = [detail for detail in own if detail is not None]
        yield {**row, **sums_of, "count": row.get("count") or 1, "details": found}
