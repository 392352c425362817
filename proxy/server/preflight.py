"""``--check``: tests options and addresses, prints the result in sentences, and leaves nothing open."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace
from datetime import UTC, datetime
from errno import EADDRINUSE
from functools import partial
from pathlib import Path
from tempfile import TemporaryFile
from typing import Final

from proxy.addresses import Address, Broker
from proxy.command.config import Config
from proxy.features.declared import FEATURES
from proxy.net import bootstrap
from proxy.net.bootstrap import BootstrapError, BootstrapResponse, ask
from proxy.net.listen import LeadsBackError, OwnListenerError, check_not_own
from proxy.net.resolve import Resolver
from proxy.net.tls import BrokerTls, ClientTls, ended, in_words
from proxy.server.acceptor import Acceptor
from proxy.server.process import Process
from proxy.server.registry import BrokerRegistry, brokers_of
from proxy.server.slots_check import DEFAULT_SLOTS, Demand, ask_slots, judged
from proxy.server.state_file import StateFile
from proxy.telemetry import logs
from proxy.telemetry.access import admin_tls, read_token
from proxy.text.error_text import reason_of

PATIENCE_SECONDS: Final = 2.0
"""When ``--check`` prints that it is waiting for a response."""

Say = Callable[[str], None]
"""Prints one line with the result of a test."""


async def check(config: Config, say: Say, gateways: int = 0) -> bool:
    """Ask every bootstrap address, and bind all addresses that a gateway would bind.

    With `gateways`, also ask whether brokers have session slots for this number of gateways.

    Returns:
        True if all addresses could be bound, no broker's address leads back to the gateway, no certificate of
        a listener has expired, the directories of ``--state`` and ``--capture`` can be written, and brokers
        have enough session slots.

    Raises:
        BootstrapError: no bootstrap address can be used.
        ConfigError: a certificate or token can't be used, or the process lacks the privilege for ``tproxy``.
    """
    say(_options_read(config))
    for feature in FEATURES:
        for line in feature.means(config.of(feature.options)):
            say(line)
    tls = BrokerTls(config)
    if config.admin_token_file:
        read_token("--admin-token-file", config.admin_token_file)
    valid = _certificate_valid(config, say)
    writable = [_writable(flag, folder, say) for flag, folder in _folders(config)]
    process = Process.of(config, asyncio.get_running_loop(), logs.silent())
    cluster = await _ask_all(config, tls, process.resolver, say)
    doubts: list[str] = []
    if cluster is not None and cluster.brokers:
        for feature in FEATURES:
            lines, doubt = feature.fits(config.of(feature.options), cluster)
            for line in lines:
                say(line)
            doubts += [doubt] if doubt else []
    with ExitStack() as opened:
        bound = await _Listeners(process, say, opened).bind_all((cluster and cluster.brokers) or {})
    if config.bootstrap and cluster is None:
        raise BootstrapError("no bootstrap address can be used: a line above says why")
    if config.is_transparent:
        say(
            f"Transparent mode ({config.transparent}): no broker was asked, since each client is connected "
            "to its original destination. The rules of netfilter were not checked: transparent.sh show "
            "prints them."
        )
    slots = not gateways or await _enough_slots(config, gateways, cluster, process.resolver, tls, say)
    good = valid and bound and all(writable) and slots
    if not good:
        say("Not all is well: a line above says what to do.")
    elif doubts:
        say(
            f"A gateway with these options can serve clients, but {', '.join(doubts)}: a line above "
            "says what to do."
        )
    else:
        say("All is well: a gateway with these options can serve clients.")
    return good


def _options_read(config: Config) -> str:
    counts = Counter(given.source for given in config.given.values())
    files = {given.place for given in config.given.values() if given.source == "file"}
    from_file = "".join(f", {counts['file']} from {file}" for file in files)
    return (
        f"The options can be used: {counts['flag']} from flags, {counts['environment']} from the environment"
        f"{from_file}, {counts['default']} are defaults."
    )


def _certificate_valid(config: Config, say: Say) -> bool:
    """Print until when certificates of listeners and of the admin endpoint are valid. Return if all are."""
    certificates = list(ClientTls(config).valid())
    admin = admin_tls(config)
    if admin is not None and admin.valid_until is not None:
        certificates.append((f"--admin-cert {config.admin_cert}", admin.valid_until))
    now = datetime.now(UTC)
    expired = False
    for shown, until in certificates:
        expired |= now > until
        say(
            ended(shown, until)
            if now > until
            else f"{shown}: the certificate is valid until {in_words(until)}."
        )
    if config.client_ca:
        say(f"--client-ca {config.client_ca}: clients must show a certificate from one of its CAs.")
    return not expired


def _folders(config: Config) -> Iterator[tuple[str, Path]]:
    """Yield the directories that a gateway would write to, each with its option."""
    if config.state is not None:
        yield "--state", config.state.absolute().parent
    if config.capture is not None:
        yield (
            "--capture",
            next(place for place in (config.capture, *config.capture.parents) if place.exists()),
        )


def _writable(flag: str, folder: Path, say: Say) -> bool:
    try:
        with TemporaryFile(dir=folder):
            pass
    except OSError as error:
        reason = reason_of(error)
        say(f"{flag}: can't write to {folder}: {reason}; give {flag} a directory that can be written")
        return False
    say(f"{flag}: a file was written to {folder} and removed.")
    return True


async def _ask_all(config: Config, tls: BrokerTls, resolver: Resolver, say: Say) -> BootstrapResponse | None:
    """Ask every bootstrap address. Return the response of the last one that has responded."""
    cluster: BootstrapResponse | None = None
    own: list[Address] = []
    with suppress(OSError):  # an error of --listen is reported later, when it is bound
        own = [Address(ip, config.listen.port) for ip in await resolver.ips(config.listen.host)]
    for address in config.bootstrap:
        waiting = f"bootstrap {address}: waiting for a response, {bootstrap.ASK_SECONDS:.0f} s at most"
        patience = asyncio.get_running_loop().call_later(PATIENCE_SECONDS, say, waiting)
        try:
            cluster = await ask(address, resolver, tls, own)
        except BootstrapError as error:
            say(f"--bootstrap can't be used: {error}")
        else:
            say(f"The bootstrap {address} responded{_named(cluster)}.")
        finally:
            patience.cancel()
    return cluster


async def _enough_slots(
    config: Config,
    gateways: int,
    cluster: BootstrapResponse | None,
    resolver: Resolver,
    tls: BrokerTls,
    say: Say,
) -> bool:
    """Print whether brokers have enough session slots for all gateways, and return it."""
    if not config.sessions:
        say("With --sessions off, gateways use no session slots of brokers.")
        return True
    brokers = (cluster and cluster.brokers) or {}
    if brokers:
        slots = await ask_slots(brokers, resolver, tls, say)
    else:
        slots = DEFAULT_SLOTS
        assumed = f"one broker with {slots:,} (Kafka's default) is assumed"
        say(f"No broker was asked for its session slots: {assumed}.")
    demand = Demand(
        gateways=gateways,
        max_sessions=config.max_sessions,
        max_connections=config.max_connections,
        brokers=len(brokers) or 1,
        slots=slots,
    )
    say(judged(demand))
    return demand.enough


def _named(cluster: BootstrapResponse) -> str:
    if cluster.brokers is None:
        return "; it requires authentication, so brokers are learned from the responses to clients"
    count = len(cluster.brokers)
    return f" and named {count} broker{'s' * (count != 1)}"


class _Listeners:
    """The listening sockets that a gateway would have. They are only bound, and serve nobody.

    `opened` closes the sockets when its block ends.
    """

    def __init__(self, process: Process, say: Say, opened: ExitStack) -> None:
        self._process = process
        self._config = process.config
        self._say = say
        self._opened = opened
        self._acceptor = Acceptor(process)
        opened.callback(self._acceptor.close)
        self._brokers = brokers_of(process, self._acceptor)

    async def bind_all(self, known: dict[int, Address]) -> bool:
        """Return whether all could be bound, and no broker's address leads back to one of them."""
        config = self._config
        bound = [self._bound("--listen", config.listen, self._bind_listen)]
        if isinstance(self._brokers, BrokerRegistry):
            bound += await self._bind_brokers(self._brokers, known)
        for flag, at in (("--admin", config.admin), ("--metrics", config.metrics)):
            if at is not None:
                bound.append(self._bound(flag, at, partial(self._bind_admin, flag)))
        return all(bound)

    def _bound(self, flag: str, address: Address, bind: Callable[[Address], None]) -> bool:
        try:
            bind(address)
        except OSError as error:
            reason = reason_of(error)
            self._say(f"{flag} {address} can't be bound: {reason}; give {flag} another HOST:PORT")
            return False
        return True

    def _say_bound(self, flag: str, address: Address) -> None:
        self._say(f"{flag} {address} was bound and released.")

    def _bind_listen(self, _: Address) -> None:
        if isinstance(self._brokers, BrokerRegistry):
            self._brokers.open()
        else:
            self._brokers.listen, self._brokers.bound = self._acceptor.open()
        self._say_bound("--listen", self._brokers.listen)

    def _bind_admin(self, flag: str, address: Address) -> None:
        try:
            for sock in replace(self._acceptor.binding, shares=False).bind(address):
                self._opened.enter_context(sock)
        except OwnListenerError:
            raise
        except OSError as error:
            if not self._config.reuse_port or error.errno != EADDRINUSE:
                raise
            self._say(f"{flag} {address} is in use: it is bound when the other gateway has stopped.")
        else:
            self._say_bound(flag, address)

    async def _bind_brokers(self, brokers: BrokerRegistry, known: dict[int, Address]) -> list[bool]:
        kept = {each.node_id: each.port for each in StateFile(self._process, list).load()}
        for node_id, address in sorted(known.items(), key=lambda each: (kept.get(each[0]) is None, each)):
            brokers.learn(node_id, address, port=kept.get(node_id))
        await self._finished()
        learned = list(brokers.known.values())
        for broker in learned:
            name = f"broker {broker.node_id} ({broker.address})"
            reached = f"Clients reach {name} at {broker.listener}, which was bound and released."
            self._say(broker.problem or reached)
        if len(learned) < len(known):
            self._say(brokers.problems[-1])
        own = brokers.listeners
        elsewhere = await asyncio.gather(*(self._leads_elsewhere(broker, own) for broker in learned))
        return [*elsewhere, not brokers.problems]

    async def _finished(self) -> None:
        # This may take longer than a client's response would wait, because names are looked up.
        with suppress(TimeoutError):
            async with asyncio.timeout(bootstrap.ASK_SECONDS):
                while running := self._process.tasks.running:
                    await asyncio.wait(running)

    async def _leads_elsewhere(self, broker: Broker, own: list[Address]) -> bool:
        if broker.address.port not in {at.port for at in own}:
            return True
        try:
            check_not_own(await self._process.resolver.ips(broker.address.host), broker.address.port, own)
        except LeadsBackError as error:
            self._say(f"broker {broker.node_id} {broker.address}: {error}")
            return False
        except (OSError, ValueError):
            pass  # this test does not need a reachable broker
        return True
