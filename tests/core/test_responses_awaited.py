"""A response that names a broker is held until the gateway knows whether this broker has a listener."""

from typing import Final

import pytest

from proxy.core.events import BrokersAwaited
from proxy.protocol.api import ApiKey
from tests.playbook import Playbook, request, response
from tests.shell import metadata

LIST: Final = request(ApiKey.LIST_GROUPS, 0, 12)
LISTED: Final = response(12, b"groups")


class Opening:
    """A client connection, while the gateway still opens listeners for some brokers."""

    def __init__(self, *node_ids: int) -> None:
        self.node_ids = set(node_ids)
        self.play = Playbook(resolve=self._resolve, opening=self.node_ids.__contains__)

    def _resolve(self, node_id: int, _host: str, _port: int) -> tuple[str, int] | None:
        return None if node_id in self.node_ids else ("gate", 19093 + node_id)

    def asked(self, correlation: int, *brokers: int) -> None:
        """Let the client request Metadata. The broker's response contains the given brokers."""
        self.play.client(asks := request(ApiKey.METADATA, 1, correlation)).to_broker(asks)
        self.play.broker(response(correlation, metadata(*((each, "kafka", 9092) for each in brokers))))

    def opened(self, *node_ids: int) -> Playbook:
        """Report to the core that these brokers have listeners now."""
        self.node_ids -= set(node_ids)
        return self.waited_for(*node_ids)

    def waited_for(self, *node_ids: int) -> Playbook:
        """Report to the core that the gateway no longer waits for the listeners of these brokers."""
        self.play.connection.brokers_opened(frozenset(node_ids))
        return self.play


def told(correlation: int, *brokers: int) -> bytes:
    return response(correlation, metadata(*((each, "gate", 19093 + each) for each in brokers)))


def test_it_waits_and_says_for_whom() -> None:
    opening = Opening(2, 3)
    opening.asked(11, 1, 2, 3)
    play = opening.play.nothing()
    assert play.events() == [BrokersAwaited(node_ids=frozenset({2, 3}))]
    assert play.connection.busy
    assert play.connection.buffered == len(response(11, metadata(*((n, "kafka", 9092) for n in (1, 2, 3)))))

    opening.opened(2, 3).to_client(told(11, 1, 2, 3))

    assert (play.connection.buffered, play.connection.busy) == (0, False)
    assert opening.opened(2, 3).nothing().events() == []


def test_a_response_that_names_others_does_not_wait() -> None:
    opening = Opening(2)
    opening.asked(11, 1)
    opening.play.to_client(told(11, 1))


def test_a_broker_that_takes_too_long_is_left_out() -> None:
    opening = Opening(2)
    opening.asked(11, 1, 2)
    opening.waited_for(2).to_client(told(11, 1))


@pytest.mark.parametrize("later", [1, 3], ids=["it has a listener", "it waits as well"])
def test_later_responses_wait_for_their_turn(later: int) -> None:
    """Trap 16: later responses wait too, because responses are sent in the order of requests."""
    opening = Opening(2, 3)
    opening.asked(11, 2)
    opening.play.client(LIST).to_broker(LIST).broker(LISTED).nothing()
    opening.asked(13, later)
    opening.play.nothing()
    opening.opened(2, 3).to_client(told(11, 2), LISTED, told(13, later))
    assert opening.play.connection.buffered == 0


def test_each_waits_for_its_own() -> None:
    opening = Opening(1, 2)
    opening.asked(11, 1)
    opening.asked(12, 2)
    opening.asked(13, 1, 2)
    opening.opened(2).nothing()
    opening.opened(1).to_client(told(11, 1), told(12, 2))
    opening.waited_for(1, 2).to_client(told(13, 1, 2))


def test_a_broker_that_ends_ends_the_wait() -> None:
    opening = Opening(2)
    opening.asked(11, 1, 2)
    opening.play.nothing()
    opening.play.connection.broker_ended()
    opening.play.to_client(told(11, 1))


def test_a_connection_that_closes_waits_for_it() -> None:
    opening = Opening(2)
    opening.asked(11, 2)
    play = opening.play.close().nothing()
    assert not play.connection.done
    opening.opened(2).to_client(told(11, 2))
    assert play.connection.done


def test_nothing_is_kept_of_a_connection_that_ended() -> None:
    opening = Opening(2)
    opening.asked(11, 2)
    opening.play.connection.ended()
    opening.opened(2).nothing()
    assert opening.play.connection.buffered == 0
