"""Fuzz targets for captures: `fetchgate replay` reads broken files.

`reassembly`, `tls`, `packets`, `pcap` and `pcapng` look for crashes, `repeated` for work that grows faster
than a file.
"""

import hmac
import io
from collections.abc import Iterator
from functools import partial
from typing import Final

import numpy as np
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from replay.capture.files.counts import FileCounts
from replay.capture.files.formats import NotACaptureError, identify
from replay.capture.files.pcap import first_time as first_time_of_pcap
from replay.capture.files.pcapng import first_time as first_time_of_pcapng
from replay.capture.files.reading import _read_stream
from replay.capture.files.sources import FilePiece, Source
from replay.capture.files.window import FileWindow, Records
from replay.capture.kafka.connection import CapturedConnection
from replay.capture.kafka.exchanges import Connections
from replay.capture.kafka.pairing import Keep
from replay.capture.packets.segments import runs, split
from replay.capture.packets.tcp import EVERYTHING, FIN, RST, SYN, decode
from replay.capture.tls.conversation import TlsConversation
from replay.capture.tls.keylog import CLIENT, SERVER, Secrets
from tools.fuzz.seeds import capture_head, frames
from tools.fuzz.target import FuzzTarget

_LOW, _HIGH = "10.0.0.1:50000", "10.0.0.2:9092"
_FLAGS: Final = (0, 0, 0, SYN, FIN, RST, SYN | FIN, 0)
_SECOND: Final = 1_000_000_000
_LINKS: Final = (101, 1, 0, 113, 258, 276, 12, 108, 228, 229, -1)
_SHORT_READ: Final = 700


class _Dripping(io.BytesIO):
    """A file whose reads return only a few bytes each."""

    def readinto(self, buffer: memoryview, /) -> int:  # type: ignore[override] # narrower than Buffer
        return super().readinto(buffer[:_SHORT_READ])


# reassembly


def _reassembly(data: bytes) -> None:
    """Decode rows of flag byte, sequence number, missing bytes, size and payload, and reassemble them."""
    at = 1
    ports = frozenset({9092}) if data[:1] > b"\x7f" else frozenset[int]()
    keep = Keep(requests=True)
    connection = CapturedConnection(_LOW, _HIGH, 0, ports=ports, keep=keep)
    number, next_ = 0, [1000, 2000]
    while at + 6 <= len(data):
        kind = data[at]
        offset, missing, size = data[at + 1], data[at + 2], data[at + 3] | data[at + 4] << 8
        payload = data[at + 5 : at + 5 + size]
        at += 5 + size
        low = bool(kind & 1)
        sequence = next_[low]
        if kind & 2:  # otherwise it follows the previous one
            sequence += (offset - 128) << (kind >> 4)
        hole = missing << 4 if kind & 4 else 0
        flags = _FLAGS[missing & 7] if kind & 8 else 0
        next_[low] = sequence + len(payload) + hole & 0xFFFF_FFFF
        ack = next_[not low] + hole & 0xFFFF_FFFF if kind & 16 else -1
        row = (
            payload,
            low,
            number * _SECOND,
            number * _SECOND + 1,
            sequence & 0xFFFF_FFFF,
            ack,
            flags,
            hole,
            1,
        )
        number += 1
        if not connection.row(memoryview(row[0]), *row[1:]):
            _finish(connection)
            connection = CapturedConnection(_LOW, _HIGH, number, ports=ports, keep=keep)
            connection.row(memoryview(row[0]), *row[1:])
        connection.drain()
    _finish(connection)


def _finish(connection: CapturedConnection) -> None:
    exchanges, end = connection.finish()
    for exchange in exchanges:
        repr(exchange)
    repr(end)


def _reassembly_seeds() -> list[bytes]:
    requests, responses = frames()
    found = []
    for number in range(0, len(requests) - 4, 2):
        rows = bytearray([number & 255])
        for request, response in zip(
            requests[number : number + 4], responses[number : number + 4], strict=False
        ):
            for side, frame in ((0, request), (1, request[4:8] + response[4:])):
                whole = len(frame).to_bytes(4) + frame
                rows += bytes([side, 128, 0]) + len(whole).to_bytes(2, "little") + whole
        found.append(bytes(rows))
    return found


# tls

_RANDOM: Final = bytes(range(32))
_SECRET: Final = bytes(32)
_ROW: Final = 3


class _Sum:
    """Counts the decrypted bytes of one direction of a connection."""

    def __init__(self) -> None:
        self.size = 0

    def decrypted(self, view: memoryview, time: int, end_time: int) -> None:  # noqa: ARG002 - a protocol
        self.size += len(view)

    def lacks(self, size: int, *, cut: bool) -> None:  # noqa: ARG002 - as above
        if size <= 0:
            raise AssertionError("nothing is missing")

    def unread(self, size: int, *, partial: bool) -> None:  # noqa: ARG002 - as above
        if size <= 0:
            raise AssertionError("nothing was left")
        self.size += size


def _tls(data: bytes) -> None:
    """Decode rows of flag byte, size (two bytes; of a gap the missing bytes) and payload."""
    secrets = Secrets()
    secrets.by_connection = {label + _RANDOM: _SECRET for label in (CLIENT, SERVER)}
    sums = _Sum(), _Sum()
    failed: list[str] = []
    conversation = TlsConversation(*sums, secrets, failed.append)
    directions = conversation.client, conversation.server
    at = 0
    while at + _ROW <= len(data):
        direction = directions[data[at] & 1]
        size = data[at + 1] | data[at + 2] << 8
        if data[at] & 2:
            direction.gap(size + 1, cut=bool(data[at] & 4))
            size = 0
        else:
            direction.data(memoryview(data[at + _ROW : at + _ROW + size]), at, at)
        at += _ROW + size
    conversation.finish()
    for found, direction in zip(sums, directions, strict=True):
        if found.size > direction.seen_bytes:
            raise AssertionError("more was read than there was")


def _tls_seeds() -> list[bytes]:
    hellos = [
        b"\1\0\0\x28\3\3" + _RANDOM + b"\0\0\2\x13\1\1\0",
        b"\2\0\0\x2e\3\3" + bytes(32) + b"\0\x13\1\0\0\6\0\x2b\0\2\3\4",
    ]
    rows = [_tls_row(side, b"\x16\3\3" + len(one).to_bytes(2) + one) for side, one in enumerate(hellos)]
    for number, both in enumerate(zip(*(found[:4] for found in frames()), strict=False)):
        rows += [_tls_row(side, _sealed(number, body[:300])) for side, body in enumerate(both)]
    gap = bytes([2, 40, 0])
    return [b"".join(rows), b"".join([*rows[:4], gap, *rows[6:]]), b"".join([*rows[:3], rows[5]])]


def _sealed(number: int, body: bytes) -> bytes:
    """Encrypt `body` as a TLS 1.3 record with AES-128-GCM. `number` is its sequence number."""
    key, iv = (
        hmac.digest(_SECRET, bytes([0, size, 6 + len(label)]) + b"tls13 " + label + b"\0\1", "sha256")[:size]
        for label, size in ((b"key", 16), (b"iv", 12))
    )
    head = b"\x17\3\3" + (len(body) + 17).to_bytes(2)
    nonce = (int.from_bytes(iv) ^ number).to_bytes(12)
    return head + AESGCM(key).encrypt(nonce, body + b"\x17", head)


def _tls_row(side: int, payload: bytes) -> bytes:
    return bytes([side]) + len(payload).to_bytes(2, "little") + payload


# packets


def _packets(data: bytes) -> None:
    """Decode a link type, then packets: missing bytes, a size of two bytes, and their bytes."""
    link = _LINKS[data[0] % len(_LINKS)] if data else 101
    window = FileWindow(0, len(data))
    window.data[: len(data)] = data
    window.end = len(data)
    at, captured, length = 1, [], []
    begins = []
    while at + 3 <= len(data):
        cut, size = data[at], data[at + 1] | data[at + 2] << 8
        size = min(size, len(data) - at - 3)
        begins.append(at + 3)
        captured.append(size)
        length.append(size + cut)
        at += 3 + size
    count = len(begins)
    records = Records(
        at=np.array(begins, np.int64),
        captured=np.array(captured, np.int64),
        length=np.array(length, np.int64),
        time=np.arange(count, dtype=np.int64) * 1000,
        offset=np.array(begins, np.int64),
        link=np.full(count, link, np.int64),
    )
    counts = FileCounts(file="fuzz")
    batches = split(runs(window, decode(window, records, EVERYTHING, counts), 0))
    for event in Connections(keep=Keep(requests=True)).read(batches):
        repr(event)
    FileCounts.from_json(counts.to_json())


def _packets_seeds() -> list[bytes]:
    found = []
    for name, link in (("librdkafka-gateway.pcap", 0), ("many-clients-any.pcap", 4), ("java-100p.pcap", 1)):
        head, at, packets = capture_head(name, 20_000), 24, []
        while at + 16 <= len(head):
            size = int.from_bytes(head[at + 8 : at + 12], "little")
            packets.append(head[at + 16 : at + 16 + size])
            at += 16 + size
        for start in range(0, min(len(packets), 30), 3):
            parts = [
                b"\0" + len(packet).to_bytes(2, "little") + packet for packet in packets[start : start + 3]
            ]
            found.append(bytes([link]) + b"".join(parts))
    return found


# pcap and pcapng


def _file(head: bytes, data: bytes) -> None:
    """Read a capture file. `head` replaces its first bytes, unless these begin with 0xff, which goes."""
    data = data[1:] if data[:1] == b"\xff" else head + data[len(head) :]
    counts = FileCounts(file="fuzz")
    window = FileWindow(0, len(data) + 1)
    window.fill(io.BytesIO(data))
    try:
        form = identify(data[:24])
    except NotACaptureError:
        form = None
    if form is not None:
        first = first_time_of_pcapng(window) if form.kind == "pcapng" else first_time_of_pcap(form, window)
        repr(first)
    try:
        for place, records in _records(data, counts):
            if (
                (records.at < 0) | (records.at + records.captured > place.end) | (records.captured < 0)
            ).any():
                raise AssertionError("a record lies outside of its window")
    except NotACaptureError:
        pass
    if counts.file_bytes + counts.skipped_bytes > 2 * len(data):
        raise AssertionError("bytes were read twice")
    counts.to_json()


def _records(data: bytes, counts: FileCounts) -> Iterator[tuple[FileWindow, Records]]:
    return _read_stream(FilePiece(source=Source(name="fuzz")), _Dripping(data), counts)


def _pcap_seeds() -> list[bytes]:
    names = ("librdkafka-gateway.pcap", "many-clients-any.pcap", "java-100p.pcap")
    return [b"\xff" + capture_head(name, size) for name in names for size in (200, 1000, 3000)]


def _block(kind: int, body: bytes) -> bytes:
    size = (len(body) + 12).to_bytes(4, "little")
    return kind.to_bytes(4, "little") + size + body + size


def _pcapng_seeds() -> list[bytes]:
    head = capture_head("librdkafka-gateway.pcap", 4000)
    section = _block(0x0A0D0D0A, bytes.fromhex("4d3c2b1a01000000") + b"\xff" * 8)
    found = []
    for options in (
        b"",
        bytes.fromhex("09000100090000000000"),
        bytes.fromhex("0e00080001000000000000000000"),
    ):
        padding = bytes(-len(options) % 4)
        interface = _block(1, bytes.fromhex("6500000000000400") + options + padding)
        packets: list[bytes] = []
        at = 24
        while at + 16 <= len(head) and len(packets) < 5:
            size = int.from_bytes(head[at + 8 : at + 12], "little")
            packet = head[at + 16 : at + 16 + size]
            body = bytes(12) + size.to_bytes(4, "little") * 2 + packet + bytes(-len(packet) % 4)
            simple = size.to_bytes(4, "little") + packet + bytes(-len(packet) % 4)
            packets.append(_block(6, body) if len(packets) % 3 else _block(3, simple))
            at += 16 + size
        found.append(b"\xff" + section + interface + b"".join(packets) + _block(5, bytes(12)))
    return found


# repeated

_MOST: Final = 128 << 10


def _repeated(data: bytes) -> None:
    """Read a file of repeated parts as `inspect` does, see `_expanded`."""
    counts = FileCounts(file="fuzz")
    connections = Connections(hold=True)
    stream = io.BytesIO(_expanded(data))
    try:
        for window, records in _read_stream(FilePiece(source=Source(name="fuzz")), stream, counts):
            for batch in split(runs(window, decode(window, records, EVERYTHING, counts), 0)):
                for event in connections.feed(batch):
                    repr(event)
    except NotACaptureError:
        return
    connections.end_silent()
    for event in connections.end():
        repr(event)


def _expanded(data: bytes) -> bytes:
    """Decode parts: a number of doublings, the size of some bytes, these bytes."""
    made, at = bytearray(), 0
    while at + 2 <= len(data) and len(made) < _MOST:
        part = data[at + 2 : at + 2 + data[at + 1]]
        made += part * min(1 << (data[at] & 15), (_MOST - len(made)) // max(len(part), 1))
        at += 2 + data[at + 1]
    return bytes(made)


def _repeated_seeds() -> list[bytes]:
    section = _block(0x0A0D0D0A, bytes.fromhex("4d3c2b1a01000000") + b"\xff" * 8)
    interface = _block(1, bytes.fromhex("6500000000000400"))
    packet, simple = _block(6, bytes(20)), _block(3, bytes(4))
    head = capture_head("java-100p.pcap", 24)
    return [
        _part(0, section) + _part(0, interface) + _part(12, packet) + _part(0, simple),
        _part(0, section) + _part(15, _block(5, b"") * 2 + b"\xff"),
        _part(0, section) + _part(12, packet + simple),
        _part(0, section) + _part(12, interface + packet),
        _part(12, section + packet),
        _part(0, head) + _part(0, b"\xff" * 32) + _part(15, b"\4\0\0\0") + _part(8, b"\xff" * 200),
        _part(0, head)
        + _part(12, _record(1, b""))
        + _part(0, _record(4000, b""))
        + _part(12, _record(9, b"")),
    ]


def _record(second: int, packet: bytes) -> bytes:
    words = second, 1, len(packet), len(packet)
    return b"".join(word.to_bytes(4, "little") for word in words) + packet


def _part(doublings: int, part: bytes) -> bytes:
    return bytes([doublings, len(part)]) + part


_PCAP_HEAD: Final = bytes.fromhex("d4c3b2a1")
_PCAPNG_HEAD: Final = bytes.fromhex("0a0d0d0a")
_FILES: Final = ("replay.capture.files",)
_SEARCHED: Final = 24 << 20
"""The additional memory limit of fuzz targets that search frames, in bytes. Each direction of a connection
may buffer 4 MB, including gaps, and copies this buffer."""
TARGETS: Final = (
    FuzzTarget(
        name="reassembly",
        run=_reassembly,
        seeds=_reassembly_seeds,
        modules=("replay.capture.kafka",),
        memory=_SEARCHED,
    ),
    FuzzTarget(name="tls", run=_tls, seeds=_tls_seeds, modules=("replay.capture.tls",), memory=_SEARCHED),
    FuzzTarget(
        name="packets",
        run=_packets,
        seeds=_packets_seeds,
        modules=("replay.capture.packets", "replay.capture.kafka"),
        memory=_SEARCHED,
    ),
    FuzzTarget(
        name="pcap", run=partial(_file, _PCAP_HEAD), seeds=_pcap_seeds, modules=_FILES, memory=48 << 20
    ),
    FuzzTarget(
        name="pcapng", run=partial(_file, _PCAPNG_HEAD), seeds=_pcapng_seeds, modules=_FILES, memory=48 << 20
    ),
    FuzzTarget(
        name="repeated",
        run=_repeated,
        seeds=_repeated_seeds,
        modules=("replay.capture",),
        memory=64 << 20,
        memory_per_byte=1024,
        # 20 s for 10 MB.
        cpu_per_byte=2e-6,
        size=lambda data: len(_expanded(data)),
    ),
)
"""The fuzz targets for captures. A file is read through a window of 16 MB, whatever its size."""
