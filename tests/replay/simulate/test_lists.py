"""Lists of several topics are compared with the session's table as the core compares them."""

from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core.connection import Connection
from proxy.protocol.fetch_layout import LAYOUTS
from replay.simulate.lists import SeveralTopics, alike
from tests.frames import Want, fetch, parsed, topic_id
from tests.playbook import Playbook

WANTS: list[Want] = [(topic, index, 5) for topic in ("t", "u", "v") for index in range(4)]


def established(version: int, wants: list[Want] = WANTS) -> tuple[Playbook, SeveralTopics]:
    play = Playbook(core=Connection).established(version, wants)
    request, fetches = parsed(fetch(version, *wants)), play.connection.fetches
    assert request.listing is not None
    assert fetches.session.table is not None
    return play, SeveralTopics(fetches, request, request.listing, fetches.session.table)


def assert_read_as_compared(play: Playbook, lists: SeveralTopics, version: int, wants: list[Want]) -> None:
    frame = fetch(version, *wants)
    listed = lists.read(frame)
    request, session = parsed(frame), play.connection.fetches.session
    assert request.listing is not None
    incremental = session.incremental(request, request.listing)

    assert listed is not None
    assert incremental is not None
    rows, altered = incremental.delta.rows, incremental.delta.altered
    assert listed.rows.tolist() == rows.tolist()
    assert {row for row, _ in listed.altered} == {*rows[altered].tolist()}
    assert listed.sent == len(incremental.frame)


@given(
    version=st.sampled_from([7, 11, 12, 13, 16]),
    turned=st.integers(0, 11),
    topics=st.permutations(["t", "u", "v"]),
    moved=st.lists(st.dictionaries(st.integers(0, 11), st.integers(6, 9)), min_size=2, max_size=3),
)
def test_a_list_in_pieces_is_read_as_the_core_compares_it(
    version: int, turned: int, topics: list[str], moved: list[dict[int, int]]
) -> None:
    play, lists = established(version)
    ordered = [*chain(*([want for want in WANTS if want[0] == topic] for topic in topics))]
    for each in moved:  # all but the first have the form of an earlier list
        wants = [(*ordered[at][:2], each.get(at, 5)) for at in [*range(turned, 12), *range(turned)]]
        assert_read_as_compared(play, lists, version, wants)


@pytest.mark.parametrize("version", [11, 12, 16])
def test_many_topics_of_one_shape_are_read_as_the_core_compares_them(version: int) -> None:
    wants: list[Want] = [(f"topic-{at:02}", index, 5) for at in range(12) for index in range(3)]
    play, lists = established(version, wants)
    turned = [*wants[6:], *wants[:6]]
    assert parsed(fetch(version, *turned)).topics.element
    assert_read_as_compared(play, lists, version, [*turned[:7], (*turned[7][:2], 6), *turned[8:]])


@pytest.mark.parametrize(
    "frame",
    [
        fetch(16, *WANTS[1:]),
        fetch(16, *WANTS, ("v", 4, 5)),
        fetch(16, *WANTS[1:], ("v", 4, 5)),
        fetch(16, *WANTS[1:], WANTS[1]),
        fetch(16, *WANTS, max_wait_ms=7),
        fetch(16, *WANTS, isolation_level=1),
        fetch(16, *WANTS, session=(5, 1)),
        fetch(16, *WANTS, client="d"),
        fetch(16, *WANTS, values={"partition_max_bytes": 7}),
        fetch(15, *WANTS),
        fetch(16, *WANTS)[:-1],
        fetch(16, *WANTS, forget=[("t", 0)]),
        fetch(16, *WANTS[:2], ("w", 2, 5), ("w", 3, 5), *WANTS[4:]).replace(topic_id("w"), topic_id("t")),
    ],
)
def test_another_list_is_left_to_the_core(frame: bytes) -> None:
    _, lists = established(16)
    for _ in range(2):  # the second time, the form of the right list is known
        assert lists.read(frame) is None
        assert lists.read(fetch(16, *WANTS)) is not None


@pytest.mark.parametrize("version", [7, 11, 16])
def test_a_fetch_that_lacks_bytes_is_left_to_the_core(version: int) -> None:
    """Below v12, the last entry ends with zeros, as the fetch does."""
    _, lists = established(version)
    frame = fetch(version, *WANTS)
    assert lists.read(frame) is not None
    for lost in (1, 2, lists.table.layout.request_entry):
        cut = [frame[:at] + frame[at + lost :] for at in range(len(frame) - lost + 1)]
        assert not any(map(lists.read, cut))


def test_a_list_in_many_pieces_is_left_to_the_core() -> None:
    wants: list[Want] = [(topic, index, 5) for topic in ("t", "u") for index in range(9)]
    _, lists = established(16, wants)
    assert lists.read(fetch(16, *wants[4:], *wants[:4])) is not None
    assert lists.read(fetch(16, *wants[::-1])) is None


def test_an_incremental_fetch_that_loses_bytes_is_left_to_the_core() -> None:
    play, lists = established(16)
    moved = fetch(16, *[(topic, index, 6) for topic, index, *_ in WANTS])
    assert lists.read(moved) is not None
    savings, count, layout = play.connection.fetches.eligibility.savings, len(WANTS), LAYOUTS[16]
    for _ in range(20):
        savings.answered(1, count)
        savings.tore(count, count, -20, layout, layout)
    assert lists.read(moved) is None


@given(
    entries=st.lists(st.integers(0, 3), min_size=12, max_size=12),
    begin=st.integers(0, 11),
    size=st.integers(1, 12),
    suspects=st.sets(st.integers(0, 11)),
)
def test_suspects_change_nothing_but_the_time(
    entries: list[int], begin: int, size: int, suspects: set[int]
) -> None:
    frame, stop = bytes([9, *entries[begin:]]), min(begin + size, 12)
    same = alike(memoryview(bytes(12)), 1, frame, 1, begin, stop, sorted(suspects))
    assert same == next((at for at in range(stop - begin) if entries[begin + at]), stop - begin)
