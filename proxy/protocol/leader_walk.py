"""Finds the newer leaders that responses other than Fetch and Metadata name, by the tables of `schemas`."""

from typing import Final

from proxy.protocol.address_walk import skip_field
from proxy.protocol.metadata import LEADER_BYTES, MAX_LEADERS, LeaderHint
from proxy.protocol.primitives import UUID_BYTES, read_compact_count, read_tags
from proxy.protocol.schemas import Field, Kind, Struct, leaders_layout

_INT32_BYTES: Final = 4


def read_leaders(api_key: int, version: int, body: bytes) -> list[LeaderHint]:
    """Return what Produce (v13), ShareFetch and ShareAcknowledge name as current_leader (KIP-951).

    Args:
        api_key: that of the request.
        version: that of the request.
        body: the response without its header, whole.

    Raises:
        ProtocolError: the body is not of that version.
    """
    struct = leaders_layout(api_key, version)
    if struct is None:
        return []
    walk = _LeaderWalk(body)
    walk.struct(struct, 0)
    return walk.leaders


class _LeaderWalk:
    def __init__(self, body: bytes) -> None:
        self._body = body
        self._topic_id = b""
        self._partition = 0
        self.leaders: list[LeaderHint] = []

    def struct(self, struct: Struct, at: int) -> int:
        for field in struct.fields:
            at = self._field(field, at)
        tags, end = read_tags(self._body, at)
        for tag, start, stop in tags:
            if tag == struct.leader_tag and stop - start >= LEADER_BYTES:
                self._note(start)
        return end

    def _field(self, field: Field, at: int) -> int:
        if field.kind is Kind.ARRAY and field.struct is not None:
            count, at = read_compact_count(self._body, at)
            for _ in range(count or 0):
                at = self.struct(field.struct, at)
            return at
        end = skip_field(field, self._body, at, flexible=True)
        if field.name == "topic_id":
            self._topic_id = self._body[at : at + UUID_BYTES]
        elif field.name == "partition_index":
            self._partition = self._int32(at)
        elif field.name == "current_leader":
            self._note(at)
        return end

    def _note(self, at: int) -> None:
        if len(self.leaders) == MAX_LEADERS:
            return
        leader_id, leader_epoch = self._int32(at), self._int32(at + _INT32_BYTES)
        self.leaders.append(LeaderHint(self._topic_id, self._partition, leader_id, leader_epoch))

    def _int32(self, at: int) -> int:
        return int.from_bytes(self._body[at : at + _INT32_BYTES], signed=True)
