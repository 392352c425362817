"""Translates captured requests for the target: topics, offsets, leader epochs. Sans-IO.

Topics are matched by name. A topic id (Fetch v13 and later) is translated in two steps: the capture's
Metadata gives the topic's name, and the target's Metadata gives the target's id. Partitions that the target
lacks are left out of a fetch and counted.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from proxy.protocol.fetch_layout import LAYOUTS, FetchLayout
from proxy.protocol.fetch_request import FetchRequest, build_fetch_request, parse_fetch_request
from proxy.protocol.messages import read, splice
from proxy.protocol.schemas import METADATA_REQUEST
from replay.drive.asked import HIGHEST, Asked, Offsets, topic_name
from replay.drive.options import OffsetPolicy
from replay.drive.reads import Place, Reads
from replay.drive.script import Step
from replay.drive.topics import Topic
from replay.protocol.names import text_of

_NO_EPOCH: Final = -1
_CREATION: Final = frozenset({"topics", "allow_auto_topic_creation"})


@dataclass(frozen=True, slots=True)
class Bounds:
    """How the offsets of a topic change: `shift` is added, then the result is limited to `low` .. `high`."""

    shift: Offsets
    low: Offsets
    high: Offsets


@dataclass(frozen=True, slots=True)
class Overrides:
    """Values that replace the captured ones in fetches. None keeps the captured value."""

    max_wait_ms: int | None = None
    min_bytes: int | None = None
    read_to_captured: bool = False


@dataclass(slots=True, eq=False)
class MappedFetch:
    """A fetch translated for the target, except its session."""

    request: FetchRequest
    """The captured one, with correlation id 0 and the limits for the target."""
    topics: list[tuple[bytes, bytes]]
    """The elements: each with its key and its entries, as on the wire."""
    forgotten: list[tuple[bytes, bytes]]
    """The elements: each with its key and its partitions, 4 bytes each."""
    _entries: "list[tuple[tuple[bytes, bytes], bytes]] | None" = None

    @property
    def entries(self) -> "list[tuple[tuple[bytes, bytes], bytes]]":
        """The entries of `topics`, each with its key and partition. All sessions use these same objects."""
        if self._entries is None:
            size = self.request.layout.request_entry
            self._entries = [
                ((key, block[at : at + 4]), block[at : at + size])
                for key, block in self.topics
                for at in range(0, len(block), size)
            ]
        return self._entries

    def frame(
        self,
        session_id: int,
        session_epoch: int,
        listed: Iterable[tuple[bytes, bytes]] | None = None,
        *,
        forgets: bool = True,
    ) -> bytes:
        """Build the whole frame, with `listed` in place of this fetch's own elements.

        The session id and epoch are ignored below v7. `forgets` tells whether the frame has the forgotten
        partitions.
        """
        topics = self.topics if listed is None else listed
        forgotten = self.forgotten if forgets else ()
        session = session_id, session_epoch
        return build_fetch_request(self.request, self.request.layout, session, topics, forgotten)


class FetchMapping:
    """Translates the fetches of a script for one target.

    Args:
        names: topic id -> name, from the capture.
        bounds: how offsets change, by topic name. Other topics keep their offsets.
        growing: topic -> the partitions to which the run writes.
    """

    def __init__(
        self,
        names: Mapping[bytes, str],
        topics: Mapping[str, Topic],
        bounds: Mapping[str, Bounds],
        overrides: Overrides,
        growing: Mapping[str, frozenset[int]] | None = None,
    ) -> None:
        keys = [(key, name) for name, each in topics.items() for key in (name.encode(), each.topic_id)]
        self._by_key = {key: topics[name] for key, name in keys}
        self._growing = {key: (growing or {}).get(name, frozenset()) for key, name in keys}
        self._names = names
        self._topics = topics
        self._bounds = bounds
        self._overrides = overrides
        self._mapped: dict[tuple[bytes, int | None], MappedFetch | None] = {}
        self.missing: Counter[str] = Counter()
        """Entries that were left out, by topic, because the target lacks the topic or some of its partitions.
        A fetch that is played several times counts once."""
        self.elsewhere: Counter[str] = Counter()
        """The same for entries that were left out because another broker leads their partitions."""

    def map(self, step: Step, node_id: int | None = None) -> MappedFetch | None:
        """Return a fetch translated for the target. Return None if the target has none of its partitions.

        Only the partitions that broker `node_id` leads, or that have no leader, are kept. With None, all are
        kept. In a session the fetch may list no partition: then it only fetches what the session already has.
        """
        key = step.frame, node_id
        if key not in self._mapped:
            self._mapped[key] = self._map(step, node_id)
        return self._mapped[key]

    def reads(self, step: Step) -> Reads | None:
        """Return what the captured response to a fetch had. None if that is not known, or not to be kept."""
        response = step.response
        if not self._overrides.read_to_captured or response is None or response.error_code:
            return None
        found: dict[Place, int] = {}
        for key, partition, size, _ in response.reads:
            topic = self._topics.get(self._names.get(key, "")) if LAYOUTS[step.version].topic_ids else None
            found[topic.topic_id if topic is not None else key, partition.to_bytes(4)] = size
        return Reads(step.version, found, self._by_key, self._growing)

    def nameless(self, step: Step) -> bool:
        """Return whether a fetch lists only topic ids for which the capture has no name."""
        return LAYOUTS[step.version].topic_ids and self._names.keys().isdisjoint(dict(step.listed()))

    def _map(self, step: Step, node_id: int | None) -> MappedFetch | None:
        request = parse_fetch_request(step.frame, step.version, step.body)
        layout = request.layout
        topics: list[tuple[bytes, bytes]] = []
        listed = request.listing.topics() if request.listing is not None else ()
        for key, block in listed:
            name = topic_name(layout, key, self._names)
            topic = self._topics.get(name)
            if topic is None:
                self.missing[name] += len(block) // layout.request_entry
            elif entries := self._entries(layout, name, topic, block, node_id):
                topics.append((topic.topic_id if layout.topic_ids else key, entries))
        forgotten = [*self._forgotten(request)]
        if request.partitions and not topics and step.session_epoch <= 0:
            return None
        wait, least = self._overrides.max_wait_ms, self._overrides.min_bytes
        return MappedFetch(request.with_limits(max_wait_ms=wait, min_bytes=least), topics, forgotten)

    def _entries(
        self, layout: FetchLayout, name: str, topic: Topic, block: bytes, node_id: int | None
    ) -> bytes:
        entries = self._here(layout, name, topic, block, node_id)
        partition = entries["partition"].astype(np.intp)
        bounds = self._bounds.get(name)
        if bounds is not None:
            shifted = entries["offset"].astype(np.int64) + bounds.shift[partition]
            entries["offset"] = np.clip(shifted, bounds.low[partition], bounds.high[partition])
        if layout.version >= 9:
            # A captured epoch means nothing in another cluster, which would respond with error 74 or 75.
            has_epoch = entries["epoch"] != _NO_EPOCH
            entries["epoch"] = np.where(has_epoch, topic.leader_epochs[partition], _NO_EPOCH)
        if layout.version >= 12:
            entries["last_epoch"] = _NO_EPOCH
        return entries.tobytes()

    def _here(
        self, layout: FetchLayout, name: str, topic: Topic, block: bytes, node_id: int | None
    ) -> npt.NDArray[Any]:
        """Return the entries whose partitions the broker leads, or that have no leader. Count the others."""
        fields = layout.request_fields
        partitions = np.frombuffer(block, fields)["partition"]
        here = partitions < topic.partitions
        if absent := len(here) - np.count_nonzero(here):
            self.missing[name] += int(absent)
        if node_id is not None:
            leaders = topic.leaders[np.where(here, partitions, 0)]
            led = here & ((leaders == node_id) | (leaders < 0))
            if others := np.count_nonzero(here) - np.count_nonzero(led):
                self.elsewhere[name] += int(others)
            here = led
        # Rows of bytes: copying items of `fields` would lose the bytes between the fields.
        rows = np.frombuffer(block, np.uint8).reshape(-1, layout.request_entry)[here]
        return rows.view(fields).reshape(-1)

    def _forgotten(self, request: FetchRequest) -> Iterable[tuple[bytes, bytes]]:
        # A broker ignores what a full fetch forgets (fetch-semantics 2.3).
        for key, partitions in request.forgotten if request.session_epoch > 0 else ():
            topic = self._topics.get(topic_name(request.layout, key, self._names))
            if topic is not None:
                yield (topic.topic_id if request.layout.topic_ids else key), partitions


def bounds_of(
    policy: OffsetPolicy, topic: Topic, captured: Asked, written: Mapping[int, int] | None = None
) -> Bounds | None:
    """Return how a topic's offsets change, or None if they do not change.

    If the target did not give the offsets of a partition, the captured offsets of this partition are kept.
    `written` has, for each partition to which the run writes, the captured offset of the first record. The
    target appends this record at its latest offset.
    """
    if policy is OffsetPolicy.KEEP:
        return None
    known = (topic.earliest >= 0) & (topic.latest >= 0)
    shift = np.zeros(topic.partitions, np.int64)
    high = topic.latest.copy()
    fetched = min(len(captured.lowest), topic.partitions)
    if policy is OffsetPolicy.EARLIEST:
        shift[:fetched] = topic.earliest[:fetched] - captured.lowest[:fetched]
    elif policy is OffsetPolicy.LATEST:
        shift[:fetched] = topic.latest[:fetched] - captured.ends[:fetched]
    for partition, offset in (written or {}).items():
        if partition < topic.partitions:
            high[partition] = HIGHEST
            if policy is OffsetPolicy.LATEST:
                shift[partition] = topic.latest[partition] - offset
    return Bounds(
        np.where(known, shift, 0), np.where(known, topic.earliest, 0), np.where(known, high, HIGHEST)
    )


def most_leading(script_topics: Mapping[str, Iterable[int]], topics: Mapping[str, Topic]) -> int | None:
    """Return the node that leads most of these partitions, or None if no partition has a leader."""
    votes: Counter[int] = Counter()
    for name, partitions in script_topics.items():
        topic = topics.get(name)
        if topic is None:
            continue
        for partition in partitions:
            if partition < topic.partitions and topic.leaders[partition] >= 0:
                votes[int(topic.leaders[partition])] += 1
    return min(votes, key=lambda node: (-votes[node], node), default=None)


def with_ids(frame: bytes, ids: Mapping[bytes, bytes]) -> bytes:
    """Replace the capture's topic ids by the target's, in a request other than Fetch."""
    for captured, here in ids.items():
        # A topic id is 16 random bytes, so other bytes are never equal to it.
        frame = frame.replace(captured, here)
    return frame


def without_creation(step: Step, topics: Iterable[str]) -> bytes | None:
    """Return a Metadata request that creates no topic, or None if there is none.

    Below v4 a request can't forbid it: it must name only topics that the target has.

    Raises:
        ProtocolError: the request does not parse.
    """
    frame, version = step.frame, step.version
    found = read(METADATA_REQUEST, step.api_key, version, frame, step.body, only=_CREATION, whole=False)
    if version < 4:
        wanted = {text_of(topic["name"]) for topic in found["topics"] or ()}
        return frame if wanted <= set(topics) else None
    return splice(frame, found.edits(allow_auto_topic_creation=False))
