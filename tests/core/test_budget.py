from proxy.core.budget import STALL_SECONDS, Budget, RequestBudget


class Holder:
    def __init__(self, budget: Budget, name: str) -> None:
        self.name = name
        self.buffered_changed_at = 0.0
        self.can_go_on = True
        self.waits = False
        self.held = 0
        self._budget = budget

    def __repr__(self) -> str:
        return self.name

    def wait_for_budget(self, waits: bool) -> None:
        assert waits is not self.waits, "told twice"
        self.waits = waits

    def report_buffered(self) -> None:
        pass

    def holds(self, held: int, *, may_wait: bool = True) -> None:
        self.held = held
        self._budget.update(self, held, may_wait=may_wait)


def _three(limit: int = 100) -> tuple[Budget, Holder, Holder, Holder]:
    budget = Budget(limit)
    return budget, Holder(budget, "a"), Holder(budget, "b"), Holder(budget, "c")


def _one_that_is_not_read() -> tuple[Budget, Holder, Holder, Holder]:
    """Return a budget that a response uses up whose client does not read, and two that wait."""
    budget, a, b, c = _three()
    a.can_go_on = False
    a.holds(200)
    b.holds(10)
    c.holds(10)
    return budget, a, b, c


def test_below_the_limit_nobody_waits() -> None:
    budget, a, b, c = _three()
    a.holds(50)
    b.holds(50)

    assert budget.total == 100
    assert not budget.over
    assert [a.waits, b.waits, c.waits] == [False, False, False]


def test_over_the_limit_the_longest_holder_goes_on_and_the_others_wait() -> None:
    budget, a, b, c = _three()
    a.holds(10)
    b.holds(80)
    c.holds(20)

    assert budget.over
    assert [a.waits, b.waits, c.waits] == [False, True, True]


def test_the_next_goes_on_when_the_first_is_through() -> None:
    budget, a, b, c = _three()
    a.holds(10)
    b.holds(100)
    c.holds(20)
    a.holds(0)

    assert budget.total == 120
    assert [a.waits, b.waits, c.waits] == [False, False, True]


def test_all_go_on_when_enough_is_free() -> None:
    budget, a, b, c = _three()
    a.holds(90)
    b.holds(10)
    c.holds(10)
    assert b.waits
    assert c.waits

    a.holds(0)

    assert (budget.total, budget.waiting) == (20, 0)
    assert [a.waits, b.waits, c.waits] == [False, False, False]


def test_a_holder_whose_client_does_not_read_is_not_the_one_that_goes_on() -> None:
    budget, a, b, c = _three()
    a.can_go_on = False
    a.holds(90)
    b.holds(20)
    c.holds(10)

    assert budget.waiting == 1
    assert [a.waits, b.waits, c.waits] == [False, False, True]

    a.can_go_on = True
    budget.settle()

    assert [a.waits, b.waits, c.waits] == [False, True, True]


def test_responses_that_lie_until_the_limit_let_no_other_be_completed() -> None:
    """While a large response waits for a client that does not read, all other large responses wait, too.

    Otherwise clients that do not read would fill the memory.
    """
    budget, a, b, c = _one_that_is_not_read()

    assert budget.waiting == 2
    assert [a.waits, b.waits, c.waits] == [False, True, True]

    a.holds(0)

    assert [b.waits, c.waits] == [False, False]


def test_one_that_lies_still_while_others_wait_is_named() -> None:
    budget, a, b, c = _one_that_is_not_read()
    b.buffered_changed_at = c.buffered_changed_at = 5.0

    assert budget.stalled(STALL_SECONDS - 0.1) is None
    assert budget.stalled(STALL_SECONDS) is a
    assert repr(budget) == "<Budget 220 of 100, 3 hold, 2 wait>"


def test_nobody_is_named_while_nobody_waits() -> None:
    budget, a, _, _ = _three()
    a.holds(100)

    assert budget.stalled(1e9) is None


def test_a_waiting_holder_is_not_the_one_to_give_up() -> None:
    budget, a, b, _ = _three()
    a.holds(100)
    b.holds(10)
    a.buffered_changed_at = STALL_SECONDS

    assert budget.stalled(STALL_SECONDS) is None


def test_what_is_small_never_waits_and_counts() -> None:
    """A small response, such as Metadata, is forwarded while a client does not read a large one."""
    budget, a, b, c = _three()
    a.can_go_on = False
    a.holds(200)
    b.holds(10, may_wait=False)
    c.holds(10)

    assert budget.total == 220
    assert [a.waits, b.waits, c.waits] == [False, False, True]


def test_the_time_of_one_that_waited_begins_when_it_goes_on() -> None:
    """The time limit of a response that waited for memory starts when it no longer waits.

    Before the fix, the gateway closed the connection of this response instead of the connection that delayed
    it.
    """
    budget, a, b, _ = _three()
    a.can_go_on = False
    a.holds(200)
    b.holds(60)
    assert (a.waits, b.waits) == (False, True)
    now = STALL_SECONDS + 8
    a.buffered_changed_at = now  # it reads, slowly, and is at 90 now

    def reports() -> None:
        a.holds(90)

    a.report_buffered = reports  # type: ignore[method-assign]
    assert budget.stalled(now) is None
    assert (a.waits, b.waits) == (False, False)
    assert budget.stalled(now + STALL_SECONDS - 0.1) is None
    a.buffered_changed_at = now + STALL_SECONDS
    assert budget.stalled(now + STALL_SECONDS) is b  # its broker has sent nothing since


def test_one_that_went_on_between_two_looks_has_its_time_too() -> None:
    budget, a, b, c = _three()
    a.holds(80)
    b.holds(80)
    c.holds(10)
    a.holds(0)
    c.buffered_changed_at = 1e3
    assert [b.waits, c.waits] == [False, False]
    c.holds(30)

    assert c.waits
    assert budget.stalled(1e3) is None
    assert budget.stalled(1e3 + STALL_SECONDS) is b


def test_the_one_that_holds_most_goes_first_until_there_is_room() -> None:
    budget, a, b, c = _three(1000)
    for each, held in ((a, 400), (b, 800), (c, 300)):
        each.can_go_on = False
        each.holds(held, may_wait=False)

    assert budget.stalled(STALL_SECONDS) is b
    b.holds(0)
    assert budget.stalled(STALL_SECONDS) is None


def test_slow_clients_that_read_are_not_closed_and_let_one_go_on() -> None:
    budget, a, b, c = _one_that_is_not_read()
    assert [b.waits, c.waits] == [True, True]

    for now in range(0, 200, 5):
        a.buffered_changed_at = now
        b.buffered_changed_at = now
        assert budget.stalled(now) is None
    assert [a.waits, b.waits, c.waits] == [False, False, True]

    assert budget.stalled(195 + STALL_SECONDS) is a
    assert [b.waits, c.waits] == [True, True]


# Requests that are not whole


def test_what_is_collected_has_a_limit_of_its_own() -> None:
    request_budget = RequestBudget(100)
    assert request_budget.reserve(60)
    assert not request_budget.reserve(41)
    assert request_budget.total == 60
    assert request_budget.reserve(40)
    request_budget.release(60)
    assert request_budget.reserve(60)
    assert repr(request_budget) == "<RequestBudget 100 of 100>"
