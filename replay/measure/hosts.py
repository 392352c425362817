"""Adds up the counted fetches by the client's host. Sans-IO.

A capture may have very many hosts, so their sums are in Arrow: Python objects would need ten times the
memory. Only the connections that were added last are objects.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import fields
from typing import Any, ClassVar, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from replay.measure.net import AddressSums, client_hash
from replay.measure.sums import FetchSums
from replay.measure.typed import bounded
from replay.report.decision import ClientKey

MOST_ROWS: Final = 4096
"""How many rows are objects at the same time."""
_LOOPBACK: Final = "127.", "[::1]"
_EXTREMES: Final = {"first": np.minimum, "last": np.maximum}
"""How these columns are combined. The numbers of other columns are added up."""
_KEYS: Final = frozenset({"host", "rack", "broker", "client", "parent"})
_SUMS: Final = tuple(one.name for one in fields(AddressSums) if one.type is int)
_BETWEEN: Final = {"rack": pa.string(), "broker": pa.string(), "saved_bytes": pa.int64()}
_SAFE: Final = 2.0**62
"""If the sum of absolute values is below this, sums of them are not too large for int64."""

_Numbers: TypeAlias = npt.NDArray[np.int64]


class Hosts:
    """The sums of hosts. `typed.codec` reads them without a copy."""

    # A loopback address may be of any host, so it has a row for each broker. Other addresses have the broker
    # "". `first` and `last` are times of packets, in ns since 1970.
    SCHEMA: ClassVar = pa.schema(
        [
            ("host", pa.string()),
            ("broker", pa.string()),
            *((name, pa.int64()) for name in (*_SUMS, "fetch_bytes", "first", "last")),
            ("between", pa.list_(pa.struct(_BETWEEN))),
            ("clients", pa.list_(pa.struct({"client": pa.int64()}))),
        ]
    )

    def __init__(self, rows: pa.Table | None = None) -> None:
        """`rows` have one row for each host."""
        self._rows = self.SCHEMA.empty_table() if rows is None else rows
        self._folded = self._rows.num_rows
        """The number of rows when there was one for each host."""
        self._added: list[tuple[Any, ...]] = []

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Hosts) and bool(self.table().equals(other.table()))

    __hash__ = None  # type: ignore[assignment]  # the sums change

    def add_connection(
        self,
        host: str,
        rack: str,
        broker: str,
        clients: Iterable[ClientKey],
        fetches: FetchSums,
        times: tuple[int, int],
    ) -> None:
        """Add a connection. `times` are those of its first and its last packet."""
        fetch = fetches.fetch()
        actual, saved = fetch["actual"], bounded(fetch["saved_bytes"])
        listed = actual["partitions_requested"]
        numbers = (
            1,
            actual["requests"],
            -(-listed // actual["requests"]) if listed else 0,
            listed,
            actual["record_bytes"],
            saved,
            fetches.actual_bytes,
            *times,
        )
        between = [{"rack": rack, "broker": broker, "saved_bytes": saved}]
        savers = [{"client": client_hash(client)} for client in clients] if saved > 0 else []
        on_loopback = broker if host.startswith(_LOOPBACK) else ""
        self._added.append((host, on_loopback, *map(bounded, numbers), between, savers))
        if len(self._added) >= MOST_ROWS:
            self._flush()

    def merge(self, other: "Hosts") -> None:
        """Add other sums. If there are none yet, nothing is copied."""
        self._flush()
        self._take(other.table())

    def table(self) -> pa.Table:
        """Return one row for each host."""
        self._flush()
        if self._rows.num_rows > self._folded:
            self._fold()
        return self._rows

    def saved_between(self) -> dict[tuple[str, str], int]:
        """Return the saved bytes by the client's rack and the broker's address."""
        between = self.table()["between"].combine_chunks().flatten()
        rows = folded(pa.Table.from_struct_array(between)).to_pylist()
        return {(row["rack"], row["broker"]): row["saved_bytes"] for row in rows}

    def addresses(self) -> dict[str, AddressSums]:
        """Return the sums of each host, as objects: they need much memory if there are many hosts."""
        found: dict[str, AddressSums] = defaultdict(AddressSums)
        for batch in self.table().to_batches(max_chunksize=MOST_ROWS):
            for row in batch.to_pylist():
                between = {(one["rack"], one["broker"]): one["saved_bytes"] for one in row["between"]}
                sums = AddressSums(
                    **{name: row[name] for name in _SUMS},
                    saved_between=Counter(between),
                    clients={one["client"] for one in row["clients"]},
                )
                found[row["host"]].add(sums)
        return found

    def on_loopback(self) -> bool:
        """Return whether all hosts have loopback addresses. False if there is none."""
        found = self.table()["broker"]
        return len(found) > 0 and not pc.any(pc.equal(found, "")).as_py()

    def names(self) -> list[str]:
        found: list[str] = self.table()["host"].to_pylist()
        return found

    def _flush(self) -> None:
        columns = list(zip(*self._added, strict=True))
        self._added.clear()
        if columns:
            arrays = [pa.array(column, one.type) for column, one in zip(columns, self.SCHEMA, strict=True)]
            self._take(folded(pa.table(arrays, schema=self.SCHEMA)))

    def _take(self, rows: pa.Table) -> None:
        if not self._rows.num_rows:
            self._rows, self._folded = rows, rows.num_rows
            return
        self._rows = pa.concat_tables([self._rows, rows])
        if self._rows.num_rows > 3 * self._folded:
            self._fold()

    def _fold(self) -> None:
        self._rows = folded(self._rows)
        self._folded = self._rows.num_rows


def total(numbers: pa.ChunkedArray) -> int:
    """Return the sum of a column."""
    return int(_reduced("", numbers.to_numpy(), np.zeros(1, np.int64))[0])


def folded(rows: pa.Table) -> pa.Table:
    """Return one row for each key, in the order of keys. Lists of rows with the same key become one.

    Arrow's `group_by` would need five times the memory of the rows. Here one column follows the other.
    """
    key = [name for name in rows.column_names if name in _KEYS]
    order = pc.sort_indices(rows, [(name, "ascending") for name in key])
    new = np.arange(len(order)) == 0
    for name in key:
        values = rows[name].take(order)
        new[1:] |= pc.not_equal(values[1:], values[:-1]).to_numpy()
    begins, places = np.flatnonzero(new), order.to_numpy()
    group = np.empty(len(order), np.int64)
    group[places] = np.cumsum(new) - 1
    columns = {}
    for name, kind in zip(rows.column_names, rows.schema.types, strict=True):
        if name in key:
            columns[name] = rows[name].take(pa.array(places[begins]))
        elif pa.types.is_list(kind):
            columns[name] = _joined(rows[name].combine_chunks(), group, len(begins))
        else:
            columns[name] = pa.array(_reduced(name, rows[name].to_numpy()[places], begins), kind)
    return pa.table(columns, rows.schema).combine_chunks()


def _joined(lists: pa.ListArray, group: _Numbers, groups: int) -> pa.ListArray:
    """Return one list for each group of lists."""
    parents = np.repeat(group, pc.list_value_length(lists).to_numpy())
    items = pa.Table.from_struct_array(lists.flatten()).add_column(0, "parent", pa.array(parents))
    items = folded(items)
    offsets = np.searchsorted(items["parent"].to_numpy(), np.arange(groups + 1))
    values = items.drop_columns("parent").to_struct_array().combine_chunks()
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), values)


def _reduced(name: str, values: _Numbers, begins: _Numbers) -> Any:
    if not len(values):
        return values
    if name in _EXTREMES:
        return _EXTREMES[name].reduceat(values, begins)
    if np.abs(values.astype(np.float64)).sum() < _SAFE:
        return np.add.reduceat(values, begins)
    return [bounded(one) for one in np.add.reduceat(values.astype(object), begins)]
