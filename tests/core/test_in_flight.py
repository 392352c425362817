"""The little that a request in flight does by itself."""

from proxy.core.in_flight import Disposition, InFlightRequest
from proxy.protocol.received import Received


def test_a_new_request_holds_nothing() -> None:
    request = InFlightRequest(1, 16, b"\0\0\0\1", Disposition.WALKED)
    assert (request.answered, request.received, request.forwarded, request.attempts) == (False, 0, 0, 0)
    assert (request.chunks, request.out, request.buffered, request.resend) == ([], [], 0, None)
    assert repr(request) == "<InFlightRequest key=1 v16 walked received=0>"


def test_letting_go_keeps_no_byte_and_leaves_what_waits() -> None:
    request = InFlightRequest(1, 16, b"\0\0\0\1", Disposition.EXPANDED)
    first, second = (
        InFlightRequest(3, 1, b"", Disposition.PASSED),
        InFlightRequest(3, 1, b"", Disposition.PASSED),
    )
    request.chunks.append(b"12345")
    request.buffered = 5
    request.out.append(b"waits")
    request.drop_chunks()
    assert (request.chunks, request.buffered, request.out) == ([], 0, [b"waits"])
    assert first.chunks is not second.chunks
    assert first.out is not second.out


def test_letting_go_of_a_frame_to_be_expanded() -> None:
    def holding() -> InFlightRequest:
        request = InFlightRequest(1, 16, b"\0\0\0\1", Disposition.EXPANDED)
        request.received_frame = Received(b"12345")
        request.cut = 1
        return request

    request = holding()
    request.drop_chunks()
    assert (request.received_frame, request.cut) == (None, 0)
