"""The little that an exchange does by itself."""

from proxy.core.in_flight import Becomes, Exchange


def test_a_new_exchange_holds_nothing() -> None:
    exchange = Exchange(1, 16, b"\0\0\0\1", Becomes.WALKED)
    assert (exchange.answered, exchange.received, exchange.passed_on, exchange.attempts) == (False, 0, 0, 0)
    assert (exchange.chunks, exchange.out, exchange.held, exchange.repeat) == ([], [], 0, None)
    assert repr(exchange) == "<Exchange key=1 v16 walked received=0>"


def test_letting_go_keeps_no_byte_and_leaves_what_waits() -> None:
    exchange = Exchange(1, 16, b"\0\0\0\1", Becomes.EXPANDED)
    first, second = Exchange(3, 1, b"", Becomes.PASSED), Exchange(3, 1, b"", Becomes.PASSED)
    exchange.chunks.append(b"12345")
    exchange.held = 5
    exchange.out.append(b"waits")
    exchange.let_go()
    assert (exchange.chunks, exchange.held, exchange.out) == ([], 0, [b"waits"])
    assert first.chunks is not second.chunks
    assert first.out is not second.out
