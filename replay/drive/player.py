"""Plays a script. Each captured connection becomes one connection to each side, with the same requests."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from math import inf
from time import perf_counter
from typing import Final

from proxy.addresses import Address
from proxy.protocol.api import ApiKey
from replay.drive.identities import Identities
from replay.drive.pacing import Pace
from replay.drive.script import LeftOut, PlayedConnection, Step
from replay.drive.sessions import Session, SideSessions
from replay.drive.side import EARLIER, TargetSide
from replay.drive.target import Destination
from replay.drive.wire import OnResponse, SilentError, TargetConnection, TargetError
from replay.protocol.errors import Errors, read_errors
from replay.protocol.fetches import read_fetch
from replay.protocol.naming import own_client

Route = Mapping[str, Sequence[Destination]]
"""For each captured connection (by its name), the brokers to connect to: one for each side."""
OnSent = Callable[[PlayedConnection, Destination, Step, bytes], Callable[[bytes], None]]
"""Called with each request that gets a response: its connection, its broker, its step, and its frame as sent.
The result is called with the frame of the response."""

COORDINATED: Final = frozenset(
    {
        ApiKey.FIND_COORDINATOR,
        ApiKey.OFFSET_FETCH,
        ApiKey.OFFSET_COMMIT,
        ApiKey.JOIN_GROUP,
        ApiKey.SYNC_GROUP,
        ApiKey.HEARTBEAT,
        ApiKey.CONSUMER_GROUP_HEARTBEAT,
        ApiKey.INIT_PRODUCER_ID,
        ApiKey.ADD_PARTITIONS_TO_TXN,
        ApiKey.ADD_OFFSETS_TO_TXN,
        ApiKey.TXN_OFFSET_COMMIT,
        ApiKey.END_TXN,
    }
)
"""APIs whose requests a coordinator may refuse until it is ready. A broker takes no other request of the
connection before it has responded, so nothing is lost by waiting for the response."""
_PASSING: Final = frozenset({14, 15, 51})
"""COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE, CONCURRENT_TRANSACTIONS."""
_NOT_COORDINATOR: Final = 16
"""The only broker of a cluster responds with it until it has loaded the group."""
_LOOK_SECONDS: Final = 0.1
"""How long a request that waits for writes may not notice a stop."""
_RETRY_SECONDS: Final = 0.05
_MAX_RECONNECTS: Final = 3
"""How many consecutive reconnects are allowed without a response between them."""


@dataclass(slots=True, eq=False)
class _Copy:
    """The state of one copy of the capture, used by all its connections."""

    sessions: list[dict[str, SideSessions]]
    """The sessions at the targets: for each side, by captured broker."""
    identities: list[Identities]
    ended: set[int] = field(default_factory=set)
    """The places of the connections that have ended in this round: played to their end, or given up."""
    first_open: int = 0
    """The lowest place of a connection that has not ended in this round."""
    started: int = 0
    suffix: bytes = b""
    """A suffix for the client ids of this copy. Empty for the first copy."""

    written: set[int] = field(default_factory=set)
    """The places of the writes that are done in this round: they got a response, or never will."""
    first_unwritten: int = 0
    progress: asyncio.Event = field(default_factory=asyncio.Event)

    def begin(self, absent: Iterable[int]) -> None:
        """Begin a round. `absent` are the writes that are not played."""
        self.ended, self.first_open, self.started = set(), 0, 0
        self.written, self.first_unwritten = set(absent), 0
        self.wrote()

    def wrote(self, *places: int) -> None:
        self.written.update(places)
        while self.first_unwritten in self.written:
            self.first_unwritten += 1
        self.progress.set()

    def end(self, place: int) -> None:
        self.ended.add(place)
        while self.first_open in self.ended:
            self.first_open += 1


@dataclass(slots=True, eq=False)
class _LiveConnection:
    """The playback of one captured connection. It has at most one open connection to each side."""

    captured: PlayedConnection
    places: Sequence[Destination]
    sessions: list[SideSessions]
    live: list[TargetConnection | None]
    copy: _Copy
    failures: int = 0
    sent: list[int] = field(default_factory=list)


class Player:
    """Plays connections at one target, or at two.

    Args:
        sides: the targets. Each target gets the same requests. The next request waits for all targets.
        copies: how many times each connection is played at the same time.
        rounds: how many times everything is played, one after another.
        earlier: the fetches from which sessions are built, each with its captured broker.
        own: suffixes for the group ids and for the transactional ids of all copies.
    """

    def __init__(
        self,
        connections: Sequence[PlayedConnection],
        sides: Sequence[TargetSide],
        routes: Route,
        pace: Pace,
        *,
        copies: int = 1,
        rounds: int = 1,
        earlier: Iterable[tuple[str, Step]] = (),
        own: tuple[bytes, bytes] = (b"", b""),
        on_sent: OnSent | None = None,
    ) -> None:
        self._on_sent = on_sent
        self.connections = connections
        self._sides = sides
        self._routes = routes
        self._pace = pace
        self._by_after = sorted(connections, key=lambda connection: connection.after)
        self._copies = []
        for number in range(1, copies + 1):
            suffix = b"-%d" % number if number > 1 else b""
            identities = [Identities(own[0] + suffix, own[1] + suffix) for _ in sides]
            self._copies.append(_Copy([{} for _ in sides], identities, suffix=suffix))
        self._rounds = rounds
        self._earlier = list(earlier)
        steps = [step for connection in connections for step in connection.steps]
        writes = range(max((step.after_writes for step in steps), default=0))
        self._absent = set(writes).difference(step.write for step in steps)
        self.total = len(steps) * copies * rounds
        self.sent = 0
        self.left_out: Counter[LeftOut] = Counter()
        """Steps that could not be played, for reasons that show only during the run."""
        self.errors: Counter[str] = Counter()
        """How often each error line of failed connections occurred."""
        self.timed_out = False
        self.stopped_at: float | None = None
        """The time of the first step that was not sent because the run was stopped."""
        self.seconds = 0.0
        """From the first connection to the last response."""

    @property
    def missed(self) -> Counter[LeftOut]:
        """The steps that could not be played, of one of the copies and rounds."""
        times = self._rounds * len(self._copies)
        return Counter({each: -(-count // times) for each, count in self.left_out.items()})

    async def play(self) -> None:
        began = perf_counter()
        for _ in range(self._rounds):
            if self._pace.stopped:
                break
            self._pace.start()
            async with asyncio.TaskGroup() as lines:
                for copy in self._copies:
                    copy.begin(self._absent)
                    self._build_sessions(copy)
                    self._start(copy, lines)
            for copy in self._copies:  # a stop lets no more connections start
                for connection in self._by_after[copy.started :]:
                    self._stop_at(connection.steps[0].at if connection.steps else inf)
        self.seconds = perf_counter() - began

    def _build_sessions(self, copy: _Copy) -> None:
        """Build the sessions that the fetches continue. The targets get them with the next fetch."""
        places = {connection.broker: self._routes[connection.name] for connection in self.connections}
        for broker, step in self._earlier:
            for number, place in enumerate(places.get(broker, ())):
                sessions = copy.sessions[number].setdefault(broker, SideSessions())
                self._sides[number].frame(step, place, sessions)

    def _start(self, copy: _Copy, lines: asyncio.TaskGroup) -> None:
        """Start all connections that may start now.

        If some had ended in the capture before another one began, it starts only after they have ended here,
        too.
        """
        order = self._by_after
        while copy.started < len(order) and order[copy.started].after <= copy.first_open:
            copy.started += 1
            lines.create_task(self._line(order[copy.started - 1], copy, lines))

    async def _line(self, captured: PlayedConnection, copy: _Copy, lines: asyncio.TaskGroup) -> None:
        sessions = [by_broker.setdefault(captured.broker, SideSessions()) for by_broker in copy.sessions]
        line = _LiveConnection(
            captured, self._routes[captured.name], sessions, [None] * len(self._sides), copy
        )
        try:
            await self._steps(line)
        except TargetError as error:
            self.timed_out |= isinstance(error, SilentError)
            self.errors[str(error)] += 1
        finally:
            for live in line.live:
                if live is not None:
                    await live.finish()
            copy.wrote(*(step.write for step in captured.steps))
        copy.end(captured.place)
        self._start(copy, lines)

    async def _steps(self, line: _LiveConnection) -> None:
        for number, step in enumerate(line.captured.steps):
            await self._pace.until(step.at)
            await self._settle(line, step.in_flight)
            await self._written(line, step)
            await self._pace.admit(step.at)
            if self._pace.stopped:
                self._stop_at(step.at)
                break
            await self._send(line, step, reverse=bool(number % 2))
        await self._settle(line, 0)

    def _stop_at(self, at: float) -> None:
        self.stopped_at = min(at, inf if self.stopped_at is None else self.stopped_at)

    async def _written(self, line: _LiveConnection, step: Step) -> None:
        """Wait until the writes before a step are done. A stop ends the wait."""
        while line.copy.first_unwritten < step.after_writes and not self._pace.stopped:
            line.copy.progress.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_SECONDS):
                    await line.copy.progress.wait()
            await self._settle(line, step.in_flight)

    async def _settle(self, line: _LiveConnection, most: int) -> None:
        """Wait until no side has more than `most` requests in flight. Drop failed and expired connections."""
        for number, live in enumerate(line.live):
            if live is None:
                continue
            expired = perf_counter() >= live.expires_at
            try:
                if live.outstanding > (0 if expired else most):
                    await live.until(0 if expired else most)
            except TargetError as error:
                self.errors[str(error)] += 1
            if expired and not live.closed:
                await live.finish()
                line.live[number] = None
            elif live.closed:
                self._sides[number].lost += live.outstanding
                line.copy.wrote(*line.sent)
                line.live[number] = None
                if live.silent:
                    raise SilentError(f"{live.address}: gave up {line.captured.name}")
                line.failures = 0 if live.responses else line.failures + 1
                if line.failures > _MAX_RECONNECTS:
                    raise TargetError(
                        f"{live.address}: closes every connection; gave up {line.captured.name}"
                    )

    async def _send(self, line: _LiveConnection, step: Step, *, reverse: bool) -> None:
        """Send a step to every side, or to none. The order of the sides changes with every step."""
        each = zip(self._sides, line.places, line.sessions, strict=True)
        frames = [side.frame(step, place, sessions) for side, place, sessions in each]
        if any(frame is None for frame in frames):
            self.left_out[LeftOut(step.api_key, EARLIER)] += 1
            return
        for number, place in enumerate(line.places):
            if line.live[number] is None:
                line.live[number] = await self._connect(number, place)
        order = range(len(self._sides))
        for number in reversed(order) if reverse else order:
            live, built = line.live[number], frames[number]
            if live is not None and built is not None:
                frame = own_client(line.copy.identities[number].frame(step, built[0]), line.copy.suffix)
                watch = None
                if self._on_sent is not None and step.has_response:
                    watch = self._on_sent(line.captured, line.places[number], step, frame)
                receive = partial(self._receive, line, number, step, built[1], watch)
                self._sides[number].tally.sent(step.api_key, len(frame))
                if step.api_key in COORDINATED and step.has_response:
                    await self._coordinated(self._sides[number], live, step, frame, receive)
                else:
                    live.send(frame, receive if step.has_response else None)
        self.sent += 1
        if step.write >= 0:
            line.sent.append(step.write)
            if not step.has_response:
                line.copy.wrote(step.write)

    def _receive(
        self,
        line: _LiveConnection,
        number: int,
        step: Step,
        session: Session | None,
        watch: Callable[[bytes], None] | None,
        frame: bytes,
        seconds: float,
    ) -> None:
        """Count a response and its errors. Update the session of its fetch, and the ids."""
        side = self._sides[number]
        line.copy.identities[number].learn(step, frame)
        if number == 0 and step.write >= 0:
            line.copy.wrote(step.write)
        if watch is not None:
            watch(frame)
        side.heard[line.places[number].address] = perf_counter()
        side.tally.answered(step.api_key, len(frame), seconds)
        if step.api_key != ApiKey.FETCH:
            side.tally.failed(step.api_key, read_errors(step.api_key, step.version, (frame,)))
            return
        response = read_fetch(step.version, step.isolation_level, (frame,))
        side.tally.fetched(response)
        if session is not None:
            if response is None:
                session.responded(-1, 0)
            else:
                session.responded(response.error_code, response.session_id)

    async def _connect(self, side: int, place: Destination) -> TargetConnection:
        live = await self._sides[side].target.access.connect(place.address)
        live.on_silence = partial(self._silent, self._sides[side], place.address)
        return live

    def _silent(self, side: TargetSide, address: Address, sent_at: float) -> None:
        """Stop the run if a broker has sent nothing since `sent_at`, the time of a request that is late."""
        self.timed_out = True
        if side.heard.get(address, 0.0) <= sent_at:
            self._pace.stop()

    async def _coordinated(
        self, side: TargetSide, live: TargetConnection, step: Step, frame: bytes, receive: OnResponse
    ) -> None:
        """Send a request to a coordinator, again and again while it is not ready, as a client does.

        A coordinator loads its groups and transactions after a start, and a new cluster has none until its
        first client asks. A transaction ends some time after the response to EndTxn. Only the last response
        counts.
        """
        while True:
            got: list[tuple[bytes, float]] = []
            live.send(frame, lambda response, seconds: got.append((response, seconds)))  # noqa: B023 - awaited
            with suppress(TargetError):  # `_settle` reports a lost connection
                await live.until(0)
            if not got or not side.patience or self._pace.stopped or not _passes(side, step, got[0][0]):
                break
            side.patience -= 1
            await asyncio.sleep(_RETRY_SECONDS)
        for response in got:
            receive(*response)


def _passes(side: TargetSide, step: Step, response: bytes) -> bool:
    """Return whether a response has only an error that passes by itself, and that was not captured."""
    errors = read_errors(step.api_key, step.version, (response,))
    captured = step.errors or Errors()
    now = set() if errors is None else {*errors.whole, *errors.entries}
    passing = _PASSING if len(side.target.brokers) > 1 else _PASSING | {_NOT_COORDINATOR}
    return bool(now & passing and not now & {*captured.whole, *captured.entries})
