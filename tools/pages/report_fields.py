"""The page of the fields of the report, in JSON and in CSV, from their declarations."""

from collections.abc import Iterator
from types import NoneType, UnionType
from typing import Any, Final, Literal, Union, get_args, get_origin, get_type_hints, is_typeddict

from replay.report import csv
from replay.report.model import Report
from tools.pages.fields import meanings, null
from tools.pages.markdown import anchor, item, marked, unit_of

_INTRODUCTION: Final = """\
# Fields of the report

`make pages` writes this page from the declarations of the report. [report.md](../users/report.md) explains
its parts. `fetchgate replay measure --json` prints one object: a [Report](#report).

- Bytes are those of whole Kafka frames, if nothing else is said.
- Predicted broker side = `sessions` + (`actual` - `eligible`), for requests and responses alike.
- The rows of `by_client`, of `by_topic` and of `by_broker` each add up to `fetch`.
- Names (client ids, software, topics, hosts) are as clients and brokers sent them."""
_CSV: Final = """
## CSV

`--csv` writes one table with one header line. Add up only rows of one kind (`by`). A column that does not
apply is empty. A column `actual_request_bytes` is `fetch.actual.request_bytes` of the JSON; so are those that
begin with `eligible` and `sessions`. Characters that can't be printed are written like `\\x1b`; a name that a
spreadsheet would read as a formula begins with an apostrophe.
"""
_NAMES: Final = {int: "integer", float: "number", str: "string", bool: "boolean", NoneType: "null"}


def page() -> str:
    """Return the text of the page."""
    columns = (item(f"`{name}`", unit_of(name), text) for name, text in csv.EXPLAINED.items())
    return "\n".join([_INTRODUCTION, *_objects(), _CSV, *columns, ""])


def _objects() -> Iterator[str]:
    """Yield a section for each type of object in the report."""
    waiting, seen = [Report], {Report}
    while waiting:
        kind = waiting.pop(0)
        yield f"\n## {kind.__name__}\n\n{marked(null(kind.__doc__ or ''))}\n"
        texts, hints = meanings(kind), get_type_hints(kind)
        for name, hint in hints.items():
            found = _object(hint)
            is_share = (name, hint) == ("bytes", float)
            unit = "" if found is not None or is_share else unit_of(name)
            yield item(f"`{name}`", ", ".join(filter(None, (_shown(hint), unit))), texts.get(name, ""))
            if found is not None and found not in seen:
                waiting.append(found)
                seen.add(found)


def _shown(hint: Any) -> str:
    """Return the name of a type of JSON. That of an object leads to its section."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin is list:
        return f"list of {_shown(inner[0])}"
    if origin is dict:
        return f"{_shown(inner[1])} by name"
    if origin in {Union, UnionType}:
        return " or ".join(map(_shown, inner))
    if origin is Literal:
        return "string"
    return _NAMES.get(hint) or f"[{hint.__name__}](#{anchor(hint.__name__)})"


def _object(hint: Any) -> Any | None:
    """Return the type of the objects in a type, such as `list[ToDo]`."""
    if is_typeddict(hint):
        return hint
    return next((found for one in get_args(hint) if (found := _object(one)) is not None), None)
