"""Fetches that are added in bulk leave the same state as if they were added one by one."""

from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from enum import Enum
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core.fetching import SUSPECT_SECONDS
from proxy.protocol.fetch_request import MAX_EPOCH
from replay.capture.kafka.exchange import ConnectionEnd, Exchange
from replay.measure.collected import groups_in
from replay.measure.rows import RowFilter, _ConnectionRows
from replay.simulate.engine import Policy
from tests.examples import examples
from tests.replay.events import captured_events
from tests.replay.measure.in_bulk import pairs_of
from tools.bench.captures import Shape, make

_SECOND = 1_000_000_000
_BEFORE = 12
"""How many exchanges are added one by one before others are added in bulk. The last of these exchanges
already repeat earlier ones."""


@cache
def idle() -> tuple[list[Exchange], ConnectionEnd]:
    """Return a connection whose fetches bring nothing."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "idle.pcap"
        make(path, 400_000, Shape(filled=0, connections=1))
        *exchanges, end = captured_events(path)
    assert isinstance(end, ConnectionEnd)
    return [one for one in exchanges if isinstance(one, Exchange)], end


def contents(of: Any, seen: dict[int, int]) -> Any:
    """Return the contents of an object, and of all objects that it refers to. Floats are exact."""
    if of is None or isinstance(of, int | float | str | bytes | Enum):
        return repr(of)
    if isinstance(of, memoryview | bytearray):
        return repr(bytes(of))
    if isinstance(of, np.ndarray):
        return of.dtype.str, of.tobytes()
    if id(of) in seen:
        return "seen", seen[id(of)]
    seen[id(of)] = len(seen)
    if isinstance(of, Mapping):
        return [
            (repr(key) if isinstance(key, int) else key, contents(value, seen)) for key, value in of.items()
        ]
    if isinstance(of, list | tuple | deque):
        return [contents(value, seen) for value in of]
    if not type(of).__module__.startswith(("proxy.", "replay.")):
        return type(of).__name__
    slots = (name for each in type(of).__mro__ for name in getattr(each, "__slots__", ()))
    names = sorted({*getattr(of, "__dict__", ()), *slots})
    return {name: contents(getattr(of, name), seen) for name in names if hasattr(of, name)}


def state(connection: _ConnectionRows) -> dict[str, Any]:
    """Return the state of a connection's rows, without the rows that were written."""
    assert connection._engine is not None
    gateway = connection._engine._gateway._connection
    gateway.state.plans.count()
    parts = ("_engine", "_digest", "_sample", "_exchanges", "_version", "_counted", "_saved_by_other")
    found = {name: contents(getattr(connection, name), {}) for name in parts}
    return found | {"places": [*connection._places.values()], "tally": repr(gateway.tally)}


def sums(connection: _ConnectionRows) -> list[Any]:
    return [{**group, "at": 0} for group in groups_in(connection.writer.drain())]


@examples(40)
@given(
    policy=st.sampled_from(("gateway", "always")),
    waits=st.lists(
        st.sampled_from([2, 1000, _SECOND // 2, 9 * _SECOND, 10 * _SECOND, 11 * _SECOND, 400 * _SECOND]),
        min_size=1,
        max_size=40,
    ),
    epoch=st.sampled_from([None, 1, MAX_EPOCH - 3, MAX_EPOCH]),
    credit=st.integers(0, 1000),
    owed=st.sampled_from([0.0, 0.1, 12345.678, 1e9]),
    news=st.sampled_from([0.0, 0.3, 7.1]),
    split=st.integers(0, 40),
    filtered=st.booleans(),
)
def test_the_state_is_the_same_as_after_single_steps(
    *,
    policy: Policy,
    waits: list[int],
    epoch: int | None,
    credit: int,
    owed: float,
    news: float,
    split: int,
    filtered: bool,
) -> None:
    known, end = idle()
    choice = RowFilter(policy=policy, clients=frozenset({"nobody"}) if filtered else frozenset())
    time, repeats = known[_BEFORE - 1].response_time, []
    for one, wait in zip(known[_BEFORE:], waits, strict=False):
        time += wait
        repeats.append(replace(one, request_time=time - 1, response_time=time))
    single, bulk = _ConnectionRows(choice), _ConnectionRows(choice)
    for each in (single, bulk):
        for one in known[:_BEFORE]:
            each.add(one)
        assert each._engine is not None
        plan = each._engine._gateway._connection.plan
        assert plan is not None
        plan._session.epoch = epoch or plan._session.epoch
        savings = plan._savings
        savings._credit, savings._owed, savings._news = credit, owed, news
        savings._regret, savings._away, savings._patience = news * 7, owed / 3, 8

    for one in repeats:
        single.add(one)
    taken: list[int] = []
    for part in (repeats[:split], repeats[split:]):
        at = 0
        while at < len(part):
            taken.append(bulk.add_some(pairs_of(part), at))
            at += taken[-1]

    assert state(bulk) == state(single)
    for each in (single, bulk):
        each.end(replace(end, closed_time=time, closed=True))
    assert sums(bulk) == sums(single)
    # Of the two parts the longer one is what can be taken at once. A pause ends what is taken, because the
    # core looks at its session then.
    split = min(split, len(repeats))
    paused = max(waits) * 3 >= SUSPECT_SECONDS * _SECOND
    assert max(split, len(repeats) - split) < 3 or paused or max(taken) > 1


@pytest.mark.parametrize("policy", ["gateway", "always"])
def test_a_fetch_that_is_not_alike_ends_the_repeats(policy: Policy) -> None:
    known, _ = idle()
    frame = bytearray(known[30].request)
    body = 15 + int.from_bytes(frame[12:14])
    frame[body : body + 4] = (777).to_bytes(4)  # max_wait_ms
    other = replace(known[30], request=bytes(frame))
    pairs = pairs_of([*known[_BEFORE:30], other, *known[31:40]])
    rows = _ConnectionRows(RowFilter(policy=policy))
    for one in known[:_BEFORE]:
        rows.add(one)

    taken: list[int] = []
    while sum(taken) < len(pairs):
        taken.append(rows.add_some(pairs, sum(taken)))

    assert taken[0] == 30 - _BEFORE
    assert taken[1] == 1


def test_frames_and_keys_need_each_fetch() -> None:
    """With the raw columns, and with records counted by key, each fetch is added on its own."""
    known, _ = idle()
    for choice in (RowFilter(raw=True), RowFilter(members=3)):
        rows = _ConnectionRows(choice)
        for one in known[:_BEFORE]:
            rows.add(one)
        assert rows.add_some(pairs_of(known[_BEFORE:30]), 0) == 1
