"""Reads the packets of a pcapng file, block by block.

If the next block is not where it should be, the reader searches for a valid block.
"""

import struct
from dataclasses import dataclass

import dpkt
import numpy as np

from replay.capture.files.counts import FileCounts
from replay.capture.files.formats import NotACaptureError, identify
from replay.capture.files.window import NO_LINK, Column, FileWindow, Records

_SECTION = dpkt.pcapng.PCAPNG_BT_SHB
_INTERFACE = dpkt.pcapng.PCAPNG_BT_IDB
_PACKET = dpkt.pcapng.PCAPNG_BT_EPB
_OLD_PACKET = dpkt.pcapng.PCAPNG_BT_PB
_SIMPLE_PACKET = dpkt.pcapng.PCAPNG_BT_SPB
_LEAST = {_PACKET: 32, _OLD_PACKET: 32, _SIMPLE_PACKET: 16}
"""The length of each kind of packet block if its packet is empty, in bytes. Shorter blocks are invalid."""
_PACKETS = frozenset(_LEAST)
_SECRETS = 10
_KNOWN = _PACKETS | {_SECTION, _INTERFACE, _SECRETS, 4, 5}
"""The known block types. Blocks of types 4 and 5 contain host names and statistics."""
_KEY_LOG = 0x544C534B
"""The type of secrets for a TLS key log."""
_MAX_BLOCK = 8 << 20
"""The longest valid block, in bytes."""
_MOST_UNITS = 1 << 62
_MOST_OFFSET = 1 << 33
"""The largest time offset that is used, in seconds (272 years). With a larger offset, times in ns would not
fit into 64 bits, so larger offsets are ignored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Interface:
    link: int
    snaplen: int
    units: int = 1_000_000
    """Time units per second in the timestamps of this interface."""
    offset: int = 0
    """The seconds that are added to each time of this interface."""


_UNKNOWN_INTERFACE = _Interface(link=NO_LINK, snaplen=0)


class PcapngRecords:
    """Reads the blocks of a file, one after the other.

    If no block begins where the last one ended, the reader searches for the next block.
    """

    def __init__(self, counts: FileCounts, secrets: list[bytes] | None = None) -> None:
        """Read the blocks of a file.

        Args:
            counts: the counts of the file. They are updated while blocks are read.
            secrets: the TLS key logs in the file are added to this list. With None, they are skipped.
        """
        self.done = False
        self._counts = counts
        self._secrets = secrets
        self._described = {_SECTION, _INTERFACE} | ({_SECRETS} if secrets is not None else set())
        self._seeking = False
        self._begin_section("<")

    def _begin_section(self, order: str) -> None:
        self._order = order
        self._head = struct.Struct(f"{order}II").unpack_from
        self._tail = struct.Struct(f"{order}I").unpack_from
        self._interfaces: list[_Interface] = []
        columns = [(name, f"{order}u4") for name in ("interface", "high", "low", "captured", "length")]
        self._packet = np.dtype(columns)
        self._old_packet = np.dtype([("interface", f"{order}u2"), ("drops", f"{order}u2"), *columns[1:]])

    def read(self, window: FileWindow, *, final: bool) -> Records | None:
        """Return consecutive packets of one kind.

        The result may have no packets. It is None if more bytes are needed, or none are left.

        Args:
            window: its `begin` moves past the packets that were read.
            final: the window reaches to the end of the file.
        """
        if self._seeking and not self._found(window, final=final):
            return None
        before = window.begin
        places, kind = self._follow(window)
        moved = window.begin > before
        if not moved:
            moved = self._step(window, final=final)
        return self._columns(window, kind, np.array(places, np.int64)) if moved else None

    def _follow(self, window: FileWindow) -> tuple[list[int], int]:
        """Move past packet blocks of one kind, and past unneeded blocks between them.

        Return the places of the packet blocks, and their kind.
        """
        head, tail, data, end = self._head, self._tail, window.data, window.end
        described = self._described
        places: list[int] = []
        position, packets = window.begin, 0
        while position + 12 <= end:
            kind, length = head(data, position)
            behind = position + length
            if kind in described or length < 12 or length & 3 or behind > end:
                break
            if tail(data, behind - 4)[0] != length:
                break
            if kind in _PACKETS:
                if (kind != packets and places) or length < _LEAST[kind]:
                    break
                packets = kind
                places.append(position)
            position = behind
        self._move_to(window, position)
        return places, packets

    def _step(self, window: FileWindow, *, final: bool) -> bool:
        """Read the block at which `_follow` stopped.

        Return False if more bytes are needed, or no bytes are left.
        """
        left = window.end - window.begin
        size = self._size(window) if left >= 12 else 12
        if size and size > left:
            if final and left:
                self._counts.trailing_bytes += left
                self._counts.add_problem(f"ends within a block, whose {left} bytes are left out")
                self._move_to(window, window.end)
            return False
        if not size:
            self._begin_seeking(window)
            return True
        self._describe(bytes(window.data[window.begin : window.begin + size]))
        self._move_to(window, window.begin + size)
        return True

    def _size(self, window: FileWindow) -> int:
        """Return the length of the block at `begin`; 0 if there is no block."""
        begin, data = window.begin, window.data
        kind, size = self._head(data, begin)
        if kind == _SECTION:
            try:
                order = identify(bytes(data[begin : begin + 12])).order
            except NotACaptureError:
                return 0
            (size,) = struct.unpack_from(f"{order}I", data, begin + 4)
        if size < _LEAST.get(kind, 12) or size & 3 or size > _MAX_BLOCK:
            return 0
        tail = data[begin + size - 4 : begin + size]
        whole = begin + size <= window.end
        return 0 if whole and tail != data[begin + 4 : begin + 8] else size

    def _describe(self, block: bytes) -> None:
        """Read a block that describes a section or an interface, or that holds secrets."""
        if int.from_bytes(block[:4], "big") == _SECTION:
            self._begin_section(identify(block).order)
            return
        if self._head(block, 0)[0] == _SECRETS:
            self._add_secrets(block)
            return
        reader = dpkt.pcapng.InterfaceDescriptionBlockLE
        if self._order == ">":
            reader = dpkt.pcapng.InterfaceDescriptionBlock
        try:
            found = reader(block)
            options = {option.code: bytes(option.data) for option in found.opts}
        except (dpkt.Error, UnicodeDecodeError):
            self._counts.add_problem(
                f"interface {len(self._interfaces)} has a description that can't be read"
            )
            self._interfaces.append(_UNKNOWN_INTERFACE)
            return
        self._interfaces.append(
            _Interface(
                link=found.linktype,
                snaplen=found.snaplen,
                units=_units(options.get(dpkt.pcapng.PCAPNG_OPT_IF_TSRESOL, b"\x06")),
                offset=_offset(options.get(dpkt.pcapng.PCAPNG_OPT_IF_TSOFFSET, b""), self._order),
            )
        )

    def _add_secrets(self, block: bytes) -> None:
        """Read a Decryption Secrets Block: type and length of the secrets, then the secrets."""
        if self._secrets is not None and len(block) >= 20:
            kind, size = self._head(block, 8)
            if kind == _KEY_LOG:
                self._secrets.append(block[16 : min(16 + size, len(block) - 4)])

    def _columns(self, window: FileWindow, kind: int, places: Column) -> Records:
        if kind == _SIMPLE_PACKET:
            return self._simple(window, places)
        header = window.blocks(places + 8, self._old_packet if kind == _OLD_PACKET else self._packet)
        room = window.blocks(places + 4, f"{self._order}u4").astype(np.int64) - 32
        interface = header["interface"].astype(np.int64)
        stamp = header["high"].astype(np.uint64) << 32 | header["low"].astype(np.uint64)
        time = np.zeros(len(places), np.int64)
        link = np.zeros(len(places), np.int64)
        for number in np.unique(interface).tolist():
            rows = interface == number
            described = self._interface(number)
            time[rows] = _nanoseconds(stamp[rows], described)
            link[rows] = described.link
        return Records(
            at=places + 28,
            captured=np.clip(header["captured"].astype(np.int64), 0, np.maximum(room, 0)),
            length=header["length"].astype(np.int64),
            time=time,
            offset=places + window.offset(0),
            link=link,
        )

    def _simple(self, window: FileWindow, places: Column) -> Records:
        """Read simple packet blocks. Their packets always belong to the first interface.

        A simple packet has no time of its own, so it gets the latest time so far.
        """
        room = window.blocks(places + 4, f"{self._order}u4").astype(np.int64) - 16
        length = window.blocks(places + 8, f"{self._order}u4").astype(np.int64)
        described = self._interface(0)
        most = described.snaplen or _MAX_BLOCK
        return Records(
            at=places + 12,
            captured=np.clip(length, 0, np.minimum(np.maximum(room, 0), most)),
            length=length,
            time=np.full(len(places), self._counts.last_time),
            offset=places + window.offset(0),
            link=np.full(len(places), described.link, np.int64),
        )

    def _interface(self, number: int) -> _Interface:
        return self._interfaces[number] if number < len(self._interfaces) else _UNKNOWN_INTERFACE

    def _move_to(self, window: FileWindow, place: int) -> None:
        self._counts.file_bytes += place - window.begin
        window.begin = place

    def _begin_seeking(self, window: FileWindow) -> None:
        _, size = self._head(window.data, window.begin)
        self._counts.bad_records += 1
        place = window.offset(window.begin)
        self._counts.add_problem(
            f"at byte {place} a block claims {size} bytes; reading continued at the next one found"
        )
        self._counts.skipped_bytes += 1
        self._move_to(window, window.begin + 1)
        self._seeking = True

    def _found(self, window: FileWindow, *, final: bool) -> bool:
        """Search for the next block. Return whether one was found.

        The block's kind must be known, its two length fields must agree, and another block must follow it, if
        the window has more bytes.
        """
        word = np.ndarray(len(window.data) - 3, f"{self._order}u4", window.data, 0, (1,))
        last = max(window.end - 11, window.begin)
        likely = np.isin(word[window.begin : last], sorted(_KNOWN))
        likely &= word[window.begin + 4 : last + 4] <= _MAX_BLOCK
        place = next(
            (
                place
                for place in (np.flatnonzero(likely) + window.begin).tolist()
                if self._fits(window, place)
            ),
            window.end if final else last,
        )
        self._counts.skipped_bytes += place - window.begin
        self._move_to(window, place)
        self._seeking = place >= last
        return not self._seeking

    def _fits(self, window: FileWindow, place: int) -> bool:
        kind, size = self._head(window.data, place)
        behind = place + size
        if size < _LEAST.get(kind, 12) or size & 3 or behind > window.end:
            return False
        if self._tail(window.data, behind - 4)[0] != size:
            return False
        return behind + 4 > window.end or self._tail(window.data, behind)[0] in _KNOWN


def _units(option: bytes) -> int:
    exponent = option[0] & 0x7F if option else 6
    units = 1 << exponent if option[:1] >= b"\x80" else 10**exponent
    return min(units, _MOST_UNITS)


def _offset(option: bytes, order: str) -> int:
    offset = int(struct.unpack(f"{order}q", option[:8])[0]) if len(option) >= 8 else 0
    return offset if abs(offset) < _MOST_OFFSET else 0


def _nanoseconds(stamp: Column, interface: _Interface) -> Column:
    second = 1_000_000_000
    units = interface.units
    if second % units == 0:
        return stamp.astype(np.int64) * (second // units) + interface.offset * second
    if units % second == 0:
        return (stamp // (units // second)).astype(np.int64) + interface.offset * second
    whole, part = (stamp // units).astype(np.int64), (stamp % units).astype(np.int64)
    # With more than 2 ** 33 units a second the product would overflow. The bits dropped are less than 1 ns.
    shift = max(units.bit_length() - 34, 0)
    found: Column = (whole + interface.offset) * second + (part >> shift) * second // (units >> shift)
    return found


def first_time(window: FileWindow) -> int:
    """Return the time of the first packet in the window; 0 if there is none."""
    counts = FileCounts(file="")
    records = PcapngRecords(counts)
    while (found := records.read(window, final=False)) is not None:
        if len(found.time):
            return int(found.time[0])
    return 0


def has_secrets(window: FileWindow) -> bool:
    """Return whether the window has a TLS key log, or ends within a block of secrets."""
    secrets: list[bytes] = []
    begin = window.begin
    records = PcapngRecords(FileCounts(file=""), secrets)
    while records.read(window, final=False) is not None:
        pass
    rest = bytes(window.data[window.begin : min(window.begin + 4, window.end)])
    window.begin = begin
    return bool(secrets) or _SECRETS in {int.from_bytes(rest, "little"), int.from_bytes(rest, "big")}
