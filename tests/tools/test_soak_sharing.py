"""The soak tests of groups tell how much was shared, from what members processed."""

from tools.soak.groups.sharing import Handled, Sharing, sharing


def handled(*members: tuple[str, int], start: float = 0.0) -> list[Handled]:
    """Build a record for each member, all in half a second. A member is a name and its gateway's number."""
    return [
        Handled(start + at / (2 * len(members)), 0, name, gateway)
        for at, (name, gateway) in enumerate(members)
    ]


def test_members_that_take_turns_share() -> None:
    across = handled(*[("a", 0), ("b", 1)] * 3)
    within = handled(*[("a", 0), ("b", 0)] * 3, start=1.0)
    assert sharing([*across, *within]) == Sharing(12, across=6, within=6)


def test_a_partition_that_goes_to_another_member_is_not_shared() -> None:
    assert sharing(handled(*[("a", 0)] * 5, *[("b", 1)] * 5, ("a", 0))) == Sharing(11)


def test_members_with_a_partition_each_share_none() -> None:
    found = [
        Handled(at / 10, place, name, place) for at in range(10) for place, name in enumerate(("a", "b"))
    ]
    assert sharing(found) == Sharing(20)


def test_a_run_with_several_gateways_must_share_across_them() -> None:
    assert Sharing(100, within=60).shares(1)
    assert not Sharing(100, within=60).shares(3)
    assert Sharing(100, across=60).shares(3)
    assert not Sharing(100, across=10).shares(3)
    assert not Sharing().shares(1)
