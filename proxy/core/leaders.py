"""The leaders of partitions, learned from responses to all clients of a process. Sans-IO.

A leader is newer if its epoch is greater (KIP-951). Older Metadata responses are updated with the known
leaders (docs/kip-951.md). Topics are identified by id, so a deleted and recreated topic is a new one.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from proxy.protocol.fetch_layout import Rows
from proxy.protocol.metadata import (
    FIRST_VERSION,
    LAST_VERSION,
    LEADER_BYTES,
    LeaderHint,
    TopicElement,
    partition_count,
    read_topics,
    topic_partitions,
)
from proxy.protocol.primitives import ProtocolError

MAX_BYTES: Final = 1 << 23
"""The memory limit for topics: 200,000 partitions of three replicas. The topics named longest ago are
forgotten first."""
KEEP_SECONDS: Final = 300.0
"""A leader that no response has confirmed for this long is not used any more. Clients themselves refresh
Metadata of this age (metadata.max.age.ms). A cluster that is restored from a backup returns to older
epochs, and clients must not be sent to its former leaders forever."""


MAX_HINTS: Final = 10_000
"""The limit of leaders from responses other than Metadata. They are kept until Metadata of their topics
arrives: some 3 MB."""

_Indexes: TypeAlias = npt.NDArray[np.int32]
_LeaderBytes: TypeAlias = npt.NDArray[np.uint8]
_BYTES: Final = np.arange(LEADER_BYTES)


class _Edits(NamedTuple):
    """Leaders to replace."""

    at: Rows
    """Offsets of the leader ids."""
    leaders: _LeaderBytes
    """Leader id and epoch of each, as bytes. A row has eight bytes."""


class Leaders:
    """The newest leaders, shared by all connections of a process.

    Args:
        max_bytes: the memory limit for topics.
    """

    __slots__ = ("_hinted", "_hints", "_images", "_max_bytes", "_seen", "buffered", "updated")

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._images: dict[bytes, bytes] = {}
        """By topic id: the topic as in `TopicElement.span`, with the newest leader of each partition."""
        self._seen: dict[bytes, float] = {}
        """By topic id: when a response last had no older leaders, in seconds. The oldest comes first."""
        self._hints: dict[bytes, dict[int, LeaderHint]] = {}
        """By topic id and partition: leaders learned since the last Metadata, at most one for each
        partition."""
        self._hinted = 0
        """The number of these leaders."""
        self.buffered = 0
        """Bytes of all images."""
        self.updated = 0
        """The number of updated partitions in Metadata responses."""

    def __repr__(self) -> str:
        return f"<Leaders topics={len(self._images)} buffered={self.buffered} updated={self.updated}>"

    def bring_up_to_date(self, body: bytes, version: int, now: float) -> bytes:
        """Return a Metadata response with the newest leaders, and learn its leaders.

        A partition's leader id and leader epoch are replaced if a greater epoch is known, its leader is among
        the brokers that the response lists, and the partition has no error. The size does not change.

        Args:
            body: the complete response without its header.
            version: the version of the request.
            now: in seconds.

        Returns:
            `body` itself if no leader in it is older, or if it is not understood. In the latter case nothing
            is learned.
        """
        if not FIRST_VERSION <= version <= LAST_VERSION:
            return body
        self._forget_unconfirmed(now)
        try:
            brokers, topics = read_topics(body, version, self._images)
        except ProtocolError:
            return body
        compared = [self._compare(topic, body, brokers, now) for topic in topics]
        edits = [edit for edit in compared if edit is not None]
        self.updated += sum([len(edit.at) for edit in edits])
        return _edited(body, edits) if edits else body

    def learn(self, hints: Iterable[LeaderHint]) -> None:
        """Learn leaders from responses other than Metadata.

        Only topics that Metadata has named are kept, because a client learns the id of a topic there. Leaders
        are compared when the next Metadata arrives, because an error of one partition must not cost a step
        for every other partition.
        """
        for hint in hints:
            image = self._images.get(hint.topic_id)
            # (-1, epoch): there is no leader (fetch-semantics 5, case 65).
            if image is None or hint.leader_id < 0 or hint.leader_epoch < 0:
                continue
            of_topic = self._hints.setdefault(hint.topic_id, {})
            known = of_topic.get(hint.partition)
            newer = known is not None and hint.leader_epoch > known.leader_epoch
            # Kafka numbers the partitions of a topic from 0 on.
            room = self._hinted < MAX_HINTS and 0 <= hint.partition < partition_count(image)
            if newer or (known is None and room):
                self._hinted += known is None
                of_topic[hint.partition] = hint

    def _apply_hints(self, topic_id: bytes) -> None:
        """Put newer leaders into an image. Only Metadata confirms an image, so its time does not change."""
        hints, image = self._hints.pop(topic_id), self._images[topic_id]
        self._hinted -= len(hints)
        entries, at = topic_partitions(image)
        places = dict(zip(entries["partition_index"].tolist(), range(len(at)), strict=True))
        epochs = entries["leader_epoch"]
        newer = [
            (place, hint)
            for index, hint in hints.items()
            if (place := places.get(index)) is not None and hint.leader_epoch > epochs[place]
        ]
        if newer:
            told = b"".join([_leader_of(hint) for _, hint in newer])
            leaders = np.frombuffer(told, np.uint8).reshape(-1, LEADER_BYTES)
            self._images[topic_id] = _edited(image, [_Edits(at[[place for place, _ in newer]], leaders)])

    def _compare(self, topic: TopicElement, body: bytes, brokers: set[int], now: float) -> _Edits | None:
        """Learn a response's leaders of a topic. Return the leaders to replace in it."""
        topic_id, (start, end) = topic
        if topic_id in self._hints:
            self._apply_hints(topic_id)
        image = self._images.get(topic_id)
        if image is not None and body.startswith(image, start):
            self._keep(topic_id, image, now)
            return None
        told = body[start:end]
        if image is None:
            self._keep(topic_id, told, now)
            return None
        known, says = topic_partitions(image), topic_partitions(told)
        of_known, of_says = _common(known.entries["partition_index"], says.entries["partition_index"])
        known_epochs, epochs = known.entries["leader_epoch"][of_known], says.entries["leader_epoch"][of_says]
        older = epochs < known_epochs
        lacks = len(of_known) < len(known.at)  # partitions were added since this response was true
        if not lacks:
            places = says.at[of_says[older]]
            newest = _edited(told, [_Edits(places, _leaders(image, known.at[of_known[older]]))])
        else:
            newer = epochs > known_epochs
            places = known.at[of_known[newer]]
            newest = _edited(image, [_Edits(places, _leaders(told, says.at[of_says[newer]]))])
        # What is older confirms nothing.
        self._keep(topic_id, newest, self._seen[topic_id] if lacks or older.any() else now)
        # With an error a partition has no leader (5), and the error would have to go as well. An epoch of -1
        # is not known: it can't be told which of the two is newer.
        replaced = older & (says.entries["error_code"][of_says] == 0) & (epochs >= 0)
        if replaced.any():
            replaced &= np.isin(known.entries["leader_id"][of_known], list(brokers))
        if not replaced.any():
            return None
        leaders = _leaders(image, known.at[of_known[replaced]])
        return _Edits(start + says.at[of_says[replaced]], leaders)

    def _keep(self, topic_id: bytes, image: bytes, seen: float) -> None:
        """Keep a topic if there is room.

        If it was not seen now, its position in the order of time does not change.

        Topics of the same response do not replace each other. Otherwise a response with too many topics would
        push out the first topics of the next such response.
        """
        more = len(image) - len(self._images.get(topic_id, b""))
        while self.buffered + more > self._max_bytes:
            oldest, last = next(iter(self._seen.items()), (topic_id, seen))
            if oldest == topic_id or last >= seen:
                self._forget(topic_id)
                return
            self._forget(oldest)
        self.buffered += more
        self._images[topic_id] = image
        if self._seen.get(topic_id) != seen:
            self._seen.pop(topic_id, None)
            self._seen[topic_id] = seen

    def _forget(self, topic_id: bytes) -> None:
        self.buffered -= len(self._images.pop(topic_id, b""))
        self._seen.pop(topic_id, None)
        self._hinted -= len(self._hints.pop(topic_id, ()))

    def _forget_unconfirmed(self, now: float) -> None:
        while self._seen:
            topic_id, seen = next(iter(self._seen.items()))
            if now - seen <= KEEP_SECONDS:
                return
            self._forget(topic_id)


def _leader_of(hint: LeaderHint) -> bytes:
    return hint.leader_id.to_bytes(4, signed=True) + hint.leader_epoch.to_bytes(4, signed=True)


def _common(known: _Indexes, says: _Indexes) -> tuple[Rows, Rows]:
    """Return the offsets of the partitions that two topics have in common."""
    if len(known) == len(says) and (known == says).all():
        straight = np.arange(len(known))
        return straight, straight
    _, of_known, of_says = np.intersect1d(known, says, return_indices=True)
    return of_known, of_says


def _leaders(data: bytes, at: Rows) -> _LeaderBytes:
    """Return the leader ids and epochs at some offsets."""
    leaders: _LeaderBytes = np.frombuffer(data, np.uint8)[at[:, None] + _BYTES]
    return leaders


def _edited(data: bytes, edits: Iterable[_Edits]) -> bytes:
    changed = np.array(np.frombuffer(data, np.uint8))
    for at, leaders in edits:
        changed[at[:, None] + _BYTES] = leaders
    return changed.tobytes()
