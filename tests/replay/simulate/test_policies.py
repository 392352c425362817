"""The policy `gateway` is compared with sessions for all connections and with no sessions.

The captures are from real clients.
"""

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from replay.capture.kafka.exchange import ConnectionEnd, Exchange
from replay.simulate.engine import Engine, Policy
from replay.simulate.outcome import Outcome
from replay.simulate.policies import GatewayPolicy
from tests.replay.events import captured_events
from tests.replay.simulate.test_predicted_equals_measured import values
from tools.bench.captures import Shape, make

CAPTURES = Path(__file__).parents[3] / "captures"
NAMES = sorted(path.stem for path in CAPTURES.glob("*.pcap") if "zones" not in path.stem)
"""The captures of zones are left out: they have 16 and 20 fetches, and the policy waits before it asks for a
session (law 6)."""


@cache
def events(name: str) -> list[Exchange | ConnectionEnd]:
    return captured_events(CAPTURES / f"{name}.pcap")


def saved(name: str, policy: Policy) -> tuple[int, int]:
    """Return the bytes that a policy saves, and the captured bytes of the fetches that it may change."""
    engines: dict[str, Engine] = {}
    outcomes: list[Outcome] = []
    for event in events(name):
        engine = engines.setdefault(event.connection, Engine(policy))
        if isinstance(event, Exchange):
            outcomes += engine.add(event)
            continue
        rest, ending = engine.end(event)
        outcomes += rest
        outcomes += [ending.closing] if ending.closing is not None else []
    took = [outcome for outcome in outcomes if outcome.eligible or outcome.closes]
    wire = sum(each.exchange.request_bytes + each.exchange.response_bytes for each in took)
    return wire - sum(each.session_request_bytes + each.session_response_bytes for each in took), wire


def test_fetches_that_change_nothing_are_recognised_by_those_before(tmp_path: Path) -> None:
    """Fetches that only rotate their list are recognised as repeats, from the fourth fetch on.

    Here the list has 100 partitions.
    """
    truth = make(tmp_path / "idle.pcap", 500_000, Shape(filled=0, connections=1))
    engine = Engine("gateway")
    taken = []

    def repeats(policy: GatewayPolicy, exchange: Exchange) -> bool:
        taken.append(recognised(policy, exchange))
        return taken[-1]

    recognised = GatewayPolicy.repeats
    with patch.object(GatewayPolicy, "repeats", repeats):
        for event in captured_events(tmp_path / "idle.pcap"):
            if isinstance(event, Exchange):
                engine.add(event)

    assert taken[3:] == [True] * (truth.fetches - 3)


@pytest.mark.parametrize("late", [-1, 20, 21])
def test_what_is_recognised_has_the_outcome_that_it_would_have_anyway(tmp_path: Path, late: int) -> None:
    """If the gateway recognises a repeated fetch, the outcome is the same as without this recognition.

    This also holds if a request comes before the previous response, and after a second ApiVersions request.
    """
    make(tmp_path / "idle.pcap", 200_000, Shape(filled=0, connections=1))
    captured = captured_events(tmp_path / "idle.pcap")
    exchanges = [event for event in captured if isinstance(event, Exchange)]
    (end,) = [event for event in captured if isinstance(event, ConnectionEnd)]
    if late > 0:
        exchanges[late].response_time = exchanges[late + 1].request_time + 1
    time = exchanges[15].response_time + 1
    exchanges.insert(16, replace(exchanges[0], request_time=time, response_time=time + 1))

    def outcomes() -> list[Any]:
        engine, found = Engine("gateway"), list[Outcome]()
        for exchange in exchanges:
            found += engine.add(exchange)
        rest, ending = engine.end(end)
        assert not ending.differing
        return [values(outcome) for outcome in found + rest]

    recognised = outcomes()
    with patch.object(GatewayPolicy, "repeats", lambda *_: False):
        assert recognised == outcomes()
    busy = [place for place, outcome in enumerate(recognised) if outcome["reason"] == "session busy"]
    assert len(busy) == (late > 0)


def test_what_happens_on_a_connection_is_not_kept() -> None:
    """The policy does not keep the core's events, because their number would grow with every session.

    Nothing reads the events here.
    """
    policy = GatewayPolicy()
    engine = Engine("gateway")
    engine._policy = policy
    for event in events("librdkafka-100p"):
        if isinstance(event, Exchange):
            engine.add(event)
    policy.settle(None)

    assert policy._connection.state.session_partitions
    assert not policy._connection.events


@pytest.mark.parametrize("name", NAMES)
def test_the_gateways_policy_saves_what_a_session_for_all_or_for_none_would(name: str) -> None:
    """The policy `gateway` saves as much as the better one of two rules, within 1 % of the bytes.

    The rules are: a session for every connection (`always`), and no session at all.
    """
    own, wire = saved(name, "gateway")
    always, _ = saved(name, "always")

    assert own >= max(always, 0) - wire / 100


def test_an_unreadable_fetch_settles_what_came_before_it(tmp_path: Path) -> None:
    """With ``plain`` no fetch is recognised, and the outcomes are the same, also if the clock goes back."""
    make(tmp_path / "idle.pcap", 200_000, Shape(filled=0, connections=1))
    captured = captured_events(tmp_path / "idle.pcap")
    exchanges = [event for event in captured if isinstance(event, Exchange)]
    (end,) = [event for event in captured if isinstance(event, ConnectionEnd)]
    exchanges[20] = replace(exchanges[20], request=exchanges[20].request[:-1] + b"\xff\xff")
    exchanges[21] = replace(exchanges[21], request_time=exchanges[19].request_time)

    def others(*, plain: bool) -> list[Any]:
        engine = Engine("always", plain=plain)
        found = list[Outcome]()
        for exchange in exchanges:
            engine.add(exchange)
            found += engine.drain_other()
        engine.end(end)
        return [values(outcome) for outcome in found + engine.drain_other()]

    assert others(plain=True) == others(plain=False)
