"""Error codes are found in the responses of every API at every version, as kio's schemas have them."""

import dataclasses
import datetime as dt
import importlib
import io
import itertools
import pkgutil
from collections.abc import Iterator
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

import kio.schema
import pytest
from kio.schema.errors import ErrorCode
from kio.serial import entity_writer

from proxy.protocol.api import ApiKey, response_header
from replay.drive.errors import LAYOUTS, Errors, error_name, read_errors
from tools.kafka import raw


def _responses() -> Iterator[tuple[int, int, type[Any]]]:
    """The API key, the version and the class of every response that kio knows."""
    for api in pkgutil.iter_modules(kio.schema.__path__):
        module = importlib.import_module(f"kio.schema.{api.name}")
        for version in pkgutil.iter_modules(module.__path__) if api.ispkg else ():
            name = f"kio.schema.{api.name}.{version.name}.response"
            if not (Path(module.__path__[0]) / version.name / "response.py").exists():
                continue
            found = importlib.import_module(name)
            (cls,) = [
                each
                for each in vars(found).values()
                if isinstance(each, type) and each.__module__ == name and each.__type__.name == "response"  # type: ignore[attr-defined]  # kio's own
            ]
            yield cls.__api_key__, cls.__version__, cls


RESPONSES = {(key, version): cls for key, version, cls in _responses() if key in set(ApiKey)}
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


def _made(cls: type[Any], codes: Iterator[int]) -> Any:
    """A message with two elements in each array, where each error code is another one."""
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
        return _made(hint, codes)  # type: ignore[arg-type]  # it is a class
    kind = field.metadata["kafka_type"]
    if field.name.endswith("error_code"):
        return ErrorCode(next(codes)) if kind == "error_code" else next(codes)
    return _PLAIN.get(kind, 1)


def _codes(message: Any, depth: int = 0) -> Iterator[tuple[int, int]]:
    for field in (each for each in dataclasses.fields(message) if "tag" not in each.metadata):
        value = getattr(message, field.name)
        if field.name.endswith("error_code"):
            yield depth, value.value if isinstance(value, ErrorCode) else value
        for each in value if isinstance(value, tuple) else (value,):
            if dataclasses.is_dataclass(each):
                yield from _codes(each, depth + 1)


def _frame(key: int, version: int, message: Any) -> bytes:
    out = io.BytesIO()
    entity_writer(type(message))(out, message)
    head = bytes(4)
    with_tags = head + b"\0"
    tags = b"\0" if response_header(raw.frame(with_tags), 4, key, version)[1] == 9 else b""
    return raw.frame(head + tags + out.getvalue())


@pytest.mark.parametrize(
    ("key", "version"), sorted(each for each in RESPONSES if each[0] in LAYOUTS), ids=str
)
def test_every_error_code_of_a_response_is_found(key: int, version: int) -> None:
    message = _made(RESPONSES[key, version], itertools.count(1))
    expected = [*_codes(message)]

    assert read_errors(key, version, [_frame(key, version, message)]) == Errors(
        tuple(code for depth, code in expected if not depth), tuple(code for depth, code in expected if depth)
    )


def test_no_api_with_error_codes_is_left_out() -> None:
    """Fetch has a reader of its own; the rest are requests that only brokers and controllers send."""
    with_codes = {key for (key, _), cls in RESPONSES.items() if any(_codes(_made(cls, itertools.cycle([1]))))}
    among_brokers = {"ENVELOPE", "VOTE", "BEGIN_QUORUM_EPOCH", "END_QUORUM_EPOCH", "FETCH_SNAPSHOT"} | {
        *("ALTER_PARTITION", "BROKER_REGISTRATION", "BROKER_HEARTBEAT", "CONTROLLER_REGISTRATION"),
        *("ALLOCATE_PRODUCER_IDS", "ASSIGN_REPLICAS_TO_DIRS", "UPDATE_RAFT_VOTER"),
    }

    left_out = with_codes - LAYOUTS.keys()
    assert {ApiKey(key).name for key in left_out} == {"FETCH"} | among_brokers


@pytest.mark.parametrize(
    ("key", "version", "body", "found"),
    [
        # ListOffsets v0: an array of offsets instead of a timestamp and an offset.
        (
            ApiKey.LIST_OFFSETS,
            0,
            raw.array([raw.string("t") + raw.array([bytes(4) + b"\0\3" + raw.array([bytes(8)])] * 2)]),
            Errors((), (3, 3)),
        ),
        # Produce v0 has no throttle_time_ms, and no more than an offset for each partition.
        (
            ApiKey.PRODUCE,
            0,
            raw.array([raw.string("t") + raw.array([bytes(4) + b"\0\6" + bytes(8)])]),
            Errors((), (6,)),
        ),
        (ApiKey.OFFSET_FETCH, 2, raw.array([]) + b"\0\x10", Errors((16,), ())),
        (ApiKey.HEARTBEAT, 0, b"\0\x19", Errors((25,), ())),
        # KIP-511: v0, with error 35, is the response to every version that a broker does not have.
        (ApiKey.API_VERSIONS, 4, b"\0\x23" + raw.array([]), Errors((35,), ())),
    ],
)
def test_old_responses_are_read(key: int, version: int, body: bytes, found: Errors) -> None:
    assert read_errors(key, version, [raw.frame(bytes(4) + body)]) == found


def test_a_response_that_ends_early_is_not_read() -> None:
    assert read_errors(ApiKey.HEARTBEAT, 1, [raw.frame(bytes(4) + bytes(4) + b"\0")]) is None
    assert read_errors(ApiKey.PRODUCE, 3, [raw.frame(bytes(4) + raw.array([b"\0\5t"]))]) is None


def test_a_key_that_is_not_known_has_no_errors() -> None:
    assert read_errors(1234, 0, [raw.frame(bytes(4) + b"\0\1")]) == Errors()


def test_errors_have_kafkas_names() -> None:
    assert [error_name(each.value) for each in ErrorCode] == [
        f"{each.value} {each.name.upper()}" for each in ErrorCode
    ]
    assert (error_name(-2), error_name(4711)) == ("-2", "4711")
