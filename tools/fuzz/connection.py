"""The fuzzer's targets `client`, `broker`, `core` and `sessions`: one connection of the gateway, no sockets.

An input is a list of steps: a byte for the action, then its arguments. Frames get a correct length, and
responses get the expected correlation id. So most frames are read beyond these two fields. In raw steps, the
length and the correlation id come from the input. `ModelBroker` gives correct responses.

In the target `sessions`, clients have sessions with the gateway, and can continue them on their next
connection.
"""

import random
from collections.abc import Callable
from functools import lru_cache, partial
from typing import ClassVar, Final

from proxy.core.budget import RequestBudget
from proxy.core.connection import BrokerInfo, Common, Connection
from proxy.core.eligibility import SessionLimits
from proxy.core.histograms import Measured
from proxy.features.client_sessions.cache import FetchSessionCache
from proxy.features.client_sessions.manager import FetchManager
from proxy.features.client_sessions.session import FetchSession
from proxy.features.client_sessions.stage import ClientSessions
from proxy.features.limits.fetch_floors import FetchLimits
from proxy.features.limits.max_fetch_bytes import MaxFetchBytes
from tests.frames import fetch, topic_id
from tests.model.broker import ConnectionClosedError, ModelBroker
from tests.model.primitives import WireError
from tools.fuzz.seeds import frames
from tools.fuzz.target import FuzzTarget

CLIENT_FRAME, CLIENT_RAW, BROKER_FRAME, BROKER_RAW, MODEL, FETCH, OTHER, CONTROL, SESSION, RECONNECT = range(
    10
)
_CLIENT: Final = (CLIENT_FRAME, CLIENT_RAW, FETCH, OTHER, CONTROL)
_BROKER: Final = (BROKER_FRAME, BROKER_RAW, MODEL, FETCH, OTHER, CONTROL)
_ALL: Final = (*range(8), FETCH, MODEL)
_SESSIONS: Final = (*range(10), SESSION, SESSION, MODEL, MODEL)
_VERSIONS: Final = (4, 6, 7, 11, 12, 13, 15, 16, 17, 18)
_SESSION_VERSIONS: Final = (7, 11, 12, 13, 16, 18)
_TOPIC: Final = "t"
_PARTITIONS: Final = 6
_BUDGET: Final = 1 << 16
_BROKER_SLOTS: Final = 1000
_LITTLE_ROOM: Final = 8
_EVICTION_MS: Final = 1000
_MODEL_ANSWERS: Final = 16
_PIECES: Final = 200
"""Only so many pieces of an input are cut. Each takes 20 to 40 µs."""
_CPU_PER_BYTE: Final = 100e-6
"""CPU seconds for each byte of a script. Four bytes can send a fetch, which takes 200 µs."""
_MOST_ANSWERS: Final = 4096
_FETCH_KEY: Final = b"\0\1"
_API_VERSIONS_KEY: Final = b"\0\x12"
_MEASURED: Final = Measured()
_RELEASES: Final = ("4.3", "3.9", "2.8", "1.1", "1.0")


_Step = tuple[bytes, float]
"""A fetch and its time in seconds. Instead of a fetch, b"" means that a record is appended."""


class _Model:
    """A model broker with one topic that remembers its responses: it would be as slow as the gateway."""

    _known: ClassVar[dict[tuple[object, _Step], tuple[object, bytes]]] = {}
    """By state and step: the next state, and the response. The first state is the broker's settings."""

    def __init__(self, release: str, slots: int) -> None:
        self._began = (release, slots)
        self._state: object = self._began
        self._broker: ModelBroker | None = None
        self._behind: list[_Step] = []
        """Steps that were answered from memory. The broker takes them when it is needed next."""

    def answer(self, request: bytes, now: float) -> bytes:
        return self._take((request, now))

    def append(self) -> None:
        """Append a record to the model broker's log."""
        self._take((b"", 0.0))

    def _take(self, step: _Step) -> bytes:
        self._behind.append(step)
        found = self._known.get((self._state, step))
        if found is None:
            if len(self._known) >= _MOST_ANSWERS:
                self._known.clear()
            found = self._known[self._state, step] = object(), self._catch_up()
        self._state, answer = found
        return answer

    def _catch_up(self) -> bytes:
        broker = self._broker = self._broker or _model_broker(*self._began)
        answer = b""
        for request, now in self._behind:
            if not request:
                broker.partition(_TOPIC, 1).append(b"y" * 20)
                continue
            try:
                answer = broker.handle(request, now)
            except (WireError, ConnectionClosedError, ValueError, OverflowError, KeyError, IndexError):
                answer = request[4:8]  # the model only handles requests that a broker understands
        self._behind.clear()
        return answer


class _ConnectionScript:
    """A script for one connection. The bytes of a fuzzer's input choose the actions on the connection."""

    def __init__(self, data: bytes, steps: tuple[int, ...], *, answered: bool, serves: bool) -> None:
        self._data, self._at = data, 0
        self._steps = steps
        self._answered = answered
        options = self._byte()
        ceilings = {"": 900} if options & 3 == 1 else {}
        self._limits = SessionLimits(max_sessions=options & 3, on=not options & 4)
        self._ceiling = partial(MaxFetchBytes, FetchLimits(max_bytes=ceilings))
        self._budget = RequestBudget(_BUDGET)
        self._options = options
        self._manager: FetchManager | None = None
        self._broker_slots = _BROKER_SLOTS
        if serves:
            kind = self._byte()
            self._broker_slots = 0 if kind & 1 else _BROKER_SLOTS
            room = _LITTLE_ROOM if kind & 4 else _BUDGET
            cache = FetchSessionCache(
                random.Random(kind).randint,  # noqa: S311 - the same for the same input
                slots=1 if kind & 2 else _BUDGET,
                eviction_ms=_EVICTION_MS,
                max_partitions=room,
            )
            self._manager = FetchManager(cache, asks_broker=not kind & 8)
        self._serves = () if self._manager is None else (partial(ClientSessions, self._manager),)
        self._connection = self._connect()
        self._release = _RELEASES[(options >> 6) % len(_RELEASES)]
        self._model: _Model | None = None
        self._asked = bytearray()
        """Bytes that were sent to the broker. The model has not answered them yet."""
        self._now = 0.0
        self._chunk = 0
        """The size of the pieces that the gateway reads, in bytes. 0 if it reads all at once."""
        self._pieces = 0

    def _connect(self) -> Connection:
        options = self._options
        return Connection(
            sessions=self._limits,
            resolve=_resolve if options & 8 else None,
            common=Common(
                max_request_bytes=100_000,
                maybe_not_kafka=bool(options & 16),
                request_budget=self._budget if options & 32 else None,
                stages=(*self._serves, self._ceiling),
            ),
            broker=BrokerInfo(name="b:1", measured=_MEASURED),
        )

    def run(self) -> None:
        while self._at < len(self._data):
            self._step()
        self._end()

    def _byte(self) -> int:
        if self._at >= len(self._data):
            return 0
        self._at += 1
        return self._data[self._at - 1]

    def _bytes(self) -> bytes:
        size = self._byte() | self._byte() << 8
        taken = self._data[self._at : self._at + size]
        self._at += size
        return taken

    def _step(self) -> None:
        kind = self._byte()
        match self._steps[kind % len(self._steps)]:
            case 0:
                content = self._bytes()
                self._client(len(content).to_bytes(4) + content)
            case 1:
                self._client(self._bytes())
            case 2:
                self._broker(self._response(self._bytes()))
            case 3:
                self._broker(self._bytes())
            case 4:
                self._answer(self._byte(), self._byte())
            case 5:
                self._fetch(self._byte(), self._byte(), self._byte())
            case 6:
                self._other(self._byte(), self._byte())
            case 8:
                self._session(self._byte(), self._byte(), self._byte(), self._byte())
            case 9:
                self._reconnect()
            case _:
                self._control(self._byte())
        if self._answered:
            for _ in range(_MODEL_ANSWERS):
                if not self._answer(0, 0):
                    break

    def _client(self, data: bytes) -> None:
        self._feed(self._receive_client, data)

    def _receive_client(self, data: bytes, now: float) -> None:
        done, out = self._connection.fast_path.request(data, now)
        self._asked += out
        if done < len(data):
            self._connection.receive_client(data[done:], now)
        self._go_on()

    def _go_on(self) -> None:
        """Process the client's bytes that were left for the next turn of the event loop."""
        while self._connection.state.goes_on:
            self._connection.go_on(self._now)

    def _broker(self, data: bytes) -> None:
        self._feed(self._receive_broker, data)

    def _receive_broker(self, data: bytes, now: float) -> None:
        fast_path = self._connection.fast_path
        data = fast_path.join(data, now)
        done, _ = fast_path.response(data, fast_path.began, now)
        if done < len(data):
            self._connection.receive_broker(data[done:], now)
        self._go_on()

    def _feed(self, receive: Callable[[bytes, float], None], data: bytes) -> None:
        # Small pieces are for what is between them. More of them bring nothing new, and take all the time.
        step = self._chunk if self._chunk and self._pieces < _PIECES else len(data) or 1
        for at in range(0, len(data), step):
            self._pieces += 1
            receive(data[at : at + step], self._now)
            self._drain()

    def _drain(self) -> None:
        connection = self._connection
        connection.drain_client()
        for piece in connection.drain_broker():
            self._asked += piece
        connection.drain_events()

    def _response(self, content: bytes) -> bytes:
        """Frame a response with the expected correlation id."""
        expected = self._connection.state.queue.expected
        if expected:
            content = expected[0].correlation_id + content
        return len(content).to_bytes(4) + content

    def _answer(self, where: int, mask: int) -> bool:
        """Let the model answer the next request, with one byte changed by `mask`. False: there is none."""
        if len(self._asked) < 4:
            return False
        size = int.from_bytes(self._asked[:4])
        request = bytes(self._asked[4 : 4 + size])
        if len(request) < size or size < 8:
            return False
        del self._asked[: 4 + size]
        response = bytearray(self._model_response(request))
        if mask and len(response) > 4:
            response[4 + where % (len(response) - 4)] ^= mask
        self._broker(len(response).to_bytes(4) + response)
        return True

    def _model_response(self, request: bytes) -> bytes:
        if request[:2] == _FETCH_KEY:
            if self._model is None:
                self._model = _Model(self._release, self._broker_slots)
            return self._model.answer(request, self._now)
        if request[:2] == _API_VERSIONS_KEY:
            return request[4:8] + _api_versions(self._release, request[3])
        return request[4:8]

    def _fetch(self, kind: int, subset: int, offset: int) -> None:
        version = _VERSIONS[kind % len(_VERSIONS)]
        self._client(_fetch_frame(version, _wants(subset, offset), kind))

    def _session(self, kind: int, which: int, subset: int, forgets: int) -> None:
        version = _SESSION_VERSIONS[kind % len(_SESSION_VERSIONS)]
        held: list[FetchSession] = list(self._manager.cache) if self._manager is not None else []
        session = held[which % len(held)] if held and which & 32 else None
        epoch = session.epoch if session is not None else which >> 4 & 1
        epoch = {0: 0, 1: -1, 2: epoch + 1, 3: -7}.get(which >> 6 if kind & 64 else 4, epoch)
        session_id = session.session_id if session is not None else 0
        if kind & 128:
            session_id ^= which
        wants = _wants(subset, which & 3)
        forget = tuple((_TOPIC, index) for index in range(_PARTITIONS) if forgets >> index & 1)
        self._client(_session_frame(version, wants, kind, (session_id, epoch), forget))

    def _reconnect(self) -> None:
        """End the connection and begin another one. The clients' sessions survive the end of a connection."""
        self._end()
        self._asked.clear()
        self._connection = self._connect()

    def _other(self, api_key: int, version: int) -> None:
        content = bytes((0, api_key % 90, 0, version % 20, 0, 0, 0, api_key)) + b"\0\1c" + bytes(version % 7)
        self._client(len(content).to_bytes(4) + content)

    def _control(self, what: int) -> None:
        connection = self._connection
        match what:
            case 0:
                connection.close_session(self._now)
            case 1:
                connection.client_ended()
            case 2:
                connection.broker_ended()
            case 3:
                self._limits.reload(on=not self._limits.on)
            case 4:
                self._limits.crowded = not self._limits.crowded
            case 5 if self._model is not None:
                self._model.append()
            case 6:
                self._model = None
            case _ if what < 128:
                self._now += what / 8
            case _:
                self._chunk = what - 128
        self._drain()
        self._look()

    def _look(self) -> None:
        """Read the state of the connection with all methods and attributes that the gateway uses for this."""
        connection, state = self._connection, self._connection.state
        repr(connection)
        for source, names in (
            (connection, ("due_at",)),
            (state, ("reads_client", "done", "wire", "buffered", "begun", "busy", "session_id")),
            (state, ("session_partitions", "longest_wait")),
        ):
            for name in names:
                getattr(source, name)
        if state.buffered and not state.busy and not state.outstanding:
            raise AssertionError(f"{state.buffered} bytes are buffered of no response")

    def _end(self) -> None:
        self._look()
        connection, state = self._connection, self._connection.state
        if state.buffered < 0:
            raise AssertionError(f"buffered is {state.buffered}")
        connection.ended()
        left = (self._limits.used, self._budget.total, state.buffered)
        if any(left):
            raise AssertionError(f"slots, request budget and buffered bytes that nobody gives back: {left}")
        if self._manager is not None:
            _check(self._manager.cache)


def _check(cache: FetchSessionCache) -> None:
    sessions = list(cache)
    if cache.partitions != sum(session.cached_size for session in sessions):
        raise AssertionError(f"{cache} of {sessions}")
    for session in sessions:
        partitions = session.partitions
        sizes = {len(partitions.requests), len(partitions.high_watermarks), len(partitions.log_starts)}
        if sizes != {len(partitions)} or len(partitions) != session.cached_size:
            raise AssertionError(f"{session}: {sizes}, {session.cached_size} at the last touch")


def _wants(subset: int, offset: int) -> tuple[tuple[str, int, int], ...]:
    """Return partitions as `subset` says; two of its bits set their order. The first has the offset."""
    wants = [
        (_TOPIC, index, offset if index == 0 else 0) for index in range(_PARTITIONS) if subset >> index & 1
    ]
    if subset & 64:
        wants.reverse()
    if subset & 128:
        wants = wants[1:] + wants[:1]
    return tuple(wants)


def _model_broker(release: str, slots: int) -> ModelBroker:
    broker = ModelBroker(release, slots=slots)
    topic = broker.create_topic(_TOPIC, _PARTITIONS)
    topic.topic_id = topic_id(_TOPIC)
    topic.partitions[0].append(b"x" * 50)
    return broker


@lru_cache(maxsize=256)
def _api_versions(release: str, version: int) -> bytes:
    return ModelBroker(release).handle(bytes((0, 18, 0, version, 0, 0, 0, 0)), 0.0)[4:]


@lru_cache(maxsize=4096)
def _fetch_frame(version: int, wants: tuple[tuple[str, int, int], ...], correlation: int) -> bytes:
    return fetch(version, *wants, correlation=correlation)


@lru_cache(maxsize=4096)
def _session_frame(
    version: int,
    wants: tuple[tuple[str, int, int], ...],
    correlation: int,
    session: tuple[int, int],
    forget: tuple[tuple[str, int], ...],
) -> bytes:
    return fetch(version, *wants, correlation=correlation, session=session, forget=forget)


def _resolve(node_id: int, host: str, port: int) -> tuple[str, int] | None:
    return None if node_id % 7 == 3 else (f"gate-{host[:8]}", port & 0xFFFF)


def _run(steps: tuple[int, ...], answered: bool, serves: bool, data: bytes) -> None:
    _ConnectionScript(data, steps, answered=answered, serves=serves).run()


def _sized(content: bytes) -> bytes:
    return (len(content) & 0xFFFF).to_bytes(2, "little") + content


def _seeds(steps: tuple[int, ...]) -> list[bytes]:
    """Return seeds: scripts with real frames, and scripts in which a session is created and used."""
    at = {step: number for number, step in enumerate(steps)}
    requests, responses = frames()
    found = []
    if CLIENT_FRAME in at:
        found += [
            bytes([options, at[CLIENT_FRAME]]) + _sized(frame) for frame in requests for options in (3, 11)
        ]
    if BROKER_FRAME in at:
        # Responses are read according to their requests: request Metadata, FindCoordinator and others, then
        # fetch.
        for number, frame in enumerate(responses):
            asked = bytes([at[OTHER], (3, 10, 60, 18, 0, 74, 75)[number % 7], number % 13])
            answer = bytes([at[BROKER_FRAME]]) + _sized(frame[4:])
            found.append(bytes([11]) + asked + answer)
            found.append(bytes([11, at[FETCH], number, 63, 0]) + answer)
    for version in range(len(_VERSIONS)):
        fetches = b"".join(
            bytes([at[FETCH], version, 63, offset]) + (bytes([at[MODEL], 0, 0]) * 3 if MODEL in at else b"")
            for offset in (0, 0, 1, 1, 1)
        )
        for options in (3, 35, 67, 131):
            found.append(bytes([options, at[OTHER], 18, 0]) + fetches + bytes([at[CONTROL], 0]))
    if MODEL in at:  # spoil one byte of one response while a session is created and used
        for spoiled in range(1, 4):
            for where in range(48):
                fetches = b"".join(
                    bytes([at[FETCH], 2 + where % 7, 63, offset, at[MODEL]])
                    + (bytes([where, 0x80]) if number == spoiled else bytes(2))
                    for number, offset in enumerate((0, 0, 1, 1, 1))
                )
                found.append(bytes([3, at[OTHER], 18, 0, at[MODEL], 0, 0]) + fetches)
    return found


def _session_seeds() -> list[bytes]:
    """Make scripts in which clients create sessions, use them, change them and return to them."""
    at = {step: number for number, step in enumerate(_SESSIONS)}

    def session(kind: int, which: int, subset: int, forgets: int = 0) -> bytes:
        return bytes([at[SESSION], kind, which, subset, forgets, at[MODEL], 0, 0])

    record, reconnect = bytes([at[CONTROL], 5]), bytes([at[RECONNECT]])
    found = []
    for version in range(len(_SESSION_VERSIONS)):
        asks = bytes([at[OTHER], 18, 0, at[MODEL], 0, 0])
        begins = asks + session(version, 0, 63) + session(version, 32, 0)
        wrong = session(version | 64, 32 | 128, 1) + session(version | 128, 33, 1)
        for server in range(16):
            for options in (3, 67, 131, 195):
                head = bytes([options, server])
                found.append(head + begins + record + session(version, 33, 2) + session(version, 32, 1, 6))
                found.append(head + begins + reconnect + asks + record + session(version, 32, 0) * 2)
                found.append(head + begins + wrong + session(version, 32, 0, 63) + session(version, 0, 3))
    for where in range(64):  # spoil one byte of one response
        spoiled = bytes([at[SESSION], where % 6, 32, 1, 0, at[MODEL], where, 0x80])
        asks = bytes([3, 9, at[OTHER], 18, 0, at[MODEL], 0, 0])
        found.append(asks + session(where % 6, 0, 63) + record + spoiled + session(where % 6, 32, 0))
    return found + [script[:1] + b"\1" + script[1:] for script in _seeds(_SESSIONS)]


_MODULES: Final = ("proxy.core", "proxy.features.client_sessions", "proxy.protocol", "proxy.session")
TARGETS: Final = (
    *(
        FuzzTarget(
            name=name,
            run=partial(_run, steps, answered, False),
            seeds=partial(_seeds, steps),
            modules=_MODULES,
            cpu_per_byte=_CPU_PER_BYTE,
        )
        for name, steps, answered in (
            ("client", _CLIENT, True),
            ("broker", _BROKER, False),
            ("core", _ALL, False),
        )
    ),
    FuzzTarget(
        name="sessions",
        run=partial(_run, _SESSIONS, False, True),
        seeds=_session_seeds,
        modules=_MODULES,
        cpu_per_byte=_CPU_PER_BYTE,
    ),
)
