"""TLS with brokers and clients: contexts that are reloaded with their files, and error texts.

Only OpenSSL reads private keys. This module does not keep, show or write them. If a file has a key and a
certificate, it only searches for the certificate.

`valid_until` reads when a certificate expires, because `ssl` reports it only for a peer's certificate. It
walks the DER elements of RFC 5280, 4.1 up to that field. An element is a tag, a length and its contents.
"""

import re
import ssl
from base64 import b64decode
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from os import strerror
from pathlib import Path
from typing import Any, Final, cast

from proxy.command.config import Config
from proxy.text.error_text import short
from proxy.text.options import ConfigError

HANDSHAKE_SECONDS: Final = 10.0
KEPT: Final = "the earlier certificates stay in use"

MAX_SUBJECT: Final = 256
_SHORT_NAMES: Final = {
    "commonName": "CN",
    "organizationalUnitName": "OU",
    "organizationName": "O",
    "localityName": "L",
    "stateOrProvinceName": "ST",
    "streetAddress": "STREET",
    "countryName": "C",
    "domainComponent": "DC",
    "userId": "UID",
}
"""The short names of certificate attributes (RFC 2253, section 2.3)."""
_ESCAPED: Final = re.compile(r'[,+"\\<>;]|^[ #]| $')
"""The characters to escape by RFC 2253, 2.4."""
_ESCAPE: Final = r"\\\g<0>"

Stamp = tuple[int, int, int] | None


class ReloadingContext:
    """An SSL context that is replaced when one of its files changes. Open connections keep the old context.

    `files` are the files to watch in addition to `cert`.

    Raises:
        ConfigError: a file can't be used.
    """

    def __init__(
        self, cert: Path | None, files: Sequence[Path | None], make: Callable[[], ssl.SSLContext]
    ) -> None:
        self._cert = cert
        self._files = [file for file in (cert, *files) if file is not None]
        self._make = make
        self._stamps = self._file_stamps()
        self.context = make()
        self.valid_until = _valid_until(cert)
        """None if there is no certificate, or if the time of its expiry can't be read."""
        self.problem = ""
        """The reason why the current files can't be used, or "" if they are in use."""

    def reload_if_changed(self) -> bool:
        """Make the context again if a file has changed. Return whether a file has changed."""
        stamps = self._file_stamps()
        if stamps == self._stamps:
            return False
        self._stamps = stamps
        try:
            self.context = self._make()
        except ConfigError as error:
            self.problem = f"{error}; {KEPT}"
        else:
            self.valid_until = _valid_until(self._cert)
            self.problem = ""
        return True

    def _file_stamps(self) -> list[Stamp]:
        return [stamp(file) for file in self._files]


class BrokerTls:
    """TLS to brokers, or plain text.

    Raises:
        ConfigError: a file can't be used.
    """

    def __init__(self, config: Config) -> None:
        self._config = config
        self.reloading: ReloadingContext | None = None
        if config.broker_tls:
            ca, cert, key = config.broker_tls_ca, config.broker_tls_cert, config.broker_tls_key
            self.reloading = ReloadingContext(cert, (ca, key), lambda: broker_context(ca, cert, key))

    def connect_args(self, host: str) -> dict[str, Any]:
        """Return the TLS arguments for asyncio to connect to a host. Without TLS, return no arguments."""
        if self.reloading is None:
            return {}
        name = self._config.broker_tls_server_name or host
        return {"ssl": self.reloading.context, "server_hostname": name}


def broker_context(ca: Path | None, cert: Path | None, key: Path | None) -> ssl.SSLContext:
    """Return the context for connections to brokers, from the files of the options ``--broker-tls-*``.

    Raises:
        ConfigError: a file can't be used.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if ca is None:
        context.load_default_certs()
    else:
        _trust(context, "--broker-tls-ca", ca)
    if cert is not None:
        load_pair(context, "--broker-tls-cert", cert, key)
    return context


class ClientTls:
    """TLS with clients, or plain text.

    Raises:
        ConfigError: a file can't be used.
    """

    def __init__(self, config: Config) -> None:
        self._config = config
        self._of: dict[int, ReloadingContext] = {}
        """The contexts with the certificates of ``--tls-cert-of``, by broker."""
        self._default: ReloadingContext | None = None
        if config.tls_cert is not None:
            self._default = self._reloading(None, config.tls_cert)
            self._of = {
                node_id: self._reloading(node_id, file) for node_id, file in config.tls_cert_of.items()
            }

    @property
    def reloading(self) -> dict[int | None, ReloadingContext]:
        """The context of each certificate: of ``--tls-cert`` (None), and of ``--tls-cert-of`` by broker."""
        return {None: self._default} | self._of if self._default is not None else {}

    def accept_args(self, node_id: int | None) -> dict[str, Any]:
        """Return the TLS arguments for asyncio to accept a client at a broker's listener. Empty without TLS.

        After a change of files there is a new context, which does not know earlier TLS sessions (RFC 8446,
        2.2). Otherwise a client that resumes a session would not be checked against the newest
        ``--client-ca``.
        """
        if self._default is None:
            return {}
        shown = self._default if node_id is None else self._of.get(node_id, self._default)
        return {"ssl": shown.context, "ssl_handshake_timeout": HANDSHAKE_SECONDS}

    def valid(self) -> Iterator[tuple[str, datetime]]:
        """For each readable certificate, yield its option and file (one text), and its time of expiry."""
        for node_id, each in self.reloading.items():
            if each.valid_until is not None:
                file = self._config.tls_cert if node_id is None else self._config.tls_cert_of[node_id]
                yield named(_option(node_id), file), each.valid_until

    def expired(self, now: datetime) -> list[str]:
        return [ended(shown, until) for shown, until in self.valid() if now > until]

    def _reloading(self, node_id: int | None, cert: Path) -> ReloadingContext:
        key = self._config.tls_key if node_id is None else None
        files = (key, self._config.client_ca)
        return ReloadingContext(cert, files, lambda: self._make(node_id, cert, key))

    def _make(self, node_id: int | None, cert: Path, key: Path | None) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.sni_callback = self._named if node_id is None else _keep_server_name
        context.sslobject_class = _NamedObject
        load_pair(context, _option(node_id), cert, key)
        if (ca := self._config.client_ca) is not None:
            _trust(context, "--client-ca", ca)
            context.verify_mode = ssl.CERT_REQUIRED
        return context

    def _named(self, handshake: ssl.SSLObject | ssl.SSLSocket, name: str | None, _: ssl.SSLContext) -> None:
        # A broker with a certificate of its own (``--tls-cert-of``) shows that.
        _keep_server_name(handshake, name, _)
        node_id = self._config.broker_ports.called(name) if name else None
        if node_id is not None and (of := self._of.get(node_id)) is not None:
            handshake.context = of.context


def _option(node_id: int | None) -> str:
    return "--tls-cert" if node_id is None else f"--tls-cert-of {node_id}="


def _keep_server_name(handshake: ssl.SSLObject | ssl.SSLSocket, name: str | None, _: ssl.SSLContext) -> None:
    # SNI, RFC 6066.
    cast("Any", handshake).server_name = name or ""


def ended(shown: str, until: datetime) -> str:
    """Return a text that says that the gateway's certificate has expired. `shown` is its option and file."""
    return (
        f"{shown}: the certificate expired at {in_words(until)}; "
        "clients refuse it: renew it, or set this machine's clock"
    )


def in_words(when: datetime) -> str:
    """Return a time as text, to the minute."""
    return f"{when:%Y-%m-%d %H:%M} {when.tzname()}"


def server_name_of(transport: Any) -> str:
    """Return the server name that a client sent in its TLS handshake, or "" if it sent none."""
    return str(getattr(transport.get_extra_info("ssl_object"), "server_name", ""))


def subject_of(transport: Any) -> str:
    """Return the subject of a client's certificate, as Kafka writes it, or "" without a certificate.

    The form is that of RFC 2253, with the last part first: ``CN=alice,OU=payments``. Unprintable characters
    become ``?``.
    """
    certificate = transport.get_extra_info("peercert") or {}
    parts = [
        "+".join(f"{_SHORT_NAMES.get(name, name)}={_ESCAPED.sub(_ESCAPE, value)}" for name, value in part)
        for part in reversed(certificate.get("subject", ()))
    ]
    return "".join(each if each.isprintable() else "?" for each in ",".join(parts))[:MAX_SUBJECT]


def _trust(context: ssl.SSLContext, option: str, ca: Path) -> None:
    try:
        context.load_verify_locations(cafile=ca)
    except (OSError, ValueError) as error:
        raise ConfigError(_unusable(option, ca, error)) from None
    if context.cert_store_stats()["crl"]:
        # OpenSSL loads lists of revoked certificates (RFC 5280, 5) with the CAs, but does not look at them.
        context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF


class _NamedObject(ssl.SSLObject):
    """The TLS object of a client's connection, with the server name that the client sent."""

    server_name = ""


def load_pair(context: ssl.SSLContext, option: str, cert: Path, key: Path | None) -> None:
    """Load a certificate and its key.

    The option of the key is that of the certificate with ``-key``. `cert` is a PEM file with the certificate
    first, then intermediate CAs. If `key` is None, the key is in the file `cert`.
    """
    of_key = option.removesuffix("-cert") + "-key"
    both = named(option, cert) + (f" and {named(of_key, key)}" if key else "")
    try:
        context.load_cert_chain(cert, key, password=_no_passphrase)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise ConfigError(f"{both}: the key does not belong to the certificate") from None
        raise ConfigError(f"{both}: give a certificate and its key in PEM ({short(error)})") from None
    except OSError as error:
        missing = next((file for file in (cert, key) if file is not None and not _readable(file)), cert)
        raise ConfigError(_unusable(option if missing == cert else of_key, missing, error)) from None
    except ValueError as error:  # raised by _no_passphrase
        raise ConfigError(f"{both}: {error}") from None


def _no_passphrase() -> str:
    # Without this callback OpenSSL would ask for the passphrase at the terminal.
    raise ValueError("the key is encrypted; give one without a passphrase")


def _unusable(option: str, file: Path, error: OSError | ValueError) -> str:
    if isinstance(error, ssl.SSLError):
        return f"{named(option, file)}: the file has no certificate in PEM ({short(error)})"
    why = strerror(error.errno) if isinstance(error, OSError) and error.errno else error
    return f"{named(option, file)}: {why}"


def named(option: str, file: Path | None) -> str:
    """Return an option with its file, as on the command line."""
    return f"{option}{file}" if option.endswith("=") else f"{option} {file}"


def _readable(file: Path) -> bool:
    try:
        with file.open("rb"):
            return True
    except OSError:
        return False


def stamp(file: Path) -> Stamp:
    """Return a value that changes when the file changes. None if there is no such file.

    A file of a mounted secret counts as changed when the symbolic link to it is replaced.
    """
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


_BEGIN: Final = "-----BEGIN CERTIFICATE-----"
_END: Final = "-----END CERTIFICATE-----"
_VERSION: Final = 0xA0
"""The DER tag of a certificate's version. This element is optional."""
_UTC_TIME: Final = 0x17


def _valid_until(file: Path | None) -> datetime | None:
    if file is None:
        return None
    with suppress(OSError, ValueError):  # OpenSSL reads forms of it that `valid_until` does not
        return valid_until(file.read_text(encoding="latin-1"))
    return None


Element = tuple[int, bytes]
"""The tag and the contents of a DER element."""


def valid_until(pem: str) -> datetime:
    """Return the time at which the first certificate of a PEM text expires.

    Raises:
        ValueError: no certificate can be read.
    """
    begin = pem.index(_BEGIN) + len(_BEGIN)
    der = b64decode(pem[begin : pem.index(_END, begin)])
    try:
        ((_, certificate),) = _elements(der)
        fields = _elements(_elements(certificate)[0][1])
        validity = fields[4 if fields[0][0] == _VERSION else 3][1]
        _, (tag, ends) = _elements(validity)
    except IndexError as error:
        raise ValueError("no certificate") from error
    text = ends.decode("ascii")
    if tag == _UTC_TIME:  # a year of two digits, RFC 5280, 4.1.2.5.1
        text = ("19" if text >= "50" else "20") + text
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC)


def _elements(der: bytes) -> list[Element]:
    found, at = [], 0
    while at < len(der):
        tag, size, at = der[at], der[at + 1], at + 2
        if size > 0x7F:  # so many bytes of length follow
            at += (size_of := size - 0x80)
            size = int.from_bytes(der[at - size_of : at])
        if at + size > len(der):
            raise ValueError("an element has no end")
        found.append((tag, der[at : at + size]))
        at += size
    return found
