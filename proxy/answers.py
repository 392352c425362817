"""Which request each answer of a broker is for, and the order in which answers leave. Sans-IO.

A broker answers in order, so each request that will be answered is remembered in two queues: that of the
broker, which tells what the next frame from it answers, and that of the client, in which answers leave. They
differ only while a fetch is repeated: later answers then wait for it.
"""

from collections import deque

from proxy.exchange import Buffer, Exchange


class Answers:
    """The answers of one connection that are still to come or to leave."""

    __slots__ = ("expected", "held", "owed", "repeating")

    def __init__(self) -> None:
        self.expected: deque[Exchange] = deque()
        """What the broker will answer, in its order."""
        self.owed: deque[Exchange] = deque()
        """What the client will be answered, in its order."""
        self.repeating = 0
        """Fetches that are asked once more; what follows them waits."""
        self.held = 0
        """Bytes of answers kept until they are whole or their turn comes."""

    def in_turn(self, exchange: Exchange, pieces: list[Buffer]) -> list[Buffer]:
        """Return the next bytes of an answer if it is its turn to leave; keep them otherwise."""
        if self.owed and self.owed[0] is exchange:
            return pieces
        exchange.out += pieces
        self.held += sum(map(len, pieces))
        return []

    def ended(self, exchange: Exchange) -> list[Buffer]:
        """Note that an answer is whole; return what of later ones has waited for it."""
        exchange.answered = True
        owed = self.owed
        waited: list[Buffer] = []
        while owed and owed[0].answered:
            owed.popleft()
            if owed and owed[0].out:
                waited += owed[0].out
                self.held -= sum(map(len, owed[0].out))
                owed[0].out = []
        return waited

    def clear(self) -> None:
        """Expect, owe and keep nothing any more."""
        self.expected.clear()
        self.owed.clear()
        self.held = 0
