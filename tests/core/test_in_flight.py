"""Requests in flight: their handlers, and responses that wait until it is their turn."""

from proxy.core.in_flight import FORWARD, InFlight, ResponseQueue
from proxy.protocol.primitives import Buffer


def test_a_new_request_holds_nothing() -> None:
    request = InFlight(3, 1, b"\0\0\0\1", FORWARD)
    assert (request.answered, request.out, request.handler.buffered) == (False, None, 0)
    assert repr(request) == "<InFlight key=3 v1 <Forward>>"


def test_what_is_forwarded_is_not_kept() -> None:
    assert FORWARD.feed(b"12345", last=False) == [b"12345"]
    assert FORWARD.feed(b"6", last=True) == [b"6"]
    assert (FORWARD.buffered, FORWARD.passes(7)) == (0, True)
    assert FORWARD.fresh() is FORWARD


def owed(number: int) -> tuple[ResponseQueue, list[InFlight]]:
    queue = ResponseQueue()
    queue.owed += [InFlight(3, 1, bytes(4), FORWARD) for _ in range(number)]
    return queue, list(queue.owed)


def test_a_stage_makes_another_response_of_one_that_it_has_claimed() -> None:
    queue, (request,) = owed(1)
    claim = queue.claim(request)
    assert queue.in_turn(request, [b"12", b"345"]) == []
    assert (claim.whole, queue.buffered) == (False, 5)
    assert queue.ended(request) == []
    assert (claim.whole, claim.pieces, list(queue.owed)) == (True, [b"12", b"345"], [request])
    queue.keep(claim, [b"6"])
    assert queue.buffered == 1
    assert queue.respond(claim) == [b"6"]
    assert (queue.buffered, list(queue.owed)) == (0, [])


def test_what_follows_a_claimed_response_leaves_behind_it() -> None:
    queue, (first, second) = owed(2)
    claim = queue.claim(first)
    assert queue.in_turn(second, [b"2"]) + queue.ended(second) == []
    queue.keep(claim, [b"1"])
    assert queue.respond(claim) == [b"1", b"2"]
    assert (queue.buffered, list(queue.owed)) == (0, [])


def test_a_claimed_response_waits_for_its_turn() -> None:
    queue, (first, second) = owed(2)
    claim = queue.claim(second)
    queue.keep(claim, [b"2"])
    assert queue.respond(claim) == []
    assert queue.in_turn(first, [b"1"]) + queue.ended(first) == [b"1", b"2"]
    assert (queue.buffered, list(queue.owed)) == (0, [])


class Upper:
    """Returns the bytes of a response in capital letters, but keeps the last one."""

    def __init__(self) -> None:
        self.last = b""

    @property
    def buffered(self) -> int:
        return len(self.last)

    def feed(self, pieces: list[Buffer]) -> list[Buffer]:
        ready = self.last + b"".join(pieces).upper()
        self.last = ready[-1:]
        return [ready[:-1]]


def test_a_response_is_changed_after_a_claim_of_it_has_ended() -> None:
    """Its kept bytes count as buffered, whether it is its turn or not."""
    queue, (first, second) = owed(2)
    first.form, second.form = Upper(), Upper()
    claim = queue.claim(first)
    assert queue.in_turn(first, [b"ab"]) == []
    assert (claim.pieces, queue.buffered) == ([b"ab"], 2)
    assert queue.in_turn(second, [b"cd"]) == []
    assert queue.buffered == 4
    assert queue.ended(first) == []
    assert queue.respond(claim) == [b"A", b"C"]
    assert queue.buffered == 2
    assert queue.in_turn(second, [b"e"]) == [b"D"]


def test_the_first_leaves_as_it_comes() -> None:
    responses, (first, second) = owed(2)
    assert responses.in_turn(first, [b"a"]) == [b"a"]
    assert responses.in_turn(first, [b"b", b"c"]) == [b"b", b"c"]
    assert responses.ended(first) == []
    assert responses.in_turn(second, [b"d"]) == [b"d"]
    assert responses.buffered == 0


def test_a_later_one_waits_for_those_before_it() -> None:
    responses, (first, second, third) = owed(3)
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
    responses, _ = owed(0)
    assert responses.ended(InFlight(18, 0, b"\0\0\0\1", FORWARD)) == []


def test_cleared_it_expects_owes_and_keeps_nothing() -> None:
    responses, exchanges = owed(2)
    responses.expected.extend(exchanges)
    responses.in_turn(exchanges[1], [b"waits"])
    responses.clear()
    assert not responses.expected
    assert not responses.owed
    assert responses.buffered == 0
