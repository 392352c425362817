"""The benchmark of sessions toward clients measures the right quantities."""

import pytest

from proxy.features.client_sessions.cache import MAX_PARTITIONS
from tools.bench.frames import fetch_request, fetch_response
from tools.bench.sessions import PARTITIONS, SessionServer, eviction, listed, partition_bytes, unchanged

pytestmark = pytest.mark.slow


def test_an_unchanged_fetch_is_incremental_and_empty() -> None:
    server, topics = SessionServer(), listed(2, 3)
    response = fetch_response(1, topics)
    session_id = server.session(fetch_request(1, topics, session=(0, 0)), response)

    assert session_id > 0
    told = server.exchange(fetch_request(1, [], session=(session_id, 1)), response, 1)
    assert told == fetch_response(1, [], session_id=session_id)
    assert unchanged(topics, 3) > 0


def test_what_is_not_forwarded_is_not_measured() -> None:
    with pytest.raises(RuntimeError, match="FinalContext"):
        SessionServer().exchange(fetch_request(1, [], session=(5, 1)), b"", 0)


def test_memory_and_evictions_are_measured_with_full_slots() -> None:
    assert 61 < partition_bytes(16) < 400
    assert eviction(16) < 1


def test_more_partitions_than_the_gateway_has_room_for_are_measured() -> None:
    sessions = MAX_PARTITIONS // PARTITIONS + 1
    assert 61 < partition_bytes(sessions) < 400
