"""The JSON document of `/state` as dataclasses. Sans-IO.

A gateway of another version may send fewer or more fields. Unknown fields are ignored. Missing fields count
as empty, except the basic ones, such as the version and the totals: they must be there.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

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


class NotAGatewayError(ValueError):
    """The response is not the ``/state`` document of fetchgate."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientConnection:
    """One connection of a client."""

    key: str
    """A text that identifies the connection in this and later snapshots."""
    age: float
    """In seconds since the connection was accepted."""
    client_id: str
    software: str
    address: str
    broker: str
    version: int
    """The version of the last fetch. -1 before the first one."""
    partitions: int
    """How many partitions the session has."""
    epoch: int
    incremental: float
    """The share of incremental fetches among the fetches that were sent to the broker."""
    left_out: int
    """How many partition entries were not sent to or from the broker."""
    saved: int
    """In bytes."""
    fetches: int
    client_bytes: int
    """Bytes of fetches on the client's side."""
    broker_bytes: int
    reasons: Mapping[str, int]
    """The number of fetches without a session, by reason."""
    errors: Mapping[str, int]
    """The number of session errors, by Kafka's error code."""
    phase: str
    held: int
    """How many bytes of responses are buffered until they are complete, or until it is their turn."""
    last_event: str
    last_error: str
    late: float = 0.0
    """See `BrokerFigures.late`."""
    zone: str = ""
    """The zone of the broker: ``same``, ``other`` or ``unknown``. Empty without ``--rack``."""
    records: int = 0
    """Record bytes from the broker."""
    records_other_zone: int = 0


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
    """The recent mean response time, in seconds. None if there were no fetches."""
    other_seconds: float | None
    saved: int
    outstanding: int
    late: float
    """The seconds since the oldest missing response was due: when the longest wait that its request allows is
    over."""
    problem: str
    problem_seconds: float | None
    """None if unknown."""
    rack: str = ""
    """Empty if it is unknown, and without ``--rack``."""

    @property
    def is_late(self) -> bool:
        return self.late >= LATE_SECONDS


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneFigures:
    """A lane: the part of a partition that belongs to one member of a cooperative group."""

    topic: str
    partition: int
    ranges: tuple[tuple[int, int], ...]
    """The first and last hash of each key range."""
    lag: int | None
    """In offsets. None if unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberFigures:
    """A member of a cooperative group."""

    client_id: str
    host: str
    state: str
    lanes: tuple[LaneFigures, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFigures:
    """A cooperative group."""

    name: str
    exclusive: str
    """Why the group shares no partition. Empty if it may."""
    unowned: int
    """How many gaps there are between the key ranges of members."""
    members: tuple[MemberFigures, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PastEvent:
    """An event of the past, as `/state` lists it."""

    ago: float
    """In seconds before the snapshot."""
    text: str
    count: int
    warning: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The state of a gateway at one moment."""

    version: str
    time: float
    """By the gateway's clock, in seconds."""
    uptime: float
    """In seconds."""
    state: str
    reasons: tuple[str, ...]
    listen: str
    sessions_on: bool
    slots_used: int
    slots: int
    client_sessions: int
    """Sessions that the gateway keeps for clients (KIP-227)."""
    client_session_partitions: int
    client_session_slots: int
    client_session_evictions: int
    leaders_updated: int
    """In how many partitions of Metadata responses the gateway has put a newer leader (KIP-951)."""
    max_fetch_bytes: int
    """The value of ``--max-fetch-bytes`` for clients without an own value (KIP-74). 0 for no limit."""
    buffered_bytes: int
    capture_stopped: bool
    """Whether a capture has stopped because of an error."""
    client: SideFigures
    broker: SideFigures
    recent: Recent
    added_request: float
    """The mean time that the gateway adds to a request, in seconds."""
    added_response: float
    connections: int
    connections_max: int
    """0 if unknown."""
    accepted: int
    without_slot: int
    """Fetches for which a broker had no free session slot: it refused a session, or the gateway waited before
    it asked again."""
    cpu_seconds: float
    memory: int
    """In bytes. 0 if unknown."""
    clients: tuple[ClientConnection, ...]
    brokers: tuple[BrokerFigures, ...]
    events: tuple[PastEvent, ...]
    """The latest last."""
    groups: tuple[GroupFigures, ...]
    """Empty without ``--cooperative``."""
    records_kept: int
    """Records that members have received, without partitions of which a member gets all records."""
    records_filtered: int
    """Records removed from responses to members: those of other members, and processed ones."""
    rack: str = ""
    """Empty without ``--rack``."""
    detached: int
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
    totals, sessions, kept = document["totals"], document["sessions"], document.get("client_sessions", {})
    added, shared = document.get("added", {}), document.get("cooperative", {})
    records, process = shared.get("records", {}), document.get("process", {})
    names = _addresses(document)
    return Snapshot(
        version=shown(document["version"]),
        time=number(document.get("time", 0)),
        uptime=number(document["uptime_seconds"]),
        state=shown(document["state"]),
        reasons=tuple(map(shown, _list(document["reasons"])[:MAX_REASONS])),
        listen=shown(document["listen"]),
        sessions_on=bool(sessions["on"]),
        slots_used=_count(sessions["held"]),
        slots=_count(sessions.get("max", 0)),
        client_sessions=_count(kept.get("held", 0)),
        client_session_partitions=_count(kept.get("partitions", 0)),
        client_session_slots=_count(kept.get("max", 0)),
        client_session_evictions=_count(kept.get("evictions", 0)),
        leaders_updated=_count(document.get("leaders_updated", 0)),
        max_fetch_bytes=_count(document.get("max_fetch_bytes", {}).get("", 0)),
        buffered_bytes=_count(document.get("inflight_bytes", 0)),
        capture_stopped=bool(document.get("capture_stopped", False)),
        client=_side(totals["client"]),
        broker=_side(totals["broker"], _count(totals.get("probe_bytes", 0))),
        recent=_recent(document.get("recent", {})),
        added_request=number(added.get("request", {}).get("mean_seconds", 0)),
        added_response=number(added.get("response", {}).get("mean_seconds", 0)),
        without_slot=_count(totals.get("refusals", 0))
        + _counts(totals.get("passthrough", {})).get(Reason.NO_BROKER_SLOT, 0),
        connections=_count(document["connections_open"]),
        connections_max=_count(document.get("connections_max", 0)),
        cpu_seconds=number(process.get("cpu_seconds", 0)),
        memory=_count(process.get("resident_bytes", 0)),
        accepted=_count(document["connections_accepted"]),
        clients=tuple(_client(one, names) for one in _list(document["connections"])),
        brokers=_brokers(document, names),
        events=tuple(
            _event(one, number(document.get("time", 0))) for one in _list(document.get("events", []))
        ),
        groups=tuple(_group(one) for one in _list(shared.get("groups", []))),
        records_kept=_count(records.get("kept", 0)),
        records_filtered=_count(records.get("filtered", 0)),
        rack=shown(document.get("rack", "")),
        detached=sum(_count(times) for times in shared.get("detached", {}).values()),
    )


def _side(document: Mapping[str, Any], more: int = 0) -> SideFigures:
    return SideFigures(
        fetch_bytes=_count(document["fetch_request_bytes"]) + _count(document["fetch_response_bytes"]) + more,
        fetches={kind: _count(document["fetches"].get(kind, 0)) for kind in KINDS},
        partitions=_count(document["partitions_requested"]) + _count(document["partitions_answered"]),
    )


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
    address, broker_address = shown(document["client_address"]), shown(document.get("broker_address"))
    node_id = shown(document["broker_id"])
    return ClientConnection(
        key=f"{address} {broker_address}",
        age=number(document.get("age_seconds", 0)),
        client_id=shown(document["client_id"]),
        software=shown(software).strip(),
        address=address,
        broker=BOOTSTRAP if document["broker_id"] is None else names.get(node_id, node_id),
        version=_count(document["fetch_version"]),
        partitions=_count(document["session_partitions"]),
        epoch=_count(document["session_epoch"]),
        incremental=broker.fetches["incremental"] / (broker.all_fetches or 1),
        left_out=client.partitions - broker.partitions,
        saved=_count(document["saved_bytes"]),
        fetches=client.all_fetches,
        client_bytes=client.fetch_bytes,
        broker_bytes=broker.fetch_bytes,
        reasons=_counts(document.get("passthrough", {})),
        errors=_counts(document.get("session_errors", {})),
        phase=shown(document.get("phase", "")),
        held=_count(document.get("held_bytes", 0)),
        last_event=_in_words(shown(document.get("last_event", ""))),
        last_error=shown(document.get("last_error", "")),
        late=number(document.get("oldest_request_seconds", 0)),
        zone=shown(document.get("zone", "")),
        records=_count(document["broker"].get("fetch_record_bytes", 0)),
        records_other_zone=_count(document.get("record_bytes_other_zone", 0)),
    )


def _brokers(document: Mapping[str, Any], names: Mapping[str, str]) -> tuple[BrokerFigures, ...]:
    brokers = [
        _broker(names.get(node_id := shown(one["id"]), node_id), shown(one["address"]), one)
        for one in _list(document["brokers"])
    ]
    bootstrap = document.get("bootstrap")
    if bootstrap is not None and bootstrap["addresses"]:  # transparent mode has no bootstrap
        brokers.append(_broker(BOOTSTRAP, ", ".join(map(shown, _list(bootstrap["addresses"]))), bootstrap))
    return tuple(brokers)


def _broker(name: str, address: str, document: Mapping[str, Any]) -> BrokerFigures:
    response_seconds = document.get("answer_seconds", {})
    return BrokerFigures(
        name=name,
        address=address,
        connections=_count(document.get("connections", 0)),
        sessions=_count(document.get("sessions", 0)),
        partitions=_count(document.get("session_partitions", 0)),
        refusals=_count(document.get("refusals", 0)),
        evictions=_count(document.get("evictions", 0)),
        fetch_seconds=_number_or_none(response_seconds.get("fetch")),
        other_seconds=_number_or_none(response_seconds.get("other")),
        saved=_count(document.get("saved_bytes", 0)),
        outstanding=_count(document.get("outstanding_requests", 0)),
        late=number(document.get("oldest_request_seconds", 0)),
        problem=shown(document["problem"]),
        problem_seconds=_number_or_none(document.get("problem_seconds")),
        rack=shown(document.get("rack") or ""),
    )


def _group(document: Mapping[str, Any]) -> GroupFigures:
    return GroupFigures(
        name=shown(document["group"]),
        exclusive=shown(document["exclusive"]),
        unowned=_count(document.get("unowned_ranges", 0)),
        members=tuple(
            MemberFigures(
                client_id=shown(member["client_id"]),
                host=shown(member["client_host"]),
                state=shown(member["state"]),
                lanes=tuple(_lane(lane) for lane in _list(member["lanes"])),
            )
            for member in _list(document["members"])
        ),
    )


def _lane(document: Mapping[str, Any]) -> LaneFigures:
    lag = _number_or_none(document.get("lag"))
    return LaneFigures(
        topic=shown(document["topic"]),
        partition=_count(document["partition"]),
        ranges=tuple((_hash(low), _hash(high)) for low, high in _list(document["ranges"])),
        lag=None if lag is None else int(lag),
    )


def _hash(text: Any) -> int:
    value = int(text, 16)
    if not 0 <= value < SPACE:
        raise ValueError(text)
    return value


def _event(document: Mapping[str, Any], now: float) -> PastEvent:
    return PastEvent(
        ago=max(0.0, now - number(document["at"])),
        text=shown(document["text"]),
        count=_count(document.get("count", 1)),
        warning=bool(document.get("warning", False)),
    )


def _in_words(event: str) -> str:
    # `SessionMade` becomes "session made".
    return " ".join(_WORDS.findall(event)).lower() if _NAME.fullmatch(event) else event


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
