"""The options of a gateway with a real broker, given as flags, as environment variables and in a file."""

from pathlib import Path

import pytest

from tests.integration.bystander import until
from tests.integration.fetching import Fetcher, contents
from tools.gateway import GatewayProcess
from tools.kafka import Broker
from tools.kafka.admin import Admin

TOPIC = "options"
PARTITIONS = 10
FLAGS = ("--max-inflight-bytes", "128MiB", "--idle-timeout", "5m", "--keep-order", "no")
VARIABLES = {
    "FETCHGATE_MAX_REQUEST_BYTES": "50MB",
    "FETCHGATE_HANDSHAKE_TIMEOUT": "30s",
    "FETCHGATE_REUSE_PORT": "false",
}
FILE = 'max_fetch_bytes = "10m"\ndrain_timeout = "500ms"\nsessions = true\nclient_sessions = "true"\n'
GIVEN = {
    "max_inflight_bytes": ("128MiB", "flag"),
    "idle_timeout": ("5m", "flag"),
    "keep_order": ("no", "flag"),
    "max_request_bytes": ("50MB", "environment"),
    "handshake_timeout": ("30s", "environment"),
    "reuse_port": ("false", "environment"),
    "max_fetch_bytes": ("10m", "file"),
    "drain_timeout": ("500ms", "file"),
    "sessions": ("on", "file"),
    "client_sessions": ("true", "file"),
    "max_connections": ("5000", "default"),
}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "gate.toml"
    file.write_text(FILE)
    return file


def test_units_in_each_of_the_three_ways_are_in_force(broker: Broker, file: Path) -> None:
    with Admin(broker.address) as admin:
        admin.create_topic(TOPIC, partitions=PARTITIONS)
    with (
        GatewayProcess(broker.address, *FLAGS, "--config", str(file), environment=VARIABLES) as gateway,
        Fetcher(broker.address, TOPIC, PARTITIONS) as direct,
        Fetcher(gateway.address_of(broker.node_id), TOPIC, PARTITIONS) as fetcher,
    ):
        assert contents(fetcher.hello().fetches()) == contents(direct.hello().fetches())
        state = gateway.state()
        assert (state["max_inflight_bytes"], state["max_fetch_bytes"]) == (134_217_728, {"": 10_485_760})
        assert {name: tuple(state["config"][name].values()) for name in GIVEN} == GIVEN
        file.write_text(FILE.replace("10m", "1MB"))
        gateway.reload()
        until(lambda: "reloaded" in gateway.log(), "the reload to be logged")
        state = gateway.state()
        assert state["max_fetch_bytes"] == {"": 1_000_000}
        assert state["config"]["max_fetch_bytes"] == {"value": "1MB", "source": "file"}
        assert gateway.stop() == 0
