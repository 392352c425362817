"""One client's two sockets and the core between them. Everything happens inside the event loop's callbacks.

A `Link` owns a core (`proxy.connection.Connection`), the client's transport and the broker's. What a socket
delivers lands in one buffer shared by the process, is copied out once, and goes to the core; what the core
then has due is written at once. No task, future or coroutine is made per frame; a link makes one task, to
connect.

Back-pressure: a side is read while nothing holds it back (`HOLDS`). A peer that does not read fills its write
buffer, which holds back the other side; the core holds back a client that is too far ahead; `proxy.budget`
holds back brokers while too many bytes of incomplete answers are in memory.
"""

import asyncio
import socket
import ssl
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from enum import IntEnum
from functools import partial
from time import monotonic
from typing import Any, Final, Protocol, cast

from structlog.typing import FilteringBoundLogger

from proxy.budget import Budget
from proxy.captures import Tap
from proxy.capturing import CLIENT
from proxy.connection import Connection
from proxy.events import Event, Fault, SessionLost
from proxy.logs import reason_of, write_event
from proxy.measured import Measured
from proxy.routing import Address
from proxy.session.savings import Sessions
from proxy.tls import asked_for

RECEIVE_BYTES: Final = 262_144
_RECEIVE: Final = memoryview(bytearray(RECEIVE_BYTES))
"""What every socket of the process receives into; nothing stays in it after the callback."""

WRITE_HIGH_WATER: Final = 1_048_576
"""Bytes waiting for one peer from which on the other side is not read."""
CONNECT_SECONDS: Final = 10.0
"""For one address of a broker."""
UNREACHABLE_SECONDS: Final = 0.5
"""How long a client is kept whose broker can't be reached."""
CLOSE_SECONDS: Final = 10.0
"""What a session's close at the broker, and then the last bytes for a slow peer, may take each."""
LINGER_SECONDS: Final = 1.0
"""For a client that has all its bytes to close, too."""

# Why a side is not read: bits, and plain integers, for they are looked at for every frame.
CONNECTING: Final = 1
"""Client: its broker connection does not stand yet."""
CORE: Final = 2
"""Client: the core has enough of its requests."""
PEER_FULL: Final = 4
"""Either: the other side does not take what it has been sent."""
BUDGET: Final = 8
"""Broker: too many bytes of incomplete answers are held in the process."""
OWN_FULL: Final = 32
"""Client: it does not take what it has been sent."""
CLOSING: Final = 16
"""Client: the gateway is leaving."""
HOLDS: Final = {
    CONNECTING: "connecting",
    CORE: "core",
    PEER_FULL: "peer_full",
    BUDGET: "budget",
    OWN_FULL: "own_full",
    CLOSING: "closing",
}


NO_REQUEST: Final = "no request"
IDLE: Final = "idle"


class Phase(IntEnum):
    """How far a link has come; it only goes on."""

    OPEN = 0
    CLOSING = 1
    """Nothing more comes from the client; what is in flight is finished and the session closed."""
    FINISHED = 2
    """Both sockets are told to close."""
    STRUCK = 3
    """Both are closed."""


class Host(Protocol):
    """What a link asks of the gateway that it belongs to."""

    loop: asyncio.AbstractEventLoop
    log: FilteringBoundLogger
    budget: Budget
    sessions: Sessions
    tap: Tap

    def make_core(self, reached_at: str, measured: Measured) -> Connection:
        """Give a core for a new connection; `reached_at` is the gateway's address as the client found it."""

    def measured(self, node_id: int | None) -> Measured:
        """Give what connections to a broker are measured into."""

    def admits(self) -> bool:
        """Tell whether one more client is taken."""

    def arrived(self, link: "Link", shown: Any) -> int | None:
        """Give the broker that a new connection is for; `shown` is its socket as the event loop shows it."""

    async def toward(self, link: "Link", address: Address) -> Mapping[str, Any]:
        """Give what asyncio takes to connect to an address: where it is, or a socket that is connected."""

    def tls_to(self, link: "Link", address: Address) -> Mapping[str, Any]:
        """Give what asyncio takes for TLS to an address; nothing for plain text."""

    def way_of(self, link: "Link") -> Sequence[Address]:
        """Give the addresses to try for a connection, in order."""

    def connected(self, node_id: int | None, address: Address) -> None:
        """Take note that an address answered."""

    def unreachable(self, node_id: int | None, reason: str) -> None:
        """Take note that none did."""

    def faulted(self, fault: Fault) -> None:
        """Count a protocol fault."""

    def happened(self, event: Event, link: "Link") -> None:
        """Keep in words what a connection reports."""

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a task and keep it alive."""

    def opened(self, link: "Link") -> None:
        """Take the link into the gateway's books."""

    def closed(self, link: "Link") -> None:
        """Strike it off: both sockets are closed."""


class Link:
    """A client connection, its broker connection and the core between the two."""

    __slots__ = (
        "_broker",
        "_client",
        "_client_ended",
        "_core_holds",
        "_deadline",
        "_held",
        "_host",
        "_unheard",
        "_whole",
        "active_at",
        "asked_for",
        "broker_address",
        "broker_holds",
        "client_address",
        "client_holds",
        "core",
        "held_changed_at",
        "last_error",
        "last_event",
        "measured",
        "node_id",
        "opened_at",
        "phase",
        "way",
    )

    def __init__(self, host: Host, node_id: int | None) -> None:
        self._host = host
        self._client: asyncio.Transport | None = None
        self._broker: asyncio.Transport | None = None
        self._client_ended = False
        self._core_holds = False
        self._deadline: asyncio.TimerHandle | None = None
        self._held = 0
        self._unheard: Address | None = None
        """Where the broker is that has not said anything yet: whether it takes us can't be told before."""
        self._whole = (False, False)
        """Whether what is due to the client, and to the broker, is written as one: TLS makes a record of each
        piece."""
        self.asked_for = ""
        """The server name in the client's TLS handshake."""
        self.core: Connection
        self.node_id = node_id
        """The broker whose listener the client came to; None: the bootstrap listener. In transparent mode the
        gateway's own number of where the client was going."""
        self.way: tuple[int, Address] | None = None
        """Transparent mode: from which port to where the broker connection goes."""
        self.client_address = ""
        self.broker_address: Address | None = None
        self.client_holds = CONNECTING
        self.broker_holds = 0
        self.held_changed_at = 0.0
        self.last_event = ""
        self.last_error = ""
        """The last thing that went wrong, in words."""
        self.measured: Measured
        self.opened_at = self.active_at = monotonic()
        """When it came, and when a byte last did, from either side."""
        self.phase = Phase.OPEN

    def __repr__(self) -> str:
        broker = self.broker_address or "connecting"
        return f"<Link {self.client_address} -> {broker} {self.phase.name} held={self._held}>"

    # -- the client's side ---------------------------------------------------------------------------------

    def client_connected(self, transport: asyncio.Transport) -> None:
        """Begin: the client is not read until its broker is reached."""
        if not self._host.admits():
            self.phase = Phase.STRUCK
            transport.abort()
            return
        self._client = transport
        # uvloop begins to read after this callback, whatever is said here; the core keeps what comes before
        # the pause.
        self._host.loop.call_soon(self._pause_until_connected)
        transport.set_write_buffer_limits(high=WRITE_HIGH_WATER)
        self.client_address = _name(transport.get_extra_info("peername"))
        self.asked_for = asked_for(transport)
        self._whole = (not transport.can_write_eof(), False)
        self.node_id = self._host.arrived(self, transport.get_extra_info("socket"))
        self.measured = self._host.measured(self.node_id)
        own = _host_of(transport.get_extra_info("sockname"))
        self.core = self._host.make_core(own, self.measured)
        self._host.opened(self)
        self._host.spawn(self._connect())

    def _pause_until_connected(self) -> None:
        if self.client_holds and self._client is not None and not self._client.is_closing():
            self._client.pause_reading()

    def client_received(self, data: bytes) -> None:
        """Take bytes from the client."""
        if self.phase is not Phase.OPEN:
            return
        now = self.active_at = monotonic()
        try:
            self.core.receive_client(data, now)
            self.pump()
        except Exception as error:  # noqa: BLE001 - a defect of ours costs this connection, never the others
            self._broken(error)
        self.measured.requests.append(monotonic() - now)

    def client_ended(self) -> None:
        """Take the end of the client's stream; answers may still be on their way to it."""
        self._client_ended = True
        if self.phase is Phase.OPEN:
            self._tell(self.core.client_ended)
            self._pass_end()
        elif self.phase is Phase.FINISHED and self._client is not None:
            self._client.close()

    def _pass_end(self) -> None:
        """Let the broker see the end of the client's stream; that of a Kafka client is the end of all."""
        broker = self._broker
        if not (self.core.wire and self.halves and (broker is None or broker.can_write_eof())):
            self.close_session("client closed")
        elif broker is not None and not broker.is_closing():
            broker.write_eof()

    def client_lost(self) -> None:
        """Take the end of the client's socket."""
        self._client = None
        self.release_broker(PEER_FULL)
        self.close_session("client closed")
        self._strike_off()

    def client_full(self, full: bool) -> None:
        """Take note whether the client's write buffer is beyond its high-water mark."""
        if full:
            self.hold_broker(PEER_FULL)
            self.hold_client(OWN_FULL)  # what the gateway itself answers must be taken, too
        else:
            self.release_broker(PEER_FULL)
            self.release_client(OWN_FULL)
        self.count_held()
        self._host.budget.settle()

    def hold_client(self, why: int) -> None:
        """Stop reading the client."""
        if not self.client_holds and self._client is not None and not self._client.is_closing():
            self._client.pause_reading()
        self.client_holds |= why

    def release_client(self, why: int) -> None:
        """Read the client again once nothing else holds it back."""
        held_back, self.client_holds = self.client_holds, self.client_holds & ~why
        if held_back and not self.client_holds and self._client is not None and not self._client.is_closing():
            self._client.resume_reading()

    # -- the broker's side ---------------------------------------------------------------------------------

    async def _connect(self) -> None:
        reason = "no address is known"
        for address in self._host.way_of(self):
            self.broker_address = self._unheard = address  # all may happen before this task goes on
            try:
                async with asyncio.timeout(CONNECT_SECONDS):
                    await self._host.loop.create_connection(
                        lambda: self._host.tap(BrokerProtocol(self), CLIENT),
                        **await self._host.toward(self, address),
                        **self._host.tls_to(self, address),
                    )
            except (OSError, ValueError) as error:  # TimeoutError is an OSError; a name can be no name at all
                reason = f"{address}: {reason_of(error)}"
                continue
            if self.phase < Phase.FINISHED:
                self.release_client(CONNECTING)
                # uvloop may have read the client once before it could be told not to.
                self.client_received(b"")
            return
        self._host.unreachable(self.node_id, reason)
        self.last_event = self.last_error = "broker unreachable"
        # To a client an accepted connection is a success: closed at once, it comes back at once, for ever.
        await asyncio.sleep(UNREACHABLE_SECONDS)
        self.finish()

    def broker_connected(self, transport: asyncio.Transport) -> None:
        """Take the broker's socket, unless the client has left meanwhile."""
        if self.phase >= Phase.FINISHED:
            transport.abort()
            return
        self._broker = transport
        self._whole = (self._whole[0], not transport.can_write_eof())
        transport.set_write_buffer_limits(high=WRITE_HIGH_WATER)
        _keep_alive(transport)
        self.pump()
        if self._client_ended:
            self._pass_end()

    def broker_received(self, data: bytes) -> None:
        """Take bytes from the broker."""
        now = self.active_at = monotonic()
        if self._unheard is not None:
            self._host.connected(self.node_id, self._unheard)
            self._unheard = None
        try:
            self.core.receive_broker(data, now)
            self.pump()
        except Exception as error:  # noqa: BLE001 - as for the client
            self._broken(error)
        self.measured.responses.append(monotonic() - now)

    def broker_lost(self, error: Exception | None) -> None:
        """Take the end of the broker's socket: what is due still goes to the client, which is closed then.

        Args:
            error: why, if it did not just close. In TLS 1.3 a broker refuses a client certificate after the
                client's handshake is over.
        """
        self._broker = None
        if self.phase < Phase.FINISHED:
            self._tell(self.core.broker_ended)
        if self.phase is Phase.OPEN and isinstance(error, ssl.SSLError):
            self._host.unreachable(self.node_id, f"{self.broker_address}: {reason_of(error)}")
        if self.phase is Phase.OPEN:
            self.last_event = "broker closed"
        self.finish()
        self._strike_off()

    def broker_full(self, full: bool) -> None:
        """Take note whether the broker's write buffer is beyond its high-water mark."""
        (self.hold_client if full else self.release_client)(PEER_FULL)

    def hold_broker(self, why: int) -> None:
        """Stop reading the broker."""
        if not self.broker_holds and self._broker is not None and not self._broker.is_closing():
            self._broker.pause_reading()
        self.broker_holds |= why

    def release_broker(self, why: int) -> None:
        """Read the broker again once nothing else holds it back."""
        held_back, self.broker_holds = self.broker_holds, self.broker_holds & ~why
        if held_back and not self.broker_holds and self._broker is not None and not self._broker.is_closing():
            self._broker.resume_reading()

    # -- both ----------------------------------------------------------------------------------------------

    def pump(self) -> None:
        """Write what the core has due, and follow what it says of itself."""
        core = self.core
        if core.to_broker and self._broker is not None:
            due = core.take_broker()
            self._broker.writelines([b"".join(due)] if self._whole[1] else due)
        if core.to_client:
            due = core.take_client()
            if self._client is not None and not self._client.is_closing():
                self._client.writelines([b"".join(due)] if self._whole[0] else due)
        if core.events:
            self._report(core.take_events())
        if core.reads_client is self._core_holds:
            self._core_holds = not core.reads_client
            (self.hold_client if self._core_holds else self.release_client)(CORE)
        if core.held or self._held:
            self.count_held()
        if core.fault is not None:
            self._end_by(core.fault)
        elif self.phase is Phase.CLOSING and core.done:
            self.finish()

    def _tell(self, word: Callable[[], None]) -> None:
        """Tell the core what is neither side's bytes, and follow it."""
        try:
            word()
            self.pump()
        except Exception as error:  # noqa: BLE001 - as for the client's bytes
            self._broken(error)

    def close_session(self, reason: str, within: float = CLOSE_SECONDS) -> None:
        """Take no more from the client; finish what is in flight and close its session.

        Args:
            reason: why, for the state.
            within: seconds after which both sides are closed whatever is missing.
        """
        if self.phase is not Phase.OPEN:
            return
        self.phase = Phase.CLOSING
        self.last_event = reason
        self.hold_client(CLOSING)
        if self._broker is None:
            self.finish()
            return
        self._deadline = self._host.loop.call_later(within, self.finish)
        self._tell(partial(self.core.close_session, monotonic()))

    def finish(self) -> None:
        """Close both sockets once what has been written has left; a peer that does not take it is cut off.

        A socket closed with bytes unread resets the connection: what the client has not taken yet is lost.
        So the client is told the end and read, for nothing, until it has closed, too. With TLS, closing is
        just that: it says the end and waits for the client's.
        """
        if self.phase >= Phase.FINISHED:
            return
        self.phase = Phase.FINISHED
        self._forget_deadline()
        ends = (self._client, self._broker)
        # What TLS has handed on to its socket is not told.
        unsent = [t for t in ends if t is not None and (t.get_write_buffer_size() or not t.can_write_eof())]
        self._deadline = self._host.loop.call_later(CLOSE_SECONDS if unsent else LINGER_SECONDS, self.abort)
        if self._broker is not None:
            self._broker.close()
        if self._client is None:
            return
        if self._client_ended or not self._client.can_write_eof():
            self._client.close()
        elif not self._client.is_closing():
            self._client.write_eof()
            self.release_client(self.client_holds)

    def abort(self) -> None:
        """Close both sockets and lose what is unsent."""
        self.phase = max(self.phase, Phase.FINISHED)
        self._forget_deadline()
        for transport in (self._client, self._broker):
            if transport is not None:
                transport.abort()

    def wait_for_budget(self, waits: bool) -> None:
        """Stop reading the broker, or read it again, by word of the budget."""
        (self.hold_broker if waits else self.release_broker)(BUDGET)

    def overdue(self, now: float, *, idle: float, handshake: float) -> str:
        """Say why the client has been waited for long enough; nothing when it has not.

        A client that waits itself, for an answer or to be read, is not idle.

        Args:
            now: in seconds.
            idle: seconds without a byte of either side, 0 for any number.
            handshake: seconds without a first request, 0 for any number.
        """
        if self.phase is not Phase.OPEN or self.client_holds:
            return ""
        if not self.core.begun:
            return NO_REQUEST if handshake and now - self.opened_at >= handshake else ""
        return IDLE if idle and not self.core.busy and now - self.active_at >= idle else ""

    @property
    def can_go_on(self) -> bool:
        """Tell whether reading the broker would bring the held answer further."""
        return not self.broker_holds & PEER_FULL

    @property
    def halves(self) -> bool:
        """Tell whether the client's connection can end one way and go on the other."""
        return not self._whole[0]

    @property
    def has_broker(self) -> bool:
        """Tell whether the broker connection stands."""
        return self._broker is not None

    @property
    def who(self) -> dict[str, object]:
        """Name the connection as log lines do."""
        return {
            "client": self.client_address,
            "broker": str(self.broker_address or ""),
            "client_id": self.core.client_id,
        }

    def count_held(self) -> None:
        """Tell the budget what this link holds now."""
        held = self.core.held
        if self.broker_holds & PEER_FULL and self._client is not None:
            # Beyond the high-water mark it can only be expanded answers; up to there it is the stream's own.
            held += max(0, self._client.get_write_buffer_size() - WRITE_HIGH_WATER - RECEIVE_BYTES)
        if held != self._held:
            self._held = held
            self.held_changed_at = monotonic()
            self._host.budget.update(self, held)
            self._host.sessions.crowded = self._host.budget.over

    def _report(self, events: list[Event]) -> None:
        for event in events:
            if not isinstance(event, Fault):  # the core's `fault` says it, once
                self.last_event = type(event).__name__
                self._host.happened(event, self)
                if isinstance(event, SessionLost):
                    self.last_error = event.reason
                write_event(self._host.log, event, **self.who)

    def _end_by(self, fault: Fault) -> None:
        if self.phase < Phase.FINISHED:
            self.last_event = f"fault of the {fault.side}: {fault.reason}"
            self.last_error = self.last_event
            self._host.faulted(fault)
            self._host.happened(fault, self)
            write_event(self._host.log, fault, **self.who)
            self.finish()

    def _broken(self, error: Exception) -> None:
        self._host.log.error("connection broken by a defect", **self.who, exc_info=error)
        self.last_event = self.last_error = "defect"
        self.abort()

    def _forget_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _strike_off(self) -> None:
        if self._client is not None or self._broker is not None or self.phase is Phase.STRUCK:
            return
        self.phase = Phase.STRUCK
        self._forget_deadline()
        self.core.ended()
        if self._held:
            self._held = 0
            self._host.budget.update(self, 0)
            self._host.sessions.crowded = self._host.budget.over
        self._host.closed(self)


class ClientProtocol(asyncio.BufferedProtocol):
    """The client's socket."""

    __slots__ = ("_link",)

    def __init__(self, link: Link) -> None:
        self._link = link

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self._link.client_connected(cast("asyncio.Transport", transport))

    def get_buffer(self, _sizehint: int) -> Any:
        """Receive where all receive."""
        return _RECEIVE

    def buffer_updated(self, nbytes: int) -> None:
        """Copy out what came: the buffer is anybody's after this call."""
        self._link.client_received(bytes(_RECEIVE[:nbytes]))

    def eof_received(self) -> bool:
        """Keep the writing half: answers may be on their way. TLS has no halves."""
        self._link.client_ended()
        return self._link.halves

    def pause_writing(self) -> None:
        """Hold back the broker."""
        self._link.client_full(True)

    def resume_writing(self) -> None:
        """Read the broker again."""
        self._link.client_full(False)

    def connection_lost(self, _exc: Exception | None) -> None:
        """End."""
        self._link.client_lost()


class BrokerProtocol(asyncio.BufferedProtocol):
    """The broker's socket."""

    __slots__ = ("_link",)

    def __init__(self, link: Link) -> None:
        self._link = link

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self._link.broker_connected(cast("asyncio.Transport", transport))

    def get_buffer(self, _sizehint: int) -> Any:
        """Receive where all receive."""
        return _RECEIVE

    def buffer_updated(self, nbytes: int) -> None:
        """Copy out what came: the buffer is anybody's after this call."""
        self._link.broker_received(bytes(_RECEIVE[:nbytes]))

    def eof_received(self) -> bool:
        """Close: a broker that sends no more answers none."""
        return False

    def pause_writing(self) -> None:
        """Hold back the client."""
        self._link.broker_full(True)

    def resume_writing(self) -> None:
        """Read the client again."""
        self._link.broker_full(False)

    def connection_lost(self, exc: Exception | None) -> None:
        """End."""
        self._link.broker_lost(exc)


def keep_alive(sock: socket.socket) -> None:
    """Let the system notice a peer that vanished without a word within two minutes.

    A connection inherits it from the listener that accepted it.
    """
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 4)):
        if (option := getattr(socket, name, None)) is not None:  # names differ by platform
            sock.setsockopt(socket.IPPROTO_TCP, option, value)


def _keep_alive(transport: asyncio.Transport) -> None:
    """Do so for a socket that an event loop has: uvloop gives a stand-in that takes 40 us for each option."""
    shown = transport.get_extra_info("socket")
    with suppress(OSError):  # the peer has gone already; the socket tells so
        sock = socket.socket(shown.family, shown.type, shown.proto, fileno=shown.fileno())
        try:
            keep_alive(sock)
        finally:
            sock.detach()


def _name(peer: Any) -> str:
    return str(Address(*peer[:2])) if peer else ""


def _host_of(own: Any) -> str:
    return str(own[0]) if own else ""
