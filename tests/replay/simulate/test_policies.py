"""The policy `gateway` is compared with sessions for all connections and with no sessions.

The captures are from real clients.
"""

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from replay.capture.kafka.exchange import ConnectionEnd, Exchange
from replay.simulate.engine import Engine, Policy
from replay.simulate.outcome import Outcome
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
        rest, closing = engine.end(event)
        outcomes += [*rest, *filter(None, [closing])]
    took = [outcome for outcome in outcomes if outcome.eligible or outcome.closes]
    wire = sum(each.exchange.request_bytes + each.exchange.response_bytes for each in took)
    return wire - sum(each.session_request_bytes + each.session_response_bytes for each in took), wire


@pytest.mark.parametrize("late", [-1, 20, 21])
def test_a_fetch_of_a_run_has_the_outcome_of_a_single_one(tmp_path: Path, late: int) -> None:
    """Also if a request comes before the previous response, and after a second ApiVersions request."""
    make(tmp_path / "idle.pcap", 200_000, Shape(filled=0, connections=1))
    captured = captured_events(tmp_path / "idle.pcap")
    exchanges = [event for event in captured if isinstance(event, Exchange)]
    (end,) = [event for event in captured if isinstance(event, ConnectionEnd)]
    if late > 0:
        exchanges[late].response_time = exchanges[late + 1].request_time + 1
    time = exchanges[15].response_time + 1
    exchanges.insert(16, replace(exchanges[0], request_time=time, response_time=time + 1))

    def outcomes(*, plain: bool) -> list[Any]:
        engine, found = Engine("gateway", plain=plain), list[Outcome]()
        for exchange in exchanges:
            found += engine.add(exchange)
        rest, _ = engine.end(end)
        assert not engine.differing
        return [values(outcome) for outcome in found + rest]

    in_runs = outcomes(plain=False)
    assert in_runs == outcomes(plain=True)
    busy = [place for place, outcome in enumerate(in_runs) if outcome["reason"] == "session busy"]
    assert len(busy) == (late > 0)


def test_what_happens_on_a_connection_is_not_kept() -> None:
    """The policy does not keep the core's events, because their number would grow with every session.

    Nothing reads the events here.
    """
    engine = Engine("gateway")
    policy = engine._gateway
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
    """With ``plain`` there are no runs, and the costs are the same, also if the clock goes back."""
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
        found += engine.drain_other()
        return [(one.eligible, one.session_request_bytes, one.session_response_bytes) for one in found]

    assert others(plain=True) == others(plain=False)
