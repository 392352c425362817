"""Fetch v4 to v6 over a session: requests raised to v7, and responses of v7 narrowed."""

from dataclasses import replace

import pytest
from hypothesis import given, settings

from proxy.protocol.fetch_layout import LAYOUTS
from proxy.protocol.fetch_request import build_fetch_request
from proxy.protocol.versions import raise_listing
from tests.frames import fetch, framed, parsed
from tests.model import wire
from tests.protocol.test_fetch_request import merged, requests


@pytest.mark.parametrize("version", [4, 5, 6])
def test_a_fetch_raised_to_v7_says_the_same(version: int) -> None:
    @settings(max_examples=15, deadline=None)
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
