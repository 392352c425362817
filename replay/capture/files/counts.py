"""Counts of the contents of one capture file: of the packets that are used and of all others."""

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from itertools import pairwise
from typing import Self

MOST_PROBLEMS = 10
MOST_STRETCHES = 1000
MOST_PORTS = 64
MOST_UNREAD = 64
_OTHERS = "other protocols"
_MORE = "and more of this kind"
PAUSE = 300 * 1_000_000_000
"""A time without a packet that is longer than this, in ns, counts as a gap in the capture. Two captures that
were joined have such a gap. Connected clients always send more often: they request Metadata at least every 5
minutes (metadata.max.age.ms), and consumers fetch continuously."""


@dataclass(slots=True, kw_only=True)
class FileCounts:
    """Counts of one file, or of a part of it. The counts of a file's parts add up to the counts of the file.

    `packets` counts every packet. A packet whose bytes did not become segments is also counted with the
    reason.
    """

    file: str
    """As the user gave it. `-` is standard input."""
    number: int = 0
    """Its place among all files of the table, from 0 on."""
    fingerprint: str = ""
    """Recognises the same capture under any name."""
    format: str = ""
    """`pcap` or `pcapng`. Empty if it is another one, or could not be read."""
    file_bytes: int = 0
    """Bytes of the capture that were read, decompressed."""
    packets: int = 0
    captured_bytes: int = 0
    """Bytes of packets in the file, link layer included."""
    wire_bytes: int = 0
    """Bytes of all counted packets on the wire. A snap length may have cut them in the file."""
    link_types: dict[int, int] = field(default_factory=dict)
    """Packets by tcpdump's number of the link type."""
    first_time: int = 0
    """The earliest time of a packet, in ns since 1970. 0 if there is no packet."""
    last_time: int = 0
    """The latest time of a packet, in ns since 1970. 0 if there is no packet."""
    stretches: list[list[int]] = field(default_factory=list)
    """The first and the last time of each part without a pause of more than 5 minutes, in ns since 1970.
    Only the longest 1,000 pauses are kept."""
    not_ip: int = 0
    """Packets that are not IP."""
    not_tcp: int = 0
    """IP packets that are not TCP."""
    tunnelled: int = 0
    """Tunnels that were removed to read the inner packet. A packet in two nested tunnels counts twice."""
    unread: dict[str, int] = field(default_factory=dict)
    """Packets by the name of their protocol, which may carry TCP, but is not read."""
    fragments: int = 0
    """Fragments of IP packets. They are not reassembled, so their contents are missing."""
    cut_packets: int = 0
    """Packets that were only captured in part."""
    cut_headers: int = 0
    """Cut packets whose headers are incomplete, so that their connections are unknown."""
    malformed: int = 0
    """Packets whose IP or TCP header contradicts itself, or is incomplete although nothing was cut."""
    filtered: int = 0
    """TCP packets that --host and --port leave out."""
    other_ports: dict[int, int] = field(default_factory=dict)
    """Packets that --port leaves out, by port: the 64 with the most packets. Each packet counts at both
    of its ports."""
    unknown_link: int = 0
    """Packets of link types that are not supported, or of interfaces that the file does not describe."""
    bad_records: int = 0
    """Places where a record had to begin, but none was found."""
    skipped_bytes: int = 0
    """Bytes until the next packet after such a place."""
    trailing_bytes: int = 0
    """Bytes after the last complete record of the file."""
    problems: list[str] = field(default_factory=list)
    """One line for each part of the file that could not be read, without the name of the file."""

    @property
    def kept(self) -> int:
        others = self.not_ip + self.not_tcp + self.fragments + self.unknown_link
        return self.packets - others - self.cut_headers - self.malformed - self.filtered

    def add(self, other: Self) -> None:
        for name in _SUMS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for link, packets in other.link_types.items():
            self.link_types[link] = self.link_types.get(link, 0) + packets
        for name, packets in other.unread.items():
            self.add_unread(name, packets)
        self.add_other_ports(other.other_ports)
        self.add_stretches(other.stretches)
        self.format = self.format or other.format
        lines = sorted({*self.problems, *other.problems} - {_MORE}, key=_in_words_and_numbers)
        more = len(lines) > MOST_PROBLEMS or _MORE in self.problems + other.problems
        self.problems = lines[:MOST_PROBLEMS] + [_MORE] * more

    def add_problem(self, problem: str) -> None:
        """Add a line, unless it is there. After `MOST_PROBLEMS` lines, a last one tells of more."""
        line = problem if len(self.problems) < MOST_PROBLEMS else _MORE
        if line not in self.problems:
            self.problems.append(line)

    def add_unread(self, protocol: str, packets: int) -> None:
        if protocol not in self.unread and len(self.unread) >= MOST_UNREAD:
            protocol = _OTHERS
        if packets:
            self.unread[protocol] = self.unread.get(protocol, 0) + packets

    def add_other_ports(self, packets: Mapping[int, int]) -> None:
        counted = Counter(self.other_ports)
        counted.update(packets)
        self.other_ports = dict(counted.most_common(MOST_PORTS))

    def add_stretches(self, stretches: Iterable[list[int]]) -> None:
        """Add intervals from a first packet to a last one, in ns, without pauses above `PAUSE`."""
        added = sorted(stretches)
        for first, last in added:
            self.first_time = min(self.first_time or first, first)
            self.last_time = max(self.last_time, last)
        self.stretches = _fewer(joined_stretches([*self.stretches, *added], PAUSE))

    def to_json(self) -> str:
        return json.dumps({name: getattr(self, name) for name in self.__slots__})

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        found = json.loads(text)
        for name in ("link_types", "other_ports"):
            found[name] = {int(number): packets for number, packets in found.get(name, {}).items()}
        return cls(**found)


def unread_packets(files: Iterable[FileCounts]) -> Counter[str]:
    """Return how many packets that may carry TCP are not read, by protocol, with IP fragments."""
    found: Counter[str] = Counter()
    for counts in files:
        found.update(counts.unread)
        found.update({"IP fragments": counts.fragments} if counts.fragments else {})
    return found


def joined_stretches(stretches: Iterable[list[int]], pause: int) -> list[list[int]]:
    """Return intervals of time in order. Intervals that overlap or are at most `pause` apart become one."""
    joined: list[list[int]] = []
    for first, last in sorted(stretches):
        if joined and first - joined[-1][1] <= pause:
            joined[-1][1] = max(joined[-1][1], last)
        else:
            joined.append([first, last])
    return joined


def _fewer(stretches: list[list[int]]) -> list[list[int]]:
    """Join the intervals with the shortest pauses between them, so that at most `MOST_STRETCHES` are left."""
    if len(stretches) <= MOST_STRETCHES:
        return stretches
    pauses = [after[0] - before[1] for before, after in pairwise(stretches)]
    longest = sorted(range(len(pauses)), key=pauses.__getitem__)[1 - MOST_STRETCHES :]
    edges = [0, *(place + 1 for place in sorted(longest)), len(stretches)]
    return [[stretches[begin][0], stretches[end - 1][1]] for begin, end in pairwise(edges)]


def _in_words_and_numbers(line: str) -> list[tuple[int, str]]:
    return [(int(part) if part.isdecimal() else -1, part) for part in re.split(r"(\d+)", line)]


_SUMS = [
    one.name
    for one in fields(FileCounts)
    if one.type is int and one.name not in {"number", "first_time", "last_time"}
]
