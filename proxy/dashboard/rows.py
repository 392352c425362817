"""The rows in the table of clients: for each client.id, and each connection of expanded ones. Sans-IO."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from proxy.dashboard.rates import Rates, TrafficRate
from proxy.dashboard.snapshot import BOOTSTRAP, LATE_SECONDS, ClientConnection

_SHORT: Final = {
    "no slot left": "no slot",
    "no slot at the broker": "broker full",
    "sessions off": "off",
    "broker without sessions": "old broker",
    "session leaves out partitions": "left out",
    "delta not smaller": "not smaller",
    "errors that a session forgets": "error 35 or 76",
    "partitions listed twice or too sparse": "odd list",
    "broker not known yet": "broker unknown",
    "forgets without a session": "odd fetches",
}
OF_CLIENT: Final = "client "
"""The start of the key of a client's row. The key of a connection's row begins in another way."""
NO_FETCHES: Final = "no fetches"
IDLE: Final = "idle"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientFigures:
    """The figures of one row: a client with all its connections, or a single connection."""

    key: str
    """`OF_CLIENT` and the client's name, or the key of the connection."""
    name: str
    connections: tuple[ClientConnection, ...]
    """The one with the most traffic at present first."""
    single: bool
    """Whether the row is for a single connection, below the row of its client."""
    rate: TrafficRate
    why: str
    """The broker for whose late response the client waits, or why nothing is saved now, in a few words. Empty
    if something is saved, or if no fetch was forwarded unchanged."""

    @property
    def software(self) -> str:
        return self.connections[0].software

    @property
    def version(self) -> int:
        return max(client.version for client in self.connections)

    @property
    def partitions(self) -> int:
        return sum(client.partitions for client in self.connections if client.epoch)

    @property
    def incremental(self) -> float:
        """The share of incremental fetches among those sent to brokers, a mean over the client's fetches."""
        fetches = sum(client.fetches for client in self.connections)
        return sum(client.incremental * client.fetches for client in self.connections) / (fetches or 1)

    @property
    def fetches(self) -> int:
        return sum(client.fetches for client in self.connections)

    @property
    def saved(self) -> int:
        return sum(client.saved for client in self.connections)

    @property
    def error(self) -> str:
        return next((client.last_error for client in self.connections if client.last_error), "")


SORTS: Final[dict[str, Callable[[ClientFigures], str | float]]] = {
    "client": lambda row: row.name,
    "software": lambda row: row.software,
    "conns": lambda row: len(row.connections),
    "parts": lambda row: row.partitions,
    "fetch/s": lambda row: row.rate.fetches,
    "bytes/s": lambda row: row.rate.client,
    "saved/s": lambda row: row.rate.saved,
    "saved": lambda row: row.saved,
    "why not": lambda row: row.why,
}
"""In the order of the table."""
ASCENDING: Final = frozenset({"client", "software", "gateway", "state"})
"""The columns in which small values come first, in this table and in that of several gateways."""


def rows(
    clients: Iterable[ClientConnection],
    rates: Rates,
    *,
    wanted: str,
    sort: str,
    descending: bool,
    expanded: frozenset[str],
) -> list[ClientFigures]:
    """Return the rows of all matching clients, sorted by a column and then by name.

    A client matches if its id, software, address or broker contains `wanted`. If the key of a client's row is
    in `expanded`, each of its connections gets a row, too.
    """
    by_name: dict[str, list[ClientConnection]] = defaultdict(list)
    for client in clients:
        if wanted.casefold() in _searched(client):
            by_name[client.client_id].append(client)
    found = [_row(name, members, rates, single=False) for name, members in by_name.items()]
    listed: list[ClientFigures] = []
    for row in _sorted(found, sort, descending=descending):
        listed.append(row)
        if row.key in expanded:
            singles = [_row(row.name, [client], rates, single=True) for client in row.connections]
            listed += _sorted(singles, sort, descending=descending)
    return listed


def _searched(client: ClientConnection) -> str:
    return f"{client.client_id}\n{client.software}\n{client.address}\n{client.broker}".casefold()


def _sorted(found: list[ClientFigures], sort: str, *, descending: bool) -> list[ClientFigures]:
    found.sort(key=lambda row: row.key)
    found.sort(key=SORTS[sort], reverse=descending)
    return found


def _row(name: str, members: Sequence[ClientConnection], rates: Rates, *, single: bool) -> ClientFigures:
    of_each = {client.key: rates.of(client) for client in members}
    reasons: Counter[str] = Counter()
    for one in of_each.values():
        reasons.update(one.reasons)
    rate = TrafficRate(
        fetches=sum(one.fetches for one in of_each.values()),
        client=sum(one.client for one in of_each.values()),
        broker=sum(one.broker for one in of_each.values()),
        records=sum(one.records for one in of_each.values()),
        other_zone=sum(one.other_zone for one in of_each.values()),
        reasons=reasons,
    )
    ordered = sorted(members, key=lambda client: (-of_each[client.key].client, client.key))
    key = ordered[0].key if single else f"{OF_CLIENT}{name}"
    return ClientFigures(
        key=key, name=name, connections=tuple(ordered), single=single, rate=rate, why=_why(ordered, rate)
    )


def _why(clients: Sequence[ClientConnection], rate: TrafficRate) -> str:
    latest = max(clients, key=lambda client: client.late)
    if latest.late >= LATE_SECONDS:
        return f"waits for {'' if latest.broker == BOOTSTRAP else 'broker '}{latest.broker}"
    if not any(client.fetches for client in clients):
        return NO_FETCHES
    if not rate.fetches:
        return IDLE
    if rate.saved > 0 or not rate.reasons:
        return ""
    reason = max(rate.reasons, key=lambda name: (rate.reasons[name], name))
    return _SHORT.get(reason, reason)
