"""Reduces responses to the few values that are compared (`replay drive --compare`). Sans-IO.

A summary has no payload. The memory that it needs depends on the response: for a fetch, 50 bytes for each
partition that has records or an error. All other partitions are only listed.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from struct import Struct
from typing import Any, Final, TypeAlias

import numpy as np

from proxy.protocol import messages
from proxy.protocol.api import ApiKey, ErrorCode, response_header
from proxy.protocol.fetch_layout import HIGH_WATERMARK, LAYOUTS
from proxy.protocol.fetch_response import PartitionResponse
from proxy.protocol.primitives import Buffer, ProtocolError, Span
from proxy.protocol.schemas import API_VERSIONS
from replay.capture.kafka.exchange import is_cut
from replay.protocol import errors
from replay.protocol.fetches import walked

UNKNOWN: Final = -(1 << 63)
"""A value that the response does not have, or that was not captured."""
NO_VALUES: Final = (0, UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN)
"""The values of a listed entry that has no row: 0 bytes of records, and the others are unknown."""
WHOLE: Final = -1
"""The number of an entry that is a whole topic."""

Listing: TypeAlias = tuple[tuple[bytes, bytes], ...]
"""Topic key, and the ascending numbers of its entries as int32. The key is a topic's name or id as on the
wire. ApiVersions has one key, which is empty; its numbers are API keys."""
Row: TypeAlias = tuple[bytes, int, int, tuple[int, ...]]
"""Topic key, number, error code, and five values, see `Summary.rows`."""

_ROW: Final = Struct(">iih5q")
_NUMBERS: Final = np.dtype("<i4")
_BATCH: Final = Struct(">qiibI")  # baseOffset, batchLength, partitionLeaderEpoch, magic, crc
_MAGIC: Final = 2
"""The format of record batches that is read. In earlier formats, the fields after the length have other
places."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """What is compared of one response."""

    errors: tuple[int, ...] = ()
    """Errors of the whole response. Code 0 is left out."""
    entry_errors: tuple[int, ...] = ()
    """Errors of entries, ascending. Only for APIs whose entries are not listed."""
    size: int = 0
    """The size of the frame in bytes. 0 for APIs whose entries are listed."""
    listing: Listing = ()
    packed: bytes = b""
    throttled: bool = False
    """Whether a fetch response has no partitions because its client is throttled (KIP-219)."""

    def rows(self) -> Iterator[Row]:
        """Yield the entries that have a row.

        The five values are: record bytes, base offset and CRC of the first batch, high watermark, and the
        number of aborted transactions plus 1, or 0 without a list of them (Fetch);
        base offset (Produce); offset (ListOffsets); lowest and highest version (ApiVersions). Others are
        `UNKNOWN`.
        """
        for place, number, error, *values in _ROW.iter_unpack(self.packed):
            yield self.listing[place][0], number, error, tuple(values)


def numbers(packed: bytes) -> Any:
    """Return the numbers of a listing as an array."""
    return np.frombuffer(packed, _NUMBERS)


def can_be_read(api_key: int) -> bool:
    """Return whether replay reads the responses of an API."""
    return api_key == ApiKey.FETCH or api_key in errors.SCHEMAS


def summarize(api_key: int, version: int, isolation_level: int, pieces: Sequence[Buffer]) -> Summary | None:
    """Reduce a whole response, whose contents of records may be cut. Return None if it does not parse.

    The isolation level of a fetch only makes reading faster.
    """
    try:
        if api_key == ApiKey.FETCH:
            return _fetch(version, isolation_level, pieces)
        frame = b"".join(pieces)
        if api_key not in _READERS:
            return _other(api_key, version, frame)
        _, body = response_header(frame, 4, api_key, version)
        return _summary(*_READERS[api_key](api_key, version, frame, body))
    except ProtocolError:
        return None


def _fetch(version: int, isolation_level: int, pieces: Sequence[Buffer]) -> Summary | None:
    layout = LAYOUTS[version]
    walk = walked(version, isolation_level, pieces, spans=True)
    if walk is None:
        return None
    listed: dict[bytes, list[Any]] = {}
    for run in walk.runs:
        listed.setdefault(run.key, []).append(run.entries.view(layout.response_fields)["partition"])
    for entry in walk.entries:
        listed.setdefault(entry.key, []).append([entry.partition])
    spans = iter(_Batches(pieces).firsts([span for span in walk.record_spans or () if span[0] < span[1]]))
    rows: list[Row] = []
    for entry in walk.entries:
        first = next(spans) if entry.records else (UNKNOWN, UNKNOWN)
        if entry.records or entry.error_code or entry.redirects:
            rows.append((entry.key, entry.partition, entry.error_code, _fetched(entry, *first)))
    if walk.throttle_time_ms and not walk.partitions and not walk.error_code:
        return Summary(throttled=True)
    return _summary(
        _codes(walk.error_code), rows, {key: np.concatenate(all_) for key, all_ in listed.items()}
    )


def _other(api_key: int, version: int, frame: bytes) -> Summary | None:
    found = errors.read_errors(api_key, version, (frame,))
    if found is None:
        return None
    return Summary(errors=found.whole, entry_errors=tuple(sorted(found.entries)), size=len(frame))


def _summary(whole: tuple[int, ...], rows: Iterable[Row], listed: dict[bytes, Any]) -> Summary:
    listing: Listing = tuple(
        (key, np.sort(np.asarray(listed[key], _NUMBERS)).tobytes()) for key in sorted(listed)
    )
    places = {key: place for place, (key, _) in enumerate(listing)}
    packed = b"".join(_ROW.pack(places[key], number, error, *values) for key, number, error, values in rows)
    return Summary(errors=whole, listing=listing, packed=packed)


def _fetched(entry: PartitionResponse, first_offset: int, crc: int) -> tuple[int, ...]:
    # They are unknown if it only names another replica, or a newer leader.
    record_bytes = entry.records or (UNKNOWN if entry.redirects else 0)
    high_watermark = int.from_bytes(entry.fixed[HIGH_WATERMARK], signed=True)
    return record_bytes, first_offset, crc, high_watermark, entry.aborted


class _Batches:
    """Finds the first batch of records in parts of a frame. Some bytes of the frame may be cut."""

    def __init__(self, pieces: Sequence[Buffer]) -> None:
        self._frame = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        ends = [0]
        for piece in pieces:
            ends.append(ends[-1] + len(piece))
        self._cuts = [
            bound
            for piece, bounds in zip(pieces, pairwise(ends), strict=True)
            if is_cut(piece)
            for bound in bounds
        ]

    def firsts(self, spans: Iterable[Span]) -> Iterator[tuple[int, int]]:
        for start, stop in spans:
            end = start + _BATCH.size
            # The number of bounds before a place is odd within a cut.
            place = bisect_left(self._cuts, start + 1)
            if end > stop or place % 2 or place != bisect_left(self._cuts, end):
                yield UNKNOWN, UNKNOWN
                continue
            offset, _, _, magic, crc = _BATCH.unpack_from(self._frame, start)
            yield offset, crc if magic == _MAGIC else UNKNOWN


def _codes(*codes: int) -> tuple[int, ...]:
    return tuple(code for code in codes if code)


def _values(*values: int) -> tuple[int, ...]:
    return (*values, UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN)[:5]


_Read: TypeAlias = tuple[tuple[int, ...], list[Row], dict[bytes, list[int]]]
"""Errors of the whole response, rows, and the numbers of entries by topic key."""


def _offsets(api_key: int, version: int, frame: bytes, body: int) -> _Read:
    found = messages.read(errors.SCHEMAS[api_key], api_key, version, frame, body, whole=False)
    rows: list[Row] = []
    listed: dict[bytes, list[int]] = {}
    for topic in found["topics"] or ():
        key = topic["topic"] or b""
        for entry in topic["partitions"] or ():
            listed.setdefault(key, []).append(entry["number"])
            rows.append((key, entry["number"], entry["error"], _values(entry.get("offset", UNKNOWN))))
    return (), rows, listed


def _metadata(api_key: int, version: int, frame: bytes, body: int) -> _Read:
    found = messages.read(errors.SCHEMAS[api_key], api_key, version, frame, body, whole=False)
    rows: list[Row] = []
    listed: dict[bytes, list[int]] = {}
    for topic in found["topics"] or ():
        # A request by topic id gets no name if there is no such topic.
        key = topic["name"] or topic.get("topic_id", b"").hex().encode()
        entries = [(WHOLE, topic["error"])]
        entries += [(entry["number"], entry["error"]) for entry in topic["partitions"] or ()]
        listed[key] = [number for number, _ in entries]
        rows += [(key, number, error, _values()) for number, error in entries if error]
    return _codes(found.get("error", 0)), rows, listed


def _api_versions(api_key: int, version: int, frame: bytes, body: int) -> _Read:
    # KIP-511: a broker that lacks the version responds in the form of v0, with error 35.
    if frame[body : body + 2] == ErrorCode.UNSUPPORTED_VERSION.to_bytes(2):
        return (int(ErrorCode.UNSUPPORTED_VERSION),), [], {}
    found = messages.read(API_VERSIONS, api_key, version, frame, body, whole=False)
    rows = [
        (b"", api["api_key"], 0, _values(api["min_version"], api["max_version"]))
        for api in found["api_keys"] or ()
    ]
    return _codes(found["error_code"]), rows, {b"": [number for _, number, _, _ in rows]}


_READERS: Final = {
    int(ApiKey.PRODUCE): _offsets,
    int(ApiKey.LIST_OFFSETS): _offsets,
    int(ApiKey.METADATA): _metadata,
    int(ApiKey.API_VERSIONS): _api_versions,
}
