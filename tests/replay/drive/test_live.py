"""Replay plays captures of this repository with a real broker and a real gateway."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from replay.cli import main
from tools.gateway import GatewayProcess
from tools.kafka import Broker
from tools.kafka.admin import Admin

pytestmark = pytest.mark.integration

CAPTURES = Path(__file__).parents[3] / "captures"
TRUTH = {
    name: json.loads((CAPTURES / f"{name}.truth.json").read_text())
    for name in ("librdkafka-100p", "java-100p", "many-clients-any")
}


@pytest.fixture(scope="module")
def topics(broker: Broker) -> None:
    """Create the topics of the captures, without records."""
    with Admin(broker.address) as admin:
        for name, partitions in (("events", 100), ("orders", 12)):
            admin.create_topic(name, partitions=partitions)


Drive = Callable[..., dict[str, Any]]


@pytest.fixture
def drive(topics: None, capsys: pytest.CaptureFixture[str]) -> Drive:
    """Return a function that replays a capture and returns the report.

    Requests are sent as fast as responses arrive. Fetches do not wait for records.
    """

    def driving(name: str, *arguments: str) -> dict[str, Any]:
        options = ("--speed", "max", "--max-wait", "0", "--json", *arguments)
        assert main(["drive", str(CAPTURES / f"{name}.pcap"), *options]) == 0
        report: dict[str, Any] = json.loads(capsys.readouterr().out)
        return report

    return driving


def fetches(report: dict[str, Any], side: str) -> dict[str, Any]:
    (found,) = [row for row in report["figures"] if (row["side"], row["api"]) == (side, "Fetch")]
    assert isinstance(found, dict)
    assert found["sent"] == found["answered"]
    assert not found["unreadable"]
    return found


def test_a_broker_gets_what_was_captured(drive: Drive, broker: Broker) -> None:
    report = drive("librdkafka-100p", "--target", broker.address)

    truth = TRUTH["librdkafka-100p"]["fetch"]
    played = fetches(report, "target")
    assert (played["errors"], played["partition_errors"]) == ({}, {})
    assert played["sent"] == 322
    assert played["partitions_answered"] == truth["partitions_requested"]
    assert report["connection_errors"] == {}
    assert report["missing_topics"] == {}


def test_the_saving_is_measured_beside_a_direct_run(
    drive: Drive, broker: Broker, gateway: GatewayProcess
) -> None:
    report = drive(
        "librdkafka-100p", "--target", gateway.address, "--against", broker.address, "--admin", gateway.admin
    )

    through, direct, saving = fetches(report, "target"), fetches(report, "against"), report["saving"]
    assert (through["request_bytes"], through["response_bytes"]) == (
        direct["request_bytes"],
        direct["response_bytes"],
    )
    assert through["partitions_answered"] == direct["partitions_answered"]
    assert not saving["other_clients"]
    assert saving["gateway_request_bytes"] == gateway.metric(
        "fetchgate_fetch_request_bytes_total", side="broker"
    )
    assert saving["gateway_response_bytes"] == gateway.metric(
        "fetchgate_fetch_response_bytes_total", side="broker"
    )
    assert saving["direct_request_bytes"] == direct["request_bytes"]
    assert saving["saved_ratio"] > 0.95


@pytest.mark.nightly
def test_sessions_of_a_java_client_are_the_targets_own(
    drive: Drive, broker: Broker, gateway: GatewayProcess
) -> None:
    report = drive(
        "java-100p", "--target", gateway.address, "--against", broker.address, "--admin", gateway.admin
    )

    for side in ("target", "against"):
        played = fetches(report, side)
        assert (played["errors"], played["partition_errors"]) == ({}, {})
        assert played["sent"] == 472
    assert report["saving"]["saved_bytes"] == 0  # what has sessions passes as it is
    assert {row["api"] for row in report["left_out"]}.isdisjoint({"Fetch"})


@pytest.mark.nightly
def test_missing_topics_are_created(drive: Drive, broker: Broker, tmp_path: Path) -> None:
    """A missing topic is created with the captured number of partitions.

    The topic's name is replaced in the capture by a name of equal length that the broker does not have.
    """
    capture = tmp_path / "renamed.pcap"
    capture.write_bytes((CAPTURES / "librdkafka-100p.pcap").read_bytes().replace(b"events", b"stneve"))
    report = drive(str(capture.with_suffix("")), "--target", broker.address, "--create-topics")

    assert report["created_topics"] == {"stneve": 100}
    assert report["missing_topics"] == {}
    played = fetches(report, "target")
    assert (played["sent"], played["errors"], played["partition_errors"]) == (322, {}, {})


@pytest.mark.nightly
def test_members_of_a_group_are_members_at_the_target(drive: Drive, broker: Broker) -> None:
    """They have the ids and generations that the target gives."""
    groups = "JoinGroup,SyncGroup,Heartbeat,LeaveGroup,OffsetCommit"
    report = drive("librdkafka-rebalance", "--target", broker.address, "--create-topics", "--include", groups)

    rows = {row["api"]: row for row in report["figures"] if row["side"] == "target"}
    for api in ("OffsetCommit", "LeaveGroup"):
        assert rows[api]["answered"] > 0
        assert (rows[api]["errors"], rows[api]["partition_errors"]) == ({}, {}), api
    assert rows["Heartbeat"]["errors"].keys() <= {"27"}  # REBALANCE_IN_PROGRESS, as captured
    assert not any(row["unreadable"] for row in report["figures"])


@pytest.mark.nightly
def test_every_client_at_once(drive: Drive, broker: Broker) -> None:
    report = drive("many-clients-any", "--target", broker.address)

    played = fetches(report, "target")
    assert (played["errors"], played["partition_errors"]) == ({}, {})
    assert report["sent"] == report["planned"]
    assert report["missing_topics"] == {}
