"""Fetches that follow leaders, together with clients that read from replicas."""

from collections import Counter
from typing import Any

from proxy.core.asking.repeat import MAX_BYTES
from proxy.core.asking.siblings import Siblings
from proxy.core.connection_state import ConnectionState
from proxy.features.racks.rack_clients import RackClientsStage
from tests.features.leaders.following import (
    NEW,
    OLD,
    OURS,
    TOPIC,
    metadata_request,
    metadata_response,
    play,
)
from tests.features.racks.replica import HOST, LEADER, REPLICA, Gateway
from tests.features.racks.test_raise_fetch import RECORDS, Named
from tests.frames import Want, entry, fetch, fetch_response
from tests.playbook import T


def test_a_response_that_is_held_back_until_a_new_leader_answers_is_v10() -> None:
    """With --follow-leader, the new leader is asked in v11. Its records are lowered with the rest."""
    siblings = Siblings()
    old, new = (play(siblings, node_id, stages=(Named(TOPIC.encode()).make,)) for node_id in (OLD, NEW))
    wants: list[Want] = [(TOPIC, 0, 40), (TOPIC, 1, 41)]
    fields: dict[str, Any] = {"correlation": 5, "values": {"current_leader_epoch": -1}}
    old.client(fetch(10, *wants, **fields)).to_broker(fetch(11, *wants, **fields))
    told = [entry(0, error=6), entry(1, 9, records=RECORDS)]
    old.broker(fetch_response(11, (TOPIC, told), correlation_id=5)).to_broker(metadata_request(by_id=False))
    old.broker(metadata_response(False, {0: (NEW, 5)})).nothing()
    asked = fields | {"correlation": OURS, "max_wait_ms": 0, "min_bytes": 1, "max_bytes": MAX_BYTES}
    new.to_broker(fetch(11, wants[0], **asked))
    found = entry(0, 50, records=RECORDS)
    new.broker(fetch_response(11, (TOPIC, [found]), correlation_id=OURS)).nothing()
    old.to_client(fetch_response(10, (TOPIC, [found, told[1]]), correlation_id=5))
    assert old.connection.buffered == 0


def test_follow_leader_does_not_follow_a_replica() -> None:
    """Its error 6 passes: Metadata leads the client. The client has a connection to the leader."""
    siblings, shared = Siblings(), Gateway().shared[0]

    def make(state: ConnectionState) -> RackClientsStage:
        return RackClientsStage(shared, lambda: REPLICA, state)

    play(siblings, LEADER, host=HOST)
    here = play(siblings, REPLICA, host=HOST, stages=(make,))
    here.exchange(fetch(12, *T[:1]), fetch_response(12, ("t", [entry(0, error=6)])))
    assert +shared.distrust.returns == Counter(refused=1)
