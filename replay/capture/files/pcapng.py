"""Reads the packets of a pcapng file, block by block. Behind damage, finds the next block."""

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
"""Bytes of each kind of packet block if its packet is empty. Shorter blocks are invalid."""
_SECRETS = 10
_KNOWN = {*_LEAST, _SECTION, _INTERFACE, _SECRETS, 4, 5}
"""Blocks of types 4 and 5 have host names and statistics."""
_KEY_LOG = 0x544C534B
"""The type of secrets for a TLS key log."""
_MAX_BLOCK = 8 << 20
_FIRST_SEARCH, _SEARCH = 256, 1 << 16
"""How many bytes are searched at once for the next block, first and at most. It is often near."""
_MOST_INTERFACES = 1 << 16
"""The interfaces of a section that are known. A file can describe one in each 20 bytes."""
_MOST_UNITS = 1 << 62
_MOST_OFFSET = 1 << 33
"""The largest time offset that is used, in seconds (272 years). With a larger offset, times in ns would not
fit into 64 bits, so larger offsets are ignored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Interface:
    link: int
    snaplen: int
    units: int = 1_000_000
    """Time units per second in its timestamps."""
    offset: int = 0


_UNKNOWN_INTERFACE = _Interface(link=NO_LINK, snaplen=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """Packet blocks in a row, between which nothing was described."""

    packets: int
    order: str
    begin: int
    """The place of the section's first interface in the list of interfaces."""
    end: int
    """The end of the interfaces that were described before these packets."""


class PcapngRecords:
    """Reads the blocks of a file. Adds the TLS key logs in it to `secrets`. With None, they are skipped."""

    def __init__(self, counts: FileCounts, secrets: list[bytes] | None = None) -> None:
        self.done = False
        self._counts = counts
        self._secrets = secrets
        self._described = {_SECTION, _INTERFACE} | ({_SECRETS} if secrets is not None else set())
        self._seeking = False
        self._interfaces: list[_Interface] = []
        """Those of this section, and of earlier sections that began in the same window."""
        self._begin_section("<")

    def _begin_section(self, order: str) -> None:
        self._order = order
        self._head = struct.Struct(f"{order}II").unpack_from
        self._tail = struct.Struct(f"{order}I").unpack_from
        self._first_interface = len(self._interfaces)

    def read(self, window: FileWindow, *, final: bool) -> Records | None:
        """Return the packets in the window. None if more bytes are needed, or none are left."""
        # One result for the whole window: what is done with a result costs as much as a thousand packets, and
        # a file may have a broken block, or describe an interface, before each packet.
        places: list[int] = []
        parts: list[_Part] = []
        while not self._seeking or self._found(window, final=final):
            before = len(places)
            self._follow(window, places)
            if found := len(places) - before:
                parts.append(
                    _Part(
                        packets=found,
                        order=self._order,
                        begin=self._first_interface,
                        end=len(self._interfaces),
                    )
                )
            if not self._step(window, final=final):
                break
        records = self._columns(window, np.array(places, np.int64), parts) if places else None
        del self._interfaces[: self._first_interface]
        self._first_interface = 0
        return records

    def _follow(self, window: FileWindow, places: list[int]) -> None:
        """Move past packet blocks, whose places are added, and past unneeded blocks between them."""
        head, tail, data, end = self._head, self._tail, window.data, window.end
        described = self._described
        position = window.begin
        while position + 12 <= end:
            kind, length = head(data, position)
            behind = position + (length + 3 & -4)  # some writers do not count the padding
            if kind in described or length < 12 or behind > end:
                break
            if tail(data, behind - 4)[0] != length:
                break
            if kind in _LEAST:
                if length < _LEAST[kind]:
                    break
                places.append(position)
            position = behind
        self._move_to(window, position)

    def _step(self, window: FileWindow, *, final: bool) -> bool:
        """Read the block where `_follow` stopped. Return False if more bytes are needed, or none left."""
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
        """Return the length of the block at `begin`, with its padding; 0 if there is no block."""
        begin, data = window.begin, window.data
        kind, size = self._head(data, begin)
        if kind == _SECTION:
            try:
                order = identify(bytes(data[begin : begin + 12])).order
            except NotACaptureError:
                return 0
            (size,) = struct.unpack_from(f"{order}I", data, begin + 4)
        if size < _LEAST.get(kind, 12) or size > _MAX_BLOCK:
            return 0
        size = size + 3 & -4
        tail = data[begin + size - 4 : begin + size]
        whole = begin + size <= window.end
        return 0 if whole and tail != data[begin + 4 : begin + 8] else size

    def _describe(self, block: bytes) -> None:
        if int.from_bytes(block[:4], "big") == _SECTION:
            self._begin_section(identify(block).order)
            return
        if self._head(block, 0)[0] == _SECRETS:
            self._add_secrets(block)
            return
        number = len(self._interfaces) - self._first_interface
        if number == _MOST_INTERFACES:
            self._counts.add_problem(
                f"describes more than {number} interfaces; those after them are left out"
            )
            return
        interface = _interface(block, self._order)
        if interface is None:
            self._counts.add_problem(f"interface {number} has a description that can't be read")
        self._interfaces.append(interface or _UNKNOWN_INTERFACE)

    def _add_secrets(self, block: bytes) -> None:
        """Read a Decryption Secrets Block: type and length of the secrets, then the secrets."""
        if self._secrets is not None and len(block) >= 20:
            kind, size = self._head(block, 8)
            if kind == _KEY_LOG:
                self._secrets.append(block[16 : min(16 + size, len(block) - 4)])

    def _columns(self, window: FileWindow, places: Column, parts: list[_Part]) -> Records:
        packets = [part.packets for part in parts]
        big = np.repeat([part.order == ">" for part in parts], packets)
        begin = np.repeat([part.begin for part in parts], packets)
        end = np.repeat([part.end for part in parts], packets)
        if big.all() or not big.any():
            fields = _fields(window, places, parts[0].order)
        else:
            fields = np.where(big, _fields(window, places, ">"), _fields(window, places, "<"))
        head, number, stamp, captured, length, room = fields
        # The last of these is that of packets whose interface is not described.
        interfaces = [*self._interfaces, _UNKNOWN_INTERFACE]
        interface = np.where(number < end - begin, begin + number, len(interfaces) - 1)
        simple = head == _SIMPLE_HEAD
        snaplen = np.array([one.snaplen or _MAX_BLOCK for one in interfaces], np.int64)[interface]
        time = self._times(stamp, interfaces, interface, simple)
        return Records(
            at=places + head,
            captured=np.clip(captured, 0, np.where(simple, np.minimum(room, snaplen), room)),
            length=length,
            time=time,
            offset=places + window.offset(0),
            link=np.array([one.link for one in interfaces], np.int64)[interface],
        )

    def _times(
        self, stamp: Column, interfaces: list[_Interface], interface: Column, simple: Column
    ) -> Column:
        units = np.array([one.units for one in interfaces], np.int64)
        offset = np.array([one.offset for one in interfaces], np.int64)[interface]
        time = np.zeros(len(stamp), np.int64)
        # There may be thousands of interfaces, but not of units.
        used = units[interface]
        for each in np.unique(used).tolist():
            rows = used == each
            time[rows] = _nanoseconds(stamp[rows].view(np.uint64), each, offset[rows])
        # A simple packet has no time of its own, so it gets the latest time so far.
        if simple.any():
            time[simple] = 0
            latest = np.maximum.accumulate(np.maximum(time, self._counts.last_time))
            time[simple] = latest[simple]
        return time

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
        """Search for a block of a known kind whose lengths agree, and behind which another one begins."""
        last = max(window.end - 11, window.begin)
        place, size = window.begin, _FIRST_SEARCH
        found = None
        while found is None and place < last:
            end = min(place + size, last)
            found = next((one for one in self._likely(window, place, end) if self._fits(window, one)), None)
            place, size = end, min(4 * size, _SEARCH)
        if found is None:
            found = window.end if final else last
        self._counts.skipped_bytes += found - window.begin
        self._move_to(window, found)
        self._seeking = found >= last
        return not self._seeking

    def _likely(self, window: FileWindow, begin: int, end: int) -> list[int]:
        word = np.ndarray(end - begin + 4, f"{self._order}u4", window.data, begin, (1,))
        kind, size = word[:-4], word[4:]
        likely = (kind <= _SECRETS) | (kind == _SECTION)
        likely &= (size >= 12) & (size <= _MAX_BLOCK)
        return (np.flatnonzero(likely) + begin).tolist()

    def _fits(self, window: FileWindow, place: int) -> bool:
        kind, size = self._head(window.data, place)
        behind = place + size
        if kind not in _KNOWN or size < _LEAST.get(kind, 12) or size & 3 or behind > window.end:
            return False
        if self._tail(window.data, behind - 4)[0] != size:
            return False
        return behind + 4 > window.end or self._tail(window.data, behind)[0] in _KNOWN


_SIMPLE_HEAD = 12
"""The bytes of a simple packet block before its packet. It has neither interface nor time."""


def _fields(window: FileWindow, places: Column, order: str) -> Column:
    """Read the heads of packet blocks.

    The result has a row for each field: the bytes before the packet, the number of the interface, the time,
    the bytes that were captured as the head says, the bytes on the wire, and the bytes that the block has
    room for.
    """
    kind, size, first, high, low, captured, length = (
        window.blocks(places + at, f"{order}u4").astype(np.int64) for at in range(0, 28, 4)
    )
    simple = kind == _SIMPLE_PACKET
    old = window.blocks(places + 8, f"{order}u2").astype(np.int64)
    return np.stack(
        [
            np.where(simple, _SIMPLE_HEAD, 28),
            np.where(simple, 0, np.where(kind == _OLD_PACKET, old, first)),
            high << 32 | low,
            np.where(simple, first, captured),
            np.where(simple, first, length),
            size - np.where(simple, 16, 32),
        ]
    )


def _interface(block: bytes, order: str) -> _Interface | None:
    if len(block) < 20:
        return None
    link, _, snaplen = struct.unpack_from(f"{order}HHI", block, 8)
    options: dict[int, bytes] = {}
    at, end = 16, len(block) - 4
    head = struct.Struct(f"{order}HH").unpack_from
    while at + 4 <= end:
        code, size = head(block, at)
        if code == dpkt.pcapng.PCAPNG_OPT_ENDOFOPT:
            break
        options[code] = block[at + 4 : min(at + 4 + size, end)]
        at += 4 + size + -size % 4
    return _Interface(
        link=link,
        snaplen=snaplen,
        units=_units(options.get(dpkt.pcapng.PCAPNG_OPT_IF_TSRESOL, b"\x06")),
        offset=_offset(options.get(dpkt.pcapng.PCAPNG_OPT_IF_TSOFFSET, b""), order),
    )


def _units(option: bytes) -> int:
    exponent = option[0] & 0x7F if option else 6
    units = 1 << exponent if option[:1] >= b"\x80" else 10**exponent
    return min(units, _MOST_UNITS)


def _offset(option: bytes, order: str) -> int:
    offset = int(struct.unpack(f"{order}q", option[:8])[0]) if len(option) >= 8 else 0
    return offset if abs(offset) < _MOST_OFFSET else 0


def _nanoseconds(stamp: Column, units: int, offset: Column) -> Column:
    """Return times in ns. `stamp` counts units, `units` are in a second, `offset` is in seconds."""
    second = 1_000_000_000
    found: Column
    if second % units == 0:
        found = stamp.astype(np.int64) * (second // units) + offset * second
        return found
    if units % second == 0:
        found = (stamp // (units // second)).astype(np.int64) + offset * second
        return found
    whole, part = (stamp // units).astype(np.int64), (stamp % units).astype(np.int64)
    # With more than 2 ** 33 units a second the product would overflow. The bits dropped are less than 1 ns.
    shift = max(units.bit_length() - 34, 0)
    found = (whole + offset) * second + (part >> shift) * second // (units >> shift)
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
