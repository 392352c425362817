"""An operator changes a running gateway with a real broker: session switch, SIGTERM, restart, and SASL."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from tests.integration.bystander import until
from tests.integration.fetching import FETCHES_TO_SESSION, Fetcher, contents
from tools.gateway import GatewayProcess
from tools.kafka import Broker
from tools.kafka.admin import Admin

TOPIC = "shell"
PARTITIONS = 10
SESSION_NOT_FOUND = 70
JAAS = (
    'org.apache.kafka.common.security.plain.PlainLoginModule required username="u" password="p" user_u="p";'
)


@pytest.fixture(scope="module", autouse=True)
def _topic(broker: Broker) -> None:
    with Admin(broker.address) as admin:
        admin.create_topic(TOPIC, partitions=PARTITIONS)


@pytest.fixture
def switch(tmp_path: Path) -> Path:
    """The TOML file with the options of the fixture `gateway`. Tests change it to switch sessions."""
    file = tmp_path / "gate.toml"
    file.write_text('sessions = "on"\n')
    return file


@pytest.fixture
def gateway(broker: Broker, switch: Path) -> Iterator[GatewayProcess]:
    with GatewayProcess(broker.address, "--config", str(switch)) as gateway:
        yield gateway


def _fetcher(broker: Broker, gateway: GatewayProcess, client_id: str = "fetcher") -> Fetcher:
    return Fetcher(gateway.address_of(broker.node_id), TOPIC, PARTITIONS, client_id=client_id).hello()


def _kinds(gateway: GatewayProcess) -> dict[str, int]:
    kinds: dict[str, int] = gateway.state()["totals"]["broker"]["fetches"]
    return kinds


def _reload(gateway: GatewayProcess, switch: Path, text: str) -> None:
    said = gateway.log().count("reloaded")
    switch.write_text(text)
    gateway.reload()
    until(lambda: gateway.log().count("reloaded") > said, "the reload to be logged")


def test_the_switch_makes_an_open_connection_a_plain_wire_and_back(
    broker: Broker, gateway: GatewayProcess, switch: Path
) -> None:
    with Fetcher(broker.address, TOPIC, PARTITIONS) as direct, _fetcher(broker, gateway) as fetcher:
        expected = contents(direct.hello().fetches())
        assert contents(fetcher.fetches()) == expected
        assert gateway.state()["sessions"]["held"] == 1
        before = _kinds(gateway)

        _reload(gateway, switch, 'sessions = "off"\n')
        assert contents(fetcher.fetches()) == expected

        after = _kinds(gateway)
        assert after["sessionless"] == before["sessionless"] + FETCHES_TO_SESSION
        assert after["incremental"] == before["incremental"]
        assert gateway.state()["sessions"]["held"] == 0

        _reload(gateway, switch, 'sessions = "on"\n')
        assert contents(fetcher.fetches(2 * FETCHES_TO_SESSION))[:FETCHES_TO_SESSION] == expected
        assert _kinds(gateway)["incremental"] > after["incremental"]


def test_the_switch_can_be_turned_for_one_client_alone(
    broker: Broker, gateway: GatewayProcess, switch: Path
) -> None:
    _reload(gateway, switch, 'sessions_off_for = ["plain"]\n')
    with _fetcher(broker, gateway, "plain") as plain, _fetcher(broker, gateway, "other") as other:
        assert contents(plain.fetches()) == contents(other.fetches())
        held = {entry["client_id"]: entry["session_partitions"] for entry in gateway.state()["connections"]}
        assert held == {"plain": 0, "other": PARTITIONS}


def test_a_gateway_that_leaves_closes_its_sessions_at_the_broker(
    broker: Broker, gateway: GatewayProcess
) -> None:
    with _fetcher(broker, gateway) as fetcher:
        fetcher.fetches()
        (connection,) = gateway.state()["connections"]
        session = {"session_id": connection["session_id"], "session_epoch": connection["session_epoch"] + 1}
        assert session["session_id"] > 0

        assert gateway.stop() == 0

    with Fetcher(broker.address, TOPIC, PARTITIONS) as direct:
        assert direct.hello().fetch(**session).error_code == SESSION_NOT_FOUND


def test_listeners_are_open_after_a_restart_though_the_bootstrap_is_away(
    broker: Broker, tmp_path: Path
) -> None:
    options = ("--state", str(tmp_path / "state.json"))
    with GatewayProcess(broker.address, *options) as gateway:
        assert gateway.stop() == 0
    with (
        GatewayProcess("127.0.0.1:1", *options, ready=False) as gateway,
        Fetcher(gateway.address_of(broker.node_id), TOPIC, PARTITIONS) as fetcher,
        Fetcher(broker.address, TOPIC, PARTITIONS) as direct,
    ):
        assert fetcher.hello().fetch() == direct.hello().fetch()
        assert gateway.state()["state"] == "starting"


def test_a_cluster_that_wants_sasl_is_learned_from_its_clients() -> None:
    properties = {
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": JAAS,
    }
    with (
        Broker(listeners={"SASL_PLAINTEXT": None}, properties=properties) as broker,
        GatewayProcess(f"127.0.0.1:{broker.port_of('SASL_PLAINTEXT')}") as gateway,
    ):
        assert gateway.state()["brokers"] == []
        client = AdminClient(
            {
                "bootstrap.servers": gateway.address,
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanism": "PLAIN",
                "sasl.username": "u",
                "sasl.password": "p",
            }
        )
        (told,) = client.list_topics(timeout=60).brokers.values()
        assert f"{told.host}:{told.port}" == gateway.address_of(broker.node_id)
        (known,) = gateway.state()["brokers"]
        assert known["listener"] == gateway.address_of(broker.node_id)
        assert known["address"] == f"127.0.0.1:{broker.port_of('SASL_PLAINTEXT')}"
