"""Decides which fetches may use a session, from facts about the client and its broker. Sans-IO.

`proxy.core.savings` decides whether a session saves bytes.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from proxy.core.savings import Savings
from proxy.protocol.api_versions import Features
from proxy.protocol.fetch_request import SESSIONLESS_EPOCH, FetchRequest
from proxy.session.decision import Reason
from proxy.session.handler import FetchSessionHandler

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


class SessionLimits:
    """The session switch, and the session slots that the gateway uses at brokers. All connections share it.

    A broker has 1000 slots for all its clients (fetch-semantics 2.7, trap 22).

    Args:
        off_for: client ids whose fetches use no session.
        keep_order: if true, a fetch uses no session when the session's order of partitions would decide which
            partitions get records.
        chance: returns a number from 0 to 1, by chance: see `SlotBackoff`.
    """

    __slots__ = (
        "_keep_order",
        "_off_for",
        "_on",
        "chance",
        "crowded",
        "generation",
        "max_sessions",
        "used",
    )

    def __init__(
        self,
        *,
        max_sessions: int,
        on: bool = True,
        off_for: frozenset[str] = frozenset(),
        keep_order: bool = False,
        chance: Callable[[], float] = without_chance,
    ) -> None:
        self.max_sessions = max_sessions
        self._on, self._off_for, self._keep_order = on, off_for, keep_order
        self.generation = 0
        """How many times options were reloaded. A plan of the fast path is used only in the generation in
        which its fetch was decided."""
        self.crowded = False
        """Whether the process buffers more bytes than the limit of `Budget`. If so, fetches use no sessions,
        because responses without a session can be forwarded as they arrive."""
        self.chance = chance
        self.used = 0
        """The number of session slots that the gateway uses or has requested."""

    def __repr__(self) -> str:
        return f"<SessionLimits used={self.used}/{self.max_sessions} on={self._on}>"

    def reload(
        self, *, on: bool = True, off_for: frozenset[str] = frozenset(), keep_order: bool = False
    ) -> None:
        """Apply the options after a reload of any option, those of features as well."""
        self._on, self._off_for, self._keep_order = on, off_for, keep_order
        self.generation += 1

    # The switch is changed by `reload` alone: else plans of the fast path would not see it.

    @property
    def on(self) -> bool:
        return self._on

    @property
    def off_for(self) -> frozenset[str]:
        return self._off_for

    @property
    def keep_order(self) -> bool:
        return self._keep_order

    @property
    def left(self) -> bool:
        return self.used < self.max_sessions

    def allowed(self, client_id: str) -> bool:
        return self._on and client_id not in self._off_for

    def reserve(self) -> bool:
        if not self.left:
            return False
        self.used += 1
        return True

    def release(self) -> None:
        self.used -= 1


@dataclass(slots=True, weakref_slot=True, eq=False)
class BrokerVersions:
    """The features of the broker at one address, shared by the connections to it.

    The features are forgotten when the connection that learned them ends. So they never survive an upgrade of
    the broker, because an upgrade closes that connection.
    """

    features: Features | None = None
    _learner: object = None
    """The `Eligibility` of the connection that learned the features."""

    def __repr__(self) -> str:
        return f"<BrokerVersions {self.features}>"

    def remember(self, learner: object, features: Features) -> None:
        # Equal features are forgotten when the connection ends that learned them first.
        if features != self.features:
            self.features, self._learner = features, learner

    def ended(self, learner: object) -> None:
        if self._learner is learner:
            self.forget()

    def forget(self) -> None:
        """Forget the features after the broker closed a connection. Another may soon have its address."""
        self.features = self._learner = None


@dataclass(slots=True, eq=False)
class SlotBackoff:
    """When a connection requests a session again after its broker has refused or evicted one. In seconds.

    All clients of a broker share its session slots, and so do all gateways. If there are more sessions than
    slots, each new session takes the slot of another one, or is refused (fetch-semantics 2.7, trap 22). So a
    connection without a slot requests one less and less often. Its fetches are forwarded unchanged meanwhile.
    """

    _chance: Callable[[], float] = without_chance
    """Returns a number from 0 to 1 for the jitter."""
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


_FENCING_VERSION: Final = 9
"""The first version whose entries have current_leader_epoch (KIP-320; fetch-semantics 1.6)."""
_KEEPING_VERSION: Final = 12
"""A broker that supports this version checks leader epochs in all fetches of a session (fetch-semantics 1.7,
6.3)."""


@dataclass(slots=True, eq=False, repr=False)
class Eligibility:
    """Decides whether a session may be used on one connection."""

    limits: SessionLimits
    versions: BrokerVersions = field(default_factory=BrokerVersions)
    savings: Savings = field(default_factory=Savings)
    slots: SlotBackoff = field(init=False)
    features: Features | None = None
    """The features from the last ApiVersions response on this connection. None if there was no response, or
    if it was an error or was not understood."""
    _native: bool = False
    """Whether the client uses sessions of its own."""
    floods: bool = False
    """Whether the client requests a session with each fetch, but never uses the session."""
    given: int = 0
    """The session id that the broker gave after the client itself sent session id 0 and epoch 0."""
    large: bool = False
    """Whether the last fetch response was large. If so, the client is catching up."""
    responses_are_full: bool = False
    """Whether the last responses may have had no room for all available records. Only --keep-order sets
    this."""
    full_when_throttled: bool = False
    """Whether a throttled response had entries. If so, this broker does not empty responses when it throttles
    (KIP-219)."""
    never: Reason | None = None
    """The reason why no later fetch of this connection may use a session."""

    def __post_init__(self) -> None:
        self.slots = SlotBackoff(self.limits.chance)

    def observe(self, fetch: FetchRequest) -> bool:
        """Note from a fetch how the client uses sessions. Return True if now it is known not to use its own.

        Some clients send (0, 0) with each fetch and never use their session: Sarama before 1.26.2,
        platformatic/kafka before 2.3 (fetch-semantics 6.7, case 89). One (0, 0) does not prove this, because
        clients that use sessions also begin with (0, 0). A second (0, 0) after the broker gave an id proves
        it. The caller then takes over the session `given`, so that the broker does not keep an unused
        session.
        """
        session_id, epoch = fetch.session_id, fetch.session_epoch
        # (-1, -1) is kafka-go's way to have no session (fetch-semantics 2.2, case 14). Once native, always: a
        # gateway before this one mixes (id, n) with (0, -1) (fetch-semantics, trap 5a).
        if session_id > 0 or epoch > 0 or epoch < SESSIONLESS_EPOCH or (session_id < 0 and epoch == 0):
            self._native = True
        if epoch != 0 or self._native or self.floods or not self.given:
            return False
        self.floods = True
        return True

    def know(self, features: Features | None) -> None:
        """Note the features from an ApiVersions response. None if it was an error or not understood."""
        self.features = features
        if features is not None:
            self.versions.remember(self, features)

    @property
    def known(self) -> Features | None:
        """The features, learned on this or on another connection. None if unknown."""
        return self.features or self.versions.features

    def features_for(self, fetch: FetchRequest) -> Features | None:
        """Return the broker's features for a fetch. None if the broker must be asked first.

        Behind a load balancer, one address may lead to brokers of several releases, so what other connections
        have learned may be wrong. A broker without sessions closes the connection after a fetch with a
        session, and the features are forgotten (`BrokerVersions`). But nobody would notice a broker that
        forgets leader epochs. So if a fetch below v12 has leader epochs, this broker has to be asked.
        """
        if self.features is not None:
            return self.features
        features = self.versions.features
        if features is None or (fetch.layout.version < _KEEPING_VERSION and _fences(fetch)):
            return None
        return features

    def against(self, fetch: FetchRequest, client_id: str, handler: FetchSessionHandler) -> Reason | None:
        """Return the reason why a fetch may not use the session, or None. This changes nothing.

        The fetch has been given to `observe`. Unknown features of the broker are a reason only if the fetch
        would continue a session: `Fetches._decide` decides whether to request a new one.
        """
        # Native sessions pass 1:1 (fetch-semantics, traps 5a and 43).
        if self._native or (fetch.session_epoch == 0 and not self.floods):
            return Reason.NATIVE
        if self.never is not None:
            return self.never
        if not self.limits.allowed(client_id):
            return Reason.SESSIONS_OFF
        # Fetch-semantics, traps 1 and 2 (case 90).
        if fetch.unsupported_reason:
            return Reason(fetch.unsupported_reason)
        # kafka-go's Reader: a session could leave out one entry at most (docs/developers/design.md, law 6).
        if fetch.partitions < 2 and not (handler.has_session and fetch.partitions):
            return Reason.ONE_PARTITION
        features = self.features_for(fetch)
        if features is not None:
            # KIP-227: Kafka 1.1 and later (fetch-semantics 1.7).
            if not features.has_sessions:
                return Reason.NO_SESSIONS
            # KAFKA-9338: 2.1 to 2.4 stop fencing after a session's first fetch (fetch-semantics 6.3, case
            # 68).
            if not features.keeps_leader_epoch and _fences(fetch):
                return Reason.LEADER_EPOCHS
        # Deltas on top of an outstanding one would fail with it (fetch-semantics, trap 18).
        if handler.outstanding:
            return Reason.BUSY
        # An expanded response is kept until it is whole, so it can't stream. That delays a client that is
        # catching up, and takes memory (case 91).
        if self.large:
            return Reason.CATCHING_UP
        # A session serves partitions in an order of its own (fetch-semantics 4, trap 25a).
        if self.responses_are_full and self.limits.keep_order:
            return Reason.KEEP_ORDER
        if self.limits.crowded:
            return Reason.MEMORY
        if self.savings.paused:
            return Reason.RESTING
        return Reason.BROKER_NOT_KNOWN if features is None and handler.has_session else None


def _fences(fetch: FetchRequest) -> bool:
    listing = fetch.listing
    if listing is None or fetch.layout.version < _FENCING_VERSION:
        return False
    epochs = listing.entries.view(listing.layout.request_fields)["epoch"]
    return bool((epochs >= 0).any())
