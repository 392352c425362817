"""What serves clients in one process: the links, what they ask for and share, what they have counted."""

import asyncio
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from time import monotonic, process_time
from typing import Any, Final

from proxy.addresses import BY_NAME, LOOPED, Address, listeners
from proxy.capture.pcap import CLIENT
from proxy.capture.tap import Capture, Tap, no_tap
from proxy.config import Config, with_live
from proxy.core.budget import Budget, RequestBudget
from proxy.core.connection import Connection
from proxy.core.eligibility import SessionLimits
from proxy.core.events import Event, Fault, Tally
from proxy.core.histograms import Measured
from proxy.logger import Logger
from proxy.net.link import BUDGET, IDLE, NO_REQUEST, NOT_READING, PEER_FULL, Link
from proxy.net.loop_guard import see_that_elsewhere
from proxy.net.sockets import BrokerProtocol
from proxy.net.tls import BrokerTls, ClientTls
from proxy.net.transparent import Destinations, OutboundPorts, is_own, leaving
from proxy.reasons import reason_of
from proxy.server.base import Service
from proxy.server.conditions import Descriptors
from proxy.server.listeners import Directory
from proxy.server.process import give_back
from proxy.telemetry.history import describe, write_event
from proxy.telemetry.status import Account, Counts, Health, Process, Status, WithBroker, health_of
from proxy.telemetry.totals import NodeId

TICK_SECONDS: Final = 5.0
"""How often stalled connections are looked for, files that may have changed, and what is to be forgotten."""
LIMIT: Final = "limit"
DRAINING: Final = "draining"
LOOP_SECONDS: Final = 60.0
"""How long /readyz tells of a connection of the gateway's own that came back."""
TRIM_BYTES: Final = 16_777_216
"""When so much less is held than was, memory is given back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """What the processes of one gateway share; a gateway of one process has it for itself."""

    number: int = 1
    """Which of them this is, from 1."""
    slots: "list[int] | memoryview[int]" = field(default_factory=lambda: [0])
    """Slots at brokers that each holds."""
    ways: OutboundPorts = field(default_factory=OutboundPorts)


class Server(Service):
    """Serves the clients that it is given.

    Args:
        config: what the operator asked for.
        loop: the event loop that runs it.
        log: where its lines go.
        tap: what stands between sockets and protocols.
        shared: what it shares with other processes.
    """

    def __init__(
        self,
        config: Config,
        loop: asyncio.AbstractEventLoop,
        log: Logger,
        tap: Tap = no_tap,
        shared: Shared | None = None,
    ) -> None:
        super().__init__(config, loop, log)
        self.tap = tap
        self.shared = shared or Shared()
        self.sessions = SessionLimits(max_sessions=0, slots=self.shared.slots, own=self.shared.number - 1)
        self.budget = Budget(0)
        self.request_budget = RequestBudget(0)
        self._apply_limits()
        self.links: set[Link] = set()
        self.accepted = 0
        self.faults = Counter({"client": 0, "broker": 0})
        self.turned_away = Counter(dict.fromkeys((LIMIT, DRAINING, NO_REQUEST, IDLE, NOT_READING), 0))
        """Connections that the gateway itself closed, by reason."""
        self._descriptors = Descriptors(log, self.note)
        self._emptied = asyncio.Event()
        self._broker_tls = BrokerTls(config)
        self._client_tls = ClientTls(config, self._handshake_failed)
        self._expired = ""
        """Why clients refuse the certificate that they are shown."""
        self._looped_at = -LOOP_SECONDS
        self._lost = ""
        """Why the last client was refused that could not be served."""

    def begin(self) -> None:
        """Begin to look after the links."""
        self._look_at_the_clock()
        self.spawn(self._look_after())
        self.spawn(self.keep_history())

    # -- what links ask for --------------------------------------------------------------------------------

    def admits(self) -> bool:
        """Tell whether one more client is taken; see `ConnectionLimit`."""
        if self._draining:
            self.turned_away[DRAINING] += 1
            return False
        if self._room.for_one_more(len(self.links), self.config.max_connections, monotonic()):
            return True
        self.turned_away[LIMIT] += 1
        return False

    def arrived(self, link: Link, shown: Any) -> int | None:
        """Give the broker that a new connection is for: that of its listener, or where it was going.

        Args:
            link: the connection; its client's address is known.
            shown: its socket, as the event loop shows it.
        """
        if not isinstance(self.brokers, Destinations):
            return self._by_name(link)
        try:
            number, meant = self.brokers.of(shown)
        except OSError as error:
            return self._lost_way(
                f"no original destination ({reason_of(error)}): only clients that netfilter brings are served"
            )
        link.broker_address = meant
        if meant.port == self.listen.port and meant.host == _own_host(shown):
            return self._lost_way("a client connected to --listen itself, which only netfilter leads to")
        host, port = _end(link.client_address)
        if (port, meant) in self.shared.ways and is_own(host):
            self._looped_at = monotonic()
            return self._lost_way("the gateway's own connection came back: exclude its user from the rules")
        return number

    def _by_name(self, link: Link) -> int | None:
        """Give the broker of a link's listener; on a shared one of the name that the client asked for."""
        if link.node_id not in {None, BY_NAME}:
            return link.node_id
        named = self.config.broker_ports.called(link.asked_for) if link.asked_for else None
        if named is None:
            return None
        if self.knows(named):
            return named
        return self._lost_way(f"a client asked for {link.asked_for}: no such broker is known (yet)")

    def knows(self, node_id: int) -> bool:
        """Tell whether a broker is known."""
        return node_id in self.brokers.known

    async def connect_broker(self, link: Link, address: Address) -> None:
        """Connect the link's broker.

        Raises:
            OSError: nobody answers there, or the gateway itself does.
        """
        await self.loop.create_connection(
            lambda: self.tap(BrokerProtocol(link), CLIENT),
            **await self._connect_args(link, address),
            **self.tls_to(link, address),
        )

    async def _connect_args(self, link: Link, address: Address) -> Mapping[str, Any]:
        """Give what asyncio takes to connect to an address.

        In transparent mode the way is noted before the first packet leaves: on loopback a connection that
        comes back is accepted before this one is known to stand.

        Raises:
            OSError: nobody answers there, or the gateway itself does.
        """
        if not self._transparent:
            known, shares = self.brokers.known.values(), self.config.tls_cert is not None
            await see_that_elsewhere(address, listeners(self.listen, known, shares=shares))
            return {"host": address.host, "port": address.port}
        sock = leaving(address)
        link.way = (sock.getsockname()[1], address)
        self.shared.ways.add(link.way)
        try:
            await self.loop.sock_connect(sock, (address.host, address.port))
        except BaseException:
            sock.close()
            raise
        return {"sock": sock}

    def _lost_way(self, reason: str) -> int:
        """Refuse a client that can't be served; why is said once until it is different."""
        if self._lost != reason:
            self._lost = reason
            self.log.warning("client refused", reason=reason)
            self.note("refused", f"a client is refused: {reason}", warning=True)
        return LOOPED

    def tls_to(self, link: Link, address: Address) -> Mapping[str, Any]:
        """Give what asyncio takes for TLS to an address; nothing for plain text.

        In transparent mode a client that speaks TLS has told the broker's name; the address is a mere IP.
        """
        return self._broker_tls.to((self._transparent and link.asked_for) or address.host)

    def addresses_for(self, link: Link) -> Sequence[Address]:
        """Give the addresses to try for a connection, in order."""
        if not self._transparent:
            return self.targets(link.node_id)
        return (link.broker_address,) if link.broker_address and link.node_id != LOOPED else ()

    def targets(self, node_id: int | None) -> Sequence[Address]:
        """Give the addresses of a broker; None: the bootstrap."""
        if node_id is None:
            return self.reach.bootstrap
        broker = self.brokers.known.get(node_id)
        return (broker.address,) if broker else ()

    def connected(self, node_id: int | None, address: Address) -> None:
        """Take note that an address answered."""
        self.reach.connected(node_id, address)

    def unreachable(self, node_id: int | None, reason: str) -> None:
        """Take note that none did."""
        self.reach.unreachable(node_id, reason)

    def exhausted(self) -> None:
        """Take note that there was no file descriptor for a client or its broker."""
        self._descriptors.seen(left=False, now=monotonic())

    def happened(self, event: Event, link: Link) -> None:
        """Log what a connection reports, keep it in words, and count a fault."""
        if isinstance(event, Fault):
            self.faults[event.side] += 1
        write_event(self.log, event, **link.who)
        client = link.core.client_id or link.client_address
        if (told := describe(event, client, self.called(link.node_id))) is not None:
            kind, text, warning = told
            self.note(kind, text, warning=warning)

    def opened(self, link: Link, shown: Any, reached_at: str) -> Connection:
        """Count a new connection, find the broker that it is for, and make its core.

        Args:
            link: the connection; its client's address is known.
            shown: its socket, as the event loop shows it.
            reached_at: the gateway's address as the client found it.
        """
        link.node_id = self.arrived(link, shown)
        link.measured = self.totals.measured(link.node_id)
        self.links.add(link)
        self.accepted += 1
        return self.make_core(reached_at, link.measured)

    def make_core(self, reached_at: str, measured: Measured) -> Connection:
        """Give a core for a new connection."""
        brokers = self.brokers
        return Connection(
            sessions=self.sessions,
            resolve=partial(brokers.resolve, reached_at) if isinstance(brokers, Directory) else None,
            max_request_bytes=self.config.max_request_bytes,
            measured=measured,
            foreign=self._transparent,
            request_budget=self.request_budget,
        )

    def closed(self, link: Link) -> None:
        """Strike a link off, and keep what it counted."""
        self.links.discard(link)
        if link.way is not None:
            self.shared.ways.discard(link.way)
        self.totals.closed(link.node_id, link.core.tally)
        if not self.links:
            self._emptied.set()

    # -- what it tells of itself ---------------------------------------------------------------------------

    def tallies(self) -> dict[NodeId, Tally]:
        """Add up the connections of each broker, open and closed."""
        return self.totals.by_broker((link.node_id, link.core.tally) for link in self.links)

    def status(self) -> Status:
        """Tell how it stands."""
        followed = (self._broker_tls.followed, self._client_tls.followed)
        problems = [self._lost] if monotonic() - self._looped_at < LOOP_SECONDS else []
        problems += self.brokers.problems + self.mistakes
        problems += [self._descriptors.problem] if self._descriptors.problem else []
        problems += [each.problem for each in followed if each is not None and each.problem]
        problems += [self._expired] if self._expired else []
        status = self.status_of(problems, slots_held=self.sessions.used, connections=len(self.links))
        status.held_bytes, status.over = self.budget.total, self.budget.over
        status.capture_stopped = isinstance(self.tap, Capture) and not self.tap.on
        return status

    def health(self) -> Health:
        """Tell whether clients can be served, and what is amiss."""
        return health_of(self.status())

    def counts(self) -> Counts:
        """Tell what was counted, and which connections stand."""
        by_broker: dict[NodeId, WithBroker] = {}
        paused = Counter(
            dict.fromkeys((("client", "broker_full"), ("broker", "client_full"), ("broker", "budget")), 0)
        )
        for link in self.links:
            with_broker = by_broker.setdefault(link.node_id, WithBroker())
            with_broker.connections += 1
            with_broker.reached += link.has_broker
            if link.core.session_id:
                with_broker.sessions += 1
                with_broker.session_partitions += link.core.session_partitions
            paused["client", "broker_full"] += link.client_holds & PEER_FULL != 0
            paused["broker", "client_full"] += link.broker_holds & PEER_FULL != 0
            paused["broker", "budget"] += link.broker_holds & BUDGET != 0
        process = Process(
            number=self.shared.number,
            pid=os.getpid(),
            connections=len(self.links),
            cpu_seconds=process_time(),
            resident_bytes=_resident_bytes(),
            open_fds=_open_fds(),
        )
        return Counts(
            tallies=self.tallies(),
            measured=self.totals.all_measured(),
            loop_lag=self.totals.loop_lag,
            accepted=self.accepted,
            turned_away=self.turned_away,
            faults=self.faults,
            recent_events=self.totals.recent_events,
            links=by_broker,
            paused=paused,
            processes=[process],
        )

    def account(self) -> Account:
        """Tell everything but the connections one by one."""
        return self.account_of(self.status(), self.counts())

    # -- how it changes and ends ---------------------------------------------------------------------------

    def reconfigure(self, config: Config) -> None:
        """Take the options that apply at once.

        They count for connections that are open, too, but for the largest request: that is for those to come.
        Sessions beyond a lowered limit stay until they end.
        """
        self.config = with_live(self.config, config)
        self._apply_limits()
        self.budget.settle()
        self.sessions.crowded = self.budget.over

    def _apply_limits(self) -> None:
        """Pass the options to the sessions and the budgets; other options are looked up where they apply."""
        config = self.config
        self.sessions.on = config.sessions
        self.sessions.off_for = config.sessions_off_for
        self.sessions.max_sessions = config.max_sessions
        self.budget.limit = self.request_budget.limit = config.max_inflight_bytes

    def follow_files(self) -> None:
        """Read certificates again whose files have changed; connections that are open stay as they are."""
        for side, tls in (("broker", self._broker_tls), ("client", self._client_tls)):
            followed = tls.followed
            if followed is None or not followed.follow():
                continue
            if followed.problem:
                self.log.warning("certificates not reloaded", side=side, reason=followed.problem)
                self.note("certificates", followed.problem, warning=True)
            else:
                self.log.info("certificates reloaded", side=side)
                self.note("certificates", f"new certificates toward the {side} are in use")
        self._look_at_the_clock()

    def _look_at_the_clock(self) -> None:
        """Tell once when the certificate that clients are shown has expired."""
        before, self._expired = self._expired, self._client_tls.expired(datetime.now(UTC))
        if self._expired and self._expired != before:
            self.log.warning("certificate expired", side="client", reason=self._expired)
            self.note("certificates", self._expired, warning=True)

    async def drain(self, within: float) -> int:
        """Take no new clients, finish what is in flight, close the sessions at the brokers, close all.

        Args:
            within: seconds after which what is left is cut off.

        Returns:
            The number of connections that had to be cut off when the time was over.
        """
        self._draining = True
        self.note("draining", f"draining: {len(self.links)} connections finish what is in flight")
        for link in list(self.links):
            link.close_session("gateway leaves", within=within)
        if self.links:
            self._emptied.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(within):
                    await self._emptied.wait()
        return self.close()

    def close(self) -> int:
        """Close everything at once; give the number of connections that were open."""
        left = len(self.links)
        for link in list(self.links):
            link.abort()
        self.cancel()
        return left

    def _handshake_failed(self, reason: str) -> None:
        self.faults["client"] += 1
        self.log.warning("TLS handshake of a client failed", reason=reason)

    async def sample(self, now: float) -> None:
        """Take the sums of all connections."""
        self.totals.sample(now, ((link.node_id, link.core.tally) for link in self.links))

    async def _look_after(self) -> None:
        most = 0
        while True:
            await asyncio.sleep(TICK_SECONDS)
            self.follow_files()
            self._end_overdue()
            self.reach.forget(monotonic())
            self._descriptors.seen(left=_two_descriptors_left(), now=monotonic())
            held = self.budget.total
            if most - held > TRIM_BYTES:
                give_back()
                most = held
            most = max(most, held)
            stalled = self.budget.stalled(monotonic())
            if isinstance(stalled, Link):
                self.log.warning("connection cut off: it held memory that others wait for", **stalled.who)
                stalled.abort()

    def _end_overdue(self) -> None:
        """End, as if they had left, clients that have been waited for long enough."""
        config, now = self.config, monotonic()
        for link in list(self.links):
            reason = link.overdue(now, idle=config.idle_timeout, handshake=config.handshake_timeout)
            if reason:
                self.turned_away[reason] += 1
                self.log.debug("connection closed", reason=reason, **link.who)
                link.close_session(reason)


def _resident_bytes() -> int:
    """Tell how much memory the process has; 0 where there is no /proc."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except OSError:
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def _open_fds() -> int:
    """Tell how many file descriptors the process has open; 0 where there is no /proc."""
    with suppress(OSError):
        return sum(1 for _ in Path("/proc/self/fd").iterdir())
    return 0


def _two_descriptors_left() -> bool:
    """Tell whether a client could be taken: it needs one, and its broker another."""
    try:
        two = os.pipe()
    except OSError:
        return False
    for each in two:
        os.close(each)
    return True


def _end(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port or 0)


def _own_host(shown: Any) -> str:
    return str(shown.getsockname()[0])
