"""Brokers that can't be reached or do not respond: each problem is logged once, and so is its end."""

import asyncio
from time import monotonic

import pytest
import structlog
from structlog.testing import capture_logs

from proxy.addresses import LOOPED, OTHERS, Address, Broker
from proxy.protocol.api import ApiKey
from proxy.server import server
from proxy.server.gateway import Gateway
from proxy.telemetry import brokers
from proxy.telemetry.brokers import HUNG_SECONDS, UNTRIED_SECONDS, HungBrokers, Owed, Reachability
from proxy.telemetry.state import overview
from proxy.telemetry.status import Health, called
from proxy.telemetry.totals import NodeId
from tests.shell import client, frame, gateway, link_of, request, response, stub_cluster, until

AT = 100.0
LATE = AT + HUNG_SECONDS + 1


def _called(node_id: NodeId) -> str:
    return called(node_id, {}, transparent=False)


def _hung_brokers() -> HungBrokers:
    return HungBrokers(structlog.get_logger(), lambda *_, **__: None, _called)


def test_a_trouble_is_told_once_and_so_is_its_end() -> None:
    silent: dict[NodeId, Owed] = {1: Owed(outstanding=2, late_since=AT)}
    with capture_logs() as lines:
        known = _hung_brokers()
        known.look(silent, AT + HUNG_SECONDS)
        for later in range(5):
            known.look(silent, LATE + later)
        for later in range(6, 9):
            known.look({1: Owed(outstanding=1, responded_at=LATE + 5)}, LATE + later)
    assert lines == [
        {
            "event": "broker does not respond, its clients wait",
            "log_level": "warning",
            "broker": 1,
            "seconds": 11,
            "outstanding": 2,
        },
        {"event": "broker responds again", "log_level": "info", "broker": 1, "after_seconds": 17},
    ]


def test_a_broker_that_nobody_asks_any_more_is_forgotten_and_not_said_to_respond() -> None:
    with capture_logs() as lines:
        known = _hung_brokers()
        known.look({None: Owed(outstanding=2, late_since=AT)}, LATE)
        known.look({}, LATE + 1)
        known.forget(LATE + UNTRIED_SECONDS)
        known.forget(LATE + UNTRIED_SECONDS + 1)
        known.look({}, LATE + UNTRIED_SECONDS + 2)
    assert [(line["event"].split(",")[0], line["broker"]) for line in lines] == [
        ("broker does not respond", "bootstrap"),
        ("hung broker forgotten", "bootstrap"),
    ]


async def test_a_gateway_tells_of_it_everywhere() -> None:
    """A hung broker is reported in the log, in the health and in the state of the gateway.

    The test uses a real client and a silent broker. The checks run with a clock that is ahead.
    """
    async with (
        stub_cluster() as cluster,
        gateway(cluster.address, Gateway) as gate,
        client(gate.listen.port) as (reader, writer),
    ):
        writer.write(request(ApiKey.API_VERSIONS, 0, 1))
        await frame(reader)
        await until(lambda: gate.health().state == "ready" and cluster.open == 1)
        writer.write(request(ApiKey.HEARTBEAT, 0, 2))
        await until(lambda: link_of(gate).core.state.outstanding)
        gate.process.tasks.cancel()  # nobody else looks
        due = link_of(gate).late_since(monotonic() + HUNG_SECONDS)
        assert due is not None
        later = due + HUNG_SECONDS + 2.5
        gate.server._looked_at = later
        with capture_logs() as lines:
            gate.server.sample(later)
        assert [line["broker"] for line in lines] == ["bootstrap"]
        account = gate.server.account()
        account.status.at = later
        assert account.health == Health(
            state="degraded", reasons=["the bootstrap: no response for 12 s (outstanding requests: 1)"]
        )
        assert account.health.ready, "it is out of service for nobody"
        told = overview(account)
        assert told["bootstrap"]["problem"] == "no response for 12 s"
        assert told["bootstrap"]["problem_seconds"] == 12.5
        assert [event["text"] for event in told["events"] if event["warning"]] == [
            "the bootstrap has not responded for 12 s (outstanding requests: 1)"
        ]

        cluster.writers[-1].write(response(2, b"\0\0"))
        assert await frame(reader)
        gate.server.sample(later + 1)
        account = gate.server.account()
        assert account.health.reasons == []
        assert overview(account)["bootstrap"]["problem"] == ""


async def test_after_the_machine_stood_still_a_broker_gets_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    async with stub_cluster() as cluster, gateway(cluster.address, Gateway) as gate:
        looks: list[float] = []
        monkeypatch.setattr(gate.monitor.hung_brokers, "look", lambda _, now: looks.append(now))
        gate.process.tasks.cancel()  # nobody else looks
        now = monotonic()
        for at in (1.0, 2.0, 60.0, 61.0):
            gate.server.sample(now + at)
        assert looks == [now + 1.0, now + 2.0, now + 61.0]


def test_a_broker_is_in_trouble_when_it_is_late_by_more_than_it_may() -> None:
    known = _hung_brokers()
    known.look({1: Owed(outstanding=3, late_since=AT), 2: Owed(outstanding=1)}, LATE)
    assert known.hung(AT + HUNG_SECONDS) == {}
    assert known.hung(LATE) == {1: AT}
    assert (known.outstanding(1), known.outstanding(2), known.outstanding(7)) == (3, 1, 0)


def test_a_response_that_clients_no_longer_wait_for_stays_due() -> None:
    known = _hung_brokers()
    known.look({1: Owed(outstanding=1, late_since=AT)}, AT + 4)
    known.look({}, AT + 6)  # the client has given up
    known.look({1: Owed(outstanding=1, late_since=AT + 7)}, AT + 8)
    known.look({1: Owed(outstanding=1)}, AT + 10)
    assert known.hung(LATE) == {1: AT}
    known.look({1: Owed(responded_at=AT + 12)}, AT + 13)
    assert known.hung(LATE) == {}


def test_what_one_client_waits_for_is_late_although_others_get_theirs() -> None:
    known = _hung_brokers()
    known.look({1: Owed(outstanding=2, late_since=AT, responded_at=LATE)}, LATE)
    assert known.hung(LATE) == {1: AT}
    known.look({1: Owed(outstanding=1, responded_at=LATE)}, LATE + 1)
    assert known.hung(LATE + 1) == {}


def test_a_broker_that_nobody_asks_is_forgotten() -> None:
    known = _hung_brokers()
    known.look({1: Owed(outstanding=1, late_since=AT), 2: Owed(outstanding=1, late_since=AT)}, AT)
    known.look({2: Owed(outstanding=1, late_since=AT)}, AT + 50)
    known.forget(AT + UNTRIED_SECONDS)
    assert set(known.hung(LATE)) == {1, 2}
    known.forget(AT + UNTRIED_SECONDS + 1)
    assert set(known.hung(LATE)) == {2}


THERE = Address("10.99.0.1", 9092)


def test_in_transparent_mode_a_broker_is_called_by_its_address() -> None:
    known = {0: Broker(node_id=0, address=THERE)}

    def address(node_id: NodeId) -> str:
        return called(node_id, known, transparent=True)

    with capture_logs() as lines:
        reach = Reachability((), structlog.get_logger(), lambda *_, **__: None, address)
        reach.unreachable(0, "refused")
        reach.forget(monotonic() + UNTRIED_SECONDS + 1)
        reach.unreachable(OTHERS, "refused")
        reach.connected(OTHERS, THERE)
        hung = HungBrokers(structlog.get_logger(), lambda *_, **__: None, address)
        hung.look({0: Owed(outstanding=2, late_since=AT)}, LATE)
        hung.look({0: Owed(outstanding=1, responded_at=LATE)}, LATE + 1)
    assert [line["broker"] for line in lines] == [str(THERE)] * 2 + ["other"] * 2 + [str(THERE)] * 2


def _reach(*bootstrap: Address) -> Reachability:
    return Reachability(bootstrap, structlog.get_logger(), lambda *_, **__: None, _called)


def test_the_latest_word_on_a_broker_counts() -> None:
    found = _reach()
    with capture_logs() as lines:
        found.unreachable(1, "down")
        found.unreachable(1, "down")
    assert len(lines) == 1, "it is not new"
    first = found.since[1]
    with capture_logs() as lines:
        found.unreachable(1, "timed out")
    assert len(lines) == 1
    assert found.since == {1: first}, "the first failure"
    assert found.reached(1)
    assert (found.now(), found.since) == ({}, {})
    found.unreachable(1, "y")
    found.unreachable(None, "x")
    assert list(found.now()) == [None, 1], "the bootstrap first"
    found.forget(monotonic() + UNTRIED_SECONDS + 1)
    assert list(found.since) == [None]


def test_a_destination_that_nobody_tries_again_is_forgotten() -> None:
    with capture_logs() as lines:
        known = _reach()
        began = monotonic()
        known.unreachable(0, "refused")
        known.unreachable(OTHERS, "refused")
        known.unreachable(LOOPED, "nowhere to go")
        known.forget(began + UNTRIED_SECONDS - 1)
        assert known.now() == {OTHERS: "refused", 0: "refused"}
        tried = monotonic()
        known.unreachable(0, "refused")
        known.forget(tried + UNTRIED_SECONDS)
        assert 0 in known.now(), "it was tried again"
        known.forget(monotonic() + UNTRIED_SECONDS + 1)
        assert known.now() == {}
        known.unreachable(0, "refused")
        assert known.failures == {0: 3, OTHERS: 1}
        known.connected(0, THERE)
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
    known = _reach(THERE)
    known.bootstrap_responded(THERE)
    known.unreachable(None, "refused")
    known.forget(monotonic() + UNTRIED_SECONDS + 1)
    assert known.now() == {None: "refused"}


async def test_a_gateway_is_well_again_when_nobody_wants_the_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "TICK_SECONDS", 0.01)

    async with stub_cluster((1, "", 0)) as cluster, gateway(cluster.address, Gateway) as gate:
        await until(lambda: gate.health().state == "ready")
        gate.server.unreachable(1, "refused")
        await asyncio.sleep(0.05)
        assert gate.health() == Health(state="degraded", reasons=["refused"])
        monkeypatch.setattr(brokers, "UNTRIED_SECONDS", 0.0)
        await until(lambda: gate.health() == Health(state="ready", reasons=[]))
