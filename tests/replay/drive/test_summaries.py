"""Responses are reduced to what is compared. kio's classes are the reference for all APIs but Fetch."""

import io
import itertools
from typing import Any

import pytest
from kio.schema.errors import ErrorCode
from kio.serial import entity_writer

from proxy.protocol.api import ApiKey, response_header
from replay.capture.kafka.exchange import CUT
from replay.drive.summaries import UNKNOWN, WHOLE, Summary, numbers, summarize
from tests.frames import entry, fetch_response
from tests.replay.drive.captured import batch
from tests.replay.protocol.kio_entities import classes, made
from tools.kafka import raw

RESPONSES = classes("response")
IN_DETAIL = {ApiKey.PRODUCE, ApiKey.LIST_OFFSETS, ApiKey.METADATA, ApiKey.API_VERSIONS}


def read(api_key: int, version: int, *pieces: bytes | memoryview) -> Summary:
    summary = summarize(api_key, version, 0, pieces)
    assert summary is not None
    return summary


def listed(summary: Summary) -> dict[bytes, list[int]]:
    return {key: numbers(packed).tolist() for key, packed in summary.listing}


def _frame(key: int, version: int, message: Any) -> bytes:
    out = io.BytesIO()
    entity_writer(type(message))(out, message)
    tags = b"\0" if response_header(raw.frame(bytes(5)), 4, key, version)[1] == 9 else b""
    return raw.frame(bytes(4) + tags + out.getvalue())


def _code(error: Any) -> int:
    return int(error.value if isinstance(error, ErrorCode) else error)


def _key(topic: Any) -> bytes:
    name = getattr(topic, "name", None)
    return bytes(16) if name is None else str(name).encode()  # kio writes a missing id as zeros


def _expected(key: int, message: Any) -> tuple[dict[bytes, list[int]], list[tuple[bytes, int, int, int]]]:
    """Return the listing and the rows that are expected for kio's object `message`.

    A row has a topic, a number, an error code and an offset. For ApiVersions, it has the lowest version in
    place of the offset.
    """
    listing: dict[bytes, list[int]] = {}
    rows = []
    if key == ApiKey.API_VERSIONS:
        rows = [(b"", int(api.api_key), 0, int(api.min_version)) for api in message.api_keys]
        return {b"": sorted(row[1] for row in rows)}, rows
    if key == ApiKey.METADATA:
        for topic in message.topics:
            entries = [(WHOLE, topic.error_code)]
            entries += [(each.partition_index, each.error_code) for each in topic.partitions]
            listing[_key(topic)] = sorted(int(number) for number, _ in entries)
            rows += [
                (_key(topic), int(number), _code(error), UNKNOWN) for number, error in entries if _code(error)
            ]
        return listing, rows
    for topic in message.responses if key == ApiKey.PRODUCE else message.topics:
        for each in topic.partition_responses if key == ApiKey.PRODUCE else topic.partitions:
            number = each.index if key == ApiKey.PRODUCE else each.partition_index
            offset = each.base_offset if key == ApiKey.PRODUCE else getattr(each, "offset", UNKNOWN)
            listing.setdefault(_key(topic), []).append(int(number))
            rows.append((_key(topic), int(number), _code(each.error_code), int(offset)))
    return listing, rows


@pytest.mark.parametrize(
    ("key", "version"), sorted(each for each in RESPONSES if each[0] in IN_DETAIL), ids=str
)
def test_responses_are_read_in_detail_at_every_version(key: int, version: int) -> None:
    message = made(RESPONSES[key, version], itertools.count(1))

    summary = read(key, version, _frame(key, version, message))

    listing, rows = _expected(key, message)
    assert listing
    assert listed(summary) == listing
    assert [(name, number, error, values[0]) for name, number, error, values in summary.rows()] == rows
    whole = _code(getattr(message, "error_code", 0))
    assert summary.errors == ((whole,) if whole else ())


@pytest.mark.parametrize("version", [4, 11, 12, 16])
def test_a_fetch_has_its_partitions_and_a_row_where_there_is_something(version: int) -> None:
    empty = [entry(number, 9) for number in range(20, 10, -1)]
    data = [entry(3, 9, records=batch(5, crc=77)), *empty, entry(1, error=6), entry(2, 0)]
    frame = fetch_response(version, ("t", data), ("u", [entry(0, 4, records=batch(2) + batch(3))]))

    summary = read(ApiKey.FETCH, version, frame)

    t, u = (name.ljust(16, b"\0") if version >= 13 else name for name in (b"t", b"u"))
    assert listed(summary) == {t: [1, 2, 3, *range(11, 21)], u: [0]}
    assert [*summary.rows()] == [
        (t, 3, 0, (70, 5, 77, 9, 0)),
        (t, 1, 6, (0, UNKNOWN, UNKNOWN, -1, 0)),
        (u, 0, 0, (140, 2, 7, 4, 0)),
    ]


def test_a_batch_of_an_earlier_format_has_an_offset_and_no_crc() -> None:
    frame = fetch_response(11, ("t", [entry(0, 9, records=batch(5, magic=1))]))

    ((_, _, _, values),) = read(ApiKey.FETCH, 11, frame).rows()

    assert values == (70, 5, UNKNOWN, 9, 0)


@pytest.mark.parametrize(("start", "stop"), [(0, 70), (0, 1), (8, 9), (20, 40), (20, 21)])
def test_the_first_batch_is_unknown_if_its_header_is_cut(start: int, stop: int) -> None:
    frame = fetch_response(11, ("t", [entry(0, 9, records=batch(5)), entry(1, 9, records=batch(6))]))
    at = frame.index(batch(5))
    pieces = (frame[: at + start], CUT[: stop - start], frame[at + stop :])

    rows = [values for _, _, _, values in read(ApiKey.FETCH, 11, *pieces).rows()]

    assert rows == [(70, UNKNOWN, UNKNOWN, 9, 0), (70, 6, 7, 9, 0)]


def test_contents_behind_the_header_are_not_needed() -> None:
    frame = fetch_response(11, ("t", [entry(0, 9, records=batch(5))]))
    at = frame.index(batch(5)) + 21

    ((_, _, _, values),) = read(ApiKey.FETCH, 11, frame[:at], CUT[:49], frame[at + 49 :]).rows()

    assert values == (70, 5, 7, 9, 0)


def test_a_partition_that_names_another_replica_has_unknown_records() -> None:
    frame = fetch_response(11, ("t", [entry(0, 9, preferred_read_replica=2)]))

    ((_, _, _, values),) = read(ApiKey.FETCH, 11, frame).rows()

    assert values[0] == UNKNOWN


def test_a_throttled_fetch_is_no_empty_one() -> None:
    assert read(ApiKey.FETCH, 11, fetch_response(11, throttle_time_ms=100)).throttled
    assert not read(ApiKey.FETCH, 11, fetch_response(11)).throttled
    throttled_with_records = fetch_response(11, ("t", [entry(0, 9)]), throttle_time_ms=100)
    assert not read(ApiKey.FETCH, 11, throttled_with_records).throttled


def test_other_apis_have_their_errors_and_their_size() -> None:
    frame = raw.frame(bytes(4) + b"\x00\x10")  # Heartbeat v0: NOT_COORDINATOR

    assert read(ApiKey.HEARTBEAT, 0, frame) == Summary(errors=(16,), size=10)


def test_a_broker_that_lacks_the_version_of_api_versions_has_error_35() -> None:
    frame = raw.frame(bytes(4) + b"\x00\x23" + raw.array([b"\0\x12\0\0\0\x03"]))

    assert read(ApiKey.API_VERSIONS, 4, frame) == Summary(errors=(35,))


def test_what_does_not_parse_has_no_summary() -> None:
    frame = raw.frame(bytes(4) + b"\xff")
    for key in (*IN_DETAIL, ApiKey.FETCH, ApiKey.HEARTBEAT):
        assert summarize(key, 4 if key == ApiKey.FETCH else 0, 0, (frame,)) is None
