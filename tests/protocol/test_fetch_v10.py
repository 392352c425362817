"""Fetches of v10 become v11, and responses of v11 become v10, as the test's own codec has them."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.protocol.fetch_v10 import LoweredResponse, raised
from proxy.protocol.primitives import Malformed
from tests.examples import examples
from tests.frames import Want, fetch, fetch_response, framed, live
from tests.model import wire

small = st.integers(-1, 9)
entries = st.builds(
    wire.PartitionData,
    partition_index=st.integers(0, 3),
    error_code=st.sampled_from([0, 0, 0, 1, 6]),
    high_watermark=small,
    last_stable_offset=small,
    log_start_offset=small,
    aborted=st.none()
    | st.lists(st.builds(wire.AbortedTransaction, producer_id=small, first_offset=small), max_size=3).map(
        tuple
    ),
    preferred_read_replica=st.sampled_from([-1, -1, -1, 2]),
    records=st.none() | st.binary(max_size=90),
)
plain = st.integers(1, 200).map(
    lambda count: tuple(wire.PartitionData(partition_index=index, high_watermark=5) for index in range(count))
)
topics = st.lists(
    st.builds(
        wire.TopicData,
        topic=st.sampled_from(["t", "other"]),
        partitions=st.lists(entries, max_size=6).map(tuple) | plain,
    ),
    max_size=4,
).map(tuple)
responses = st.builds(
    wire.FetchResponse,
    version=st.just(11),
    correlation_id=small,
    throttle_time_ms=small,
    error_code=st.sampled_from([0, 70]),
    session_id=st.integers(0, 2**31 - 1),
    topics=topics,
)


def lowered(*chunks: bytes, isolation_level: int = 0) -> tuple[bytes, LoweredResponse]:
    response = LoweredResponse(isolation_level)
    ready = [bytes(piece) for chunk in chunks for piece in response.feed([chunk])]
    assert response.buffered == sum(map(len, chunks)) - response._begins
    return b"".join(ready), response


def encoded(told: wire.FetchResponse, version: int) -> bytes:
    return framed(wire.encode_response(replace(told, version=version)))


@pytest.mark.parametrize("session", [(0, -1), (-1, -1), (7, 3)])
def test_a_fetch_gets_an_empty_rack_and_nothing_else(session: tuple[int, int]) -> None:
    wants: list[Want] = [("t", 0, 7), ("t", 1), ("other", 3)]
    forget = [("t", 2)] if session[0] > 0 else []
    sent = raised(fetch(10, *wants, session=session, forget=forget))
    assert sent == fetch(11, *wants, session=session, forget=forget)


@examples(400)
@given(told=responses, isolation_level=st.integers(0, 1), data=st.data())
def test_a_response_loses_its_preferred_replicas_and_nothing_else(
    told: wire.FetchResponse, isolation_level: int, data: st.DataObject
) -> None:
    frame = encoded(told, 11)
    cuts = data.draw(st.lists(st.integers(0, len(frame)), max_size=8).map(sorted))
    chunks = [frame[start:end] for start, end in zip([0, *cuts], [*cuts, len(frame)], strict=True)]
    got, response = lowered(*chunks, isolation_level=isolation_level)
    assert got == encoded(told, 10)
    assert response.buffered == 0
    preferred = {each.preferred_read_replica for topic in told.topics for each in topic.partitions}
    assert response.redirects == bool(preferred - {-1})


def test_responses_of_live_brokers_are_lowered_byte_by_byte() -> None:
    for exchange in live(11):
        frame = exchange.response
        told = wire.decode_response(frame[4:], 11)
        got, _ = lowered(*(frame[at : at + 1] for at in range(len(frame))))
        assert got == encoded(told, 10), exchange


def test_records_of_the_last_topic_pass_as_they_arrive() -> None:
    """They are the very bytes that were received, not copies."""
    part = wire.PartitionData(partition_index=0, records=bytes(1000))
    frame = fetch_response(11, ("other", [part]), ("t", [part]))
    response = LoweredResponse(0)
    begins = frame.rindex(b"t") + 1
    assert response.feed([frame[:begins]]) == []
    assert response.buffered == begins
    first = b"".join(response.feed([frame[begins : begins + 200]]))
    assert response.buffered == 0
    assert len(first) == begins + 200 - 8
    chunk = frame[begins + 200 :]
    (piece,) = response.feed([chunk])
    assert isinstance(piece, memoryview)
    assert piece.obj is chunk


def test_bytes_that_are_no_response_are_refused() -> None:
    frame = fetch_response(11, ("t", [wire.PartitionData(partition_index=0)]))
    with pytest.raises(Malformed):
        lowered(frame + b"\0")
