"""Plays a script. Each captured connection becomes one connection to each side, with the same requests."""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter
from typing import Final

from proxy.addresses import Address
from proxy.protocol.api import ApiKey
from replay.drive.pacing import Pace
from replay.drive.script import LeftOut, PlayedConnection, Step
from replay.drive.sessions import Session, SideSessions
from replay.drive.side import EARLIER, TargetSide
from replay.drive.target import Destination
from replay.drive.wire import SilentError, TargetConnection, TargetError
from replay.protocol.errors import read_errors
from replay.protocol.fetches import read_fetch
from replay.protocol.naming import own_client, own_ids

Route = Mapping[str, Sequence[Destination]]
"""For each captured connection (by its name), the brokers to connect to: one for each side."""
OnSent = Callable[[PlayedConnection, Destination, Step, bytes], Callable[[bytes], None]]
"""Called with each request that gets a response: its connection, its broker, its step, and its frame as sent.
The result is called with the frame of the response."""

_MAX_RECONNECTS: Final = 3
"""How many consecutive reconnects are allowed without a response between them."""


@dataclass(slots=True, eq=False)
class _Copy:
    """The state of one copy of the capture, used by all its connections."""

    sessions: list[dict[str, SideSessions]]
    """The sessions at the targets: for each side, by captured broker."""
    ended: set[int] = field(default_factory=set)
    """The places of the connections that have ended in this round: played to their end, or given up."""
    first_open: int = 0
    """The lowest place of a connection that has not ended in this round."""
    started: int = 0
    """How many connections were started in this round."""
    suffix: bytes = b""
    """A suffix for the client ids, group ids and transactional ids of this copy. Empty for the first copy."""

    def end(self, place: int) -> None:
        """Record that a connection has ended: it was played to its end, or given up."""
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
    suffix: bytes
    failures: int = 0


class Player:
    """Plays connections at one target, or at two.

    Args:
        connections: the connections to play.
        sides: the targets. Each target gets the same requests. The next request waits for all targets.
        routes: the brokers that the connections go to.
        pace: when requests are sent.
        copies: how many times each connection is played at the same time.
        rounds: how many times everything is played, one after another.
        on_sent: called with each request that gets a response.
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
        on_sent: OnSent | None = None,
    ) -> None:
        self._on_sent = on_sent
        self.connections = connections
        self._sides = sides
        self._routes = routes
        self._pace = pace
        self._by_after = sorted(connections, key=lambda connection: connection.after)
        self._copies = [
            _Copy([{} for _ in sides], suffix=b"-%d" % number if number > 1 else b"")
            for number in range(1, copies + 1)
        ]
        self._rounds = rounds
        self.total = sum(len(connection.steps) for connection in connections) * copies * rounds
        self.sent = 0
        """The number of steps that were sent to every side."""
        self.left_out: Counter[LeftOut] = Counter()
        """The number of steps that could not be played, by reason. These reasons show only during the run."""
        self.errors: Counter[str] = Counter()
        """The error lines of failed connections, each with the number of times that it occurred."""
        self.timed_out = False
        """Whether a broker did not respond in time."""
        self.seconds = 0.0
        """The seconds from the first connection to the last response."""

    async def play(self) -> None:
        """Play all rounds of the script, or until the pace is stopped."""
        began = perf_counter()
        for _ in range(self._rounds):
            if self._pace.stopped:
                break
            self._pace.start()
            async with asyncio.TaskGroup() as lines:
                for copy in self._copies:
                    copy.ended, copy.first_open, copy.started = set(), 0, 0
                    self._start(copy, lines)
        self.seconds = perf_counter() - began

    def _start(self, copy: _Copy, lines: asyncio.TaskGroup) -> None:
        """Start all connections that may start now.

        In the capture, some connections had ended before another one began. That one starts only after they
        have ended in this run, too.
        """
        order = self._by_after
        while copy.started < len(order) and order[copy.started].after <= copy.first_open:
            copy.started += 1
            lines.create_task(self._line(order[copy.started - 1], copy, lines))

    async def _line(self, captured: PlayedConnection, copy: _Copy, lines: asyncio.TaskGroup) -> None:
        sessions = [by_broker.setdefault(captured.broker, SideSessions()) for by_broker in copy.sessions]
        line = _LiveConnection(
            captured, self._routes[captured.name], sessions, [None] * len(self._sides), copy.suffix
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
        copy.end(captured.place)
        self._start(copy, lines)

    async def _steps(self, line: _LiveConnection) -> None:
        for number, step in enumerate(line.captured.steps):
            await self._pace.until(step.at)
            await self._settle(line, step.in_flight)
            await self._pace.admit(step.at)
            if self._pace.stopped:
                break
            await self._send(line, step, reverse=bool(number % 2))
        await self._settle(line, 0)

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
                frame, session = built
                if line.suffix:
                    frame = own_client(
                        own_ids(step.api_key, step.version, frame, step.body, line.suffix), line.suffix
                    )
                watch = None
                if self._on_sent is not None and step.has_response:
                    watch = self._on_sent(line.captured, line.places[number], step, frame)
                self._send_at(self._sides[number], live, step, frame, session, watch)
        self.sent += 1

    async def _connect(self, side: int, place: Destination) -> TargetConnection:
        live = await self._sides[side].target.access.connect(place.address)
        live.on_silence = partial(self._silent, self._sides[side], place.address)
        return live

    def _silent(self, side: TargetSide, address: Address, sent_at: float) -> None:
        """Stop the run if a broker has missed a deadline, and has sent nothing since the late request.

        `sent_at` is the time of the request whose response is late.
        """
        self.timed_out = True
        if side.heard.get(address, 0.0) <= sent_at:
            self._pace.stop()

    @staticmethod
    def _send_at(
        side: TargetSide,
        live: TargetConnection,
        step: Step,
        frame: bytes,
        session: Session | None,
        watch: Callable[[bytes], None] | None,
    ) -> None:
        side.tally.sent(step.api_key, len(frame))
        receive = partial(_receive, side, live.address, step, session, watch)
        live.send(frame, receive if step.has_response else None)


def _receive(
    side: TargetSide,
    address: Address,
    step: Step,
    session: Session | None,
    watch: Callable[[bytes], None] | None,
    frame: bytes,
    seconds: float,
) -> None:
    """Count a response and its errors. Update the session of its fetch."""
    if watch is not None:
        watch(frame)
    side.heard[address] = perf_counter()
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
