"""Brokers that close connections, stop responding, send damaged bytes, are killed, and return."""

import time
from collections.abc import Iterator
from contextlib import closing

import pytest

from tests.integration.bystander import Bystander, Scene, scene, until
from tests.integration.faulty import Corrupt, CutAfter, Fault, Relay, Stall
from tests.integration.fetching import Fetcher, contents
from tests.integration.producing import Producer
from tools.gateway import GatewayProcess
from tools.kafka import Broker
from tools.kafka.admin import Admin

TOPIC = "cuts"
PARTITIONS = 8
FETCHES = 6
Responses = list[dict[tuple[str, int], object]]


@pytest.fixture(scope="module")
def relay() -> Iterator[Relay]:
    with Relay() as relay:
        yield relay


@pytest.fixture(scope="module")
def stage(relay: Relay) -> Iterator[Scene]:
    """Start a gateway that can reach the broker only through the relay."""
    with Broker(listeners={"VIA": ("127.0.0.1", relay.port)}) as broker:
        relay.target = (broker.host, broker.port_of("VIA"))
        with Admin(broker.address) as admin, closing(Producer(broker.host, broker.port)) as producer:
            admin.create_topic(TOPIC, partitions=PARTITIONS)
            producer.produce(TOPIC, 2, [b"two"])
        with scene(broker, "cuts-bystander", bootstrap=relay.address) as stage:
            yield stage


@pytest.fixture
def expected(stage: Scene) -> Responses:
    """The contents of the response to every fetch.

    They are always the same, because the topic does not change.
    """
    with Fetcher(stage.broker.address, TOPIC, PARTITIONS) as direct:
        return contents([direct.fetch()])


def victim(stage: Scene) -> Fetcher:
    return Fetcher(stage.gateway.address, TOPIC, PARTITIONS, client_id="victim")


def fetch_until_cut(stage: Scene, *, timeout: float = 30.0) -> Responses:
    """Fetch `FETCHES` times, or until the connection is closed.

    Return the contents of the complete responses.
    """
    responses: Responses = []
    with victim(stage) as client:
        client.socket.settimeout(timeout)
        try:
            client.hello()
            for _ in range(FETCHES):
                responses += contents([client.fetch()])
        except (ConnectionError, TimeoutError):
            pass
    return responses


def bytes_of_responses(stage: Scene, relay: Relay) -> int:
    """Return how many bytes the broker sends for the fetches, without the response to the session's close."""
    relay.fault = Fault()
    with victim(stage) as client:
        client.hello().fetches(FETCHES)
        return relay.seen


def gone(stage: Scene) -> bool:
    return all(link["client_id"] != "victim" for link in stage.gateway.state()["connections"])


def test_the_broker_connection_may_be_cut_at_any_byte_of_its_responses(
    stage: Scene, relay: Relay, expected: Responses
) -> None:
    """Case 72: the broker's connection is cut at any byte. The client gets only complete, correct responses.

    Then the client is disconnected.
    """
    relay.fault = Fault()
    assert fetch_until_cut(stage) == expected * FETCHES
    size = bytes_of_responses(stage, relay)
    lengths = []
    with stage.unharmed():
        for count in range(0, size, max(1, size // 150)):
            relay.fault = Fault(to_client=CutAfter(count=count))
            responses = fetch_until_cut(stage)
            assert responses == expected * len(responses), f"cut after {count}"
            lengths.append(len(responses))
        until(lambda: gone(stage), "connections stay")
        assert stage.gateway.state()["sessions"]["held"] <= 1
    assert lengths == sorted(lengths)
    assert (lengths[0], lengths[-1]) == (0, FETCHES - 1)


def test_the_broker_connection_may_be_cut_at_any_byte_of_a_request(
    stage: Scene, relay: Relay, expected: Responses
) -> None:
    with Fetcher(stage.gateway.address, TOPIC, PARTITIONS, client_id="victim") as client:
        size = 28 + 3 * len(client.bytes_of(client.request()))
    with stage.unharmed():
        for count in range(0, size, 13):
            relay.fault = Fault(to_broker=CutAfter(count=count))
            responses = fetch_until_cut(stage)
            assert responses == expected * len(responses), f"cut after {count}"
        until(lambda: gone(stage), "connections stay")


def test_a_broker_that_stalls_in_mid_response_is_waited_for(
    stage: Scene, relay: Relay, expected: Responses
) -> None:
    size = bytes_of_responses(stage, relay)
    relay.fault = Fault(to_client=Stall(at=size - 10, seconds=2))
    with stage.unharmed():
        assert fetch_until_cut(stage) == expected * FETCHES
        until(lambda: gone(stage), "connections stay")


def test_a_response_to_another_request_ends_the_connection_and_is_said_once(
    stage: Scene, relay: Relay
) -> None:
    relay.fault = Fault(to_client=Corrupt(at=7))  # the lowest byte of the first response's correlation id
    with stage.unharmed() as said:
        assert fetch_until_cut(stage) == []
        until(lambda: "connection fault" in said(), said())
        assert said().count("a response to request 254 before that to request 1") == 1
        assert said().count("connection fault") == 1
        until(lambda: gone(stage), "connections stay")


def test_a_negative_length_from_the_broker_ends_the_connection_and_is_said_once(
    stage: Scene, relay: Relay
) -> None:
    relay.fault = Fault(to_client=Corrupt(at=0))
    with stage.unharmed() as said:
        assert fetch_until_cut(stage) == []
        until(lambda: "connection fault" in said(), said())
        assert said().count("connection fault") == said().count("a response of -") == 1
        until(lambda: gone(stage), "connections stay")


def test_any_byte_of_what_a_session_answers_may_be_wrong(stage: Scene, relay: Relay) -> None:
    """If a byte of a session's response is wrong, the client gets the wrong byte or is disconnected.

    The gateway is unharmed.
    """
    size = bytes_of_responses(stage, relay)
    with stage.unharmed():
        for at in range(size - 200, size, 4):
            relay.fault = Fault(to_client=Corrupt(at=at, mask=0x81))
            with victim(stage) as client:
                client.socket.settimeout(0.2)
                try:
                    client.hello()
                    for _ in range(FETCHES):
                        client.send()
                        client.connection.receive()
                except (ConnectionError, TimeoutError):
                    pass
        relay.fault = Fault()
        until(lambda: gone(stage), "connections stay")


def again(log: str, what: str) -> int:
    """Count the log lines which say that a broker is reachable again.

    Args:
        log: the text of the log.
        what: the text that the lines also contain.
    """
    return sum("reachable again" in line and what in line for line in log.splitlines())


def test_a_broker_killed_and_started_again_costs_no_record_and_is_said_once(
    stage: Scene, relay: Relay
) -> None:
    """Case 92: a broker that is killed and started again loses no record, and is reported once.

    The test does it twice: behind the relay, where open connections are reset, and with nobody listening in
    the meantime.
    """
    relay.fault = Fault()
    with Admin(stage.broker.address) as admin:
        admin.create_topic("away", partitions=20)
    with (
        GatewayProcess(stage.broker.address, "--log-level", "debug") as direct,
        Bystander(stage.broker.address, direct.address, "away") as client,
    ):
        client.check()
        stage.bystander.check()
        logged = len(direct.log()), len(stage.gateway.log())
        descriptors = stage.descriptors()
        stage.broker.kill()
        until(lambda: "bootstrap unreachable" in direct.log(), "nothing was said")
        time.sleep(2)  # clients try again and again
        stage.broker.restart()
        client.check()
        stage.bystander.check()
        until(lambda: again(direct.log(), "bootstrap"), "nothing was said")
        said = direct.log()[logged[0] :]
        assert said.count("bootstrap unreachable") == again(said, "bootstrap") == 1
        assert said.count("broker unreachable") == again(said, "broker=1") <= 1
        until(lambda: gone(stage), "connections stay")
        until(lambda: stage.descriptors() <= descriptors, f"more than {descriptors} file descriptors")
        said += stage.gateway.log()[logged[1] :]
    assert "defect" not in said
    assert "Traceback" not in said
    stage.bystander.errors.clear()
    assert len(fetch_until_cut(stage)) == FETCHES
