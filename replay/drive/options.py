"""The options of ``fetchgate replay drive``."""

# ruff: noqa: RUF009 - `option` declares a field, as dataclasses.field does, which it calls

import base64
import binascii
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Final

from proxy.addresses import MAX_INT32, Address
from proxy.protocol.primitives import UUID_BYTES
from proxy.text.options import ConfigError, Given, option, repeated
from proxy.text.units import did_you_mean, milliseconds, seconds, size
from proxy.text.values import listed, one_of, whole
from replay.drive.differences import NOT_ALLOWED, Difference
from replay.drive.sasl import MECHANISMS
from replay.options import ReplayOptions, key_logs, on, ports
from replay.protocol.names import NAMES

PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
"""The possible values of Kafka's security.protocol."""
PASSWORD_VARIABLE: Final = "FETCHGATE_SASL_PASSWORD"  # noqa: S105 - the name of a variable
TO_CAPTURED: Final = "captured"
TO_END: Final = "end"


class OffsetPolicy(StrEnum):
    """The offsets that fetches read from."""

    KEEP = "keep"
    """Keep the captured offsets, even if the target does not have them."""
    CLAMP = "clamp"
    """Keep the captured offsets. If the target does not have an offset, use the nearest one that it has."""
    EARLIEST = "earliest"
    """Shift each partition so that its lowest captured offset becomes the target's earliest."""
    LATEST = "latest"
    """Shift each partition so that its captured end becomes the target's latest."""


def _above_0(text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a number") from None
    if not 0 < found < float("inf"):
        raise ValueError(f"{text!r} must be above 0")
    return found


def _speed(text: str) -> float | None:
    if text == "max":
        return None
    try:
        return _above_0(text)
    except ValueError as error:
        raise ValueError(f"{error}; max is as fast as responses come") from None


def _duration(text: str) -> float:
    if not (found := seconds(text)):
        raise ValueError(f"{text!r} must be above 0")
    return found


def _int32(text: str, read: Callable[[str], int]) -> int:
    if (found := read(text)) > MAX_INT32:
        raise ValueError(f"{text!r} is too large for a fetch; the largest value is {MAX_INT32}")
    return found


def _apis(text: str) -> frozenset[int]:
    known = {name.lower(): key for key, name in NAMES.items()}
    for name in (names := listed(text)):
        if name.lower() not in known:
            raise ValueError(f"{name!r} is not an API of Kafka{did_you_mean(name, NAMES.values())}")
    return frozenset(known[name.lower()] for name in names)


def _differences(text: str) -> frozenset[Difference]:
    read = one_of(*sorted(NOT_ALLOWED))
    return frozenset(map(read, listed(text)))


def _named_id(text: str) -> tuple[bytes, str]:
    # The id is in Kafka's form (22 characters of base 64), or has 32 hexadecimal digits.
    id_, _, name = text.partition("=")
    try:
        found = bytes.fromhex(id_) if len(id_) == 2 * UUID_BYTES else base64.urlsafe_b64decode(id_ + "==")
    except (ValueError, binascii.Error):
        found = b""
    if not name or len(found) != UUID_BYTES:
        raise ValueError(f"{text!r} is not ID=NAME, as in BsAPo2xmQ2aMgzxXyzGHmA=orders")
    return found, name


_address = partial(option, metavar="HOST:PORT", parse=Address.parse)
_count = partial(option, metavar="N", parse=whole(1))
_file = partial(option, metavar="FILE", parse=Path)
_protocol = partial(option, metavar="PROTOCOL", parse=one_of(*PROTOCOLS), words=PROTOCOLS)
_time = partial(option, metavar="TIME", parse=_duration)


@dataclass(frozen=True, slots=True, kw_only=True)
class DriveOptions(ReplayOptions):
    """The options, already checked. None, if there is no default."""

    description = """\
Send the captured requests again, to a live gateway or broker. Each captured connection gets a connection of
its own; order and timing are as captured. Topics are found by name. Offsets are replaced as --offsets says,
session ids by those of the target. Requests that write (Produce, and those that change a group: JoinGroup,
Heartbeat, OffsetCommit ...) are left out, unless --include names them.
"""
    takes = ("FILE", "captures: files, patterns or directories, as for inspect")
    examples = """\
examples:
  fetchgate replay drive morning.pcap --target 127.0.0.1:19092
      as captured, against a gateway
  fetchgate replay drive morning.pcap --target 127.0.0.1:19092 --against kafka:9092
      each request to a gateway and to a broker; the report shows what the gateway saved
  fetchgate replay drive morning.pcap --target kafka:9092 --speed max --rate 2000 --max-wait 0 --csv run1.csv
      as fast as responses come, at most 2000 requests a second; writes the figures as a table
  fetchgate replay drive morning.pcap --target kafka:9092 --speed 10 --connections 20 --duration 60
      ten times as fast, twenty clients for each captured one, for a minute
  fetchgate replay drive morning.pcap --target kafka:9092 --create-topics --include Produce
      at an empty cluster, with the records that the capture's producers wrote
  FETCHGATE_SASL_PASSWORD=... fetchgate replay drive morning.pcap --target kafka:9093 \\
      --security-protocol SASL_SSL --sasl-mechanism SCRAM-SHA-512 --sasl-username alice --broker-tls-ca ca.pem
      at a broker that requires TLS and a login
  fetchgate replay drive morning.pcap --target kafka-new:9092 --compare --speed max
      at a new broker with the same records; shows how its responses differ from the captured ones
  fetchgate replay drive morning.pcap --dry-run
      print what would be sent

exit codes: 0 done; 1 the target could not be reached, or a request got no response; 2 wrong usage; 3 nothing
could be played, every response had an error, or parts of the input could not be read; 4 a broker did not
respond within --timeout; 5 with --compare: there is a difference that is not allowed; 130 or 143 stopped by
Ctrl-C or SIGTERM
"""

    target: Address | None = _address(
        help="the gateway or broker that gets the requests",
    )
    against: Address | None = _address(
        help="a broker that gets the same requests; --target is then a gateway, and the report shows what it "
        "saves",
    )
    compare: bool = on(
        help="compare each response with the captured one: errors, versions, partitions, record bytes, "
        "offsets; exit with 5 if there is a difference that is not allowed (docs/users/drive.md has the "
        "list)",
    )
    allow: frozenset[Difference] = option(
        metavar="KIND[,...]",
        parse=_differences,
        many=True,
        default="",
        help="with --compare: accept differences of these kinds, named as in the report: another error, "
        "fewer versions, missing ...",
        needs="compare",
    )
    admin: Address = option(
        metavar="HOST:PORT",
        parse=partial(Address.parse, default_host="127.0.0.1"),
        default="127.0.0.1:9464",
        help="with --against: the gateway's admin endpoint",
    )
    keylog: tuple[str, ...] = key_logs()
    security_protocol: str = _protocol(
        default="PLAINTEXT",
        help=f"how --target is reached: {', '.join(PROTOCOLS)}",
    )
    against_security_protocol: str | None = _protocol(
        help="the same for --against (default: that of --target)",
    )
    sasl_mechanism: str | None = option(
        metavar="MECHANISM",
        parse=one_of(*MECHANISMS),
        words=tuple(MECHANISMS),
        help=f"{', '.join(MECHANISMS)}",
    )
    sasl_username: str | None = option(metavar="NAME", parse=str, help="the user's name")
    sasl_password_file: Path | None = _file(
        help="the file with the user's password; without this option, the password is in "
        f"{PASSWORD_VARIABLE}",
    )
    broker_tls_ca: Path | None = _file(
        help="the CA certificates (PEM) for checking certificates of targets; by default those of the system",
    )
    broker_tls_server_name: str = option(
        metavar="NAME",
        parse=str,
        default="",
        help="the host name in targets' certificates; by default the host of each connection",
    )
    broker_tls_cert: Path | None = _file(
        help="a client certificate for targets that require one (ssl.client.auth), in PEM",
    )
    broker_tls_key: Path | None = _file(
        help="the private key of --broker-tls-cert in PEM, without a passphrase; by default it is in the "
        "file of --broker-tls-cert",
        needs="broker_tls_cert",
    )
    speed: float | None = option(
        metavar="N|max",
        parse=_speed,
        default="1",
        help="the speed: 2 is twice as fast as captured, max is as fast as responses come",
    )
    """A multiple of the captured speed. None to send each request as soon as responses allow it."""
    rate: float | None = option(metavar="N", parse=_above_0, help="send at most N requests a second")
    connections: int = _count(
        default="1",
        help="open N connections for each captured connection: N times the load, from N clients; each "
        "further client has its own client, group and transactional id (NAME-2, NAME-3 ...)",
    )
    loop: int = _count(
        default="1",
        help="play the capture N times, one after another",
    )
    limit: int | None = _count(help="play only the first N requests of the capture")
    duration: float | None = _time(
        help="stop sending after this time: seconds, or with a unit (500ms, 30s, 5m, 1h)",
    )
    start: float | None = _time(
        written="--from",
        help="begin this time after the first request of the capture: where a stopped run goes on, as its "
        "report says",
    )
    longest_wait: float | None = _time(
        help="shorten each silence of the capture to this time",
    )
    timeout: float = _time(
        default="30",
        help="how long to wait for a response, like request.timeout.ms of Kafka's clients; for a fetch, its "
        "max_wait_ms is added; if no response comes, the run ends",
    )
    max_wait: int | None = option(
        metavar="TIME",
        parse=partial(_int32, read=milliseconds),
        help="replace max_wait_ms in fetches: milliseconds, or with a unit (1s); 0: the broker responds at "
        "once, with or without records",
    )
    """In milliseconds."""
    min_bytes: int | None = option(
        metavar="SIZE",
        parse=partial(_int32, read=size),
        help="replace min_bytes in fetches: bytes, or with a unit (64k, 1MB)",
    )
    offsets: OffsetPolicy | None = option(
        metavar="HOW",
        parse=one_of(*OffsetPolicy),
        words=tuple(OffsetPolicy),
        help="how offsets are replaced in each partition; latest (default, without --compare): the captured "
        "end becomes the target's latest, so that the distance from the end stays; earliest: the "
        "lowest captured offset becomes the target's earliest; clamp: as captured, but at least the "
        "target's earliest and at most its latest; keep (default, with --compare): as captured",
    )
    read_to: str | None = option(
        metavar=f"{TO_CAPTURED}|{TO_END}",
        parse=one_of(TO_CAPTURED, TO_END),
        help="where reads end; captured (default, without --against): where the captured response ended, so "
        "that a partition with more records is not read again and again; end (default, with --against): "
        "where the captured limits and the target's records end",
    )
    create_topics: bool = on(
        help="create topics that the target does not have, with as many partitions as in the capture, and "
        "the broker's default number of replicas (one replica below Kafka 2.4)",
    )
    include: frozenset[int] = option(
        metavar="API[,...]",
        parse=_apis,
        many=True,
        default="",
        help="also send requests of these Kafka APIs: Produce, OffsetCommit ...; "
        "docs/users/drive.md says what they do to the target",
    )
    keep_ids: bool = on(
        help="with --include: change the captured groups and transactional ids, in place of own ones "
        "(NAME-replay); this disturbs live groups, and fences live producers",
    )
    topic_id: tuple[tuple[bytes, str], ...] = repeated(
        metavar="ID=NAME",
        parse=_named_id,
        help="the name of a topic id; needed if the capture began after the client connected, so that it has "
        "no Metadata response with that id, and the target does not have the id, either",
    )
    client: tuple[str, ...] = repeated(
        metavar="ID",
        parse=str,
        help="play only requests of this client id (repeatable)",
    )
    port: tuple[int, ...] = ports("play only connections to this broker port (repeatable)")
    dry_run: bool = on(help="print what would be sent, and send nothing")
    json: bool = on(help="print the report as one JSON object")
    csv: Path | None = _file(help="write the figures as a table, to compare runs")

    @property
    def policy(self) -> OffsetPolicy:
        return self.offsets or (OffsetPolicy.KEEP if self.compare else OffsetPolicy.LATEST)

    @property
    def reads_to(self) -> str:
        # With a gateway, limits that change with each fetch would be changes in its sessions.
        return self.read_to or (TO_CAPTURED if self.against is None else TO_END)

    @property
    def protocols(self) -> tuple[str, str]:
        return self.security_protocol, self.against_security_protocol or self.security_protocol

    def check(self, given: Mapping[str, Given]) -> None:
        """Check that there is a target, and that no option is without the effect that its user expects."""
        if self.target is None and not self.dry_run:
            raise ConfigError("--target HOST:PORT is missing; or give --dry-run, to see what would be sent")
        if self.compare and self.dry_run:
            raise ConfigError("--compare can't be used with --dry-run, which gets no responses")
        if self.compare and self.against:
            raise ConfigError(
                "--compare can't be used with --against, which measures what a gateway saves; run --compare "
                "once for the gateway and once for the broker"
            )
        if not any(protocol.endswith("SSL") for protocol in self.protocols):
            _refuse(given, "broker_tls_", "SSL or SASL_SSL")
        if not any(protocol.startswith("SASL") for protocol in self.protocols):
            _refuse(given, "sasl_", "SASL_PLAINTEXT or SASL_SSL")


def _refuse(given: Mapping[str, Given], prefix: str, protocols: str) -> None:
    for name, found in given.items():
        if name.startswith(prefix) and found.text:
            raise ConfigError(
                f"{found.called} has no effect alone: give --security-protocol {protocols} as well"
            )
