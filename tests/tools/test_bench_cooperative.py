"""Given fixed measurements, the benchmark of cooperative groups prints the correct table and notes."""

from collections.abc import Mapping, Sequence

from tools.bench import cooperative, member_latency
from tools.bench.cooperative import Killed, Ran
from tools.bench.figures import DIRECT, FOUR_MEMBERS, GATEWAY, MEMBER, ONE_MEMBER, PARALLEL, SHARE, FigureRow
from tools.bench.latency import LatencyWindow


def ran(rate: float, *, disordered: int = 0, killed: Killed | None = None) -> Ran:
    return Ran(rate=rate, disordered=disordered, cpu=5.0, killed=killed)


def killed(again: int) -> Killed:
    return Killed(disordered=0, again=again, lost=0, seconds=7.0)


ALL: Mapping[tuple[int, str], Sequence[Ran]] = {
    (1, ONE_MEMBER): [ran(900), ran(450)],
    (1, FOUR_MEMBERS): [ran(3600, killed=killed(2)), ran(1755, killed=killed(5))],
    (1, PARALLEL): [ran(3600, killed=killed(0)), ran(1800, killed=killed(9))],
    (1, SHARE): [ran(3600, disordered=3, killed=killed(0)), ran(1800, disordered=7, killed=killed(0))],
    (0, ONE_MEMBER): [ran(1e5), ran(1e5)],
    (0, FOUR_MEMBERS): [ran(2e5), ran(1e5)],
}


def rows(kinds: Sequence[str]) -> dict[str, FigureRow]:
    of = {each: found for each, found in ALL.items() if each[1] in kinds}
    missing = {(0, kind): [ran(1e5), ran(1e5)] for kind in kinds if (0, kind) not in of}
    table = cooperative.table(of | missing, kinds, seconds=10, rounds=2, missing=())
    return {row.name: row for row in table.rows}


def test_rates_are_compared_within_a_round() -> None:
    found = rows([ONE_MEMBER, FOUR_MEMBERS, PARALLEL, SHARE])
    assert found["1 ms of work"].values == {
        ONE_MEMBER: 675,
        FOUR_MEMBERS: 2677.5,
        PARALLEL: 2700,
        SHARE: 2700,
    }
    times = found["1 ms of work, beside 1 member"]
    assert times.values == {FOUR_MEMBERS: 3.95, PARALLEL: 4, SHARE: 4}
    assert times.met is True
    beside = found["1 ms of work, beside parallel-consumer"]
    assert (beside.values, beside.met) == ({FOUR_MEMBERS: 0.9875}, False)


def test_of_order_and_kills_the_worst_counts() -> None:
    found = rows([ONE_MEMBER, FOUR_MEMBERS, PARALLEL, SHARE])
    order = found["1 ms of work, out of order by key"]
    assert order.values == {ONE_MEMBER: 0, FOUR_MEMBERS: 0, PARALLEL: 0, SHARE: 7}
    assert order.met is True
    assert found["one is killed: seen again"].values == {FOUR_MEMBERS: 5, PARALLEL: 9, SHARE: 0}


def test_without_a_java_compiler_its_columns_are_left_out() -> None:
    found = rows([ONE_MEMBER, FOUR_MEMBERS])
    assert "1 ms of work, beside parallel-consumer" not in found
    assert found["1 ms of work"].values.keys() == {ONE_MEMBER, FOUR_MEMBERS}


def test_what_is_added_to_a_latency_is_judged_for_a_member_alone() -> None:
    found = {
        DIRECT: [LatencyWindow(2.0, 10.0, 3.0), LatencyWindow(4.0, 20.0, 5.0)],
        GATEWAY: [LatencyWindow(5.0, 30.0, 3.0), LatencyWindow(7.0, 40.0, 5.0)],
        MEMBER: [LatencyWindow(2.5, 11.0, 3.0), LatencyWindow(5.0, 22.0, 5.0)],
    }
    rows = {row.name: row for row in member_latency.table(found, seconds=5).rows}
    assert rows["p50"].values == {DIRECT: 3.0, GATEWAY: 6.0, MEMBER: 3.75}
    assert (rows["added to p50"].values, rows["added to p50"].met) == ({GATEWAY: 3.0, MEMBER: 0.75}, True)
    assert rows["added to p99"].met is True
    assert rows["CPU of the gateway"].values == {MEMBER: 4.0}
