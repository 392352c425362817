"""What was found in one capture file, whether it could be used or not."""

import dataclasses
import json
from dataclasses import dataclass, field
from typing import Self

MOST_PROBLEMS = 10
"""Lines of a file that are kept."""


@dataclass(slots=True, kw_only=True)
class FileCounts:
    """Counts of one file, or of the part of it that one share holds; parts of a file add up to the whole.

    Nothing that a file holds is left out silently: each packet is counted here once as `packets`, and again
    under the reason why its bytes didn't become segments.
    """

    file: str
    """As the user would name it; `-` is standard input."""
    number: int = 0
    """The file's place in the input."""
    format: str = ""
    """`pcap` or `pcapng`; empty when the file is neither."""
    file_bytes: int = 0
    """Bytes of the capture that were read, decompressed."""
    packets: int = 0
    captured_bytes: int = 0
    """Bytes of packets in the file, link layer included."""
    wire_bytes: int = 0
    """The same as they were on the wire, before any snap length cut them."""
    link_types: dict[int, int] = field(default_factory=dict)
    """Packets by link type, as tcpdump numbers them."""
    first_time: int = 0
    """Nanoseconds since 1970; 0 when there is no packet."""
    last_time: int = 0
    not_ip: int = 0
    not_tcp: int = 0
    fragments: int = 0
    """Fragments of IP packets; they are not put together, so what they carried is missing."""
    cut_packets: int = 0
    """Packets captured shorter than they were."""
    cut_headers: int = 0
    """Of these, the ones whose headers were cut too, so that nobody knows whose they were."""
    malformed: int = 0
    """Packets whose IP or TCP header contradicts itself."""
    filtered: int = 0
    """TCP packets of hosts or ports that were not asked for."""
    unknown_link: int = 0
    """Packets of link types that are not read."""
    bad_records: int = 0
    """Places where the chain of records broke."""
    skipped_bytes: int = 0
    """Bytes passed over in search of the next record."""
    trailing_bytes: int = 0
    """Bytes after the last whole record."""
    problems: list[str] = field(default_factory=list)
    """What could not be read, a line each, without the name of the file."""

    def add(self, other: Self) -> None:
        """Take in the counts of another part of the same file."""
        for name in _SUMS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for link, packets in other.link_types.items():
            self.link_types[link] = self.link_types.get(link, 0) + packets
        if other.first_time:
            self.saw(other.first_time, other.last_time)
        self.format = self.format or other.format
        for line in other.problems:
            self.note(line)

    def note(self, problem: str) -> None:
        """Add a line to the problems, once; beyond MOST_PROBLEMS that there are more."""
        line = problem if len(self.problems) < MOST_PROBLEMS else "and more of the kind"
        if line not in self.problems:
            self.problems.append(line)

    def saw(self, first: int, last: int) -> None:
        """Widen the time span by packets between `first` and `last`."""
        self.first_time = min(self.first_time or first, first)
        self.last_time = max(self.last_time, last)

    def to_json(self) -> str:
        """One JSON object."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """Read what `to_json` wrote."""
        found = json.loads(text)
        found["link_types"] = {int(link): packets for link, packets in found["link_types"].items()}
        return cls(**found)


_SUMS = (
    "file_bytes",
    "packets",
    "captured_bytes",
    "wire_bytes",
    "not_ip",
    "not_tcp",
    "fragments",
    "cut_packets",
    "cut_headers",
    "malformed",
    "filtered",
    "unknown_link",
    "bad_records",
    "skipped_bytes",
    "trailing_bytes",
)
