"""Access to the admin endpoint: its TLS (``--admin-cert``) and its bearer token (RFC 6750)."""

import ssl
from hmac import compare_digest
from pathlib import Path
from typing import Final

from proxy.command.config import Config
from proxy.net.tls import ReloadingContext, load_pair, stamp
from proxy.telemetry import logs
from proxy.text.error_text import reason_of
from proxy.text.options import ConfigError

MAX_TOKEN: Final = 4096
"""The longest token, in bytes. A whole request to the admin endpoint may have 8192."""
_SCHEME: Final = "bearer"


class Token:
    """The token of the admin endpoint: the first line of a file. It is read again when the file changes.

    Raises:
        ConfigError: the file can't be read, or has no valid token.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._stamp = stamp(file)
        self._token = self._read()

    def admits(self, authorization: str) -> bool:
        """Return whether an Authorization header has the right token. The comparison takes constant time."""
        self._follow()
        scheme, _, token = authorization.strip().partition(" ")
        return compare_digest(token.strip().encode(), self._token) and scheme.lower() == _SCHEME

    def _follow(self) -> None:
        # If the new file has no valid token, the old token stays.
        if (now := stamp(self._file)) == self._stamp:
            return
        self._stamp = now
        try:
            self._token = self._read()
        except ConfigError as error:
            logs.logger().warning("token not reloaded: the earlier one stays in use", reason=str(error))
        else:
            logs.logger().info("token of the admin endpoint reloaded")

    def _read(self) -> bytes:
        return read_token("--admin-token-file", self._file).encode()


def read_token(option: str, file: Path) -> str:
    """Read a token from the first line of a file. An error message names the option.

    Raises:
        ConfigError: the file can't be read, or has no valid token.
    """
    try:
        with file.open("rb") as stream:
            token = stream.read(MAX_TOKEN + 1).partition(b"\n")[0].strip()
    except OSError as error:
        raise ConfigError(f"{option} {file}: {reason_of(error)}") from None
    text = token.decode("latin-1")
    if not text:
        raise ConfigError(f"{option} {file}: the file is empty; write a token into it (openssl rand -hex 32)")
    if len(text) > MAX_TOKEN or not text.isascii() or not text.isprintable() or " " in text:
        raise ConfigError(f"{option} {file}: a token has at most {MAX_TOKEN} ASCII letters, digits and signs")
    return text


def admin_tls(config: Config) -> ReloadingContext | None:
    """Return the TLS certificate and key of the admin endpoint. None if it uses plain text.

    Raises:
        ConfigError: the certificate or the key can't be used.
    """
    cert, key = config.admin_cert, config.admin_key
    if cert is None:
        return None

    def make() -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        load_pair(context, "--admin-cert", cert, key)
        return context

    return ReloadingContext(cert, [key], make)
