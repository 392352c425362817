"""The JSON document of `/state` as dataclasses, whose fields say where they are in it. Sans-IO.

A gateway of another version may send fewer or more fields. Unknown fields are ignored. Missing fields count
as empty, except the basic ones, such as the version and the totals: they must be there.
"""

# ruff: noqa: RUF009 - `_at` declares a field, as dataclasses.field does, which it calls

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Any, Final, TypeVar

from proxy.addresses import LOOPED, OTHERS
from proxy.session.decision import Reason

SPACE: Final = 1 << 32
"""The number of hashes that keys can have (murmur2)."""
KINDS: Final = ("full", "incremental", "sessionless", "close")
NOW_SECONDS: Final = 10.0
"""The "now" rates are means over this time."""
BOOTSTRAP: Final = "bootstrap"
LATE_SECONDS: Final = 1.0
"""A response is shown as late from then on. Most requests are late for a moment."""
_NAME: Final = re.compile(r"(?:[A-Z][a-z]+)+")
_WORDS: Final = re.compile(r"[A-Z][a-z]+")
_LARGEST: Final = 1 << 63
"""The limit for counts. Figures derived from a higher number could not be drawn."""
MAX_REASONS: Final = 100
"""How many reasons are shown. A faulty program may send as many as fit into its response."""
_LONGEST: Final = 1000
_REQUIRED: Final = object()
_Kind = TypeVar("_Kind")


class NotAGatewayError(ValueError):
    """The response is not the ``/state`` document of fetchgate."""


def number(value: Any) -> float:
    """Return a number that can be used. JSON allows larger numbers, and Python also reads infinite ones."""
    if not isinstance(value, int | float):
        raise TypeError(value)
    if not abs(value) <= _LARGEST:  # this comparison is also false for NaN
        raise ValueError(value)
    return value


def _number_or_none(value: Any) -> float | None:
    return None if value is None else number(value)


def _count(value: Any) -> int:
    return int(number(value))


def _counts(document: Mapping[Any, Any]) -> dict[str, int]:
    return {shown(name): _count(count) for name, count in document.items()}


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError(value)
    return value


def shown(text: Any) -> str:
    """Return a text without characters that a terminal would obey, and not longer than `_LONGEST`."""
    return "".join(c if c.isprintable() else "\ufffd" for c in str(text)[:_LONGEST])


def _reasons(value: Any) -> tuple[str, ...]:
    return tuple(map(shown, _list(value)[:MAX_REASONS]))


def _in_words(value: Any) -> str:
    # `SessionMade` becomes "session made".
    event = shown(value)
    return " ".join(_WORDS.findall(event)).lower() if _NAME.fullmatch(event) else event


def _at(read: Callable[[Any], object], *path: str, default: object = _REQUIRED) -> Any:
    """Declare a field that is read from a document: the value at a path, the default if it is missing."""
    *outer, name = path

    def found(document: Mapping[str, Any]) -> object:
        for each in outer:
            document = document.get(each, {})
        return read(document[name] if default is _REQUIRED else document.get(name, default))

    return field(metadata={"found": found})


@cache
def _declared(kind: Any) -> list[tuple[str, Callable[[Mapping[str, Any]], object]]]:
    return [(each.name, each.metadata["found"]) for each in fields(kind) if each.metadata]


def _filled(kind: type[_Kind], document: Mapping[str, Any], **others: object) -> _Kind:
    """Make a dataclass of the fields that are in a document, and of others."""
    found = {name: read(document) for name, read in _declared(kind)}  # type: ignore[arg-type] # a class can be hashed
    return kind(**found, **others)


def _optional_count(*path: str) -> Any:
    return _at(_count, *path, default=0)


def _optional_number(*path: str) -> Any:
    return _at(number, *path, default=0)


def _optional_text(*path: str) -> Any:
    return _at(shown, *path, default="")


def _each(kind: type[_Kind]) -> Callable[[Any], tuple[_Kind, ...]]:
    return lambda documents: tuple(_filled(kind, one) for one in _list(documents))


@dataclass(frozen=True, slots=True, kw_only=True)
class SideFigures:
    """The traffic on one side of the gateway: the client's or the broker's."""

    fetch_bytes: int = 0
    """Bytes of fetch requests and responses, counted as whole frames. In `Snapshot.broker`, the gateway's own
    other requests are included."""
    fetches: Mapping[str, int] = field(default_factory=dict)
    partitions: int = 0
    """The number of partition entries in fetch requests and responses."""

    @property
    def all_fetches(self) -> int:
        return sum(self.fetches.values())


def _side(document: Mapping[str, Any], more: int = 0) -> SideFigures:
    return SideFigures(
        fetch_bytes=_count(document["fetch_request_bytes"]) + _count(document["fetch_response_bytes"]) + more,
        fetches={kind: _count(document["fetches"].get(kind, 0)) for kind in KINDS},
        partitions=_count(document["partitions_requested"]) + _count(document["partitions_answered"]),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Recent:
    """The traffic of the last minutes. Each column has one value per interval, the latest last."""

    seconds: tuple[float, ...] = ()
    client_bytes: tuple[float, ...] = ()
    broker_bytes: tuple[float, ...] = ()
    client_fetches: tuple[float, ...] = ()
    broker_fetches: Mapping[str, tuple[float, ...]] = field(default_factory=dict)

    @property
    def saved(self) -> tuple[float, ...]:
        sides = zip(self.client_bytes, self.broker_bytes, self.seconds, strict=True)
        return tuple((client - broker) / (seconds or 1.0) for client, broker, seconds in sides)

    def now(self, column: tuple[float, ...]) -> float:
        """Return the rate of a column now, per second."""
        seconds = total = 0.0
        for length, amount in zip(reversed(self.seconds), reversed(column), strict=True):
            seconds, total = seconds + length, total + amount
            if seconds >= NOW_SECONDS:
                break
        return total / (seconds or 1.0)


def _recent(document: Mapping[str, Any]) -> Recent:
    lengths = _list(document.get("seconds", []))
    seconds = tuple(
        round(number(length), 3) for length in lengths
    )  # an interval that is too short to divide by counts as 0
    fetches = document.get("fetches", {})

    def column(of: Mapping[str, Any], name: str) -> tuple[int, ...]:
        amounts = tuple(_count(amount) for amount in _list(of.get(name, [0] * len(seconds))))
        if len(amounts) != len(seconds):
            raise ValueError(name)
        return amounts

    client = [column(fetches.get("client", {}), kind) for kind in KINDS]
    return Recent(
        seconds=seconds,
        client_bytes=column(document, "client_bytes"),
        broker_bytes=column(document, "broker_bytes"),
        client_fetches=tuple(sum(of_kinds) for of_kinds in zip(*client, strict=True)),
        broker_fetches={kind: column(fetches.get("broker", {}), kind) for kind in KINDS},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientConnection:
    """One connection of a client."""

    key: str
    """A text that identifies the connection in this and later snapshots."""
    age: float = _optional_number("age_seconds")
    client_id: str = _at(shown, "client_id")
    software: str
    address: str = _at(shown, "client_address")
    broker: str
    version: int = _at(_count, "fetch_version")
    """The version of the last fetch. -1 before the first one."""
    partitions: int = _at(_count, "session_partitions")
    epoch: int = _at(_count, "session_epoch")
    incremental: float
    """The share of incremental fetches among the fetches that were sent to the broker."""
    left_out: int
    """How many partition entries were not sent to or from the broker."""
    saved: int = _at(_count, "saved_bytes")
    fetches: int
    client_bytes: int
    """Bytes of fetches on the client's side."""
    broker_bytes: int
    reasons: Mapping[str, int] = _at(_counts, "passthrough", default={})
    """The number of fetches without a session, by reason."""
    errors: Mapping[str, int] = _at(_counts, "session_errors", default={})
    """The number of session errors, by Kafka's error code."""
    phase: str = _optional_text("phase")
    held: int = _optional_count("held_bytes")
    """How many bytes of responses are buffered until they are complete, or until it is their turn."""
    last_event: str = _at(_in_words, "last_event", default="")
    last_error: str = _optional_text("last_error")
    late: float = _optional_number("oldest_request_seconds")
    """See `BrokerFigures.late`."""
    zone: str = _optional_text("zone")
    """The zone of the broker: ``same``, ``other`` or ``unknown``. Empty without ``--rack``."""
    records: int = _optional_count("broker", "fetch_record_bytes")
    records_other_zone: int = _optional_count("record_bytes_other_zone")


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerFigures:
    """One broker, or the bootstrap."""

    name: str
    address: str
    connections: int = _optional_count("connections")
    sessions: int = _optional_count("sessions")
    partitions: int = _optional_count("session_partitions")
    refusals: int = _optional_count("refusals")
    evictions: int = _optional_count("evictions")
    fetch_seconds: float | None = _at(_number_or_none, "answer_seconds", "fetch", default=None)
    """The recent mean response time, in seconds. None if there were no fetches."""
    other_seconds: float | None = _at(_number_or_none, "answer_seconds", "other", default=None)
    saved: int = _optional_count("saved_bytes")
    outstanding: int = _optional_count("outstanding_requests")
    late: float = _optional_number("oldest_request_seconds")
    """The seconds since the oldest missing response was due: when the longest wait that its request allows is
    over."""
    problem: str = _at(shown, "problem")
    problem_seconds: float | None = _at(_number_or_none, "problem_seconds", default=None)
    rack: str = _at(lambda rack: shown(rack or ""), "rack", default="")
    """Empty if it is unknown, and without ``--rack``."""

    @property
    def is_late(self) -> bool:
        return self.late >= LATE_SECONDS


def _ranges(value: Any) -> tuple[tuple[int, int], ...]:
    return tuple((_hash(low), _hash(high)) for low, high in _list(value))


def _hash(text: Any) -> int:
    value = int(text, 16)
    if not 0 <= value < SPACE:
        raise ValueError(text)
    return value


def _lag(value: Any) -> int | None:
    return None if value is None else _count(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneFigures:
    """A lane: the part of a partition that belongs to one member of a cooperative group."""

    topic: str = _at(shown, "topic")
    partition: int = _at(_count, "partition")
    ranges: tuple[tuple[int, int], ...] = _at(_ranges, "ranges")
    """The first and last hash of each key range."""
    lag: int | None = _at(_lag, "lag", default=None)
    """In offsets. None if unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberFigures:
    """A member of a cooperative group."""

    client_id: str = _at(shown, "client_id")
    host: str = _at(shown, "client_host")
    state: str = _at(shown, "state")
    lanes: tuple[LaneFigures, ...] = _at(_each(LaneFigures), "lanes")


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFigures:
    """A cooperative group."""

    name: str = _at(shown, "group")
    exclusive: str = _at(shown, "exclusive")
    """Why the group shares no partition. Empty if it may."""
    unowned: int = _optional_count("unowned_ranges")
    """How many gaps there are between the key ranges of members."""
    members: tuple[MemberFigures, ...] = _at(_each(MemberFigures), "members")


@dataclass(frozen=True, slots=True, kw_only=True)
class PastEvent:
    """An event of the past, as `/state` lists it."""

    ago: float
    """In seconds before the snapshot."""
    text: str = _at(shown, "text")
    count: int = _at(_count, "count", default=1)
    warning: bool = _at(bool, "warning", default=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The state of a gateway at one moment."""

    version: str = _at(shown, "version")
    time: float = _optional_number("time")
    """By the gateway's clock, in seconds."""
    uptime: float = _at(number, "uptime_seconds")
    state: str = _at(shown, "state")
    reasons: tuple[str, ...] = _at(_reasons, "reasons")
    listen: str = _at(shown, "listen")
    sessions_on: bool = _at(bool, "sessions", "on")
    slots_used: int = _at(_count, "sessions", "held")
    slots: int = _optional_count("sessions", "max")
    client_sessions: int = _optional_count("client_sessions", "held")
    """Sessions that the gateway keeps for clients (KIP-227)."""
    client_session_partitions: int = _optional_count("client_sessions", "partitions")
    client_session_slots: int = _optional_count("client_sessions", "max")
    client_session_evictions: int = _optional_count("client_sessions", "evictions")
    leaders_updated: int = _optional_count("leaders_updated")
    """In how many partitions of Metadata responses the gateway has put a newer leader (KIP-951)."""
    max_fetch_bytes: int = _optional_count("max_fetch_bytes", "")
    """The value of ``--max-fetch-bytes`` for clients without an own value (KIP-74). 0 for no limit."""
    buffered_bytes: int = _optional_count("inflight_bytes")
    capture_stopped: bool = _at(bool, "capture_stopped", default=False)
    client: SideFigures = _at(_side, "totals", "client")
    broker: SideFigures
    recent: Recent = _at(_recent, "recent", default={})
    added_request: float = _optional_number("added", "request", "mean_seconds")
    """The mean time that the gateway adds to a request, in seconds."""
    added_response: float = _optional_number("added", "response", "mean_seconds")
    connections: int = _at(_count, "connections_open")
    connections_max: int = _optional_count("connections_max")
    """0 if unknown."""
    without_slot: int
    """Fetches for which a broker had no free session slot: it refused a session, or the gateway waited before
    it asked again."""
    cpu_seconds: float = _optional_number("process", "cpu_seconds")
    memory: int = _optional_count("process", "resident_bytes")
    """In bytes. 0 if unknown."""
    clients: tuple[ClientConnection, ...]
    brokers: tuple[BrokerFigures, ...]
    events: tuple[PastEvent, ...]
    """The latest last."""
    groups: tuple[GroupFigures, ...] = _at(_each(GroupFigures), "cooperative", "groups", default=[])
    records_kept: int = _optional_count("cooperative", "records", "kept")
    """Records that members have received, without partitions of which a member gets all records."""
    records_filtered: int = _optional_count("cooperative", "records", "filtered")
    """Records removed from responses to members: those of other members, and processed ones."""
    rack: str = _optional_text("rack")
    detached: int = _at(lambda times: sum(_counts(times).values()), "cooperative", "detached", default={})
    """How often a member stopped using shared fetches and fetched for itself."""

    @property
    def saved(self) -> int:
        return self.client.fetch_bytes - self.broker.fetch_bytes


def parse(document: Any) -> Snapshot:
    """Read the document of ``/state``.

    Raises:
        NotAGatewayError: the document is not a gateway's.
    """
    try:
        return _snapshot(document)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise NotAGatewayError("this is not a state of fetchgate") from error


def _snapshot(document: Mapping[str, Any]) -> Snapshot:
    totals, now = document["totals"], number(document.get("time", 0))
    names = _addresses(document)
    refused = _counts(totals.get("passthrough", {})).get(Reason.NO_BROKER_SLOT, 0)
    return _filled(
        Snapshot,
        document,
        broker=_side(totals["broker"], _count(totals.get("probe_bytes", 0))),
        without_slot=_count(totals.get("refusals", 0)) + refused,
        clients=tuple(_client(one, names) for one in _list(document["connections"])),
        brokers=_brokers(document, names),
        events=tuple(
            _filled(PastEvent, one, ago=max(0.0, now - number(one["at"])))
            for one in _list(document.get("events", []))
        ),
    )


def _addresses(document: Mapping[str, Any]) -> Mapping[str, str]:
    # In transparent mode a broker's id is a number that only the gateway knows.
    bootstrap = document.get("bootstrap")
    if bootstrap is None or bootstrap["addresses"]:
        return {}
    brokers = {shown(one["id"]): shown(one["address"]) for one in _list(document["brokers"])}
    return {str(LOOPED): "nowhere", str(OTHERS): "other"} | brokers


def _client(document: Mapping[str, Any], names: Mapping[str, str]) -> ClientConnection:
    client, broker = _side(document["client"]), _side(document["broker"])
    software = f"{document['software_name']} {document['software_version']}"
    node_id = shown(document["broker_id"])
    return _filled(
        ClientConnection,
        document,
        key=f"{shown(document['client_address'])} {shown(document.get('broker_address'))}",
        software=shown(software).strip(),
        broker=BOOTSTRAP if document["broker_id"] is None else names.get(node_id, node_id),
        incremental=broker.fetches["incremental"] / (broker.all_fetches or 1),
        left_out=client.partitions - broker.partitions,
        fetches=client.all_fetches,
        client_bytes=client.fetch_bytes,
        broker_bytes=broker.fetch_bytes,
    )


def _brokers(document: Mapping[str, Any], names: Mapping[str, str]) -> tuple[BrokerFigures, ...]:
    brokers = [
        _filled(
            BrokerFigures,
            one,
            name=names.get(node_id := shown(one["id"]), node_id),
            address=shown(one["address"]),
        )
        for one in _list(document["brokers"])
    ]
    bootstrap = document.get("bootstrap")
    if bootstrap is not None and bootstrap["addresses"]:  # transparent mode has no bootstrap
        address = ", ".join(map(shown, _list(bootstrap["addresses"])))
        brokers.append(_filled(BrokerFigures, bootstrap, name=BOOTSTRAP, address=address))
    return tuple(brokers)
