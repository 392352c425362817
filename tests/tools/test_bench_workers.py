"""The benchmark of workers computes correct figures for each window.

It also judges machines with few cores correctly.
"""

import pytest

from tools.bench import workers
from tools.bench.windows import beside, medians
from tools.bench.workers import WorkersWindow

ROUNDS = {
    "1 worker": [
        WorkersWindow(100.0, 8_000.0, 100.0),
        WorkersWindow(200.0, 4_000.0, 100.0),
        WorkersWindow(400.0, 2_000.0, 100.0),
    ],
    "2 workers": [
        WorkersWindow(110.0, 9_000.0, 48.0),
        WorkersWindow(210.0, 7_200.0, 39.0),
        WorkersWindow(400.0, 3_400.0, 44.0),
    ],
}


def test_windows_are_held_against_those_of_the_same_round() -> None:
    assert medians(ROUNDS, "cpu") == {"1 worker": 200.0, "2 workers": 210.0}
    assert beside(ROUNDS, "1 worker", "pace") == {"1 worker": 1.0, "2 workers": 1.7}


@pytest.mark.parametrize(("cores", "met"), [(5, None), (6, True)])
def test_fetches_a_second_are_judged_where_there_are_cores_for_them(cores: int, met: bool | None) -> None:
    table = workers._table(ROUNDS, {"2 workers": 40.0}, 0.5, cores)

    cpu, kernel, times_cpu, share, pace, times_pace = table.rows
    assert cpu.values == {"1 worker": 200.0, "2 workers": 210.0}
    assert kernel.values == {"2 workers": 40.0}
    assert (times_cpu.values["2 workers"], times_cpu.met) == (1.05, True)
    assert (share.values, share.met) == ({"2 workers": 44.0}, True)
    assert pace.values["2 workers"] == 7_200.0
    assert (times_pace.values["2 workers"], times_pace.met) == (1.7, met)
    assert "3 rounds of windows of 0.5 s" in table.notes[1]
    assert any("not judged: 5 cores" in note for note in table.notes) is (met is None)
