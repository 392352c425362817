"""The gateway's own connections to leaders, for clients that have not authenticated."""

import pytest

from proxy.core.asking.siblings import ClientIdentity, Siblings
from proxy.server import own_connection
from proxy.server.gateway import Gateway
from proxy.server.own_connection import OwnConnections
from proxy.server.registry import BrokerRegistry
from tests.shell import gateway, request, response, stub_cluster, until

WHO = ClientIdentity("10.0.0.7", "app", b"")
ASKED = request(2, 7, 5, b"?")


def connections(gate: Gateway) -> OwnConnections:
    assert isinstance(gate.brokers, BrokerRegistry)
    return OwnConnections(gate.process, gate.brokers, gate.server.upstream.tls)


async def test_a_question_gets_its_response_and_the_connection_is_closed() -> None:
    async with stub_cluster((1, "", 0)) as cluster, gateway(cluster.address, Gateway) as gate:
        await until(lambda: gate.health().state == "ready" and not cluster.open)
        cluster.others = lambda message: b"offsets of " + message[-1:]
        sibling = connections(gate).connect(WHO, 1)
        assert sibling is not None
        assert (sibling.identity(), sibling.wait_left(0.0), sibling.quiet(0.0)) == (WHO, 0.0, True)
        told: list[bytes | None] = []
        sibling.ask(ASKED, lambda frame, _now: told.append(frame), 0.0)
        await until(lambda: told)
        assert told == [response(5, b"offsets of ?")]
        await until(lambda: not cluster.open)


@pytest.mark.parametrize("how", ["no answer", "closed", "refused", "too large"])
async def test_a_question_that_gets_no_response_is_told(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_connection, "ANSWER_SECONDS", 0.2)

    async with stub_cluster((1, "", 0)) as cluster, gateway(cluster.address, Gateway) as gate:
        await until(lambda: gate.health().state == "ready" and not cluster.open)

        def answers(_message: bytes) -> bytes:
            if how == "closed":
                cluster.writers[0].close()
            elif how == "too large":
                cluster.writers[0].write(b"\x7f\0\0\0")
            return b""

        cluster.others = answers
        if how == "refused":
            await cluster.stop()
        own = connections(gate)
        sibling = own.connect(WHO, 1)
        assert sibling is not None
        told: list[bytes | None] = []
        sibling.ask(ASKED, lambda frame, _now: told.append(frame), 0.0)
        await until(lambda: told)
        assert told == [None]


async def test_few_connections_are_open_at_one_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_connection, "MOST", 1)

    async with stub_cluster((1, "", 0)) as cluster, gateway(cluster.address, Gateway) as gate:
        await until(lambda: gate.health().state == "ready" and not cluster.open)
        own = connections(gate)
        assert own.connect(WHO, 2) is None
        sibling = own.connect(WHO, 1)
        assert sibling is not None
        sibling.ask(ASKED, lambda *_: None, 0.0)
        assert own.connect(WHO, 1) is None
        await until(lambda: cluster.open)
        assert own.connect(WHO, 1) is None


def test_a_client_that_has_authenticated_gets_none() -> None:
    siblings = Siblings()
    asked: list[tuple[ClientIdentity, int]] = []
    siblings.connect = lambda who, node_id: asked.append((who, node_id))
    siblings.new(None, 1)
    siblings.new(WHO._replace(authenticated_as=b"digest"), 1)
    assert asked == []
    siblings.new(WHO, 1)
    assert asked == [(WHO, 1)]
