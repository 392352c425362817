"""The policy `always` costs the same with and without the gateway's outcomes.

It either processes each fetch itself, or takes over the gateway's outcome.
"""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.protocol.api import REQUEST_CORRELATION_ID
from replay.capture.kafka.exchange import ConnectionEnd, Exchange
from replay.simulate.captured_response import CapturedResponse
from replay.simulate.engine import Engine
from replay.simulate.following import Follower
from replay.simulate.outcome import CapturedFetch, Outcome
from replay.simulate.policies import AlwaysPolicy
from tests.examples import examples
from tests.replay.events import captured_events
from tools.bench.captures import Shape, make

_ERROR_AT = 13
"""The offset of the error code in a response of v16. The session id follows it."""
_FIRST = 12
"""The number of exchanges after which both policies have a session."""

Cost = tuple[int, bool, int, int, list[str]]


@cache
def busy() -> tuple[list[Exchange], ConnectionEnd]:
    """Return a connection whose fetches all bring records of the same two partitions of 100."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "busy.pcap"
        make(path, 400_000, Shape(connections=1, records=1_000))
        *exchanges, end = captured_events(path)
    assert isinstance(end, ConnectionEnd)
    return [one for one in exchanges if isinstance(one, Exchange)], end


def costs(exchanges: Sequence[Exchange], end: ConnectionEnd, *, plain: bool) -> tuple[list[Cost], list[int]]:
    """Simulate the policy ``always``.

    Return the costs of its fetches, and the numbers of the fetches that it processed.

    If `plain`, the policy processes every fetch separately, and no partitions are looked up together.
    """
    got: list[int] = []
    found: list[Outcome] = []

    def add(policy: AlwaysPolicy, fetch: CapturedFetch) -> list[Outcome]:
        got.append(fetch.outcome.exchange.number)
        return original(policy, fetch)

    original = AlwaysPolicy.add
    engine = Engine("gateway", plain=plain)
    lists = patch.object(CapturedResponse, "lists", return_value=False) if plain else nullcontext()
    with patch.object(AlwaysPolicy, "add", add), lists:
        for exchange in exchanges:
            engine.add(exchange)
            found += engine.drain_other()
        engine.end(end)
    found += engine.drain_other()
    each = [
        (
            one.exchange.number,
            one.eligible,
            one.session_request_bytes,
            one.session_response_bytes,
            sorted(map(repr, one.topics)),
        )
        for one in found
    ]
    return sorted(each), got


def test_fetches_with_records_take_over_the_gateways_outcomes() -> None:
    exchanges, end = busy()
    plain, got = costs(exchanges, end, plain=True)
    taken, few = costs(exchanges, end, plain=False)

    assert taken == plain
    assert len(got) > 30
    assert len(few) <= 4


def at(position: int, new: bytes) -> Callable[[Exchange], Exchange]:
    """Return a function that replaces some bytes in the response of an exchange."""

    def change(one: Exchange) -> Exchange:
        frame = b"".join(one.response)
        return replace(one, response=[frame[:position] + new + frame[position + len(new) :]])

    return change


def asked(position: int, new: bytes) -> Callable[[Exchange], Exchange]:
    """Return a function that replaces some bytes in the body of an exchange's request."""

    def change(one: Exchange) -> Exchange:
        start = 15 + int.from_bytes(one.request[12:14]) + position
        return replace(one, request=one.request[:start] + new + one.request[start + len(new) :])

    return change


CHANGES: dict[str, Callable[[Exchange], Exchange]] = {
    "an error": at(_ERROR_AT, (3).to_bytes(2)),
    "a session error": at(_ERROR_AT, (70).to_bytes(2)),
    "a session of the client": at(_ERROR_AT + 2, (7).to_bytes(4)),
    "throttled": at(_ERROR_AT - 4, (50).to_bytes(4)),
    "no response": lambda one: replace(one, response=[], response_bytes=0),
    "other bytes": at(30, bytes(20)),
    "a late response": lambda one: replace(one, response_time=one.response_time + 3_000_000),
    "another wait": asked(0, (777).to_bytes(4)),
    "another isolation": asked(12, b"\1"),
    "another session": asked(13, (7).to_bytes(4) + (3).to_bytes(4)),
}


@pytest.mark.parametrize("name", CHANGES)
def test_after_a_change_the_costs_are_the_same(name: str) -> None:
    exchanges, end = busy()
    changed = [*exchanges]
    changed[20] = CHANGES[name](exchanges[20])

    assert costs(changed, end, plain=False)[0] == costs(changed, end, plain=True)[0]


@examples(60)
@given(
    changes=st.lists(
        st.tuples(
            st.sampled_from([*CHANGES, "left out", "again", "of another", "versions"]), st.integers(4, 35)
        ),
        max_size=6,
    ),
    closed=st.sampled_from([None, 20, 35]),
)
def test_the_costs_are_the_same_in_any_order(changes: list[tuple[str, int]], closed: int | None) -> None:
    exchanges, end = busy()
    found = [*exchanges]
    for name, place in changes:
        one, other = found[place], found[place - 3]
        if name == "left out":
            del found[place]
        elif name == "again":
            found.insert(place, one)
        elif name == "versions":
            time = one.request_time - 1
            found.insert(place, replace(exchanges[0], request_time=time, response_time=time))
        elif name == "of another":
            frame = b"".join(other.response) or bytes(8)
            answer = frame[:4] + one.request[REQUEST_CORRELATION_ID] + frame[8:]
            found[place] = replace(one, response=[answer], response_bytes=len(answer))
        else:
            found[place] = CHANGES[name](one)
    found = [replace(one, number=number) for number, one in enumerate(found)]
    if closed is not None:
        end = replace(end, closed=True, closed_time=found[min(closed, len(found) - 1)].response_time - 1)

    assert costs(found, end, plain=False)[0] == costs(found, end, plain=True)[0]


def test_only_the_last_fetch_is_kept() -> None:
    exchanges, _ = busy()
    engine = Engine("gateway")
    for exchange in exchanges[:_FIRST]:
        engine.add(exchange)
    follower = engine._follower
    assert isinstance(follower, Follower)
    kept = [each for each in vars(follower).values() if isinstance(each, CapturedFetch | Exchange)]

    assert isinstance(engine._waiting, Exchange)
    assert [each.number for each in kept if isinstance(each, Exchange)] == [_FIRST - 2]
    assert len(kept) == 1
