"""Runs a screen of the dashboard on a terminal: keys, signals, the mouse wheel.

One event loop does all of this. It never blocks, even if a gateway does not respond.
"""

import asyncio
import codecs
import os
import signal
import sys
import termios
import tty
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final, Protocol

from rich.console import Console

from proxy.dashboard.choice import split_keys

_TERMINAL: Final = "/dev/tty"


class NoTerminalError(Exception):
    """There is no terminal to read keys from."""


class Screen(Protocol):
    """A screen that keys change, and that is drawn at intervals."""

    @property
    def quit(self) -> bool:
        """Whether the user wants to leave."""

    def press(self, key: str) -> None:
        """Do what a key means. See `proxy.dashboard.choice.split_keys`."""

    def draw(self) -> None:
        """Draw the screen."""

    async def follow(self) -> None:
        """Ask for what is shown, and draw it, forever."""


@contextmanager
def keyboard(console: Console, *, stdin: bool) -> Iterator[int | None]:
    """Set the terminal so that each key is read at once, without echo. Yield its file descriptor.

    Ctrl-C is a key as well, not a signal. The terminal also reports the mouse wheel (xterm's modes 1000 and
    1006).

    With `stdin`, keys come from standard input. If it is no terminal, there are no keys, and None is yielded.
    Otherwise keys come from the terminal that has started the process.

    Raises:
        NoTerminalError: standard input is not to be used, and the process has no terminal.
    """
    if stdin:
        with _keys(console, sys.stdin.fileno()) as keys:
            yield keys
        return
    try:
        terminal = os.open(_TERMINAL, os.O_RDONLY | os.O_NOCTTY)
    except OSError:
        raise NoTerminalError from None
    try:
        with _keys(console, terminal) as keys:
            yield keys
    finally:
        os.close(terminal)


@contextmanager
def _keys(console: Console, keys: int) -> Iterator[int | None]:
    if not os.isatty(keys):
        yield None
        return
    before = termios.tcgetattr(keys)
    try:
        tty.setcbreak(keys)
        raw = termios.tcgetattr(keys)
        raw[0] &= ~termios.IXON
        raw[3] &= ~termios.ISIG
        termios.tcsetattr(keys, termios.TCSADRAIN, raw)
        console.file.write("\x1b[?1000h\x1b[?1006h")
        yield keys
    finally:
        console.file.write("\x1b[?1006l\x1b[?1000l")
        console.file.flush()
        termios.tcsetattr(keys, termios.TCSADRAIN, before)


async def run(screen: Screen, keys: int | None) -> None:
    """Draw a screen until the user quits or the process gets a signal.

    `keys` is the file descriptor of the terminal that keys are read from, None if there are no keys.
    """
    loop = asyncio.get_running_loop()
    left = asyncio.Event()
    decoder = codecs.getincrementaldecoder("utf-8")(errors="ignore")

    def pressed(terminal: int) -> None:
        try:
            data = os.read(terminal, 1024)
        except OSError:
            data = b""
        if not data:  # the terminal was closed
            left.set()
            return
        for key in split_keys(decoder.decode(data)):
            screen.press(key)
        if screen.quit:
            left.set()
        screen.draw()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, left.set)
    loop.add_signal_handler(signal.SIGWINCH, screen.draw)
    if keys is not None:
        loop.add_reader(keys, pressed, keys)
    following = loop.create_task(screen.follow())
    following.add_done_callback(lambda _: left.set())  # an error must not freeze the screen
    await left.wait()
    following.cancel()
    with suppress(asyncio.CancelledError):
        await following
