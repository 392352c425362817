"""If one connection learns a newer leader, all connections use it (KIP-951).

The tests play the connections step by step.
"""

from typing import Final
from uuid import UUID

import pytest

from proxy.core.leaders import Leaders
from proxy.protocol.api import ApiKey
from tests.core.metadata import Told, body, moved
from tests.frames import entry, fetch, fetch_response, topic_id
from tests.model.wire import NodeEndpoint, current_leader_tag, node_endpoints_tag
from tests.playbook import Playbook, request, response

VERSION: Final = 12
OLD: Final = {0: (1, 4), 1: (2, 7)}
NEW: Final = {0: (2, 5), 1: (2, 7)}
TOPIC: Final = "orders"


def gateway(node_id: int, _host: str, _port: int) -> tuple[str, int]:
    """Map broker N to the address broker-N:9092, so that only leaders change."""
    return f"broker-{node_id}", 9092


def metadata(correlation: int, told: Told, *, brokers: tuple[int, ...] = (1, 2, 3)) -> bytes:
    """Build a Metadata response: header v1 and body."""
    said = body(VERSION, told, topic_id=UUID(bytes=topic_id(TOPIC)), brokers=brokers)
    return response(correlation, b"\0" + said)


def asked(play: Playbook, correlation: int, said: bytes, told: bytes) -> None:
    """Let the client ask for Metadata. The broker answers `said`. The client must get `told` in its place."""
    asks = request(ApiKey.METADATA, VERSION, correlation, b"\0...")
    play.client(asks).to_broker(asks).broker(said).to_client(told)


def test_older_metadata_of_another_broker_is_brought_up_to_date() -> None:
    leaders = Leaders()
    first, second = (Playbook(resolve=gateway, leaders=leaders) for _ in range(2))
    asked(first, 1, metadata(1, NEW), metadata(1, NEW))
    asked(second, 2, metadata(2, OLD), metadata(2, NEW))
    asked(first, 3, metadata(3, OLD), metadata(3, NEW))


def test_where_addresses_stay_as_they_are_leaders_do_as_well() -> None:
    """In transparent mode, where addresses are not changed, leaders are not changed either. Connections may
    even go to brokers of different clusters.
    """
    leaders = Leaders()
    first, second = (Playbook(resolve=None, leaders=leaders) for _ in range(2))
    asked(first, 1, metadata(1, NEW), metadata(1, NEW))
    asked(second, 2, metadata(2, OLD), metadata(2, OLD))


def test_nobody_is_led_to_a_broker_that_the_gateway_left_out() -> None:
    leaders = Leaders()
    first = Playbook(resolve=gateway, leaders=leaders)
    asked(first, 1, metadata(1, NEW), metadata(1, NEW))
    second = Playbook(
        resolve=lambda node, *_: None if node == 2 else (f"broker-{node}", 9092), leaders=leaders
    )
    asked(second, 2, metadata(2, OLD), metadata(2, OLD, brokers=(1, 3)))


@pytest.mark.parametrize("version", [16, 18])
@pytest.mark.parametrize("error", [6, 74])
@pytest.mark.parametrize("chunk", [7, 1 << 30])
def test_a_leader_in_the_error_of_a_fetch_is_used_in_metadata(version: int, error: int, chunk: int) -> None:
    """Cases 64 and 66: a leader in a fetch error reaches the client with its endpoint. Metadata for other
    clients then names this leader.
    """
    leaders = Leaders()
    first, second = (Playbook(resolve=gateway, leaders=leaders) for _ in range(2))
    asked(first, 1, metadata(1, OLD), metadata(1, OLD))
    asks = fetch(version, (TOPIC, 0), correlation=2)
    gone = entry(0, error=error, records=None, tags=(current_leader_tag(2, 5),))
    node = node_endpoints_tag([NodeEndpoint(node_id=2, host="broker-2", port=9092, rack=None)])
    told = fetch_response(version, (TOPIC, [gone]), correlation_id=2, tags=(node,))
    first.client(asks).to_broker(asks).broker(told, chunk=chunk).to_client(told)
    asked(second, 3, metadata(3, OLD), metadata(3, NEW))


def test_a_leader_in_a_response_of_the_session_is_used_in_metadata() -> None:
    leaders = Leaders()
    play = Playbook(resolve=gateway, leaders=leaders)
    wants = [(TOPIC, index) for index in range(20)]
    play.established(16, wants)
    asked(play, 60, metadata(60, OLD), metadata(60, OLD))
    asks = fetch(16, *wants, correlation=61)
    play.client(asks).takes_broker()
    gone = entry(0, error=6, records=None, tags=(current_leader_tag(2, 5),))
    play.broker(fetch_response(16, (TOPIC, [gone]), correlation_id=61, session_id=77)).takes_client()
    asked(play, 62, metadata(62, OLD), metadata(62, NEW))


@pytest.mark.parametrize(("key", "version"), [(0, 13), (78, 1), (79, 2)])
def test_a_leader_in_another_response_is_used_in_metadata(key: int, version: int) -> None:
    """Case 66: leaders named by Produce and by share groups are used in Metadata too."""
    leaders = Leaders()
    first, second = (Playbook(resolve=gateway, leaders=leaders) for _ in range(2))
    asked(first, 1, metadata(1, OLD), metadata(1, OLD))
    asks = request(key, version, 2, b"\0\0\xff\xff...")  # flexible: no tags, no transactional id, acks
    told = response(2, b"\0" + moved(key, UUID(bytes=topic_id(TOPIC)), (2, 5)))
    first.client(asks).to_broker(asks).broker(told).to_client(told)
    asked(second, 3, metadata(3, OLD), metadata(3, NEW))
