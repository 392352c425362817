"""Who leads which partition, as far as brokers have told the clients of one process. Sans-IO.

A leader is newer if its epoch is greater, as KIP-951 says. What is known brings older Metadata responses up
to date (docs/kip-951.md). All is known by topic id, so a topic that was made again begins anew.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

from proxy.protocol.metadata import (
    FIRST_VERSION,
    LAST_VERSION,
    LEADER_BYTES,
    LeaderHint,
    PartitionLeader,
    TopicElement,
    partition_count,
    read_topics,
    topic_partitions,
)
from proxy.protocol.primitives import ProtocolError

MAX_BYTES: Final = 1 << 23
"""What is kept of topics, at most: 200,000 partitions of three replicas. Those that were named longest ago
are forgotten first."""
KEEP_SECONDS: Final = 300.0
"""What no response has confirmed for so long is not used any more. Clients themselves take Metadata of this
age to be old (metadata.max.age.ms). A cluster that is restored from a backup goes back to older epochs, and
clients must not be led to its former leaders for ever."""


class _Edit(NamedTuple):
    at: int
    leader: bytes


class Leaders:
    """What all connections of a process share.

    Args:
        max_bytes: what is kept of topics, at most.
    """

    __slots__ = ("_hints", "_images", "_max_bytes", "_seen", "buffered", "updated")

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._images: dict[bytes, bytes] = {}
        """By topic id: the topic as in `TopicElement.span`, with the newest leader of each partition."""
        self._seen: dict[bytes, float] = {}
        """By topic id: when a response was last found not to be older, in seconds; the oldest one first."""
        self._hints: dict[bytes, dict[int, LeaderHint]] = {}
        """By topic id and partition: what was learned since its last Metadata, at most once a partition."""
        self.buffered = 0
        """Bytes of all images."""
        self.updated = 0
        """Partitions in Metadata responses that were brought up to date."""

    def __repr__(self) -> str:
        return f"<Leaders topics={len(self._images)} buffered={self.buffered} updated={self.updated}>"

    def bring_up_to_date(self, body: bytes, version: int, now: float) -> bytes:
        """Return a Metadata response with the newest leaders, and learn what it says.

        A partition's leader id and leader epoch are replaced if a greater epoch is known, its leader is among
        the brokers that the response lists, and the partition has no error. The size stays as it is.

        Args:
            body: the response without its header, whole.
            version: that of the request.
            now: in seconds.

        Returns:
            `body` itself if nothing in it is older, or if it is not understood: then it teaches nothing.
        """
        if not FIRST_VERSION <= version <= LAST_VERSION:
            return body
        self._forget_unconfirmed(now)
        try:
            brokers, topics = read_topics(body, version, self._images)
        except ProtocolError:
            return body
        edits: list[_Edit] = []
        for topic in topics:
            edits += self._compare(topic, body, brokers, now)
        self.updated += len(edits)
        return _edited(body, edits) if edits else body

    def learn(self, hints: Iterable[LeaderHint]) -> None:
        """Learn leaders that responses other than Metadata have named.

        They are kept for topics that Metadata has named: a client learns the id of a topic there. They are
        compared when Metadata comes: an error of one partition must not cost a step for each other one.
        """
        for hint in hints:
            image = self._images.get(hint.topic_id)
            # (-1, epoch): there is no leader (fetch-semantics 5, case 65).
            if image is None or hint.leader_id < 0 or hint.leader_epoch < 0:
                continue
            of_topic = self._hints.setdefault(hint.topic_id, {})
            known = of_topic.get(hint.partition)
            newer = known is not None and hint.leader_epoch > known.leader_epoch
            if newer or (known is None and len(of_topic) < partition_count(image)):
                of_topic[hint.partition] = hint

    def _apply_hints(self, topic_id: bytes) -> None:
        """Put newer leaders into an image. Only Metadata confirms it, so its time stays."""
        hints, image = self._hints.pop(topic_id), self._images[topic_id]
        partitions = topic_partitions(image)
        self._images[topic_id] = _edited(
            image,
            [
                _Edit(known.at, _leader_of(hint))
                for index, hint in hints.items()
                if (known := partitions.get(index)) is not None and hint.leader_epoch > known.leader_epoch
            ],
        )

    def _compare(self, topic: TopicElement, body: bytes, brokers: set[int], now: float) -> list[_Edit]:
        """Learn what a response says of a topic; return what has to change in it."""
        topic_id, (start, end) = topic
        if topic_id in self._hints:
            self._apply_hints(topic_id)
        image = self._images.get(topic_id)
        if image is not None and body.startswith(image, start):
            self._keep(topic_id, image, now)
            return []
        told = body[start:end]
        if image is None:
            self._keep(topic_id, told, now)
            return []
        known, says = topic_partitions(image), topic_partitions(told)
        older = [
            index
            for index, leader in says.items()
            if index in known and leader.leader_epoch < known[index].leader_epoch
        ]
        lacks = not known.keys() <= says.keys()  # partitions were added since this response was true
        if not lacks:
            newest = _edited(told, [_Edit(says[index].at, _leader_of(known[index])) for index in older])
        else:
            newest = _edited(
                image,
                [
                    _Edit(known[index].at, _leader_of(leader))
                    for index, leader in says.items()
                    if index in known and leader.leader_epoch > known[index].leader_epoch
                ],
            )
        # What is older confirms nothing.
        self._keep(topic_id, newest, self._seen[topic_id] if older or lacks else now)
        return [
            _Edit(start + says[index].at, _leader_of(known[index]))
            for index in older
            if _replaceable(says[index]) and known[index].leader_id in brokers
        ]

    def _keep(self, topic_id: bytes, image: bytes, seen: float) -> None:
        """Keep a topic; if it was not seen now, its place in the order of time stays."""
        self.buffered += len(image) - len(self._images.get(topic_id, b""))
        self._images[topic_id] = image
        if self._seen.get(topic_id) != seen:
            self._seen.pop(topic_id, None)
            self._seen[topic_id] = seen
        while self.buffered > self._max_bytes:
            self._forget(next(iter(self._seen)))

    def _forget(self, topic_id: bytes) -> None:
        self.buffered -= len(self._images.pop(topic_id, b""))
        self._seen.pop(topic_id, None)
        self._hints.pop(topic_id, None)

    def _forget_unconfirmed(self, now: float) -> None:
        while self._seen:
            topic_id, seen = next(iter(self._seen.items()))
            if now - seen <= KEEP_SECONDS:
                return
            self._forget(topic_id)


def _replaceable(leader: PartitionLeader) -> bool:
    """Whether a partition has a leader and an epoch that may be replaced.

    With an error it has no leader (5), and the error would have to go as well. An epoch of -1 is not known:
    it can't be told which of the two is newer.
    """
    return not leader.error_code and leader.leader_epoch >= 0


def _leader_of(leader: PartitionLeader | LeaderHint) -> bytes:
    return leader.leader_id.to_bytes(4, signed=True) + leader.leader_epoch.to_bytes(4, signed=True)


def _edited(data: bytes, edits: Iterable[_Edit]) -> bytes:
    changed = bytearray(data)
    for at, leader in edits:
        changed[at : at + LEADER_BYTES] = leader
    return bytes(changed)
