"""A captured response: its contents, the places of its bytes, and its v7 form."""

import numpy as np
import pytest

from proxy.protocol.fetch_layout import LAYOUTS
from proxy.protocol.fetch_request import Listing
from proxy.protocol.primitives import Buffer, ProtocolError
from replay.capture.kafka.exchange import CUT
from replay.simulate.captured_response import CapturedResponse, joined
from tests.frames import VERSIONS, entry, fetch_response, topic_id
from tests.model import wire

RECORDS = bytes(90)
NEWS = [
    ("t", [entry(0, 5), entry(1, 9, records=RECORDS), entry(2, error=3, records=None), entry(3, 7)]),
    ("u", [entry(partition, 1) for partition in range(20)]),
]


def captured(version: int, isolation_level: int = 0) -> CapturedResponse:
    return CapturedResponse([fetch_response(version, *NEWS)], version, isolation_level)


@pytest.mark.parametrize("version", VERSIONS)
def test_entries_with_news_and_those_without_are_told_apart(version: int) -> None:
    response = captured(version)
    quiet = {
        key: [int.from_bytes(item.tobytes()[:4]) for item in items] for key, items in response.empty_entries
    }
    t, u = (topic_id(name) if version >= 13 else name.encode() for name in "tu")

    assert [(each.key, each.partition, each.records, each.error_code) for each in response.other_entries] == [
        (t, 1, 90, 0),
        (t, 2, 0, 3),
    ]
    assert quiet == {t: [0, 3], u: [*range(20)]}
    assert response.empty_entry_bytes == 22 * response.layout.response_entry
    assert response.entry_bytes == sum(each.end - each.start for each in response.other_entries) - 90


def listing(version: int, *topics: tuple[str, list[int]]) -> Listing:
    layout = LAYOUTS[version]
    entries = np.zeros(sum(len(numbers) for _, numbers in topics), layout.request_item)
    entries.view(layout.request_fields)["partition"] = [number for _, numbers in topics for number in numbers]
    keys = [topic_id(name) if version >= 13 else name.encode() for name, _ in topics]
    return Listing(layout, keys, [len(numbers) for _, numbers in topics], entries)


@pytest.mark.parametrize("version", VERSIONS)
def test_all_entries_are_had_in_the_order_of_the_response(version: int) -> None:
    response = captured(version)
    fields = response.entries.view(response.layout.response_fields)

    assert fields["partition"].tolist() == [*range(4), *range(20)]
    assert fields["high_watermark"].tolist() == [5, 9, -1, 7, *[1] * 20]
    assert [*response.placed_entries] == [*zip([1, 2], response.other_entries, strict=True)]
    assert response.errors


@pytest.mark.parametrize("version", VERSIONS)
def test_it_lists_what_its_fetch_lists(version: int) -> None:
    response, quiet = captured(version), [*range(20)]

    assert response.lists(listing(version, ("t", [0, 1, 2, 3]), ("u", quiet)))
    for other in (
        [("t", [0, 1, 3, 2]), ("u", quiet)],
        [("t", [0, 1, 2]), ("u", quiet)],
        [("t", [0, 1, 2, 3]), ("v", quiet)],
        [("u", quiet), ("t", [0, 1, 2, 3])],
        [("t", [0, 1, 2, 3])],
    ):
        assert not response.lists(listing(version, *other))


@pytest.mark.parametrize("version", VERSIONS)
def test_its_parts_are_the_frames_own_bytes(version: int) -> None:
    frame = fetch_response(version, *NEWS, correlation_id=77)
    response = CapturedResponse([frame], version, 0)

    assert (response.size, response.cut) == (len(frame), False)
    assert response.correlation_id == (77).to_bytes(4)
    assert b"".join(response.tags) == (b"\0" if version >= 12 else b"")
    assert b"".join(response.part(3, len(frame) - 2)) == frame[3:-2]


@pytest.mark.parametrize("version", range(7, 19))
def test_a_session_can_be_put_in(version: int) -> None:
    found = wire.decode_response(b"".join(captured(version).with_session(9))[4:], version)

    assert found == wire.decode_response(fetch_response(version, *NEWS, session_id=9)[4:], version)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("isolation_level", [0, 1])
def test_at_v7_it_says_the_same(version: int, isolation_level: int) -> None:
    aborted = (wire.AbortedTransaction(producer_id=1, first_offset=2),) if isolation_level else None
    failed = entry(2, error=3, log_start_offset=0)  # v4 has no such field, and 0 stands for it
    data = [entry(0, 5, aborted=aborted, records=RECORDS), entry(1, 9), failed]
    response = CapturedResponse([fetch_response(version, ("t", data), ("u", []))], version, isolation_level)

    if version >= 7:
        assert response.as_v7 is response
        return
    raised = b"".join(response.as_v7.pieces)
    assert wire.decode_response(raised[4:], 7) == wire.decode_response(
        fetch_response(7, ("t", data), ("u", []))[4:], 7
    )
    assert response.as_v7.walk.record_bytes == 90


def test_contents_of_records_may_be_cut() -> None:
    size = len(CUT) + 10_000
    frame = fetch_response(11, ("t", [entry(0, 5, records=bytes(size)), entry(1, 9)]))
    start = frame.index(size.to_bytes(4)) + 4
    pieces: list[Buffer] = [frame[:20], memoryview(frame)[20:start], CUT, CUT[:10_000], frame[start + size :]]

    response = CapturedResponse(pieces, 11, 0)

    assert response.cut
    assert response.size == len(frame)
    assert [len(piece) for piece in response.pieces] == [start, len(CUT), 10_000, len(frame) - start - size]
    assert [each.records for each in response.other_entries] == [size]
    assert sum(map(len, response.part(0, len(frame)))) == len(frame)


def test_a_frame_in_pieces_becomes_one() -> None:
    assert joined([b"ab", memoryview(b"cd"), b""]) == [b"abcd"]
    whole = b"whole"
    assert joined([whole])[0] is whole
    assert joined([memoryview(b"whole")]) == [b"whole"]


@pytest.mark.parametrize("version", VERSIONS)
def test_what_is_no_response_is_refused(version: int) -> None:
    frame = fetch_response(version, *NEWS)
    for wrong in (frame[:-1], frame + b"\0", frame[:30]):
        with pytest.raises(ProtocolError):
            CapturedResponse([wrong], version, 0)
