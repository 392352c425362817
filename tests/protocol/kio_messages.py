"""Messages made with kio, for comparison with fetchgate: schemas, random values, and an encoder.

kio has typed dataclasses generated from Kafka's definitions, and refuses unknown tags. The encoder here uses
the same dataclasses, and can add unknown tags to every struct. Without such tags it writes the same bytes as
kio, which a test checks.
"""

import dataclasses
import datetime as dt
import importlib
import io
import types
import uuid
from collections.abc import Callable
from typing import Any, get_args, get_origin, get_type_hints

from hypothesis import strategies as st
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader, entity_writer

UNKNOWN_TAGS = ((100, b"\xab\xcd"), (300, b""))

MODULES = {
    0: "produce",
    2: "list_offsets",
    3: "metadata",
    8: "offset_commit",
    9: "offset_fetch",
    10: "find_coordinator",
    11: "join_group",
    12: "heartbeat",
    14: "sync_group",
    18: "api_versions",
    21: "delete_records",
    23: "offset_for_leader_epoch",
    28: "txn_offset_commit",
    32: "describe_configs",
    55: "describe_quorum",
    60: "describe_cluster",
    78: "share_fetch",
    79: "share_acknowledge",
}


def message_class(api_key: int, version: int, kind: str = "response") -> type[Any]:
    module = importlib.import_module(f"kio.schema.{MODULES[api_key]}.v{version}.{kind}")
    name = "".join(word.title() for word in [*MODULES[api_key].split("_"), kind])
    found: type[Any] = getattr(module, name)
    return found


def kio_encode(message: Any) -> bytes:
    out = io.BytesIO()
    entity_writer(type(message))(out, message)
    return out.getvalue()


def kio_decode(cls: type[Any], body: bytes) -> Any:
    message, size = entity_reader(cls)(body, 0)
    assert size == len(body)
    return message


# --- values ---------------------------------------------------------------------------------------


def _milliseconds(count: int) -> dt.timedelta:
    return dt.timedelta(milliseconds=count)


def _time(count: int) -> dt.datetime:
    return dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + _milliseconds(count)


def _signed(size: int) -> st.SearchStrategy[int]:
    return st.integers(-(2 ** (8 * size - 1)), 2 ** (8 * size - 1) - 1)


_VALUES: dict[str, st.SearchStrategy[Any]] = {
    "bool": st.booleans(),
    "int8": _signed(1),
    "int16": _signed(2),
    "int32": _signed(4),
    "int64": _signed(8),
    "uint16": st.integers(0, 0xFFFF),
    "string": st.text(max_size=6),
    "bytes": st.binary(max_size=6),
    "records": st.binary(max_size=200),
    "uuid": st.none() | st.uuids(),
    "error_code": st.sampled_from(ErrorCode),
    "timedelta_i32": st.integers(0, 2**31 - 1).map(_milliseconds),
    "timedelta_i64": st.integers(0, 2**40).map(_milliseconds),
    "datetime_i64": st.none() | st.integers(0, 2**40).map(_time),
}

# What an address is made of, so that each way to treat one comes up often.
_NODE_IDS = st.sampled_from([-1, 0, 1, 2, 3, 2**31 - 1])
_ADDRESSES: dict[str, st.SearchStrategy[Any]] = {
    "node_id": _NODE_IDS,
    "broker_id": _NODE_IDS,
    "host": st.sampled_from(["", "b", "broker-1.example", "h" * 130]),
    "port": st.sampled_from([1, 9092, 65535]),
}


def messages(cls: type[Any]) -> st.SearchStrategy[Any]:
    """Generate small messages of a class from kio."""
    hints = get_type_hints(cls)
    return st.builds(cls, **{field.name: _values(field, hints[field.name]) for field in _fields(cls)})


def _fields(cls: type[Any]) -> tuple["dataclasses.Field[Any]", ...]:
    return dataclasses.fields(cls)


def _values(field: "dataclasses.Field[Any]", hint: Any) -> st.SearchStrategy[Any]:
    if isinstance(hint, types.UnionType) and get_origin(get_args(hint)[0]) is tuple:
        return _values(field, get_args(hint)[0]) | st.none()
    if get_origin(hint) is tuple:
        return st.lists(_values(field, get_args(hint)[0]), max_size=3).map(tuple)
    if dataclasses.is_dataclass(hint):
        assert isinstance(hint, type)
        return messages(hint)
    kind = field.metadata["kafka_type"]
    values = _ADDRESSES.get(field.name, _VALUES[kind])
    if field.name == "port" and kind == "int32":
        values |= st.just(-1)
    return values | st.none() if kind in {"string", "bytes"} and isinstance(hint, types.UnionType) else values


# --- bytes ----------------------------------------------------------------------------------------


def _uvarint(value: int) -> bytes:
    return bytes([value]) if value < 0x80 else bytes([value & 0x7F | 0x80]) + _uvarint(value >> 7)


def _sized(value: bytes | None, size: int, *, flexible: bool) -> bytes:
    """Encode a string (`size` 2) or bytes (4), with the number of bytes before it."""
    if value is None:
        return b"\0" if flexible else b"\xff" * size
    return (_uvarint(len(value) + 1) if flexible else len(value).to_bytes(size)) + value


_BYTES: dict[str, Callable[[Any], bytes]] = {
    "bool": lambda value: bytes([value]),
    "int8": lambda value: value.to_bytes(1, signed=True),
    "int16": lambda value: value.to_bytes(2, signed=True),
    "int32": lambda value: value.to_bytes(4, signed=True),
    "int64": lambda value: value.to_bytes(8, signed=True),
    "uint16": lambda value: value.to_bytes(2),
    "records": lambda value: _uvarint(len(value) + 1) + value,
    "uuid": lambda value: (value or uuid.UUID(int=0)).bytes,
    "error_code": lambda value: value.value.to_bytes(2, signed=True),
    "timedelta_i32": lambda value: (value // _milliseconds(1)).to_bytes(4),
    "timedelta_i64": lambda value: (value // _milliseconds(1)).to_bytes(8),
    "datetime_i64": lambda value: (-1 if value is None else (value - _time(0)) // _milliseconds(1)).to_bytes(
        8, signed=True
    ),
}


def encode(entity: Any, unknown: tuple[tuple[int, bytes], ...] = ()) -> bytes:
    """Encode a kio message. The tags in `unknown` are added to every struct of a flexible version."""
    out, tagged = b"", []
    for field in _fields(type(entity)):
        value = getattr(entity, field.name)
        data = _value(field, value, flexible=entity.__flexible__, unknown=unknown)
        if "tag" not in field.metadata:
            out += data
        elif value != field.default:
            tagged.append((field.metadata["tag"], data))
    if not entity.__flexible__:
        return out
    tags = sorted([*tagged, *unknown])
    payloads = (_uvarint(tag) + _uvarint(len(data)) + data for tag, data in tags)
    return out + _uvarint(len(tags)) + b"".join(payloads)


def _value(
    field: "dataclasses.Field[Any]", value: Any, *, flexible: bool, unknown: tuple[tuple[int, bytes], ...]
) -> bytes:
    if isinstance(value, tuple):
        count = _uvarint(len(value) + 1) if flexible else len(value).to_bytes(4)
        return count + b"".join(_value(field, one, flexible=flexible, unknown=unknown) for one in value)
    if dataclasses.is_dataclass(value):
        return encode(value, unknown)
    kind: str = field.metadata.get("kafka_type", "")
    if value is None and "tuple" in str(field.type):
        return _sized(None, 4, flexible=flexible)
    if kind == "string":
        return _sized(None if value is None else value.encode(), 2, flexible=flexible)
    return _sized(value, 4, flexible=flexible) if kind == "bytes" else _BYTES[kind](value)
