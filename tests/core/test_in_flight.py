"""The little that a request in flight does by itself, and the handlers that keep a response."""

from proxy.core.fetch_in_flight import Kept, Walked
from proxy.core.in_flight import FORWARD, InFlight


def test_a_new_request_holds_nothing() -> None:
    request = InFlight(3, 1, b"\0\0\0\1", FORWARD)
    assert (request.answered, request.out, request.handler.buffered) == (False, None, 0)
    assert repr(request) == "<InFlight key=3 v1 <Forward>>"


def test_what_is_forwarded_is_not_kept() -> None:
    assert FORWARD.feed(b"12345", last=False) == [b"12345"]
    assert FORWARD.feed(b"6", last=True) == [b"6"]
    assert (FORWARD.buffered, FORWARD.passing(7)) == (0, 6)
    assert FORWARD.fresh() is FORWARD


def test_letting_go_keeps_no_byte() -> None:
    response = Walked()
    response.chunks.append(b"12345")
    response.buffered = 5
    response.drop()
    assert (response.chunks, response.buffered) == ([], 0)


def test_letting_go_of_a_frame_to_be_expanded() -> None:
    response = Kept()
    response.keep(b"123")
    response.keep(b"45")
    assert (response.buffered, response.frame is None) == (5, False)
    response.drop()
    assert (response.buffered, response.frame) == (0, None)
