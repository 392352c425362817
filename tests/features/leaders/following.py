"""Builds clients whose partitions move to another leader, for tests of `--follow-leader`."""

import struct
from collections.abc import Iterable, Mapping
from typing import Any, Final, Self
from uuid import UUID

from proxy.core.asking.repeat import MAX_BYTES
from proxy.core.asking.role import QUIET_SECONDS
from proxy.core.asking.siblings import Siblings
from proxy.core.connection import Connection
from proxy.core.events import Tally
from proxy.features.leaders.fetch_repeat import WAIT_MS
from proxy.features.leaders.stage import LeadersStage
from proxy.protocol.api import ApiKey
from tests.core.metadata import body, message, partition, topic
from tests.frames import Want, entry, fetch, fetch_response, topic_id
from tests.playbook import Playbook, request, response
from tests.protocol.kio_messages import encode

OURS: Final = 0x6667_666C
TOPIC: Final = "orders"
OLD: Final = 1
NEW: Final = 2
NONE: Final[dict[str, int]] = {"current_leader_epoch": -1}
Epochs = Mapping[int, tuple[int, int]]


def gateway(node_id: int, _host: str, _port: int) -> tuple[str, int]:
    """Map broker N to the address broker-N:9092."""
    return f"broker-{node_id}", 9092


def fresh(siblings: Siblings, node_id: int | None, host: str = "10.0.0.7", **more: Any) -> Playbook:
    """Return a connection whose fetches follow leaders. The client has sent nothing yet."""
    more["stages"] = (*more.get("stages", ()), LeadersStage)
    return Playbook(resolve=gateway, core=Connection, siblings=siblings, host=host, node_id=node_id, **more)


def play(
    siblings: Siblings, node_id: int | None, host: str = "10.0.0.7", client: bytes = b"c", **more: Any
) -> Playbook:
    """Return a connection of an authenticated client. Its last response came some time ago."""
    played = fresh(siblings, node_id, host, **more)
    played.now = -QUIET_SECONDS
    asked = request(18, 0, 1, client=client)
    played.client(asked).to_broker(asked).broker(told := response(1, bytes(6))).to_client(told)
    played.exchange(request(ApiKey.HEARTBEAT, 0, 1, client=client), response(1, b"\0\0"))
    played.now = 0.0
    return played


class Two:
    """A client with two connections: one to the old leader, one to the new leader."""

    def __init__(self, version: int = 11, *, epoch: int = -1, max_wait_ms: int = 500) -> None:
        self.siblings = Siblings()
        self.old, self.new = play(self.siblings, OLD), play(self.siblings, NEW)
        self.version, self.epoch, self.max_wait_ms = version, epoch, max_wait_ms

    def fetch(self, *wants: Want, **fields: Any) -> bytes:
        values = {"current_leader_epoch": self.epoch} if self.version >= 9 else {}
        fields = {"max_wait_ms": self.max_wait_ms, "correlation": 5, "values": values, **fields}
        return fetch(self.version, *wants, **fields)

    def fails(self, *wants: Want, errors: Iterable[int] = (6,), **fields: Any) -> Self:
        """Let the client fetch from the old leader, and let the old leader refuse the fetch with `errors`."""
        asked = self.fetch(*wants, **fields)
        self.old.client(asked).to_broker(asked)
        self.old.broker(self.refusal(*wants, errors=errors))
        return self

    def refusal(self, *wants: Want, errors: Iterable[int] = (6,), correlation: int = 5) -> bytes:
        data = [entry(want[1], error=error) for want, error in zip(wants, errors, strict=True)]
        return fetch_response(self.version, (TOPIC, data), correlation_id=correlation)

    def asks_leaders(self) -> Self:
        self.old.to_broker(metadata_request(self.version >= 13))
        return self

    def leaders(self, told: Epochs) -> Self:
        self.old.broker(metadata_response(self.version >= 13, told))
        return self

    def repeated(self, *wants: Want, **fields: Any) -> bytes:
        asked = {"correlation": OURS, "max_wait_ms": WAIT_MS, "min_bytes": 1, "max_bytes": MAX_BYTES}
        return self.fetch(*wants, **asked | fields)

    def refused(self, reason: str) -> None:
        """Check that the client gets the error of the old leader for its fetch of one partition, and why."""
        self.old.to_client(self.refusal((TOPIC, 0)))
        assert self.counted() == ({}, {reason: 1})

    def counted(self) -> tuple[dict[str, int], dict[str, int]]:
        tally: Tally = self.old.connection.tally
        return dict(+tally.leaders_followed), dict(+tally.leaders_not_followed)


def metadata_request(by_id: bool) -> bytes:
    if by_id:
        return request(3, 12, OURS, b"\0\2" + topic_id(TOPIC) + b"\0\0" + b"\0\0\0")
    return request(3, 7, OURS, b"\0\0\0\1" + b"\0\6orders" + b"\0")


def metadata_response(by_id: bool, told: Epochs) -> bytes:
    if by_id:
        return response(OURS, b"\0" + body(12, told, topic_id=UUID(bytes=topic_id(TOPIC))))
    entries = [partition(7, index, *leader) for index, leader in told.items()]
    return response(OURS, encode(message(7, topic(7, None, entries))))


def epochs_request(*entries: tuple[int, int, int]) -> bytes:
    said = b"".join(struct.pack(">iii", *each) for each in entries)
    return request(23, 2, OURS, b"\0\0\0\1\0\6orders" + len(entries).to_bytes(4) + said)


def epochs_response(*entries: tuple[int, int, int, int]) -> bytes:
    said = b"".join(struct.pack(">hiiq", *each) for each in entries)
    return response(OURS, bytes(4) + b"\0\0\0\1\0\6orders" + len(entries).to_bytes(4) + said)
