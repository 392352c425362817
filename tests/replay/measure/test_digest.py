"""The summary of a connection: its timeline, topics, and sessions."""

from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from replay.capture.kafka.exchange import ConnectionEnd, Exchange
from replay.measure.digest import BUCKETS, WIDTHS, Digest, Timeline
from replay.simulate.outcome import Outcome, TopicShare

SECOND = 1_000_000_000
BEGIN = 1_795_215_235 * SECOND
END = ConnectionEnd(connection="c", client="a:1", broker="b:2")


def outcome(at: int, **more: Any) -> Outcome:
    exchange = Exchange("c", "a:1", "b:2", 0, "", "", 1, 11, 0, BEGIN + at, BEGIN + at + 1, 100, 1000)
    return Outcome(exchange, **more)


def test_each_width_divides_the_next() -> None:
    assert all(later % width == 0 for width, later in pairwise(WIDTHS))


TIMES = st.lists(
    st.tuples(st.integers(0, 400 * 86_400 * SECOND), st.integers(0, 9), st.integers(0, 9)), max_size=150
)


@given(ours=TIMES, theirs=TIMES)
def test_timelines_keep_their_sums_and_fit_together(
    ours: list[tuple[int, int, int]], theirs: list[tuple[int, int, int]]
) -> None:
    first, second = Timeline(), Timeline()
    for timeline, added in ((first, ours), (second, theirs)):
        for at, actual, predicted in added:
            timeline.add(BEGIN + at, actual, predicted)
    first.merge(second.width, second.over_time())
    alone = Timeline()
    for at, actual, predicted in [*ours, *theirs]:
        alone.add(BEGIN + at, actual, predicted)

    assert len(first.buckets) <= BUCKETS
    assert (first.width, first.buckets) == (alone.width, alone.buckets)
    assert sum(bucket[0] for bucket in first.buckets.values()) == sum(one[1] for one in [*ours, *theirs])


def test_a_time_without_fetches_does_not_make_the_others_coarse() -> None:
    timeline = Timeline()
    for begin in (0, 6 * 3600):
        for second in range(50):
            timeline.add(BEGIN + (begin + second) * SECOND, 1, 1)
    timeline.fit(100 * SECOND)

    assert (timeline.width, len(timeline.buckets)) == (SECOND, 100)
    timeline.fit(3600 * SECOND)
    assert timeline.width == 60 * SECOND


def test_topics_add_up_with_their_eligible_share() -> None:
    digest = Digest()
    topics = {"t": TopicShare(request_bytes=5, response_bytes=7, record_bytes=2), b"\x01" * 16: TopicShare()}
    digest.add(outcome(0, topics=topics, eligible=True))
    digest.add(outcome(1, topics={"t": TopicShare(request_bytes=1)}))
    named, unnamed = digest.summary(END).topics

    assert (named.topic, named.request_bytes, named.response_bytes) == ("t", 6, 7)
    assert (named.eligible_request_bytes, named.eligible_record_bytes) == (5, 2)
    assert (unnamed.topic, unnamed.topic_id) == (None, b"\x01" * 16)


def test_predicted_is_what_went_through_sessions_or_what_was_captured() -> None:
    digest = Digest()
    digest.add(outcome(0, eligible=True, session_request_bytes=10, session_response_bytes=20))
    digest.add(outcome(1))
    digest.add(outcome(2, session_request_bytes=3))
    digest.close(outcome(3, session_request_bytes=4))

    assert list(digest.timeline.buckets.values()) == [[3300, 30 + 1100 + 1103 + 4]]


def test_predicted_sessions_have_the_connections_name_and_native_ones_the_brokers() -> None:
    digest = Digest()
    digest.add(outcome(0, eligible=True, full=1, session_size=9))
    digest.add(outcome(SECOND, eligible=True, incremental=1, session_size=10))
    digest.add(outcome(2 * SECOND, kind="full", answer_session_id=77, partitions_answered=3))
    digest.add(outcome(3 * SECOND, kind="incremental", session_id=77))
    digest.add(outcome(4 * SECOND, kind="close", session_id=77))
    digest.close(outcome(5 * SECOND))
    told = [(round((time - BEGIN) / SECOND), *rest) for time, *rest in digest.summary(END).sessions]

    assert told == [
        (0, "make", "c", 9),
        (1, "touch", "c", 10),
        (2, "make", "77", 3),
        (3, "touch", "77", 3),
        (4, "close", "77", 0),
        (5, "close", "c", 0),
    ]
