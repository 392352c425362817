"""Serves the admission webhook over TLS.

    python -m webhook --sidecar FILE --cert FILE --key FILE

The API server posts an AdmissionReview to /inject for each pod. The gateway's container is read from its file
each time, and the certificate when a connection begins after its file has changed. So no restart is needed
when the cluster renews a file.
"""

import argparse
import json
import logging
import ssl
from asyncio.sslproto import SSLProtocol
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any, Final

import uvicorn
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from uvicorn.protocols.http.h11_impl import H11Protocol

from proxy.text.printable import brief, printable

from .bodies import BODY_SECONDS, MOST_REVIEWS, Bodies, BusyError
from .injection import Json, review
from .refusals import Refusals, owner_of

DRAIN_SECONDS: Final = 5
"""How long reviews may take that are being answered when the server is to end."""
REQUEST_SECONDS: Final = 5
"""How long a new connection may take until its first request begins."""
_READ_BYTES: Final = 16 << 10
_CLOSED: Final = {"Connection": "close"}
"""A header of responses to requests that were not read to their end."""
log: Final = logging.getLogger("fetchgate.injector")


async def inject(request: Request, sidecar: Path, refusals: Refusals, bodies: Bodies) -> Response:
    """Answer an AdmissionReview, and log what became of the pod. A repeated refusal is logged once."""
    container = _read(sidecar)
    try:
        async with bodies.of(request) as body:
            asked = json.loads(body)
            answer = review(asked, container)
            called, told = _called(asked["request"]), _told(answer["response"])
            owner = owner_of(asked["request"]["object"]) or called
            response = JSONResponse(answer)
    except ClientDisconnect:
        log.warning("a review has ended halfway")
        return Response()  # nobody reads it
    except BusyError:
        log.warning("a review is refused: %d are being read", MOST_REVIEWS)
        return PlainTextResponse("too many reviews at once", status_code=503, headers=_CLOSED)
    except TimeoutError:
        log.warning("a review did not end within %d seconds", BODY_SECONDS)
        return PlainTextResponse("the review did not end in time", status_code=408, headers=_CLOSED)
    except (KeyError, TypeError, AttributeError, ValueError, RecursionError) as error:
        problem = brief(repr(error))  # a UnicodeDecodeError shows the whole body
        log.warning("a review can't be answered: %s", problem)
        text = f"this is no AdmissionReview of a pod: {problem}"
        return PlainTextResponse(text, status_code=400, headers=_CLOSED)
    if answer["response"]["allowed"] or refusals.is_new(owner, told, monotonic()):
        log.info("%s: %s", called, told)
    return response


async def livez(_: Request) -> Response:
    """Answer that the server runs."""
    return PlainTextResponse("ok")


def application(sidecar: Path) -> Starlette:
    """Return the application.

    Args:
        sidecar: the file of the gateway's container, in JSON.
    """
    answer = partial(inject, sidecar=sidecar, refusals=Refusals(), bodies=Bodies())
    return Starlette(routes=[Route("/inject", answer, methods=["POST"]), Route("/livez", livez)])


class Protocol(H11Protocol):
    """A connection that keeps few bytes, and is closed if its first request does not begin in time."""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        # While nothing is read here, TLS would read 256 KiB on.
        transport.set_read_buffer_limits(_READ_BYTES)
        self.loop.call_later(REQUEST_SECONDS, self._close_unused)

    def _close_unused(self) -> None:
        used: object = self.cycle
        if used is None:
            self.transport.close()


class Certificate:
    """The server's certificate. It is read again when its file has changed.

    Args:
        cert: the file of the certificate, in PEM.
        key: the file of its key, in PEM.

    Raises:
        OSError: a file can't be read, or is not what it should be (ssl.SSLError).
    """

    def __init__(self, cert: Path, key: Path) -> None:
        self._cert = cert
        self._key = key
        self._changed = 0
        self._context = self._read()

    def context(self) -> ssl.SSLContext:
        """Return the context for the server. Each connection gets the newest certificate that can be used."""
        first = self._context
        first.sni_callback = self._renew
        return first

    def _renew(self, connection: ssl.SSLObject, _name: str | None, _first: ssl.SSLContext) -> None:
        try:
            if self._cert.stat().st_mtime_ns != self._changed:
                self._context = self._read()
        except OSError as error:
            log.warning("the certificate is not renewed: %s", error)
        connection.context = self._context

    def _read(self) -> ssl.SSLContext:
        changed = self._cert.stat().st_mtime_ns
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self._cert, self._key)
        self._changed = changed
        return context


def _read(sidecar: Path) -> Json:
    container: Json = json.loads(sidecar.read_text(encoding="utf-8"))
    return container


def _called(request: Json) -> str:
    metadata = request["object"]["metadata"]
    name = f"{request.get('namespace')}/{metadata.get('name') or metadata.get('generateName')}"
    return brief(printable(name))


def _told(response: Json) -> str:
    if not response["allowed"]:
        return f"refused, {response['status']['message']}"
    return "fetchgate is added" if "patch" in response else response.get("warnings", ["left as it is"])[0]


def main() -> None:
    """Serve until SIGTERM."""
    parser = argparse.ArgumentParser(prog="webhook", description="Adds the gateway to pods of Kubernetes.")
    parser.add_argument("--listen", metavar="HOST:PORT", default="0.0.0.0:9443")
    parser.add_argument(
        "--sidecar", metavar="FILE", type=Path, required=True, help="the gateway's container, JSON"
    )
    parser.add_argument("--cert", metavar="FILE", type=Path, required=True, help="the certificate, PEM")
    parser.add_argument("--key", metavar="FILE", type=Path, required=True, help="its key, PEM")
    given = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    host, _, port = given.listen.rpartition(":")
    certificate = Certificate(given.cert, given.key)
    # By default each connection reads 256 KiB at once, which is kept in three buffers.
    SSLProtocol.max_size = _READ_BYTES
    uvicorn.run(
        application(given.sidecar),
        host=host,
        port=int(port),
        http=Protocol,
        loop="asyncio",
        ssl_context_factory=lambda _config, _default: certificate.context(),
        log_config=None,
        access_log=False,
        timeout_graceful_shutdown=DRAIN_SECONDS,
    )


if __name__ == "__main__":
    main()
