"""A broker that stops responding is reported once, and counts as hung until it responds again.

The gateway continues to use the broker.
"""

from time import monotonic

import pytest
import structlog
from structlog.testing import capture_logs

from proxy.protocol.api import ApiKey
from proxy.server.conditions import UNTRIED_SECONDS, HungBrokers
from proxy.server.gateway import Gateway
from proxy.telemetry.state import overview
from proxy.telemetry.status import Health
from proxy.telemetry.totals import NodeId
from proxy.telemetry.unanswered import HUNG_SECONDS, Owed
from tests.shell import client, frame, gateway, link_of, request, response, run, stub_cluster, until

AT = 100.0
LATE = AT + HUNG_SECONDS + 1


def _hung_brokers() -> HungBrokers:
    return HungBrokers(structlog.get_logger(), lambda *_, **__: None, str)


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


def test_a_gateway_tells_of_it_everywhere() -> None:
    """A hung broker is reported in the log, in the health and in the state of the gateway.

    The test uses a real client and a silent broker. The checks run with a clock that is ahead.
    """

    async def scene() -> None:
        async with (
            stub_cluster() as cluster,
            gateway(cluster.address, Gateway) as gate,
            client(gate.listen.port) as (reader, writer),
        ):
            writer.write(request(ApiKey.API_VERSIONS, 0, 1))
            await frame(reader)
            await until(lambda: gate.health().state == "ready" and cluster.open == 1)
            writer.write(request(ApiKey.HEARTBEAT, 0, 2))
            await until(lambda: link_of(gate).core.status().outstanding)
            gate.process.tasks.cancel()  # nobody else looks
            due = link_of(gate).late_since(monotonic() + HUNG_SECONDS)
            assert due is not None
            later = due + HUNG_SECONDS + 2.5
            gate.server._looked_at = later
            with capture_logs() as lines:
                await gate.server.sample(later)
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
            await gate.server.sample(later + 1)
            account = gate.server.account()
            assert account.health.reasons == []
            assert overview(account)["bootstrap"]["problem"] == ""

    run(scene())


def test_after_the_machine_stood_still_a_broker_gets_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene() -> None:
        async with stub_cluster() as cluster, gateway(cluster.address, Gateway) as gate:
            looks: list[float] = []
            monkeypatch.setattr(gate.monitor.hung_brokers, "look", lambda _, now: looks.append(now))
            gate.process.tasks.cancel()  # nobody else looks
            now = monotonic()
            for at in (1.0, 2.0, 60.0, 61.0):
                await gate.server.sample(now + at)
            assert looks == [now + 1.0, now + 2.0, now + 61.0]

    run(scene())
