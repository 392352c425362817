"""Responses are sent in the order of the requests, whatever the order in which they arrive."""

from proxy.core.in_flight import FORWARD, InFlight, ResponseQueue


def owing(count: int) -> tuple[ResponseQueue, list[InFlight]]:
    responses = ResponseQueue()
    exchanges = [InFlight(3, 1, bytes([0, 0, 0, number]), FORWARD) for number in range(count)]
    responses.owed.extend(exchanges)
    return responses, exchanges


def test_the_first_leaves_as_it_comes() -> None:
    responses, (first, second) = owing(2)
    assert responses.in_turn(first, [b"a"]) == [b"a"]
    assert responses.in_turn(first, [b"b", b"c"]) == [b"b", b"c"]
    assert responses.ended(first) == []
    assert responses.in_turn(second, [b"d"]) == [b"d"]
    assert responses.buffered == 0


def test_a_later_one_waits_for_those_before_it() -> None:
    responses, (first, second, third) = owing(3)
    assert responses.in_turn(third, [b"three"]) == []
    assert responses.in_turn(second, [b"tw"]) == []
    assert responses.ended(third) == []
    assert responses.buffered == 7
    assert responses.ended(first) == [b"tw"]
    assert responses.buffered == 5
    assert responses.in_turn(second, [b"o"]) == [b"o"]
    assert responses.ended(second) == [b"three"]
    assert (responses.buffered, list(responses.owed)) == (0, [])


def test_what_nobody_is_owed_goes_nowhere() -> None:
    """A response to the gateway's own request sends nothing to the client, who waits for no response."""
    responses, _ = owing(0)
    assert responses.ended(InFlight(18, 0, b"\0\0\0\1", FORWARD)) == []


def test_cleared_it_expects_owes_and_keeps_nothing() -> None:
    responses, exchanges = owing(2)
    responses.expected.extend(exchanges)
    responses.in_turn(exchanges[1], [b"waits"])
    responses.clear()
    assert not responses.expected
    assert not responses.owed
    assert responses.buffered == 0
