"""Asks the admin endpoint of a gateway for its state, over HTTP: address, TLS and token."""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from proxy.addresses import LOOPBACK_OF, Address
from proxy.dashboard.reports import READY, Report, of_metrics, of_state, reasons_of
from proxy.dashboard.snapshot import NotAGatewayError, Snapshot, parse
from proxy.text.error_text import reason_of, short
from proxy.text.options import ConfigError

RESPONSE_SECONDS: Final = 3.0
"""If a gateway takes longer to respond, it counts as unreachable."""
MAX_CONNECTIONS: Final = 500
"""The gateway sends those with the most bytes."""
MAX_RESPONSE_BYTES: Final = 1 << 24
_NO_STATE: Final = "another program responds there, or --metrics of a gateway; give the address of --admin"
_REFUSED: Final = "it refuses the token of --token-file"
_NO_ACCESS: Final = "it requires a token; give --token-file FILE"
_REQUEST: Final = (
    "GET {path} HTTP/1.1\r\nHost: {address}\r\nUser-Agent: fetchgate-top\r\n"
    "Accept: application/json\r\nConnection: close\r\n{authorization}\r\n"
)


class UnreachableError(Exception):
    """The state of the gateway could not be read. The message gives the reason in a few words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminReader:
    """The admin endpoint of a gateway, and how to connect to it."""

    address: Address
    tls: ssl.SSLContext | None = None
    token: str = ""

    def __str__(self) -> str:
        return f"https://{self.address}" if self.tls else str(self.address)

    async def connect(self, limit: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect to the endpoint. If its address is a wildcard, connect to loopback.

        Raises:
            OSError: nobody listens at the address, or TLS fails.
        """
        host = LOOPBACK_OF.get(self.address.host, self.address.host)
        return await asyncio.open_connection(host, self.address.port, limit=limit, ssl=self.tls)

    def why_no_response(self, error: OSError | EOFError) -> str:
        if isinstance(error, ssl.SSLCertVerificationError):
            return f"its certificate is not accepted ({error.verify_message}); give its CA as --ca FILE"
        if isinstance(error, ssl.SSLError):
            return f"TLS failed ({short(error)}); if it has no --admin-cert, leave out https://"
        if isinstance(error, (EOFError, ConnectionResetError)) and not self.tls:
            return f"it closed the connection; if it has --admin-cert, give --admin https://{self.address}"
        return reason_of(error)


def tls_context(ca: Path | None) -> ssl.SSLContext:
    """Return the TLS context for endpoints with a certificate. None for the CAs of the system.

    Raises:
        ConfigError: the file with the CAs can't be used.
    """
    try:
        return ssl.create_default_context(cafile=ca)
    except (OSError, ValueError) as error:
        reason = short(error) if isinstance(error, ssl.SSLError) else reason_of(error)
        raise ConfigError(f"--ca {ca}: give CA certificates in PEM ({reason})") from None


async def ask(endpoint: AdminReader, connections: int = MAX_CONNECTIONS) -> Snapshot:
    """Request the state of a gateway, with at most `connections` connections.

    Raises:
        UnreachableError: nobody listens at the address, no response arrives in time, or the response is not a
            gateway's.
    """
    async with _limited(endpoint):
        return parse(json.loads(await _get(endpoint, f"/state?connections={connections}")))


async def ask_for_report(endpoint: AdminReader, *, metrics: bool) -> Report:
    """Request what the table of several gateways shows.

    If only `metrics` can be read there, why a gateway is not ready is asked as well.

    Raises:
        UnreachableError: as for `ask`.
    """
    if not metrics:
        return of_state(await ask(endpoint, 0))
    async with _limited(endpoint):
        report = of_metrics((await _get(endpoint, "/metrics")).decode())
        if report.state == READY:
            return report
        # A gateway that does not serve yet responds with 503, with the reasons.
        reasons = reasons_of(bytes(await _get(endpoint, "/readyz", (b"200", b"503"))))
        return replace(report, wrong=(*reasons, *report.wrong))


@asynccontextmanager
async def _limited(endpoint: AdminReader) -> AsyncIterator[None]:
    # Limits the time for a response, and turns whatever fails into an error for the user.
    try:
        async with asyncio.timeout(RESPONSE_SECONDS):
            yield
    except TimeoutError:
        hint = "; if it has no --admin-cert, leave out https://" if endpoint.tls else ""
        raise UnreachableError(f"no response within {RESPONSE_SECONDS:g} s{hint}") from None
    except (OSError, EOFError) as error:
        raise UnreachableError(endpoint.why_no_response(error)) from None
    except UnicodeEncodeError as error:  # the text is no host name
        raise UnreachableError(reason_of(error)) from None
    except UnreachableError:
        raise
    except Exception:  # noqa: BLE001 - a faulty response must not end the dashboard
        raise UnreachableError("another program responds there") from None


async def _get(endpoint: AdminReader, path: str, statuses: Collection[bytes] = (b"200",)) -> bytearray:
    reader, writer = await endpoint.connect(MAX_RESPONSE_BYTES)
    try:
        token = f"Authorization: Bearer {endpoint.token}\r\n" if endpoint.token else ""
        writer.write(_REQUEST.format(path=path, address=endpoint.address, authorization=token).encode())
        head = await reader.readuntil(b"\r\n\r\n")
        if head.split(b" ", 2)[1:2] == [b"401"]:
            raise UnreachableError(_REFUSED if endpoint.token else _NO_ACCESS)
        if head.split(b" ", 2)[1:2] == [b"404"] and path.startswith("/state"):
            raise UnreachableError(_NO_STATE)
        if not head.startswith(b"HTTP/1.") or head.split(b" ", 2)[1] not in statuses:
            raise NotAGatewayError(head[:64])
        body = bytearray()
        while chunk := await reader.read(MAX_RESPONSE_BYTES):
            body += chunk
            if len(body) > MAX_RESPONSE_BYTES:
                raise NotAGatewayError("its response is too large")
    finally:
        writer.transport.abort()
    return body
