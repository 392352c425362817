"""The model has the errors, throttling and conversions of each broker release."""

import pytest

from tests.model.asker import Session, entries, errors
from tests.model.broker import ConnectionClosedError, ModelBroker
from tests.model.wire import NodeEndpoint, find_tag, node_endpoints_tag
from tests.model.world import fresh

NODE = NodeEndpoint(node_id=2, host="b2", port=9092)


@pytest.mark.parametrize(
    ("release", "version", "records", "aborted"),
    [("2.8", 12, b"", None), ("3.9", 12, None, ()), ("4.3", 12, b"", ()), ("3.9", 11, None, ())],
)
def test_an_unexpected_failure_lists_the_request(
    release: str, version: int, records: bytes | None, aborted: tuple[()] | None
) -> None:
    broker, asker = fresh(version, release)
    session = Session(asker, ("foo", 0), ("bar", 0))
    broker.failure = -1

    response = session.fetch(("bar", 0, 7))

    assert (response.error_code, response.session_id, asker.names(response)) == (-1, session.id, [("bar", 0)])
    assert [(data.error_code, data.records, data.aborted) for data in entries(response)] == [
        (-1, records, aborted)
    ]


@pytest.mark.parametrize(("release", "error"), [("3.7", 70), ("3.8", -1), ("4.3", -1)])
def test_ids_that_no_shard_owns(release: str, error: int) -> None:
    """Case 96: for a session id that belongs to no shard, a broker sends an error.

    The error is 70 up to Kafka 3.7, and -1 from 3.8 on.
    """
    _, asker = fresh(13, release)

    assert asker.fetch(session=(2_147_483_640, 1)).error_code == error
    full = asker.fetch(("foo", 0), session=(2_147_483_640, 0))
    assert (full.error_code, len(full.topics)) == ((0, 1) if error == 70 else (-1, 0))


@pytest.mark.parametrize(
    ("release", "error", "records"), [("2.8", 76, b""), ("3.9", 76, None), ("4.3", 0, b"data")]
)
def test_zstd_below_v10_is_an_error_that_the_session_never_hears_of(
    release: str, error: int, records: bytes | None
) -> None:
    broker, asker = fresh(9, release)
    broker.topics["foo"].zstd = True
    broker.partition("foo").append(b"data")
    session = Session(asker, ("foo", 0))

    data = entries(session.first)[0]
    assert (data.error_code, data.records) == (error, records)
    assert session.names(("foo", 0, 1)) == []
    assert errors(asker.fetch(("foo", 0, 1))) == [error]


@pytest.mark.parametrize(("version", "error"), [(4, 6), (5, 6), (6, 56), (11, 56)])
def test_a_storage_error_is_another_one_up_to_v5(version: int, error: int) -> None:
    broker, asker = fresh(version)
    broker.partition("foo").error = 56

    assert errors(asker.fetch(("foo", 0))) == [error]


@pytest.mark.parametrize(("release", "lso"), [("2.0", -1), ("2.4", 1), ("4.3", 1)])
def test_old_brokers_keep_the_last_stable_offset_to_themselves(release: str, lso: int) -> None:
    broker, asker = fresh(7, release)
    broker.partition("foo").append(b"data")

    assert entries(asker.fetch(("foo", 0)))[0].last_stable_offset == lso
    assert entries(asker.fetch(("foo", 0), isolation_level=1))[0].last_stable_offset == 1


def test_up_to_1_1_an_unknown_partition_is_answered_in_its_place() -> None:
    for release, order in (("1.1", [("foo", 9), ("bar", 0)]), ("2.0", [("bar", 0), ("foo", 9)])):
        _, asker = fresh(7, release)

        response = asker.fetch(("foo", 9), ("bar", 0))

        assert (asker.names(response), sorted(errors(response))) == (order, [0, 3])


@pytest.mark.parametrize(("release", "error"), [("2.4", 0), ("2.5", 74)])
def test_old_brokers_forget_to_fence_in_sessions(release: str, error: int) -> None:
    """Case 68: up to Kafka 2.4, a fetch in a session with an old leader epoch gets no error.

    From 2.5 on, the fetch gets error 74.
    """
    broker, asker = fresh(11, release)
    broker.partition("foo").leader_epoch = 5
    session = Session(asker, ("foo", 0), values={"current_leader_epoch": 5})

    assert errors(session.fetch(("foo", 0, 0, 9), values={"current_leader_epoch": 4})) == (
        [error] if error else []
    )
    assert errors(asker.fetch(("foo", 0), values={"current_leader_epoch": 4})) == [74]
    assert errors(asker.fetch(("foo", 0), values={"current_leader_epoch": 6})) == [75]


def test_an_epoch_never_seen_is_out_of_range() -> None:
    """Case 69: if the last fetched epoch is above all epochs of the log, the broker responds with error 1."""
    _, asker = fresh(12)

    assert errors(asker.fetch(("foo", 0), values={"last_fetched_epoch": 7})) == [1]


@pytest.mark.parametrize(("release", "version"), [("4.3", 3), ("3.9", 18), ("1.0", 7), ("2.8", 13)])
def test_a_version_the_broker_lacks_closes_the_connection(release: str, version: int) -> None:
    _, asker = fresh(version, release)

    with pytest.raises(ConnectionClosedError):
        asker.fetch(("foo", 0))


def test_api_versions_at_an_unknown_version() -> None:
    request = bytes.fromhex("0012006300000007000473706563000261026200")
    vectors = {"2.8.2": "00000007002300000001001200000003", "4.3.0": "00000007002300000001001200000004"}

    assert {r: ModelBroker(release=r).handle(request, 0.0).hex() for r in vectors} == vectors
    assert ModelBroker(release="1.1.1").handle(request, 0.0).hex() == "00000007002300000000"


def test_throttled_responses_still_tell_where_the_leader_is() -> None:
    broker, asker = fresh(16, throttle_ms=5)
    broker.partition("foo").hosted = False
    broker.partition("foo").leader = 2

    assert asker.fetch(("foo", 0)).tags == ()
    broker.nodes = {2: NODE}
    response = asker.fetch(("foo", 0))
    assert (response.topics, find_tag(response.tags, 0)) == ((), node_endpoints_tag([NODE])[1])


def test_unknown_ids_stand_before_other_errors_found_unread() -> None:
    """Entries with unknown topic ids come before entries with other errors that are found before reading.

    This order was observed with Kafka 4.3.0.
    """
    broker, asker = fresh(16)
    broker.delete_topic("bar")

    response = asker.fetch(("foo", 9), ("bar", 0), ("zar", 0))

    assert list(zip(asker.names(response), errors(response), strict=True)) == [
        (("zar", 0), 0),
        (("bar", 0), 100),
        (("foo", 9), 3),
    ]
