"""Sessions of the capture's clients: the target's ids, new epochs, and lost sessions created again."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from replay.drive.mapping import FetchMapping, Overrides
from replay.drive.sessions import Session, SideSessions
from replay.drive.topics import Topic
from tests.frames import fetch
from tests.model import wire
from tests.model.broker import ModelBroker
from tests.replay.drive.captured import Capture, script


def topic(partitions: int = 4) -> Topic:
    zeros, none = np.zeros(partitions, np.int64), np.full(partitions, -1, np.int32)
    return Topic(leaders=none, leader_epochs=none, earliest=zeros, latest=zeros)


class Client:
    """Plays captured fetches of topics t and u. Tests choose the target's answers."""

    def __init__(self) -> None:
        self.sessions = SideSessions()
        self.mapping = FetchMapping({}, {"t": topic(), "u": topic()}, {}, Overrides())

    def say(self, frame: bytes, given: int = 0) -> tuple[wire.FetchRequest, Session | None] | None:
        capture = Capture()
        capture.say(frame, 0, answered=False)
        (step,) = script(capture).connections[0].steps
        step.given = given
        mapped = self.mapping.map(step)
        assert mapped is not None
        built = self.sessions.frame(step, mapped)
        return None if built is None else (wire.decode_request(built[0][4:]), built[1])

    def said(self, frame: bytes, given: int = 0, *, gives: int = 0, error: int = 0) -> wire.FetchRequest:
        """Do the same as `say`. The target answers with session id `gives` and with `error`."""
        told = self.say(frame, given)
        assert told is not None
        if told[1] is not None:
            told[1].responded(error, gives)
        return told[0]


def session(asked: wire.FetchRequest) -> tuple[int, int]:
    return asked.session_id, asked.session_epoch


def listed(asked: wire.FetchRequest) -> list[tuple[str, list[tuple[int, int]]]]:
    return [
        (each.topic, [(part.partition, part.fetch_offset) for part in each.partitions])
        for each in asked.topics
    ]


def test_a_session_has_the_id_that_the_target_gave_and_epochs_from_1_on() -> None:
    client = Client()

    asked = [
        client.said(fetch(11, ("t", 0), session=(0, 0)), 55, gives=900),
        client.said(fetch(11, session=(55, 1)), gives=900),
        client.said(fetch(11, session=(55, 7)), gives=900),  # epochs 2 to 6 were not captured
        client.said(fetch(11, session=(55, -1))),
    ]

    assert [session(each) for each in asked] == [(0, 0), (900, 1), (900, 2), (900, -1)]


def test_sessionless_fetches_have_none() -> None:
    told = Client().say(fetch(11, ("t", 0)))

    assert told is not None
    assert (session(told[0]), told[1]) == ((0, -1), None)


def test_two_sessions_are_told_apart() -> None:
    client = Client()
    client.said(fetch(11, ("t", 0), session=(0, 0)), 55, gives=900)
    client.said(fetch(11, ("u", 0), session=(0, 0)), 66, gives=901)

    assert session(client.said(fetch(11, session=(55, 1)), gives=900)) == (900, 1)
    assert session(client.said(fetch(11, session=(66, 1)), gives=901)) == (901, 1)


def test_a_session_that_began_before_the_capture_is_not_guessed_at() -> None:
    assert Client().say(fetch(11, session=(55, 8))) is None


def test_a_session_whose_making_was_not_answered_in_the_capture_is_the_next_that_is_named() -> None:
    client = Client()
    client.said(fetch(11, ("t", 0), session=(0, 0)), 0, gives=900)

    assert session(client.said(fetch(11, session=(55, 1)), gives=900)) == (900, 1)
    assert session(client.said(fetch(11, session=(55, 2)), gives=900)) == (900, 2)
    assert client.say(fetch(11, session=(66, 1))) is None


@pytest.mark.parametrize("error", [70, 71, 106])
def test_a_lost_session_is_made_again_with_all_that_it_held(error: int) -> None:
    client = Client()
    client.said(fetch(11, ("t", 0, 5), ("t", 1, 6), ("u", 2, 7), session=(0, 0)), 55, gives=900)
    client.said(fetch(11, ("t", 1, 9), session=(55, 1), forget=[("u", 2)]), gives=900)
    client.said(fetch(11, ("u", 3, 1), session=(55, 2)), error=error)

    again = client.said(fetch(11, ("t", 0, 8), session=(55, 3)), gives=901)

    assert session(again) == (0, 0)
    assert listed(again) == [("t", [(0, 8), (1, 9)]), ("u", [(3, 1)])]
    assert again.forgotten == ()
    assert session(client.said(fetch(11, session=(55, 4)), gives=901)) == (901, 1)


def test_where_the_target_gives_no_session_fetches_stay_full() -> None:
    client = Client()
    client.said(fetch(11, ("t", 0), session=(0, 0)), 55, gives=0)

    again = client.said(fetch(11, session=(55, 1)), gives=0)

    assert (session(again), listed(again)) == ((0, 0), [("t", [(0, 0)])])


def test_a_client_that_makes_its_session_anew_closes_the_targets() -> None:
    client = Client()
    client.said(fetch(11, ("t", 0), session=(0, 0)), 55, gives=900)

    assert session(client.said(fetch(11, ("t", 1), session=(55, 0)), 56, gives=901)) == (900, 0)
    assert session(client.said(fetch(11, session=(56, 1)), gives=901)) == (901, 1)


def test_played_again_a_session_takes_the_place_of_its_last_round() -> None:
    client = Client()
    for _ in range(2):
        asked = client.said(fetch(11, ("t", 0), session=(0, 0)), 55, gives=900)

    assert session(asked) == (900, 0)


def test_epochs_begin_anew_after_the_last() -> None:
    client = Client()
    told = client.say(fetch(11, ("t", 0), session=(0, 0)), 55)
    assert told is not None
    assert told[1] is not None
    told[1].responded(0, 900)
    told[1].next_epoch = 2**31 - 2

    asked = [client.said(fetch(11, session=(55, n)), gives=900) for n in range(1, 4)]

    assert [each.session_epoch for each in asked] == [2**31 - 2, 2**31 - 1, 1]
    assert all(earlier.session_id == later.session_id for earlier, later in pairwise(asked))


PARTITIONS = st.tuples(st.sampled_from("tu"), st.integers(0, 3))
OFFSETS = st.integers(0, 9)
CHANGES = st.lists(
    st.tuples(
        st.dictionaries(PARTITIONS, OFFSETS, max_size=3), st.sets(PARTITIONS, max_size=2), st.booleans()
    ),
    max_size=12,
)
"""The changes of each fetch: offsets, forgotten partitions, and whether the target loses the session."""


@given(
    st.dictionaries(st.tuples(st.sampled_from("tu"), st.integers(0, 3)), st.integers(0, 9), min_size=1),
    CHANGES,
)
def test_whatever_the_target_loses_its_session_comes_to_hold_what_the_captured_one_held(
    first: dict[tuple[str, int], int],
    changes: list[tuple[dict[tuple[str, int], int], set[tuple[str, int]], bool]],
) -> None:
    target = ModelBroker(seed=3)
    target.create_topic("t", 4)
    target.create_topic("u", 4)
    client, held = Client(), dict(first)

    def play(frame: bytes, given: int) -> int:
        told = client.say(frame, given)
        assert told is not None
        asked, session = told
        response = target.fetch(asked, 0.0)
        assert session is not None
        session.responded(response.error_code, response.session_id)
        return response.error_code

    play(fetch(11, *((name, index, at) for (name, index), at in sorted(first.items())), session=(0, 0)), 55)
    for epoch, (told, forgotten, lost) in enumerate(changes, 1):
        gone = (forgotten & held.keys()) - told.keys()
        if len(held) == len(gone) and not told:
            continue  # a session of nothing is no session any more
        held = {key: at for key, at in held.items() if key not in gone} | told
        victims = [*target.cache.sessions.values()] if lost else []
        for session in victims:
            target.cache.remove(session)
        wants = [(name, index, at) for (name, index), at in sorted(told.items())]
        error = play(fetch(11, *wants, session=(55, epoch), forget=sorted(gone)), 55)
        assert error == (70 if victims else 0)
        if not error:
            (kept,) = target.cache.sessions.values()
            found = {
                (part.topic, part.entry.partition): part.entry.fetch_offset
                for part in kept.partitions.values()
            }
            assert found == held


def test_sessions_of_copies_share_what_they_list() -> None:
    capture = Capture()
    capture.say(fetch(12, ("t", 0), ("t", 1), session=(0, 0)), 0, answered=False)
    (step,) = script(capture).connections[0].steps
    mapping = FetchMapping({}, {"t": topic()}, {}, Overrides())
    sessions = []
    for _ in range(2):
        mapped = mapping.map(step)
        assert mapped is not None
        sessions.append(Session())
        sessions[-1].apply(mapped)

    one, two = sessions
    assert one.listed is not two.listed
    assert len(one.listed) == 2
    assert all(mine is other for mine, other in zip(one.listed.values(), two.listed.values(), strict=True))
