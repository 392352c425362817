"""Each Python client reads topics with all kinds of records: directly, and through the gateway."""

import pytest

from tests.clients.comparing import Pair, assert_sessions, count_of, read_whole
from tests.clients.dataset import (
    COMPACTED,
    FIRST_TIMESTAMP,
    HEADERS,
    KEYS,
    LARGE,
    LARGE_BYTES,
    PARTITIONS,
    PLAIN,
    PLAIN_RECORDS,
    TRIMMED,
    Expected,
)
from tests.clients.runner import Line, Program, Ways, assert_same_records
from tools.gateway import GatewayProcess

pytestmark = pytest.mark.integration
pytest_plugins = ["tests.clients.fixtures"]


@pytest.fixture(scope="module")
def uncommitted(program: Program, ways: Ways, cluster_gateway: GatewayProcess, expected: Expected) -> Pair:
    return read_whole(program, ways, cluster_gateway, expected, "read_uncommitted", commands=True)


@pytest.fixture(scope="module")
def committed(program: Program, ways: Ways, cluster_gateway: GatewayProcess, expected: Expected) -> Pair:
    if not program.transactions:
        pytest.skip(f"{program.name} knows no read_committed")
    return read_whole(program, ways, cluster_gateway, expected, "read_committed", commands=True)


def through_gateway(pair: Pair, topic: str, partition: int) -> list[Line]:
    return pair.gateway.records()[topic, partition]


def test_every_record_is_the_same_in_the_same_order(
    program: Program, uncommitted: Pair, expected: Expected
) -> None:
    assert_same_records(uncommitted.direct, uncommitted.gateway)
    assert len(uncommitted.gateway.of("record")) == count_of(program, expected, "read_uncommitted")


def test_keys_headers_and_timestamps_are_those_produced(uncommitted: Pair) -> None:
    lines = through_gateway(uncommitted, PLAIN, 1)
    assert [line["timestamp"] for line in lines] == [FIRST_TIMESTAMP + n for n in range(PLAIN_RECORDS)]
    keys = [None if n % 5 == 0 else f"key-{n}".encode().hex() for n in range(PLAIN_RECORDS)]
    assert [line["key"] for line in lines] == keys
    for number, line in enumerate(lines):
        sent = HEADERS[number % len(HEADERS)]
        assert line["headers"] == [
            [name, value.hex() if isinstance(value, bytes) else None] for name, value in sent
        ]


def test_records_of_5_mb_arrive_whole(uncommitted: Pair) -> None:
    for partition in range(PARTITIONS[LARGE]):
        first, second, *rest = through_gateway(uncommitted, LARGE, partition)
        assert [line["value"].split(":")[0] for line in (first, second)] == [str(LARGE_BYTES)] * 2
        assert len(rest) == 3


def test_what_compaction_left_keeps_its_offsets(uncommitted: Pair) -> None:
    for partition in range(PARTITIONS[COMPACTED]):
        offsets = [line["offset"] for line in through_gateway(uncommitted, COMPACTED, partition)]
        assert offsets == [*range(4 * KEYS, 5 * KEYS), 5 * KEYS]


def test_reading_begins_at_the_log_start_that_delete_records_moved(uncommitted: Pair) -> None:
    for partition in range(PARTITIONS[TRIMMED]):
        assert [line["offset"] for line in through_gateway(uncommitted, TRIMMED, partition)] == list(
            range(12, 20)
        )


def test_each_end_of_partition_is_told_once_at_the_same_offset(uncommitted: Pair, expected: Expected) -> None:
    """Each end of a partition is reported once, at the same offset as directly (case 77)."""
    assert uncommitted.direct.ends() == uncommitted.gateway.ends()
    assert uncommitted.gateway.ends() == {place: [end] for place, end in expected.ends.items()}


def test_watermarks_are_the_brokers(uncommitted: Pair, expected: Expected) -> None:
    direct, gateway = uncommitted.watermarks
    assert direct == gateway
    for line in gateway:
        place = line["topic"], line["partition"]
        assert line["high"] == expected.ends[place]
        assert line["low"] in (None, expected.starts[place])  # None: this client does not show it


def test_aborted_transactions_stay_hidden_from_read_committed(committed: Pair, expected: Expected) -> None:
    """A read_committed client gets no records of aborted transactions (case 76)."""
    assert_same_records(committed.direct, committed.gateway)
    assert len(committed.gateway.of("record")) == expected.committed


def test_ends_are_the_same_for_read_committed(committed: Pair) -> None:
    assert committed.direct.ends() == committed.gateway.ends()


def test_no_error_is_told(uncommitted: Pair) -> None:
    assert [uncommitted.direct.errors(), uncommitted.gateway.errors()] == [[], []]


def test_fetches_become_a_session_where_the_client_has_none(program: Program, uncommitted: Pair) -> None:
    assert_sessions(program.sessions, uncommitted.fetches)
