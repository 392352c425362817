"""The traffic of each connection in the last few seconds, computed from several snapshots. Sans-IO."""

from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from proxy.dashboard.snapshot import NOW_SECONDS, ClientConnection, Snapshot

_KEPT: Final = 32
"""The number of snapshots that are kept. There is a bar for each interval between two of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficRate:
    """The fetch traffic of a connection or of a row, per second."""

    fetches: float = 0.0
    client: float = 0.0
    """Bytes of fetches and their responses on the client's side, per second."""
    broker: float = 0.0
    records: float = 0.0
    other_zone: float = 0.0
    """How many of `records` come from another zone (``--rack``)."""
    reasons: Mapping[str, float] = field(default_factory=dict)
    """The number of fetches without a session per second, by reason."""

    @property
    def saved(self) -> float:
        return self.client - self.broker


@dataclass(frozen=True, slots=True)
class _CounterSample:
    time: float
    cpu_seconds: float
    clients: Mapping[str, ClientConnection]
    """By `ClientConnection.key`."""
    brokers: Mapping[str, int]
    """The bytes saved so far, by name."""


class Rates:
    """Traffic rates, computed from the last snapshots."""

    def __init__(self) -> None:
        self._samples: deque[_CounterSample] = deque(maxlen=_KEPT)

    def add(self, snapshot: Snapshot) -> None:
        if self._samples and snapshot.time <= self._samples[-1].time:
            self._samples.clear()  # this is another gateway, or its clock was set back
        by_key = {client.key: client for client in snapshot.clients}
        brokers = {broker.name: broker.saved for broker in snapshot.brokers}
        self._samples.append(_CounterSample(snapshot.time, snapshot.cpu_seconds, by_key, brokers))

    @property
    def bars(self) -> bool:
        return len(self._samples) > 1

    def cpu(self) -> float | None:
        """Return the CPU in the last ten seconds as a share of one core, or None if unknown."""
        last = self._samples[-1] if self._samples else None
        before = next(
            (one for one in self._samples if last is not None and last.time - one.time <= NOW_SECONDS), None
        )
        if last is None or before is None or before is last:
            return None
        return max(0.0, last.cpu_seconds - before.cpu_seconds) / (last.time - before.time)

    def of(self, client: ClientConnection) -> TrafficRate:
        """Return a connection's traffic in about the last ten seconds.

        It is the mean since the oldest snapshot that has the connection, if that is less. If only the newest
        one has it, the mean since it began, but for a second at least.
        """
        since = self._since(client)
        if since is None:
            return _rate(client, None, max(client.age, 1.0))
        return _rate(client, since.clients[client.key], self._samples[-1].time - since.time)

    def saved(self, clients: Iterable[ClientConnection]) -> tuple[float, ...]:
        """Return the bytes saved per second for some clients, for each interval in order of time."""
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
        """Return the bytes saved per second with a broker, for each interval of which both ends have it."""
        return tuple(
            (one.brokers[name] - before.brokers[name]) / (one.time - before.time)
            for before, one in pairwise(self._samples)
            if name in one.brokers and name in before.brokers
        )

    def _since(self, client: ClientConnection) -> _CounterSample | None:
        # The snapshot from ten seconds ago, or the oldest one that has the connection.
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
    reasons.subtract(before.reasons if before else {})

    def grown(read: Callable[[ClientConnection], int]) -> float:
        return (read(client) - (read(before) if before else 0)) / seconds

    return TrafficRate(
        fetches=grown(lambda it: it.fetches),
        client=grown(lambda it: it.client_bytes),
        broker=grown(lambda it: it.broker_bytes),
        records=grown(lambda it: it.records),
        other_zone=grown(lambda it: it.records_other_zone),
        reasons={reason: count / seconds for reason, count in reasons.items() if count > 0},
    )
