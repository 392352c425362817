"""Remembers the leaders of partitions, from responses to all clients of a process. Sans-IO.

The leader with the greater epoch is newer (KIP-951). If a Metadata response has older leaders, they are
replaced (docs/developers/design.md). Topics are identified by topic id, so a recreated topic is a new topic.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from proxy.protocol.fetch_layout import Entries, Rows
from proxy.protocol.metadata import (
    IDS_VERSION,
    LAST_VERSION,
    LEADER_AT,
    LEADER_BYTES,
    LeaderHint,
    Topic,
    as_rows,
    layout_of,
    node_ids,
    partition_count,
    partitions_of,
    read_entries,
    read_topics,
    with_bytes,
)
from proxy.protocol.primitives import ProtocolError, TooMany

MAX_BYTES: Final = 1 << 23
"""The memory limit for topics, enough for 200,000 partitions with three replicas. Topics whose leaders were
confirmed longest ago are forgotten first."""
KEEP_SECONDS: Final = 300.0
"""A leader that no response has confirmed for this time is not used any more. A cluster restored from a
backup returns to older epochs, and clients must not be sent to its former leaders forever. Clients refresh
their Metadata after the same time (metadata.max.age.ms)."""


MAX_HINTS: Final = 10_000
"""The maximum number of remembered leaders from responses other than Metadata (some 3 MB)."""

_Indexes: TypeAlias = npt.NDArray[np.int32]
_LeaderBytes: TypeAlias = npt.NDArray[np.uint8]
"""Leader id and leader epoch, as rows of eight bytes."""
_Edit: TypeAlias = tuple[Rows, _LeaderBytes]
"""The offsets of leader ids, and the bytes for each."""
_BYTES: Final = np.arange(LEADER_BYTES)
_LAYOUT: Final = layout_of(IDS_VERSION)


@dataclass(slots=True, eq=False)
class Leaders:
    """The newest leaders, shared by all connections of a process."""

    max_bytes: int = MAX_BYTES
    _images: dict[bytes, bytes] = field(default_factory=dict)
    """By topic id, the topic's image (`Topic.start`) with its newest leaders."""
    _seen: dict[bytes, float] = field(default_factory=dict)
    """By topic id: when a response last confirmed the topic's leaders, in seconds, earliest first. A
    response with an older leader confirms nothing."""
    _hints: dict[bytes, dict[int, LeaderHint]] = field(default_factory=dict)
    """By topic id and partition: leaders learned since the last Metadata."""
    _hinted: int = 0
    buffered: int = 0
    """Bytes of all images."""
    updated: int = 0
    """The number of updated partitions in Metadata responses."""

    def __repr__(self) -> str:
        return f"<Leaders topics={len(self._images)} buffered={self.buffered} updated={self.updated}>"

    def bring_up_to_date(self, body: bytes, version: int, now: float) -> bytes:
        """Return a Metadata response with the newest leaders, and learn its leaders.

        A partition's leader id and leader epoch are replaced if a leader with a greater epoch is known. This
        is not done if the response does not list that leader's broker, or if the partition has an error or
        leader epoch -1 in the response. The size of the response does not change. If the response is not
        understood, it is returned unchanged, and nothing is learned.

        `body` is the response without its header.
        """
        if not IDS_VERSION <= version <= LAST_VERSION:
            return body
        self._forget_unconfirmed(now)
        topics: list[Topic] = []
        try:
            head, found = read_topics(body, version, self._images)
            topics.extend(found)
        except TooMany:
            pass  # the others stay unchanged, and are read the next time
        except ProtocolError:
            return body
        brokers = node_ids(head)
        compared = [
            self._compare(topic, body, brokers, now)
            for topic in topics
            if topic.topic_id and not topic.error_code
        ]
        edits = [edit for edit in compared if edit is not None]
        self.updated += sum([len(at) for at, _ in edits])
        return with_bytes(body, edits) if edits else body

    def learn(self, hints: Iterable[LeaderHint]) -> None:
        """Learn leaders from responses other than Metadata.

        Topics that were in no Metadata response are ignored, because clients learn the topic id from
        Metadata. The leaders are only compared when the next Metadata response arrives. Comparing them now
        would cost a step for every partition of the topic, for each error of one partition.
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
            room = self._hinted < MAX_HINTS and 0 <= hint.partition < partition_count(image, _LAYOUT)
            if newer or (known is None and room):
                self._hinted += known is None
                of_topic[hint.partition] = hint

    def _apply_hints(self, topic_id: bytes) -> None:
        hints, image = self._hints.pop(topic_id), self._images[topic_id]
        self._hinted -= len(hints)
        known, at = _partitions(image)
        told = np.array([(0, *hint[1:]) for hint in hints.values()], _LAYOUT.fields)
        of_known, of_told = _common(known["partition_index"], told["partition_index"])
        newer = told["leader_epoch"][of_told] > known["leader_epoch"][of_known]
        if newer.any():
            told_at = of_told[newer] * _LAYOUT.size + LEADER_AT
            # The time in `_seen` stays, because only Metadata confirms an image.
            self._images[topic_id] = with_bytes(
                image, [(at[of_known[newer]], _leaders(told.tobytes(), told_at))]
            )

    def _compare(self, topic: Topic, body: bytes, brokers: frozenset[int], now: float) -> _Edit | None:
        topic_id, start = topic.topic_id, topic.start
        if topic_id in self._hints:
            self._apply_hints(topic_id)
        image = self._images.get(topic_id)
        if image is not None and body.startswith(image, start):
            self._keep(topic_id, image, now)
            return None
        told = body[start : topic.end]
        if image is None:
            self._keep(topic_id, told, now)
            return None
        (known, known_at), (says, at) = _partitions(image), _partitions(told)
        of_known, of_says = _common(known["partition_index"], says["partition_index"])
        known_epochs, epochs = known["leader_epoch"][of_known], says["leader_epoch"][of_says]
        older = epochs < known_epochs
        lacks = len(of_known) < len(known)  # partitions were added since this response was true
        if not lacks:
            newest = with_bytes(told, [(at[of_says[older]], _leaders(image, known_at[of_known[older]]))])
        else:
            newer = epochs > known_epochs
            newest = with_bytes(image, [(known_at[of_known[newer]], _leaders(told, at[of_says[newer]]))])
        # What is older confirms nothing.
        self._keep(topic_id, newest, self._seen[topic_id] if lacks or older.any() else now)
        # With an error a partition has no leader (5), and the error would have to go as well. An epoch of -1
        # is not known: it can't be told which of the two is newer.
        replaced = older & (says["error_code"][of_says] == 0) & (epochs >= 0)
        if replaced.any():
            replaced &= np.isin(known["leader_id"][of_known], list(brokers))
        if not replaced.any():
            return None
        return start + at[of_says[replaced]], _leaders(image, known_at[of_known[replaced]])

    def _keep(self, topic_id: bytes, image: bytes, seen: float) -> None:
        more = len(image) - len(self._images.get(topic_id, b""))
        while self.buffered + more > self.max_bytes:
            oldest, last = next(iter(self._seen.items()), (topic_id, seen))
            # A topic never pushes out another topic of the same response. Otherwise a response with too many
            # topics would always push out its own first topics, and the next response could not be compared
            # with them.
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


def _partitions(image: bytes) -> tuple[Entries, Rows]:
    """Return the partitions of a topic, and the offsets of their leaders."""
    places = partitions_of(image, _LAYOUT)
    return read_entries(image, places, _LAYOUT), as_rows(places) + LEADER_AT


def _common(known: _Indexes, says: _Indexes) -> tuple[Rows, Rows]:
    if len(known) == len(says) and (known == says).all():
        straight = np.arange(len(known))
        return straight, straight
    # The positions, in both lists, of the partitions that both have.
    _, of_known, of_says = np.intersect1d(known, says, return_indices=True)
    return of_known, of_says


def _leaders(data: bytes, at: Rows) -> _LeaderBytes:
    leaders: _LeaderBytes = np.frombuffer(data, np.uint8)[at[:, None] + _BYTES]
    return leaders
