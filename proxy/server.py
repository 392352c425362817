"""The gateway: its listeners, its links, what it knows of the cluster, and how it leaves."""

import asyncio
import ctypes
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from socket import socket
from time import monotonic, time
from typing import Any, Final

from structlog.typing import FilteringBoundLogger

from proxy.binding import BACKLOG, Binding
from proxy.books import Books, NodeId, add
from proxy.bootstrap import BootstrapError, Cluster, ask_any
from proxy.budget import Budget
from proxy.captures import Tap, no_tap
from proxy.capturing import BROKER
from proxy.config import Config, with_live
from proxy.connection import Connection
from proxy.events import Event, Fault, Tally
from proxy.listeners import Broker, Brokers
from proxy.logs import reason_of
from proxy.measured import Measured
from proxy.recent import INTERVAL_SECONDS, describe
from proxy.routing import BY_NAME, Address
from proxy.session.savings import Sessions
from proxy.tls import HANDSHAKE_SECONDS, BrokerTls, ClientTls
from proxy.transparent import LOOPED, Destination, Destinations, is_own, leaving, listen
from proxy.transports import IDLE, NO_REQUEST, ClientProtocol, Link

REFRESH_SECONDS: Final = 60.0
"""How often the cluster is asked for its brokers while it answers."""
RETRY_SECONDS: Final = (1.0, 30.0)
"""The first and the longest wait after it did not answer; each wait doubles."""
TICK_SECONDS: Final = 5.0
"""How often listeners that could not be bound are tried again and stalled connections are looked for."""
LIMIT: Final = "limit"
DRAINING: Final = "draining"
ROOM_AGAIN: Final = 0.9
"""Below this share of --max-connections it is said again when they are reached."""
LOOP_SECONDS: Final = 60.0
"""How long /readyz tells of a connection of the gateway's own that came back."""
TRIM_BYTES: Final = 16_777_216
"""When so much less is held than was, memory is given back."""


STATES: Final = ("starting", "ready", "degraded", "draining")


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """What ``/readyz`` says."""

    state: str
    """One of `STATES`."""
    reasons: list[str]

    @property
    def ready(self) -> bool:
        """Tell whether clients can be served."""
        return self.state in {"ready", "degraded"}


class Gateway:
    """One process of ``fetchgate proxy``.

    Args:
        config: what the operator asked for.
        loop: the event loop that runs it.
        log: where its lines go.
        tap: what stands between sockets and protocols.
        inherited: sockets that listen already, handed over by systemd.
    """

    def __init__(
        self,
        config: Config,
        loop: asyncio.AbstractEventLoop,
        log: FilteringBoundLogger,
        tap: Tap = no_tap,
        inherited: Sequence[socket] = (),
    ) -> None:
        self.loop = loop
        self.tap = tap
        self.log = log
        self.sessions = Sessions(
            max_sessions=config.max_sessions, on=config.sessions, off_for=config.sessions_off_for
        )
        self.budget = Budget(config.max_inflight_bytes)
        self.links: set[Link] = set()
        self.books = Books()
        self.accepted = 0
        self.faults = {"client": 0, "broker": 0}
        self.turned_away = dict.fromkeys((LIMIT, DRAINING, NO_REQUEST, IDLE), 0)
        """Connections that the gateway itself closed, by reason."""
        self.started_at = monotonic()
        self.listen = config.listen
        self._config = config
        self._binding = Binding(config.reuse_port, inherited)
        self._bootstrap = config.bootstrap
        self._servers: dict[int | None, list[asyncio.Server]] = {}
        self._unserved: set[socket] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._troubles: dict[int | None, str] = {None: "the bootstrap was not asked yet"}
        self._seen_bootstrap = False
        self._draining = False
        self._crowded = False
        self._emptied = asyncio.Event()
        self._transparent = config.transparent != "off"
        self._broker_tls = BrokerTls(config)
        self._client_tls = ClientTls(config, self._handshake_failed)
        self._ways: set[tuple[int, Address]] = set()
        self._looped_at = -LOOP_SECONDS
        self.brokers: Brokers | Destinations

    def open(self) -> None:
        """Bind the bootstrap listener and those of the brokers that are known from before; begin to work.

        Raises:
            OSError: the address of the bootstrap listener can't be bound.
        """
        if self._transparent:
            self._open_transparent()
        else:
            self._open_explicit()
        self.spawn(self._look_after())
        self.spawn(self._keep_history())

    def _open_transparent(self) -> None:
        sockets = listen(self.listen, self._config.transparent, self._binding)
        self.listen = Address(self.listen.host, sockets[0].getsockname()[1])
        self.brokers = Destinations(self._config.transparent)
        self._troubles.clear()
        self._seen_bootstrap = True
        self._serve(None, sockets)
        self.log.info("ready", transparent=self._config.transparent)
        self.note("ready", f"ready: connections come by {self._config.transparent}")

    def _open_explicit(self) -> None:
        sockets = self._binding.bind(self.listen)
        self.listen = Address(self.listen.host, sockets[0].getsockname()[1])
        self.brokers = Brokers(
            rule=self._config.broker_ports,
            listen=self.listen,
            advertise=self._config.advertise,
            serve=self._serve,
            stop=self._stop,
            log=self.log,
            state=self._config.state,
            shares=self._client_tls.listening is not None,
            binding=self._binding,
        )
        self._serve(None, sockets)
        self.brokers.load()
        self.spawn(self._follow_cluster())

    # -- what links ask for --------------------------------------------------------------------------------

    def make_core(self, reached_at: str, measured: Measured) -> Connection:
        """Give a core for a new connection."""
        brokers = self.brokers
        return Connection(
            sessions=self.sessions,
            resolve=partial(brokers.resolve, reached_at) if isinstance(brokers, Brokers) else None,
            max_request_bytes=self._config.max_request_bytes,
            measured=measured,
            foreign=self._transparent,
        )

    @property
    def shares(self) -> bool:
        """Whether another gateway may listen at the same ports, to take over from this one."""
        return self._binding.shares

    @property
    def max_connections(self) -> int:
        """Clients that may be connected at one time."""
        return self._config.max_connections

    def admits(self) -> bool:
        """Tell whether one more client is taken; that there is no room is said once until there is again."""
        if self._draining:
            self.turned_away[DRAINING] += 1
            return False
        if len(self.links) < self.max_connections:
            return True
        self.turned_away[LIMIT] += 1
        if not self._crowded:
            self._crowded = True
            self.log.warning(
                "no room for more clients, they are closed", max_connections=self.max_connections
            )
            self.note("limit", f"no room: {self._full()}", warning=True)
        return False

    def _full(self) -> str:
        return (
            f"all {self.max_connections} connections are taken, others are closed at once;"
            " see --max-connections"
        )

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
        if (port, meant) in self._ways and is_own(host):
            self._looped_at = monotonic()
            return self._lost_way("the gateway's own connection came back: exclude its user from the rules")
        return number

    def _by_name(self, link: Link) -> int | None:
        """Give the broker of a link's listener; on a shared one of the name that the client asked for."""
        if link.node_id not in {None, BY_NAME}:
            return link.node_id
        called = self._config.broker_ports.called(link.asked_for) if link.asked_for else None
        if called is None:
            return None
        if called in self.brokers.known:
            return called
        return self._lost_way(f"a client asked for {link.asked_for}: no such broker is known (yet)")

    async def toward(self, link: Link, address: Address) -> Mapping[str, Any]:
        """Give what asyncio takes to connect to an address.

        In transparent mode the way is noted before the first packet leaves: on loopback a connection that
        comes back is accepted before this one is known to stand.

        Raises:
            OSError: nobody answers there.
        """
        if not self._transparent:
            return {"host": address.host, "port": address.port}
        sock = leaving(address)
        link.way = (sock.getsockname()[1], address)
        self._ways.add(link.way)
        try:
            await self.loop.sock_connect(sock, (address.host, address.port))
        except BaseException:
            sock.close()
            raise
        return {"sock": sock}

    def _lost_way(self, reason: str) -> int:
        """Refuse a client that can't be served; why is said once until it is different."""
        if self._troubles.get(LOOPED) != reason:
            self._troubles[LOOPED] = reason
            self.log.warning("client refused", reason=reason)
            self.note("refused", f"a client is refused: {reason}", warning=True)
        return LOOPED

    def measured(self, node_id: int | None) -> Measured:
        """Give what connections to a broker are measured into."""
        return self.books.measured(node_id)

    def tls_to(self, link: Link, address: Address) -> Mapping[str, Any]:
        """Give what asyncio takes for TLS to an address; nothing for plain text.

        In transparent mode a client that speaks TLS has told the broker's name; the address is a mere IP.
        """
        return self._broker_tls.to((self._transparent and link.asked_for) or address.host)

    def way_of(self, link: Link) -> Sequence[Address]:
        """Give the addresses to try for a connection, in order."""
        if not self._transparent:
            return self.targets(link.node_id)
        return (link.broker_address,) if link.broker_address and link.node_id != LOOPED else ()

    def targets(self, node_id: int | None) -> Sequence[Address]:
        """Give the addresses of a broker; None: the bootstrap."""
        if node_id is None:
            return self._bootstrap
        broker = self.brokers.known.get(node_id)
        return (broker.address,) if broker else ()

    def connected(self, node_id: int | None, address: Address) -> None:
        """Take note that an address answered; bootstrap addresses that did are tried first from now on."""
        if node_id is None and self._bootstrap[0] != address:
            rest = tuple(other for other in self._bootstrap if other != address)
            self._bootstrap = (address, *rest)
        if node_id in self._troubles and (node_id is not None or self._seen_bootstrap):
            del self._troubles[node_id]
            who = "bootstrap" if node_id is None else node_id
            self.log.info("broker reachable again", broker=who, address=str(address))
            self.note("reachable again", f"{self.called(node_id)} is reachable again at {address}")

    def unreachable(self, node_id: int | None, reason: str) -> None:
        """Take note that none did; said once until it is different."""
        if node_id is None:
            self._bootstrap_trouble(reason)
        elif node_id != LOOPED and self._troubles.get(node_id) != reason:
            self._troubles[node_id] = reason
            self.log.warning("broker unreachable, its clients are closed", broker=node_id, reason=reason)
            self.note("unreachable", f"{self.called(node_id)} is unreachable: {reason}", warning=True)

    def faulted(self, fault: Fault) -> None:
        """Count a protocol fault."""
        self.faults[fault.side] = self.faults.get(fault.side, 0) + 1

    def happened(self, event: Event, link: Link) -> None:
        """Keep in words what a connection reports."""
        client = link.core.client_id or link.client_address
        if (told := describe(event, client, self.called(link.node_id))) is not None:
            kind, text, warning = told
            self.note(kind, text, warning=warning)

    def note(self, kind: str, text: str, *, warning: bool = False) -> None:
        """Keep something that happened, in words, for those who look at the gateway."""
        self.books.happenings.note(time(), kind, text, warning=warning)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a task and keep it alive."""
        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def opened(self, link: Link) -> None:
        """Take a link into the books."""
        self.links.add(link)
        self.accepted += 1

    def closed(self, link: Link) -> None:
        """Strike a link off, and keep what it counted."""
        self.links.discard(link)
        if link.way is not None:
            self._ways.discard(link.way)
        self.books.closed(link.node_id, link.core.tally)
        if not self.links:
            self._emptied.set()

    # -- what admin and cli ask for ------------------------------------------------------------------------

    def tally(self) -> Tally:
        """Add up all connections, open and closed."""
        total = Tally()
        for tally in self.tallies().values():
            add(total, tally)
        return total

    def tallies(self) -> dict[NodeId, Tally]:
        """Add up the connections of each broker, open and closed."""
        return self.books.by_broker((link.node_id, link.core.tally) for link in self.links)

    def health(self) -> Health:
        """Tell whether clients can be served, and what is amiss."""
        known = self.brokers.known.keys()
        reasons = [self._troubles[key] for key in self._troubles if key is None or key in known]
        asked = set(known) if self._transparent else {None, *known}
        if asked and self._troubles.keys() >= asked and self._seen_bootstrap:
            reasons.insert(0, "no broker is reachable")
        if monotonic() - self._looped_at < LOOP_SECONDS:
            reasons.append(self._troubles[LOOPED])
        reasons += self.brokers.problems
        followed = (self._broker_tls.followed, self._client_tls.followed)
        reasons += [each.problem for each in followed if each is not None and each.problem]
        reasons += self._limits()
        if self._draining:
            return Health(state="draining", reasons=reasons)
        if not self._seen_bootstrap:
            return Health(state="starting", reasons=reasons)
        return Health(state="degraded" if reasons else "ready", reasons=reasons)

    def _limits(self) -> list[str]:
        """Say which limits are reached."""
        reached = []
        sessions, budget = self.sessions, self.budget
        if sessions.on and 0 < sessions.max_sessions <= sessions.held:
            reached.append(
                f"all {sessions.max_sessions} session slots are taken, other clients pass as they come;"
                " see --max-sessions"
            )
        if budget.over:
            reached.append(
                f"{budget.total} bytes of answers are held, brokers wait; see --max-inflight-bytes"
            )
        if len(self.links) >= self.max_connections:
            reached.append(self._full())
        return reached

    def known(self) -> list[Broker | Destination]:
        """Give the brokers that are known, by number."""
        return [self.brokers.known[number] for number in sorted(self.brokers.known)]

    def called(self, node_id: NodeId) -> str:
        """Name a broker for people: by its id, or by its address where none is known."""
        if not self._transparent or node_id is None:
            return _called(node_id)
        known = self.brokers.known.get(node_id)
        return str(known.address) if known else {LOOPED: "nowhere"}.get(node_id, "other")

    def trouble_of(self, node_id: NodeId) -> str:
        """Say why a broker can't be reached; nothing when it can."""
        return self._troubles.get(node_id, "")

    def reconfigure(self, config: Config) -> None:
        """Take the options that apply at once.

        They count for connections that are open, too, but for the largest request: that is for those to come.
        Sessions beyond a lowered limit stay until they end.
        """
        self._config = with_live(self._config, config)
        self.set_sessions(on=config.sessions, off_for=config.sessions_off_for)
        self.sessions.max_sessions = config.max_sessions
        self.budget.limit = config.max_inflight_bytes
        self.budget.settle()
        self.sessions.crowded = self.budget.over

    def set_sessions(self, *, on: bool, off_for: frozenset[str]) -> None:
        """Turn the switch, at once and for connections that are open, too."""
        self.sessions.on = on
        self.sessions.off_for = off_for

    async def drain(self, within: float) -> int:
        """Take no new clients, finish what is in flight, close the sessions at the brokers, close all.

        Args:
            within: seconds after which what is left is cut off.

        Returns:
            The number of connections that had to be cut off when the time was over.
        """
        self._draining = True
        self.note("draining", f"draining: {len(self.links)} connections finish what is in flight")
        for node_id in list(self._servers):
            self._stop(node_id)
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
        for node_id in list(self._servers):
            self._stop(node_id)
        left = len(self.links)
        for link in list(self.links):
            link.abort()
        for task in list(self._tasks):
            task.cancel()
        for sock in self._unserved:
            sock.close()
        return left

    # -- TLS -----------------------------------------------------------------------------------------------

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

    def _handshake_failed(self, reason: str) -> None:
        self.faults["client"] += 1
        self.log.warning("TLS handshake of a client failed", reason=reason)

    # -- listeners -----------------------------------------------------------------------------------------

    def _serve(self, node_id: int | None, sockets: list[socket]) -> None:
        self._servers[node_id] = []
        self._unserved.update(sockets)
        for sock in sockets:
            self.spawn(self._accept(node_id, sock))

    async def _accept(self, node_id: int | None, sock: socket) -> None:
        server = await self.loop.create_server(
            lambda: self.tap(ClientProtocol(Link(self, node_id)), BROKER),
            sock=sock,
            backlog=BACKLOG,
            ssl=self._client_tls.listening,
            ssl_handshake_timeout=HANDSHAKE_SECONDS if self._client_tls.listening else None,
        )
        self._unserved.discard(sock)
        if node_id in self._servers:
            self._servers[node_id].append(server)
        else:
            server.close()

    def _stop(self, node_id: int | None) -> None:
        for server in self._servers.pop(node_id, []):
            server.close()

    # -- the cluster ---------------------------------------------------------------------------------------

    async def _follow_cluster(self) -> None:
        """Ask for the brokers for ever, with a growing wait while the cluster does not answer."""
        wait = RETRY_SECONDS[0]
        while True:
            try:
                cluster = await ask_any(self._bootstrap, self._broker_tls)
            except BootstrapError as error:
                self._bootstrap_trouble(str(error))
                await asyncio.sleep(wait)
                wait = min(wait * 2, RETRY_SECONDS[1])
            else:
                self._bootstrap_answered(cluster)
                wait = RETRY_SECONDS[0]
                await asyncio.sleep(REFRESH_SECONDS)

    def _bootstrap_answered(self, cluster: Cluster) -> None:
        self.connected(None, cluster.address)
        if cluster.brokers is not None and isinstance(self.brokers, Brokers):
            in_use = {link.node_id for link in self.links if link.node_id is not None}
            self.brokers.named(cluster.brokers, in_use, monotonic())
        if self._seen_bootstrap:
            return
        self._seen_bootstrap = True
        del self._troubles[None]
        self.log.info("ready", bootstrap=str(cluster.address), brokers=sorted(self.brokers.known))
        self.note("ready", f"ready: the bootstrap {cluster.address} answered")
        if cluster.brokers is None:
            self.log.info("the cluster wants authentication: brokers are learned from clients' answers")

    def _bootstrap_trouble(self, reason: str) -> None:
        if self._troubles.get(None) != reason:
            self._troubles[None] = reason
            self.log.warning("bootstrap unreachable, trying again", reason=reason)
            self.note("unreachable", f"the bootstrap is unreachable: {reason}", warning=True)

    async def _keep_history(self) -> None:
        """Take the sums for a picture of now, and see by how much the event loop was late."""
        while True:
            asked = monotonic()
            await asyncio.sleep(INTERVAL_SECONDS)
            now = monotonic()
            self.books.loop_lag.note([max(0.0, now - asked - INTERVAL_SECONDS)])
            self.books.sample(now, ((link.node_id, link.core.tally) for link in self.links))

    async def _look_after(self) -> None:
        most = 0
        while True:
            await asyncio.sleep(TICK_SECONDS)
            self.brokers.retry()
            self.follow_files()
            self._end_overdue()
            if len(self.links) < ROOM_AGAIN * self.max_connections:
                self._crowded = False
            held = self.budget.total
            if most - held > TRIM_BYTES:
                _give_back_memory()
                most = held
            most = max(most, held)
            stalled = self.budget.stalled(monotonic())
            if isinstance(stalled, Link):
                self.log.warning("connection cut off: it held memory that others wait for", **stalled.who)
                stalled.abort()

    def _end_overdue(self) -> None:
        """End, as if they had left, clients that have been waited for long enough."""
        config, now = self._config, monotonic()
        for link in list(self.links):
            reason = link.overdue(now, idle=config.idle_timeout, handshake=config.handshake_timeout)
            if reason:
                self.turned_away[reason] += 1
                self.log.debug("connection closed", reason=reason, **link.who)
                link.close_session(reason)


def _give_back_memory() -> None:
    """Return to the system what large answers took; glibc would keep it."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def _end(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port or 0)


def _own_host(shown: Any) -> str:
    return str(shown.getsockname()[0])


def _called(node_id: int | None) -> str:
    return "the bootstrap" if node_id is None else f"broker {node_id}"
