"""Law 6 in bytes: how much a connection may lose with sessions, and how long it uses none after a loss."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from proxy.core.savings import (
    CREDIT_EXCHANGES,
    FIRST_WAIT,
    LONGEST_WAIT,
    PLAIN_PER_LOST,
    Savings,
    SessionForm,
)
from proxy.protocol.fetch_layout import LAYOUTS
from proxy.protocol.fetch_request import FetchRequest, Listing
from proxy.session.decision import Delta
from proxy.session.handler import FetchSessionHandler
from tests.frames import Want, fetch, parsed

FEW: list[Want] = [("t", index) for index in range(4)]
MANY: list[Want] = [("t", index) for index in range(100)]


def asked(savings: Savings, wants: list[Want], version: int = 16) -> bool:
    """Return whether the first fetch of a connection requests a session."""
    request = parsed(fetch(version, *wants))
    assert request.listing is not None
    return savings.promises(request, request.listing, None)


def full_exchange(wants: list[Want], version: int = 16) -> int:
    """Return the number of bytes of a full fetch and its response, without records."""
    request = parsed(fetch(version, *wants))
    return len(request.frame) + len(wants) * request.layout.response_entry


def changed(before: list[Want], now: list[Want], version: int = 16) -> tuple[Listing, Delta]:
    """Return the new list, and how it differs from the session's list."""
    handler = FetchSessionHandler()
    first, second = parsed(fetch(version, *before)).listing, parsed(fetch(version, *now)).listing
    assert first is not None
    assert second is not None
    assert handler.learn_listing(first, 0)
    delta = handler.compare(second)
    assert delta is not None
    return second, delta


def weighed(savings: Savings, before: list[Want], now: list[Want], size: int) -> SessionForm:
    listing, delta = changed(before, now)
    return savings.weigh(parsed(fetch(16, *now)), listing, delta, size)


def test_a_long_list_gets_a_session_at_once() -> None:
    assert asked(Savings(), MANY)
    assert asked(Savings(), MANY, 4)


def test_a_short_list_gets_it_when_its_close_is_little_of_what_fetches_have_cost() -> None:
    savings = Savings()
    assert not asked(savings, FEW[:2])
    savings.passed(1000, 0)
    assert asked(savings, FEW[:2])


@given(news=st.integers(0, 5), less=st.integers(-300, 300))
def test_a_delta_of_the_same_partitions_is_sent_if_it_loses_no_bytes(news: int, less: int) -> None:
    savings = Savings()
    for _ in range(4):
        savings.answered(1, news)
    layout, size = LAYOUTS[16], len(fetch(16, *FEW)) - less
    saves = savings.gain(less, len(FEW), 0, layout, layout) >= 0
    assert (weighed(savings, FEW, FEW, size) is SessionForm.DELTA) == saves


def test_what_saves_goes_on() -> None:
    savings = Savings()
    assert asked(savings, MANY)
    assert not any(savings.answered(100, 1) for _ in range(50))
    assert not savings.paused


def test_what_was_lost_rests_until_many_times_as_much_has_passed() -> None:
    savings = Savings()
    asked(savings, MANY)
    credit = CREDIT_EXCHANGES * full_exchange(MANY)
    assert not savings.add(-credit)
    assert savings.add(-10)
    assert savings.paused
    savings.passed(10 * PLAIN_PER_LOST - 1, 0)
    assert savings.paused
    savings.passed(1, 0)
    assert not savings.paused


def test_a_rest_begins_once_and_gets_longer_by_what_is_lost_meanwhile() -> None:
    """A pause without sessions begins only once. A loss during the pause makes the pause longer.

    The loss comes from a session that is closed, or from a fetch that was still outstanding.
    """
    savings = Savings()
    assert [savings.add(-10), savings.add(-10)] == [True, False]
    savings.passed(20 * PLAIN_PER_LOST, 0)
    assert not savings.paused


def test_an_hour_of_savings_buys_no_dear_minute() -> None:
    """Large savings do not allow large losses later. Over any minute, the cost must stay below that of plain
    fetches, except for a fixed credit.
    """
    savings = Savings()
    asked(savings, MANY)
    savings.add(1_000_000)
    assert savings.add(-CREDIT_EXCHANGES * full_exchange(MANY) - 1)


@given(st.lists(st.integers(-5000, 5000), max_size=80), st.integers(1, 5000))
def test_over_any_stretch_no_more_is_lost_than_the_credit_and_one_exchange(
    steps: list[int], plain: int
) -> None:
    """Over any span of time, the loss is at most the credit and one exchange.

    In addition, one byte may be lost for every `PLAIN_PER_LOST` bytes that passed without a session. The cost
    of a response is known only when it comes, so the last exchange may exceed the credit.
    """
    savings = Savings()
    asked(savings, FEW)
    asked(savings, FEW)
    most = CREDIT_EXCHANGES * full_exchange(FEW) + 5000
    dearest = least = 0.0
    over = 0.0
    for saved in steps:
        if savings.paused:
            savings.passed(plain, 0)
            over -= plain / PLAIN_PER_LOST
        else:
            savings.add(saved)
            over -= saved
        dearest = max(dearest, over - least)
        least = min(least, over)
    assert dearest <= most


def test_a_session_that_did_not_pay_is_followed_by_waits_each_twice_as_long() -> None:
    savings, (request, listing, delta) = Savings(), _again(MANY)
    waits = []
    for _ in range(10):
        savings.closed(0)
        waited = 0
        while not (savings.promises(request, listing, None) or savings.promises(request, listing, delta)):
            waited += 2
        waits.append(waited)
        savings.failed()
    assert waits[0] == 0
    assert waits[1] >= FIRST_WAIT
    assert all(2 * one <= other + 2 for one, other in pairwise(waits[1:8]))
    assert waits[-1] <= LONGEST_WAIT + 4


def _again(wants: list[Want]) -> tuple[FetchRequest, Listing, Delta]:
    listing, delta = changed(wants, wants)
    return parsed(fetch(16, *wants)), listing, delta


def test_a_session_that_has_paid_is_made_again_at_once() -> None:
    savings = Savings()
    assert asked(savings, MANY)
    savings.failed()
    assert not asked(savings, MANY)
    savings.answered(full_exchange(MANY), 0)
    savings.failed()
    assert asked(savings, MANY)


def test_a_delta_that_gains_nothing_but_keeps_the_session_goes() -> None:
    savings = Savings()
    assert asked(savings, MANY)
    moved: list[Want] = [("t", index, 7) for index in range(100)]
    assert weighed(savings, MANY, moved, len(fetch(16, *moved))) is SessionForm.DELTA


def test_a_list_of_two_is_sent_as_it_came_until_it_seems_to_stay() -> None:
    savings = Savings()
    assert asked(savings, MANY)
    size = len(fetch(16, *MANY[:2], forget=[("t", index) for index in range(2, 100)]))
    forms = [weighed(savings, MANY, MANY[:2], size)]
    while forms[-1] is SessionForm.FORWARD:
        savings.passed(full_exchange(MANY[:2]), 0)
        forms.append(weighed(savings, MANY, MANY[:2], size))
    assert 3 < len(forms) < 30
    assert forms[-1] is SessionForm.RENEW


def test_it_says_what_it_is() -> None:
    assert repr(Savings()) == "<Savings credit=0 pause=0 regret=0>"
