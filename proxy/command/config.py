"""The options of ``fetchgate proxy``. Each option is declared once: as a field of `Config`, or in a feature.

Flags, environment variables, TOML keys and help are made from these declarations (`proxy.text.options`).
`Config.of` returns the options of a feature.
"""

# ruff: noqa: RUF009 - `option` declares a field, as dataclasses.field does, which it calls

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Final, TypeVar, cast

from proxy.addresses import MAX_NODE_ID, Address, BrokerPorts, PortRange, whole_number
from proxy.features.declared import FEATURES
from proxy.text.options import (
    ConfigError,
    Flags,
    Given,
    Option,
    Section,
    check_needs,
    find,
    misspelt,
    option,
    parse,
    refuse_pipe,
    refuse_removed,
)
from proxy.text.units import seconds, size, switch, word
from proxy.text.values import left_out, listed, one_of, whole

LOOPBACK = "127.0.0.1"
"""The host of a listen address that has only a port."""
MIN_INTERVAL = 0.1
MAX_INTERVAL = 3600.0
LOG_LEVELS = ("debug", "info", "warning", "error")
_Section = TypeVar("_Section", bound=Section)


def _path(text: str) -> Path | None:
    return Path(text) if text else None


def _by_broker(text: str) -> dict[int, Path]:
    found: dict[int, Path] = {}
    for item in listed(text):
        written, _, file = (part.strip() for part in item.partition("="))
        if not (written.isascii() and written.isdecimal() and file):
            raise ValueError(
                f"{item!r} is not the id of a broker and a file; write ID=FILE, as in 1=kafka-1.pem"
            )
        if (node_id := whole_number(written, 0, MAX_NODE_ID)) is None:
            raise ValueError(f"{item!r}: the id of a broker is at most {MAX_NODE_ID}")
        if node_id in found:
            raise ValueError(f"{item!r}: broker {node_id} has a file already")
        found[node_id] = Path(file)
    return found


def _ports(text: str) -> PortRange | None:
    return PortRange.parse(text) if text else None


def _bootstrap(text: str) -> tuple[Address, ...]:
    addresses = tuple(dict.fromkeys(Address.parse(item) for item in listed(text)))
    if not addresses:
        raise ValueError("it is empty; name at least one broker, as in kafka:9092")
    return addresses


def _listened(text: str) -> Address:
    # ``:9000`` and ``9000`` mean port 9000 on loopback.
    return Address.parse(text, lowest_port=0, default_host=LOOPBACK)


def _listened_or_off(text: str) -> Address | None:
    return None if word(text) == "off" else _listened(text)


def _admin_names(text: str) -> tuple[str, ...]:
    for name in (names := tuple(listed(text))):
        if ":" in name or "/" in name:
            raise ValueError(
                f"{name!r} is not a host name; write it without a port, as in fetchgate.example.com"
            )
    return names


def asked_admin(text: str) -> tuple[Address, bool]:
    """Read the address of an admin endpoint. Also return whether to use TLS (``https://HOST:PORT``).

    Raises:
        ValueError: the text is not an address. The message is for the operator.
    """
    if word(text) == "off":
        raise ValueError("the gateway's admin endpoint is off; fetchgate top needs it")
    secured = text.startswith("https://")
    return Address.parse(text.removeprefix("https://").rstrip("/"), default_host=LOOPBACK), secured


def _asked_admins(text: str) -> tuple[tuple[Address, bool] | str, ...]:
    """Read addresses, and lists (``@FILE``, or ``-``), which are returned as they are written."""
    items = dict.fromkeys(listed(text))
    if not items:
        raise ValueError("it is empty; write HOST:PORT, or @FILE")
    if "@" in items:
        raise ValueError("@ has no file after it; write @FILE, or HOST:PORT")
    return tuple(item if item == "-" or item.startswith("@") else asked_admin(item) for item in items)


def _interval(text: str) -> float:
    value = seconds(text)
    if not MIN_INTERVAL <= value <= MAX_INTERVAL:
        raise ValueError(f"{text!r} is not a time from {MIN_INTERVAL:g} to {MAX_INTERVAL:g} s")
    return value


def _advertise(text: str) -> str:
    if "/" in text or " " in text or (text.count(":") == 1):
        raise ValueError(
            f"{text!r} is not a host; give a host name or IP without a port; --broker-ports sets the ports"
        )
    return text.strip("[]")


_file = partial(option, metavar="FILE", parse=_path, default="")
_switch = partial(option, metavar="on|off", parse=switch)
_bytes = partial(option, metavar="SIZE", parse=partial(size, lowest=1))
_time = partial(option, metavar="TIME", parse=seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Config(Section):
    """The options, already checked. Each field but the last two declares one option of the base."""

    removed: ClassVar[Mapping[str, str]] = {
        "workers": "leave it out, or run several gateways at one port and divide the limits among them "
        "(docs/users/fleet.md)",
    }

    bootstrap: tuple[Address, ...] = option(
        alias="-b",
        metavar="HOST:PORT[,...]",
        parse=_bootstrap,
        parse_transparent=left_out((), "clients connect to the brokers' own addresses"),
        required=True,
        help="the brokers to ask first, in this order until one responds; not with --transparent",
    )
    """Empty in transparent mode."""
    transparent: str = option(
        metavar="off|redirect|tproxy",
        parse=one_of("off", "redirect", "tproxy"),
        default="off",
        help="accept the connections that netfilter redirects to --listen, and connect each to its "
        "original destination, a broker; clients keep their bootstrap.servers, and no address is "
        "rewritten; redirect needs no privilege, tproxy needs CAP_NET_RAW; "
        "tools/deploy/transparent.sh adds the rules",
    )
    listen: Address = option(
        metavar="HOST:PORT",
        parse=_listened,
        default="127.0.0.1:19092",
        help="the address that clients use as bootstrap.servers; broker N is at this port + 1 + N (see "
        "--broker-ports); at 0.0.0.0 it listens at all addresses of IPv4, at [::] at those of IPv4 and IPv6",
    )
    reuse_port: bool = _switch(
        default="off",
        help="let other gateways listen at the same ports (SO_REUSEPORT), to use more cores "
        "(docs/users/fleet.md), or to replace this one without a gap (docs/users/run.md); all need "
        "this option",
    )
    advertise: str = option(
        metavar="HOST",
        parse=_advertise,
        parse_transparent=left_out("", "no address is rewritten"),
        default="",
        help="the host in the addresses that clients get; by default the host of --listen; if that is a "
        "wildcard (0.0.0.0), the address that the client connected to; not with --transparent",
    )
    broker_ports: BrokerPorts = option(
        metavar="RULE",
        parse=BrokerPorts.parse,
        parse_transparent=left_out(BrokerPorts(), "no broker has a listener of its own"),
        default="",
        help="where clients find the brokers: a base port (29100: broker N is at 29100 + N), single brokers "
        "(3=29103), or a host template with one port for all (broker-{id}.kafka.local:9092); put commas "
        "between several of these; the gateway binds the hosts of a template, so they must resolve to this "
        "machine; with --tls-cert all these hosts share one port at the host of --listen, and the server "
        "name in the client's TLS handshake selects the broker; not with --transparent",
    )
    listen_ports: PortRange | None = option(
        metavar="FIRST-LAST",
        parse=_ports,
        parse_transparent=left_out(None, "no broker has a listener of its own"),
        default="",
        help="give each broker a port from this range, in the order in which brokers become known, instead "
        "of a port by its id: for clusters with large ids (Redpanda Cloud, WarpStream); with --state brokers "
        "keep their ports after a restart; single brokers of --broker-ports (3=29103) have those ports; not "
        "with --reuse-port or --transparent, and not where clients reach several gateways at one address",
    )
    """None: the ports are by the ids of the brokers."""
    state: Path | None = _file(
        parse_transparent=left_out(None, "no broker has a listener of its own"),
        help="write the known brokers to this file; after a restart the gateway opens their listeners "
        "at once; not with --transparent",
    )
    tls_cert: Path | None = _file(
        help="use TLS with clients; the file has the gateway's certificate in PEM, followed by those "
        "of intermediate CAs; it is read again when it changes; without this option, clients use "
        "plain text",
    )
    tls_key: Path | None = _file(
        help="the private key of --tls-cert in PEM, without a passphrase; by default it is in the file "
        "of --tls-cert",
        needs="tls_cert",
    )
    """None if the key is in the certificate's file, or there is no certificate. Other keys are like this."""
    tls_cert_of: dict[int, Path] = option(
        metavar="ID=FILE,...",
        parse=_by_broker,
        parse_transparent=left_out(dict[int, Path](), "no broker has a listener of its own"),
        default="",
        help="a certificate for the listener of each named broker: 1=kafka-1.pem,2=kafka-2.pem; each file "
        "has the certificate and its private key in PEM; other listeners use --tls-cert; not with "
        "--transparent",
        needs="tls_cert",
    )
    """By broker id. If brokers share a port, the server name in the client's TLS handshake selects one."""
    client_ca: Path | None = _file(
        help="require a certificate from clients (mTLS), signed by a CA in this file (PEM) and on no CRL in "
        "it; the log and /state show its subject; brokers do not see it",
        needs="tls_cert",
    )
    broker_tls: bool = _switch(
        default="off",
        help="use TLS with brokers, and refuse a broker whose certificate is not valid",
    )
    broker_tls_ca: Path | None = _file(
        help="the CA certificates (PEM) for checking brokers' certificates; by default those of the system",
        needs="broker_tls",
    )
    broker_tls_server_name: str = option(
        metavar="NAME",
        parse=str.strip,
        default="",
        help="the host name in brokers' certificates; it is also sent as SNI; by default the host of each "
        "connection",
        needs="broker_tls",
    )
    """Empty if each certificate has its broker's own host."""
    broker_tls_cert: Path | None = _file(
        help="a client certificate for brokers that require one (ssl.client.auth), in PEM",
        needs="broker_tls",
    )
    broker_tls_key: Path | None = _file(
        help="the private key of --broker-tls-cert in PEM, without a passphrase; by default it is in "
        "the file of --broker-tls-cert",
        needs="broker_tls_cert",
    )
    sessions: bool = _switch(
        default="on",
        help="turn full fetches into incremental sessions; off: all fetches are forwarded unchanged",
        live=True,
    )
    sessions_off_for: frozenset[str] = option(
        metavar="ID[,ID]",
        parse=lambda text: frozenset(listed(text)),
        default="",
        help="client ids whose fetches are forwarded unchanged",
        live=True,
    )
    keep_order: bool = _switch(
        default="off",
        help="which partitions come first if a response has no room for all (max_bytes); on: the first ones "
        "in the fetch's list (the gateway sends these fetches without a session); off: in a session, those "
        "that waited longest",
        live=True,
    )
    max_sessions: int = option(
        metavar="N",
        parse=whole(0),
        default="500",
        help="how many session slots of brokers this gateway may use (a broker's are "
        "max.incremental.fetch.session.cache.slots, docs/users/fleet.md)",
        live=True,
    )
    max_connections: int = option(
        metavar="N",
        parse=whole(1),
        default="5000",
        help="how many connections clients may have at one time; the gateway closes further connections "
        "immediately",
        live=True,
    )
    idle_timeout: float = _time(
        default="600",
        help="close a connection on which nothing was sent for this time, as a broker does "
        "(connections.max.idle.ms); connections whose client waits for a response, and connections that "
        "are forwarded because they are not plain Kafka, stay open; 0: never",
        live=True,
    )
    """In seconds. Here and for `handshake_timeout`, 0 means no limit."""
    handshake_timeout: float = _time(
        default="60",
        help="close a connection that sent no complete request within this time; 0: never",
        live=True,
    )
    max_inflight_bytes: int = _bytes(
        default="256MiB",
        help="how many bytes of responses may be in memory, for all connections together, also if clients do "
        "not read them; at the limit, the gateway stops reading from brokers, and closes connections of "
        "clients that read nothing; incomplete fetch requests, and the partitions that fetches list, may "
        "take a quarter more; above that, fetches are forwarded unchanged",
        live=True,
    )
    max_request_bytes: int = _bytes(
        default="100MiB",
        help="the largest request that is accepted from a client, like a broker's socket.request.max.bytes",
        live=True,
    )
    drain_timeout: float = _time(
        default="30",
        help="how long the gateway may take after SIGTERM to finish requests in flight and to close its "
        "sessions at the brokers",
        live=True,
    )
    admin: Address | None = option(
        metavar="HOST:PORT|off",
        parse=_listened_or_off,
        default="127.0.0.1:9464",
        help="the address of the admin endpoint: /livez, /readyz, /metrics, /state"
        + "".join(f", and with {each.flag} also {each.page}" for each in FEATURES if each.page),
    )
    admin_names: tuple[str, ...] = option(
        metavar="NAME[,NAME]",
        parse=_admin_names,
        default="",
        help="more host names for requests to the admin endpoint, beside localhost, IP addresses and the "
        "host of --admin; requests for any other name are refused, since a web page in a browser could send "
        "them (DNS rebinding)",
    )
    admin_token_file: Path | None = _file(
        help="a file whose first line is a token; requests to the admin endpoint must have it "
        "(Authorization: Bearer TOKEN), except for /livez and /readyz; the file is read again when it "
        "changes",
        needs="admin",
    )
    admin_cert: Path | None = _file(
        help="use TLS at the admin endpoint; the file has its certificate in PEM, followed by those of "
        "intermediate CAs; it is read again when it changes",
        needs="admin",
    )
    admin_key: Path | None = _file(
        help="the private key of --admin-cert in PEM, without a passphrase; by default it is in the file of "
        "--admin-cert",
        needs="admin_cert",
    )
    metrics: Address | None = option(
        metavar="HOST:PORT|off",
        parse=_listened_or_off,
        default="off",
        help="one more address, only for /metrics, /livez and /readyz, in plain text and without a token: "
        "for Prometheus and probes, while --admin stays at loopback",
    )
    capture: Path | None = option(
        metavar="DIR",
        parse=_path,
        default="",
        help="write the traffic with clients and with brokers to this directory, as pcap files for "
        "`fetchgate replay`; they contain all that clients and brokers send, also records and the "
        "passwords of SASL PLAIN",
    )
    capture_records: bool = option(
        metavar="yes|no",
        parse=switch,
        default="yes",
        help="no: leave out the contents of records, credentials, and everything that the gateway does "
        "not understand; `fetchgate replay measure` gives the same figures for such a capture",
    )
    capture_file_bytes: int = _bytes(
        default="64MiB",
        help="the size at which a new capture file begins",
    )
    capture_files: int = option(
        metavar="N",
        parse=whole(1),
        default="16",
        help="how many capture files to keep in DIR, with those of earlier runs; if there are more, the "
        "gateway deletes the oldest",
    )
    log_format: str = option(
        metavar="console|json",
        parse=one_of("console", "json"),
        default="console",
        help="the format of the log lines on stderr: for people (console) or for programs (json)",
    )
    log_level: str = option(
        metavar="|".join(LOG_LEVELS),
        parse=one_of(*LOG_LEVELS),
        default="info",
        help="the lowest level of log lines to write",
        live=True,
    )

    sections: Mapping[type[Section], Section] = field(default_factory=dict)
    """The options of each feature, by the class that declares them. See `of`."""
    given: Mapping[str, Given] = field(default_factory=dict, compare=False, repr=False)
    """Each option as the operator has written it, and its source."""

    def of(self, section: type[_Section]) -> _Section:
        """Return the options of a feature: ``config.of(LimitOptions).max_fetch_bytes``."""
        return cast("_Section", self.sections[section])

    def value(self, name: str) -> Any:
        """Return the value of an option, of the base or of a feature, by its name."""
        return getattr(self if (owner := _OWNERS.get(name)) is None else self.sections[owner], name)

    def having(self, **values: Any) -> "Config":
        sections = {
            each: replace(section, **{name: values.pop(name) for name in _names(each) & values.keys()})
            for each, section in self.sections.items()
        }
        return replace(self, sections=sections, **values)

    @property
    def is_transparent(self) -> bool:
        return self.transparent != "off"


_GROUPS: Final = {
    "bootstrap": "connect",
    "listen": "listen",
    "tls_cert": "TLS with clients",
    "broker_tls": "TLS with brokers",
    "sessions": "sessions",
    "max_connections": "limits",
    "admin": "watch",
}
"""The titles of the base's groups in the help, by the first option of each."""


def _names(section: type[Section]) -> frozenset[str]:
    return frozenset(each.name for each in fields(section) if each.metadata)


def _in_order() -> tuple[Option, ...]:
    """Return the options of the base and of all features, in the order in which users see them."""
    found: list[Option] = []
    titled: list[Option] = []  # those with a group of their own: after the present group
    for each in Config.declared():
        if each.name in _GROUPS:
            found, titled = found + titled, []
        found.append(each)
        for feature in FEATURES:
            if feature.after == each.name:
                (titled if feature.group else found).extend(feature.options.declared())
    return (*found, *titled)


_OWNERS: Final = {name: feature.options for feature in FEATURES for name in _names(feature.options)}
OPTIONS: Final = _in_order()
GROUPS: Final = {
    each.name: title
    for titles in (_GROUPS | {one.options.declared()[0].name: one.group for one in FEATURES if one.group},)
    for each in OPTIONS
    if (title := titles.get(each.name))
}
"""The titles of all groups in the help, by the first option of each."""
LIVE = frozenset(option.name for option in OPTIONS if option.live)

TOP_OPTIONS = (
    Option(
        name="admin",
        metavar="HOST:PORT|@FILE|-",
        parse=_asked_admins,
        default="127.0.0.1:9464",
        many=True,
        help="the admin endpoint of a gateway (repeatable); https://HOST:PORT if it has --admin-cert; @FILE: "
        "a file with one address a line, or with the output of kubectl get pods -o json; -: the same from "
        "standard input; for several gateways, the screen has a row for each",
    ),
    Option(
        name="admin_token_file",
        alias="--token-file",
        metavar="FILE",
        parse=_path,
        default="",
        help="the file with the token of the admin endpoint, as for fetchgate proxy",
    ),
    Option(
        name="ca",
        metavar="FILE",
        parse=_path,
        default="",
        help="with https://: the CA certificates (PEM) for checking the endpoint's certificate; by default "
        "those of the system",
    ),
    Option(
        name="interval",
        metavar="TIME",
        parse=_interval,
        default="1",
        help="the time between two screens",
    ),
    Option(
        name="once",
        parse=switch,
        default="off",
        help="print one screen and exit",
    ),
)
ALL_OPTIONS = (*OPTIONS, *TOP_OPTIONS)
_SECTIONS: Final[tuple[type[Section], ...]] = (Config, *(each.options for each in FEATURES))
REMOVED: Final = {name: use for section in _SECTIONS for name, use in section.removed.items()}
"""See `Section.removed`."""


def load(flags: Flags, environ: Mapping[str, str], file: str | None) -> Config:
    """Read the options from all sources.

    `flags` has None for options that are not given. `file` is the name of the TOML file, if any.

    Raises:
        ConfigError: an option or the file can't be used.
    """
    refuse_removed(REMOVED, environ)
    if file:
        refuse_pipe(file)
    options = OPTIONS
    (mode,) = (option for option in OPTIONS if option.name == "transparent")
    if read([mode], flags, environ, file)[mode.name] != "off":
        options = tuple(
            replace(option, parse=option.parse_transparent, default="", required=False)
            if option.parse_transparent
            else option
            for option in OPTIONS
        )
    given = find(options, flags, environ, file, ALL_OPTIONS, REMOVED)
    values = parse(options, given, REMOVED)
    sections: dict[type[Section], Section] = {
        each.options: each.options(**{name: values.pop(name) for name in _names(each.options)})
        for each in FEATURES
    }
    config = Config(**values, sections=sections, given=given)
    for section in sections.values():
        section.check(given)
    _check_apart(config)
    _check_listen_ports(config)
    check_needs(OPTIONS, {each.name: config.value(each.name) for each in OPTIONS})
    return config


def _check_apart(config: Config) -> None:
    flags: dict[Address, str] = {}
    for flag, address in (
        ("--listen", config.listen),
        ("--admin", config.admin),
        ("--metrics", config.metrics),
    ):
        if address is not None and address.port and (other := flags.setdefault(address, flag)) != flag:
            raise ConfigError(f"{flag} and {other} are both {address}; give one of them another port")


def _check_listen_ports(config: Config) -> None:
    if (ports := config.listen_ports) is None:
        return
    if config.broker_ports.base is not None or config.broker_ports.template:
        raise ConfigError(
            "--listen-ports and --broker-ports both say where all brokers are; with --listen-ports, "
            "--broker-ports may only have single brokers, as in 3=29103"
        )
    if config.reuse_port:
        raise ConfigError(
            "--listen-ports can't be used with --reuse-port: the other gateway may give a broker another port"
        )
    for flag, address in (("--admin", config.admin), ("--metrics", config.metrics)):
        if address is not None and address.port in ports:
            raise ConfigError(f"--listen-ports has the port of {flag}, {address.port}; give {flag} another")


def read(
    options: Sequence[Option], flags: Flags, environ: Mapping[str, str], file: str | None
) -> dict[str, Any]:
    """Read options from all sources: flags, environment and file. See `load`.

    Raises:
        ConfigError: an option or the file can't be used.
    """
    return parse(options, find(options, flags, environ, file, ALL_OPTIONS, REMOVED), REMOVED)


def misspelt_variables(environ: Mapping[str, str]) -> list[str]:
    """Return a warning for each variable that is probably a misspelt option: the gateway ignores it."""
    return misspelt(environ, ALL_OPTIONS)


def changes(before: Config, after: Config, live: frozenset[str] = LIVE) -> tuple[list[str], list[str]]:
    """Return the names of changed options: those that a reload applies, and those that need a restart."""
    names = [option.name for option in OPTIONS]
    changed = [name for name in names if before.value(name) != after.value(name)]
    return [name for name in changed if name in live], [name for name in changed if name not in live]


def with_live(before: Config, after: Config, live: frozenset[str] = LIVE) -> Config:
    """Return the options of `before`, with the live options taken from `after`."""
    given = {**before.given, **{name: after.given[name] for name in live}}
    return replace(before.having(**{name: after.value(name) for name in live}), given=given)
