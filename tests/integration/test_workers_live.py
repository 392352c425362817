"""Tests of --workers with a real broker.

Clients and broker see one gateway, whatever the number of its processes.
"""

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.integration.bystander import PARTITIONS as BYSTANDER_PARTITIONS
from tests.integration.bystander import Bystander, until
from tests.integration.fetching import FETCHES_TO_SESSION, Fetcher, contents
from tools.gateway import GatewayProcess
from tools.kafka import Broker
from tools.kafka.admin import Admin

TOPIC = "workers"
PARTITIONS = 10
CLIENTS, SLOTS = 8, 3
SESSION_NOT_FOUND = 70


@pytest.fixture(scope="module", autouse=True)
def _topics(broker: Broker) -> None:
    with Admin(broker.address) as admin:
        admin.create_topic(TOPIC, partitions=PARTITIONS)
        admin.create_topic("survives", partitions=BYSTANDER_PARTITIONS)


@pytest.fixture
def switch(tmp_path: Path) -> Path:
    """Return the path of the TOML file that the gateway of the fixture `gateway` reads."""
    file = tmp_path / "gate.toml"
    file.write_text(f"max_sessions = {SLOTS}\n")
    return file


@pytest.fixture
def gateway(broker: Broker, switch: Path) -> Iterator[GatewayProcess]:
    with GatewayProcess(broker.address, "--workers", "2", "--config", str(switch)) as gateway:
        until(lambda: not gateway.state()["reasons"], "both workers to serve")
        yield gateway


def _fetchers(stack: ExitStack, broker: Broker, gateway: GatewayProcess, number: int) -> list[Fetcher]:
    at = gateway.address_of(broker.node_id)
    named = (Fetcher(at, TOPIC, PARTITIONS, client_id=f"f-{each}") for each in range(number))
    return [stack.enter_context(fetcher).hello() for fetcher in named]


def test_all_workers_take_slots_from_one_budget_and_response_as_the_broker_does(
    broker: Broker, gateway: GatewayProcess, switch: Path
) -> None:
    with ExitStack() as stack:
        direct = stack.enter_context(Fetcher(broker.address, TOPIC, PARTITIONS)).hello()
        expected = contents(direct.fetches())
        fetchers = _fetchers(stack, broker, gateway, CLIENTS)
        for fetcher in fetchers:
            assert contents(fetcher.fetches()) == expected
        told = gateway.state()
        assert [worker["connections"] for worker in told["workers"]] == [CLIENTS // 2, CLIENTS // 2]
        assert told["sessions"]["held"] == SLOTS
        assert told["brokers"][0]["sessions"] == SLOTS
        assert told["totals"]["client"]["fetches"]["sessionless"] == CLIENTS * FETCHES_TO_SESSION
        assert gateway.metric("fetchgate_fetch_sessions", side="broker") == SLOTS

        switch.write_text(f"max_sessions = {CLIENTS}\n")
        gateway.reload()
        until(lambda: gateway.state()["sessions"]["max"] == CLIENTS, "the limit to be raised")
        for fetcher in fetchers:
            fetcher.fetches()
        assert gateway.state()["sessions"]["held"] == CLIENTS
    until(lambda: gateway.state()["sessions"]["held"] == 0, "the slots to be given back")


def test_a_gateway_that_leaves_closes_the_sessions_of_all_its_workers(
    broker: Broker, gateway: GatewayProcess
) -> None:
    with ExitStack() as stack:
        for fetcher in _fetchers(stack, broker, gateway, SLOTS):
            fetcher.fetches()
        sessions = [
            {"session_id": each["session_id"], "session_epoch": each["session_epoch"] + 1}
            for each in gateway.state()["connections"]
        ]
        assert len({session["session_id"] for session in sessions}) == SLOTS
        assert gateway.stop() == 0
        assert "cut_off=0" in gateway.log()
        direct = stack.enter_context(Fetcher(broker.address, TOPIC, PARTITIONS)).hello()
        for session in sessions:
            assert direct.fetch(**session).error_code == SESSION_NOT_FOUND


def test_a_worker_that_is_killed_costs_its_clients_a_reconnect(
    broker: Broker, gateway: GatewayProcess
) -> None:
    """Workers are killed one after the other while clients produce and consume.

    The clients reconnect. They see no error, and no record is lost or doubled.
    """
    at = gateway.address
    with Bystander(at, at, "survives", rate=50, settings={"enable.idempotence": True}) as load:
        load.check()
        for number in (0, 1):
            os.kill(gateway.state()["workers"][number]["pid"], signal.SIGKILL)
            until(lambda: "starting" not in gateway.state()["state"], "another worker")
            until(lambda: not gateway.state()["reasons"], "the worker to be replaced")
            load.check()
        load.finish()
        assert load.errors == []
    assert gateway.log().count("worker ended") == 2
