"""Tests the check of groups with several libraries.

The check compares the records that members processed with the log.
"""

from proxy.features.cooperative.key_hash import murmur2
from proxy.features.cooperative.positions import Positions
from tools.soak.groups.seen import SeenLife, judge

TOPIC = "orders"
LOG = {(TOPIC, 0, offset): b"k" for offset in range(3)}


def life(name: str, *did: tuple[float, int], killed_at: float = 0.0) -> SeenLife:
    """Build a member that processed records: a time and an offset for each."""
    return SeenLife(name, [(at, (TOPIC, 0, offset), b"k") for at, offset in did], killed_at=killed_at)


def test_a_record_that_nobody_processed_is_lost_and_its_hand_over_is_told() -> None:
    moved = [(4.0, (TOPIC, 0), Positions.all_at(1)), (5.0, (TOPIC, 0), Positions.all_at(2))]
    verdict = judge(LOG, [life("one", (1.0, 0)), life("two", (6.0, 2))], {}, moved)
    (told,) = verdict.lost
    assert told.startswith(f"orders-0 offset 1 key k hash {murmur2(b'k'):08x}; ")
    assert told.endswith(
        "0 before it by one at 1.000; 2 after it by two at 6.000; committed from 1 to 2 at 5.000"
    )


def test_a_record_that_comes_again_after_its_member_was_killed_is_no_fault() -> None:
    lives = [life("one", (1.0, 0), (1.1, 1), killed_at=2.0), life("two", (3.0, 1), (3.1, 2))]
    verdict = judge(LOG, lives, {})
    assert (verdict.lost, verdict.twice, verdict.after_kills) == ([], [], 1)


def test_a_record_that_comes_again_after_the_gateway_was_killed_is_no_fault() -> None:
    lives = [life("one", (1.0, 0), (1.1, 1)), life("two", (3.0, 1), (3.1, 2))]
    verdict = judge(LOG, lives, {0: [(2.0, 2.5)]})
    assert (verdict.lost, verdict.twice, verdict.after_kills) == ([], [], 1)


def test_a_record_that_comes_again_after_another_gateway_was_down_is_told() -> None:
    one, two = life("one", (1.0, 0), (1.1, 1)), life("two", (3.0, 1), (3.1, 2))
    two.gateway = 1
    assert judge(LOG, [one, two], {0: [(2.0, 2.5)]}).after_kills == 1
    assert len(judge(LOG, [one, two], {1: [(2.0, 2.5)]}).twice) == 1


def test_a_record_that_comes_again_without_a_kill_is_told() -> None:
    lives = [life("one", (1.0, 0), (1.1, 1)), life("two", (3.0, 1), (3.1, 2), killed_at=4.0)]
    verdict = judge(LOG, lives, {0: [(3.5, 3.6)]})
    assert verdict.twice == ["orders-0 key k offset 1 by one at 1.100 and two at 3.000"]


def test_a_record_behind_a_later_one_of_its_key_is_out_of_order() -> None:
    verdict = judge(LOG, [life("one", (1.0, 0), (1.1, 2)), life("two", (1.2, 1))], {})
    assert verdict.unordered == ["orders-0 key k offset 1 by two at 1.200 after 2"]
    assert verdict.lost == []


def test_what_compaction_took_is_neither_lost_nor_invented() -> None:
    did = [(1.0, ("orders-latest", 0, 0), b"k"), (1.1, ("orders-latest", 0, 1), b"k")]
    verdict = judge({("orders-latest", 0, 1): b"k"}, [SeenLife("one", did)], {})
    assert (verdict.lost, verdict.invented) == ([], 0)
