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
_MOST: Final = 1 << 63
"""No counter gets as far. What is reckoned from figures up to this can be drawn."""


class NotAGatewayError(ValueError):
    """What answered is no ``/state`` of fetchgate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SideFigures:
    """All that crossed one side, the client's or the broker's."""

    fetch_bytes: int = 0
    """Requests and responses of fetches, whole frames."""
    fetches: Mapping[str, int] = field(default_factory=dict)
    """By kind."""
    partitions: int = 0
    """Partition entries in requests and responses."""

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
class BrokerFigures:
    """One broker, or the bootstrap."""

    name: str
    address: str
    connections: int
    sessions: int
    partitions: int
    refusals: int
    evictions: int
    fetch_seconds: float | None
    """How long its responses to fetches took of late, in the mean; None: there were none."""
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
    client: SideFigures
    broker: SideFigures
    recent: Recent
    added_request: float
    """Seconds that the gateway adds to a request, in the mean."""
    added_response: float
    connections: int
    accepted: int
    clients: tuple[Client, ...]
    brokers: tuple[BrokerFigures, ...]
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
        uptime=_number(told["uptime_seconds"]),
        state=_shown(told["state"]),
        reasons=tuple(_shown(reason) for reason in _list(told["reasons"])),
        listen=_shown(told["listen"]),
        sessions_on=bool(sessions["on"]),
        slots_held=_count(sessions["held"]),
        slots=_count(sessions.get("max", 0)),
        held_bytes=_count(told.get("inflight_bytes", 0)),
        client=_side(totals["client"]),
        broker=_side(totals["broker"]),
        recent=_recent(told.get("recent", {})),
        added_request=_number(added.get("request", {}).get("mean_seconds", 0)),
        added_response=_number(added.get("response", {}).get("mean_seconds", 0)),
        connections=_count(told["connections_open"]),
        accepted=_count(told["connections_accepted"]),
        clients=tuple(_client(one) for one in _list(told["connections"])),
        brokers=_brokers(told),
        happened=tuple(_happened(one, _number(told.get("time", 0))) for one in _list(told.get("events", []))),
    )


def _side(told: Mapping[str, Any]) -> SideFigures:
    return SideFigures(
        fetch_bytes=_count(told["fetch_request_bytes"]) + _count(told["fetch_response_bytes"]),
        fetches={kind: _count(told["fetches"].get(kind, 0)) for kind in KINDS},
        partitions=_count(told["partitions_requested"]) + _count(told["partitions_answered"]),
    )


def _recent(told: Mapping[str, Any]) -> Recent:
    lengths = _list(told.get("seconds", []))
    seconds = tuple(round(_number(length), 3) for length in lengths)  # none so short that a rate has no end
    fetches = told.get("fetches", {})

    def column(of: Mapping[str, Any], name: str) -> tuple[int, ...]:
        amounts = tuple(_count(amount) for amount in _list(of.get(name, [0] * len(seconds))))
        if len(amounts) != len(seconds):
            raise ValueError(name)
        return amounts

    client = [column(fetches.get("client", {}), kind) for kind in KINDS]
    return Recent(
        seconds=seconds,
        client_bytes=column(told, "client_bytes"),
        broker_bytes=column(told, "broker_bytes"),
        client_fetches=tuple(sum(of_kinds) for of_kinds in zip(*client, strict=True)),
        broker_fetches={kind: column(fetches.get("broker", {}), kind) for kind in KINDS},
    )


def _client(told: Mapping[str, Any]) -> Client:
    client, broker = _side(told["client"]), _side(told["broker"])
    software = f"{told['software_name']} {told['software_version']}"
    return Client(
        client_id=_shown(told["client_id"]),
        software=_shown(software).strip(),
        address=_shown(told["client_address"]),
        broker=BOOTSTRAP if told["broker_id"] is None else _shown(told["broker_id"]),
        version=_count(told["fetch_version"]),
        partitions=_count(told["session_partitions"]),
        epoch=_count(told["session_epoch"]),
        incremental=broker.fetches["incremental"] / (broker.all_fetches or 1),
        left_out=client.partitions - broker.partitions,
        saved=_count(told["saved_bytes"]),
        fetches=client.all_fetches,
        last_error=_shown(told.get("last_error", "")),
    )


def _brokers(told: Mapping[str, Any]) -> tuple[BrokerFigures, ...]:
    brokers = [_broker(_shown(one["id"]), _shown(one["address"]), one) for one in _list(told["brokers"])]
    bootstrap = told.get("bootstrap")
    if bootstrap is not None and bootstrap["addresses"]:  # in transparent mode there is none
        brokers.append(_broker(BOOTSTRAP, ", ".join(map(_shown, _list(bootstrap["addresses"]))), bootstrap))
    return tuple(brokers)


def _broker(name: str, address: str, told: Mapping[str, Any]) -> BrokerFigures:
    took = told.get("answer_seconds", {})
    return BrokerFigures(
        name=name,
        address=address,
        connections=_count(told.get("connections", 0)),
        sessions=_count(told.get("sessions", 0)),
        partitions=_count(told.get("session_partitions", 0)),
        refusals=_count(told.get("refusals", 0)),
        evictions=_count(told.get("evictions", 0)),
        fetch_seconds=_number_or_none(took.get("fetch")),
        other_seconds=_number_or_none(took.get("other")),
        saved=_count(told.get("saved_bytes", 0)),
        problem=_shown(told["problem"]),
    )


def _happened(told: Mapping[str, Any], now: float) -> Happened:
    return Happened(
        ago=max(0.0, now - _number(told["at"])),
        text=_shown(told["text"]),
        count=_count(told.get("count", 1)),
        warning=bool(told.get("warning", False)),
    )


def _number(told: Any) -> float:
    """Return a number; JSON has larger ones than can be reckoned with, and Python's has infinite ones."""
    if not isinstance(told, int | float):
        raise TypeError(told)
    if not abs(told) <= _MOST:  # nor is what is not a number
        raise ValueError(told)
    return told


def _number_or_none(told: Any) -> float | None:
    return None if told is None else _number(told)


def _count(told: Any) -> int:
    return int(_number(told))


def _list(told: Any) -> list[Any]:
    if not isinstance(told, list):
        raise TypeError(told)
    return told


def _shown(text: Any) -> str:
    """Return a text fit for a terminal, which may obey what is not printable."""
    return "".join(c if c.isprintable() else "\ufffd" for c in str(text))
