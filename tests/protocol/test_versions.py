"""Tests of Fetch v4 to v6 in a session: requests are raised to v7, and responses of v7 are converted back."""

from dataclasses import replace

import pytest
from hypothesis import given

from proxy.protocol.fetch_layout import LAYOUTS, session_layout
from proxy.protocol.fetch_request import build_fetch_request
from proxy.protocol.fetch_response import Received
from proxy.protocol.versions import narrow_entries, narrow_entry, raise_listing
from tests.examples import examples
from tests.frames import entry, fetch, fetch_response, framed, parsed, walked
from tests.model import wire
from tests.protocol.test_fetch_request import merged, requests


@pytest.mark.parametrize("version", [4, 5, 6])
def test_a_fetch_raised_to_v7_says_the_same(version: int) -> None:
    """Trap 4: a fetch of v4 to v6 keeps all its values when it is raised to v7."""

    @examples(15)
    @given(requests(version))
    def check(request: wire.FetchRequest) -> None:
        view = parsed(framed(wire.encode_request(request)))
        assert view.listing is not None
        listing = raise_listing(view.listing)
        frame = build_fetch_request(view, LAYOUTS[7], (5, 6), listing.topics())
        expected = replace(merged(request), version=7, session_id=5, session_epoch=6)
        assert frame == framed(wire.encode_request(expected))

    check()


@pytest.mark.parametrize("version", [7, 11, 13])
def test_a_fetch_of_v7_or_later_is_not_raised(version: int) -> None:
    listing = parsed(fetch(version, ("t", 0))).listing

    assert listing is not None
    assert raise_listing(listing) is listing


@pytest.mark.parametrize(("version", "spoken"), [(4, 7), (6, 7), (7, 7), (18, 18)])
def test_a_session_is_spoken_at_v7_or_later(version: int, spoken: int) -> None:
    assert session_layout(version) is LAYOUTS[spoken]


@pytest.mark.parametrize("version", [4, 5, 6, 7, 12, 18])
@pytest.mark.parametrize("error", [0, 6, 56])
@pytest.mark.parametrize("chunk", [5, 1000])
def test_an_entry_is_narrowed_to_the_clients_version(version: int, error: int, chunk: int) -> None:
    """Case 74: a response's entry is converted to the client's version.

    Up to v5, error 56 becomes error 6. In v4, the field log_start_offset is removed.
    """
    spoken = max(version, 7)
    frame = fetch_response(spoken, ("t", [entry(3, 9, error=error, records=b"records")]))
    told = 6 if error == 56 and version <= 5 else error
    direct = fetch_response(version, ("t", [entry(3, 9, error=told, records=b"records")]))
    (sent,) = walked(frame, spoken).entries
    (expected,) = walked(direct, version).entries
    received = Received(*(frame[at : at + chunk] for at in range(0, len(frame), chunk)))

    assert b"".join(narrow_entry(received, sent, version)) == direct[expected.start : expected.end]


@pytest.mark.parametrize("version", [4, 5, 6])
def test_entries_are_narrowed_to_the_clients_version(version: int) -> None:
    elements = ("t", [entry(number, number, log_start_offset=7) for number in range(5)])
    (sent,) = walked(fetch_response(7, elements), 7).runs
    (expected,) = walked(fetch_response(version, elements), version).runs

    assert narrow_entries(sent.entries, LAYOUTS[version]).tobytes() == expected.entries.tobytes()
