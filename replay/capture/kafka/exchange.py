"""The results of reading a connection: its exchanges, and counts at its end.

One equation holds for every connection, whatever the capture lacks. `client_bytes` + `broker_bytes`, the
captured bytes, each counted once, equal the frames of all exchanges, plus `headerless_bytes`,
`unframed_bytes` and `partial_bytes`, less `frame_gap_bytes`.

A response from which only contents of records are cut counts as whole: nobody reads these.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby, takewhile
from typing import Final

from proxy.protocol.api import ApiKey
from proxy.protocol.fetch_layout import LAYOUTS
from proxy.protocol.fetch_response import FetchResponseWalk
from proxy.protocol.primitives import Buffer, ProtocolError

READ: Final = frozenset({ApiKey.FETCH, ApiKey.METADATA, ApiKey.API_VERSIONS})
"""API keys whose frames are kept, not only counted."""

UNSEEN: Final = -1
"""API key, version and correlation id of requests that were not captured."""

CUT: Final = memoryview(bytes(1 << 20))
"""A slice of it replaces contents of records that were cut, and has the same length."""


def is_cut(piece: Buffer) -> bool:
    """Return whether a piece of a response replaces bytes that were cut."""
    return isinstance(piece, memoryview) and piece.obj is CUT.obj


@dataclass(slots=True)
class Exchange:
    """A request and its response. One of them may not have been captured. Sizes are of whole frames."""

    connection: str
    """``client host:port > broker host:port #n``. n counts the connections between these ports from 0."""
    client: str
    """host:port"""
    broker: str
    """host:port"""
    number: int
    """Place in the connection, by requests. A response without a request gets a number when it is read."""
    client_id: str
    software: str
    """Name and version from the client's ApiVersions (v3 and later), or ""."""
    api_key: int
    api_version: int
    correlation_id: int
    request_time: int
    """Time of the packet in which the request begins, in ns since 1970. 0 if not captured. Pipelined requests
    in one run of segments all have the time of its first packet."""
    response_time: int
    """Time of the last packet of the run in which the response ends, in ns since 1970. 0 if not captured."""
    request_bytes: int
    """0 if not captured."""
    response_bytes: int
    """0 if not captured."""
    request: bytes = b""
    """The frame, for keys in `READ` (for all, if so configured). If bytes are missing, only its start."""
    response: list[Buffer] = field(default_factory=list)
    """The frame in pieces, for keys in `READ` (for others, if so configured). If bytes are missing, only its
    start."""
    request_missing: int = 0
    """Bytes of the request that were not captured. Its length and header were."""
    response_missing: int = 0
    """The same for the response. Contents of records do not count: `CUT` replaces them."""
    answer_due: bool = True
    """False for Produce with acks=0, to which brokers send no response."""
    group: str = ""
    """The consumer group that the request names, if so configured."""


@dataclass(slots=True, kw_only=True)
class ConnectionEnd:
    """The counts of a whole connection. It is the last of its events."""

    connection: str
    client: str
    """If there is a `reason`: the end that sent the SYN, else the one with the higher port."""
    broker: str
    client_id: str = ""
    software: str = ""
    first_time: int = 0
    last_time: int = 0
    syn_seen: bool = False
    closed: bool = False
    """The client's FIN or RST was captured."""
    closed_time: int = 0
    clocks_apart: int = 0
    """How far the clock by which the lower port's direction was captured is ahead of the other direction's,
    in ns, at least. All times of exchanges are by the latter."""
    packets: int = 0
    client_bytes: int = 0
    """Bytes of the client's stream that were captured, each counted once."""
    broker_bytes: int = 0
    gaps: int = 0
    """The number of gaps in either stream: bytes that were not captured, between bytes that were."""
    gap_bytes: int = 0
    cut_bytes: int = 0
    """The part of `gap_bytes` that the snap length cut off."""
    frame_gap_bytes: int = 0
    """The part of `gap_bytes` in frames that are counted as whole."""
    left_out_bytes: int = 0
    """The part of `cut_bytes` that no figure needs: records in fetch responses and Produce requests."""
    left_out_gaps: int = 0
    """The gaps that consist of `left_out_bytes`."""
    unframed_bytes: int = 0
    """Captured bytes outside of frames. If there is a `reason`, all bytes."""
    partial_bytes: int = 0
    """Captured bytes of frames whose end was not captured."""
    headerless_requests: int = 0
    """Frames of whose header only the length was captured."""
    headerless_responses: int = 0
    headerless_bytes: int = 0
    """Captured bytes of such frames."""
    resyncs: int = 0
    """How often the start of the next frame was lost."""
    repeated_segments: int = 0
    repeated_bytes: int = 0
    """Payload that was captured before: retransmitted, or captured twice."""
    reordered_segments: int = 0
    reason: str = ""
    """Why the connection, or its last part, was not read as Kafka. "" if all of it was."""
    tls_bytes: int = 0
    """Captured bytes of TLS itself, in a connection that was decrypted: its handshake, headers and tags of
    records, and records of which a part is missing. All other counts of bytes are of what was decrypted."""
    topics: dict[bytes, str] = field(default_factory=dict)
    """Topic id -> name, from Metadata responses."""


def cut(size: int) -> Iterator[memoryview]:
    """Yield slices of `CUT` for a number of bytes."""
    for start in range(0, size, len(CUT)):
        yield CUT[: min(len(CUT), size - start)]


def records_alone_are_cut(response: Sequence[Buffer], version: int) -> bool:
    """Return whether only contents of records are cut from a fetch response in pieces."""
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


def without_records(response: Sequence[Buffer], version: int) -> list[Buffer]:
    """Return a fetch response, or its start, with `CUT` for the contents of records.

    It stays as it is if its version is not known (v0 to v3), or if its bytes are not those of its version.
    """
    layout = LAYOUTS.get(version)
    if layout is None:
        return list(response)
    walk = FetchResponseWalk(layout, 0, keep=False, spans=True)
    try:
        for piece in response:
            if not is_cut(piece):
                walk.feed(bytes(piece))
            elif not walk.skip_records(len(piece)):
                return list(response)
    except ProtocolError:
        return list(response)
    frame = memoryview(b"".join(response))
    found: list[Buffer] = []
    at = 0
    for start, stop in walk.record_spans or []:
        end = min(stop, len(frame))
        found += [frame[at:start], *cut(end - start)]
        at = end
    return [*found, frame[at:]]


def cuts_in(response: Iterable[Buffer]) -> int:
    """Return how often something was cut from a response in pieces."""
    return sum(cut for cut, _ in groupby(map(is_cut, response)))


def before_cut(response: Sequence[Buffer]) -> list[Buffer]:
    """Return the pieces of a response before its first cut."""
    return list(takewhile(lambda piece: not is_cut(piece), response))
