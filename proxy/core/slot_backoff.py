"""Decides when a connection requests a session again after its broker has refused or evicted one. Sans-IO.

All clients of a broker share its session slots, and so do all gateways. If there are more sessions than
slots, each new session takes the slot of another one, or is refused (fetch-semantics 2.7, trap 22). So a
connection without a slot requests one less and less often. Its fetches are forwarded unchanged meanwhile.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

FIRST_WAIT_SECONDS: Final = 1.0
"""The wait after the second refusal or eviction in a row. After the first one there is none, as in the Java
client: brokers from Kafka 3.8 on have eight shards of slots, and perhaps only one of them is full."""
LONGEST_WAIT_SECONDS: Final = 300.0
"""The limit of the wait, which is doubled with each further refusal or eviction."""
JITTER: Final = 0.2
"""The share by which a wait is longer or shorter by chance, as in Kafka's clients (KIP-580). Without it,
gateways that started together would all request at the same time."""
LASTING_SECONDS: Final = 1800.0
"""After a session that has lasted this long, earlier refusals and evictions no longer count. A broker evicts
no session of a consumer before 120 s (fetch-semantics 2.7). If sessions take each other's slots, few of them
last much longer than that."""


def without_chance() -> float:
    """Return 0.5: waits have no jitter. Tests and `replay` use this, so that each run has the same result."""
    return 0.5


@dataclass(slots=True, eq=False)
class SlotBackoff:
    """The waits of one connection, in seconds. `chance` returns a number from 0 to 1 for the jitter."""

    _chance: Callable[[], float] = without_chance
    _made_at: float | None = None
    """When the broker gave the first session since it last refused or evicted one."""
    _until: float = 0.0
    _wait: float = 0.0
    """The wait after the next refusal or eviction."""
    reported: bool = False
    """Whether it was reported that the broker has no slot. A session that has lasted resets this."""

    def __repr__(self) -> str:
        return f"<SlotBackoff until={self._until:.3f} next={self._wait:.0f}>"

    def waits(self, now: float) -> bool:
        """Return whether no session may be requested now."""
        return now < self._until

    def made(self, now: float) -> None:
        """Note that the broker gave a session, perhaps in place of the one that the connection had."""
        if self._made_at is None:
            self._made_at = now

    def denied(self, now: float) -> None:
        """Note that the broker gave no session (session id 0), or has evicted the session (error 70)."""
        if self._made_at is not None and now - self._made_at >= LASTING_SECONDS:
            self._wait = 0.0
            self.reported = False
        self._made_at = None
        self._until = now + self._wait * (1 + JITTER * (2 * self._chance() - 1))
        self._wait = min(2 * self._wait, LONGEST_WAIT_SECONDS) or FIRST_WAIT_SECONDS
