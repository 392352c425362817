"""Tests that the statuses of several processes are added up to one."""

from collections import Counter

from proxy.cooperative.ranges import FULL
from proxy.cooperative.tally import Cooperative
from proxy.core.eligibility import SessionLimits
from proxy.core.events import SideTally, Tally
from proxy.core.histograms import Measured
from proxy.telemetry.history import MAX_EVENTS, RecentEvents
from proxy.telemetry.status import Counts, ServingProcess, UnreachableBrokers, WithBroker
from tests.cooperative.test_tally import group


def _with_broker(size: int) -> WithBroker:
    return WithBroker(
        connections=2,
        reached=1,
        sessions=1,
        session_partitions=size,
        outstanding=3,
        oldest_seconds=size / 10,
    )


def counts(node_id: int, size: int) -> Counts:
    measured = Measured()
    measured.requests.append(0.1)
    measured.settle()
    return Counts(
        tallies={node_id: Tally(client=SideTally(bytes_in=size))},
        measured={node_id: measured},
        accepted=1,
        turned_away=Counter(idle=size),
        faults=Counter(client=1),
        links={node_id: _with_broker(size)},
        paused=Counter({("client", "broker_full"): 1}),
        processes=[
            ServingProcess(number=1, pid=2, connections=3, cpu_seconds=0.5, resident_bytes=6, open_fds=7)
        ],
        client_session_evictions={False: size, True: 1},
        cooperative=Cooperative(reader_fetches=size, buffered_bytes=size, groups=[group(FULL)]),
    )


def test_what_two_counted_is_added_and_neither_changes() -> None:
    one, two = counts(1, 10), counts(1, 100)
    total = Counts()
    total.add(one)
    total.add(two)
    total.add(counts(2, 1000))
    assert total.total().client.bytes_in == 1110
    assert {id_: tally.client.bytes_in for id_, tally in total.tallies.items()} == {1: 110, 2: 1000}
    assert total.links[1] == WithBroker(
        connections=4, reached=2, sessions=2, session_partitions=110, outstanding=6, oldest_seconds=10.0
    )
    assert (total.accepted, total.turned_away["idle"], total.faults["client"]) == (3, 1110, 3)
    assert total.paused["client", "broker_full"] == 3
    assert total.client_session_evictions == {False: 1110, True: 3}
    assert total.all_measured().added_request.count == 3
    assert len(total.processes) == 3
    assert (one, one.measured[1].added_request.count) == (one, 1)
    assert two.tallies[1].client.bytes_in == 100


def test_what_stood_goes_with_a_process_and_what_it_counted_stays() -> None:
    gone = counts(1, 10)
    gone.drop_current()
    assert [len(gone.links), len(gone.paused), len(gone.processes)] == [0, 0, 0]
    assert gone.tallies[1].client.bytes_in == 10
    assert gone.client_session_evictions == {False: 10, True: 1}
    assert gone.cooperative == Cooperative(reader_fetches=10)


def test_the_latest_word_on_a_broker_counts() -> None:
    one, two = UnreachableBrokers(), UnreachableBrokers()
    assert one.failed(1, "down", 10.0)
    assert not one.failed(1, "down", 11.0), "it is not new"
    two.failed(2, "refused", 9.0)
    two.reached(1, 10.5)
    one.add(two)
    assert one.now() == {1: "down", 2: "refused"}
    assert two.reached(2, 12.0)
    two.reached(1, 12.0)
    one.add(two)
    assert one.now() == {}
    assert one.since == {}
    assert one.failed(None, "x", 13.0)
    assert one.failed(1, "y", 13.0)
    assert list(one.now()) == [None, 1], "the bootstrap first"


def test_a_trouble_began_when_any_process_first_saw_it() -> None:
    one, two = UnreachableBrokers(), UnreachableBrokers()
    one.failed(1, "refused", 10.0)
    one.failed(1, "timed out", 30.0)
    two.failed(1, "refused", 8.0)
    two.failed(2, "refused", 9.0)
    one.add(two)
    assert one.since == {1: 10.0 - 2.0, 2: 9.0}
    two.reached(1, 31.0)
    one.add(two)
    assert one.since == {2: 9.0}
    assert one.forget(10.0) == [2]
    assert one.since == {}


def test_happenings_of_two_are_in_the_order_of_time() -> None:
    one, two = RecentEvents(), RecentEvents()
    one.note(1.0, "a", "first")
    one.note(30.0, "b", "third")
    two.note(2.0, "a", "the same, of another")
    two.note(20.0, "c", "second", warning=True)
    one.add(two)
    told = [(kept.at, kept.text, kept.count) for kept in one]
    assert told == [(2.0, "the same, of another", 2), (20.0, "second", 1), (30.0, "third", 1)]
    for number in range(2 * MAX_EVENTS):
        two.note(100.0 * number, "d", str(number))
    one.add(two)
    assert len(list(one)) == MAX_EVENTS


def test_slots_are_of_one_budget_whoever_takes_them() -> None:
    slots = [0, 0]
    one = SessionLimits(max_sessions=3, slots=slots, own=0)
    two = SessionLimits(max_sessions=3, slots=slots, own=1)
    assert [one.reserve(), two.reserve(), two.reserve()] == [True, True, True]
    assert not one.reserve()
    assert not two.reserve()
    assert (slots, one.used, two.used) == ([1, 2], 3, 3)
    one.release()
    assert two.reserve()
    assert slots == [0, 3]
