"""Decides when a request may be sent: by deadlines on the loop's clock, and by a rate limit.

The rate limit uses asyncio-throttle. It counts calls in a sliding window, and lets all calls of a window
through at once. The windows are so short that these bursts don't matter. Only deadlines decide when a
request is due.
"""

import asyncio
import sys
from contextlib import suppress
from typing import Final

from asyncio_throttle.throttler import Throttler

WINDOW: Final = 0.02
"""The length of a window in seconds. For low rates, a window is longer, because it has at least one
request."""
_LONGEST_RETRY: Final = 0.005
_RETRIES_PER_WINDOW: Final = 20


def window(rate: float) -> tuple[int, float]:
    """Return how many requests a window holds at `rate` requests a second, and its length in seconds."""
    share = max(int(rate * WINDOW), 1)
    return share, share / rate


class Ceiling:
    """A limit of `rate` requests a second for all callers, first come, first served."""

    def __init__(self, rate: float) -> None:
        share, seconds = window(rate)
        retry = min(seconds / _RETRIES_PER_WINDOW, _LONGEST_RETRY)
        self._throttler = Throttler(share, period=seconds, retry_interval=retry)
        self._turn = (
            asyncio.Lock()
        )  # one caller waits for the throttler, which polls; the others wait for the lock

    def lift(self) -> None:
        self._throttler.rate_limit = sys.maxsize

    async def wait(self) -> None:
        async with self._turn:
            await self._throttler.acquire()  # type: ignore[no-untyped-call]  # asyncio-throttle has no types


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
        if self._ceiling is not None:
            self._ceiling.lift()

    async def until(self, at: float) -> None:
        """Wait until a step is due: `at` seconds after the capture's start. A stop ends the wait."""
        if self._speed is None:
            return
        delay = self._began + at / self._speed - asyncio.get_running_loop().time()
        if delay > 0:
            with suppress(TimeoutError):
                async with asyncio.timeout(delay):
                    await self._stop.wait()

    async def admit(self, at: float) -> None:
        """Wait until the rate allows one more request, or until a stop. Update the longest delay."""
        if self._ceiling is not None:
            await self._ceiling.wait()
        if self._speed is not None:
            due = self._began + at / self._speed
            self.behind = max(self.behind, asyncio.get_running_loop().time() - due)
