"""Asks a gateway for its state, over HTTP."""

import asyncio
import json
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Final

from proxy.dashboard.admin_reader import AdminReader
from proxy.dashboard.reports import READY, Report, of_metrics, of_state, reasons_of
from proxy.dashboard.snapshot import NotAGatewayError, Snapshot, parse
from proxy.text.error_text import reason_of

RESPONSE_SECONDS: Final = 3.0
"""If a gateway takes longer to respond, it counts as unreachable."""
MAX_CONNECTIONS: Final = 500
"""The gateway sends those with the most bytes."""
MAX_RESPONSE_BYTES: Final = 1 << 24
_NO_STATE: Final = "another program responds there, or --metrics of a gateway; give the address of --admin"
_REQUEST: Final = (
    "GET {path} HTTP/1.1\r\nHost: {address}\r\nUser-Agent: fetchgate-top\r\n"
    "Accept: application/json\r\nConnection: close\r\n{authorization}\r\n"
)


class UnreachableError(Exception):
    """The state of the gateway could not be read. The message gives the reason in a few words."""


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
        request = _REQUEST.format(path=path, address=endpoint.address, authorization=endpoint.authorization)
        writer.write(request.encode())
        head = await reader.readuntil(b"\r\n\r\n")
        if head.split(b" ", 2)[1:2] == [b"401"]:
            raise UnreachableError(endpoint.why_refused())
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
