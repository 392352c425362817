"""Problems are logged once: hung brokers, unreachable hosts, the limit of connections, missing
descriptors, and the mistakes of one client.
"""

import asyncio
import io
import json
from time import monotonic

import pytest
import structlog
from structlog.testing import capture_logs

from proxy.addresses import LOOPED, OTHERS, Address, Broker
from proxy.protocol.api import ApiKey
from proxy.server import conditions, server
from proxy.server.conditions import (
    AGAIN_SECONDS,
    CALM_SECONDS,
    LINES,
    MAX_CLIENTS,
    MAX_WORDS,
    NO_DESCRIPTOR,
    UNTRIED_SECONDS,
    WARN_AGAIN_SECONDS,
    ConnectionLimit,
    Descriptors,
    HungBrokers,
    NewClients,
    Reachability,
    Repeated,
)
from proxy.server.gateway import Gateway
from proxy.telemetry.logs import WINDOW, Throttle, configure, logger
from proxy.telemetry.state import overview
from proxy.telemetry.status import Health, called
from proxy.telemetry.totals import NodeId
from proxy.telemetry.unanswered import HUNG_SECONDS, Owed
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
        await until(lambda: link_of(gate).core.status().outstanding)
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


def test_the_connection_limit_is_logged_once_per_episode_and_not_too_often() -> None:
    noted: list[str] = []

    def note(kind: str, text: str, *, warning: bool = False) -> None:
        assert (kind, warning) == ("limit", True)
        noted.append(text)

    with capture_logs() as lines:
        limit = ConnectionLimit(structlog.get_logger(), note)
        now = 100.0
        assert limit.admits(9, 10, now)
        assert not limit.admits(10, 10, now)
        assert not limit.admits(10, 10, now)
        for wave in range(10):  # all leave and come back
            assert limit.admits(0, 10, now + wave / 10)
            assert not limit.admits(10, 10, now + wave / 10)
        assert len(lines) == len(noted) == 1
        later = now + WARN_AGAIN_SECONDS
        assert not limit.admits(10, 10, later), "there was none in between"
        assert len(lines) == 1
        assert limit.admits(8, 10, later)
        assert not limit.admits(10, 10, later)
    assert len(lines) == len(noted) == 2


def test_missing_descriptors_are_logged_once_until_there_were_enough_for_a_while() -> None:
    noted: list[str] = []

    def note(kind: str, text: str, *, warning: bool = False) -> None:
        assert (kind, warning) == ("descriptors", True)
        noted.append(text)

    with capture_logs() as lines:
        descriptors = Descriptors(structlog.get_logger(), note)
        descriptors.update(left=True, now=1.0)
        assert (descriptors.problem, noted) == ("", [])
        for wave in range(10):
            descriptors.update(left=False, now=10.0 + wave)
            descriptors.update(left=True, now=10.5 + wave)
            assert descriptors.problem == NO_DESCRIPTOR
        descriptors.update(left=True, now=19.0 + CALM_SECONDS)
        assert descriptors.problem == ""
        assert len(lines) == len(noted) == 1
        descriptors.update(left=False, now=20.0 + CALM_SECONDS)
    assert len(lines) == len(noted) == 2


EVENT, NO_TLS, UNTRUSTED = "TLS handshake of a client failed", "no TLS", "unknown ca"


def test_each_client_is_named_once_in_a_while() -> None:
    with capture_logs() as lines:
        failed = Repeated(structlog.get_logger(), EVENT).happens
        for at in range(10):
            assert failed("10.0.0.1", NO_TLS, float(at), shown=f"10.0.0.1:{4000 + at}") == (at == 0)
        failed("10.0.0.1", UNTRUSTED, 10.0)
        failed("10.0.0.2", NO_TLS, 11.0)
        failed("10.0.0.1", NO_TLS, AGAIN_SECONDS)
    assert [(line["client"], line["reason"], line.get("more_since_the_last_line")) for line in lines] == [
        ("10.0.0.1:4000", NO_TLS, None),
        ("10.0.0.1", UNTRUSTED, None),
        ("10.0.0.2", NO_TLS, None),
        ("10.0.0.1", NO_TLS, 9),
    ]


def test_the_first_clients_are_forgotten_where_there_are_too_many() -> None:
    with capture_logs() as lines:
        failed = Repeated(structlog.get_logger(), EVENT).happens
        for client in ("client-0", "client-0", "client-1", "client-1"):
            failed(client, NO_TLS, 0.0)
        for number in range(2, MAX_CLIENTS + 1):
            failed(f"client-{number}", NO_TLS, float(number))
        failed("client-1", NO_TLS, MAX_CLIENTS + 1.0)
        failed("client-0", NO_TLS, MAX_CLIENTS + 2.0)
    assert [(line["client"], line.get("more_since_the_last_line")) for line in lines[-2:]] == [
        ("client-1", 1),
        ("client-0", None),
    ]


def test_what_a_client_chooses_takes_little_memory() -> None:
    with capture_logs() as lines:
        failed = Repeated(structlog.get_logger(), EVENT)
        failed.happens("c" * 32_767, "r" * 32_767, 0.0)
    (line,) = lines
    assert (line["client"], line["reason"]) == ("c" * MAX_WORDS, "r" * MAX_WORDS)
    assert sum(len(text) for key in failed._told for text in key) == 2 * MAX_WORDS


def test_a_client_whose_line_was_not_written_is_named_later() -> None:
    """If `Throttle` drops the log line of a client, a later line names the client.

    50 clients fail once a second in this test.
    """
    now = 0.0
    stream = io.StringIO()
    configure(style="json", level="info", stream=stream)
    structlog.configure(processors=[Throttle(lambda: now), *structlog.get_config()["processors"][1:]])
    try:
        failed = Repeated(logger(), EVENT).happens
        for second in range(60):
            now = float(second)
            for number in range(50):
                failed(f"client-{number}", NO_TLS, now)
    finally:
        structlog.reset_defaults()
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [line["client"] for line in lines] == [f"client-{number}" for number in range(50)]
    assert lines[LINES]["suppressed"] == 10 * 40


def test_each_client_is_logged_once_when_it_is_new() -> None:
    with capture_logs() as lines:
        named = NewClients(structlog.get_logger()).named
        for _ in range(2):
            named("orders", "librdkafka 2.5.0", "10.0.0.1", 1.0)
            named("orders", "librdkafka 2.6.0", "10.0.0.1", 2.0)
            named("orders", "librdkafka 2.5.0", "10.0.0.2", 3.0)
    assert lines[0] == {
        "event": "new client",
        "log_level": "info",
        "client_id": "orders",
        "software": "librdkafka 2.5.0",
        "host": "10.0.0.1",
    }
    assert [(line["software"], line["host"]) for line in lines[1:]] == [
        ("librdkafka 2.6.0", "10.0.0.1"),
        ("librdkafka 2.5.0", "10.0.0.2"),
    ]


def test_new_clients_fill_neither_log_nor_memory() -> None:
    with capture_logs() as lines:
        clients = NewClients(structlog.get_logger())
        for again in range(2):
            for number in range(2 * LINES):
                clients.named(f"client-{number}", "", "10.0.0.1", again * WINDOW)
        assert [line["client_id"] for line in lines] == [f"client-{number}" for number in range(2 * LINES)]
        for number in range(2 * MAX_CLIENTS):
            clients.named(f"client-{number}", "", "10.0.0.1", number * WINDOW)
    assert len(lines) == MAX_CLIENTS + 1
    assert lines[-1]["event"] == "further new clients are not logged"
    assert len(clients._known) == MAX_CLIENTS


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
    assert known.unreachable_brokers.now() == {None: "refused"}


async def test_a_gateway_is_well_again_when_nobody_wants_the_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "TICK_SECONDS", 0.01)

    async with stub_cluster((1, "", 0)) as cluster, gateway(cluster.address, Gateway) as gate:
        await until(lambda: gate.health().state == "ready")
        gate.server.unreachable(1, "refused")
        await asyncio.sleep(0.05)
        assert gate.health() == Health(state="degraded", reasons=["refused"])
        monkeypatch.setattr(conditions, "UNTRIED_SECONDS", 0.0)
        await until(lambda: gate.health() == Health(state="ready", reasons=[]))
