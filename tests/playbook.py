"""Plays a connection step by step: bytes from the client or broker, and the exact bytes that must result.

    play = Playbook()
    play.client(request).to_broker(request)
    play.broker(response).to_client(response)

Every step is played at once. The test must name the output before the next step. So extra and missing bytes
are both detected. A failure shows expected and real output frame by frame, with the contents of fetches.
"""

from collections.abc import Callable, Iterable
from difflib import ndiff
from itertools import count
from typing import Any, Final, Self

from proxy.core.budget import RequestBudget
from proxy.core.connection import MAX_REQUEST_BYTES, Connection
from proxy.core.eligibility import BrokerVersions, SessionLimits
from proxy.core.events import Event
from proxy.core.histograms import Measured
from proxy.core.leaders import Leaders
from proxy.protocol.addresses import Resolve
from proxy.protocol.api import ApiKey
from proxy.protocol.primitives import encode_compact_string, encode_string
from tests.connections import connect
from tests.frames import Want, entry, fetch, fetch_response, framed
from tests.model import wire
from tests.model.broker import ModelBroker
from tests.model.primitives import WireError
from tests.twin import Twin

SESSION_ID: Final = 77
T: Final[list[Want]] = [("t", 0), ("t", 1), ("u", 0)]
HOT: Final[list[Want]] = [("t", 0), ("t", 1, 9), ("u", 0)]


def request(api_key: int, version: int, correlation: int, body: bytes = b"", client: bytes = b"c") -> bytes:
    """Build a request with header v1.

    It is used for APIs without flexible versions, and if nothing parses the body.
    """
    head = api_key.to_bytes(2) + version.to_bytes(2) + correlation.to_bytes(4, signed=True)
    return framed(head + len(client).to_bytes(2) + client + body)


def response(correlation: int, body: bytes = b"") -> bytes:
    """Build a response with header v0."""
    return framed(correlation.to_bytes(4, signed=True) + body)


def produce(correlation: int, acks: int, size: int = 40) -> bytes:
    """Build a Produce v3 request without a transaction."""
    return request(ApiKey.PRODUCE, 3, correlation, b"\xff\xff" + acks.to_bytes(2, signed=True) + bytes(size))


def join_group(correlation: int, version: int, *timeouts_ms: int) -> bytes:
    """Build the beginning of a JoinGroup request. From v1 on it has two timeouts."""
    tags, name = (b"\0", encode_compact_string(b"g")) if version >= 6 else (b"", encode_string(b"g"))
    body = b"".join(timeout.to_bytes(4) for timeout in timeouts_ms)
    return request(ApiKey.JOIN_GROUP, version, correlation, tags + name + body + bytes(4))


def api_versions(
    release: str, correlation: int = 0, version: int = 0, *, client_id: str = "c"
) -> tuple[bytes, bytes]:
    """Return an ApiVersions request, and the response that a broker of the given release sends."""
    asked = request(18, version, correlation, client=client_id.encode())
    return asked, framed(ModelBroker(release).handle(asked[4:], 0.0))


def split(data: bytes) -> list[bytes]:
    """Split the data into frames. An incomplete frame comes last."""
    frames = []
    while data:
        size = 4 + int.from_bytes(data[:4])
        frames.append(data[:size])
        data = data[size:]
    return frames


class Playbook:
    """One connection between a client and a broker through the gateway, played step by step.

    Args:
        sessions: the switch and the limits of sessions. By default ten sessions, switched on.
        resolve: returns the broker address that clients are given.
        opening: returns whether a listener is being opened.
        max_request_bytes: the longest frame that the client may send.
        request_budget: the limit of bytes of incomplete fetches.
        versions: the broker features that other connections have learned.
        leaders: the partition leaders that all connections share.
        core: the core to test. By default a core with the fast path and a core without it are compared.
        more: fields of `Common` and `BrokerInfo`, such as `stages` or `host`.
    """

    def __init__(
        self,
        sessions: SessionLimits | None = None,
        *,
        resolve: Resolve | None = None,
        opening: Callable[[int], bool] = lambda _: False,
        max_request_bytes: int = MAX_REQUEST_BYTES,
        request_budget: RequestBudget | None = None,
        versions: BrokerVersions | None = None,
        leaders: Leaders | None = None,
        core: type[Connection | Twin] = Twin,
        **more: Any,
    ) -> None:
        self.sessions = sessions or SessionLimits(max_sessions=10)
        self.measured = Measured()
        make: Any = connect if core is Connection else core
        self.connection: Any = make(
            sessions=self.sessions,
            resolve=resolve,
            opening=opening,
            max_request_bytes=max_request_bytes,
            measured=self.measured,
            request_budget=request_budget,
            versions=versions,
            leaders=leaders,
            **more,
        )
        self.now = 0.0
        self._asked: dict[bytes, tuple[int, int]] = {}
        self._sent = {"client": 0, "broker": 0}

    # Steps

    def client(self, *frames: bytes, chunk: int = 1 << 30) -> Self:
        """Send `frames` from the client, in pieces of at most `chunk` bytes."""
        data = self._settled(b"".join(frames))
        self._sent["client"] += len(data)
        for at in range(0, len(data), chunk):
            self.connection.receive_client(data[at : at + chunk], self.now)
        return self

    def broker(self, *frames: bytes, chunk: int = 1 << 30) -> Self:
        """Send `frames` from the broker, in pieces of at most `chunk` bytes."""
        data = self._settled(b"".join(frames))
        self._sent["broker"] += len(data)
        for at in range(0, len(data), chunk):
            self.connection.receive_broker(data[at : at + chunk], self.now)
        return self

    def close(self) -> Self:
        """Close the connection as if the client had left, or as if the gateway were about to stop."""
        self._settled(b"")
        self.connection.close_session(self.now)
        return self

    def to_broker(self, *frames: bytes, more: bool = False) -> Self:
        """Check that the broker was sent exactly these frames, and that the client was sent nothing.

        With `more`, do not check the client.
        """
        got = self.takes_broker()
        for frame in split(got):
            if len(frame) >= 12:
                self._asked[frame[8:12]] = int.from_bytes(frame[4:6]), int.from_bytes(frame[6:8])
        due = b"".join(frames)
        if got != due:
            raise AssertionError(_difference(self._told_requests(due), self._told_requests(got), due, got))
        return self if more else self._quiet("client")

    def to_client(self, *frames: bytes, more: bool = False) -> Self:
        """Check that the client was sent exactly these frames, and that the broker was sent nothing.

        With `more`, do not check the broker.
        """
        got = self.takes_client()
        due = b"".join(frames)
        if got != due:
            raise AssertionError(_difference(self._told_responses(due), self._told_responses(got), due, got))
        return self if more else self._quiet("broker")

    def nothing(self) -> Self:
        """Check that nothing was sent to either side."""
        return self._quiet("client")._quiet("broker")

    def takes_broker(self) -> bytes:
        """Return the bytes that were sent to the broker since the last call.

        Used by tests that read the bytes.
        """
        return b"".join(map(bytes, self.connection.drain_broker()))

    def takes_client(self) -> bytes:
        """Return and clear the bytes sent to the client."""
        return b"".join(map(bytes, self.connection.drain_client()))

    def events(self, *kinds: type[Any]) -> list[Event]:
        """Return the events of the given kinds since the last call."""
        return [event for event in self.connection.drain_events() if not kinds or isinstance(event, kinds)]

    # What begins most transcripts

    def knows(self, release: str = "4.3", client_id: str = "c") -> Self:
        """Let the client ask for ApiVersions, so that the connection knows both peers."""
        asked, told = api_versions(release, client_id=client_id)
        self.client(asked).to_broker(asked)
        return self.broker(told).to_client(told)

    def exchange(self, asked: bytes, told: bytes) -> Self:
        """Check that a request and its response are forwarded unchanged."""
        self.client(asked).to_broker(asked)
        return self.broker(told).to_client(told)

    def established(
        self, version: int, wants: Iterable[Want], *, release: str = "4.3", session_id: int = SESSION_ID
    ) -> Self:
        """Let the client fetch the partitions `wants`, until the broker has given the gateway a session.

        Every high watermark is 5.
        """
        wants = list(wants)
        self.knows(release)
        asked = fetch(version, *wants, correlation=3)
        while (sent := self.client(asked).takes_broker()) == asked:  # a short list waits a little
            told = full(version, wants, correlation_id=3)
            self.broker(told).to_client(told)
        assert sent == asks(version, wants, (0, 0), correlation=3)
        self.broker(full(max(version, 7), wants, correlation_id=3, session_id=session_id))
        return self.to_client(full(version, wants, correlation_id=3))

    # What went wrong

    def _settled(self, data: bytes) -> bytes:
        self._quiet("client")._quiet("broker")
        return data

    def _quiet(self, side: str) -> Self:
        take, tell = (
            (self.takes_client, self._told_responses)
            if side == "client"
            else (self.takes_broker, self._told_requests)
        )
        left = take()
        assert not left, f"the {side} was sent more: {tell(left)}"
        return self

    def _told_requests(self, data: bytes) -> list[str]:
        return [_tell_request(frame) for frame in split(data)]

    def _told_responses(self, data: bytes) -> list[str]:
        return [_tell_response(frame, *self._asked.get(frame[4:8], (-1, -1))) for frame in split(data)]


def asks(
    version: int,
    wants: Iterable[Want],
    session: tuple[int, int],
    *,
    forget: Iterable[tuple[str, int]] = (),
    **fields: Any,
) -> bytes:
    """Build a fetch as the gateway sends it. A fetch of v4 to v6 is sent as v7."""
    return fetch(max(version, 7), *wants, session=session, forget=forget, **fields)


def full(version: int, wants: Iterable[Want], hw: int = 5, **fields: Any) -> bytes:
    """Build a full response for `wants`, with the same high watermark for each partition.

    Consecutive partitions of a topic share one topic element.
    """
    elements: list[tuple[str, list[wire.PartitionData]]] = []
    for name, index, *_ in wants:
        data = entry(index, hw) if version >= 5 else entry(index, hw, log_start_offset=-1)
        if elements and elements[-1][0] == name:
            elements[-1][1].append(data)
        else:
            elements.append((name, [data]))
    return fetch_response(version, *elements, **fields)


def turn(
    play: Playbook,
    version: int,
    wants: list[Want],
    sent: bytes,
    told: bytes,
    given: bytes,
    **fields: Any,
) -> None:
    """Play one fetch of the client through the gateway, and check the bytes on both sides.

    Args:
        play: the connection.
        version: the version of the client's fetch.
        wants: the partitions that the client fetches.
        sent: the request that the broker must get.
        told: the broker's response.
        given: the response that the client must get.
        fields: other fields of the client's fetch.
    """
    play.client(fetch(version, *wants, **fields)).to_broker(sent)
    play.broker(told).to_client(given)


def passes(play: Playbook, version: int, wants: list[Want], correlation: int = 50, **fields: Any) -> None:
    """Check that a fetch and its response are forwarded unchanged."""
    asked = fetch(version, *wants, correlation=correlation, **fields)
    play.exchange(asked, full(version, wants, correlation_id=correlation))


correlations = count(1000).__next__
"""A function that returns the next correlation id, from 1000 on. Transcripts use lower ids."""


def _difference(expected: list[str], got: list[str], due: bytes, data: bytes) -> str:
    """Describe the differences between expected and sent frames, frame by frame.

    If the frames have the same contents, show the bytes.
    """
    lines = [line for line in ndiff(expected, got) if line[0] in "-+"]
    return "\n".join(["- due, + sent:", *(lines or [f"- {due.hex()}", f"+ {data.hex()}"])])


def _tell_request(frame: bytes) -> str:
    try:
        asked = wire.decode_request(frame[4:])
    except (WireError, ValueError, IndexError):
        return f"{frame[:24].hex()}... ({len(frame)} bytes)"
    listed = [
        f"{topic.topic or topic.topic_id.rstrip(bytes(1)).decode()}-{part.partition}@{part.fetch_offset}"
        for topic in asked.topics
        for part in topic.partitions
    ]
    forgotten = [
        f"{topic.topic or topic.topic_id.rstrip(bytes(1)).decode()}-{index}"
        for topic in asked.forgotten
        for index in topic.partitions
    ]
    session = asked.session_id, asked.session_epoch
    return f"fetch v{asked.version} #{asked.correlation_id} {session} {listed} forget {forgotten}"


def _tell_response(frame: bytes, api_key: int, version: int) -> str:
    correlation = int.from_bytes(frame[4:8], signed=True)
    if api_key != wire.FETCH:
        return f"#{correlation} {frame[8:24].hex()}... ({len(frame)} bytes)"
    try:
        told = wire.decode_response(frame[4:], version)
    except (WireError, ValueError, IndexError):
        return f"#{correlation} no fetch v{version}: {frame.hex()}"
    entries = [
        f"{topic.topic or topic.topic_id.rstrip(bytes(1)).decode()}-{data.partition_index} "
        f"error={data.error_code} hw={data.high_watermark} records={len(data.records or b'')}"
        for topic in told.topics
        for data in topic.partitions
    ]
    head = f"error={told.error_code} id={told.session_id} throttle={told.throttle_time_ms}"
    return f"#{correlation} {head} {entries}"


def named(play: Playbook, software: str) -> Playbook:
    """Let the client ask for ApiVersions v3, with the name of its software."""
    name, version = software.encode(), b"1.0"
    body = b"\0" + b"".join(bytes((len(text) + 1,)) + text for text in (name, version)) + b"\0"
    asked = request(18, 3, 0, body)
    play.client(asked).to_broker(asked)
    highest = {1: 18, 9: 9, 10: 6}  # Fetch, OffsetFetch, FindCoordinator
    ranges = bytes((len(highest) + 1,))
    ranges += b"".join(key.to_bytes(2) + bytes(2) + most.to_bytes(2) + b"\0" for key, most in highest.items())
    told = framed((0).to_bytes(4) + (0).to_bytes(2) + ranges + (0).to_bytes(4) + b"\0")
    play.broker(told).to_client(told)
    return play
