"""The totals of a process, by broker, and how they grew in the last minutes. Sans-IO.

A broker is identified by its id. None is the bootstrap, which may be any broker.
"""

from collections.abc import Iterable, Mapping
from math import fsum
from typing import Final, TypeAlias

from proxy.core.events import FetchKind, Tally, broker_bytes, fetch_bytes, saved_bytes
from proxy.core.histograms import ADDED_SECONDS, Distribution, Measured
from proxy.telemetry.history import History

NodeId: TypeAlias = int | None
Open: TypeAlias = Iterable[tuple[NodeId, Tally]]
"""For each open connection, its broker and its counts."""

CLIENT_BYTES: Final = 0
"""The first columns of `Totals.history`: bytes of fetch requests and responses by side. The broker's side
includes the gateway's own requests."""
BROKER_BYTES: Final = 1
CLIENT_FETCHES: Final = 2
"""The next columns: fetches by kind, first the client's, then the broker's."""
BROKER_FETCHES: Final = CLIENT_FETCHES + len(FetchKind)


class Totals:
    """The totals of one process."""

    def __init__(self) -> None:
        self.closed_tallies: dict[NodeId, Tally] = {}
        self.history = History()
        self.loop_lag = Distribution(ADDED_SECONDS)
        """How late the event loop was at each measurement, in seconds."""
        self._saved: dict[NodeId, int] = {}
        self._measured: dict[NodeId, Measured] = {}
        self._responses: dict[NodeId, History] = {}

    def measured(self, node_id: NodeId) -> Measured:
        """Return the measurements that all connections to a broker share."""
        if node_id not in self._measured:
            self._measured[node_id] = Measured()
        return self._measured[node_id]

    def closed(self, node_id: NodeId, tally: Tally) -> None:
        self.closed_tallies.setdefault(node_id, Tally()).add(tally)

    def by_broker(self, opened: Open) -> dict[NodeId, Tally]:
        """Return the sums over open and closed connections."""
        totals: dict[NodeId, Tally] = {}
        for part in (self.closed_tallies.items(), opened):
            for node_id, tally in part:
                totals.setdefault(node_id, Tally()).add(tally)
        return totals

    def saved(self, tallies: Mapping[NodeId, Tally]) -> dict[NodeId, int]:
        """Return the highest saving so far for each broker, in bytes. Like a counter, it never falls.

        The present saving may fall a little: when a fetch is sent again, or when a session begins.
        """
        for node_id, tally in tallies.items():
            self._saved[node_id] = max(saved_bytes(tally), self._saved.get(node_id, 0))
        return self._saved.copy()

    def all_measured(self) -> dict[NodeId, Measured]:
        for measured in self._measured.values():
            measured.settle()
        return self._measured

    def sample(self, now: float, opened: Open) -> None:
        sums = [0] * (BROKER_FETCHES + len(FetchKind))
        for part in (self.closed_tallies.items(), opened):
            for _, tally in part:
                _sum(sums, tally)
        self.history.note(now, sums)
        for node_id, with_broker in self.all_measured().items():
            fetch, other = with_broker.broker_fetch, with_broker.broker_other
            responses = self._responses.setdefault(node_id, History())
            responses.note(now, (fetch.count, fetch.total, other.count, other.total))

    def all_response_seconds(self) -> dict[NodeId, tuple[float | None, float | None]]:
        return {node_id: self.response_seconds(node_id) for node_id in self._responses}

    def response_seconds(self, node_id: NodeId) -> tuple[float | None, float | None]:
        """Return the recent mean response times of a broker in seconds: of fetches, and of other requests."""
        responses = self._responses.get(node_id)
        if responses is None:
            return None, None
        fetches, seconds, others, others_seconds = (fsum(responses.column(which)) for which in range(4))
        return (seconds / fetches if fetches else None), (others_seconds / others if others else None)


def _sum(sums: list[int], tally: Tally) -> None:
    # This is called often if there are many connections.
    client, broker = tally.client, tally.broker
    sums[CLIENT_BYTES] += fetch_bytes(client)
    sums[BROKER_BYTES] += broker_bytes(tally)
    for at, fetches in ((CLIENT_FETCHES, client.fetches), (BROKER_FETCHES, broker.fetches)):
        for kind, count in enumerate(fetches, at):
            sums[kind] += count
