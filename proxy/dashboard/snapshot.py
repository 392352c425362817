"""What `/state` tells, in types. Sans-IO.

A gateway of another version may tell less or more: what is missing counts as nothing, what is not known is
left alone.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

KINDS: Final = ("full", "incremental", "sessionless", "close")
NOW_SECONDS: Final = 10.0
"""What counts as now: so much of the recent past."""
BOOTSTRAP: Final = "bootstrap"


class NotAGatewayError(ValueError):
    """What answered is no ``/state`` of fetchgate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """All that crossed one side, the client's or the broker's."""

    fetch_bytes: int = 0
    """Requests and answers of fetches, whole frames."""
    fetches: Mapping[str, int] = field(default_factory=dict)
    """By kind."""
    partitions: int = 0
    """Partition entries in requests and answers."""

    @property
    def all_fetches(self) -> int:
        """Give the number of fetches of all kinds."""
        return sum(self.fetches.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Recent:
    """The last minutes in intervals, the latest last."""

    seconds: tuple[float, ...] = ()
    client_bytes: tuple[float, ...] = ()
    broker_bytes: tuple[float, ...] = ()
    client_fetches: tuple[float, ...] = ()
    broker_fetches: Mapping[str, tuple[float, ...]] = field(default_factory=dict)

    @property
    def saved(self) -> tuple[float, ...]:
        """Give the bytes a second that were saved in each interval."""
        sides = zip(self.client_bytes, self.broker_bytes, self.seconds, strict=True)
        return tuple((client - broker) / (seconds or 1.0) for client, broker, seconds in sides)

    def now(self, column: tuple[float, ...]) -> float:
        """Give how much of something comes in a second now."""
        seconds = total = 0.0
        for length, amount in zip(reversed(self.seconds), reversed(column), strict=True):
            seconds, total = seconds + length, total + amount
            if seconds >= NOW_SECONDS:
                break
        return total / (seconds or 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """One connection of a client."""

    client_id: str
    software: str
    """Name and version, as far as the client told them."""
    address: str
    broker: str
    version: int
    """Of its last fetch; -1 before."""
    partitions: int
    """In its session."""
    epoch: int
    incremental: float
    """Share of its fetches that went to the broker as incremental ones."""
    left_out: int
    """Partition entries that did not have to cross the broker's side."""
    saved: int
    """Bytes."""
    fetches: int
    last_error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Broker:
    """One broker, or the bootstrap."""

    name: str
    address: str
    connections: int
    sessions: int
    partitions: int
    refusals: int
    evictions: int
    fetch_seconds: float | None
    """How long its answers to fetches took of late, in the mean; None: there were none."""
    other_seconds: float | None
    saved: int
    problem: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Happened:
    """Something that happened."""

    ago: float
    """Seconds before the snapshot."""
    text: str
    count: int
    warning: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A gateway at one moment."""

    version: str
    uptime: float
    """Seconds."""
    state: str
    reasons: tuple[str, ...]
    listen: str
    sessions_on: bool
    slots_held: int
    slots: int
    held_bytes: int
    client: Side
    broker: Side
    recent: Recent
    added_request: float
    """Seconds that the gateway adds to a request, in the mean."""
    added_response: float
    connections: int
    accepted: int
    clients: tuple[Client, ...]
    brokers: tuple[Broker, ...]
    happened: tuple[Happened, ...]
    """The latest last."""

    @property
    def saved(self) -> int:
        """Give the bytes saved since the gateway started."""
        return self.client.fetch_bytes - self.broker.fetch_bytes


def parse(document: Any) -> Snapshot:
    """Read the document of ``/state``.

    Raises:
        NotAGatewayError: it is not one.
    """
    try:
        return _snapshot(document)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise NotAGatewayError("this is no state of fetchgate") from error


def _snapshot(told: Mapping[str, Any]) -> Snapshot:
    totals, sessions = told["totals"], told["sessions"]
    added = told.get("added", {})
    return Snapshot(
        version=_shown(told["version"]),
        uptime=float(told["uptime_seconds"]),
        state=_shown(told["state"]),
        reasons=tuple(_shown(reason) for reason in told["reasons"]),
        listen=_shown(told["listen"]),
        sessions_on=bool(sessions["on"]),
        slots_held=int(sessions["held"]),
        slots=int(sessions.get("max", 0)),
        held_bytes=int(told.get("inflight_bytes", 0)),
        client=_side(totals["client"]),
        broker=_side(totals["broker"]),
        recent=_recent(told.get("recent", {})),
        added_request=float(added.get("request", {}).get("mean_seconds", 0)),
        added_response=float(added.get("response", {}).get("mean_seconds", 0)),
        connections=int(told["connections_open"]),
        accepted=int(told["connections_accepted"]),
        clients=tuple(_client(one) for one in told["connections"]),
        brokers=_brokers(told),
        happened=tuple(_happened(one, float(told.get("time", 0))) for one in told.get("events", ())),
    )


def _side(told: Mapping[str, Any]) -> Side:
    return Side(
        fetch_bytes=int(told["fetch_request_bytes"]) + int(told["fetch_response_bytes"]),
        fetches={kind: int(told["fetches"].get(kind, 0)) for kind in KINDS},
        partitions=int(told["partitions_requested"]) + int(told["partitions_answered"]),
    )


def _recent(told: Mapping[str, Any]) -> Recent:
    seconds = tuple(float(length) for length in told.get("seconds", ()))
    nothing = [0] * len(seconds)
    fetches = told.get("fetches", {})
    client = [fetches.get("client", {}).get(kind, nothing) for kind in KINDS]
    return Recent(
        seconds=seconds,
        client_bytes=tuple(told.get("client_bytes", nothing)),
        broker_bytes=tuple(told.get("broker_bytes", nothing)),
        client_fetches=tuple(sum(of_kinds) for of_kinds in zip(*client, strict=True)),
        broker_fetches={kind: tuple(fetches.get("broker", {}).get(kind, nothing)) for kind in KINDS},
    )


def _client(told: Mapping[str, Any]) -> Client:
    client, broker = _side(told["client"]), _side(told["broker"])
    software = f"{told['software_name']} {told['software_version']}"
    return Client(
        client_id=_shown(told["client_id"]),
        software=_shown(software).strip(),
        address=_shown(told["client_address"]),
        broker=BOOTSTRAP if told["broker_id"] is None else str(told["broker_id"]),
        version=int(told["fetch_version"]),
        partitions=int(told["session_partitions"]),
        epoch=int(told["session_epoch"]),
        incremental=broker.fetches["incremental"] / (broker.all_fetches or 1),
        left_out=client.partitions - broker.partitions,
        saved=int(told["saved_bytes"]),
        fetches=client.all_fetches,
        last_error=_shown(told.get("last_error", "")),
    )


def _brokers(told: Mapping[str, Any]) -> tuple[Broker, ...]:
    brokers = [_broker(str(one["id"]), _shown(one["address"]), one) for one in told["brokers"]]
    bootstrap = told.get("bootstrap")
    if bootstrap is not None and bootstrap["addresses"]:  # in transparent mode there is none
        brokers.append(_broker(BOOTSTRAP, ", ".join(map(_shown, bootstrap["addresses"])), bootstrap))
    return tuple(brokers)


def _broker(name: str, address: str, told: Mapping[str, Any]) -> Broker:
    took = told.get("answer_seconds", {})
    return Broker(
        name=name,
        address=address,
        connections=int(told.get("connections", 0)),
        sessions=int(told.get("sessions", 0)),
        partitions=int(told.get("session_partitions", 0)),
        refusals=int(told.get("refusals", 0)),
        evictions=int(told.get("evictions", 0)),
        fetch_seconds=took.get("fetch"),
        other_seconds=took.get("other"),
        saved=int(told.get("saved_bytes", 0)),
        problem=_shown(told["problem"]),
    )


def _happened(told: Mapping[str, Any], now: float) -> Happened:
    return Happened(
        ago=max(0.0, now - float(told["at"])),
        text=_shown(told["text"]),
        count=int(told.get("count", 1)),
        warning=bool(told.get("warning", False)),
    )


def _shown(text: Any) -> str:
    """Return a text fit for a terminal, which may obey what is not printable."""
    return "".join(c if c.isprintable() else "\ufffd" for c in str(text))
