"""What a FetchSessionHandler sends: the changed part of a fetch, and the end of a session."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.protocol.fetch_layout import LAYOUTS
from proxy.protocol.fetch_request import build_fetch_request
from proxy.session.handler import FetchSessionHandler
from proxy.session.state import Action
from tests.examples import examples
from tests.frames import SESSION_VERSIONS, Want, entry, fetch, parsed, wire_key
from tests.model import wire
from tests.session.handling import Kept, T, again, established, give, listing, state

# --- what is sent ---------------------------------------------------------------------------------


def element(version: int, name: str, *wants: tuple[int, int]) -> tuple[bytes, bytes]:
    """Return a topic element of a delta. `wants` are (partition, fetch offset)."""
    found = listing(version, *((name, index, offset) for index, offset in wants))
    return wire_key(version, name), found.entries.tobytes()


def numbers(*partitions: int) -> bytes:
    return np.array(partitions, ">i4").tobytes()


@pytest.mark.parametrize("version", SESSION_VERSIONS)
def test_added_first_altered_last_forgotten_named(version: int) -> None:
    """Case 51: added partitions are listed first, changed ones last. Forgotten ones are named in their own
    list.
    """
    handler = established(version)
    what = listing(version, ("u", 0, 4), ("t", 1), ("v", 3, 2))
    delta = handler.compare(what)
    assert delta is not None
    assert delta.topics == [element(version, "v", (3, 2)), element(version, "u", (0, 4))]
    assert delta.forgotten_topics == [(wire_key(version, "t"), numbers(0))]
    assert delta.size == sum(len(key) + len(block) for key, block in delta.topics + delta.forgotten_topics)


def test_nothing_changed_is_nothing_sent_whatever_the_order() -> None:
    """Trap 47: an unchanged list in any order gives an empty delta. Changes are found by content, not by
    position.
    """
    handler = established()
    for wants in (T, T[::-1], [T[1], T[2], T[0]]):
        delta = handler.compare(listing(16, *wants))
        assert delta is not None
        assert (delta.topics, delta.forgotten_topics, delta.size) == ([], [], 0)


@pytest.mark.parametrize("version", [7, 12, 16])
def test_altered_entries_of_one_topic_go_together(version: int) -> None:
    """Changed entries of a topic are put into one element, even if librdkafka lists topics alternately.
    Otherwise the topic would be repeated.
    """
    wants = [("t", 0), ("u", 0), ("t", 1), ("u", 1), ("t", 2)]
    handler = established(version, *wants)
    delta = handler.compare(listing(version, *((name, index, 9) for name, index in wants)))
    assert delta is not None
    assert delta.topics == [
        element(version, "t", (0, 9), (1, 9), (2, 9)),
        element(version, "u", (0, 9), (1, 9)),
    ]


@pytest.mark.parametrize(
    "values",
    [
        {"current_leader_epoch": 3},
        {"partition_max_bytes": 9},
        {"last_fetched_epoch": 4},
        {"log_start_offset": 0},
    ],
)
def test_every_field_of_an_entry_counts(values: dict[str, int]) -> None:
    """Trap 26: a change of any field puts the entry into the delta."""
    handler = established()
    found = parsed(fetch(16, *T, values=values)).listing
    assert found is not None
    delta = handler.compare(found)
    assert delta is not None
    assert len(delta.altered) == 3


def test_a_session_may_lose_everything_it_had() -> None:
    handler = established()
    what = listing(16, ("v", 0), ("v", 1))
    delta = handler.compare(what)
    assert delta is not None
    assert delta.topics == [element(16, "v", (0, 0), (1, 0))]
    assert delta.forgotten_topics == [(wire_key(16, "t"), numbers(0, 1)), (wire_key(16, "u"), numbers(0))]
    assert handler.apply(what, delta)
    assert handler.table is not None
    assert handler.table.size == 2


def test_comparing_changes_nothing_that_is_sent() -> None:
    """Case 56: computing a delta twice gives the same result, and changes nothing."""
    handler = established()
    kept = Kept.of(handler)
    first = handler.compare(listing(16, ("t", 0, 9), ("v", 1)))
    second = handler.compare(listing(16, ("t", 0, 9), ("v", 1)))
    assert first is not None
    assert second is not None
    assert (first.topics, first.forgotten_topics) == (second.topics, second.forgotten_topics)
    assert (Kept.of(handler), state(handler)) == (kept, (77, 1))


def test_the_epoch_is_not_advanced_by_asking() -> None:
    """Case 56: sending a fetch does not advance the epoch. The response does."""
    handler = established()
    assert handler.pair == (77, 1)
    again(handler)
    assert handler.pair == (77, 1)


@pytest.mark.parametrize(
    "twice", [[("t", 0), ("t", 0)], [("t", 0), ("v", 0), ("v", 0)], [("v", 0), ("v", 0)]]
)
def test_a_partition_listed_twice_is_no_listing_for_a_session(twice: list[Want]) -> None:
    handler = established()
    assert handler.compare(listing(16, *twice)) is None
    assert FetchSessionHandler().learn_listing(listing(16, *twice), 0) is False


def test_a_topic_in_two_elements_is_no_repetition() -> None:
    """Trap 48: a topic may have two elements, if no partition is listed twice."""
    handler = FetchSessionHandler()
    assert handler.learn_listing(listing(16, ("t", 0), ("u", 0), ("t", 1)), 0)
    assert handler.learn_listing(listing(16, ("t", 0), ("u", 0), ("t", 0)), 0) is False
    assert handler.table is None


def test_another_version_is_nothing_to_compare_with() -> None:
    handler = established(16)
    assert handler.compare(listing(12, *T)) is None
    assert handler.compare(listing(17, *T)) is None
    assert FetchSessionHandler().compare(listing(16, *T)) is None


def test_sparse_partitions_are_not_taken_and_nothing_changes() -> None:
    handler = established()
    kept = Kept.of(handler)
    what = listing(16, *T, ("t", 2**31 - 1))
    delta = handler.compare(what)
    assert delta is not None
    assert handler.apply(what, delta) is False
    assert Kept.of(handler) == kept
    assert FetchSessionHandler().learn_listing(what, 0) is False


# --- ending ---------------------------------------------------------------------------------------


def test_a_connection_that_ends_takes_all_with_it() -> None:
    """Trap 19: when the connection ends, the handler forgets its session."""
    handler = established()
    handler.drop()
    assert (*state(handler), handler.table) == (0, 0, None)


def test_a_session_that_is_renewed_is_named_to_be_dropped() -> None:
    handler = established()
    handler.renew()
    assert (*state(handler), handler.table, handler.has_session) == (77, 0, None, False)
    assert handler.learn_listing(listing(16, *T), 0)
    assert handler.ask_full() == (77, 0)


def test_a_full_fetch_begins_another_session_and_nothing_of_the_old_is_filled_in() -> None:
    handler = established()
    handler.ask_full()
    assert handler.table is not None
    assert handler.table.unknown().tolist() == [0, 1, 2]


def test_nothing_is_asked_for_without_a_table() -> None:
    with pytest.raises(RuntimeError):
        FetchSessionHandler().ask_full()
    assert repr(FetchSessionHandler()) == "<FetchSessionHandler 0 epoch=0 partitions=0>"


# --- deltas, whatever is fetched ------------------------------------------------------------------

WANTS = st.lists(
    st.tuples(st.sampled_from("abc"), st.integers(0, 5), st.integers(0, 3)),
    min_size=1,
    max_size=12,
    unique_by=lambda want: want[:2],
)


@examples(40)
@given(st.sampled_from([7, 11, 12, 16]), st.lists(WANTS, min_size=2, max_size=5))
def test_a_broker_that_applies_the_deltas_holds_what_was_fetched(
    version: int, fetches: list[list[tuple[str, int, int]]]
) -> None:
    """Trap 28: a broker that applies all deltas holds exactly the fetched list. Another codec reads the
    deltas.
    """
    handler = established(version, *fetches[0])
    held = {(name, index): offset for name, index, offset in fetches[0]}
    for wants in fetches[1:]:
        request = parsed(fetch(version, *wants))
        delta = again(handler, version, *wants)
        frame = build_fetch_request(
            request, LAYOUTS[version], handler.pair, delta.topics, delta.forgotten_topics
        )
        sent = wire.decode_request(frame[4:])
        changes = {
            (topic.topic or topic.topic_id.rstrip(b"\0").decode(), part.partition): part.fetch_offset
            for topic in sent.topics
            for part in topic.partitions
        }
        for topic in sent.forgotten:
            for index in topic.partitions:
                del held[topic.topic or topic.topic_id.rstrip(b"\0").decode(), index]
        assert all(held.get(key) != offset for key, offset in changes.items())
        held |= changes
        assert held == {(name, index): offset for name, index, offset in wants}
        elements = [(name, [entry(index, 5)]) for name, index in held]
        assert give(handler, version, *elements, session_id=77).action is Action.EXPAND


@pytest.mark.parametrize("version", [7, 12, 16])
@pytest.mark.parametrize("changed", [[], [0], [699], [0, 1, 350, 698, 699], list(range(700))])
def test_long_lists_are_compared_as_bytes(version: int, changed: list[int]) -> None:
    """Long lists are compared as bytes, not entry by entry. Each change is still found exactly once."""
    handler = established(version, *(("t", index) for index in range(700)))
    what = listing(version, *(("t", index, 2**40 + 257 if index in changed else 0) for index in range(700)))
    delta = handler.compare(what)
    assert delta is not None
    assert delta.altered.tolist() == changed
    assert delta.topics == ([element(version, "t", *((i, 2**40 + 257) for i in changed))] if changed else [])
