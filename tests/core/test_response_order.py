"""The order in which answers leave, whatever the order in which they are had."""

from proxy.core.in_flight import Answers, Becomes, Exchange


def owing(count: int) -> tuple[Answers, list[Exchange]]:
    answers = Answers()
    exchanges = [Exchange(3, 1, bytes([0, 0, 0, number]), Becomes.PASSED) for number in range(count)]
    answers.owed.extend(exchanges)
    return answers, exchanges


def test_the_first_leaves_as_it_comes() -> None:
    answers, (first, second) = owing(2)
    assert answers.in_turn(first, [b"a"]) == [b"a"]
    assert answers.in_turn(first, [b"b", b"c"]) == [b"b", b"c"]
    assert answers.ended(first) == []
    assert answers.in_turn(second, [b"d"]) == [b"d"]
    assert answers.held == 0


def test_a_later_one_waits_for_those_before_it() -> None:
    answers, (first, second, third) = owing(3)
    assert answers.in_turn(third, [b"three"]) == []
    assert answers.in_turn(second, [b"tw"]) == []
    assert answers.ended(third) == []
    assert answers.held == 7
    assert answers.ended(first) == [b"tw"]
    assert answers.held == 5
    assert answers.in_turn(second, [b"o"]) == [b"o"]
    assert answers.ended(second) == [b"three"]
    assert (answers.held, list(answers.owed)) == (0, [])


def test_what_nobody_is_owed_goes_nowhere() -> None:
    """An answer to the gateway itself may even come when the client is owed nothing."""
    answers, _ = owing(0)
    assert answers.ended(Exchange(18, 0, b"\0\0\0\1", Becomes.OURS)) == []


def test_cleared_it_expects_owes_and_keeps_nothing() -> None:
    answers, exchanges = owing(2)
    answers.expected.extend(exchanges)
    answers.in_turn(exchanges[1], [b"waits"])
    answers.clear()
    assert not answers.expected
    assert not answers.owed
    assert answers.held == 0
