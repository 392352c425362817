"""A link connects one client's two sockets to the core that is between them.

All work is done in the event loop's callbacks: bytes from a socket are passed to the core
(`proxy.core.connection.Connection`), and the core's output is written at once. There is no task, future or
coroutine for each frame.

Back-pressure: a side is not read while it has a reason in `HOLDS`. If too many bytes of incomplete responses
are in memory, `proxy.core.budget` stops reading some brokers. If the event loop is busy, links have turns
(`proxy.net.turns`).
"""

import asyncio
import ssl
from collections.abc import Callable
from enum import IntEnum
from functools import partial
from time import monotonic, thread_time
from typing import Any, Final, Protocol, cast

from proxy.addresses import Address
from proxy.core.budget import SILENT_SECONDS, Budget
from proxy.core.connection import Connection
from proxy.core.eligibility import SessionLimits
from proxy.core.events import Event, Fault, SessionLost
from proxy.core.fast_path import FastPath
from proxy.core.histograms import Measured
from proxy.logger import Logger
from proxy.net.endpoint import Endpoint, has_ended, is_gone, set_options_of, unacknowledged, unread
from proxy.net.tls import server_name_of, subject_of
from proxy.net.turns import SHARE_SECONDS, Turns
from proxy.text.error_text import reason_of

CLOSE_SECONDS: Final = 10.0
"""The time limit for closing a session at the broker. If bytes are still to be written then, both sockets are
closed after the same time without progress of the client."""
HALF_CLOSED_SECONDS: Final = 30.0
"""A client that has sent its end is closed if no byte arrives for this long, in addition to the wait that its
requests allow.

The gateway can't detect whether such a client has left. Without this limit, a hung broker would leak two
sockets for each client. The same limit applies if the client's end was received while it was not read, or if
it is not read because it has too many requests in flight. Such a client may wait up to twice as long, because
its end may come after bytes that the system could not buffer.
"""
LATE_SECONDS: Final = 0.002
"""The delay of a timer from which the event loop counts as busy."""
READ_SECONDS: Final = 0.001
"""If a timer is late by `LATE_SECONDS` or more, its function is called this much later. So the event loop
reads its sockets first."""
LINGER_SECONDS: Final = 1.0
"""The time in which a client that has read all its bytes has to close its side."""

# Why a side is not read: one bit each. They are plain integers because every frame tests them.
CONNECTING: Final = 1
"""The broker is not connected yet: the client is not read."""
CORE: Final = 2
"""The client has too many requests in flight, or the core has not yet processed all bytes of that side."""
PEER_FULL: Final = 4
"""The other side does not read its bytes."""
BUDGET: Final = 8
"""The process has too many bytes of incomplete responses in memory: the broker is not read."""
OWN_FULL: Final = 32
"""The client does not read the bytes sent to it, so no more of its requests are read."""
CLOSING: Final = 16
"""The link is closing: the client is not read."""
TURN: Final = 64
"""The event loop is busy, and it is the turn of other links."""
HOLDS: Final = {
    CONNECTING: "connecting",
    CORE: "core",
    PEER_FULL: "peer_full",
    BUDGET: "budget",
    OWN_FULL: "own_full",
    CLOSING: "closing",
    TURN: "turn",
}


NO_REQUEST: Final = "no request"
IDLE: Final = "idle"
NOT_READING: Final = "not reading"


def alarm(loop: asyncio.AbstractEventLoop, at: float, due: Callable[[], None]) -> None:
    """Call a function at a given time. If the event loop is late then, let it read the sockets first.

    The event loop calls timers before it reads sockets. Without the delay, bytes that arrived in time would
    count as late.
    """

    def fire() -> None:
        if monotonic() - at >= LATE_SECONDS:
            loop.call_later(READ_SECONDS, due)
        else:
            due()

    loop.call_later(max(at - monotonic(), 0.0), fire)


class LinkPhase(IntEnum):
    """The phase of a link. A link passes through these phases in the listed order, and never goes back."""

    OPEN = 0
    CLOSING = 1
    """No more requests are read. The link finishes the requests in flight, and closes the session."""
    FINISHED = 2
    """Both sockets are about to be closed."""
    CLOSED = 3


class Host(Protocol):
    """The methods of the server that a link calls: this package must not import `proxy.server`."""

    loop: asyncio.AbstractEventLoop
    log: Logger
    budget: Budget
    turns: Turns
    sessions: SessionLimits

    def admits(self) -> bool:
        """Return whether to serve a client that has just connected."""

    def opened(self, link: "Link", sock: Any, reached_at: str) -> Connection:
        """Count a new connection, make its core, and begin to connect the link to its broker.

        While the link connects, the host calls `Link.tries`, makes a connection with a `BrokerProtocol`, and
        calls `Link.read_client`. `link` already has the client's address, and `reached_at` is the gateway's
        address that the client connected to.
        """

    def connected(self, node_id: int | None, address: Address) -> None:
        """Record that a broker responded at an address."""

    def unreachable(self, node_id: int | None, reason: str, error: Exception | None = None) -> None:
        """Record that a broker has ended this connection with a TLS error, and so can't be reached."""

    def report(self, event: Event, link: "Link") -> None:
        """Log an event of a connection, count it if it is a fault, and do what the event requires."""

    def closed(self, link: "Link") -> None:
        """Remove a link, because both of its sockets are closed."""


class Link:
    """A client connection, its broker connection, and the core between the two connections."""

    __slots__ = (
        "_acknowledged",
        "_buffered",
        "_client_ended",
        "_core_holds",
        "_deadline",
        "_fast_path",
        "_host",
        "_kept",
        "_left",
        "_untested",
        "_waits",
        "active_at",
        "broker",
        "broker_address",
        "buffered_changed_at",
        "busy_period",
        "client",
        "client_address",
        "client_host",
        "client_subject",
        "core",
        "last_error",
        "last_event",
        "measured",
        "node_id",
        "opened_at",
        "outbound",
        "phase",
        "reached_at",
        "server_name",
        "spent",
        "used",
    )

    def __init__(self, host: Host, node_id: int | None) -> None:
        self._host = host
        self.client = Endpoint(CONNECTING)
        self.broker = Endpoint()
        self._client_ended = False
        self._core_holds = False
        self._waits = False
        self._deadline: asyncio.TimerHandle | None = None
        self._buffered = (0, False)
        """The last report to the budget: the buffered bytes, and whether the budget may let the link wait."""
        self._kept = 0
        self._left = False
        """Whether the client's end was received while the link did not read the client, for example because a
        buffer was full. Such a client has closed its connection, or only its sending half."""
        self._acknowledged = 0
        self._untested: Address | None = None
        """The broker's address until its first bytes arrive. Only these show that it accepts connections."""
        self.server_name = ""
        """The server name that the client sent in its TLS handshake (SNI), or ""."""
        self.reached_at = ""
        self.core: Connection
        self._fast_path: FastPath
        self.node_id = node_id
        """The broker that the client asked for, by the listener or by the TLS server name. None for the
        bootstrap. In transparent mode, it is the gateway's own number of the client's destination. Negative
        numbers are explained in `proxy.addresses`."""
        self.outbound: tuple[int, Address] | None = None
        """In transparent mode, the local port and the destination of the broker connection."""
        self.client_address = self.client_host = ""
        self.client_subject = ""
        """The subject of the client's certificate. "" if it has none, or without ``--client-ca``."""
        self.broker_address: Address | None = None
        self.buffered_changed_at = 0.0
        self.last_event = ""
        self.last_error = ""
        self.measured: Measured
        self.opened_at = self.active_at = monotonic()
        """`active_at` is the last time at which a byte was received from either side, or the client was seen
        to have acknowledged more bytes."""
        self.phase = LinkPhase.OPEN
        self.spent = self.used = 0.0
        self.busy_period = 0

    def __repr__(self) -> str:
        broker = self.broker_address or "connecting"
        return f"<Link {self.client_address} -> {broker} {self.phase.name} buffered={self._buffered[0]}>"

    # -- the client's side ---------------------------------------------------------------------------------

    def client_connected(self, transport: asyncio.Transport) -> None:
        # The client is not read until its broker is connected.
        if not self._host.admits():
            self.phase = LinkPhase.CLOSED
            transport.abort()
            return
        self.client.connected(transport)
        # uvloop starts to read after this callback even if it is paused here; the core keeps what comes
        # before the pause takes effect.
        self._host.loop.call_soon(self._pause_until_connected)
        peer = transport.get_extra_info("peername")
        self.client_address, self.client_host = _name(peer), _host_of(peer)
        self.server_name = server_name_of(transport)
        self.client_subject = subject_of(transport)
        self.reached_at = _host_of(transport.get_extra_info("sockname"))
        self.core = self._host.opened(self, transport.get_extra_info("socket"), self.reached_at)
        self._fast_path = self.core.fast_path
        self.core.attach(self._wake, self._alarm)

    def _pause_until_connected(self) -> None:
        if self.client.holds:
            self.client.pause()

    def client_received(self, data: bytes) -> None:
        # When the link is closing, the bytes are dropped.
        if self.phase is not _OPEN:
            return
        now, began = monotonic(), thread_time()
        self.active_at = now
        try:
            done, out = self._fast_path.request(data, now)
            if done and self.broker.transport is not None:
                self.broker.transport.write(out)
            if done < len(data) or not data:
                self.core.receive_client(data[done:], now)
                self.pump()
        except Exception as error:  # noqa: BLE001 - a defect of the gateway costs this connection, never the others
            self._fail(error)
        self.measured.requests.append(monotonic() - now)
        self._host.turns.spend(self, thread_time() - began)

    def client_ended(self) -> None:
        # The client may still receive responses.
        self._client_ended = True
        if self._core_holds and self.phase is LinkPhase.OPEN:
            return  # `pump` calls this again: what came before the end has not been processed
        if self.phase is LinkPhase.OPEN:
            self._run_core(self.core.client_ended)
            self._forward_end()
        elif self.phase is LinkPhase.FINISHED and self.client.transport is not None:
            self.client.transport.close()

    def _forward_end(self) -> None:
        """Forward the end of the client's stream to the broker if the protocol is not Kafka.

        Otherwise, or if one of the connections can't be closed in one direction, close the session.
        """
        broker = self.broker.transport
        state = self.core.state
        if not (state.wire and self.half_closes and (broker is None or broker.can_write_eof())):
            if broker is None and self.core.to_broker:
                return  # `broker_connected` calls this again
            # A broker sends a client that has closed its writing half what that still waits for
            # (fetch-semantics 1.7).
            waits = self.half_closes and state.busy
            self.close_session("client closed", within=None if waits else CLOSE_SECONDS)
        else:
            self.broker.end_writing()

    def client_lost(self) -> None:
        self.client.transport = None
        self.broker.release(PEER_FULL)
        if self.phase is LinkPhase.CLOSING:
            self._continue()
        self.close_session("client closed")
        self._finish_closed()

    def client_full(self, full: bool) -> None:
        # The write buffer toward the client is above its high-water mark, or has room again.
        if full:
            self.broker.hold(PEER_FULL)
            self.client.hold(OWN_FULL)  # the gateway's own responses fill the buffer, too
        else:
            self.broker.release(PEER_FULL)
            self.client.release(OWN_FULL)
            self._continue()
        self.report_buffered()
        self._host.budget.settle()

    # -- the broker's side ---------------------------------------------------------------------------------

    def tries(self, address: Address) -> None:
        # The gateway now tries to connect to this address.
        self.broker_address = self._untested = address

    def read_client(self) -> None:
        if self.phase < LinkPhase.FINISHED:
            self.client.release(CONNECTING)
            # uvloop may have read the client once before the pause took effect.
            self.client_received(b"")

    def broker_connected(self, transport: asyncio.Transport) -> None:
        # If the client has already left, the broker's socket is closed.
        if self.phase >= LinkPhase.FINISHED:
            transport.abort()
            return
        self.broker.connected(transport)
        self._fast_path.began = monotonic()
        set_options_of(transport)
        self.pump()
        if self._client_ended and not self._core_holds:  # else `pump` does it later
            self._forward_end()

    def broker_received(self, data: bytes) -> None:
        now, began = monotonic(), thread_time()
        self.active_at = now
        if self._untested is not None:
            self._host.connected(self.node_id, self._untested)
            self._untested = None
        try:
            fast_path = self._fast_path
            data = fast_path.join(data, now)
            done, out = fast_path.response(data, fast_path.began, now) if self.phase is _OPEN else (0, b"")
            client = self.client.transport
            if done and client is not None and not client.is_closing():
                client.write(out)
            if done < len(data):
                self.core.receive_broker(data[done:], now)
                self.pump()
        except Exception as error:  # noqa: BLE001 - as for the client
            self._fail(error)
        self.measured.responses.append(monotonic() - now)
        self._host.turns.spend(self, thread_time() - began)

    def broker_lost(self, error: Exception | None) -> None:
        """Disconnect the client after its remaining bytes.

        With TLS 1.3, `error` may be that the broker has refused the gateway's certificate. It does this only
        after the gateway's side of the handshake.
        """
        self.broker.transport = None
        self._run_core(self.core.broker_ended)
        if self.phase is LinkPhase.OPEN and isinstance(error, ssl.SSLError):
            self._host.unreachable(self.node_id, f"{self.broker_address}: {reason_of(error)}", error)
        if self.phase is LinkPhase.OPEN:
            self.last_event = "broker closed"
        self.finish()
        self._finish_closed()

    def broker_full(self, full: bool) -> None:
        (self.client.hold if full else self.client.release)(PEER_FULL)
        self._continue()

    # -- both ----------------------------------------------------------------------------------------------

    def pump(self) -> None:
        """After each call of the core: write its output, report its events, and act on its state."""
        core, state, client, broker = self.core, self.core.state, self.client, self.broker
        if core.to_broker and broker.transport is not None:
            broker.write(core.drain_broker())
        if core.to_client:
            client.write(core.drain_client())
        if core.events:
            self._report(core.drain_events())
        if state.reads_client is self._core_holds:
            self._core_holds = not self._core_holds
            (client.hold if self._core_holds else client.release)(CORE)
            if self._client_ended and not self._core_holds and self.phase is _OPEN:
                self.client_ended()
        if responses_wait := state.responses_wait:
            broker.hold(CORE)
        elif broker.holds & CORE:
            broker.release(CORE)
        if responses_wait or self._core_holds:
            self._continue()
        if self._core_holds or state.buffered or self._buffered[0]:
            self.report_buffered()
        if state.fault is not None:
            self._end_by(state.fault)
        elif self.phase is LinkPhase.CLOSING and state.done:
            self.finish()

    def _continue(self) -> None:
        if self._goes_on:
            self._wait_for_turn()

    def _wait_for_turn(self) -> None:
        if not self._waits:
            self._waits = True
            self._host.turns.add(self)

    @property
    def _goes_on(self) -> bool:
        state = self.core.state
        if state.responses_wait:
            return not self.broker.holds & PEER_FULL
        # What came before the client's end is processed after it, too.
        return self.client.holds & ~(CLOSING | TURN) == CORE and state.goes_on

    def wait(self) -> None:
        """Read neither side until it is this link's turn."""
        if self.phase < LinkPhase.FINISHED:
            self.client.hold(TURN)
            # A broker that connects while it is held would be read all the same, also with later reasons not
            # to read. And if a TLS alert comes first, uvloop tells of it only while it reads.
            if self.has_broker and self._untested is None:
                self.broker.hold(TURN)
            self._wait_for_turn()

    def take_turn(self) -> None:
        self._waits = False
        self.client.release(TURN)
        self.broker.release(TURN)
        if self._goes_on:
            self._run_core(self._step)

    def _step(self) -> None:
        now, began = monotonic(), thread_time()
        while self._goes_on and self.spent < SHARE_SECONDS:
            self.core.go_on(now)
            self.spent = thread_time() - began
        self.used += self.spent

    def brokers_opened(self, node_ids: frozenset[int]) -> None:
        """Send the responses that waited until the listeners of these brokers were open."""
        self._run_core(partial(self.core.brokers_opened, node_ids))

    def _wake(self) -> None:
        # The output was caused by another link. It must be sent before any later bytes of the fast path.
        self._run_core(self.report_buffered)

    def _alarm(self, at: float) -> None:
        alarm(self._host.loop, at, partial(self._tick, at))

    def _tick(self, at: float) -> None:
        # The clock may still show a time before `at`: timers can be early by a fraction of a millisecond.
        self._run_core(partial(self.core.tick, max(at, monotonic())))

    def _run_core(self, call: Callable[[], None]) -> None:
        # Not used for received bytes. If both sockets are closing already, there is nothing to do.
        if self.phase >= LinkPhase.FINISHED:
            return
        try:
            call()
            self.pump()
        except Exception as error:  # noqa: BLE001 - as for the client's bytes
            self._fail(error)

    @property
    def may_end(self) -> bool:
        """Whether the link is open, and an end cuts off no request that is begun."""
        return self.phase is LinkPhase.OPEN and self.has_broker and self.core.state.between_requests

    def close_session(self, reason: str, within: float | None = CLOSE_SECONDS) -> None:
        """Read no more requests, finish the requests in flight, and close the session.

        `reason` is what ``/state`` shows. After `within` seconds, `finish` is called in any case. If it is
        None, `look_after` and `overdue` limit the time.
        """
        if self.phase is LinkPhase.OPEN:
            self.phase = LinkPhase.CLOSING
            self.last_event = reason
            self.client.hold(CLOSING)
            if self.broker.transport is None:
                self.finish()
                return
            self._finish_within(within)
            self._run_core(partial(self.core.close_session, monotonic()))
        elif self.phase is LinkPhase.CLOSING and self._deadline is None:
            self._finish_within(within)

    def _finish_within(self, seconds: float | None) -> None:
        if seconds is not None:
            self._deadline = self._host.loop.call_later(seconds, self.finish)

    def look_after(self) -> None:
        """Check for states that no callback reports. Call this every few seconds."""
        client = self.client.transport
        if client is None:
            return
        self.core.shrink()
        if client.get_write_buffer_size() or self.core.state.queued or self.client.holds & PEER_FULL:
            self.report_buffered()
        # If a client is not read, the event loop does not report its end or its reset.
        state = self.core.state
        unread = self.phase is LinkPhase.OPEN and self.client.holds & ~CONNECTING and not state.wire
        self._left = bool(unread) and has_ended(client)
        if (unread or self._half_closed) and is_gone(client):
            client.abort()
        elif self._half_closed and not state.busy:
            self.close_session(self.last_event)

    @property
    def _half_closed(self) -> bool:
        # The client has sent its end, but may still wait for responses. Only `overdue` limits the time.
        return self.phase is LinkPhase.CLOSING and self._deadline is None

    def finish(self) -> None:
        """Close both sockets after everything is written. Close them earlier if a peer stops reading.

        At first, only the writing half of the client's connection is closed. If the gateway closed a socket
        with unread bytes, the system would reset the connection, and the client would lose bytes that it has
        not read yet. So the client's bytes are read and dropped until the client closes, too. A TLS close
        works the same way: it sends its end and waits for the client's end.
        """
        if self.phase >= LinkPhase.FINISHED:
            return
        self.phase = LinkPhase.FINISHED
        self._forget_deadline()
        client, broker = self.client.transport, self.broker.transport
        open_transports = [transport for transport in (client, broker) if transport is not None]
        # TLS does not report how much its own socket has not sent.
        unsent = any(each.get_write_buffer_size() or not each.can_write_eof() for each in open_transports)
        if unsent:
            self._cut_off_later()
        else:
            self._deadline = self._host.loop.call_later(LINGER_SECONDS, self.abort)
        if broker is not None:
            broker.close()
        if client is None:
            return
        if self._client_ended or not client.can_write_eof():
            client.close()
        elif not client.is_closing():
            self.client.end_writing()
            self.client.release(self.client.holds)

    def _cut_off_later(self) -> None:
        self._deadline = self._host.loop.call_later(CLOSE_SECONDS, self._cut_off, self._acknowledged_now())

    def _cut_off(self, acknowledged: int) -> None:
        # `acknowledged` is what the client had acknowledged at the last check. Unless there is more, end.
        if self._acknowledged_now() != acknowledged:
            self._cut_off_later()
        else:
            self.abort()

    def abort(self) -> None:
        """Close both sockets at once. Unsent bytes are lost."""
        self.phase = max(self.phase, LinkPhase.FINISHED)
        self._forget_deadline()
        self._forget_buffered()
        for endpoint in (self.client, self.broker):
            if endpoint.transport is not None:
                endpoint.transport.abort()

    def wait_for_budget(self, waits: bool) -> None:
        (self.broker.hold if waits else self.broker.release)(BUDGET)

    def overdue(self, now: float, *, idle: float, handshake: float) -> str:
        """Return the reason to close the client, or "" if there is none.

        A client is not idle while it waits for a response, or while it reads its bytes, even slowly. It is
        also not idle while the gateway does not read it, except if it has too many requests in flight, or if
        its broker does not read: that one may do so for minutes, if the client is over its quota. Call this
        every few seconds, because it measures the client's progress.

        `idle` and `handshake` are limits in seconds, 0 for none: without a byte from either side, and until
        the first request.
        """
        if self.phase is not LinkPhase.OPEN and not self._half_closed:
            return ""
        self._note_progress(now)
        state, silent = self.core.state, idle > 0 and now - self.active_at >= idle
        full = self.client.holds & CORE and state.full
        if self._half_closed or self._left or full:
            wait = state.longest_wait
            if full:
                wait = min(wait, HALF_CLOSED_SECONDS)
            waited = now - self.active_at >= wait + HALF_CLOSED_SECONDS
            return IDLE if silent or waited else ""
        if self.client.holds & OWN_FULL and not state.wire:
            return NOT_READING if silent else ""
        if self.client.holds & PEER_FULL and not state.wire:
            return IDLE if silent else ""
        if self.client.holds:
            return ""
        if not state.begun:
            return NO_REQUEST if handshake and now - self.opened_at >= handshake else ""
        return IDLE if silent and not state.busy else ""

    def _note_progress(self, now: float) -> None:
        client = self.client.transport
        if client is None or client.is_closing() or not client.get_write_buffer_size():
            return
        acknowledged = self._acknowledged_now()
        if acknowledged != self._acknowledged:
            self._acknowledged = acknowledged
            self.active_at = self.buffered_changed_at = now

    def _acknowledged_now(self) -> int:
        client = self.client.transport
        if client is None:
            return 0
        return self.core.tally.client.bytes_out - client.get_write_buffer_size() - unacknowledged(client)

    @property
    def can_go_on(self) -> bool:
        """Whether more bytes of a response that is not complete would arrive if the gateway read on.

        False while the client's write buffer is full, because the link then reads nothing from the broker. A
        pause by the budget does not count.
        """
        return not self.broker.holds & PEER_FULL

    @property
    def half_closes(self) -> bool:
        # With TLS, a connection can't be closed in one direction alone.
        return self.client.half_closes

    @property
    def has_broker(self) -> bool:
        return self.broker.transport is not None

    @property
    def responded_at(self) -> float:
        """The time at which the broker last sent bytes, in seconds. 0 if it has not sent any bytes.

        For a small response that came in parts, it is the time of the first part.
        """
        return self._fast_path.began if self._untested is None else 0.0

    def late_since(self, now: float) -> float | None:
        """Return the time since which the broker's next response is late, or None if it is not late.

        A response does not count as late if the gateway does not read the broker, or if the client has sent
        only a part of the request (but it is late if the broker does not read this part).
        """
        broker, due_at = self.broker, self.core.due_at
        if due_at is None or due_at >= now:
            return None
        if broker.transport is None or broker.holds or self.phase >= LinkPhase.FINISHED:
            return None
        if self.core.state.awaits_client:
            if not broker.transport.get_write_buffer_size():
                return None
            due_at = max(due_at, self.active_at)  # the broker does not read the rest
        return None if unread(broker.transport) else due_at

    @property
    def log_fields(self) -> dict[str, object]:
        fields: dict[str, object] = {
            "client": self.client_address,
            "broker": str(self.broker_address or ""),
            "client_id": self.core.state.client_id,
        }
        return fields | {"subject": self.client_subject} if self.client_subject else fields

    def report_buffered(self) -> None:
        state, now = self.core.state, monotonic()
        kept = state.buffered + state.queued
        if kept != self._kept:
            self._kept = kept
            self.buffered_changed_at = now
        self._note_progress(now)
        may_wait = state.buffered > 0 and not state.completes_soon
        buffered = kept + self._unread_bytes(now)
        if (buffered, may_wait) != self._buffered:
            if not self._buffered[0]:
                self.buffered_changed_at = now
            self._buffered = buffered, may_wait
            self._host.budget.update(self, buffered, may_wait=may_wait)
            self._host.sessions.crowded = self._host.budget.over

    def _unread_bytes(self, now: float) -> int:
        # Bytes that client or broker do not read, in the process and in the system.
        client, broker = self.client.transport, self.broker.transport
        if client is None:
            return 0
        # A peer sends until the system's buffer is full, also while it is not read.
        if size := client.get_write_buffer_size():
            size += unacknowledged(client)
            if broker is not None and now - self.buffered_changed_at >= SILENT_SECONDS:
                size += unread(broker)
        if self.client.holds & PEER_FULL and now - self.active_at >= SILENT_SECONDS:
            size += unread(client) + (0 if broker is None else broker.get_write_buffer_size())
        return size

    def _forget_buffered(self) -> None:
        self._buffered = 0, False
        self._host.budget.update(self, 0)
        self._host.sessions.crowded = self._host.budget.over

    def _report(self, events: list[Event]) -> None:
        for event in events:
            if not isinstance(event, Fault):  # `_end_by` reports it, once
                self.last_event = type(event).__name__
                self._host.report(event, self)
                if isinstance(event, SessionLost):
                    self.last_error = event.reason

    def _end_by(self, fault: Fault) -> None:
        if self.phase < LinkPhase.FINISHED:
            self.last_event = f"fault of the {fault.side}: {fault.reason}"
            self.last_error = self.last_event
            self._host.report(fault, self)
            self.finish()

    def _fail(self, error: Exception) -> None:
        self._host.log.error(
            "connection closed by a defect of fetchgate; please report it", **self.log_fields, exc_info=error
        )
        self.last_event = self.last_error = "defect"
        self.abort()

    def _forget_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _finish_closed(self) -> None:
        if self.client.transport is not None or self.has_broker or self.phase is LinkPhase.CLOSED:
            return
        self.phase = LinkPhase.CLOSED
        self._forget_deadline()
        self.core.ended(monotonic())
        self._forget_buffered()
        self._host.closed(self)


# A member of an enum is looked up slowly.
_OPEN: Final = LinkPhase.OPEN


class ClientProtocol(asyncio.Protocol):
    """The asyncio protocol of the client's socket. It passes the event loop's calls to the link.

    `data_received` is a method of the link itself, to save a call for each read.
    """

    __slots__ = ("_link", "data_received")

    def __init__(self, link: Link) -> None:
        self._link = link
        self.data_received = link.client_received  # type: ignore[method-assign]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._link.client_connected(cast("asyncio.Transport", transport))

    def eof_received(self) -> bool:
        # With TLS, the gateway can't send responses after the client's end.
        self._link.client_ended()
        return self._link.half_closes

    def pause_writing(self) -> None:
        self._link.client_full(True)

    def resume_writing(self) -> None:
        self._link.client_full(False)

    def connection_lost(self, _exc: Exception | None) -> None:
        self._link.client_lost()


class BrokerProtocol(asyncio.Protocol):
    """The asyncio protocol of the broker's socket. See `ClientProtocol`."""

    __slots__ = ("_link", "data_received")

    def __init__(self, link: Link) -> None:
        self._link = link
        self.data_received = link.broker_received  # type: ignore[method-assign]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._link.broker_connected(cast("asyncio.Transport", transport))

    def eof_received(self) -> bool:
        # A broker that has closed its side of the connection sends no more responses: the link is closed.
        return False

    def pause_writing(self) -> None:
        self._link.broker_full(True)

    def resume_writing(self) -> None:
        self._link.broker_full(False)

    def connection_lost(self, exc: Exception | None) -> None:
        self._link.broker_lost(exc)


def _name(peer: Any) -> str:
    return str(Address(*peer[:2])) if peer else ""


def _host_of(own: Any) -> str:
    return str(own[0]) if own else ""
