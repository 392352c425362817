"""TLS toward the broker and toward clients: contexts that follow their files, and failures in words.

Private keys are for OpenSSL alone: nothing of them is kept, shown or written here. A file with both a key
and a certificate is looked through for the latter.
"""

import ssl
from base64 import b64decode
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from os import strerror
from pathlib import Path
from typing import Any, Final, cast

from proxy.config import Config, ConfigError
from proxy.reasons import of_client, short

HANDSHAKE_SECONDS: Final = 10.0
"""For a client's TLS handshake."""
KEPT: Final = "what was read before stays in use"

Stamp = tuple[int, int, int] | None


class TlsError(ConfigError):
    """A file that can't be used: which option names it, why, and what to do, in one line."""


class ReloadingContext:
    """A context made of files, made anew when one of them changes; connections that are open keep theirs.

    Args:
        files: the files to follow.
        make: makes a context of them.

    Raises:
        TlsError: one can't be used.
    """

    def __init__(self, files: Sequence[Path | None], make: Callable[[], ssl.SSLContext]) -> None:
        self._files = [file for file in files if file is not None]
        self._make = make
        self._stamps = self._look()
        self.context = make()
        self.problem = ""
        """Why the files, as they are now, are not in use."""

    def follow(self) -> bool:
        """Make the context anew if a file has changed; tell whether one has."""
        stamps = self._look()
        if stamps == self._stamps:
            return False
        self._stamps = stamps
        try:
            self.context = self._make()
        except TlsError as error:
            self.problem = f"{error}; {KEPT}"
        else:
            self.problem = ""
        return True

    def _look(self) -> list[Stamp]:
        return [stamp(file) for file in self._files]


class BrokerTls:
    """TLS toward brokers, or none.

    Args:
        config: what the operator asked for.

    Raises:
        TlsError: a file can't be used.
    """

    def __init__(self, config: Config) -> None:
        self._config = config
        self.followed: ReloadingContext | None = None
        if config.broker_tls:
            files = (config.broker_tls_ca, config.broker_tls_cert, config.broker_tls_key)
            self.followed = ReloadingContext(files, self._make)

    def to(self, host: str) -> dict[str, Any]:
        """Give what asyncio takes to connect to a host; nothing where TLS is off."""
        if self.followed is None:
            return {}
        name = self._config.broker_tls_server_name or host
        return {"ssl": self.followed.context, "server_hostname": name}

    def _make(self) -> ssl.SSLContext:
        config = self._config
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        if config.broker_tls_ca is None:
            context.load_default_certs()
        else:
            try:
                context.load_verify_locations(cafile=config.broker_tls_ca)
            except (OSError, ValueError) as error:
                raise TlsError(_unusable("--broker-tls-ca", config.broker_tls_ca, error)) from None
        if config.broker_tls_cert is not None:
            _load_pair(context, "--broker-tls", config.broker_tls_cert, config.broker_tls_key)
        return context


class ClientTls:
    """TLS toward clients, or none.

    Args:
        config: what the operator asked for.
        failed: takes in words why a client's handshake failed.

    Raises:
        TlsError: a file can't be used.
    """

    def __init__(self, config: Config, failed: Callable[[str], None]) -> None:
        self._config = config
        self.valid_until: datetime | None = None
        """When the certificate that is shown to clients expires; None: there is none, or it can't be read."""
        self.followed: ReloadingContext | None = None
        self.listening: ssl.SSLContext | None = None
        """For listeners: it stays the same, each handshake takes the certificate of that moment."""
        if config.tls_cert is not None:
            self.followed = ReloadingContext((config.tls_cert, config.tls_key), self._make)
            self.listening = self._make()
            self.listening.sni_callback = self._greeted
            self.listening.sslobject_class = _greeting(failed)

    @property
    def accepting(self) -> dict[str, Any]:
        """Give what asyncio takes to accept a client; nothing for plain text."""
        if self.listening is None:
            return {}
        return {"ssl": self.listening, "ssl_handshake_timeout": HANDSHAKE_SECONDS}

    def expired(self, now: datetime) -> str:
        """Say that the certificate has expired; nothing when it has not."""
        if self.valid_until is None or now <= self.valid_until:
            return ""
        return (
            f"--tls-cert {self._config.tls_cert}: the certificate expired at {in_words(self.valid_until)}; "
            "clients refuse it: renew it, or set this machine's clock"
        )

    def _make(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        cert = cast("Path", self._config.tls_cert)
        _load_pair(context, "--tls", cert, self._config.tls_key)
        self.valid_until = None
        with suppress(OSError, ValueError):  # OpenSSL knows forms of it that we don't
            self.valid_until = valid_until(cert.read_text(encoding="latin-1"))
        return context

    def _greeted(self, greeting: ssl.SSLObject | ssl.SSLSocket, name: str | None, _: ssl.SSLContext) -> None:
        """Take the newest certificate, and keep the name that the client asked for (SNI, RFC 6066)."""
        cast("Any", greeting).asked_for = name or ""
        if self.followed is not None:
            greeting.context = self.followed.context


def in_words(when: datetime) -> str:
    """Write a moment for people, to the minute."""
    return f"{when:%Y-%m-%d %H:%M} {when.tzname()}"


def asked_for(transport: Any) -> str:
    """Return the server name that a client asked for in its TLS handshake; nothing where it did not."""
    return str(getattr(transport.get_extra_info("ssl_object"), "asked_for", ""))


def _greeting(failed: Callable[[str], None]) -> type[ssl.SSLObject]:
    """Make a class of TLS objects that tell why a handshake failed: event loops only close the connection."""

    class Greeting(ssl.SSLObject):
        asked_for = ""

        def do_handshake(self) -> None:
            try:
                super().do_handshake()
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                raise
            except ssl.SSLError as error:
                failed(of_client(error))
                raise

    return Greeting


def _load_pair(context: ssl.SSLContext, options: str, cert: Path, key: Path | None) -> None:
    """Load a certificate and its key.

    Args:
        context: takes them.
        options: what the names of the two options begin with.
        cert: PEM, the certificate first, then those of intermediate CAs.
        key: PEM; None: it stands in the same file.
    """
    named = f"{options}-cert {cert}" + (f" and {options}-key {key}" if key else "")
    try:
        context.load_cert_chain(cert, key, password=_no_passphrase)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise TlsError(f"{named}: the key is not that of the certificate") from None
        raise TlsError(f"{named}: give a certificate and its key in PEM ({short(error)})") from None
    except OSError as error:
        missing = next((file for file in (cert, key) if file is not None and not _readable(file)), cert)
        option = f"{options}-cert" if missing == cert else f"{options}-key"
        raise TlsError(_unusable(option, missing, error)) from None
    except ValueError as error:  # from the passphrase that there is none of
        raise TlsError(f"{named}: {error}") from None


def _no_passphrase() -> str:
    """Answer OpenSSL, which would ask at the terminal."""
    raise ValueError("the key is encrypted; give one without a passphrase")


def _unusable(option: str, file: Path, error: OSError | ValueError) -> str:
    if isinstance(error, ssl.SSLError):
        return f"{option} {file}: no certificate in PEM there ({short(error)})"
    return (
        f"{option} {file}: {strerror(error.errno) if isinstance(error, OSError) and error.errno else error}"
    )


def _readable(file: Path) -> bool:
    try:
        with file.open("rb"):
            return True
    except OSError:
        return False


def stamp(file: Path) -> Stamp:
    """Tell one state of a file from another; a mounted secret changes by a link that is replaced."""
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


_BEGIN: Final = "-----BEGIN CERTIFICATE-----"
_END: Final = "-----END CERTIFICATE-----"
_VERSION: Final = 0xA0
"""The tag of a field that may be missing."""
_UTC_TIME: Final = 0x17

Element = tuple[int, bytes]
"""A tag, and what is in it."""


def valid_until(pem: str) -> datetime:
    """Tell when the first certificate of a text in PEM ends to be valid.

    Raises:
        ValueError: there is none that can be read.
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
    if tag == _UTC_TIME:  # two digits of the year, 4.1.2.5.1
        text = ("19" if text >= "50" else "20") + text
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC)


def _elements(der: bytes) -> list[Element]:
    """Read the elements that stand one behind the other."""
    found, at = [], 0
    while at < len(der):
        tag, size, at = der[at], der[at + 1], at + 2
        if size > 0x7F:  # that many bytes of length follow
            at += (size_of := size - 0x80)
            size = int.from_bytes(der[at - size_of : at])
        if at + size > len(der):
            raise ValueError("an element has no end")
        found.append((tag, der[at : at + size]))
        at += size
    return found
