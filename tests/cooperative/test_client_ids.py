"""Tests of helper functions for applications: the client.id of a member, and the member that owns a key."""

import ast
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.cooperative import client_ids, murmur2
from proxy.cooperative.client_ids import client_id, member_of, range_of
from proxy.cooperative.declared import Declared, declared
from proxy.cooperative.plan import cut

MEMBERS = st.integers(1, 1000)


def test_a_client_id_declares_the_members_range() -> None:
    assert client_id("billing.a", 1, 4) == "billing.a.kr-40000000-7fffffff"
    assert declared(b"billing.a.kr-40000000-7fffffff") == Declared(b"billing.a", ((1 << 30, (1 << 31) - 1),))


@given(MEMBERS)
def test_members_have_all_hashes_in_equal_parts(members: int) -> None:
    assert [range_of(member, members) for member in range(members)] == cut(members)


@given(st.binary(max_size=20), MEMBERS)
def test_a_key_is_that_of_the_member_whose_range_it_is_in(key: bytes, members: int) -> None:
    low, high = range_of(member_of(key, members), members)
    assert low <= murmur2.murmur2(key) <= high


@pytest.mark.parametrize(("member", "members"), [(4, 4), (-1, 4), (0, 0), (0, (1 << 32) + 1)])
def test_who_is_no_member_has_no_range(member: int, members: int) -> None:
    with pytest.raises(ValueError, match=f"member {member} of {members}: "):
        range_of(member, members)


def test_what_can_not_be_is_refused() -> None:
    with pytest.raises(ValueError, match="characters A-Z a-z"):
        client_id("a b", 0, 1)
    with pytest.raises(ValueError, match="0 members"):
        member_of(b"", 0)


@pytest.mark.parametrize("module", [client_ids, murmur2])
def test_it_needs_the_standard_library_alone(module: object) -> None:
    path = Path(str(getattr(module, "__file__", None)))
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            assert node.module == "proxy.cooperative.murmur2" or node.module in sys.stdlib_module_names
        elif isinstance(node, ast.Import):
            assert all(each.name in sys.stdlib_module_names for each in node.names)
