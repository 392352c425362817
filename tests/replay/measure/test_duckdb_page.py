"""The page docs/reference/duckdb.md explains all columns of the table for people."""

import re
from pathlib import Path
from typing import Final

import duckdb
import pyarrow as pa

from replay.measure.table import STORED, STORED_COLUMNS

PAGE: Final = (Path(__file__).parents[3] / "docs" / "reference" / "duckdb.md").read_text(encoding="utf-8")
NESTED: Final = {
    "summary": "field",
    "summary.end": "field of `summary.end`",
    "summary.topics": "field of an item of `summary.topics`",
    "summary.over_time": "field of an item of `summary.over_time`",
    "summary.sessions": "field of an item of `summary.sessions`",
    "summary.limits": "field of a value of `summary.limits`",
    "summary.starved": "field of an item of `summary.starved`",
    "summary.floors": "field of a value of `summary.floors`",
    "summary.sample": "field of an item of `summary.sample`",
    "summary.zones": "field of `summary.zones`",
    "file_counts": "field",
}
"""The nested columns, and how the page names their fields."""


def test_the_page_explains_each_column() -> None:
    with duckdb.connect() as connection:
        connection.register("stored", STORED.empty_table())
        columns = connection.sql("DESCRIBE stored").fetchall()
    types = {name: re.sub(r"\(.*\)", "", kind) for name, kind, *_ in columns}
    lines = [
        f"| `{one.stored_name}` | {types[one.stored_name]} | {one.unit} | {one.meaning} |\n"
        for one in STORED_COLUMNS
    ]

    assert types.keys() == set(STORED.names)
    assert "".join(lines) in PAGE


def fields(kind: pa.DataType) -> list[str]:
    """Return the names of the fields of a struct, or of the structs in a list or in the values of a map."""
    if pa.types.is_map(kind):
        return fields(kind.item_type)
    if pa.types.is_list(kind):
        return fields(kind.value_type)
    return [one.name for one in kind] if pa.types.is_struct(kind) else []


def test_the_page_explains_each_field_of_nested_columns() -> None:
    tables = re.findall(r"^\| (field.*?) \| unit \| meaning \|\n\|.*\n((?:\|.*\n)+)", PAGE, re.MULTILINE)
    explained = [(heading, re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) for heading, table in tables]
    kinds = {name: STORED.field(name).type for name in ("summary", "file_counts")}
    kinds |= {f"summary.{one.name}": one.type for one in kinds["summary"] if fields(one.type)}

    assert kinds.keys() == NESTED.keys()
    assert explained == [(heading, fields(kinds[path])) for path, heading in NESTED.items()]
