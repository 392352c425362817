"""Decides when a request may be sent: by deadlines on the loop's clock, and by a rate limit."""

import asyncio
from contextlib import suppress
from typing import Final

LATE_SECONDS: Final = 0.02
"""If callers come late by up to this time, as timers do, the rate limit lets them catch up."""


class Ceiling:
    """A limit of `rate` requests a second for all callers, first come, first served."""

    def __init__(self, rate: float) -> None:
        self._seconds = 1 / rate
        self._next = 0.0

    def take(self) -> float:
        """Take the next turn. Return its time on the loop's clock, which may have passed."""
        now = asyncio.get_running_loop().time()
        turn = max(self._next, now - LATE_SECONDS)
        self._next = turn + self._seconds
        return turn


class Pace:
    """Waits until steps are due, and until the rate allows one more request.

    A speed of 1.0 plays in the captured time, 2.0 in half of it. With None, all requests are due at once.
    """

    def __init__(self, speed: float | None, ceiling: Ceiling | None = None) -> None:
        self._speed = speed
        self._ceiling = ceiling
        self._stop = asyncio.Event()
        self._began = 0.0
        self.behind = 0.0
        """By how many seconds the most delayed request was sent after its deadline."""

    @property
    def stopped(self) -> bool:
        return self._stop.is_set()

    def start(self) -> None:
        """Begin a round of the replay. The times of its steps count from now."""
        self._began = asyncio.get_running_loop().time()

    def stop(self) -> None:
        self._stop.set()

    async def until(self, at: float) -> None:
        """Wait until a step is due: `at` seconds after the capture's start. A stop ends the wait."""
        if self._speed is not None:
            await self._until(self._began + at / self._speed)

    async def admit(self, at: float) -> None:
        """Wait until the rate allows one more request, or until a stop. Update the longest delay."""
        if self._ceiling is not None:
            await self._until(self._ceiling.take())
        if self._speed is not None:
            due = self._began + at / self._speed
            self.behind = max(self.behind, asyncio.get_running_loop().time() - due)

    async def _until(self, time: float) -> None:
        delay = time - asyncio.get_running_loop().time()
        if delay > 0:
            with suppress(TimeoutError):
                async with asyncio.timeout(delay):
                    await self._stop.wait()
