"""Makes a script from captured exchanges: connections with steps, in order and with their times. Sans-IO."""

from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from operator import itemgetter
from typing import Any, Final

from proxy.protocol.api import ApiKey, request_header, response_header
from proxy.protocol.fetch_layout import MAX_VERSION, MIN_VERSION, SESSION_VERSION
from proxy.protocol.fetch_request import parse_fetch_request
from proxy.protocol.messages import read
from proxy.protocol.primitives import ProtocolError, Truncated
from replay.capture.kafka.both_sides import GatewaySides
from replay.capture.kafka.exchange import ConnectionEnd, Exchange
from replay.drive.summaries import summarize
from replay.drive.tally import DriveTotals
from replay.drive.transactions import UNWANTED, WRITES, Part, left_out
from replay.protocol.errors import Errors, read_errors
from replay.protocol.fetches import FetchSummary, read_fetch
from replay.protocol.naming import given, metadata_partitions, transaction_of

READS: Final = frozenset(
    {
        ApiKey.FETCH,
        ApiKey.LIST_OFFSETS,
        ApiKey.METADATA,
        ApiKey.OFFSET_FETCH,
        ApiKey.FIND_COORDINATOR,
        ApiKey.DESCRIBE_GROUPS,
        ApiKey.LIST_GROUPS,
        ApiKey.API_VERSIONS,
        ApiKey.OFFSET_FOR_LEADER_EPOCH,
        ApiKey.DESCRIBE_ACLS,
        ApiKey.DESCRIBE_CONFIGS,
        ApiKey.DESCRIBE_LOG_DIRS,
        ApiKey.DESCRIBE_DELEGATION_TOKEN,
        ApiKey.LIST_PARTITION_REASSIGNMENTS,
        ApiKey.DESCRIBE_CLIENT_QUOTAS,
        ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS,
        ApiKey.DESCRIBE_QUORUM,
        ApiKey.DESCRIBE_CLUSTER,
        ApiKey.DESCRIBE_PRODUCERS,
        ApiKey.DESCRIBE_TRANSACTIONS,
        ApiKey.LIST_TRANSACTIONS,
        ApiKey.CONSUMER_GROUP_DESCRIBE,
        ApiKey.LIST_CONFIG_RESOURCES,
        ApiKey.DESCRIBE_TOPIC_PARTITIONS,
        ApiKey.SHARE_GROUP_DESCRIBE,
        ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS,
    }
)
"""The APIs that only read from a broker. All other APIs (records, groups, share sessions, authentication) are
left out unless --include lists them."""

WRITE: Final = "a write; --include plays it"
COPY: Final = "captured twice, before and after NAT"
_CORRELATION: Final = slice(8, 12)
_NO_CORRELATION: Final = bytes(4)
_SESSION: Final = "int32@1+ int16@7+ session_id:int32@7+"
_HEAD_BYTES: Final = 64
_NANOSECONDS: Final = 1e9


@dataclass(slots=True, kw_only=True, eq=False)
class Step:
    """One request to play."""

    connection: str = ""
    number: int = 0
    """Its place among the exchanges of the connection."""
    time: int = 0
    """When it was captured, in ns."""
    response_time: int = 0
    """0 if the capture has no response."""
    at: float = 0.0
    """Seconds after the first step of the script."""
    api_key: int
    version: int
    request_bytes: int = 0
    response_bytes: int = 0
    """0 if the capture has no response."""
    response: FetchSummary | None = None
    """The response of a fetch, if it was captured completely and parses."""
    errors: Errors | None = None
    """The errors in the response. None for a fetch, and if the response is incomplete or can't be parsed."""
    frame: bytes
    """The whole request frame as captured, with correlation id 0. Equal frames of several steps are one
    Python object."""
    body: int
    """Offset of the body in `frame`."""
    in_flight: int = 0
    """How many earlier requests on the connection got their responses only after the client sent this one."""
    has_response: bool = True
    """False for Produce with acks=0."""
    session_id: int = 0
    session_epoch: int = -1
    given: int = 0
    """The session id in the captured response. 0 if the response has none, or was not captured."""
    isolation_level: int = 0
    """The isolation level of a fetch. A broker writes an unchanged entry differently for each level."""
    write: int = -1
    """The place of a write among the script's writes, by the times of their responses. -1 for a read."""
    after_writes: int = 0
    """How many writes must have a response before this request is sent."""
    transaction: bytes = b""
    """The transactional id of a write. Empty if it has none."""
    written: tuple[tuple[bytes, int, int], ...] = ()
    """Topic key, partition and offset of the first record that a Produce has written there."""
    identities: Mapping[str, Any] | None = None
    """The ids that the captured response gave, as `naming.given` reads them."""
    kept: object = None
    """The result of `ScriptMaker`'s `keep`."""

    def listed(self) -> list[tuple[bytes, bytes]]:
        """Return the topics of a fetch: each with its key and its entries, as on the wire."""
        listing = parse_fetch_request(self.frame, self.version, self.body).listing
        return [] if listing is None else [*listing.topics()]


@dataclass(slots=True, kw_only=True, eq=False)
class PlayedConnection:
    """One connection's steps, in the order in which the client sent them."""

    name: str
    broker: str
    client_id: str
    steps: list[Step]
    place: int = 0
    """The position of the connection among the script's connections, ordered by their ends."""
    after: int = 0
    """How many connections had already ended when this one began. The replay opens this one only after it has
    played the same connections to their end."""


@dataclass(frozen=True, slots=True, order=True)
class LeftOut:
    """A reason why requests of one API are not played."""

    api_key: int
    reason: str

    @property
    def wanted(self) -> bool:
        """Whether the user has chosen so, or nothing is lost."""
        return self.reason in {WRITE, COPY} or self.reason.startswith(UNWANTED.format(""))


@dataclass(slots=True, kw_only=True, eq=False)
class Script:
    """The connections and requests to play."""

    connections: list[PlayedConnection]
    left_out: Counter[LeftOut]
    start: float = 0.0
    """The time of the capture at which playing begins, in seconds after the first request."""
    earlier: list[tuple[str, Step]] = field(default_factory=list)
    """The fetches of sessions before `start`, each with its captured broker, in the order of their times."""
    topics: dict[bytes, str]
    """Topic id -> topic name, from the Metadata responses in the capture, and from --topic-id."""
    partitions: dict[str, int] = field(default_factory=dict)
    """Topic name -> number of partitions, from the Metadata responses in the capture."""
    written: dict[str, dict[int, int]] = field(default_factory=dict)
    """Topic name -> partition -> the offset of the first record that a played Produce has written."""
    versions: dict[int, set[int]] = field(default_factory=dict)
    """API key -> the versions of all captured requests, also of those that are not played."""
    clients: set[str] = field(default_factory=set)
    """All client ids in the capture, also of clients that are not played."""
    sides: GatewaySides = field(default_factory=GatewaySides)

    def steps(self) -> Iterator[Step]:
        """Yield the steps to play, and the fetches from which their sessions are built."""
        yield from (step for _, step in self.earlier)
        for connection in self.connections:
            yield from connection.steps

    def different(self) -> Iterable[Step]:
        """Return one of `steps` for each different request."""
        return {step.frame: step for step in self.steps()}.values()

    @property
    def requests(self) -> int:
        return sum(len(connection.steps) for connection in self.connections)

    @property
    def seconds(self) -> float:
        """The time of the last step, in seconds after the first step of the script."""
        return max((connection.steps[-1].at for connection in self.connections), default=0.0)


def captured(connections: Iterable[PlayedConnection]) -> DriveTotals:
    """Count the captured requests and responses of these steps, and their sizes."""
    tally = DriveTotals()
    for connection in connections:
        for step in connection.steps:
            tally.sent(step.api_key, step.request_bytes)
            if step.response_bytes:
                seconds = (step.response_time - step.time) / _NANOSECONDS
                tally.answered(step.api_key, step.response_bytes, seconds)
            if step.response is not None:
                tally.fetched(step.response)
            elif step.errors is not None:
                tally.failed(step.api_key, step.errors)
    return tally


class ScriptMaker:
    """Collects the exchanges of a capture, and makes a script from them.

    It plays `READS` and the APIs in `include`, of `clients` or of all if empty. `keep` is called with each
    exchange that becomes a step, and the step. Its result is stored in `Step.kept`.
    """

    def __init__(
        self,
        include: Iterable[int] = (),
        clients: Iterable[str] = (),
        keep: Callable[[Exchange, Step], object] | None = None,
    ) -> None:
        self._keep = keep
        self._see = frozenset({ApiKey.FETCH, ApiKey.PRODUCE}) if keep is not None else frozenset()
        """The APIs whose requests wait for the writes that the captured response shows."""
        self._played = READS | frozenset(include)
        self._wanted = frozenset(clients)
        self._clients: set[str] = set()
        self._versions: dict[int, set[int]] = {}
        self._sides = GatewaySides()
        self._steps: list[Step] = []
        self._who: dict[str, tuple[str, str]] = {}
        """Connection -> broker and client id."""
        self._frames: dict[bytes, bytes] = {}
        self._left_out: Counter[LeftOut] = Counter()
        self._unwanted: dict[bytes, set[int]] = {}
        """Transactional id -> the APIs of its writes that are not played."""
        self._topics: dict[bytes, str] = {}
        self._partitions: dict[str, int] = {}

    def add(self, item: Exchange | ConnectionEnd) -> None:
        """Add an exchange, or the end of a connection. The order of calls does not matter."""
        if isinstance(item, ConnectionEnd):
            self._topics |= item.topics
            return
        if item.api_key >= 0:
            self._clients.add(item.client_id)
        if item.api_key == ApiKey.METADATA and item.response and not item.response_missing:
            self._learn_partitions(item)
        if self._wanted and item.client_id not in self._wanted:
            return
        self._sides.add(item)
        if item.api_key >= 0:
            self._versions.setdefault(item.api_key, set()).add(item.api_version)
        if item.api_key < 0:
            self._leave(item, "responses whose requests were not captured")
        elif not item.request or item.request_missing:
            self._leave(item, "its request was not captured whole")
        elif item.api_key not in self._played:
            self._leave(item, WRITE)
            if transaction := _transaction(item):
                self._unwanted.setdefault(transaction, set()).add(item.api_key)
        else:
            try:
                step = self._step(item)
            except ProtocolError as error:
                self._leave(item, f"not understood: {error}")
            else:
                if step is not None:
                    self._steps.append(step)
                    self._who[item.connection] = (item.broker, item.client_id)

    def finish(
        self, *, longest_wait: float | None = None, limit: int | None = None, start: float = 0.0
    ) -> Script:
        """Make the script of at most `limit` requests.

        Times without any request are shortened to `longest_wait` seconds. Playing begins `start` seconds
        after the first request. Of the requests before, only fetches of sessions are kept, from which the
        sessions are built.
        """
        copies = self._sides.copies()
        self._left_out.update(
            LeftOut(step.api_key, COPY) for step in self._steps if step.connection in copies
        )
        order = sorted(
            (step for step in self._steps if step.connection not in copies),
            key=lambda step: (step.time, step.number, step.connection),
        )
        times = _times([step.time for step in order], longest_wait)
        for at, step in zip(times, order, strict=True):
            step.at = at - start
        first = bisect_left(times, start)
        earlier = [
            (self._who[step.connection][0], step)
            for step in order[:first]
            if step.session_id or step.session_epoch >= 0
        ]
        order = self._whole_transactions(order[first:][:limit])
        self._order_writes(order)
        return Script(
            connections=self._connections(order),
            start=start,
            earlier=earlier,
            left_out=self._left_out,
            topics=self._topics,
            partitions=self._partitions,
            written=self._written(order),
            versions=self._versions,
            clients=self._clients,
            sides=self._sides,
        )

    def _written(self, steps: Iterable[Step]) -> dict[str, dict[int, int]]:
        found: dict[str, dict[int, int]] = {}
        for step in steps:
            for key, partition, offset in step.written:
                topic = found.setdefault(self._name(key), {})
                topic[partition] = min(offset, topic.get(partition, offset))
        return found

    def _order_writes(self, steps: list[Step]) -> None:
        """Have requests wait for the writes that were done before them in the capture.

        Clients of a group, and producers and consumers, depend on each other. If responses are compared, a
        fetch also waits for the writes that were done before its response, and records are written in the
        captured order.
        """
        writes = [step for step in steps if step.api_key not in READS]
        times = {step: step.response_time or step.time for step in writes}
        if self._see:
            self._look_into_logs(steps, times)
        writes.sort(key=times.__getitem__)
        done = sorted(times.values())
        for place, step in enumerate(writes):
            step.write = place
        for step in steps:
            late = times.get(step, step.response_time) if step.api_key in self._see else 0
            step.after_writes = bisect_left(done, late or step.time)

    def _look_into_logs(self, steps: Iterable[Step], times: dict[Step, int]) -> None:
        """Correct the times at which writes were done.

        Another client may get records before their producer gets its response. A transaction ends at its
        request.
        """
        logs: dict[tuple[str, int], list[tuple[int, Step]]] = {}
        for step in steps:
            if step.api_key == ApiKey.END_TXN:
                times[step] = step.time
            for key, partition, offset in step.written:
                logs.setdefault((self._name(key), partition), []).append((offset, step))
        for log in logs.values():
            log.sort(key=itemgetter(0))
        for step in steps:
            reads = step.response.reads if step.response is not None else ()
            for key, partition, _, high_watermark in reads:
                log = logs.get((self._name(key), partition), [])
                if seen := bisect_left(log, high_watermark, key=itemgetter(0)):
                    last = log[seen - 1][1]
                    times[last] = min(times[last], step.response_time - 1)
        for log in logs.values():
            for (_, earlier), (_, later) in reversed([*pairwise(log)]):
                if earlier is not later:
                    times[earlier] = min(times[earlier], times[later] - 1)

    def _name(self, key: bytes) -> str:
        return self._topics.get(key) or key.decode(errors="replace")

    def _whole_transactions(self, order: list[Step]) -> list[Step]:
        parts = [
            Part(step.transaction, step.api_key, (step.identities or {}).get("producer_id", -1) >= 0)
            for step in order
        ]
        reasons = left_out(parts, self._unwanted)
        self._left_out.update(
            LeftOut(part.api_key, reason) for part, reason in zip(parts, reasons, strict=True) if reason
        )
        return [step for step, reason in zip(order, reasons, strict=True) if not reason]

    def _connections(self, order: Iterable[Step]) -> list[PlayedConnection]:
        found: dict[str, list[Step]] = {}
        for step in order:
            found.setdefault(step.connection, []).append(step)
        ends = {
            name: max(max(step.time, step.response_time) for step in all_) for name, all_ in found.items()
        }
        places = {name: place for place, name in enumerate(sorted(ends, key=lambda name: (ends[name], name)))}
        return [
            PlayedConnection(
                name=name,
                broker=self._who[name][0],
                client_id=self._who[name][1],
                steps=_with_in_flight(all_),
                place=places[name],
                after=sum(end < all_[0].time for end in ends.values()),
            )
            for name, all_ in found.items()
        ]

    def _learn_partitions(self, item: Exchange) -> None:
        frame = b"".join(bytes(piece) for piece in item.response)
        for topic, partition in metadata_partitions(item.api_version, frame):
            self._partitions[topic] = max(self._partitions.get(topic, 0), partition + 1)

    def _leave(self, item: Exchange, reason: str) -> None:
        self._left_out[LeftOut(item.api_key, reason)] += 1

    def _step(self, item: Exchange) -> Step | None:
        _, version, _, _, body = request_header(item.request, 4)
        fetch = None
        if item.api_key == ApiKey.FETCH:
            if not MIN_VERSION <= version <= MAX_VERSION:
                self._leave(item, f"version {version} is not one of {MIN_VERSION} to {MAX_VERSION}")
                return None
            fetch = parse_fetch_request(item.request, version, body)
            if fetch.unsupported_reason:
                self._leave(item, fetch.unsupported_reason)
                return None
        blank = item.request[: _CORRELATION.start] + _NO_CORRELATION + item.request[_CORRELATION.stop :]
        step = Step(
            connection=item.connection,
            number=item.number,
            time=item.request_time,
            response_time=item.response_time,
            request_bytes=item.request_bytes,
            response_bytes=item.response_bytes if item.response_time else 0,
            api_key=item.api_key,
            version=version,
            frame=self._frames.setdefault(blank, blank),
            body=body,
            has_response=item.answer_due,
            session_id=fetch.session_id if fetch else 0,
            session_epoch=fetch.session_epoch if fetch else -1,
            given=_session_given(item, version) if fetch else 0,
            isolation_level=fetch.isolation_level if fetch else 0,
            transaction=_transaction(item),
            written=_written(item),
            identities=_identities(item),
        )
        if item.response_time and item.response and not item.response_missing:
            if fetch is not None:
                step.response = read_fetch(version, fetch.isolation_level, item.response)
            else:
                step.errors = read_errors(item.api_key, version, item.response)
        if self._keep is not None:
            step.kept = self._keep(item, step)
        return step


def _session_given(item: Exchange, version: int) -> int:
    head = b"".join(bytes(piece[:_HEAD_BYTES]) for piece in item.response[:_HEAD_BYTES])
    if version < SESSION_VERSION or not item.response:
        return 0
    _, at = response_header(head, 4, ApiKey.FETCH, version)
    try:
        session_id: int = read(_SESSION, ApiKey.FETCH, version, head, at, whole=False)["session_id"]
    except Truncated:
        return 0
    return session_id


def _transaction(item: Exchange) -> bytes:
    if item.api_key not in WRITES:
        return b""
    try:
        body = request_header(item.request, 4)[-1]
    except ProtocolError:
        return b""
    return transaction_of(item.api_key, item.api_version, item.request, body)


def _written(item: Exchange) -> tuple[tuple[bytes, int, int], ...]:
    if item.api_key != ApiKey.PRODUCE or not item.response or item.response_missing:
        return ()
    found = summarize(item.api_key, item.api_version, 0, item.response)
    rows = () if found is None else found.rows()
    return tuple((key, partition, values[0]) for key, partition, error, values in rows if not error)


def _identities(item: Exchange) -> Mapping[str, Any] | None:
    if not item.response or item.response_missing:
        return None
    return given(item.api_key, item.api_version, b"".join(bytes(piece) for piece in item.response))


def _times(times: list[int], longest_wait: float | None) -> list[float]:
    """Convert ascending times in ns to seconds after the first one. Shorten waits to `longest_wait`."""
    found: list[float] = []
    at = 0.0
    for number, time in enumerate(times):
        if number:
            wait = (time - times[number - 1]) / _NANOSECONDS
            at += wait if longest_wait is None else min(wait, longest_wait)
        found.append(at)
    return found


def _with_in_flight(steps: list[Step]) -> list[Step]:
    """Note in each step the number of earlier requests whose captured response came later."""
    waiting: deque[int] = deque()
    for step in steps:
        while waiting and waiting[0] <= step.time:
            waiting.popleft()
        step.in_flight = len(waiting)
        if step.response_time and step.has_response:
            waiting.append(step.response_time)
    return steps
