"""Runs of fetches cost what single fetches cost, and leave the same state in the gateway and the broker."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, get_args
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from proxy.core.events import saved_bytes
from proxy.core.savings import Savings
from replay.capture.kafka.exchange import ConnectionEnd, Exchange
from replay.measure.sums import SUMMED
from replay.simulate import engine as module
from replay.simulate.engine import Engine, Policy
from replay.simulate.outcome import Outcome, TopicShare
from replay.simulate.runs import SteadySession
from tests.examples import examples
from tests.replay.measure.traffic import Plan, Step, Traffic
from tests.replay.simulate.test_predicted_equals_measured import exchange as make

EXAMPLES = int(os.environ.get("LAW_EXAMPLES", "60"))
_MS = 1_000_000
_SIZES = "request_bytes", "response_bytes"


@dataclass(slots=True)
class Captured(Traffic):
    """A consumer whose exchanges are collected, instead of its packets."""

    exchanges: list[Exchange] = field(default_factory=list)

    def _grown(self, number: int) -> None:
        """Let the high watermark of a partition grow, without records for the client."""
        topic, partition, offset = self._wants()[number % len(self._wants())]
        self._offsets[topic, partition] = offset + 1
        told = self._pair()[1]
        self._offsets[topic, partition] = offset
        self._correlation -= 1
        self._pairs([(self._pair()[0], told)])

    def _pairs(self, pairs: Sequence[tuple[bytes, bytes]]) -> None:
        asked = self._time = self._time + _MS
        for request, response in pairs:
            self._time += _MS
            times = asked, self._time
            self.exchanges.append(make(len(self.exchanges), request[4:], response[4:], times))


STEPS = st.one_of(
    st.builds(
        Step,
        st.sampled_from(["idle", "records", "grown"]),
        st.integers(1, 12),
        st.integers(0, 30),
        st.sampled_from([_MS, 500 * _MS, 3_000 * _MS, 11_000 * _MS, 400_000 * _MS]),
    ),
    st.builds(
        Step,
        st.sampled_from(["moved", "unlisted", "error", "failed", "throttled", "asks_otherwise", "pipelined"]),
        st.integers(1, 2),
        st.integers(0, 30),
    ),
)


def costs(outcomes: Sequence[Outcome]) -> dict[Any, int]:
    """Return the sums of outcomes."""
    found: dict[Any, int] = {name: sum(getattr(one, name) for one in outcomes) for name in SUMMED}
    for name in _SIZES:
        found[f"captured {name}"] = sum(getattr(one.exchange, name) for one in outcomes)
    for one in outcomes:
        for key, share in one.topics.items():
            for name in TopicShare.__slots__:
                found[key, name] = found.get((key, name), 0) + getattr(share, name)
    return found


def state(engine: Engine) -> dict[str, Any]:
    """Return the state of the gateway's session, of what it saves, and of the simulated broker's session."""
    policy = engine._gateway
    fetches, broker = policy._connection.fetches, policy._broker
    session, savings, table = fetches.session, fetches.eligibility.savings, fetches.session.table
    found = {name: getattr(savings, name) for name in Savings.__slots__}
    found |= {
        "pair": session.pair,
        "state": session.state,
        "expected": repr(session.expected),
    }
    found |= {"check": (fetches.check_at, fetches._check_due_at), "unused": fetches.unused}
    found |= {"saved": saved_bytes(policy._connection.tally), "decided": fetches.eligibility.large}
    if table is not None:
        for name in ("requests", "cached_entries", "known", "refused", "topic"):
            found[name] = getattr(table, name)[: table._top].tobytes()
        found |= {"behind": table.behind, "high": broker._high.tobytes(), "start": broker._start.tobytes()}
        found["order"] = np.argsort(broker._rank, kind="stable").tolist()
    return found


def played(
    policy: Policy, exchanges: Sequence[Exchange], *, plain: bool
) -> tuple[list[list[Outcome]], dict[str, Any], list[int]]:
    """Return the outcomes of both policies, the state before the end, and the sizes of runs."""
    engine = Engine(policy, plain=plain, merges=True)
    own, other = list[Outcome](), list[Outcome]()
    for exchange in exchanges:
        own += engine.add(exchange)
        other += engine.drain_other()
    last = exchanges[-1].response_time + 1
    engine._play_waiting(last)
    engine._end_run()
    engine._note(engine._gateway.settle(last))
    before = state(engine)
    end = ConnectionEnd(connection="c", client="c:1", broker="b:1", closed=True, closed_time=last)
    rest, _ = engine.end(end)
    before["differing"] = engine.differing
    own += rest
    return [own, [*other, *engine.drain_other()]], before, [len(one.run) for one in own if one.run]


@examples(EXAMPLES, suppress_health_check=[*HealthCheck])
@given(
    policy=st.sampled_from(get_args(Policy)),
    version=st.integers(4, 18),
    topics=st.sampled_from([1, 2, 3]),
    ring=st.booleans(),
    partitions=st.sampled_from([2, 5, 12, 40]),
    isolation=st.sampled_from([0, 1]),
    steps=st.lists(STEPS, min_size=1, max_size=12),
)
def test_runs_cost_what_single_fetches_cost(
    *,
    policy: Policy,
    version: int,
    topics: int,
    ring: bool,
    partitions: int,
    isolation: int,
    steps: list[Step],
) -> None:
    begin = [Step("idle", 4, 0), Step("records", 2, 1), Step("idle", 3, 0)]
    plan = Plan(version, topics, partitions, 1448, True, begin + steps, isolation, ring)
    consumer = Captured(0, plan)
    consumer.play()

    (own, other), left, _ = played(policy, consumer.exchanges, plain=False)
    (own_single, other_single), left_single, _ = played(policy, consumer.exchanges, plain=True)

    assert costs(own) == costs(own_single)
    for name in ("session_request_bytes", "session_response_bytes"):
        assert sum(getattr(one, name) for one in other) == sum(getattr(one, name) for one in other_single)
    assert left == left_single


@pytest.mark.parametrize("policy", get_args(Policy))
@pytest.mark.parametrize("kind", ["idle", "records", "grown"])
@pytest.mark.parametrize("isolation", [0, 1])
@pytest.mark.parametrize("version", [7, 9, 12, 16])
@pytest.mark.parametrize(("topics", "ring"), [(1, False), (3, False), (3, True)])
def test_most_fetches_of_a_steady_session_are_in_runs(
    policy: Policy, kind: str, isolation: int, version: int, topics: int, ring: bool
) -> None:
    plan = Plan(version, topics, 40, 1448, True, [Step(kind, 100, 7, 3_000 * _MS)], isolation, ring)
    consumer = Captured(0, plan)
    consumer.play()

    _, _, runs = played(policy, consumer.exchanges, plain=False)

    assert sum(runs) > 90


def test_a_run_does_not_grow_without_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST", 30)
    consumer = Captured(0, Plan(16, 1, 5, 1448, True, [Step("idle", 100, 7)]))
    consumer.play()

    _, _, runs = played("gateway", consumer.exchanges, plain=False)
    assert max(runs) == 30
    assert sum(runs) > 90


def test_one_fetch_of_a_thousand_goes_through_the_core_as_well() -> None:
    plan = Plan(16, 1, 5, 1448, True, [Step("records", 2_100, 7)])
    consumer = Captured(0, plan)
    consumer.play()

    with patch.object(SteadySession, "costs", autospec=True, side_effect=SteadySession.costs) as costs_in_run:
        played("gateway", consumer.exchanges, plain=False)
    assert costs_in_run.call_count == 2

    with (
        patch.object(SteadySession, "received", return_value=47),
        pytest.raises(RuntimeError, match=r"c, exchange \d+: a run would cost .*, the core"),
    ):
        played("gateway", consumer.exchanges, plain=False)
