"""`fetchgate top` for several gateways: polls all of them, and draws a row for each.

A gateway that is slow or does not respond costs its own row, and no other gateway has to wait for it.
"""

import asyncio
from dataclasses import replace
from functools import partial
from time import monotonic
from typing import Final

from rich.console import Console
from rich.live import Live

from proxy.dashboard.asking import UnreachableError, ask_for_report
from proxy.dashboard.choice import ERASE, ESCAPE, Listed, press
from proxy.dashboard.fleet import SORTS, WORST_FIRST, Fleet, GatewayRow, chosen, has_meaning
from proxy.dashboard.fleet_view import frame, page
from proxy.dashboard.gateways import Gateways
from proxy.dashboard.screen import Size
from proxy.dashboard.snapshot import Snapshot
from proxy.dashboard.top import GatewayScreen, is_plain, show, size_of
from proxy.dashboard.view import GatewayUnreachable

AT_ONCE: Final = 64
SILENT_AT_ONCE: Final = 64
"""As `AT_ONCE`, for gateways that did not respond last. They have places of their own, because they hold them
until the time for a response is over."""
A_SECOND: Final = 100
"""How many gateways are asked in a second. If there are more, each is asked less often."""
_FIRST_DRAWN_SECONDS: Final = 0.2
"""The time between two screens until each gateway has been asked."""


def once(gateways: Gateways) -> int:
    """Print one line for each gateway. Return the exit code: 0, or 1 if one of them can't be reached."""
    console = Console(highlight=False)
    poller = _Poller(gateways)
    asyncio.run(poller.ask_each())
    rows = poller.rows()
    size = Size(width=console.width, plain=is_plain(console))
    console.print(
        frame(rows, WORST_FIRST, size, without=gateways.without, keys=False),
        soft_wrap=True,  # a line for each gateway, however wide the output is
    )
    return int(any(row.report is None for row in rows))


def watch(gateways: Gateways, interval: float) -> int:
    """Draw a screen every `interval` seconds until the user quits. Return 2 if there is no terminal."""
    return show(partial(FleetScreen, gateways, interval), stdin=not gateways.from_stdin)


class _Poller:
    def __init__(self, gateways: Gateways) -> None:
        self.gateways = {one.name: one for one in gateways.members}
        self.fleet = Fleet(
            (one.name, str(one.reader) if one.reader else "", one.command) for one in gateways.members
        )
        self._places = {True: asyncio.Semaphore(AT_ONCE), False: asyncio.Semaphore(SILENT_AT_ONCE)}

    def rows(self) -> list[GatewayRow]:
        return self.fleet.every(monotonic())

    async def ask_each(self) -> None:
        await asyncio.gather(*map(self.ask, self.gateways))

    async def ask(self, name: str) -> None:
        gateway = self.gateways[name]
        if gateway.reader is None:
            self.fleet.fail(name, gateway.problem, monotonic())
            return
        async with self._places[self.fleet.is_reachable(name)]:
            try:
                report = await ask_for_report(gateway.reader, metrics=gateway.metrics)
            except UnreachableError as error:
                self.fleet.fail(name, str(error), monotonic())
            else:
                self.fleet.add(name, report, monotonic())


class FleetScreen:
    """The dashboard of several gateways: a table, or the screen of one of them.

    `interval` is the time between two screens in seconds, and between two requests to a gateway, if
    `A_SECOND` allows.
    """

    def __init__(self, gateways: Gateways, interval: float, live: Live) -> None:
        self._poller = _Poller(gateways)
        self._without = gateways.without
        self._interval = interval
        self._live = live
        self._choice = WORST_FIRST
        self._one: tuple[GatewayScreen, asyncio.Task[None]] | None = None
        self._rows = self._poller.rows()
        self._tasks = asyncio.TaskGroup()

    @property
    def quit(self) -> bool:
        return self._choice.quit or (self._one is not None and self._one[0].quit)

    async def follow(self) -> None:
        period = max(self._interval, len(self._poller.gateways) / A_SECOND)
        async with self._tasks as tasks:
            for place, name in enumerate(self._poller.gateways):
                tasks.create_task(self._follow(name, place / A_SECOND, period))
            while True:
                if not self._choice.paused:
                    self._rows = self._poller.rows()
                if self._one is None:
                    self.draw()
                asked = self._poller.fleet.asked
                await asyncio.sleep(self._interval if asked else min(self._interval, _FIRST_DRAWN_SECONDS))

    async def _follow(self, name: str, delay: float, period: float) -> None:
        await asyncio.sleep(delay)
        while True:
            if not self._choice.paused:
                await self._poller.ask(name)
            await asyncio.sleep(period)

    def press(self, key: str) -> None:
        if self._one is not None:
            self._press_in_one(self._one[0], key)
            return
        if not self._choice.typing and key in ERASE:
            key = ESCAPE
        if not has_meaning(key, self._choice):
            return
        found = chosen(self._rows, self._choice)
        size = size_of(self._live)
        lines = len(page(self._rows, self._choice, size.width))
        room = size.room(keys=True) or 1
        per_page = room if self._choice.paged else max(room // 2, 1)
        names = [row.name for row in found]
        listed = Listed(keys=names, lines=lines, page=per_page, sorts=tuple(SORTS))
        self._choice = press(self._choice, key, listed)
        self._open()

    def draw(self) -> None:
        if self._one is not None:
            self._one[0].draw()
            return
        screen = frame(self._rows, self._choice, size_of(self._live), without=self._without)
        self._live.update(screen, refresh=True)

    def _open(self) -> None:
        # The gateway is opened only if more can be read of it than its row has.
        gateway = self._poller.gateways.get(self._choice.opened)
        if gateway is None or gateway.reader is None or gateway.metrics:
            return
        state = _known(self._poller.fleet.row(gateway.name, monotonic()))
        screen = GatewayScreen(gateway.reader, self._interval, self._live, name=gateway.name, state=state)
        self._one = screen, self._tasks.create_task(screen.follow())
        self._choice = replace(self._choice, opened="", cursor=gateway.name)

    def _press_in_one(self, screen: GatewayScreen, key: str) -> None:
        # If Esc has nothing to close there, it closes the screen.
        if not screen.choice.typing and key in ERASE:
            key = ESCAPE
        before = screen.choice
        screen.press(key)
        if key == ESCAPE and screen.choice == before and self._one is not None:
            self._one[1].cancel()
            self._one = None


def _known(row: GatewayRow) -> Snapshot | GatewayUnreachable | None:
    """Return what is known of a gateway, to be drawn until it responds again."""
    if row.report is not None:
        return row.report.snapshot
    if row.seconds is None:
        return None
    return GatewayUnreachable(address=row.address, reason=row.wrong[0], seconds=row.seconds, last=None)
