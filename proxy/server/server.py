"""Serves clients in one process: has the links (a client with its broker), and the state that links share."""

import asyncio
import os
import random
import ssl
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from socket import socket
from time import monotonic, process_time
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakValueDictionary

from proxy.addresses import Address
from proxy.capture.no_tap import BROKER, Tap
from proxy.core.budget import REQUESTS_PART, Budget, RequestBudget
from proxy.core.connection import BrokerInfo, Common, Connection
from proxy.core.eligibility import BrokerVersions, SessionLimits
from proxy.core.events import BrokersAwaited, ClientNamed, Event, Fault, LoginRefused, Passthrough, Tally
from proxy.core.leaders import Leaders
from proxy.features.begun import Begun
from proxy.net.link import BUDGET, IDLE, NO_REQUEST, NOT_READING, PEER_FULL, ClientProtocol, Link
from proxy.net.tls import ClientTls
from proxy.net.transparent import Destinations
from proxy.net.turns import Turns
from proxy.server.conditions import LOGIN_AGAIN_SECONDS, NewClients, Repeated
from proxy.server.host import Host
from proxy.server.monitor import Monitor
from proxy.server.process import Process, give_back, open_fds, resident_bytes, two_descriptors_free
from proxy.server.registry import BrokerRegistry
from proxy.server.upstream import Upstream
from proxy.session.decision import Reason
from proxy.telemetry.brokers import Owed
from proxy.telemetry.history import INTERVAL_SECONDS, describe, refusal, write_event
from proxy.telemetry.status import Account, Status, WithBroker
from proxy.telemetry.totals import NodeId
from proxy.text.error_text import is_client_refused, of_client

if TYPE_CHECKING:
    from proxy.core.asking.siblings import Siblings

TICK_SECONDS: Final = 5.0
"""How often the gateway looks for stalled connections, changed files and outdated entries."""
LIMIT: Final = "limit"
DRAINING: Final = "draining"
DRAIN_STEP_SECONDS: Final = 0.1
"""The longest time between the ends of two clients in a drain. A gateway with few clients stops sooner than
after half of ``--drain-timeout``."""
TRIM_BYTES: Final = 16_777_216
"""When to return free memory to the system: the buffered bytes have fallen by this much, or the process has
grown by more.

The process can grow without buffered bytes, because bytes that are only forwarded are not counted. Requests
of 300 clients, 1.4 MB each, left 126 MB of free memory in the heap. Returning it takes a millisecond."""
TRIM_SECONDS: Final = 60.0
"""How often free memory is returned while the process is more than `TRIM_BYTES` above its smallest size.
Memory that was in use the last time may be free now."""
_UNREAD: Final = (Reason.SASL_V0, Reason.GSSAPI)
"""Why the responses to a client are not read, so that addresses in them are not replaced."""
_REMEDY: Final = "let it use SASL handshake v1 (Sarama: Net.SASL.Version = 1), or use --transparent"


class Server:
    """Serves clients whose sockets it is given."""

    def __init__(self, process: Process, brokers: BrokerRegistry | Destinations, monitor: Monitor) -> None:
        config = process.config
        self.process = process
        self.loop = process.loop
        self.log = process.log
        self.spawn = process.spawn
        self.brokers = brokers
        self.monitor = monitor
        self.upstream = Upstream(process, brokers, monitor)
        self.tap: Tap = self.upstream.tap
        self._transparent = config.is_transparent
        self.sessions = SessionLimits(max_sessions=0, chance=random.random)
        self.budget = Budget(0)
        self.turns = Turns(self.loop.call_soon)
        self.request_budget = RequestBudget(0)
        self._apply_limits()
        self.links: set[Link] = set()
        self.handshakes: set[Link] = set()
        """The links of accepted clients that are not connected yet (in a TLS handshake). They count as
        connections."""
        self.accepted = 0
        self.faults = Counter({"client": 0, "broker": 0})
        self.turned_away = Counter(dict.fromkeys((LIMIT, DRAINING, NO_REQUEST, IDLE, NOT_READING), 0))
        """The number of connections that the gateway itself has closed for one of these reasons, and not
        because of a fault or for lack of memory."""
        self._versions = WeakValueDictionary[Address, BrokerVersions]()
        self._leaders = Leaders()
        self._siblings: Siblings | None = None
        self.features = Begun(Host(process, brokers), config.of)
        self.upstream.failed = self.features.unreachable
        self.describe = self.features.described
        self._join_siblings()
        self._failed_handshakes = Repeated(self.log, "TLS handshake of a client failed")
        self._refused_logins = Repeated(self.log, "authentication refused by the broker", LOGIN_AGAIN_SECONDS)
        self._unread_clients = Repeated(self.log, "client is given the brokers' own addresses")
        self._new_clients = NewClients(self.log)
        self._all_closed = asyncio.Event()
        self.client_tls = ClientTls(config)
        for node_id, each in self.client_tls.reloading.items():
            monitor.certificates["tls_cert" if node_id is None else f"tls_cert_of {node_id}"] = each
        monitor.certificates["broker_tls_cert"] = self.upstream.tls.reloading
        self._expired: list[str] = []
        """The certificates of the listeners that have expired, one sentence for each."""
        self._closed_owed: dict[NodeId, Owed] = {}
        """When each broker has responded last on connections that are now closed. `_owed` empties this."""
        self._looked_at = monotonic()

    def begin(self) -> None:
        self._check_expiry()
        self.spawn(self._supervise_links())
        self.spawn(self.monitor.keep_history(self.sample))

    def set_tap(self, tap: Tap) -> None:
        self.tap = self.upstream.tap = tap

    # -- clients -------------------------------------------------------------------------------------------

    def take(self, client: socket, node_id: NodeId) -> None:
        """Serve an accepted client, or close it if there are too many connections."""
        if self.monitor.admits(self.clients):
            client.setblocking(False)
            link = Link(self, node_id)
            self.handshakes.add(link)
            self.spawn(self._shake_hands(link, client, self.client_tls.accept_args(node_id)))
        else:
            self.turned_away[LIMIT] += 1
            client.close()

    async def _shake_hands(self, link: Link, client: socket, tls: Mapping[str, Any]) -> None:
        protocol = self.tap(ClientProtocol(link), BROKER)
        try:
            peer = client.getpeername() if tls else ()
            await self.loop.connect_accepted_socket(lambda: protocol, client, **tls)
        except ssl.SSLError as error:
            client.close()
            self.faults["client"] += 1
            self.monitor.tls_failures["client"] += 1
            self.monitor.authentication_failures["client"] += is_client_refused(error)
            address = Address(*peer[:2])
            self._failed_handshakes.happens(address.host, of_client(error), monotonic(), shown=str(address))
        except OSError:
            client.close()  # the client left, or took too long
        finally:
            self.handshakes.discard(link)  # on success the link is connected: see `opened`

    @property
    def clients(self) -> int:
        """The number of connected clients, including clients in a TLS handshake."""
        return len(self.links) + len(self.handshakes)

    # -- called by links: see proxy.net.link.Host ----------------------------------------------------------

    def admits(self) -> bool:
        # While the gateway drains, new clients are refused.
        self.turned_away[DRAINING] += self.monitor.draining
        return not self.monitor.draining

    def connected(self, node_id: int | None, address: Address) -> None:
        self.monitor.reach.connected(node_id, address)

    def unreachable(self, node_id: int | None, reason: str, error: Exception | None = None) -> None:
        self.upstream.unreachable(node_id, reason, error)

    def report(self, event: Event, link: Link) -> None:
        if isinstance(event, Fault):
            self.faults[event.side] += 1
        elif isinstance(event, LoginRefused):
            self.monitor.authentication_failures["client"] += 1
            self._login_refused(event, link)
        elif isinstance(event, Passthrough):
            if event.reason in _UNREAD and not self._transparent:
                self._client_unread(event.reason, link)
        elif isinstance(event, ClientNamed):
            software = f"{event.software_name} {event.software_version}".strip()
            self._new_clients.named(event.client_id, software, link.client_host, monotonic())
        elif isinstance(event, BrokersAwaited):
            self.spawn(self._open_brokers(link, event.node_ids))
        write_event(self.log, event, **link.log_fields)
        client = link.core.state.client_id or link.client_address
        if (described := describe(event, client, self.monitor.called(link.node_id))) is not None:
            kind, text, warning = described
            self.process.note(kind, text, warning=warning)

    def _login_refused(self, event: LoginRefused, link: Link) -> None:
        # The log has one line a minute for each client: clients try again all the time.
        fields = link.log_fields | {"code": event.error_code, "mechanism": event.mechanism}
        who = f"{link.client_host} {fields['client_id']}"
        self._refused_logins.happens(who, refusal(event), monotonic(), fields=fields)

    def _client_unread(self, reason: str, link: Link) -> None:
        # Responses to this client can't be rewritten, so it goes around the gateway.
        fields = link.log_fields | {"remedy": _REMEDY}
        who = f"{link.client_host} {fields['client_id']}"
        if self._unread_clients.happens(who, reason, monotonic(), fields=fields):
            client = fields["client_id"] or link.client_address
            text = f"{client} is given the brokers' own addresses, because of its {reason}: {_REMEDY}"
            self.process.note("not read", text, warning=True)

    async def _open_brokers(self, link: Link, node_ids: frozenset[int]) -> None:
        if isinstance(self.brokers, BrokerRegistry):
            await self.brokers.opened(node_ids)
        link.brokers_opened(node_ids)

    def opened(self, link: Link, sock: Any, reached_at: str) -> Connection:
        link.node_id = self.upstream.broker_of(link, sock)
        link.measured = self.monitor.totals.measured(link.node_id)
        self.handshakes.discard(link)
        self.links.add(link)
        self.accepted += 1
        addresses = self.upstream.addresses_for(link)
        if addresses:
            # The client's first bytes may come, and be logged, before `connect` begins.
            link.tries(addresses[0])
        self.spawn(self.upstream.connect(link))
        broker = ",".join(map(str, addresses))
        return self.make_core(link, reached_at, self._versions_at(addresses), broker)

    def _versions_at(self, addresses: Sequence[Address]) -> BrokerVersions:
        # Known API versions are shared by all connections to a broker. With several bootstrap addresses it is
        # unknown which broker responds, so nothing is shared.
        if len(addresses) != 1:
            return BrokerVersions()
        return self._versions.setdefault(addresses[0], BrokerVersions())

    def make_core(self, link: Link, reached_at: str, versions: BrokerVersions, broker: str) -> Connection:
        brokers = self.brokers if isinstance(self.brokers, BrokerRegistry) else None
        return Connection(
            sessions=self.sessions,
            resolve=partial(brokers.resolve, reached_at) if brokers is not None else None,
            common=self._common(link),
            broker=BrokerInfo(link.node_id, broker, versions, link.measured, self._is_opening),
            host=link.client_host,
        )

    def _common(self, link: Link) -> Common:
        return Common(
            max_request_bytes=self.process.config.max_request_bytes,
            maybe_not_kafka=self._transparent,
            request_budget=self.request_budget,
            leaders=self._leaders,
            stages=self.features.stages(link),
        )

    def _is_opening(self, node_id: int) -> bool:
        return isinstance(self.brokers, BrokerRegistry) and self.brokers.is_opening(node_id)

    def closed(self, link: Link) -> None:
        self.links.discard(link)
        self.features.closed(link)
        self.upstream.closed(link)
        self.monitor.totals.closed(link.node_id, link.core.tally)
        owed = self._closed_owed.setdefault(link.node_id, Owed())
        owed.responded_at = max(owed.responded_at, link.responded_at)
        if not self.links:
            self._all_closed.set()

    # -- its status and counts -----------------------------------------------------------------------------

    def tallies(self) -> dict[NodeId, Tally]:
        """Return the sum of all connections' tallies by broker, including closed connections."""
        return self.monitor.totals.by_broker((link.node_id, link.core.tally) for link in self.links)

    def status(self) -> Status:
        monitor, options, brokers = self.monitor, self.process.options, self.brokers
        lacking = (link.core.state.lacks_slot for link in self.links)
        return Status(
            at=monotonic(),
            config=options.config,
            listen=brokers.listen,
            brokers=brokers.known,
            reach=monitor.reach,
            hung_brokers=monitor.hung_brokers,
            draining=monitor.draining,
            problems=self._problems(),
            slots_used=self.sessions.used,
            slots_lacking=not self.sessions.left and any(lacking),
            connections=self.clients,
            buffered_bytes=self.budget.total,
            over=self.budget.over,
            capture_stopped=bool(self.tap.stopped),
            reloaded_at=options.reloaded_at,
            reload_failures=options.reload_failures,
            needs_restart=list(options.needs_restart),
            certificates={
                option: each.valid_until.timestamp()
                for option, each in monitor.certificates.items()
                if each is not None and each.valid_until is not None
            },
            broker_certificates=self.upstream.certificates.copy(),
        )

    def _problems(self) -> list[str]:
        contexts = (self.upstream.tls.reloading, *self.client_tls.reloading.values())
        problems = [*self.upstream.problems(), *self.brokers.problems, *self.process.options.problems()]
        problems += [self.monitor.descriptors.problem] if self.monitor.descriptors.problem else []
        problems += dict.fromkeys(each.problem for each in contexts if each is not None and each.problem)
        problems += self._expired
        problems += self.features.problems()
        if self.tap.stopped:
            problems.append(f"the capture has stopped: {self.tap.stopped}; restart to capture again")
        return problems

    def account(self) -> Account:
        """Return the status, all counts of this process, and the figures of its open connections."""
        totals, tallies = self.monitor.totals, self.tallies()
        links, paused = self._open_links()
        return Account(
            status=self.status(),
            process={
                "pid": os.getpid(),
                "cpu_seconds": process_time(),
                "resident_bytes": resident_bytes(),
                "open_fds": open_fds(),
            },
            uptime_seconds=monotonic() - self.monitor.started_at,
            history=totals.history,
            saved_bytes=totals.saved(tallies),
            response_seconds=totals.all_response_seconds(),
            tallies=tallies,
            measured=totals.all_measured(),
            loop_lag=totals.loop_lag,
            accepted=self.accepted,
            turned_away=self.turned_away,
            faults=self.faults,
            tls_failures=self.monitor.tls_failures,
            authentication_failures=self.monitor.authentication_failures,
            leaders_updated=self._leaders.updated,
            recent_events=self.process.events,
            links=links,
            paused=paused,
            features=self.features.counted(self.links),
        )

    def _open_links(self) -> tuple[dict[NodeId, WithBroker], Counter[tuple[str, str]]]:
        # By broker, and how many links are not read, by side and reason.
        now = monotonic()
        by_broker: dict[NodeId, WithBroker] = {}
        paused = Counter(
            dict.fromkeys((("client", "broker_full"), ("broker", "client_full"), ("broker", "budget")), 0)
        )
        for link in self.links:
            with_broker = by_broker.setdefault(link.node_id, WithBroker())
            with_broker.connections += 1
            with_broker.reached += link.has_broker
            state = link.core.state
            if state.session_id:
                with_broker.sessions += 1
                with_broker.session_partitions += state.session_partitions
            if link.has_broker:
                with_broker.outstanding += state.outstanding
                late = now - (link.late_since(now) or now)
                with_broker.oldest_seconds = max(with_broker.oldest_seconds, late)
            paused["client", "broker_full"] += link.client.holds & PEER_FULL != 0
            paused["broker", "client_full"] += link.broker.holds & PEER_FULL != 0
            paused["broker", "budget"] += link.broker.holds & BUDGET != 0
        return by_broker, paused

    # -- reload, drain, close ------------------------------------------------------------------------------

    def reconfigured(self) -> None:
        """Apply the new options of the process after a reload.

        They also apply to open connections, with two exceptions. The limit for the size of a request applies
        to new connections alone, and a client keeps a changed lane until its last connection is closed. If
        the limit of sessions is now lower, sessions above it stay until they end.
        """
        self.features.reloaded(self.process.config.of)
        self._apply_limits()  # with the last change, plans that were made before are not used again
        self._join_siblings()
        self.budget.settle()
        self.sessions.crowded = self.budget.over

    def _join_siblings(self) -> None:
        """Let new connections of a client find one another, if a feature asks other brokers there."""
        if not self.features.ask_brokers or self._siblings is not None:
            return
        from proxy.core.asking.siblings import Siblings  # noqa: PLC0415 - most gateways do not need it

        self._siblings = Siblings()
        self.features.ask_through(self._siblings)
        if isinstance(self.brokers, BrokerRegistry):
            from proxy.server.own_connection import OwnConnections  # noqa: PLC0415

            self._siblings.connect = OwnConnections(self.process, self.brokers, self.upstream.tls).connect

    def _apply_limits(self) -> None:
        # Other options are read when they are used.
        config = self.process.config
        self.sessions.reload(
            on=config.sessions, off_for=config.sessions_off_for, keep_order=config.keep_order
        )
        self.sessions.max_sessions = config.max_sessions
        self.budget.limit = config.max_inflight_bytes
        self.request_budget.limit = config.max_inflight_bytes // REQUESTS_PART

    def follow_files(self) -> None:
        """Reload certificates whose files have changed. Open connections keep the old ones."""
        contexts = [("client", each) for each in self.client_tls.reloading.values()]
        both = [("broker", self.upstream.tls.reloading), *contexts]
        changed = [
            (side, each.problem) for side, each in both if each is not None and each.reload_if_changed()
        ]
        for side, problem in dict.fromkeys(changed):  # all listeners use the same --client-ca
            if problem:
                self.log.warning("certificates not reloaded", side=side, reason=problem)
                self.process.note("certificates", problem, warning=True)
            else:
                self.log.info("certificates reloaded", side=side)
                self.process.note("certificates", f"new certificates toward the {side} are in use")
        self._check_expiry()

    def _check_expiry(self) -> None:
        before, self._expired = self._expired, self.client_tls.expired(datetime.now(UTC))
        for reason in self._expired:
            if reason not in before:
                self.log.warning("certificate expired", side="client", reason=reason)
                self.process.note("certificates", reason, warning=True)

    async def finish(self, within: float) -> None:
        """Serve no new clients, finish the requests in flight, and close the sessions at the brokers.

        Clients end one after the other, each with all of its connections, so that they do not all come to
        another gateway in one moment. The last one has at least half of the time.

        `within` is the longest time for all of this, in seconds.
        """
        self.monitor.draining = True
        links = list(self.links)
        self.process.note("draining", f"draining: {len(links)} connections finish their requests in flight")
        clients: dict[tuple[str, str], list[Link]] = {}
        for link in links:
            clients.setdefault((link.client_host, link.core.state.client_id), []).append(link)
        for ending, wait in zip(clients.values(), drain_waits(len(clients), within), strict=True):
            for link in ending:
                ends = partial(link.close_session, "the gateway stops", within=within - wait)
                self.loop.call_later(wait, ends)
        if self.links:
            self._all_closed.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(within):
                    await self._all_closed.wait()

    def close(self) -> int:
        """Close everything at once. Return the number of connections that were open."""
        left = len(self.links)
        for link in list(self.links):
            link.abort()
        self.process.tasks.cancel()
        return left

    def sample(self, now: float) -> None:
        """Add the totals of all connections to the history. Then look for brokers that do not respond."""
        self.monitor.totals.sample(now, ((link.node_id, link.core.tally) for link in self.links))
        self.features.look(self.links)
        looked_at, self._looked_at = self._looked_at, now
        # After a stop of the whole machine, the brokers get one more interval to respond.
        if now - looked_at < 2 * INTERVAL_SECONDS:
            self.monitor.hung_brokers.look(self._owed(now), now)

    def _owed(self, now: float) -> dict[NodeId, Owed]:
        owed, self._closed_owed = self._closed_owed, {}
        for link in self.links:
            if (each := owed.get(link.node_id)) is None:
                each = owed[link.node_id] = Owed()
            if (responded_at := link.responded_at) > each.responded_at:
                each.responded_at = responded_at
            if link.has_broker and (outstanding := link.core.state.outstanding):
                each.outstanding += outstanding
                late_since = link.late_since(now)
                if late_since is not None and late_since < (each.late_since or now):
                    each.late_since = late_since
        return owed

    async def _supervise_links(self) -> None:
        most, trimmed_at = 0, 0.0
        smallest = least = resident_bytes()
        while True:
            await asyncio.sleep(TICK_SECONDS)
            self.follow_files()
            self._close_overdue()
            self.monitor.reach.forget(monotonic())
            self.monitor.hung_brokers.forget(monotonic())
            self.monitor.descriptors.update(left=two_descriptors_free(), now=monotonic())
            buffered, resident, now = self.budget.total, resident_bytes(), monotonic()
            most, least = max(most, buffered), min(least, resident)
            grown = resident - least > TRIM_BYTES
            if not grown and now - trimmed_at >= TRIM_SECONDS:
                grown = resident - smallest > TRIM_BYTES
            if grown or most - buffered > TRIM_BYTES:
                give_back()
                most, least, trimmed_at = buffered, resident_bytes(), now
            smallest = min(smallest, least)
            while isinstance(stalled := self.budget.stalled(monotonic()), Link):
                self.log.warning(
                    "connection closed: it makes no progress while others wait for memory",
                    **stalled.log_fields,
                )
                stalled.abort()

    def _close_overdue(self) -> None:
        config, now = self.process.config, monotonic()
        for link in list(self.links):
            link.look_after()
            reason = link.overdue(now, idle=config.idle_timeout, handshake=config.handshake_timeout)
            if reason:
                self.turned_away[reason] += 1
                self.log.debug("connection closed", reason=reason, **link.log_fields)
                link.close_session(reason)  # the broker sees a normal end


def drain_waits(count: int, within: float) -> list[float]:
    """Return when each client ends in a drain, in seconds from its begin."""
    step = min(DRAIN_STEP_SECONDS, within / 2 / max(count, 1))
    return [number * step for number in range(count)]
