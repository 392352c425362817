"""Builds complete fetch frames (with length prefix), and reads captured exchanges with real brokers.

The bytes come from the codec of the test model (`tests.model.wire`). This codec was checked against real
brokers, kio and Kafka's schemas, and shares no code with fetchgate.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, Final, TypeAlias

from proxy.protocol.api import request_header
from proxy.protocol.fetch_layout import LAYOUTS
from proxy.protocol.fetch_request import FetchRequest, parse_fetch_request
from proxy.protocol.fetch_response import FetchResponseWalk
from tests.model import wire

EVERY_VERSION: Final = range(4, 19)
VERSIONS: Final = (4, 5, 7, 9, 11, 12, 13, 15, 18)
"""The first version of each layout, and the newest. `test_fetch_layout.py` checks that the others have the
layout of the version before.
"""
SESSION_VERSIONS: Final = VERSIONS[2:]
DATA: Final = Path(__file__).parent / "data"

Want: TypeAlias = tuple[str, int] | tuple[str, int, int]
"""A partition to fetch: topic, partition, and fetch offset (0 if left out)."""


@dataclass(frozen=True, slots=True)
class LiveExchange:
    """A captured request and response of a live broker, with length prefixes."""

    name: str
    broker: str
    version: int
    request: bytes
    response: bytes

    def __str__(self) -> str:
        return f"{self.name}@{self.broker}"


def framed(content: bytes) -> bytes:
    return len(content).to_bytes(4) + content


def live(*versions: int) -> list[LiveExchange]:
    """Return all captured fetches of these versions. Without arguments, return those of v4 to v18."""
    return [exchange for exchange in _live() if not versions or exchange.version in versions]


@cache
def _live() -> list[LiveExchange]:
    vectors = json.loads((DATA / "fetch-live.json").read_text())
    return [
        LiveExchange(
            vector["name"],
            vector["broker"],
            vector["api_version"],
            framed(bytes.fromhex(vector["request_hex"])),
            framed(bytes.fromhex(vector["response_hex"])),
        )
        for vector in vectors
        if vector["api_key"] == 1 and vector["api_version"] >= 4
    ]


def topic_id(name: str) -> bytes:
    """Return an id for a topic. The id ends in zero bytes, so that tests show whether zeros are lost."""
    found = name.encode().ljust(16, b"\0")
    assert len(found) == 16, name
    return found


def wire_key(version: int, name: str) -> bytes:
    """Return the key that identifies a topic in a fetch: the name, or the topic id from v13."""
    return topic_id(name) if version >= 13 else name.encode()


def named(version: int, name: str) -> dict[str, Any]:
    return {"topic_id": topic_id(name)} if version >= 13 else {"topic": name}


def fetch(
    version: int,
    *wants: Want,
    session: tuple[int, int] = (0, -1),
    forget: Iterable[tuple[str, int]] = (),
    values: Mapping[str, int] | None = None,
    correlation: int = 1,
    client: str | None = "c",
    **fields: Any,
) -> bytes:
    """Build a fetch request as a client sends it.

    Consecutive entries of a topic share one topic element. `values` apply to every partition.
    """
    topics = []
    for name, listed in groupby(wants, itemgetter(0)):
        parts: list[dict[str, Any]] = [
            {"partition": index, "fetch_offset": offset[0] if offset else 0, **(values or {})}
            for _, index, *offset in listed
        ]
        partitions = tuple(wire.FetchPartition(**part) for part in parts)
        topics.append(wire.FetchTopic(**named(version, name), partitions=partitions))
    request = wire.FetchRequest(
        version=version,
        correlation_id=correlation,
        client_id=client,
        session_id=session[0],
        session_epoch=session[1],
        topics=tuple(topics),
        forgotten=tuple(
            wire.ForgottenTopic(**named(version, name), partitions=(index,)) for name, index in forget
        ),
        **{"max_wait_ms": 500, "max_bytes": 52_428_800} | fields,
    )
    return framed(wire.encode_request(request))


def entry(
    partition: int, hw: int = 0, *, error: int = 0, records: bytes | None = b"", **fields: Any
) -> wire.PartitionData:
    """Build a partition entry of a fetch response.

    By default there is no error, the last stable offset is the high watermark, and the log starts at offset
    0.
    """
    if error:
        told: dict[str, Any] = {"error_code": error}
    else:
        told = {"high_watermark": hw, "last_stable_offset": hw, "log_start_offset": 0}
    return wire.PartitionData(partition_index=partition, records=records, **told | fields)


def fetch_response(version: int, *elements: tuple[str, list[wire.PartitionData]], **fields: Any) -> bytes:
    """Build a fetch response. `fields` are those of `tests.model.wire.FetchResponse`; the default correlation
    id is 1.
    """
    topics = tuple(wire.TopicData(**named(version, name), partitions=tuple(data)) for name, data in elements)
    fields = {"correlation_id": 1} | fields
    return framed(wire.encode_response(wire.FetchResponse(version=version, topics=topics, **fields)))


def parsed(frame: bytes) -> FetchRequest:
    """Parse a fetch request with the parser that the connection uses."""
    _, version, _, _, body = request_header(frame, 4)
    return parse_fetch_request(frame, version, body)


def walked(frame: bytes, version: int, isolation_level: int = 0, *, keep: bool = True) -> FetchResponseWalk:
    """Walk through a complete response, given in one chunk."""

    walk = FetchResponseWalk(LAYOUTS[version], isolation_level, keep=keep)
    walk.feed(frame)
    return walk
