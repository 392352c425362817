"""The client.id of a client decides which of the gateway's processes serves it."""

from dataclasses import dataclass

import pytest

from proxy.cooperative.declared import NamedLane
from proxy.cooperative.members import Members

GROUPS = ("audit", "billing", "billing.eu", "b")


@pytest.mark.parametrize("number", [1, 2, 3])
def test_each_process_says_the_same_of_a_member(number: int) -> None:
    members = Members(GROUPS, number=number, processes=3)
    owners = {group: members.owner(group.encode() + b".host-7") for group in GROUPS}
    assert owners == {"audit": 1, "billing": 1, "billing.eu": 3, "b": 3}
    assert [group for group in GROUPS if members.owns(group.encode())] == [
        group for group, owner in owners.items() if owner == number
    ]


def test_the_longest_name_of_a_group_counts() -> None:
    for processes in range(1, 20):
        members = Members(["a", "a.b"], processes=processes)
        assert members.owner(b"a.b.c") == Members(["a.b"], processes=processes).owner(b"a.b.c")
        assert members.owner(b"a.c") == Members(["a"], processes=processes).owner(b"a.c")


@pytest.mark.parametrize("client_id", [b"", b"billing", b"billings.x", b"x.billing.y", b"x"])
def test_other_clients_are_served_where_they_are(client_id: bytes) -> None:
    for number in (1, 2, 3):
        assert Members(GROUPS, number=number, processes=3).owner(client_id) == number


def test_a_lane_without_a_group_goes_to_the_owner_of_the_first_group() -> None:
    for number in (1, 2, 3):
        members = Members(["b"], number=number, processes=3)
        assert members.owner(b"x.kr-0-7fffffff") == 3
        assert Members(GROUPS, number=number, processes=3).owner(b"x.kr-0-7fffffff") == 1


def test_a_lane_with_a_name_goes_to_the_owner_of_its_group() -> None:
    for number in (1, 2, 3):
        members = Members(GROUPS, number=number, processes=3)
        members.lanes = {"blue": NamedLane(b"b", {}), "red": NamedLane(b"nobodys", {})}
        assert members.owner(b"audit.lane-blue") == 3
        assert members.owner(b"audit.lane-red") == number


@pytest.mark.parametrize("client_id", [b"x.kr-nonsense", b"x.lane-unknown"])
def test_what_can_not_be_served_is_refused_where_it_is(client_id: bytes) -> None:
    for number in (1, 2, 3):
        assert Members(GROUPS, number=number, processes=3).owner(client_id) == number


def test_a_gateway_of_one_process_owns_all_its_groups() -> None:
    members = Members(GROUPS)
    assert all(members.owns(group.encode()) for group in GROUPS)
    assert not members.owns(b"other")


@dataclass(eq=False)
class Joined:
    """A connection on which a client has joined a group."""

    client_id: bytes
    member_id: bytes = b"m"
    named: bytes = b""


def test_a_client_that_changes_its_id_is_in_no_group_by_the_old_one() -> None:
    """Nothing is left of a connection that has ended, whatever client.ids its requests had."""
    members = Members(["billing"])
    one, other = Joined(b"billing.a"), Joined(b"billing.a", b"n")
    assert not members.joins("h", one)
    one.client_id = b"billing.b"
    members.left("h", one)
    assert not members.joins("h", other)
    assert not members.joins("h", one)
    other.client_id = b"billing.b"
    assert members.joins("h", other)
    assert not members.joins("h", Joined(b"billing.a", b"o"))
