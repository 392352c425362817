"""`fetchgate top`: polls the state of a gateway, and draws it."""

import asyncio
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from time import monotonic

from rich.console import Console
from rich.live import Live

from proxy.dashboard.asking import AdminReader, UnreachableError, ask
from proxy.dashboard.choice import Listed, Selection, press
from proxy.dashboard.rates import Rates
from proxy.dashboard.screen import Size
from proxy.dashboard.snapshot import Snapshot
from proxy.dashboard.terminal import NoTerminalError, Screen, keyboard, run
from proxy.dashboard.view import GatewayUnreachable, frame, listed


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
    size = Size(width=console.width, plain=is_plain(console))
    console.print(frame(snapshot, Selection(), size, rates, keys=False))
    return 0


def watch(endpoint: AdminReader, interval: float) -> int:
    """Draw a screen every `interval` seconds until the user quits. Return 2 if there is no terminal."""
    return show(partial(GatewayScreen, endpoint, interval), stdin=True)


def show(make: Callable[[Live], Screen], *, stdin: bool) -> int:
    """Draw a screen until the user quits. Return 2 if there is no terminal.

    `stdin`: whether keys come from standard input, else from the terminal that has started the process.
    """
    console = Console(highlight=False)
    if not has_terminal(console):
        return 2
    try:
        with (
            keyboard(console, stdin=stdin) as keys,
            Live(console=console, screen=True, auto_refresh=False) as live,
        ):
            asyncio.run(run(make(live), keys))
    except NoTerminalError:
        sys.stderr.write(
            "fetchgate top: no terminal to read keys from; give --once, or the list as --admin @FILE\n"
        )
        return 2
    return 0


def has_terminal(console: Console) -> bool:
    """Return whether the console can show the dashboard. If it can't, say on stderr what to do."""
    problem = ""
    if not console.is_terminal:
        problem = "the output is not a terminal; give --once"
    elif console.is_dumb_terminal:
        called = os.environ["TERM"]
        problem = f"TERM={called} is a terminal without a screen; set TERM=xterm-256color, or give --once"
    if problem:
        sys.stderr.write(f"fetchgate top: {problem}\n")
    return not problem


def is_plain(console: Console) -> bool:
    """Return whether the console shows only ASCII."""
    return console.options.ascii_only


class GatewayScreen:
    """The dashboard of one gateway. It is redrawn every `interval` seconds.

    `name` is that of the gateway among others, and `state` what is known of it before it was asked.
    """

    def __init__(
        self,
        endpoint: AdminReader,
        interval: float,
        live: Live,
        *,
        name: str = "",
        state: Snapshot | GatewayUnreachable | None = None,
    ) -> None:
        self._endpoint = endpoint
        self._interval = interval
        self._live = live
        self._name = name
        self._rates = Rates()
        self._state = state
        self._reached_at = monotonic()
        self.choice = Selection()

    @property
    def quit(self) -> bool:
        return self.choice.quit

    async def follow(self) -> None:
        while True:
            if not self.choice.paused:
                await self._update()
                self.draw()
            await asyncio.sleep(self._interval)

    def press(self, key: str) -> None:
        self.choice = press(self.choice, key, self._listed())

    def draw(self) -> None:
        if self._state is not None:
            state = self._state
            if self._name and isinstance(state, Snapshot):  # all sidecars listen at the same address
                state = replace(state, listen=self._name)
            screen = frame(state, self.choice, size_of(self._live), self._rates, of_many=bool(self._name))
            self._live.update(screen, refresh=True)

    async def _update(self) -> None:
        state: Snapshot | GatewayUnreachable
        try:
            state = await ask(self._endpoint)
        except UnreachableError as error:
            last = self._state.last if isinstance(self._state, GatewayUnreachable) else self._state
            since = monotonic() - self._reached_at
            reason, address = str(error), str(self._endpoint)
            state = GatewayUnreachable(address=address, reason=reason, seconds=since, last=last)
        else:
            self._reached_at = monotonic()
        # The user may have paused while the gateway was asked.
        if self.choice.paused and self._state is not None:
            return
        self._state = state
        if isinstance(state, Snapshot):
            self._rates.add(state)

    def _listed(self) -> Listed:
        if self._state is None:
            return Listed()
        return listed(self._state, self.choice, size_of(self._live), self._rates)


def size_of(live: Live) -> Size:
    """Return the size of the terminal."""
    console = live.console
    return Size(width=console.width, height=console.height, plain=is_plain(console))
