"""One client's two sockets and the core between them. Everything happens inside the event loop's callbacks.

A `Link` owns a core (`proxy.core.connection.Connection`) and an `Endpoint` for each socket. What a socket
delivers goes to the core; what the core then has due is written at once. No task, future or coroutine is made
per frame; a link makes one task, to connect.

Back-pressure: a side is read while nothing holds it back (`HOLDS`). A peer that does not read fills its write
buffer, which holds back the other side. The core holds back a client that is too far ahead.
`proxy.core.budget` holds back brokers while too many bytes of incomplete responses are in memory.
"""

import asyncio
import errno
import ssl
from collections.abc import Callable, Coroutine, Sequence
from enum import IntEnum
from functools import partial
from time import monotonic
from typing import Any, Final, Protocol

from proxy.addresses import Address
from proxy.core.budget import Budget
from proxy.core.connection import Connection
from proxy.core.eligibility import SessionLimits
from proxy.core.events import Event, Fault, SessionLost
from proxy.core.histograms import Measured
from proxy.logger import Logger
from proxy.net.endpoint import RECEIVE_BYTES, WRITE_HIGH_WATER, Endpoint, keep_alive_of, unacknowledged
from proxy.net.tls import asked_for
from proxy.reasons import reason_of

CONNECT_SECONDS: Final = 10.0
"""For one address of a broker."""
UNREACHABLE_SECONDS: Final = 0.5
"""How long a client is kept whose broker can't be reached."""
CLOSE_SECONDS: Final = 10.0
"""What a session's close at the broker, and then the last bytes for a slow peer, may take each."""
LINGER_SECONDS: Final = 1.0
"""For a client that has all its bytes to close, too."""
_NO_DESCRIPTOR: Final = frozenset({errno.EMFILE, errno.ENFILE})

# Why a side is not read: bits, and plain integers, for they are looked at for every frame.
CONNECTING: Final = 1
"""Client: its broker connection does not stand yet."""
CORE: Final = 2
"""Client: the core has enough of its requests."""
PEER_FULL: Final = 4
"""Either: the other side does not take what it has been sent."""
BUDGET: Final = 8
"""Broker: too many bytes of incomplete responses are held in the process."""
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
NOT_READING: Final = "not reading"


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
    log: Logger
    budget: Budget
    sessions: SessionLimits

    def admits(self) -> bool:
        """Tell whether one more client is taken."""

    def opened(self, link: "Link", shown: Any, reached_at: str) -> Connection:
        """Count a new connection, find the broker that it is for (`Link.node_id`), and make its core.

        Args:
            link: the connection; its client's address is known.
            shown: its socket, as the event loop shows it.
            reached_at: the gateway's address as the client found it.
        """

    def addresses_for(self, link: "Link") -> Sequence[Address]:
        """Give the addresses to try for a connection, in order."""

    async def connect_broker(self, link: "Link", address: Address) -> None:
        """Connect the link's broker; `Link.broker_connected` is called when its socket stands.

        Raises:
            OSError: nobody answers there, or the gateway itself does.
        """

    def connected(self, node_id: int | None, address: Address) -> None:
        """Take note that an address answered."""

    def unreachable(self, node_id: int | None, reason: str) -> None:
        """Take note that none did."""

    def exhausted(self) -> None:
        """Take note that no file descriptor was left to try one."""

    def happened(self, event: Event, link: "Link") -> None:
        """Log what a connection reports, keep it in words, and count a fault."""

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a task and keep it alive."""

    def closed(self, link: "Link") -> None:
        """Strike it off: both sockets are closed."""


class Link:
    """A client connection, its broker connection and the core between the two."""

    __slots__ = (
        "_client_ended",
        "_core_holds",
        "_deadline",
        "_held",
        "_host",
        "_taken",
        "_unheard",
        "active_at",
        "asked_for",
        "broker",
        "broker_address",
        "buffered_changed_at",
        "client",
        "client_address",
        "core",
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
        self.client = Endpoint(CONNECTING)
        self.broker = Endpoint()
        self._client_ended = False
        self._core_holds = False
        self._deadline: asyncio.TimerHandle | None = None
        self._held = 0
        self._taken = 0
        self._unheard: Address | None = None
        """Where the broker is that has not said anything yet: whether it takes us can't be told before."""
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
        self.buffered_changed_at = 0.0
        self.last_event = ""
        self.last_error = ""
        """The last thing that went wrong, in words."""
        self.measured: Measured
        self.opened_at = self.active_at = monotonic()
        """When it came, and when a byte last did, from either side, or was seen to be taken by the client."""
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
        self.client.connected(transport)
        # uvloop begins to read after this callback, whatever is said here; the core keeps what comes before
        # the pause.
        self._host.loop.call_soon(self._pause_until_connected)
        self.client_address = _name(transport.get_extra_info("peername"))
        self.asked_for = asked_for(transport)
        own = _host_of(transport.get_extra_info("sockname"))
        self.core = self._host.opened(self, transport.get_extra_info("socket"), own)
        self._host.spawn(self._connect())

    def _pause_until_connected(self) -> None:
        if self.client.holds:
            self.client.pause()

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
        """Take the end of the client's stream; responses may still be on their way to it."""
        self._client_ended = True
        if self.phase is Phase.OPEN:
            self._tell(self.core.client_ended)
            self._pass_end()
        elif self.phase is Phase.FINISHED and self.client.transport is not None:
            self.client.transport.close()

    def _pass_end(self) -> None:
        """Let the broker see the end of the client's stream; that of a Kafka client is the end of all."""
        broker = self.broker.transport
        if not (self.core.wire and self.halves and (broker is None or broker.can_write_eof())):
            self.close_session("client closed")
        elif broker is not None and not broker.is_closing():
            broker.write_eof()

    def client_lost(self) -> None:
        """Take the end of the client's socket."""
        self.client.transport = None
        self.broker.release(PEER_FULL)
        self.close_session("client closed")
        self._strike_off()

    def client_full(self, full: bool) -> None:
        """Take note whether the client's write buffer is beyond its high-water mark."""
        if full:
            self.broker.hold(PEER_FULL)
            self.client.hold(OWN_FULL)  # what the gateway itself responses must be taken, too
        else:
            self.broker.release(PEER_FULL)
            self.client.release(OWN_FULL)
        self.report_buffered()
        self._host.budget.settle()

    # -- the broker's side ---------------------------------------------------------------------------------

    async def _connect(self) -> None:
        reason = "no address is known"
        for address in self._host.addresses_for(self):
            self.broker_address = self._unheard = address  # all may happen before this task goes on
            try:
                async with asyncio.timeout(CONNECT_SECONDS):
                    await self._host.connect_broker(self, address)
            except (OSError, ValueError) as error:  # TimeoutError is an OSError; a name can be no name at all
                if isinstance(error, OSError) and error.errno in _NO_DESCRIPTOR:
                    self._host.exhausted()
                    reason = ""  # the broker has no part in it
                    break
                reason = f"{address}: {reason_of(error)}"
                continue
            if self.phase < Phase.FINISHED:
                self.client.release(CONNECTING)
                # uvloop may have read the client once before it could be told not to.
                self.client_received(b"")
            return
        if reason:
            self._host.unreachable(self.node_id, reason)
        self.last_event = self.last_error = "broker unreachable" if reason else "no file descriptor"
        # To a client an accepted connection is a success: closed at once, it comes back at once, for ever.
        await asyncio.sleep(UNREACHABLE_SECONDS)
        self.finish()

    def broker_connected(self, transport: asyncio.Transport) -> None:
        """Take the broker's socket, unless the client has left meanwhile."""
        if self.phase >= Phase.FINISHED:
            transport.abort()
            return
        self.broker.connected(transport)
        keep_alive_of(transport)
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
            if self.core.held or self._held:
                self.report_buffered()
        except Exception as error:  # noqa: BLE001 - as for the client
            self._broken(error)
        self.measured.responses.append(monotonic() - now)

    def broker_lost(self, error: Exception | None) -> None:
        """Take the end of the broker's socket: what is due still goes to the client, which is closed then.

        Args:
            error: why, if it did not just close. In TLS 1.3 a broker refuses a client certificate after the
                client's handshake is over.
        """
        self.broker.transport = None
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
        (self.client.hold if full else self.client.release)(PEER_FULL)

    # -- both ----------------------------------------------------------------------------------------------

    def pump(self) -> None:
        """Write what the core has due, and follow what it says of itself."""
        core, client, broker = self.core, self.client, self.broker
        if core.to_broker and broker.transport is not None:
            due = core.take_broker()
            broker.transport.writelines([b"".join(due)] if broker.whole else due)
        if core.to_client:
            due = core.take_client()
            if client.transport is not None and not client.transport.is_closing():
                client.transport.writelines([b"".join(due)] if client.whole else due)
        if core.events:
            self._report(core.take_events())
        if core.reads_client is self._core_holds:
            self._core_holds = not core.reads_client
            (client.hold if self._core_holds else client.release)(CORE)
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
        self.client.hold(CLOSING)
        if self.broker.transport is None:
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
        client, broker = self.client.transport, self.broker.transport
        status = [transport for transport in (client, broker) if transport is not None]
        # What TLS has handed on to its socket is not told.
        unsent = any(each.get_write_buffer_size() or not each.can_write_eof() for each in status)
        self._deadline = self._host.loop.call_later(CLOSE_SECONDS if unsent else LINGER_SECONDS, self.abort)
        if broker is not None:
            broker.close()
        if client is None:
            return
        if self._client_ended or not client.can_write_eof():
            client.close()
        elif not client.is_closing():
            client.write_eof()
            self.client.release(self.client.holds)

    def abort(self) -> None:
        """Close both sockets and lose what is unsent."""
        self.phase = max(self.phase, Phase.FINISHED)
        self._forget_deadline()
        for end in (self.client, self.broker):
            if end.transport is not None:
                end.transport.abort()

    def wait_for_budget(self, waits: bool) -> None:
        """Stop reading the broker, or read it again, by word of the budget."""
        (self.broker.hold if waits else self.broker.release)(BUDGET)

    def overdue(self, now: float, *, idle: float, handshake: float) -> str:
        """Say why the client has been waited for long enough; nothing when it has not.

        A client that waits itself, for a response or to be read, is not idle; nor is one that takes what lies
        there for it, however slowly. To be called every few seconds, for that is looked for here.

        Args:
            now: in seconds.
            idle: seconds without a byte of either side, 0 for any number.
            handshake: seconds without a first request, 0 for any number.
        """
        if self.phase is not Phase.OPEN:
            return ""
        self._see_what_is_taken(now)
        silent = idle > 0 and now - self.active_at >= idle
        if self.client.holds & OWN_FULL and not self.core.wire:
            return NOT_READING if silent else ""
        if self.client.holds:
            return ""
        if not self.core.begun:
            return NO_REQUEST if handshake and now - self.opened_at >= handshake else ""
        return IDLE if silent and not self.core.busy else ""

    def _see_what_is_taken(self, now: float) -> None:
        client = self.client.transport
        if client is None or client.is_closing() or not (waits := client.get_write_buffer_size()):
            return
        taken = self.core.tally.client.bytes_out - waits - unacknowledged(client)
        if taken != self._taken:
            self._taken = taken
            self.active_at = now

    @property
    def can_go_on(self) -> bool:
        """Tell whether reading the broker would bring the held response further."""
        return not self.broker.holds & PEER_FULL

    @property
    def halves(self) -> bool:
        """Tell whether the client's connection can end one way and go on the other."""
        return not self.client.whole

    @property
    def has_broker(self) -> bool:
        """Tell whether the broker connection stands."""
        return self.broker.transport is not None

    @property
    def client_holds(self) -> int:
        """Why the client is not read: bits of `HOLDS`."""
        return self.client.holds

    @property
    def broker_holds(self) -> int:
        """Why the broker is not read."""
        return self.broker.holds

    @property
    def who(self) -> dict[str, object]:
        """Name the connection as log lines do."""
        return {
            "client": self.client_address,
            "broker": str(self.broker_address or ""),
            "client_id": self.core.client_id,
        }

    def report_buffered(self) -> None:
        """Tell the budget what this link holds now."""
        held = self.core.held
        if self.broker.holds & PEER_FULL and self.client.transport is not None:
            # Beyond the high-water mark it can only be expanded responses; up to there it is the stream's
            # own.
            held += max(0, self.client.transport.get_write_buffer_size() - WRITE_HIGH_WATER - RECEIVE_BYTES)
        if held != self._held:
            self._held = held
            self.buffered_changed_at = monotonic()
            self._host.budget.update(self, held)
            self._host.sessions.crowded = self._host.budget.over

    def _report(self, events: list[Event]) -> None:
        for event in events:
            if not isinstance(event, Fault):  # the core's `fault` says it, once
                self.last_event = type(event).__name__
                self._host.happened(event, self)
                if isinstance(event, SessionLost):
                    self.last_error = event.reason

    def _end_by(self, fault: Fault) -> None:
        if self.phase < Phase.FINISHED:
            self.last_event = f"fault of the {fault.side}: {fault.reason}"
            self.last_error = self.last_event
            self._host.happened(fault, self)
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
        if self.client.transport is not None or self.has_broker or self.phase is Phase.STRUCK:
            return
        self.phase = Phase.STRUCK
        self._forget_deadline()
        self.core.ended()
        if self._held:
            self._held = 0
            self._host.budget.update(self, 0)
            self._host.sessions.crowded = self._host.budget.over
        self._host.closed(self)


def _name(peer: Any) -> str:
    return str(Address(*peer[:2])) if peer else ""


def _host_of(own: Any) -> str:
    return str(own[0]) if own else ""
