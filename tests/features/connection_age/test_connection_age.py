"""Connections end at their age: ``--max-connection-age``."""

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field
from time import monotonic
from types import SimpleNamespace
from typing import Any, cast

import pytest

from proxy.command.config import changes, load
from proxy.features.connection_age import running as ages
from proxy.features.connection_age.options import AgeOptions
from proxy.features.connection_age.running import SLACK_SECONDS, SPREAD, Ages
from proxy.features.feature import LinkInfo
from proxy.protocol.api import ApiKey
from proxy.server.gateway import Gateway
from proxy.telemetry.metrics import exposition
from tests.command.loading import NEEDED, error_of
from tests.shell import (
    WAIT_SECONDS,
    client,
    frame,
    gateway,
    link_of,
    request,
    response,
    running,
    stub_cluster,
    until,
)


@dataclass(eq=False)
class Link:
    """What the feature uses of a link."""

    core: Any = field(default_factory=lambda: SimpleNamespace(state=SimpleNamespace(longest_wait=5)))
    may_end: bool = True
    ended: list[float] = field(default_factory=list)
    """Within how many seconds it was told to end, each time."""

    def close_session(self, _reason: str, within: float) -> None:
        self.ended.append(within)


class Clock:
    """The time of the feature, and the connections that it has seen."""

    def __init__(self, age: float) -> None:
        self.now = 1000.0
        self.feature = Ages(AgeOptions(max_connection_age=age))
        self.links: list[Link] = []

    def opens(self, count: int = 1) -> list[Link]:
        new = [Link() for _ in range(count)]
        for link in new:
            assert self.feature.stages(cast("LinkInfo", link)) == ()
        self.links += new
        return new

    def at(self, now: float) -> int:
        """Look after some time. Return how many connections were told to end so far."""
        self.now = 1000.0 + now
        self.feature.look(cast("list[LinkInfo]", self.links))
        return sum(bool(link.ended) for link in self.links)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock(100.0)
    monkeypatch.setattr(ages, "monotonic", lambda: clock.now)
    return clock


def test_by_default_no_connection_ends_and_a_reload_sets_an_age() -> None:
    config = load(NEEDED, {}, None)
    assert config.of(AgeOptions) == AgeOptions(max_connection_age=0.0)
    other = load(NEEDED | {"max_connection_age": "1h"}, {}, None)
    assert other.of(AgeOptions) == AgeOptions(max_connection_age=3600.0)
    assert changes(config, other) == (["max_connection_age"], [])
    told = "--max-connection-age: '1ms' is too short: give at least 1s, or 0 for no limit"
    assert error_of(NEEDED | {"max_connection_age": "1ms"}) == told


def test_connections_of_one_moment_end_one_after_the_other(clock: Clock) -> None:
    clock.opens(1000)
    assert clock.at(100 * (1 - SPREAD) - 1) == 0
    half = clock.at(100)
    assert 400 < half < 600
    assert clock.at(100 * (1 + SPREAD) + 1) == 1000
    assert clock.at(1000) == 1000
    assert {tuple(link.ended) for link in clock.links} == {(5 + SLACK_SECONDS,)}, "each is told once"
    assert clock.feature.counted(()).ended == 1000


def test_a_reload_changes_the_age_of_open_connections(clock: Clock) -> None:
    clock.opens(10)
    clock.feature.reloaded(AgeOptions(max_connection_age=0.0))
    assert clock.at(1000) == 0
    clock.feature.reloaded(AgeOptions(max_connection_age=2000.0))
    assert clock.at(1799) == 0
    assert clock.at(2201) == 10


def test_connections_that_are_older_already_do_not_all_end_with_the_reload(clock: Clock) -> None:
    clock.feature.reloaded(AgeOptions(max_connection_age=0.0))
    clock.opens(1000)
    assert clock.at(86_400) == 0
    clock.feature.reloaded(AgeOptions(max_connection_age=100.0))
    assert clock.at(86_401) < 100
    assert 300 < clock.at(86_410) < 700
    assert clock.at(86_421) == 1000


def test_a_connection_that_may_not_end_now_ends_when_it_may(clock: Clock) -> None:
    """The gateway forwards a part of its request, or does not know where a request ends."""
    (link,) = clock.opens()
    link.may_end = False
    assert clock.at(1000) == 0
    link.may_end = True
    assert clock.at(1002) == 1
    assert clock.feature.counted(()).ended == 1


def test_a_connection_that_is_closed_is_forgotten(clock: Clock) -> None:
    (link,) = clock.opens()
    clock.feature.closed(cast("LinkInfo", link))
    assert clock.feature._since == {}
    clock.feature.closed(cast("LinkInfo", link))


async def test_a_request_in_flight_is_answered_before_the_connection_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with (
        stub_cluster((1, "", 0)) as cluster,
        gateway(cluster.address, Gateway, max_connection_age="1") as gate,
        client(gate.listen.port) as (reader, writer),
    ):
        asked = asyncio.Event()

        def answers_later(_: bytes) -> bytes:
            asked.set()
            return b""

        cluster.others = answers_later
        writer.write(request(ApiKey.HEARTBEAT, 0, 7))
        await asyncio.wait_for(asked.wait(), WAIT_SECONDS)
        link = link_of(gate)
        ages_of = running(gate, Ages)
        await until(lambda: link.may_end)
        monkeypatch.setattr(ages, "monotonic", lambda: monotonic() + 10)
        ages_of.look([cast("LinkInfo", link)])
        assert link.last_event == ages.REASON
        writer.write(request(ApiKey.HEARTBEAT, 0, 8))  # is not read any more
        cluster.writers[-1].write(response(7, b"beats"))
        assert await asyncio.wait_for(frame(reader), WAIT_SECONDS) == (7).to_bytes(4) + b"beats"
        with suppress(ConnectionResetError):
            assert await asyncio.wait_for(reader.read(1), WAIT_SECONDS) == b""
        await until(lambda: not gate.server.links)
        assert b"\nfetchgate_connections_aged_total 1.0\n" in exposition(gate.server.account())
