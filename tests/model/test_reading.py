"""The model obeys KIP-74's byte limits and names new leaders (KIP-951): cases 58 to 65."""

from dataclasses import replace

import pytest

from tests.model.asker import Asker, Want, entries, errors, sizes
from tests.model.broker import ModelBroker
from tests.model.wire import AbortedTransaction, NodeEndpoint, current_leader_tag, node_endpoints_tag

B2 = NodeEndpoint(node_id=2, host="b2", port=9092)


def filled(batches: list[int], partitions: int = 5, release: str = "4.3") -> tuple[ModelBroker, Asker]:
    """Return a broker with one topic, and a client. Each partition has batches of these sizes."""
    broker = ModelBroker(release=release)
    broker.create_topic("t", partitions)
    for partition in broker.topics["t"].partitions.values():
        for size in batches:
            partition.append(bytes(size))
    return broker, Asker(broker=broker)


def of_all(size: int, *, offset: int = 0, partitions: int = 5) -> list[Want]:
    return [("t", index, offset, size) for index in range(partitions)]


# KIP-74


def test_the_leading_partitions_fill_the_response() -> None:
    """Case 58: the first partitions fill the response up to its limit. The others get no records."""
    _, asker = filled([50] * 10)
    assert sizes(asker.fetch(*of_all(190), max_bytes=800)) == [190, 190, 190, 190, 0]

    _, asker = filled([200, 200])
    assert sizes(asker.fetch(*of_all(190), max_bytes=800)) == [200, 0, 0, 0, 0]


def test_a_first_batch_comes_whole() -> None:
    """Case 59: the first batch of a response is complete, even if it exceeds all limits."""
    _, asker = filled([500, 20])

    assert sizes(asker.fetch(*of_all(100), max_bytes=800)) == [500, 0, 0, 0, 0]
    assert sizes(asker.fetch(*of_all(900), max_bytes=100)) == [500, 0, 0, 0, 0]
    assert sizes(asker.fetch(*of_all(0), max_bytes=0)) == [500, 0, 0, 0, 0]


def test_the_same_batch_later_is_left_out() -> None:
    """Case 60: if a batch exceeds the limits and is not the first one, its entry has no records."""
    broker, asker = filled([500], 2)
    broker.partition("t", 0).segments[0].batches[0] = replace(
        broker.partition("t", 0).segments[0].batches[0], data=bytes(10)
    )

    response = asker.fetch(*of_all(100, partitions=2))

    assert sizes(response) == [10, 0]
    assert entries(response)[1].high_watermark == 1


@pytest.mark.parametrize(("offset", "size"), [(0, 1024), (2, 1040), (3, 550)])
def test_the_brokers_own_limit(offset: int, size: int) -> None:
    """Case 61: the broker's fetch.max.bytes limits the response, except its first batch."""
    broker, asker = filled([100, 1400, 1040, 500, 50], 1)
    broker.fetch_max_bytes = 1024

    assert sizes(asker.fetch(("t", 0, offset, 1 << 20))) == [size]


def test_caught_up_partitions_leave_the_first_batch_to_others() -> None:
    """Case 62: after partitions without records, the first batch is still returned completely."""
    _, asker = filled([500], 3)

    response = asker.fetch(("t", 0, 1, 100), ("t", 1, 0, 100), ("t", 2, 0, 100))

    assert sizes(response) == [0, 500, 0]


def test_errors_cost_nothing() -> None:
    """Case 63: after entries with errors, the first batch is still returned completely."""
    broker, asker = filled([500], 3)
    broker.partition("t", 1).error = 56

    response = asker.fetch(("t", 0, 99, 100), ("t", 1, 0, 100), ("t", 2, 0, 100), max_bytes=10)

    assert (errors(response), sizes(response)) == ([1, 56, 0], [0, 0, 500])


def test_no_read_goes_past_a_segment() -> None:
    broker, asker = filled([100, 100], 1)
    broker.partition("t").roll()
    broker.partition("t").append(bytes(100))

    assert sizes(asker.fetch(("t", 0))) == [200]
    assert sizes(asker.fetch(("t", 0, 2))) == [100]


def test_a_read_begins_with_the_batch_that_holds_the_offset() -> None:
    broker, asker = filled([], 1)
    broker.partition("t").append(b"three", count=3)
    broker.partition("t").append(b"two", count=2)

    assert entries(asker.fetch(("t", 0, 2)))[0].records == b"threetwo"
    assert entries(asker.fetch(("t", 0, 3)))[0].records == b"two"
    assert errors(asker.fetch(("t", 0, 5))) == [0]
    assert errors(asker.fetch(("t", 0, 6))) == [1]


def test_what_is_below_the_log_start_is_out_of_range() -> None:
    broker, asker = filled([10, 10, 10], 1)
    broker.partition("t").delete_records(2)

    assert errors(asker.fetch(("t", 0, 1))) == [1]
    assert (sizes(asker.fetch(("t", 0, 2))), entries(asker.fetch(("t", 0, 2)))[0].log_start_offset) == (
        [10],
        2,
    )
    broker.partition("t").delete_records(-1)
    assert entries(asker.fetch(("t", 0, 3)))[0].log_start_offset == 3


def test_transactions_end_where_read_committed_sees_them() -> None:
    broker, asker = filled([], 1)
    partition = broker.partition("t")
    partition.append(b"open", producer=7)
    partition.append(b"plain")

    committed = entries(asker.fetch(("t", 0), isolation_level=1))[0]
    assert (committed.records, committed.aborted, committed.last_stable_offset) == (b"", (), 0)
    uncommitted = entries(asker.fetch(("t", 0)))[0]
    assert (uncommitted.records, uncommitted.aborted, uncommitted.last_stable_offset) == (
        b"openplain",
        None,
        0,
    )

    partition.end_transaction(7, commit=False, marker=b"abort")
    committed = entries(asker.fetch(("t", 0), isolation_level=1))[0]
    assert committed.records == b"openplainabort"
    assert committed.aborted == (AbortedTransaction(producer_id=7, first_offset=0),)
    assert entries(asker.fetch(("t", 0, 3), isolation_level=1))[0].aborted == ()


# KIP-951


@pytest.mark.parametrize("version", [12, 15, 16, 18])
def test_who_leads_instead(version: int) -> None:
    """Case 64: from v16 on, errors 6 and 74 name the leader and its address. Errors 75 and 3 do not."""
    broker, asker = filled([10], 5)
    broker.nodes = {2: B2}
    asker.version = version
    asker.learn()
    parts = broker.topics["t"].partitions
    parts[0].hosted, parts[0].leader, parts[0].leader_epoch = False, 2, 7
    parts[1].leader, parts[1].leader_epoch = 2, 8

    response = asker.fetch(*of_all(100, partitions=3), ("t", 9), values={"current_leader_epoch": 3})

    told = version >= 16
    assert errors(response) == [6, 74, 75, 3]
    assert [data.tags for data in entries(response)] == [
        (current_leader_tag(2, 7),) if told else (),
        (current_leader_tag(2, 8),) if told else (),
        (),
        (),
    ]
    assert response.tags == ((node_endpoints_tag([B2]),) if told else ())


@pytest.mark.parametrize("version", [10, 11])
def test_a_follower_serves_from_v11_on(version: int) -> None:
    broker, asker = filled([10], 1)
    asker.version = version
    broker.partition("t").leader = 2

    assert errors(asker.fetch(("t", 0))) == [6 if version == 10 else 0]


def test_no_leader_a_dead_one_and_one_not_yet_missed() -> None:
    """Case 65: a dead leader is reported as leader -1 if the epoch is known, otherwise not at all.

    If the death has not been noticed yet, the response has the leader's address.
    """
    broker, asker = filled([10], 3)
    asker.version = 16
    asker.learn()
    parts = broker.topics["t"].partitions
    for partition, (leader, epoch) in zip(parts.values(), [(-1, -1), (-1, 4), (2, 4)], strict=True):
        partition.hosted, partition.leader, partition.leader_epoch = False, leader, epoch

    response = asker.fetch(*of_all(100, partitions=2))
    assert [data.tags for data in entries(response)] == [(), (current_leader_tag(-1, 4),)]
    assert response.tags == ()
    broker.nodes = {2: B2}
    assert asker.fetch(("t", 2)).tags == (node_endpoints_tag([B2]),)
