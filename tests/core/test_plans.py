"""Plans give the same result as the parser, for fetches and responses that repeat the previous one.

A repetition is recognised by its bytes.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core.eligibility import SessionLimits
from proxy.core.events import Tally
from proxy.core.histograms import Measured, Meter
from proxy.core.plans import FetchTemplate, Plans
from proxy.protocol.fetch_request import FetchRequest
from tests.frames import VERSIONS, Want, entry, fetch, fetch_response, parsed, walked
from tests.model.wire import NodeEndpoint, node_endpoints_tag


def template(frame: bytes) -> FetchTemplate:
    known = FetchTemplate.of(parsed(frame))
    assert known is not None
    return known


def plans() -> Plans:
    measured, tally = Measured(), Tally()
    return Plans(SessionLimits(max_sessions=1), measured, tally, Meter(measured, tally))


def read(request: FetchRequest) -> dict[str, object]:
    """Return the values that the gateway reads from a fetch, but not the forgotten topics."""
    listing = request.listing
    names = ("frame", "body", "layout", "max_wait_ms", "isolation_level", "session_id", "session_epoch")
    told = {
        name: getattr(request, name) for name in (*names, "unsupported_reason", "tail", "partitions", "block")
    }
    entries = None if listing is None else (listing.keys, listing.counts, listing.entries.tobytes())
    return told | {"listing": entries}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    "wants", [[("t", 0)], [("t", 0, 5)], [("t", 9)], [("t", 2), ("t", 0, 4), ("t", 1)], [("t", 0), ("t", 1)]]
)
def test_the_same_fetch_of_other_entries(version: int, wants: list[Want]) -> None:
    known = [("t", index) for index in range(len(wants))]
    repeated = template(fetch(version, *known, correlation=1))
    for number in (2, 3):
        frame = fetch(version, *wants, correlation=number, values={"partition_max_bytes": number})
        again = repeated.read(frame)
        assert again is not None
        assert read(again) == read(parsed(frame))


@pytest.mark.parametrize(
    "other",
    [
        fetch(17, ("t", 0)),
        fetch(16, ("t", 0), session=(0, 0)),
        fetch(16, ("t", 0), client="d"),
        fetch(16, ("t", 0), max_wait_ms=1),
        fetch(16, ("t", 0), isolation_level=1),
        fetch(16, ("u", 0)),
        fetch(16, ("t", 0), ("t", 1)),
        fetch(16, ("t", 0), rack_id="r"),
    ],
)
def test_any_other_fetch_is_another(other: bytes) -> None:
    assert template(fetch(16, ("t", 0))).read(other) is None


small = st.integers(0, 2)
fetches = st.builds(
    lambda version, wants, max_wait_ms, rack: fetch(
        version,
        *wants,
        max_wait_ms=max_wait_ms,
        **({"rack_id": rack} if version >= 11 else {}),
    ),
    st.sampled_from([7, 11, 12, 13, 16]),
    st.lists(st.tuples(st.sampled_from("tu"), small, small), max_size=3),
    st.integers(1, 2),
    st.sampled_from(["", "r"]),
)


@given(fetches, fetches, st.integers(0, 400), st.integers(0, 255))
def test_what_is_known_reads_as_it_would_be_parsed(first: bytes, second: bytes, at: int, byte: int) -> None:
    for frame in (first, second):
        repeated = FetchTemplate.of(parsed(frame))
        if repeated is not None and 12 <= at < len(frame):
            spoilt = frame[:at] + bytes([byte]) + frame[at + 1 :]
            again = repeated.read(spoilt)
            assert again is None or read(again) == read(parsed(spoilt))
    repeated = FetchTemplate.of(parsed(first))
    again = repeated.read(second) if repeated is not None else None
    assert again is None or read(again) == read(parsed(second))


def test_entries_with_tags_are_not_known() -> None:
    frame = fetch(16, ("t", 0))
    known = template(frame)
    block = parsed(frame).block
    assert block is not None
    last = block[1] - 1
    assert known.read(frame) is not None
    assert known.read(frame[:last] + b"\x01" + frame[last + 1 :]) is None


@pytest.mark.parametrize(
    "frame",
    [
        fetch(16),
        fetch(16, ("t", 0), ("u", 0)),
        fetch(16, *((f"t{number:02}", 0) for number in range(9))),
        fetch(16, ("t", 0), forget=[("t", 1)]),
    ],
)
def test_a_fetch_whose_entries_are_in_no_one_place_has_no_template(frame: bytes) -> None:
    assert FetchTemplate.of(parsed(frame)) is None


def test_nothing_is_known_at_first() -> None:
    assert plans().response(fetch_response(16, ("t", [entry(0, 5)])), 16) == -1
    assert plans().empty(fetch_response(16)) is None


def test_an_empty_response_is_walked_once() -> None:
    repeated = plans()
    frame = fetch_response(16, session_id=7)
    walk = walked(frame, 16)
    repeated.learn_empty(frame, walk)
    assert repeated.empty(fetch_response(16, session_id=7, correlation_id=9)) is walk
    assert repeated.empty(fetch_response(16, session_id=8)) is None
    assert repeated.empty(fetch_response(16, session_id=7, throttle_time_ms=1)) is None


@pytest.mark.parametrize(
    "frame",
    [
        fetch_response(16, ("t", [entry(0, 5)]), session_id=7),
        fetch_response(16, error_code=70),
        fetch_response(16, session_id=7)[:-1],
    ],
)
def test_a_response_that_says_something_is_no_empty_one(frame: bytes) -> None:
    repeated = plans()
    repeated.learn_empty(frame, walked(frame, 16))
    assert repeated.empty(frame) is None


def answered(frame: bytes, version: int = 16) -> Plans:
    repeated = plans()
    repeated.learn_response(None, frame, version, walked(frame, version))
    return repeated


def test_the_same_response_with_another_correlation_id() -> None:
    repeated = answered(fetch_response(16, ("t", [entry(0, 5), entry(1, error=3)])))
    assert (
        repeated.response(fetch_response(16, ("t", [entry(0, 5), entry(1, error=3)]), correlation_id=9), 16)
        == 2
    )
    assert repeated.response(fetch_response(16, ("t", [entry(0, 6), entry(1, error=3)])), 16) == -1
    assert repeated.response(fetch_response(16, ("t", [entry(0, 5), entry(1, error=3)])), 17) == -1


@pytest.mark.parametrize(
    "frame",
    [
        fetch_response(16, ("t", [entry(0, 5, records=b"r")])),
        fetch_response(16, ("t", [entry(0, 5)]), session_id=7),
        fetch_response(16, error_code=70),
        fetch_response(
            16, ("t", [entry(0, 5)]), tags=(node_endpoints_tag([NodeEndpoint(node_id=1, host="b", port=1)]),)
        ),
        fetch_response(16, ("t", [entry(index, 5) for index in range(20)])),
    ],
)
def test_what_must_be_looked_at_each_time_is_not_kept(frame: bytes) -> None:
    assert answered(frame).response(frame, 16) == -1
