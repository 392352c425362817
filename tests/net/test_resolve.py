"""Names are resolved outside the event loop.

A look-up that hangs does not delay other look-ups, and no client waits forever.
"""

import asyncio
import socket
import subprocess
import sys

import pytest

from proxy.net import resolve
from proxy.net.resolve import MOST, MOST_AGAIN, Resolver, try_each
from tests.names import Names
from tests.shell import BOTH_LOOPS, WAIT_SECONDS, run, until


@pytest.mark.parametrize("ip", ["127.0.0.1", "0.0.0.0", "::1", "fe80::1%1"])
async def test_an_ip_is_not_looked_up(fake_names: Names, ip: str) -> None:
    resolver = Resolver()
    assert resolver.known(ip) == (ip,)
    assert await resolver.ips(ip) == (ip,)
    assert not fake_names.lookups


@BOTH_LOOPS
def test_all_who_want_a_name_wait_for_one_look_up(fake_names: Names, plain: bool) -> None:
    async def scene() -> None:
        resolver = Resolver()
        waiting = [asyncio.create_task(resolver.ips("a.silent.example")) for _ in range(100)]
        await until(lambda: fake_names.lookups["a.silent.example"])
        waiting[0].cancel()
        await asyncio.sleep(0)
        fake_names.speak({"a.silent.example": "192.0.2.1"})
        assert await asyncio.gather(*waiting[1:]) == [("192.0.2.1",)] * 99
        assert fake_names.lookups["a.silent.example"] == 1

    run(scene(), plain=plain)


async def test_names_that_hang_keep_no_other_waiting(fake_names: Names) -> None:
    resolver = Resolver()
    hanging = [asyncio.create_task(resolver.ips(f"{each}.silent.example")) for each in range(MOST - 1)]
    await until(lambda: len(fake_names.lookups) == MOST - 1)
    for _ in range(3):
        assert await resolver.ips("broker.example") == ("127.0.0.1",)
    assert not fake_names.ended
    for task in hanging:
        task.cancel()


async def test_names_that_failed_before_leave_threads_to_the_others(
    fake_names: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names whose last look-up failed use at most half of the threads.

    So a name server that never responds for the names of one cluster does not delay other names.
    """
    monkeypatch.setattr(resolve, "RETRY_SECONDS", (0.0, 0.0))
    monkeypatch.setattr(resolve, "LOOKUP_SECONDS", WAIT_SECONDS)

    resolver = Resolver()
    names = [f"{each}.dead.example" for each in range(2 * MOST)]
    for name in names:
        with pytest.raises(socket.gaierror):
            await resolver.ips(name)
    fake_names.lookups.clear()
    fake_names.be_silent("dead.example")
    hanging = [asyncio.create_task(resolver.ips(name)) for name in names]
    await until(lambda: len(fake_names.lookups) == MOST_AGAIN)
    assert await resolver.ips("broker.example") == ("127.0.0.1",)
    assert len(fake_names.lookups) == MOST_AGAIN + 1
    fake_names.end()
    await asyncio.wait(hanging)
    assert len(fake_names.lookups) == 2 * MOST + 1, "each has had its turn"
    assert all(isinstance(task.exception(), socket.gaierror) for task in hanging)


async def test_the_last_ips_are_used_while_a_look_up_hangs_or_fails(
    fake_names: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resolve, "FRESH_SECONDS", 0.0)
    monkeypatch.setattr(resolve, "STALE_SECONDS", WAIT_SECONDS)
    monkeypatch.setattr(resolve, "RETRY_SECONDS", (WAIT_SECONDS, WAIT_SECONDS))

    resolver = Resolver()
    fake_names.ips["moving.example"] = "192.0.2.1"
    assert await resolver.ips("moving.example") == ("192.0.2.1",)
    fake_names.ips["moving.example"] = "192.0.2.2"
    assert await resolver.ips("moving.example") == ("192.0.2.2",), "a new address is used at once"

    monkeypatch.setattr(resolve, "STALE_SECONDS", 0.02)
    del fake_names.ips["moving.example"]
    fake_names.be_silent("moving.example")
    for _ in range(3):
        assert await resolver.ips("moving.example") == ("192.0.2.2",)
    await until(lambda: fake_names.lookups["moving.example"] == 3)  # its thread may be late
    assert not fake_names.ended
    fake_names.end()  # the look-up fails
    await until(lambda: "running=0" in repr(resolver))
    assert await resolver.ips("moving.example") == ("192.0.2.2",)
    assert resolver.known("moving.example") == ("192.0.2.2",)
    assert fake_names.lookups["moving.example"] == 3, "not again so soon"


async def test_a_name_that_fails_is_not_asked_for_again_at_once(
    fake_names: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resolve, "RETRY_SECONDS", (WAIT_SECONDS, WAIT_SECONDS))

    resolver = Resolver()
    for _ in range(50):
        with pytest.raises(socket.gaierror, match="Name or service not known"):
            await resolver.ips("a.dead.example")
    assert fake_names.lookups["a.dead.example"] == 1


async def test_the_wait_between_look_ups_grows_until_one_succeeds(
    fake_names: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resolve, "RETRY_SECONDS", (0.001, 0.004))

    resolver = Resolver()
    waits = []
    for _ in range(4):
        await asyncio.sleep(0.005)
        with pytest.raises(OSError, match="known"):
            await resolver.ips("a.dead.example")
        waits.append(resolver._names["a.dead.example"].wait)
    assert waits == [0.001, 0.002, 0.004, 0.004]
    await asyncio.sleep(0.005)
    fake_names.ips["a.dead.example"] = "192.0.2.1"
    assert await resolver.ips("a.dead.example") == ("192.0.2.1",)
    assert resolver._names["a.dead.example"].wait == 0.0


async def test_nobody_waits_for_a_silent_name_server_for_ever(
    fake_names: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resolve, "LOOKUP_SECONDS", 0.02)

    resolver = Resolver()
    for _ in range(3):
        with pytest.raises(TimeoutError, match="no name server responds"):
            await resolver.ips("a.silent.example")
    await until(lambda: fake_names.lookups["a.silent.example"] == 1)  # its thread may be late
    assert not fake_names.ended


async def test_what_is_no_host_name_is_named_as_such() -> None:
    with pytest.raises(socket.gaierror, match=r"'a\.\.b' is not a host name"):
        await Resolver().ips("a..b")


async def test_no_more_names_are_remembered_than_anybody_needs(
    fake_names: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resolve, "MAX_NAMES", 3)

    resolver = Resolver()
    for each in ("a", "b", "c", "a", "d"):
        fake_names.ips[f"{each}.example"] = "192.0.2.1"
        await resolver.ips(f"{each}.example")
    known = [each for each in "abcd" if resolver.known(f"{each}.example")]
    assert known == ["a", "c", "d"]


async def test_a_machine_without_threads_is_a_failed_look_up(monkeypatch: pytest.MonkeyPatch) -> None:
    class NoThread:
        def __init__(self, **_: object) -> None:
            raise RuntimeError("can't start new thread")

    monkeypatch.setattr(resolve, "Thread", NoThread)

    with pytest.raises(OSError, match="can't start new thread"):
        await Resolver().ips("broker.example")


def test_a_process_ends_without_waiting_for_a_look_up() -> None:
    script = """
import asyncio, socket, time
socket.getaddrinfo = lambda *_, **__: time.sleep(600)
from proxy.net.resolve import Resolver
async def scene():
    asyncio.create_task(Resolver().ips("silent.example"))
    await asyncio.sleep(0.05)
    print("ended")
asyncio.run(scene())
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.stdout, done.stderr, done.returncode) == ("ended\n", "", 0)


async def test_ips_are_tried_in_order_and_each_has_its_part_of_the_time() -> None:
    tried: list[str] = []

    async def connect(ip: str) -> str:
        tried.append(ip)
        if ip == "silent":
            await asyncio.sleep(60)
        if ip == "refuses":
            raise ConnectionRefusedError
        return ip

    assert await try_each(["refuses", "silent", "there", "not tried"], 0.2, connect) == "there"
    assert tried == ["refuses", "silent", "there"]
    with pytest.raises(ConnectionRefusedError):
        await try_each(["silent", "refuses"], 0.1, connect)
