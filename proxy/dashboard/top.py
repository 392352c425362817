"""`fetchgate top`: polls the state of a gateway, reads keys, and draws.

One event loop does all of this. It never blocks, even if the gateway does not respond.
"""

import asyncio
import codecs
import json
import os
import signal
import sys
import termios
import tty
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from time import monotonic
from typing import Final

from rich.console import Console
from rich.live import Live

from proxy.dashboard.admin_reader import AdminReader
from proxy.dashboard.choice import Listed, Selection, press, split_keys
from proxy.dashboard.rates import Rates
from proxy.dashboard.snapshot import NotAGatewayError, Snapshot, parse
from proxy.dashboard.view import GatewayUnreachable, Size, frame, listed
from proxy.error_text import reason_of

RESPONSE_SECONDS: Final = 3.0
"""If a gateway does not respond within this many seconds, it counts as unreachable."""
MAX_CONNECTIONS: Final = 500
"""The maximum number of connections in the requested state. The gateway sends those with the most bytes."""
MAX_RESPONSE_BYTES: Final = 1 << 24
_REQUEST: Final = (
    "GET /state?connections={most} HTTP/1.1\r\nHost: {address}\r\nUser-Agent: fetchgate-top\r\n"
    "Accept: application/json\r\nConnection: close\r\n{authorization}\r\n"
)


class UnreachableError(Exception):
    """The state of the gateway could not be read. The message gives the reason in a few words."""


async def ask(endpoint: AdminReader) -> Snapshot:
    """Request the state of a gateway.

    Raises:
        UnreachableError: nobody listens at the address, no response arrives in time, or the response is not a
            gateway's.
    """
    try:
        async with asyncio.timeout(RESPONSE_SECONDS):
            return parse(await _get(endpoint))
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


async def _get(endpoint: AdminReader) -> object:
    reader, writer = await endpoint.connect(MAX_RESPONSE_BYTES)
    try:
        request = _REQUEST.format(
            most=MAX_CONNECTIONS, address=endpoint.address, authorization=endpoint.authorization
        )
        writer.write(request.encode())
        head = await reader.readuntil(b"\r\n\r\n")
        if head.split(b" ", 2)[1:2] == [b"401"]:
            raise UnreachableError(endpoint.why_refused())
        if not head.startswith(b"HTTP/1.") or head.split(b" ", 2)[1:2] != [b"200"]:
            raise NotAGatewayError(head[:64])
        body = bytearray()
        while chunk := await reader.read(MAX_RESPONSE_BYTES):
            body += chunk
            if len(body) > MAX_RESPONSE_BYTES:
                raise NotAGatewayError("its response is too large")
    finally:
        writer.transport.abort()
    document: object = json.loads(body)
    return document


def once(endpoint: AdminReader) -> int:
    """Print one screen. Return the exit code: 0, or 1 if the gateway can't be reached."""
    console = Console(highlight=False)
    try:
        snapshot = asyncio.run(ask(endpoint))
    except UnreachableError as error:
        sys.stderr.write(f"fetchgate top: no gateway at {endpoint}: {error}; see --admin\n")
        return 1
    rates = Rates()
    rates.add(snapshot)
    size = Size(width=console.width, plain=_plain(console))
    console.print(frame(snapshot, Selection(), size, rates, keys=False))
    return 0


def watch(endpoint: AdminReader, interval: float) -> int:
    """Draw a screen every `interval` seconds, until the user quits.

    Return the exit code: 0, or 2 if there is no terminal.
    """
    console = Console(highlight=False)
    if not console.is_terminal or console.is_dumb_terminal:
        sys.stderr.write("fetchgate top: the output is not a terminal; give --once\n")
        return 2
    with _keys(), _wheel(console), Live(console=console, screen=True, auto_refresh=False) as live:
        asyncio.run(_Top(endpoint, interval, live).run())
    return 0


def _plain(console: Console) -> bool:
    return console.options.ascii_only


@contextmanager
def _keys() -> Iterator[None]:
    """Set the terminal so that each key is read at once, without echo.

    Ctrl-C is a key as well, not a signal.
    """
    if not sys.stdin.isatty():
        yield
        return
    stdin = sys.stdin.fileno()
    before = termios.tcgetattr(stdin)
    try:
        tty.setcbreak(stdin)
        raw = termios.tcgetattr(stdin)
        raw[0] &= ~termios.IXON
        raw[3] &= ~termios.ISIG
        termios.tcsetattr(stdin, termios.TCSADRAIN, raw)
        yield
    finally:
        termios.tcsetattr(stdin, termios.TCSADRAIN, before)


@contextmanager
def _wheel(console: Console) -> Iterator[None]:
    """Make the terminal report the mouse wheel (xterm's modes 1000 and 1006), if stdin is a terminal."""
    if not sys.stdin.isatty():
        yield
        return
    console.file.write("\x1b[?1000h\x1b[?1006h")
    try:
        yield
    finally:
        console.file.write("\x1b[?1006l\x1b[?1000l")
        console.file.flush()


class _Top:
    """The dashboard of `fetchgate top`. It is redrawn at intervals."""

    def __init__(self, endpoint: AdminReader, interval: float, live: Live) -> None:
        self._endpoint = endpoint
        self._interval = interval
        self._live = live
        self._choice = Selection()
        self._rates = Rates()
        self._state: Snapshot | GatewayUnreachable | None = None
        self._reached_at = monotonic()
        self._quit = asyncio.Event()
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="ignore")

    async def run(self) -> None:
        """Draw screens until the user quits or the process gets a signal."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self._quit.set)
        loop.add_signal_handler(signal.SIGWINCH, self._draw)
        if sys.stdin.isatty():
            loop.add_reader(sys.stdin.fileno(), self._pressed)
        asking = loop.create_task(self._ask())
        asking.add_done_callback(lambda _: self._quit.set())  # an error must not freeze the screen
        await self._quit.wait()
        asking.cancel()
        with suppress(asyncio.CancelledError):
            await asking

    async def _ask(self) -> None:
        while True:
            if not self._choice.paused:
                await self._update()
                self._draw()
            await asyncio.sleep(self._interval)

    async def _update(self) -> None:
        try:
            self._state = await ask(self._endpoint)
            self._rates.add(self._state)
        except UnreachableError as error:
            last = self._state.last if isinstance(self._state, GatewayUnreachable) else self._state
            since = monotonic() - self._reached_at
            self._state = GatewayUnreachable(
                address=str(self._endpoint), reason=str(error), seconds=since, last=last
            )
        else:
            self._reached_at = monotonic()

    def _pressed(self) -> None:
        try:
            data = os.read(sys.stdin.fileno(), 1024)
        except OSError:
            data = b""
        if not data:  # the terminal was closed
            self._quit.set()
            return
        for key in split_keys(self._decoder.decode(data)):
            self._choice = press(self._choice, key, self._listed())
        if self._choice.quit:
            self._quit.set()
        self._draw()

    def _listed(self) -> Listed:
        if self._state is None:
            return Listed()
        return listed(self._state, self._choice, self._size(), self._rates)

    def _size(self) -> Size:
        console = self._live.console
        return Size(width=console.width, height=console.height, plain=_plain(console))

    def _draw(self) -> None:
        if self._state is not None:
            self._live.update(frame(self._state, self._choice, self._size(), self._rates), refresh=True)
