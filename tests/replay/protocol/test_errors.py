"""Error codes are found in the responses of every API at every version. kio's classes are the reference."""

import dataclasses
import io
import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode
from kio.serial import entity_writer

from proxy.protocol.api import ApiKey, response_header
from replay.protocol.errors import SCHEMAS, Errors, error_name, read_errors
from tests.replay.protocol.kio_entities import classes, made
from tools.kafka import raw

RESPONSES = classes("response")


def _codes(message: Any, depth: int = 0) -> Iterator[tuple[int, int]]:
    for field in (each for each in dataclasses.fields(message) if "tag" not in each.metadata):
        value = getattr(message, field.name)
        if field.name.endswith("error_code"):
            yield depth, value.value if isinstance(value, ErrorCode) else value
        for each in value if isinstance(value, tuple) else (value,):
            if dataclasses.is_dataclass(each):
                yield from _codes(each, depth + 1)


def _frame(key: int, version: int, message: Any) -> bytes:
    out = io.BytesIO()
    entity_writer(type(message))(out, message)
    head = bytes(4)
    with_tags = head + b"\0"
    tags = b"\0" if response_header(raw.frame(with_tags), 4, key, version)[1] == 9 else b""
    return raw.frame(head + tags + out.getvalue())


@pytest.mark.parametrize(
    ("key", "version"), sorted(each for each in RESPONSES if each[0] in SCHEMAS), ids=str
)
def test_every_error_code_of_a_response_is_found(key: int, version: int) -> None:
    message = made(RESPONSES[key, version], itertools.count(1))
    expected = [*_codes(message)]

    assert read_errors(key, version, [_frame(key, version, message)]) == Errors(
        tuple(code for depth, code in expected if not depth), tuple(code for depth, code in expected if depth)
    )


def test_no_api_with_error_codes_is_left_out() -> None:
    """Every API whose responses have error codes is in `SCHEMAS`, if clients use it.

    Fetch is an exception: it has its own reader. APIs between brokers and controllers are not in `SCHEMAS`.
    """
    with_codes = {key for (key, _), cls in RESPONSES.items() if any(_codes(made(cls, itertools.cycle([1]))))}
    among_brokers = {"ENVELOPE", "VOTE", "BEGIN_QUORUM_EPOCH", "END_QUORUM_EPOCH", "FETCH_SNAPSHOT"} | {
        *("ALTER_PARTITION", "BROKER_REGISTRATION", "BROKER_HEARTBEAT", "CONTROLLER_REGISTRATION"),
        *("ALLOCATE_PRODUCER_IDS", "ASSIGN_REPLICAS_TO_DIRS", "UPDATE_RAFT_VOTER"),
    }

    left_out = with_codes - SCHEMAS.keys()
    assert {ApiKey(key).name for key in left_out} == {"FETCH"} | among_brokers


@pytest.mark.parametrize(
    ("key", "version", "body", "found"),
    [
        # ListOffsets v0: an array of offsets instead of a timestamp and an offset.
        (
            ApiKey.LIST_OFFSETS,
            0,
            raw.array([raw.string("t") + raw.array([bytes(4) + b"\0\3" + raw.array([bytes(8)])] * 2)]),
            Errors((), (3, 3)),
        ),
        # Produce v0 has no throttle_time_ms, and no more than an offset for each partition.
        (
            ApiKey.PRODUCE,
            0,
            raw.array([raw.string("t") + raw.array([bytes(4) + b"\0\6" + bytes(8)])]),
            Errors((), (6,)),
        ),
        (ApiKey.OFFSET_FETCH, 2, raw.array([]) + b"\0\x10", Errors((16,), ())),
        (ApiKey.HEARTBEAT, 0, b"\0\x19", Errors((25,), ())),
        # KIP-511: v0, with error 35, is the response to every version that a broker does not have.
        (ApiKey.API_VERSIONS, 4, b"\0\x23" + raw.array([]), Errors((35,), ())),
    ],
)
def test_old_responses_are_read(key: int, version: int, body: bytes, found: Errors) -> None:
    assert read_errors(key, version, [raw.frame(bytes(4) + body)]) == found


def test_a_response_that_ends_early_is_not_read() -> None:
    assert read_errors(ApiKey.HEARTBEAT, 1, [raw.frame(bytes(4) + bytes(4) + b"\0")]) is None
    assert read_errors(ApiKey.PRODUCE, 3, [raw.frame(bytes(4) + raw.array([b"\0\5t"]))]) is None


@given(st.sampled_from(sorted(SCHEMAS)), st.integers(0, 14), st.binary(max_size=80))
def test_any_bytes_are_errors_or_unreadable(key: int, version: int, body: bytes) -> None:
    found = read_errors(key, version, [raw.frame(bytes(4) + body)])

    assert found is None or len(found.whole) + len(found.entries) <= len(body) // 2


def test_a_key_that_is_not_known_has_no_errors() -> None:
    assert read_errors(1234, 0, [raw.frame(bytes(4) + b"\0\1")]) == Errors()


def test_errors_have_kafkas_names() -> None:
    assert [error_name(each.value) for each in ErrorCode] == [
        f"{each.value} {each.name.upper()}" for each in ErrorCode
    ]
    assert (error_name(-2), error_name(4711)) == ("-2", "4711")
