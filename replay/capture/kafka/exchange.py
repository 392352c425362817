"""What is read out of a connection: its exchanges, one by one, and at its end what else is to be told of it.

Two sums hold for every connection, whatever the capture lacks. Bytes that crossed and were captured, once
each, are `client_bytes` + `broker_bytes`. They equal the frames of all exchanges, plus `headerless_bytes`,
`unframed_bytes` and `partial_bytes`, less `frame_gap_bytes`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Final

from proxy.protocol.api import ApiKey
from proxy.protocol.fetch_layout import LAYOUTS
from proxy.protocol.fetch_response import FetchResponseWalk
from proxy.protocol.primitives import Buffer, ProtocolError

READ: Final = frozenset({ApiKey.FETCH, ApiKey.METADATA, ApiKey.API_VERSIONS})
"""API keys whose frames are handed on, not only counted."""

UNSEEN: Final = -1
"""API key, version and correlation id of what was not seen."""

CUT: Final = memoryview(bytes(1 << 20))
"""Slices of it stand for record contents that were cut away: their length is kept, their bytes are not."""


def is_cut(piece: Buffer) -> bool:
    """Whether a piece of a response only keeps the place of what was cut."""
    return isinstance(piece, memoryview) and piece.obj is CUT.obj


@dataclass(slots=True)
class Exchange:
    """A request and its response, or one of them where the other was not seen. Bytes are whole frames."""

    connection: str
    """``client host:port > broker host:port #n``; n counts the uses of these two ports from 0."""
    client: str
    """host:port"""
    broker: str
    """host:port"""
    number: int
    """Place in the connection: requests in their order; a response without a request where it is met."""
    client_id: str
    software: str
    """Name and version as the client gave them (ApiVersions v3 and later), or ""."""
    api_key: int
    api_version: int
    correlation_id: int
    request_time: int
    """ns since 1970 of the packet in which the request begins; 0: unseen. Pipelined requests that came in one
    run of segments all have the run's first."""
    response_time: int
    """ns since 1970 of the last packet of the run in which the response ends; 0: unseen."""
    request_bytes: int
    """0: unseen."""
    response_bytes: int
    """0: unseen."""
    request: bytes = b""
    """The frame, for keys in `READ` (all, when asked for); only its start where bytes are missing."""
    response: list[Buffer] = field(default_factory=list)
    """The frame in pieces, for keys in `READ`; only its start where bytes are missing."""
    request_missing: int = 0
    """Bytes of the request that the capture lacks; its length and header were seen."""
    response_missing: int = 0
    """Likewise; contents of records do not count (`CUT` stands for them), for what they are nobody reads."""
    answer_due: bool = True
    """False for Produce with acks=0, to which brokers send nothing."""


@dataclass(slots=True, kw_only=True)
class ConnectionEnd:
    """What there is to tell of a connection when all of it has been read; the last of its events."""

    connection: str
    client: str
    """Where `reason` is given: whoever sent the SYN, else the one with the higher port."""
    broker: str
    client_id: str = ""
    software: str = ""
    first_time: int = 0
    last_time: int = 0
    syn_seen: bool = False
    closed: bool = False
    """The client's FIN or RST was seen."""
    closed_time: int = 0
    packets: int = 0
    client_bytes: int = 0
    """Bytes of the client's stream that were captured, each counted once."""
    broker_bytes: int = 0
    gaps: int = 0
    """Stretches of either stream that the capture lacks, between what it has."""
    gap_bytes: int = 0
    cut_bytes: int = 0
    """Of `gap_bytes`, those that the snap length cut off."""
    frame_gap_bytes: int = 0
    """Of `gap_bytes`, those that lie in frames that are counted whole."""
    unframed_bytes: int = 0
    """Captured, and in no frame: skipped in search of one, or all of them where `reason` is given."""
    partial_bytes: int = 0
    """Captured starts of frames whose end was not seen."""
    headerless_requests: int = 0
    """Frames of which the length alone was captured."""
    headerless_responses: int = 0
    headerless_bytes: int = 0
    """Captured bytes of those."""
    resyncs: int = 0
    """How often the place where a frame begins was lost."""
    repeated_segments: int = 0
    repeated_bytes: int = 0
    """Payload seen again: retransmitted, or captured twice."""
    reordered_segments: int = 0
    reason: str = ""
    """Why the connection, or from some point on the rest of it, was not read as Kafka; "" if all was."""
    topics: dict[bytes, str] = field(default_factory=dict)
    """Topic id -> name, from Metadata responses."""


def cut(size: int) -> Iterator[memoryview]:
    """Give `CUT` for as many bytes."""
    for start in range(0, size, len(CUT)):
        yield CUT[: min(len(CUT), size - start)]


def records_alone_are_cut(response: Sequence[Buffer], version: int) -> bool:
    """Tell whether a fetch response, in pieces, can be read as if nothing were missing."""
    layout = LAYOUTS.get(version)
    if layout is None:
        return False
    walk = FetchResponseWalk(layout, 0, keep=False)
    try:
        for piece in response:
            if not is_cut(piece):
                walk.feed(bytes(piece))
            elif not walk.skip_records(len(piece)):
                return False
    except ProtocolError:
        return False
    return walk.done


def before_cut(response: Sequence[Buffer]) -> list[Buffer]:
    """Return what was captured of a response up to the first byte that was not."""
    return list(takewhile(lambda piece: not is_cut(piece), response))
