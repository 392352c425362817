"""Python values as typed Arrow columns. The dataclass of a value declares the schema of its column. Sans-IO.

| Python | Arrow |
|---|---|
| int, float, bool, str, bytes | int64, float64, bool, string, binary |
| list, set, tuple of any length | list |
| dict, Counter | map |
| dataclass, NamedTuple, TypedDict, tuple | struct |
| class with `SCHEMA`, made from a table that `table()` returns | list of structs |

Columns are written and read field by field, because a Python object for each field of each row would be slow.
Fields whose names begin with `_` are left out.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from itertools import chain, pairwise
from operator import attrgetter, itemgetter
from types import NoneType, UnionType
from typing import Any, Final, Literal, Protocol, Union, get_args, get_origin, get_type_hints, is_typeddict

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_SCALARS: Final = {
    int: pa.int64(),
    float: pa.float64(),
    bool: pa.bool_(),
    str: pa.string(),
    bytes: pa.binary(),
}
_LARGEST: Final = 2**63 - 1
_SEQUENCES: Final = frozenset({list, set, frozenset})
_MAPS: Final = frozenset({dict, Counter, defaultdict, Mapping})


class Codec(Protocol):
    """A codec that writes values of one Python type to an Arrow array, and reads them back."""

    type: pa.DataType

    def write(self, values: Sequence[Any]) -> pa.Array:
        """Return values as an array."""

    def read(self, array: pa.Array) -> list[Any]:
        """Return the values in an array."""


@cache
def codec(kind: Hashable) -> Codec:
    """Return the codec of a type, given as in an annotation.

    Raises:
        TypeError: the type has no Arrow type.
    """
    origin, inner = get_origin(kind), get_args(kind)
    if kind in _SCALARS:
        return _Scalar(_SCALARS[kind])
    if origin is Literal:
        return _Scalar(_SCALARS[type(inner[0])])
    if origin in {Union, UnionType} and len(inner) == 2 and NoneType in inner:
        return _Optional(codec(next(one for one in inner if one is not NoneType)))
    if origin in _SEQUENCES or (origin is tuple and inner[1:] == (...,)):
        return _List(codec(inner[0]), origin)
    if origin in _MAPS:
        key, value = inner if len(inner) == 2 else (inner[0], int)
        return _Map(codec(key), codec(value), Counter if origin is Counter else dict)
    if origin is tuple:
        named = {f"_{place}": one for place, one in enumerate(inner, 1)}
        return _StructCodec(named, map(itemgetter, range(len(inner))), lambda **found: tuple(found.values()))
    if not isinstance(kind, type):
        raise TypeError(f"{kind} has no Arrow type")
    if hasattr(kind, "SCHEMA"):
        return _Table(kind, kind.SCHEMA)
    hints = get_type_hints(kind)
    if is_typeddict(kind):
        return _StructCodec(hints, map(itemgetter, hints), dict)
    if hasattr(kind, "_fields"):
        return _StructCodec(hints, map(itemgetter, range(len(hints))), kind)
    if is_dataclass(kind):
        shown = [one.name for one in fields(kind) if one.init and not one.name.startswith("_")]
        return _StructCodec({name: hints[name] for name in shown}, map(attrgetter, shown), kind)
    raise TypeError(f"{kind} has no Arrow type")


def bounded(count: int) -> int:
    """Return a sum as an integer of 64 bits. A sum that is too large or too small becomes the nearest one.

    Only a capture whose clock jumps by decades has such sums of times.
    """
    return max(-_LARGEST - 1, min(count, _LARGEST))


class Packed:
    """A codec that writes each value to one binary, as an Arrow record batch without its schema.

    Spark looks at each field of a struct when it plans a job, and again for each row, even if it is null. It
    does not look into a binary. So this codec is for values that only pass through Spark. None is null.
    """

    type: pa.DataType = pa.binary()

    def __init__(self, kind: Hashable) -> None:
        self._value = codec(kind)
        self._schema = pa.schema([("value", self._value.type)])

    def write(self, values: Sequence[Any]) -> pa.Array:
        packed = [None if value is None else self._pack(value) for value in values]
        if len(packed) == 1 and packed[0] is not None:  # it may be large, so it is not copied
            offsets = pa.py_buffer(np.array([0, packed[0].size], np.int32))
            return pa.Array.from_buffers(self.type, 1, [None, offsets, packed[0]])
        return pa.array([None if one is None else one.to_pybytes() for one in packed], self.type)

    def read(self, array: pa.Array) -> list[Any]:
        _, offsets, data = array.buffers()  # scalars would be copies
        edges = np.frombuffer(offsets, np.int32)[array.offset :].tolist() if len(array) else []
        spans = zip(edges, edges[1:], array.is_valid().to_pylist(), strict=False)
        return [self._unpack(data[begin:end]) if valid else None for begin, end, valid in spans]

    def _pack(self, value: Any) -> pa.Buffer:
        return pa.record_batch([self._value.write([value])], self._schema).serialize()

    def _unpack(self, packed: pa.Buffer) -> Any:
        return self._value.read(pa.ipc.read_record_batch(packed, self._schema).column(0))[0]


class _Scalar:
    def __init__(self, kind: pa.DataType) -> None:
        self.type = kind

    def write(self, values: Sequence[Any]) -> pa.Array:
        return pa.array(values, self.type)

    def read(self, array: pa.Array) -> list[Any]:
        found: list[Any] = array.to_numpy(zero_copy_only=False).tolist()
        return found


class _Optional:
    _ROWS: Final = 4096

    def __init__(self, value: Codec) -> None:
        self.type = value.type
        self._value = value
        self._nulls = pa.nulls(self._ROWS, value.type)
        """An array of nulls. `write` returns slices of it, which share its memory: a new array of a struct
        with many fields would be large."""

    def write(self, values: Sequence[Any]) -> pa.Array:
        present = [value is not None for value in values]
        if not any(present):
            count = len(values)
            return self._nulls[:count] if count <= self._ROWS else pa.nulls(count, self.type)
        found = self._value.write([value for value in values if value is not None])
        if all(present):
            return found
        places = np.cumsum(present) - 1
        return found.take(pa.array(places, mask=~np.array(present)))

    def read(self, array: pa.Array) -> list[Any]:
        if not array.null_count:
            return self._value.read(array)
        valid = array.is_valid()
        found = iter(self._value.read(array.filter(valid)))
        return [next(found) if one else None for one in valid.to_pylist()]


class _List:
    def __init__(self, item: Codec, build: Callable[[list[Any]], Any]) -> None:
        self.type = pa.list_(item.type)
        self._item = item
        self._build = build

    def write(self, values: Sequence[Any]) -> pa.Array:
        if self._build in {set, frozenset}:
            values = [sorted(value) for value in values]
        return pa.ListArray.from_arrays(_offsets(values), self._item.write(list(chain.from_iterable(values))))

    def read(self, array: pa.Array) -> list[Any]:
        if not len(array):
            return []
        found = self._item.read(array.flatten())
        parts = (found[begin:end] for begin, end in pairwise(_places(array)))
        return list(parts) if self._build is list else [self._build(part) for part in parts]


class _Map:
    def __init__(self, key: Codec, value: Codec, build: Callable[[Iterable[tuple[Any, Any]]], Any]) -> None:
        self.type = pa.map_(key.type, value.type)
        self._key, self._value = key, value
        self._build = build

    def write(self, values: Sequence[Any]) -> pa.Array:
        keys = self._key.write(list(chain.from_iterable(values)))
        items = self._value.write([item for value in values for item in value.values()])
        return pa.MapArray.from_arrays(_offsets(values), keys, items)

    def read(self, array: pa.Array) -> list[Any]:
        if not len(array):
            return []
        places = _places(array)
        whole = slice(array.offsets[0].as_py(), array.offsets[-1].as_py())
        keys, items = self._key.read(array.keys[whole]), self._value.read(array.items[whole])
        return [
            self._build(dict(zip(keys[begin:end], items[begin:end], strict=True)))
            for begin, end in pairwise(places)
        ]


class _StructCodec:
    def __init__(
        self,
        hints: Mapping[str, Any],
        getters: Iterable[Callable[[Any], Any]],
        build: Callable[..., Any],
    ) -> None:
        self._codecs = {name: codec(hint) for name, hint in hints.items()}
        self._getters = list(getters)
        self._build = build
        self._fields = [pa.field(name, one.type) for name, one in self._codecs.items()]
        self.type = pa.struct(self._fields)

    def write(self, values: Sequence[Any]) -> pa.Array:
        columns = [
            one.write(list(map(get, values)))
            for one, get in zip(self._codecs.values(), self._getters, strict=True)
        ]
        return pa.StructArray.from_arrays(columns, fields=self._fields)

    def read(self, array: pa.Array) -> list[Any]:
        columns = [one.read(array.field(name)) for name, one in self._codecs.items()]
        names = tuple(self._codecs)
        return [self._build(**dict(zip(names, row, strict=True))) for row in zip(*columns, strict=True)]


class _Table:
    """A codec that copies no values when it reads, and makes no Python objects of them."""

    def __init__(self, build: Callable[[pa.Table], Any], schema: pa.Schema) -> None:
        self.type = pa.list_(pa.struct(list(schema)))
        self._build, self._schema = build, schema

    def write(self, values: Sequence[Any]) -> pa.Array:
        tables = [value.table() for value in values]
        found = pa.concat_tables(tables or [self._schema.empty_table()]).combine_chunks().to_batches()
        rows = found[0] if found else pa.RecordBatch.from_pylist([], self._schema)
        return pa.ListArray.from_arrays(_offsets(tables), rows.to_struct_array())

    def read(self, array: pa.Array) -> list[Any]:
        return [self._build(pa.Table.from_struct_array(one.values)) for one in array]


def _offsets(values: Sequence[Any]) -> pa.Array:
    return pa.array(np.cumsum([0, *map(len, values)]), pa.int32())


def _places(array: pa.Array) -> list[int]:
    """Return where each list begins in the array's values, from 0 on, and the end of the last list."""
    offsets = array.offsets.to_numpy()
    found: list[int] = (offsets - offsets[0]).tolist()
    return found


def struct_field(array: pa.Array, name: str) -> pa.Array:
    """Return one field of a struct column. It is null where the struct is null."""
    return pc.struct_field(array, name)
