"""The reasons that `/readyz` gives, except those about the bootstrap and the listeners."""

import gc
import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
from structlog.testing import capture_logs

from proxy.server import conditions, server, upstream
from proxy.server.gateway import Gateway
from proxy.session.decision import Reason
from proxy.telemetry.status import Health
from tests.shell import BOTH_LOOPS, client, gateway, link_of, run, stub_broker, stub_cluster, until


async def test_limits_that_are_reached_are_reasons() -> None:
    async with (
        stub_cluster((1, "", 0)) as cluster,
        gateway(cluster.address, Gateway, max_sessions="1", max_inflight_bytes="100") as gate,
        client(gate.listen.port),
    ):
        await until(lambda: gate.server.links and gate.health().state == "ready")
        assert gate.server.sessions.reserve()
        assert gate.health().state == "ready", "a sidecar may have as many as it needs, and no more"
        link_of(gate).core.state.decided = Reason.NO_SLOT
        slots = (
            "all 1 session slots are used, other clients' fetches are forwarded unchanged;"
            " raise --max-sessions"
        )
        assert gate.health() == Health(state="degraded", reasons=[slots])
        gate.reconfigure(replace(gate.process.config, sessions=False))
        assert gate.health().state == "ready", "nobody wants one"
        gate.reconfigure(replace(gate.process.config, sessions=True))
        gate.server.budget.total = 101
        held = (
            "101 bytes of responses are buffered, so nothing is read from brokers; raise --max-inflight-bytes"
        )
        assert gate.health() == Health(state="degraded", reasons=[slots, held])
        assert gate.health().ready
        gate.server.budget.total = 0
        gate.server.sessions.release()
        assert gate.health() == Health(state="ready", reasons=[])


async def test_no_slot_is_wanted_where_none_may_be_taken() -> None:
    async with (
        stub_cluster((1, "", 0)) as cluster,
        gateway(cluster.address, Gateway, max_sessions="0") as gate,
    ):
        await until(lambda: gate.health().state == "ready")


async def test_that_no_broker_is_reachable_is_said_first() -> None:
    async with stub_cluster((1, "", 0)) as cluster, gateway(cluster.address, Gateway) as gate:
        await until(lambda: gate.health().state == "ready")
        gate.server.unreachable(None, "down")
        assert gate.health().reasons == ["down"]
        gate.server.unreachable(1, "and this")
        assert gate.health() == Health(
            state="degraded", reasons=["no broker is reachable", "down", "and this"]
        )
        told = [kept.text for kept in gate.process.events]
        assert told[0].startswith("ready: the bootstrap ")
        assert told[1:] == ["broker 1 is unreachable: and this"], "of one kind, told as one"
        gate.server.connected(1, gate.listen)
        assert gate.health().reasons == ["down"]


@contextmanager
def _descriptors_left(count: int) -> Iterator[Callable[[], None]]:
    """Leave only `count` free file descriptors in this process. Yield a function that restores this number.

    The function is needed because objects of other tests may close descriptors at any time.
    """
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)

    def leave() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        taken = [os.dup(0) for _ in range(count + 1)]  # the lowest ones that are free
        for each in taken:
            os.close(each)
        resource.setrlimit(resource.RLIMIT_NOFILE, (taken[-1], limits[1]))

    gc.collect()
    leave()
    try:
        yield leave
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


NO_DESCRIPTOR = "no file descriptor is left for more clients; raise the limit (ulimit -n)"


@pytest.fixture
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check descriptors often, and report at once when some are free again."""
    monkeypatch.setattr(server, "TICK_SECONDS", 0.01)
    monkeypatch.setattr(conditions, "CALM_SECONDS", 0.0)


@pytest.mark.usefixtures("_quick")
@pytest.mark.parametrize("left", [0, 1])
async def test_that_no_descriptor_is_left_for_a_client_is_a_reason(left: int) -> None:
    async with stub_cluster((1, "", 0)) as cluster, gateway(cluster.address, Gateway) as gate:
        await until(lambda: gate.health().state == "ready")
        with capture_logs() as lines, _descriptors_left(left) as leave:

            def told() -> bool:
                leave()
                return gate.health() == Health(state="degraded", reasons=[NO_DESCRIPTOR])

            await until(told)
        await until(lambda: gate.health().state == "ready")
        # The line "ready" may come after the state.
        warnings = [line["event"] for line in lines if line["log_level"] == "warning"]
        assert warnings == ["no file descriptor is left for more clients"]


@BOTH_LOOPS
def test_that_none_is_left_for_its_broker_is_no_fault_of_the_broker(
    plain: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upstream, "UNREACHABLE_SECONDS", 0.05)

    async def scene() -> None:
        async with stub_broker() as broker, gateway(broker.address) as gate:
            gate.monitor.reach.answered = True
            gate.monitor.reach.reached(None)
            with _descriptors_left(2):  # one for each end of the client's connection
                async with client(gate.listen.port) as (reader, _):
                    assert await reader.read() == b""
                assert gate.health() == Health(state="degraded", reasons=[NO_DESCRIPTOR])

    run(scene(), plain=plain)
