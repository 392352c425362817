"""Opens connections to a target: TCP, then TLS and SASL if configured."""

import asyncio
import secrets
import ssl
from dataclasses import dataclass
from time import perf_counter
from typing import Final

from proxy.addresses import Address
from proxy.protocol.api import ApiKey, ErrorCode
from proxy.protocol.primitives import (
    ProtocolError,
    Truncated,
    encode_string,
    read_count,
    read_int16,
    read_int32,
    read_string,
)
from replay.drive.sasl import SaslCredentials, SaslError
from replay.drive.wire import CLOSED, TIMEOUT_SECONDS, SilentError, TargetConnection, TargetError, reason_of
from replay.protocol.errors import error_name

CONNECT_SECONDS: Final = 10.0
"""A connection must be open within this time, or within the timeout if that is shorter."""
LIFETIME_USED: Final = 0.85
"""A connection is replaced after this share of its login's lifetime. Kafka's clients log in again at this
share or later."""
_UNSUPPORTED_MECHANISM: Final = 33
_AUTHENTICATE_VERSIONS: Final = (0, 1)
"""v1 gives the lifetime of a login (KIP-368)."""

Versions = dict[int, tuple[int, int]]
"""API key -> lowest and highest version."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """The settings for opening connections to a target."""

    timeout: float = TIMEOUT_SECONDS
    """For a response, in seconds."""
    tls: ssl.SSLContext | None = None
    """None for plain text."""
    server_name: str = ""
    """The name for which certificates must be valid. If empty, the host of each connection."""
    login: SaslCredentials | None = None

    async def connect(self, address: Address) -> TargetConnection:
        """Open a connection.

        Raises:
            SilentError: the connection is not open in time.
            TargetError: the connection can't be opened, or the target refuses the login.
        """
        loop = asyncio.get_running_loop()
        seconds = min(self.timeout, CONNECT_SECONDS)
        name = None if self.tls is None else self.server_name or address.host
        try:
            async with asyncio.timeout(seconds):
                _, connection = await loop.create_connection(
                    lambda: TargetConnection(address, self.timeout),
                    address.host,
                    address.port,
                    ssl=self.tls,
                    server_hostname=name,
                )
        except TimeoutError:
            raise SilentError(f"{address}: no connection in {seconds:g} s") from None
        except (OverflowError, UnicodeError):  # a broker may name any address
            raise TargetError(f"{address}: it is not a valid address") from None
        except OSError as error:
            # A listener for plain text responds to a TLS handshake by closing the connection, or with bytes.
            plain = isinstance(error, ConnectionResetError) or "WRONG_VERSION" in str(error)
            hint = " (does it speak plain text?)" if plain and self.tls is not None else ""
            raise TargetError(f"{address}: {reason_of(error)}{hint}") from None
        if self.login is not None:
            try:
                await _authenticate(connection, self, self.login)
            except (SaslError, ProtocolError) as error:
                await connection.finish()
                raise TargetError(f"{address}: SASL {self.login.mechanism}: {error}") from None
            except TargetError:
                await connection.finish()
                raise
        return connection


async def ask_versions(connection: TargetConnection, access: Access) -> Versions:
    """Ask for the versions of every API.

    Raises:
        TargetError: there is no response, or it has an error.
        ProtocolError: the response does not parse.
    """
    try:
        response = await connection.ask(ApiKey.API_VERSIONS, 0, b"")
    except SilentError:
        raise
    except TargetError as failure:
        if connection.error != CLOSED or access.tls is not None:
            raise
        raise TargetError(
            f"{failure} when asked for ApiVersions (does it require TLS? see --security-protocol)"
        ) from None
    error, at = read_int16(response, 0)
    if error:
        raise TargetError(f"{connection.address}: error {error} in response to ApiVersions")
    count, at = read_count(response, at)
    versions: Versions = {}
    for _ in range(count or 0):
        api_key, at = read_int16(response, at)
        lowest, at = read_int16(response, at)
        highest, at = read_int16(response, at)
        versions[api_key] = lowest, highest
    return versions


async def _authenticate(connection: TargetConnection, access: Access, login: SaslCredentials) -> None:
    """Log in (KIP-43, KIP-152)."""
    versions = await ask_versions(connection, access)
    if ApiKey.SASL_AUTHENTICATE not in versions:
        raise SaslError("the target has no SaslAuthenticate")
    version = min(versions[ApiKey.SASL_AUTHENTICATE][1], _AUTHENTICATE_VERSIONS[1])
    response = await connection.ask(ApiKey.SASL_HANDSHAKE, 1, encode_string(login.mechanism.encode()))
    error, at = read_int16(response, 0)
    if error == _UNSUPPORTED_MECHANISM:
        raise SaslError(f"not enabled; the target has {', '.join(_strings(response, at)) or 'none'}")
    if error:
        raise SaslError(f"error {error_name(error)}")
    exchange = login.exchange(secrets.token_urlsafe(18))
    message = next(exchange)
    while True:
        body = len(message).to_bytes(4) + message
        response = await connection.ask(ApiKey.SASL_AUTHENTICATE, version, body)
        error, at = read_int16(response, 0)
        text, at = read_string(response, at)
        if error != ErrorCode.NONE:
            raise SaslError(f"error {error_name(error)}: {(text or b'').decode(errors='replace')}")
        size, at = read_int32(response, at)
        end = at + max(size, 0)
        if version >= 1:
            if end + 8 > len(response):
                raise Truncated("session_lifetime_ms", end)
            lifetime = int.from_bytes(response[end : end + 8], signed=True) / 1000
            if lifetime > 0:
                connection.expires_at = perf_counter() + lifetime * LIFETIME_USED
        try:
            message = exchange.send(response[at:end])
        except StopIteration:
            return


def _strings(response: bytes, at: int) -> list[str]:
    count, at = read_count(response, at)
    found = []
    for _ in range(count or 0):
        text, at = read_string(response, at)
        found.append((text or b"").decode(errors="replace"))
    return found
