"""The recent traffic of each connection, from the difference of two snapshots. Sans-IO."""

from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from proxy.dashboard.snapshot import NOW_SECONDS, ClientConnection, Snapshot

_KEPT: Final = 32
"""The number of snapshots kept, and so the limit of a client's bars."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficRate:
    """Traffic per second."""

    fetches: float = 0.0
    client: float = 0.0
    """Fetch bytes on the client's side."""
    broker: float = 0.0
    """Fetch bytes on the broker's side."""
    reasons: Mapping[str, float] = field(default_factory=dict)
    """Fetches without a session, by reason."""

    @property
    def saved(self) -> float:
        """The bytes saved per second."""
        return self.client - self.broker


@dataclass(frozen=True, slots=True)
class _CounterSample:
    time: float
    cpu_seconds: float
    clients: Mapping[str, ClientConnection]
    """By `ClientConnection.key`."""
    brokers: Mapping[str, int]
    """By broker name: the bytes saved so far."""


class Rates:
    """The last snapshots."""

    def __init__(self) -> None:
        self._samples: deque[_CounterSample] = deque(maxlen=_KEPT)

    def add(self, snapshot: Snapshot) -> None:
        """Add the next snapshot."""
        if self._samples and snapshot.time <= self._samples[-1].time:
            self._samples.clear()  # another gateway, or its clock was set back
        by_key = {client.key: client for client in snapshot.clients}
        brokers = {broker.name: broker.saved for broker in snapshot.brokers}
        self._samples.append(_CounterSample(snapshot.time, snapshot.cpu_seconds, by_key, brokers))

    @property
    def bars(self) -> bool:
        """Whether bars can be drawn, which takes two snapshots."""
        return len(self._samples) > 1

    def cpu(self) -> float | None:
        """Return the share of a core that the gateway used over the last ten seconds, None if unknown."""
        last = self._samples[-1] if self._samples else None
        before = next(
            (one for one in self._samples if last is not None and last.time - one.time <= NOW_SECONDS), None
        )
        if last is None or before is None or before is last:
            return None
        return max(0.0, last.cpu_seconds - before.cpu_seconds) / (last.time - before.time)

    def of(self, client: ClientConnection) -> TrafficRate:
        """Return a connection's rate over the last ten seconds, or since it was accepted if that is later."""
        since = self._since(client)
        if since is None:
            return _rate(client, None, client.age)
        return _rate(client, since.clients[client.key], self._samples[-1].time - since.time)

    def saved(self, clients: Iterable[ClientConnection]) -> tuple[float, ...]:
        """Return the bytes per second that these clients saved between snapshots, the latest last."""
        keys = [client.key for client in clients]
        samples = list(self._samples)
        return tuple(
            sum(
                one.clients[key].saved - before.clients[key].saved
                for key in keys
                if key in one.clients and key in before.clients
            )
            / (one.time - before.time)
            for before, one in pairwise(samples)
        )

    def saved_by_broker(self, name: str) -> tuple[float, ...]:
        """Return the bytes per second that were saved with a broker between snapshots, the latest last."""
        return tuple(
            (one.brokers[name] - before.brokers[name]) / (one.time - before.time)
            for before, one in pairwise(self._samples)
            if name in one.brokers and name in before.brokers
        )

    def _since(self, client: ClientConnection) -> _CounterSample | None:
        """Return the sample of ten seconds ago, or the oldest one with this connection."""
        found = None
        for sample in reversed(list(self._samples)[:-1]):
            if client.key not in sample.clients or sample.clients[client.key].fetches > client.fetches:
                break
            found = sample
            if self._samples[-1].time - sample.time >= NOW_SECONDS:
                break
        return found


def _rate(client: ClientConnection, before: ClientConnection | None, seconds: float) -> TrafficRate:
    seconds = seconds or 1.0
    reasons = Counter(client.reasons)
    if before is None:
        fetches, on_client, on_broker = client.fetches, client.client_bytes, client.broker_bytes
    else:
        fetches = client.fetches - before.fetches
        on_client = client.client_bytes - before.client_bytes
        on_broker = client.broker_bytes - before.broker_bytes
        reasons.subtract(before.reasons)
    return TrafficRate(
        fetches=fetches / seconds,
        client=on_client / seconds,
        broker=on_broker / seconds,
        reasons={reason: count / seconds for reason, count in reasons.items() if count > 0},
    )
