"""The log has one line for an unreachable host.

After some time the gateway forgets that the host was unreachable.
"""

import asyncio
from time import monotonic

import pytest
import structlog
from structlog.testing import capture_logs

from proxy.addresses import LOOPED, OTHERS, Address
from proxy.net.link import Link
from proxy.net.transparent import Destinations
from proxy.server import conditions, server
from proxy.server.conditions import UNTRIED_SECONDS, Reachability
from proxy.server.gateway import Gateway
from proxy.telemetry.status import Health
from tests.shell import gateway, run, stub_cluster, until

AT = Address("10.99.0.1", 9092)


def _reach(*bootstrap: Address) -> Reachability:
    return Reachability(bootstrap, structlog.get_logger(), lambda *_, **__: None, str)


def test_a_destination_that_nobody_tries_again_is_forgotten() -> None:
    with capture_logs() as lines:
        known = _reach()
        began = monotonic()
        known.unreachable(0, "refused")
        known.unreachable(OTHERS, "refused")
        known.unreachable(LOOPED, "nowhere to go")
        known.forget(began + UNTRIED_SECONDS - 1)
        assert known.unreachable_brokers.now() == {OTHERS: "refused", 0: "refused"}
        tried = monotonic()
        known.unreachable(0, "refused")
        known.forget(tried + UNTRIED_SECONDS)
        assert 0 in known.unreachable_brokers.now(), "it was tried again"
        known.forget(monotonic() + UNTRIED_SECONDS + 1)
        assert known.unreachable_brokers.now() == {}
        known.unreachable(0, "refused")
        assert known.failures == {0: 3, OTHERS: 1}
        known.connected(0, AT)
        known.forget(monotonic() + UNTRIED_SECONDS + 1)
    assert [(line["broker"], line["event"].split(",")[0]) for line in lines] == [
        (0, "broker unreachable"),
        (OTHERS, "broker unreachable"),
        (OTHERS, "unreachable broker forgotten"),
        (0, "unreachable broker forgotten"),
        (0, "broker unreachable"),
        (0, "broker reachable again"),
    ]


def test_the_bootstrap_is_not_forgotten_for_it_is_always_tried() -> None:
    known = _reach(AT)
    known.bootstrap_responded(AT)
    known.unreachable(None, "refused")
    known.forget(monotonic() + UNTRIED_SECONDS + 1)
    assert known.unreachable_brokers.now() == {None: "refused"}


def test_a_gateway_is_well_again_when_nobody_wants_the_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "TICK_SECONDS", 0.01)

    async def scene() -> None:
        async with stub_cluster((1, "", 0)) as cluster, gateway(cluster.address, Gateway) as gate:
            await until(lambda: gate.health().state == "ready")
            gate.server.unreachable(1, "refused")
            await asyncio.sleep(0.05)
            assert gate.health() == Health(state="degraded", reasons=["refused"])
            monkeypatch.setattr(conditions, "UNTRIED_SECONDS", 0.0)
            await until(lambda: gate.health() == Health(state="ready", reasons=[]))

    run(scene())


def test_readyz_tells_of_a_loop_whatever_was_refused_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that is refused for another reason does not take the place of the loop."""
    there = Address("127.0.0.1", 9092)
    destination = [there]

    class Redirected:
        """A socket that netfilter has redirected."""

        def getsockname(self) -> tuple[str, int]:
            return ("127.0.0.1", 19092)

    monkeypatch.setattr(Destinations, "of", lambda *_: (0, destination[0]))

    async def refused() -> None:
        async with gateway("", transparent="redirect", listen="127.0.0.1:0") as gate:
            upstream = gate.server.upstream
            gate.server.shared.outbound_ports.add((40_000, there))
            link = Link(gate.server, None)
            link.client_address = "127.0.0.1:40000"
            assert upstream.broker_of(link, Redirected()) == LOOPED
            destination[0] = Address("127.0.0.1", gate.server.brokers.listen.port)
            link.client_address = "127.0.0.1:40001"
            assert upstream.broker_of(link, Redirected()) == LOOPED
            (said,) = upstream.problems()
            assert said.startswith("netfilter sent the gateway's own connection back to it")

    run(refused())
