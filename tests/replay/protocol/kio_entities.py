"""Makes messages of every API at every version, with kio's classes (generated from Kafka's definitions)."""

import dataclasses
import datetime as dt
import importlib
import pkgutil
from collections.abc import Iterator
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

import kio.schema
from kio.schema.errors import ErrorCode

from proxy.protocol.api import ApiKey


def classes(kind: str) -> dict[tuple[int, int], type[Any]]:
    """Return the kio class of every request, or of every response, by API key and version."""
    found: dict[tuple[int, int], type[Any]] = {}
    for api in pkgutil.iter_modules(kio.schema.__path__):
        folder = importlib.import_module(f"kio.schema.{api.name}").__path__[0] if api.ispkg else ""
        for file in Path(folder).glob(f"v*/{kind}.py") if folder else ():
            name = f"kio.schema.{api.name}.{file.parent.name}.{kind}"
            for each in vars(importlib.import_module(name)).values():
                if getattr(each, "__module__", "") == name and each.__type__.name == kind:
                    found[each.__api_key__, each.__version__] = each
    return {each: cls for each, cls in found.items() if each[0] in set(ApiKey)}


_PLAIN: dict[str, Any] = {
    "bool": True,
    "uuid": None,
    "string": "s",
    "bytes": b"b",
    "records": b"r",
    "float64": 1.0,
    "datetime_i64": dt.datetime(2026, 1, 1, tzinfo=dt.UTC),
    **dict.fromkeys(("timedelta_i32", "timedelta_i64"), dt.timedelta(milliseconds=5)),
}


def made(cls: type[Any], codes: Iterator[int]) -> Any:
    """Make a message of class `cls` with two elements in each array. `codes` gives its error codes."""
    hints = get_type_hints(cls)
    values = {}
    for field in dataclasses.fields(cls):
        if "tag" not in field.metadata or field.default is dataclasses.MISSING:
            values[field.name] = _value(field, hints[field.name], codes)
    return cls(**values)


def _value(field: "dataclasses.Field[Any]", hint: Any, codes: Iterator[int]) -> Any:
    if get_origin(hint) is UnionType:
        hint = next(each for each in get_args(hint) if each is not type(None))
    if get_origin(hint) is tuple:
        return tuple(_value(field, get_args(hint)[0], codes) for _ in range(2))
    if dataclasses.is_dataclass(hint):
        return made(hint, codes)  # type: ignore[arg-type]  # it is a class
    kind = field.metadata["kafka_type"]
    if field.name.endswith("error_code"):
        return ErrorCode(next(codes)) if kind == "error_code" else next(codes)
    return _PLAIN.get(kind, 1)
