"""The results of reading a connection: its exchanges, and the counts at its end.

The following equation holds for every connection, also with gaps in the capture. Its left side counts each
captured byte once:

    client_bytes + broker_bytes = bytes of all exchanges
        + headerless_bytes + unframed_bytes + partial_bytes - frame_gap_bytes

If only contents of records are missing from a response, the response counts as complete: few parts of
replay read these contents (`measure --cooperative`, `drive --compare`), and they note what they can't read.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, takewhile
from typing import Final

from proxy.protocol.api import ApiKey
from proxy.protocol.fetch_layout import LAYOUTS
from proxy.protocol.fetch_response import FetchResponseWalk
from proxy.protocol.primitives import Buffer, ProtocolError

READ: Final = frozenset({ApiKey.FETCH, ApiKey.METADATA, ApiKey.API_VERSIONS, ApiKey.DESCRIBE_CLUSTER})
"""The API keys whose frames are kept by default. Others are only counted."""

UNSEEN: Final = -1
"""The value of API key and version if the request was not captured."""

CUT: Final = memoryview(bytes(1 << 20))
"""A block of zeros. If contents of records were cut, a slice of this block with the same length replaces
them."""


def is_cut(piece: Buffer) -> bool:
    """Return whether a piece of a response is a placeholder for bytes that were cut."""
    return isinstance(piece, memoryview) and piece.obj is CUT.obj


@dataclass(slots=True)
class Exchange:
    """A request and its response. One of the two may be missing in the capture.

    Sizes are those of whole frames.
    """

    connection: str
    """The name of the connection: ``client host:port > broker host:port #n``. The number n counts the
    connections between these two ports, from 0."""
    client: str
    """host:port"""
    broker: str
    number: int
    """The position of the exchange in its connection, in the order of the requests. A response whose request
    was not captured gets the next position when its request is no longer expected."""
    client_id: str = ""
    software: str = ""
    """Name and version from the client's ApiVersions (v3 and later), or ""."""
    api_key: int = UNSEEN
    api_version: int = UNSEEN
    correlation_id: int = UNSEEN
    request_time: int = 0
    """Time of the packet in which the request begins, in ns since 1970. 0 if not captured. Pipelined requests
    in one run of segments all have the time of its first packet."""
    response_time: int = 0
    """Time of the last packet of the run in which the response ends, in ns since 1970. 0 if not captured."""
    request_bytes: int = 0
    """0 if it was not captured."""
    response_bytes: int = 0
    """0 if it was not captured."""
    request: bytes = b""
    """The request frame, if its API key is in `READ` or all requests are kept. If bytes of the request are
    missing, only the bytes before the first gap."""
    response: list[Buffer] = field(default_factory=list)
    """The response frame in pieces, if its API key is in `READ` or was chosen to be kept. If bytes of the
    response are missing, only the bytes before the first gap."""
    request_missing: int = 0
    """Bytes of the request that were not captured. Its length and header were captured."""
    response_missing: int = 0
    """Bytes of the response that were not captured. Contents of records do not count, because `CUT` replaces
    them."""
    answer_due: bool = True
    """Whether a response is expected. False for Produce with acks=0, because brokers send no response to
    it."""
    group: str = ""
    """The consumer group that the request names. Empty if it names none, or if groups are not kept."""
    errors: Mapping[int, int] | None = None
    """How often the response has each error code. Only known if the exchange comes from a stored table."""
    place: int = 0
    """The position in its connection, by completion. 0 until `measure` has counted it."""


@dataclass(slots=True, kw_only=True)
class ConnectionEnd:
    """The counts of a complete connection. This is the last event of each connection."""

    connection: str
    """As the column of this name."""
    client: str
    """The client's address. If nothing was read as Kafka, it is the address that sent the first SYN, or else
    the address with the higher port."""
    broker: str
    """host:port, also if the connection is not Kafka."""
    client_id: str = ""
    """That of the last request."""
    software: str = ""
    """The name and version from ApiVersions v3 or later. "" if unknown."""
    first_time: int = 0
    """The first packet, in ns since 1970."""
    last_time: int = 0
    """The last packet, in ns since 1970."""
    syn_seen: bool = False
    """Whether the beginning of the connection was captured."""
    closed: bool = False
    """Whether the client's FIN or RST was captured."""
    closed_time: int = 0
    """The time of the FIN or RST, in ns since 1970. 0 if there is none."""
    clocks_apart: int = 0
    """The smallest distance of the clocks of the two directions, in ns. The clock of the lower port's
    direction is ahead of the other clock, which times of exchanges use."""
    packets: int = 0
    client_bytes: int = 0
    """Captured bytes of the client's stream, each counted once."""
    broker_bytes: int = 0
    """Captured bytes of the broker's stream, each counted once."""
    gaps: int = 0
    """Places in both streams where captured bytes follow missing ones."""
    gap_bytes: int = 0
    """Bytes that are missing there."""
    cut_bytes: int = 0
    """The part of `gap_bytes` that is missing because of the capture's snap length."""
    frame_gap_bytes: int = 0
    """The part of `gap_bytes` that is inside frames. These frames still count with all their bytes."""
    left_out_bytes: int = 0
    """The part of `cut_bytes` that no figure needs: contents of records."""
    left_out_gaps: int = 0
    """The gaps that consist of `left_out_bytes`."""
    unframed_bytes: int = 0
    """Captured bytes that belong to no frame: all of them if `reason` is set."""
    partial_bytes: int = 0
    """Captured bytes of frames whose end was not captured."""
    headerless_requests: int = 0
    """Frames with an incomplete header, and SASL tokens after a SaslHandshake v0, which have no
    header."""
    headerless_responses: int = 0
    """The same of the broker."""
    headerless_bytes: int = 0
    """Bytes of such frames."""
    token_bytes: int = 0
    """The part of `headerless_bytes` that is SASL tokens."""
    resyncs: int = 0
    """How often the start of the next frame was lost."""
    repeated_segments: int = 0
    """TCP segments that were sent again, or captured twice."""
    repeated_bytes: int = 0
    """Their payload."""
    reordered_segments: int = 0
    """TCP segments that were captured after later ones."""
    reason: str = ""
    """Why the connection, or its last part, was not read as Kafka. "" if everything was read."""
    tls_bytes: int = 0
    """Bytes of TLS itself in a decrypted connection. All other counts are of decrypted bytes."""
    topics: dict[bytes, str] = field(default_factory=dict)
    """Topic ids (16 bytes) and their names, from Metadata responses."""


def cut(size: int) -> Iterator[memoryview]:
    """Yield slices of `CUT` that have `size` bytes together."""
    for start in range(0, size, len(CUT)):
        yield CUT[: min(len(CUT), size - start)]


def walk_pieces(walk: FetchResponseWalk, response: Iterable[Buffer]) -> bool:
    """Walk pieces of a fetch response. Return False if other bytes than contents of records were cut.

    Raises:
        ProtocolError: the bytes do not match a response of this version.
    """
    for piece in response:
        if not is_cut(piece):
            walk.feed(bytes(piece))
        elif not walk.skip_records(len(piece)):
            return False
    return True


def records_alone_are_cut(response: Sequence[Buffer], version: int) -> bool:
    """Return whether all missing bytes of a fetch response are contents of records."""
    layout = LAYOUTS.get(version)
    if layout is None:
        return False
    walk = FetchResponseWalk(layout, 0, keep=False)
    try:
        return walk_pieces(walk, response) and walk.done
    except ProtocolError:
        return False


def without_records(response: Sequence[Buffer], version: int) -> list[Buffer]:
    """Return a fetch response, or its start, with `CUT` in place of the contents of records.

    It is returned unchanged if its version is not supported (v0 to v3), if its bytes do not match the
    version, or if other bytes than records were cut already.
    """
    layout = LAYOUTS.get(version)
    if layout is None:
        return list(response)
    walk = FetchResponseWalk(layout, 0, keep=False, spans=True)
    try:
        if not walk_pieces(walk, response):
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
    """Return the number of places in a response at which bytes were cut."""
    return sum(cut for cut, _ in groupby(map(is_cut, response)))


def before_cut(response: Sequence[Buffer]) -> list[Buffer]:
    """Return the pieces of a response that come before the first bytes that were cut."""
    return list(takewhile(lambda piece: not is_cut(piece), response))
