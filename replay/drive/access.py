"""Opens connections to a target: TCP, then TLS and SASL if configured."""

import asyncio
import secrets
import ssl
from dataclasses import dataclass
from time import perf_counter
from typing import Final

from proxy.addresses import Address
from proxy.protocol.api import ApiKey, ErrorCode
from proxy.protocol.messages import read
from proxy.protocol.primitives import ProtocolError, encode_string, read_int16
from proxy.protocol.schemas import API_VERSIONS
from replay.drive.sasl import SaslCredentials, SaslError
from replay.drive.wire import CLOSED, TIMEOUT_SECONDS, SilentError, TargetConnection, TargetError, reason_of
from replay.protocol.errors import error_name
from replay.protocol.names import text_of

CONNECT_SECONDS: Final = 10.0
"""A connection must be open within this time, or within the timeout if that is shorter."""
LIFETIME_USED: Final = 0.85
"""A connection is replaced after this share of its login's lifetime. Kafka's clients log in again at this
share or later."""
_AUTHENTICATE_VERSION: Final = 1
"""The highest version that is used. v1 gives the lifetime of a login (KIP-368)."""
_HANDSHAKE: Final = "error_code:int16 mechanisms:string[]"
_AUTHENTICATE: Final = "error_code:int16 error_message:string auth_bytes:bytes session_lifetime_ms:int64@1+"

Versions = dict[int, tuple[int, int]]
"""API key -> lowest and highest version."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """The settings for opening connections to a target."""

    timeout: float = TIMEOUT_SECONDS
    """For a response, in seconds."""
    tls: ssl.SSLContext | None = None
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
    error, _ = read_int16(response, 0)
    if error:
        raise TargetError(f"{connection.address}: error {error} in response to ApiVersions")
    found = read(API_VERSIONS, ApiKey.API_VERSIONS, 0, response, 0, whole=False)
    return {api["api_key"]: (api["min_version"], api["max_version"]) for api in found["api_keys"] or ()}


async def _authenticate(connection: TargetConnection, access: Access, login: SaslCredentials) -> None:
    """Log in (KIP-43, KIP-152)."""
    versions = await ask_versions(connection, access)
    if ApiKey.SASL_AUTHENTICATE not in versions:
        raise SaslError("the target has no SaslAuthenticate")
    version = min(versions[ApiKey.SASL_AUTHENTICATE][1], _AUTHENTICATE_VERSION)
    response = await connection.ask(ApiKey.SASL_HANDSHAKE, 1, encode_string(login.mechanism.encode()))
    found = read(_HANDSHAKE, ApiKey.SASL_HANDSHAKE, 1, response, 0, whole=False)
    error = found["error_code"]
    if error == ErrorCode.UNSUPPORTED_SASL_MECHANISM:
        enabled = ", ".join(map(text_of, found["mechanisms"] or ()))
        raise SaslError(f"not enabled; the target has {enabled or 'none'}")
    if error:
        raise SaslError(f"error {error_name(error)}")
    exchange = login.exchange(secrets.token_urlsafe(18))
    message = next(exchange)
    while True:
        body = len(message).to_bytes(4) + message
        response = await connection.ask(ApiKey.SASL_AUTHENTICATE, version, body)
        found = read(_AUTHENTICATE, ApiKey.SASL_AUTHENTICATE, version, response, 0, whole=False)
        if error := found["error_code"]:
            raise SaslError(f"error {error_name(error)}: {text_of(found['error_message'])}")
        lifetime = found.get("session_lifetime_ms", 0) / 1000
        if lifetime > 0:
            connection.expires_at = perf_counter() + lifetime * LIFETIME_USED
        try:
            message = exchange.send(found["auth_bytes"] or b"")
        except StopIteration:
            return
