"""The little that a request in flight does by itself."""

from proxy.core.in_flight import Disposition, InFlightRequest


def test_a_new_exchange_holds_nothing() -> None:
    exchange = InFlightRequest(1, 16, b"\0\0\0\1", Disposition.WALKED)
    assert (exchange.answered, exchange.received, exchange.passed_on, exchange.attempts) == (False, 0, 0, 0)
    assert (exchange.chunks, exchange.out, exchange.held, exchange.repeat) == ([], [], 0, None)
    assert repr(exchange) == "<InFlightRequest key=1 v16 walked received=0>"


def test_letting_go_keeps_no_byte_and_leaves_what_waits() -> None:
    exchange = InFlightRequest(1, 16, b"\0\0\0\1", Disposition.EXPANDED)
    first, second = (
        InFlightRequest(3, 1, b"", Disposition.PASSED),
        InFlightRequest(3, 1, b"", Disposition.PASSED),
    )
    exchange.chunks.append(b"12345")
    exchange.held = 5
    exchange.out.append(b"waits")
    exchange.let_go()
    assert (exchange.chunks, exchange.held, exchange.out) == ([], 0, [b"waits"])
    assert first.chunks is not second.chunks
    assert first.out is not second.out
