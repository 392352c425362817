"""The page of the columns of `measure --parquet` and of captures in Spark, from their declarations."""

from collections.abc import Iterator
from dataclasses import is_dataclass
from typing import Any, Final, get_args, get_type_hints

import pyarrow as pa

from replay.capture.files.counts import FileCounts
from replay.measure.digest import Summary
from replay.measure.table import STORED_COLUMNS
from replay.source.columns import COLUMNS
from tools.pages.fields import meanings
from tools.pages.markdown import anchor, item, unit_of

_INTRODUCTION: Final = """\
# Columns of the table

`make pages` writes this page from the schema of the table that `fetchgate replay measure --parquet` writes.
[tables.md](../users/tables.md) has queries. In DuckDB and Spark, `int64` is BIGINT, `string` is VARCHAR or
STRING, and `binary` is BLOB or BINARY. `make_timestamp_ns(...)` of DuckDB makes a timestamp of ns since 1970.
"""
_SOURCE: Final = """
## `kafka-pcap`

The columns of captures in Spark, a row for each request and its response.
"""
_NESTED: Final = {"summary": Summary, "file_counts": FileCounts}


def page() -> str:
    """Return the text of the page."""
    lines = [
        item(
            f"`{one.stored_name}`",
            ", ".join(filter(None, (_shown(one.type, one.name if one.name in _NESTED else ""), one.unit))),
            one.meaning,
        )
        for one in STORED_COLUMNS
    ]
    nested = {one.stored_name: one.type for one in STORED_COLUMNS if one.name in _NESTED}
    sections = (line for name, type_ in nested.items() for line in _section(name, type_, _NESTED[name]))
    source = (item(f"`{one.name}`", _shown(one.type, ""), one.meaning) for one in COLUMNS)
    return "\n".join([_INTRODUCTION, *lines, *sections, _SOURCE, *source, ""])


def _section(path: str, type_: pa.DataType, kind: type) -> Iterator[str]:
    """Yield the fields of a struct, then those of the structs in it. The struct is made from `kind`."""
    yield f"\n## `{path}`\n"
    found = meanings(kind)
    hints = get_type_hints(kind)
    for one in type_:
        facts = ", ".join(filter(None, (_shown(one.type, f"{path}.{one.name}"), unit_of(one.name))))
        yield item(f"`{one.name}`", facts, found[one.name])
    for one in type_:
        struct, of = _struct(one.type), _class(hints[one.name])
        if struct is not None and of is not None:
            yield from _section(f"{path}.{one.name}", struct, of)


def _shown(type_: pa.DataType, path: str) -> str:
    """Return the name of a type. A struct leads to the section of `path`, unless that is empty."""
    if pa.types.is_map(type_):
        return f"map of {_shown(type_.key_type, path)} to {_shown(type_.item_type, path)}"
    if pa.types.is_list(type_):
        return f"list of {_shown(type_.value_type, path)}"
    if pa.types.is_struct(type_):
        return f"[struct](#{anchor(path)})" if path else "struct"
    return str(type_)


def _struct(type_: pa.DataType) -> pa.StructType | None:
    """Return a struct, also if it is in a list or in the values of a map."""
    if pa.types.is_map(type_):
        return _struct(type_.item_type)
    if pa.types.is_list(type_):
        return _struct(type_.value_type)
    return type_ if pa.types.is_struct(type_) else None


def _class(hint: Any) -> type | None:
    """Return the class with fields in an annotation, such as `list[Starved]`."""
    if is_dataclass(hint) or hasattr(hint, "_fields"):
        return hint  # type: ignore[no-any-return] # it is a class
    return next((kind for one in get_args(hint) if (kind := _class(one))), None)
