"""Given fixed measurements, the benchmark of alternatives prints the correct table."""

import pytest

from tools.bench import alternatives
from tools.bench.figures import DIRECT, FEWER, GATEWAY, MIN_BYTES, RAISED, markdown
from tools.counting import CountedFetches

COUNTED = {
    DIRECT: CountedFetches(3_000_000, 4_000_000, 1_000_000, 1_000, 100_000, {"sessionless": 1_000}),
    MIN_BYTES: CountedFetches(120_000, 1_180_000, 1_000_000, 40, 4_000, {"sessionless": 40}),
    "Java": CountedFetches(100_000, 1_080_000, 1_000_000, 1_000, 1_000, {"incremental": 1_000}),
    GATEWAY: CountedFetches(98_000, 1_077_000, 1_000_000, 1_000, 1_000, {"incremental": 1_000}),
}
SECONDS = dict.fromkeys(COUNTED, 20.0)
LATENCIES = {DIRECT: {"p50": 2.5, "p99": 70.0}, MIN_BYTES: {"p50": 250.0, "p99": 499.0}}


def test_bytes_a_second_are_compared_with_the_direct_consumer() -> None:
    rows = {row.name: row for row in alternatives.table(COUNTED, SECONDS, LATENCIES, 20.0).rows}

    assert rows["fetches"].values == {DIRECT: 50.0, MIN_BYTES: 2.0, "Java": 50.0, GATEWAY: 50.0}
    assert rows["bytes without records"].values[DIRECT] == 300.0
    assert rows["below direct"].values == pytest.approx({MIN_BYTES: 95.0, "Java": 97.0, GATEWAY: 97.083_333})
    assert rows["records"].values[MIN_BYTES] == 50.0
    assert rows["below direct, records included"].values[MIN_BYTES] == pytest.approx(100 * (1 - 13 / 70))
    assert rows["produce to consume: p50"].values == {DIRECT: 2.5, MIN_BYTES: 250.0}


def test_the_columns_are_in_the_order_of_the_page() -> None:
    table = alternatives.table(COUNTED, SECONDS, LATENCIES, 20.0)
    assert f"|  | unit | {DIRECT} | {MIN_BYTES} | Java | {GATEWAY} |" in markdown([table], "")


def test_each_consumer_but_that_of_fetchgate_goes_over_a_wire() -> None:
    assert [name for name, (partitions, _) in alternatives.CONSUMERS.items() if partitions != 100] == [FEWER]
    assert alternatives.CONSUMERS[MIN_BYTES][1] == alternatives.SETTINGS
    assert alternatives.CONSUMERS[RAISED][1] == ()
