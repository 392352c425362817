"""In a cooperative group no record is lost, and no committed record comes again, whatever fails."""

import os

import pytest

from proxy.features.cooperative import member, presence
from tests.features.cooperative.world import BEAT, Client, Incremental, World

STEPS = 1200
HEAT = 2.0
RUNS = int(os.environ.get("GROUP_RUNS", "4"))
"""The number of runs in addition to those with a fixed seed, for each kind of client. One run takes a second;
`make test-all` has 4 of each, `make soak` 400."""
NIGHTLY = [pytest.param(2, marks=pytest.mark.nightly)]
"""A second seed where `make test` has one of a kind."""
LATE_COMMIT = 2116
"""The seed of a run in which the broker takes the commit of a killed member after the next one. Before slots,
it put back what the other member had committed."""
CUT_OFF_BEFORE_THE_SYNC = (13, 198)
"""Seeds of runs in which the leader was disconnected between JoinGroup and SyncGroup. Before the fix, the
group read records again.
"""
TOLD_ELSEWHERE = 1122
"""The seed of a run in which a client gets its committed offset from the process that does not know its
lanes. Before the fix, the other process sent it records again."""
TAKEN_LATE = 9
"""The seed of a run in which the broker takes a commit after a later one of the same client, from a new
connection. It puts that one back, without a gateway as well."""
GATEWAYS = (2, 3, 8)


@pytest.mark.parametrize("seed", [1, *NIGHTLY, LATE_COMMIT, *CUT_OFF_BEFORE_THE_SYNC])
def test_nothing_is_lost_and_nothing_that_was_committed_comes_again(seed: int) -> None:
    _holds(seed)


@pytest.mark.slow
@pytest.mark.parametrize("gateways", GATEWAYS)
@pytest.mark.parametrize("seed", [1, *NIGHTLY])
def test_the_same_with_several_gateways_whose_clocks_differ(seed: int, gateways: int) -> None:
    """Case C67."""
    _holds(seed, gateways)


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "gateways"), [(1, 1), (TAKEN_LATE, 1), (12, 8)])
def test_the_same_with_incremental_rebalancing(seed: int, gateways: int) -> None:
    """Cases C54 to C67. Members commit for what they have to release after the rebalance."""
    _holds(seed, gateways, Incremental)


@pytest.mark.nightly
@pytest.mark.timeout(900)
@pytest.mark.parametrize("gateways", [1, *GATEWAYS])
@pytest.mark.parametrize("first", range(1000, 1000 + RUNS, 10))
def test_the_same_in_many_more_runs(first: int, gateways: int) -> None:
    for seed in range(first, min(first + 10, 1000 + RUNS)):
        _holds(seed, gateways)
        _holds(seed, gateways, Incremental)


@pytest.fixture
def soon_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scale the time after which a member is absent to the session timeout of the world's members."""
    for module in presence, member:
        monkeypatch.setattr(module, "ABSENT_SECONDS", BEAT)


@pytest.mark.usefixtures("soon_absent")
@pytest.mark.parametrize("kind", [Client, Incremental])
@pytest.mark.parametrize("seed", [1, *NIGHTLY, TOLD_ELSEWHERE])
def test_the_same_if_each_connection_reaches_any_of_two_processes(seed: int, kind: type[Client]) -> None:
    """Case C68."""
    _holds(seed, 2, kind, roams=True)


@pytest.mark.nightly
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("soon_absent")
@pytest.mark.parametrize("first", range(1000, 1000 + RUNS, 10))
def test_the_same_in_many_more_runs_with_two_processes(first: int) -> None:
    for seed in range(first, min(first + 10, 1000 + RUNS)):
        _holds(seed, 2, roams=True)
        _holds(seed, 2, Incremental, roams=True)


def _holds(seed: int, gateways: int = 1, kind: type[Client] = Client, *, roams: bool = False) -> None:
    members = 2 + seed % 4 if gateways == 1 else max(4 + seed % 3, gateways)
    partitions = 1 + seed % 2 if kind is Client else 1 + seed % 3
    world = World(seed, members, partitions, heat=HEAT, gateways=gateways, kind=kind, roams=roams)
    world.run(STEPS)
    world.settle()
    story = f"seed {seed}, {gateways} gateways: " + "; ".join(world.story)
    assert len(world.log) > STEPS // 4, story
    assert world.lost() == [], story
    assert world.twice() == [], story
    assert world.unordered() == [], story
    if gateways > 1 and partitions == 1 and not roams:  # else each gateway may have a partition of its own
        assert world.across, story
