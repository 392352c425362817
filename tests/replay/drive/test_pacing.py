"""Deadlines and the rate limit, tested on a clock that moves only while all coroutines wait."""

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any

import asyncio_throttle.throttler
import pytest

from replay.drive.pacing import WINDOW, Ceiling, Pace, window


class _NoWait(selectors.DefaultSelector):
    """A selector that never waits. Instead, it advances the event loop's time."""

    passed = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self.passed += max(timeout or 0.0, 0.0)
        found: list[tuple[selectors.SelectorKey, int]] = super().select(0)
        return found


class _Loop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self.clock = _NoWait()
        super().__init__(self.clock)

    def time(self) -> float:
        return self.clock.passed


Run = Callable[[Coroutine[Any, Any, Any]], Any]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    """Return a function that runs a coroutine. Event loop and throttler use a clock that starts at 0."""

    def running(main: Coroutine[Any, Any, Any]) -> Any:
        with asyncio.Runner(loop_factory=_Loop) as runner:
            time = runner.get_loop().time
            monkeypatch.setattr(asyncio_throttle.throttler, "time", SimpleNamespace(monotonic=time))
            return runner.run(main)

    return running


def now() -> float:
    return asyncio.get_running_loop().time()


@pytest.mark.parametrize(
    ("rate", "expected"),
    [(3000, (60, 0.02)), (2980, (59, 59 / 2980)), (50, (1, 0.02)), (4, (1, 0.25)), (0.5, (1, 2.0))],
)
def test_a_window_is_short_and_exact(rate: float, expected: tuple[int, float]) -> None:
    assert window(rate) == pytest.approx(expected)


@pytest.mark.parametrize("rate", [0.5, 7, 49, 333, 3000, 20_000])
@pytest.mark.parametrize("callers", [1, 13])
def test_no_window_holds_more_than_its_share(run: Run, rate: float, callers: int) -> None:
    times: list[float] = []

    async def call(ceiling: Ceiling) -> None:
        while len(times) < min(500, 20 + rate):
            await ceiling.wait()
            times.append(now())

    async def main() -> None:
        ceiling = Ceiling(rate)
        await asyncio.gather(*(call(ceiling) for _ in range(callers)))

    run(main())

    share, seconds = window(rate)
    assert times == sorted(times)
    assert all(later - earlier >= seconds for earlier, later in zip(times, times[share:], strict=False))


@pytest.mark.parametrize("rate", [33, 333, 3000])
def test_the_ceiling_is_nearly_reached(run: Run, rate: float) -> None:
    async def main() -> float:
        ceiling = Ceiling(rate)
        for _ in range(1000):
            await ceiling.wait()
        return now()

    assert 1000 / rate - WINDOW - 1 / rate <= run(main()) <= 1000 / rate * 1.15


@pytest.mark.parametrize(("speed", "expected"), [(1.0, [0.0, 0.5, 2.0]), (4.0, [0.0, 0.125, 0.5])])
def test_steps_are_due_at_their_times_over_the_speed(run: Run, speed: float, expected: list[float]) -> None:
    async def main() -> list[float]:
        pace = Pace(speed)
        pace.start()
        found = []
        for at in (0.0, 0.5, 2.0):
            await pace.until(at)
            found.append(now())
        return found

    assert run(main()) == pytest.approx(expected, abs=0.002)


def test_a_late_step_goes_at_once_and_the_delay_is_reported(run: Run) -> None:
    async def main() -> tuple[float, float]:
        pace = Pace(2.0)
        pace.start()
        await asyncio.sleep(3.0)
        await pace.until(4.0)
        await pace.admit(4.0)
        return now(), pace.behind

    assert run(main()) == pytest.approx((3.0, 1.0), abs=0.002)


def test_at_full_speed_nothing_waits_and_nothing_is_late(run: Run) -> None:
    async def main() -> tuple[float, float]:
        pace = Pace(None)
        pace.start()
        await pace.until(4.0)
        await pace.admit(4.0)
        return now(), pace.behind

    assert run(main()) == (0.0, 0.0)


def test_a_stop_wakes_who_waits(run: Run) -> None:
    async def main() -> tuple[float, bool]:
        pace = Pace(1.0)
        pace.start()
        asyncio.get_running_loop().call_later(3.0, pace.stop)
        await pace.until(60.0)
        return now(), pace.stopped

    assert run(main()) == (pytest.approx(3.0, abs=0.002), True)


def test_a_stop_lifts_the_ceiling(run: Run) -> None:
    async def main() -> float:
        pace = Pace(None, Ceiling(0.01))
        pace.start()
        asyncio.get_running_loop().call_later(1.0, pace.stop)
        await asyncio.gather(*(pace.admit(0.0) for _ in range(20)))
        return now()

    assert run(main()) == pytest.approx(1.0, abs=0.02)
