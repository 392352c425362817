"""Builds Metadata responses v1 to v13 with kio, of partitions whose replicas differ, for tests."""

from collections.abc import Iterable, Mapping
from datetime import timedelta
from importlib import import_module
from typing import Any, Final, NamedTuple
from uuid import UUID

from kio.schema.errors import ErrorCode
from kio.schema.types import BrokerId, TopicName
from kio.static.primitive import i32

from tests.protocol.kio_messages import encode

VERSIONS: Final = range(1, 14)
RACKS: Final[Mapping[int, str | None]] = {1: "R1", 2: "R2", 3: "R3"}
ORDERS: Final = UUID(int=0xA1)


class Part(NamedTuple):
    """A partition, as Metadata describes it."""

    leader: int = 1
    isr: tuple[int, ...] = (1, 2, 3)
    replicas: tuple[int, ...] = (1, 2, 3)
    offline: tuple[int, ...] = ()
    epoch: int = 5
    error: int = 0
    number: int | None = None
    """The number of the partition. None if it is its place in the list."""


def message(
    version: int,
    topics: Mapping[str, Iterable[Part]],
    *,
    racks: Mapping[int, str | None] = RACKS,
    ids: Mapping[str, UUID | None] | None = None,
    errors: Mapping[str, int] | None = None,
) -> Any:
    """Return a Metadata response as a message of kio. Topics have ids from v10 on, by default `ORDERS`."""
    module: Any = import_module(f"kio.schema.metadata.v{version}.response")
    more: dict[str, Any] = {"throttle_time": timedelta()} if version >= 3 else {}
    if version >= 2:
        more["cluster_id"] = "cluster"
    if 8 <= version <= 10:
        more["cluster_authorized_operations"] = i32(-(2**31))
    if version >= 13:
        more["error_code"] = ErrorCode.none
    return module.MetadataResponse(
        brokers=tuple(
            module.MetadataResponseBroker(
                node_id=BrokerId(node_id), host=f"broker-{node_id}", port=i32(9092), rack=rack
            )
            for node_id, rack in racks.items()
        ),
        controller_id=BrokerId(1),
        topics=tuple(
            module.MetadataResponseTopic(
                error_code=ErrorCode((errors or {}).get(name, 0)),
                name=TopicName(name),
                is_internal=False,
                partitions=tuple(_partition(version, at, part) for at, part in enumerate(parts)),
                **({"topic_authorized_operations": i32(-(2**31))} if version >= 8 else {}),
                **({"topic_id": (ids or {}).get(name, ORDERS)} if version >= 10 else {}),
            )
            for name, parts in topics.items()
        ),
        **more,
    )


def _partition(version: int, at: int, part: Part) -> Any:
    module: Any = import_module(f"kio.schema.metadata.v{version}.response")
    more: dict[str, Any] = {"leader_epoch": i32(part.epoch)} if version >= 7 else {}
    if version >= 5:
        more["offline_replicas"] = tuple(map(BrokerId, part.offline))
    return module.MetadataResponsePartition(
        error_code=ErrorCode(part.error),
        partition_index=i32(at if part.number is None else part.number),
        leader_id=BrokerId(part.leader),
        replica_nodes=tuple(map(BrokerId, part.replicas)),
        isr_nodes=tuple(map(BrokerId, part.isr)),
        **more,
    )


def body(
    version: int,
    topics: Mapping[str, Iterable[Part]],
    *,
    tags: tuple[tuple[int, bytes], ...] = (),
    **fields: Any,
) -> bytes:
    """Build the body of a Metadata response, with these unknown tags in every struct."""
    return encode(message(version, topics, **fields), tags if version >= 9 else ())
