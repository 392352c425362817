"""What the fetches of a capture ask: partitions, offsets, topic ids that nothing names. Sans-IO."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from proxy.protocol.api import ApiKey
from proxy.protocol.fetch_layout import LAYOUTS, MAX_VERSION, MIN_VERSION, FetchLayout
from proxy.protocol.fetch_request import parse_fetch_request
from replay.drive.script import CapturedConnection, Script

Offsets: TypeAlias = npt.NDArray[np.int64]
"""One for each partition of a topic, from 0 on."""

HIGHEST: Final = np.iinfo(np.int64).max
"""Above every offset."""
_UNKNOWN_OFFSET: Final = -1


def _request_fields(version: int) -> np.dtype[Any]:
    """Where the fields to be mapped lie in a request's entry (FetchRequest.json)."""
    fields: dict[str, tuple[str, int]] = {
        "partition": (">u4", 0),
        "offset": (">i8", 8 if version >= 9 else 4),
    }
    if version >= 9:
        fields["epoch"] = (">i4", 4)
    if version >= 12:
        fields["last_epoch"] = (">i4", 16)
    return np.dtype(
        {
            "names": list(fields),
            "formats": [kind for kind, _ in fields.values()],
            "offsets": [offset for _, offset in fields.values()],
            "itemsize": LAYOUTS[version].request_entry,
        }
    )


FIELDS: Final = {version: _request_fields(version) for version in range(MIN_VERSION, MAX_VERSION + 1)}


def topic_name(layout: FetchLayout, key: bytes, names: Mapping[bytes, str]) -> str:
    """Give the name of a topic as a capture has it; an id without a name stays one, in hex."""
    return names.get(key, key.hex()) if layout.topic_ids else key.decode(errors="replace")


@dataclass(slots=True, eq=False)
class Asked:
    """The offsets from which a capture fetched one topic, by partition."""

    lowest: Offsets = field(default_factory=lambda: np.empty(0, np.int64))
    """`HIGHEST` for a partition that nobody fetched."""
    highest: Offsets = field(default_factory=lambda: np.empty(0, np.int64))
    """-1 for such a one."""

    def take(self, partitions: npt.NDArray[np.intp], offsets: Offsets) -> None:
        """Note what a fetch asked."""
        if missing := max(int(partitions.max(initial=-1)) + 1 - len(self.lowest), 0):
            self.lowest = np.concatenate((self.lowest, np.full(missing, HIGHEST, np.int64)))
            self.highest = np.concatenate((self.highest, np.full(missing, _UNKNOWN_OFFSET, np.int64)))
        np.minimum.at(self.lowest, partitions, offsets)
        np.maximum.at(self.highest, partitions, offsets)


_TELLING: Final = 20
"""So many different fetches tell which broker a client was connected to."""
MAX_PARTITION: Final = 1_000_000
"""Kafka's own limits end far below; a number beyond it is no partition."""


def fetched(connection: CapturedConnection, names: Mapping[bytes, str]) -> dict[str, set[int]]:
    """Tell which partitions a connection's first fetches list, by topic."""
    found: dict[str, set[int]] = {}
    frames = {step.frame: step for step in connection.steps if step.api_key == ApiKey.FETCH}
    for step in islice(frames.values(), _TELLING):
        request = parse_fetch_request(step.frame, step.version, step.body)
        for key, block in request.listing.topics() if request.listing is not None else ():
            partitions = np.frombuffer(block, FIELDS[step.version])["partition"]
            found.setdefault(topic_name(request.layout, key, names), set()).update(partitions.tolist())
    return found


def asked(script: Script, names: Mapping[bytes, str]) -> dict[str, Asked]:
    """Go over all fetches of a script; give by topic from where they fetch."""
    found: dict[str, Asked] = {}
    frames = {step.frame: step for line in script.connections for step in line.steps}
    for step in frames.values():
        if step.api_key != ApiKey.FETCH:
            continue
        request = parse_fetch_request(step.frame, step.version, step.body)
        for key, block in request.listing.topics() if request.listing is not None else ():
            entries = np.frombuffer(block, FIELDS[step.version])
            entries = entries[entries["partition"] < MAX_PARTITION]
            topic = found.setdefault(topic_name(request.layout, key, names), Asked())
            topic.take(entries["partition"].astype(np.intp), entries["offset"].astype(np.int64))
    return found


def nameless(script: Script) -> list[bytes]:
    """Give the topic ids of fetches that the capture does not name, in order."""
    frames = {step.frame: step for connection in script.connections for step in connection.steps}
    found: set[bytes] = set()
    for step in frames.values():
        if step.api_key == ApiKey.FETCH and LAYOUTS[step.version].topic_ids:
            request = parse_fetch_request(step.frame, step.version, step.body)
            found.update(request.listing.keys if request.listing is not None else ())
    return sorted(found - script.topics.keys())
