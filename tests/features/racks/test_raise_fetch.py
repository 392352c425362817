"""Fetches of v10 reach a follower as v11 (rule 8 of proxy/features/racks/README.md), in bytes."""

from typing import Any, Final

import pytest

from proxy.core.connection_state import ConnectionState
from proxy.features.racks.raise_fetch import RaiseFetch
from proxy.protocol.fetch_request import FetchRequest
from tests.frames import Want, entry, fetch, fetch_response
from tests.model import wire
from tests.playbook import SESSION_ID, Playbook, T, full

WANTS: Final[list[Want]] = [("t", at) for at in range(8)]
RECORDS: Final = bytes(3000)


class Named:
    """The partitions for which a replica was named, and whether the client is one of the option."""

    def __init__(self, *topics: bytes) -> None:
        self.topics = topics
        self.on = True

    def raises(self, fetch: FetchRequest) -> bool:
        return any(topic in self.topics for topic in fetch.topics.keys)

    def make(self, state: ConnectionState) -> RaiseFetch:
        return RaiseFetch(self.raises, lambda: self.on, state)


def connect(named: Named | None = None, **options: Any) -> Playbook:
    stages = ((named or Named(b"t", b"u")).make, *options.pop("stages", ()))
    return Playbook(stages=stages, **options).knows()


def raises(play: Playbook, *wants: Want, told: list[wire.PartitionData] | None = None, **fields: Any) -> None:
    """Check that a fetch of v10 and its response pass as v11."""
    parts = told if told is not None else [entry(part, 5) for _, part, *_ in wants]
    number = fields.get("correlation", 1)
    play.client(fetch(10, *wants, **fields)).to_broker(fetch(11, *wants, **fields))
    play.broker(fetch_response(11, ("t", parts), correlation_id=number))
    play.to_client(fetch_response(10, ("t", parts), correlation_id=number))


def test_a_fetch_of_v10_is_sent_as_v11() -> None:
    """Also the next ones, which would else take the fast path."""
    play = connect()
    for number in range(10, 16):
        raises(play, ("t", 0, number), correlation=number, session=(-1, -1))
    assert play.connection.fetch_version == 10
    tally = play.connection.tally
    assert tally.client.fetch_request_bytes == 6 * len(fetch(10, ("t", 0)))
    assert tally.broker.fetch_request_bytes == 6 * len(fetch(11, ("t", 0)))
    assert tally.client.fetch_response_bytes == 6 * len(full(10, [("t", 0)]))
    assert tally.broker.fetch_response_bytes == 6 * len(full(11, [("t", 0)]))


def test_records_pass_in_pieces_of_any_size() -> None:
    """Errors and aborted transactions as well."""
    aborted = (wire.AbortedTransaction(producer_id=1, first_offset=2),)
    parts = [entry(0, 9, records=RECORDS, aborted=aborted), entry(1, error=6), entry(2, 9, records=RECORDS)]
    wants: list[Want] = [("t", 0), ("t", 1), ("t", 2)]
    for size in (1, 7, 1024, 1 << 20):
        play = connect()
        play.client(fetch(10, *wants)).to_broker(fetch(11, *wants))
        play.broker(fetch_response(11, ("t", parts)), chunk=size).to_client(fetch_response(10, ("t", parts)))


@pytest.mark.parametrize("version", [4, 9, 11, 18])
def test_other_versions_are_left_alone(version: int) -> None:
    """The rule of v4 to v9 would change records (fetch-semantics, trap 3)."""
    play = connect()
    for number in range(10, 14):
        asked = fetch(version, ("t", 0), correlation=number)
        play.exchange(asked, full(version, [("t", 0)], correlation_id=number))


def test_other_clients_partitions_and_replicas_are_left_alone() -> None:
    """From the first fetch of a partition for which a replica was named, all fetches are raised."""
    named = Named(b"t")
    play = connect(named)
    play.exchange(fetch(10, ("u", 0)), full(10, [("u", 0)]))
    play.exchange(fetch(10, ("t", 0), replica_id=3), full(10, [("t", 0)]))
    raises(play, ("t", 0))
    play.client(fetch(10, ("u", 0))).to_broker(fetch(11, ("u", 0)))
    play.broker(full(11, [("u", 0)])).to_client(full(10, [("u", 0)]))
    named.on = False
    for number in range(10, 16):
        play.exchange(fetch(10, ("t", 0), correlation=number), full(10, [("t", 0)], correlation_id=number))
    assert play.connection.passed > 5


def test_bytes_after_a_fetch_are_no_rack() -> None:
    """They pass as they are."""
    play = connect()
    asked = fetch(10, ("t", 0))
    asked = (len(asked) - 2).to_bytes(4) + asked[4:] + b"\0\2"
    play.exchange(asked, full(10, [("t", 0)]))


def test_the_gateways_session_is_of_v11() -> None:
    """Full, incremental and lost: the client sees v10 only."""
    play = connect()
    asked = fetch(10, *WANTS, correlation=3)
    while (sent := play.client(asked).takes_broker()) == fetch(11, *WANTS, correlation=3):
        play.broker(full(11, WANTS, correlation_id=3)).to_client(full(10, WANTS, correlation_id=3))
    assert sent == fetch(11, *WANTS, correlation=3, session=(0, 0))
    play.broker(full(11, WANTS, correlation_id=3, session_id=SESSION_ID))
    play.to_client(full(10, WANTS, correlation_id=3))
    for epoch in range(1, 6):
        number = 10 + epoch
        play.client(fetch(10, *WANTS, correlation=number))
        play.to_broker(fetch(11, correlation=number, session=(SESSION_ID, epoch)))
        play.broker(fetch_response(11, correlation_id=number, session_id=SESSION_ID))
        play.to_client(full(10, WANTS, correlation_id=number))
    play.client(fetch(10, *WANTS, correlation=30))
    play.to_broker(fetch(11, correlation=30, session=(SESSION_ID, 6)))
    play.broker(fetch_response(11, correlation_id=30, error_code=70))
    play.to_broker(fetch(11, *WANTS, correlation=30, session=(0, 0)))
    play.broker(full(11, WANTS, correlation_id=30, session_id=SESSION_ID + 1))
    play.to_client(full(10, WANTS, correlation_id=30))


def test_the_clients_own_session_passes() -> None:
    play = connect()
    play.client(fetch(10, *WANTS, session=(0, 0))).to_broker(fetch(11, *WANTS, session=(0, 0)))
    play.broker(full(11, WANTS, session_id=9)).to_client(full(10, WANTS, session_id=9))
    play.client(fetch(10, session=(9, 1))).to_broker(fetch(11, session=(9, 1)))
    play.broker(fetch_response(11, session_id=9)).to_client(fetch_response(10, session_id=9))
    for epoch in range(2, 4):
        asked: dict[str, Any] = {"session": (9, epoch), "forget": [("t", 7)] if epoch == 2 else []}
        play.client(fetch(10, ("t", 0, epoch), **asked)).to_broker(fetch(11, ("t", 0, epoch), **asked))
        told = ("t", [entry(0, 9, records=RECORDS)])
        play.broker(fetch_response(11, told, session_id=9)).to_client(fetch_response(10, told, session_id=9))


def test_a_response_that_is_not_understood_ends_the_connection() -> None:
    """It can't be made v10. Nothing of it reaches the client."""
    for chunk in (1 << 20, 5):
        play = connect()
        play.client(fetch(10, *T)).to_broker(fetch(11, *T))
        told = full(11, T)
        play.broker((len(told) - 4 + 1).to_bytes(4) + told[4:] + b"\0", chunk=chunk)
        play.takes_client()
        assert play.connection.fault is not None


def test_a_client_that_is_led_elsewhere_is_raised_no_more() -> None:
    """A selector that needs no rack would else starve it."""
    play = connect()
    raises(play, ("t", 0))
    told = fetch_response(11, ("t", [entry(0, 5, preferred_read_replica=3)]))
    play.client(fetch(10, ("t", 0))).to_broker(fetch(11, ("t", 0)))
    play.broker(told).to_client(full(10, [("t", 0)]))
    play.exchange(fetch(10, ("t", 0)), full(10, [("t", 0)]))
