"""Builds ListOffsets and OffsetForLeaderEpoch requests and responses with kio, for tests."""

import dataclasses
from collections.abc import Iterable
from datetime import timedelta
from importlib import import_module
from itertools import groupby
from typing import Any, NamedTuple

from kio.schema.errors import ErrorCode

from tests.frames import framed
from tests.protocol.kio_messages import encode

LIST_OFFSETS, FOR_EPOCH = 2, 23
VERSIONS = [(LIST_OFFSETS, version) for version in range(1, 12)] + [
    (FOR_EPOCH, version) for version in (2, 3, 4)
]


class Place(NamedTuple):
    """A partition in a request, or its entry in a response."""

    topic: str
    partition: int
    value: int = 0
    """In a request the timestamp, or the leader epoch to look up. In a response the offset."""
    error: int = 0
    epoch: int = 4
    """The current leader epoch in a request, or the epoch in a response."""


def asks(
    api_key: int,
    version: int,
    *places: Place,
    correlation: int = 5,
    client: bytes = b"app",
    tag: bool = False,
) -> bytes:
    """Build a request. With `tag`, each struct of a flexible version has an unknown tag."""
    flexible = version >= (6 if api_key == LIST_OFFSETS else 4)
    message = _message(api_key, version, "request", places)
    head = api_key.to_bytes(2) + version.to_bytes(2) + correlation.to_bytes(4)
    head += len(client).to_bytes(2) + client + (b"\0" if flexible else b"")
    return framed(head + encode(message, ((9, b"x"),) if tag else ()))


def tells(api_key: int, version: int, *places: Place, correlation: int = 5, throttle_ms: int = 0) -> bytes:
    """Build a response."""
    flexible = version >= (6 if api_key == LIST_OFFSETS else 4)
    message = _message(
        api_key, version, "response", places, throttle_time=timedelta(milliseconds=throttle_ms)
    )
    return framed(correlation.to_bytes(4) + (b"\0" if flexible else b"") + encode(message))


_NAMES: dict[int, Any] = {
    LIST_OFFSETS: ("list_offsets", "ListOffsets", "ListOffsetsTopic", "ListOffsetsPartition"),
    FOR_EPOCH: ("offset_for_leader_epoch", "OffsetForLeaderEpoch", "OffsetForLeaderTopic", ""),
}
_RESULTS: dict[int, Any] = {
    LIST_OFFSETS: ("ListOffsetsTopicResponse", "ListOffsetsPartitionResponse"),
    FOR_EPOCH: ("OffsetForLeaderTopicResult", "EpochEndOffset"),
}


def _message(api_key: int, version: int, kind: str, places: Iterable[Place], **more: Any) -> Any:
    folder, name, topic, partition = _NAMES[api_key]
    module: Any = import_module(f"kio.schema.{folder}.v{version}.{kind}")
    if kind == "response":
        topic, partition = _RESULTS[api_key]
    elif api_key == FOR_EPOCH:
        partition = "OffsetForLeaderPartition"
    topics = tuple(
        _some(
            getattr(module, topic),
            name=key,
            topic=key,
            partitions=tuple(_entry(getattr(module, partition), api_key, place) for place in group),
        )
        for key, group in groupby(places, lambda place: place.topic)
    )
    fields = {"replica_id": -1, "isolation_level": 1, "timeout": timedelta(seconds=9), "topics": topics}
    return _some(getattr(module, name + kind.title()), **fields | more)


def _entry(cls: Any, api_key: int, place: Place) -> Any:
    return _some(
        cls,
        partition_index=place.partition,
        partition=place.partition,
        current_leader_epoch=place.epoch,
        timestamp=place.value,
        error_code=ErrorCode(place.error),
        offset=place.value,
        end_offset=place.value,
        leader_epoch=place.value if "Partition" in cls.__name__ and api_key == FOR_EPOCH else place.epoch,
    )


def _some(cls: Any, **values: Any) -> Any:
    """Make a message of those values that the version has."""
    return cls(
        **{field.name: values[field.name] for field in dataclasses.fields(cls) if field.name in values}
    )
