"""The order of idempotent batches, over all connections of their producer. Sans-IO.

A broker accepts batches of a producer id and partition only in their sequence (KIP-98). While the gateway
retries a batch at the new leader, the producer may have found that leader itself, and send the next batch
there. The next batch would arrive first. So a request waits while batches of the same lane are in flight on
another connection of the same client. It does not wait for other clients, because anybody may use the
producer id of another client.
"""

from typing import Final, Protocol, TypeAlias

from proxy.protocol.produce import Produced, ProducedBatch

MAX_LANES: Final = 1 << 17
"""How many producer sequences are tracked; the least recently acknowledged is dropped first."""

Lane: TypeAlias = tuple[int, int, bytes, int]
"""Producer id, producer epoch, topic, partition."""


def lane_of(batch: ProducedBatch) -> Lane:
    """Return the lane of a batch."""
    return batch.producer_id, batch.producer_epoch, batch.topic, batch.partition


class Owner(Protocol):
    """A connection that sends batches."""

    @property
    def client(self) -> tuple[str, str, bytes | None]:
        """The client of the connection: host, client id, and authenticated identity."""

    def go_on(self) -> None:
        """Send the waiting request."""


class ProduceOrder:
    """The order of batches over all connections of a process, by lane."""

    def __init__(self, most: int = MAX_LANES) -> None:
        self._most = most
        self._in_flight: dict[Lane, dict[Owner, int]] = {}
        """The number of unanswered requests, by lane and owner."""
        self._next: dict[Lane, int] = {}
        """The sequence after the last acknowledged batch."""
        self._overtaken: set[Lane] = set()
        """Lanes in which a request was sent although others were in flight elsewhere. These are not
        retried."""
        self._hung: set[Owner] = set()
        """Owners for which others have waited the longest allowed time. Nobody waits for them again before
        they get an answer."""
        self._waiting: list[Owner] = []

    def __repr__(self) -> str:
        return f"<ProduceOrder known={len(self._next)} in_flight={len(self._in_flight)}>"

    def enter(self, produced: Produced, owner: Owner, *, forced: bool) -> bool:
        """Note that a request is sent. Return False if it has to wait until its owner is called."""
        lanes = [lane_of(batch) for batch in produced.batches]
        busy = {lane: others for lane in lanes if (others := self._others(lane, owner))}
        in_the_way = {other for others in busy.values() for other in others} - self._hung
        if in_the_way and not forced:
            if owner not in self._waiting:
                self._waiting.append(owner)
            return False
        self._hung |= in_the_way
        self._overtaken.update(busy)
        for lane in lanes:
            owners = self._in_flight.setdefault(lane, {})
            owners[owner] = owners.get(owner, 0) + 1
        return True

    def leave(self, produced: Produced, owner: Owner, *, answered: bool = True) -> None:
        """Note that no part of a request will be retried.

        Args:
            produced: the request.
            owner: the connection that sent it.
            answered: whether the broker has responded, so that it does not hang.
        """
        if answered:
            self._hung.discard(owner)
        for batch in produced.batches:
            lane = lane_of(batch)
            owners = self._in_flight.get(lane, {})
            owners[owner] = owners.get(owner, 0) - 1
            self._forget(lane, owner, owners)
        self._call()

    def drop(self, owner: Owner) -> None:
        """Note that a connection has ended."""
        self._hung.discard(owner)
        for lane, owners in list(self._in_flight.items()):
            if owner in owners:
                owners[owner] = 0
                self._forget(lane, owner, owners)
        if owner in self._waiting:
            self._waiting.remove(owner)
        self._call()

    def acknowledged(self, batch: ProducedBatch) -> None:
        """Note that a leader has stored a batch."""
        lane = lane_of(batch)
        self._next.pop(lane, None)
        self._next[lane] = batch.next_sequence
        if len(self._next) > self._most:
            del self._next[next(iter(self._next))]

    def is_next(self, batch: ProducedBatch) -> bool:
        """Return whether a batch follows the last acknowledged one, so that it may be retried.

        A producer's first batch has no predecessor. Without this rule, a leader that does not know the
        producer would accept a later batch as the first.
        """
        lane = lane_of(batch)
        return self._next.get(lane, 0) == batch.sequence and lane not in self._overtaken

    def _others(self, lane: Lane, owner: Owner) -> list[Owner]:
        """Return the other connections of the same client on which batches are in flight."""
        owners = self._in_flight.get(lane, {})
        return [other for other in owners if other is not owner and other.client == owner.client]

    def _forget(self, lane: Lane, owner: Owner, owners: dict[Owner, int]) -> None:
        if owners[owner] <= 0:
            del owners[owner]
        if not owners:
            self._in_flight.pop(lane, None)
            self._overtaken.discard(lane)

    def _call(self) -> None:
        """Let waiting owners try again."""
        waiting, self._waiting = self._waiting, []
        for owner in waiting:
            owner.go_on()
