"""The contents of a capture's fetches: partitions, offsets, and topic ids without a known name. Sans-IO."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from proxy.protocol.api import ApiKey
from proxy.protocol.fetch_layout import LAYOUTS, FetchLayout
from replay.drive.script import PlayedConnection, Script
from replay.protocol.naming import named_partitions

Offsets: TypeAlias = npt.NDArray[np.int64]
"""One offset for each partition of a topic. The index is the partition number."""

HIGHEST: Final = np.iinfo(np.int64).max
"""A number that no offset exceeds: the maximum of int64."""
_UNKNOWN_OFFSET: Final = -1


def topic_name(layout: FetchLayout, key: bytes, names: Mapping[bytes, str]) -> str:
    """Return the captured name of a topic, or its id in hex if its name is not known."""
    return names.get(key, key.hex()) if layout.topic_ids else key.decode(errors="replace")


@dataclass(slots=True, eq=False)
class Asked:
    """The lowest and the highest offset that a capture's fetches requested in each partition of one topic."""

    lowest: Offsets = field(default_factory=lambda: np.empty(0, np.int64))
    """`HIGHEST` for a partition that no fetch requested."""
    highest: Offsets = field(default_factory=lambda: np.empty(0, np.int64))
    """-1 for a partition that no fetch requested."""
    ends: Offsets = field(default_factory=lambda: np.empty(0, np.int64))
    """The end of each partition: the highest offset that a fetch requested, or the high watermark if that was
    higher in a response with records."""

    def add(self, partitions: npt.NDArray[np.intp], offsets: Offsets) -> None:
        if missing := max(int(partitions.max(initial=-1)) + 1 - len(self.lowest), 0):
            self.lowest = np.concatenate((self.lowest, np.full(missing, HIGHEST, np.int64)))
            unknown = np.full(missing, _UNKNOWN_OFFSET, np.int64)
            self.highest, self.ends = (np.concatenate((each, unknown)) for each in (self.highest, self.ends))
        np.minimum.at(self.lowest, partitions, offsets)
        np.maximum.at(self.highest, partitions, offsets)
        np.maximum.at(self.ends, partitions, offsets)

    def end(self, partition: int, high_watermark: int) -> None:
        if partition < len(self.ends):
            self.ends[partition] = max(int(self.ends[partition]), high_watermark)


_SAMPLED: Final = 20
"""The number of different fetches of a connection that are read to find the broker from which it fetches."""
MAX_PARTITION: Final = 1_000_000
"""The lowest number that is not accepted as a partition number. Kafka's own limits are far lower."""


def fetched(connection: PlayedConnection, names: Mapping[bytes, str]) -> dict[str, set[int]]:
    """Return the partitions in a connection's first `_SAMPLED` different fetches and Produces, by topic."""
    found: dict[str, set[int]] = {}
    written = {step.frame: step for step in connection.steps if step.api_key == ApiKey.PRODUCE}
    for step in islice(written.values(), _SAMPLED):
        for name, partition in named_partitions(step.api_key, step.version, step.frame, step.body, names):
            found.setdefault(name, set()).add(partition)
    frames = {step.frame: step for step in connection.steps if step.api_key == ApiKey.FETCH}
    for step in islice(frames.values(), _SAMPLED):
        layout = LAYOUTS[step.version]
        for key, block in step.listed():
            partitions = np.frombuffer(block, layout.request_fields)["partition"]
            found.setdefault(topic_name(layout, key, names), set()).update(partitions.tolist())
    return found


def asked(script: Script, names: Mapping[bytes, str]) -> dict[str, Asked]:
    """Return the offsets of all fetches of a script, by topic."""
    found: dict[str, Asked] = {}
    for step in script.different():
        if step.api_key != ApiKey.FETCH:
            continue
        layout = LAYOUTS[step.version]
        for key, block in step.listed():
            entries = np.frombuffer(block, layout.request_fields)
            entries = entries[entries["partition"] < MAX_PARTITION]
            topic = found.setdefault(topic_name(layout, key, names), Asked())
            topic.add(entries["partition"].astype(np.intp), entries["offset"].astype(np.int64))
    for step in script.steps():
        reads = step.response.reads if step.response is not None else ()
        for key, partition, size, high_watermark in reads:
            topic = found.get(topic_name(LAYOUTS[step.version], key, names), Asked())
            if size > 0:
                topic.end(partition, high_watermark)
    return found


def needed(script: Script, fetched_topics: Mapping[str, Asked]) -> dict[str, int]:
    """Return the topics whose partitions a script's requests name, and how many partitions each must have.

    The number is the one in the capture's Metadata, or higher if a request names a higher partition. Topic
    ids without a known name are left out. `fetched_topics` is the result of `asked`.
    """
    found = {name: len(topic.lowest) for name, topic in fetched_topics.items()}
    for id_ in nameless(script):
        found.pop(id_.hex(), None)
    for step in script.different():
        named = named_partitions(step.api_key, step.version, step.frame, step.body, script.topics)
        for name, partition in named:
            if 0 <= partition < MAX_PARTITION:
                found[name] = max(found.get(name, 0), partition + 1)
    return {name: max(count, script.partitions.get(name, 0)) for name, count in found.items()}


def nameless(script: Script) -> list[bytes]:
    """Return the topic ids in a script's fetches for which the script has no topic name, in order."""
    found: set[bytes] = set()
    for step in script.different():
        if step.api_key == ApiKey.FETCH and LAYOUTS[step.version].topic_ids:
            found.update(key for key, _ in step.listed())
    return sorted(found - script.topics.keys())
