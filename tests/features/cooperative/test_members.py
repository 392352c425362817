"""The client.id of a client decides which group it is in."""

from dataclasses import dataclass

import pytest

from proxy.features.cooperative.members import Members


@pytest.mark.parametrize(("client_id", "group"), [(b"a.b.c", b"a.b"), (b"a.c", b"a"), (b"x", b"")])
def test_the_longest_name_of_a_group_counts(client_id: bytes, group: bytes) -> None:
    found = Members(["a", "a.b"]).declared("h", client_id + b".kr-0-ff")
    assert found is not None
    assert found[1].group == group


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
