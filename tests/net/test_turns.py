"""Links share the event loop: first by client host, then by connection. A fake clock counts their work."""

from collections.abc import Callable

from proxy.net.turns import SHARE_SECONDS, TURN_SECONDS, Turns


class Loop:
    """An event loop in which each read of a socket takes some time."""

    def __init__(self) -> None:
        self.now = 0.0
        self.soon: list[Callable[[], None]] = []
        self.turns = Turns(self.soon.append, lambda: self.now)
        self.flows: list[Flow] = []

    def turn(self) -> float:
        """Run a turn: first what was called soon, then a read of each socket. Return how long it took."""
        began = self.now
        due, self.soon[:] = self.soon.copy(), []
        for each in due:
            each()
        for flow in self.flows:
            if flow.reads and flow.due_at <= self.now:
                flow.read()
        return self.now - began


class Flow:
    """A link whose socket has bytes again `every` seconds after a read. Each read takes `cost` seconds."""

    def __init__(self, loop: Loop, host: str, cost: float, every: float = 0.0) -> None:
        self.loop, self.client_host, self.cost, self.every = loop, host, cost, every
        self.spent, self.busy_period = 0.0, 0
        self.used = 0.0
        self.reads, self.due_at = True, 0.0
        self.late = self.work = 0.0
        loop.flows.append(self)

    def read(self) -> None:
        self.late = max(self.late, self.loop.now - self.due_at if self.every else 0.0)
        self.loop.now += self.cost
        self.work += self.cost
        self.due_at = self.loop.now + self.every
        self.loop.turns.spend(self, self.cost)

    def wait(self) -> None:
        assert self.reads
        self.reads = False
        self.loop.turns.add(self)

    def take_turn(self) -> None:
        assert not self.reads
        self.reads = True


def run(loop: Loop, seconds: float) -> list[float]:
    """Run turns for some time. Return how long each took."""
    end, took = loop.now + seconds, []
    while loop.now < end:
        took.append(loop.turn())
        if not took[-1]:
            loop.now += 1e-4  # the loop waits for bytes
    return took


def test_a_turn_stays_short_however_many_connections_are_busy() -> None:
    loop = Loop()
    flows = [Flow(loop, "one", 1e-3) for _ in range(140)]
    run(loop, 1.0)
    assert max(run(loop, 1.0)) <= TURN_SECONDS + 1e-3
    assert max(each.work for each in flows) <= min(each.work for each in flows) + 2e-3


def test_a_connection_that_uses_little_is_always_read_even_at_the_host_of_busy_ones() -> None:
    loop = Loop()
    for _ in range(140):
        Flow(loop, "one", 1e-3)
    here, elsewhere = Flow(loop, "one", 2e-5, every=0.01), Flow(loop, "two", 2e-5, every=0.01)
    run(loop, 1.0)
    here.late = elsewhere.late = 0.0
    run(loop, 2.0)
    assert here.late <= 4e-3
    assert elsewhere.late <= 4e-3


def test_hosts_have_equal_shares_and_connections_of_one_host_as_well() -> None:
    loop = Loop()
    flows = [Flow(loop, "one", cost) for cost in (1e-3,) * 20] + [Flow(loop, "two", 3e-4)]
    run(loop, 2.0)
    work = dict.fromkeys(("one", "two"), 0.0)
    for flow in flows:
        work[flow.client_host] += flow.work
    assert 0.8 <= work["one"] / work["two"] <= 1.25


def test_a_long_piece_of_work_is_paid_for_before_the_next_one() -> None:
    loop = Loop()
    long, short = Flow(loop, "one", 0.14), Flow(loop, "two", 5e-4)
    run(loop, 10.0)
    assert 0.8 <= long.work / short.work <= 1.25


def test_one_that_has_needed_nothing_for_long_does_not_stop_others() -> None:
    loop = Loop()
    busy = [Flow(loop, "one", 1e-3) for _ in range(5)]
    light = Flow(loop, "one", 2e-5, every=0.01)
    late = Flow(loop, "one", 5e-4)
    run(loop, 0.05)
    late.due_at = 1e9
    run(loop, 5.0)
    assert late.reads
    late.due_at, late.reads = 0.0, False
    loop.turns.add(late)  # its peer reads again, so what waited can be processed (`Link._continue`)
    light.late, before = 0.0, [each.work for each in (*busy, late)]
    run(loop, 1.0)
    had = [each.work - work for each, work in zip((*busy, late), before, strict=True)]
    assert max(had) <= min(had) + 3e-3
    assert light.late <= 4e-3


def test_nobody_waits_while_the_loop_has_time() -> None:
    loop = Loop()
    flows = [Flow(loop, "one", TURN_SECONDS / 20, every=0.01) for _ in range(10)]
    run(loop, 1.0)
    assert all(flow.late <= TURN_SECONDS for flow in flows)
    assert SHARE_SECONDS < TURN_SECONDS


def test_after_a_busy_period_all_are_read_again() -> None:
    loop = Loop()
    busy = [Flow(loop, "one", 1e-3) for _ in range(10)]
    run(loop, 0.1)
    for flow in busy:
        flow.due_at = flow.every = 1e9
    run(loop, 0.1)
    assert all(flow.reads for flow in busy)
    assert not loop.soon
