"""Brokers that fetch from brokers: whatever they send, the advice is to leave them as they are."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from proxy.protocol.api import ApiKey
from tests.replay.measure.consumers import Consumer, captured
from tests.replay.tables import measured

REPLICA_STATE = (1, bytes.fromhex("00000002 0000000000000007 00"))
SESSION = 4711


def follower(version: int, *, sessions: bool = True) -> Consumer:
    """Return the connection of a follower that fetches two partitions without waiting."""
    one = Consumer(client_id="broker-2-fetcher-0", version=version)
    who: dict[str, Any] = {"tags": (REPLICA_STATE,)} if version >= 15 else {"replica_id": 2}
    for epoch in range(60):
        session = (SESSION if epoch else 0, epoch) if sessions else (0, -1)
        one.fetch({0: b"", 1: b""}, session=session, **who)
    return one


def is_left_alone(folder: Path, one: Consumer, policy: Any = "gateway") -> None:
    first, last = one.frames[0].time, one.frames[-1].time
    one.frames[:] = [  # in six seconds, because of less there is no advice to wait at all
        replace(frame, time=first + (frame.time - first) * 6_000_000_000 // (last - first))
        for frame in one.frames
    ]
    found = measured(policy, captured(folder, one))
    (told,) = found["decision"]["to_do"]
    assert (told["action"], told["saved_bytes_per_day"]) == ("leave", 0)
    assert told["sentence"].startswith("Leave it as it is: it is a broker. If its fetches were slower,")
    assert found["passed"].keys() == {"not a consumer"} == found["not_eligible"].keys()
    assert found["modelled"]["fetch_min_bytes"]["saved_bytes"] == 0


@pytest.mark.parametrize("policy", ["gateway", "always"])
@pytest.mark.parametrize("version", [11, 14, 15, 18])
@pytest.mark.parametrize("sessions", [True, False], ids=["in a session", "sessionless"])
def test_no_follower_is_told_to_wait(tmp_path: Path, policy: Any, version: int, *, sessions: bool) -> None:
    is_left_alone(tmp_path, follower(version, sessions=sessions), policy)


def test_a_follower_with_an_old_version_needs_no_upgrade(tmp_path: Path) -> None:
    fetches = Consumer(client_id="broker-2-fetcher-0")
    body = bytes.fromhex("00000002 000001f4 00000001 00000001 0001 74 00000001 00000000") + bytes(12)
    for _ in range(60):
        fetches.ask(ApiKey.FETCH, 2, body)
    is_left_alone(tmp_path, fetches)


def test_a_follower_that_gets_records_is_named_as_one(tmp_path: Path) -> None:
    one = Consumer(client_id="broker-2-fetcher-0", version=16)
    for epoch in range(5):
        one.fetch({0: b"r" * 9_000}, session=(SESSION if epoch else 0, epoch), tags=(REPLICA_STATE,))
    is_left_alone(tmp_path, one)
