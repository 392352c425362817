"""A timer of a busy event loop fires only after bytes that arrived in time were read."""

import asyncio
import socket
import time
from time import monotonic

import uvloop

from proxy.net.link import alarm


def test_a_late_timer_fires_after_what_came_meanwhile_was_read() -> None:
    """A late timer fires only after the bytes were read that have arrived in the meantime.

    Here the event loop is busy with one client while the answer to another client arrives.
    """

    async def run() -> list[str]:
        loop, seen = asyncio.get_running_loop(), list[str]()
        both = loop.create_future()

        def note(what: str) -> None:
            seen.append(what)
            if len(seen) == 2:
                both.set_result(None)

        one, to_one = socket.socketpair()
        other, to_other = socket.socketpair()
        with one, to_one, other, to_other:

            def read_one() -> None:
                one.recv(100)
                to_other.send(b"answer")
                time.sleep(0.1)

            def read_other() -> None:
                other.recv(100)
                note("read")

            loop.add_reader(one, read_one)
            loop.add_reader(other, read_other)
            alarm(loop, monotonic() + 0.05, lambda: note("alarm"))
            to_one.send(b"much")
            await both
            loop.remove_reader(one)
            loop.remove_reader(other)
        return seen

    assert uvloop.run(run()) == ["read", "alarm"]


def test_a_timer_that_is_not_late_fires_at_its_time() -> None:
    async def run() -> float:
        loop = asyncio.get_running_loop()
        fired: asyncio.Future[float] = loop.create_future()
        at = monotonic() + 0.02
        alarm(loop, at, lambda: fired.set_result(monotonic()))
        return await fired - at

    assert uvloop.run(run()) > -0.002
