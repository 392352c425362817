"""Each pair of state and event of a held response is reached: bytes in, bytes out.

`reaches` names the pairs that a conversation reaches. `tests/core/asking/test_state.py` has what each does.
"""

from collections.abc import Callable, Iterator
from typing import Any, Final, Self
from unittest.mock import patch

import pytest

from proxy.core.asking import asker, repeat
from proxy.core.asking.state import PARTITIONS, RESPONSES
from proxy.core.events import NotFollowed
from proxy.features.leaders.fetch_repeat import HOLD_SECONDS, FetchRepeat
from proxy.protocol.api import ApiKey
from tests.features.leaders.following import NEW, OLD, OURS, TOPIC, Two, epochs_response, metadata_response
from tests.frames import Want, entry, fetch_response
from tests.playbook import produce, request, response

RECORDS: Final = b"r" * 70
THIRD: Final = 3
"""A broker to which the client has no connection."""
Pairs = set[tuple[str, str]]
SCENES: Final = dict[str, tuple[Callable[[], None], Pairs, float]]()
"""By name: a conversation, the pairs that it reaches, and for how long a response may be held back."""


def reaches(*pairs: str, seconds: float = HOLD_SECONDS) -> Callable[[Callable[[], None]], None]:
    found = {(state, event) for state, event in (pair.split() for pair in pairs)}

    def add(scene: Callable[[], None]) -> None:
        SCENES[scene.__name__] = scene, found, seconds

    return add


class Seen(dict[Any, Any]):
    """A table that notes the pairs that are looked up."""

    def __init__(self, table: Any, pairs: Pairs) -> None:
        super().__init__(table)
        self.pairs = pairs

    def __getitem__(self, key: Any) -> Any:
        self.pairs.add((key[0].name, key[1].name))
        return super().__getitem__(key)


class Moving(Two):
    """A client whose partitions move to other leaders."""

    def __init__(self, partitions: int = 1, *, epoch: int = -1, quiet: bool = True) -> None:
        super().__init__(epoch=epoch)
        self.wants: list[Want] = [(TOPIC, at, 40) for at in range(partitions)]
        if not quiet:
            self.new.exchange(request(ApiKey.HEARTBEAT, 0, 9), response(9, b"\0\0"))
        self.refused_by_old()

    def refused_by_old(self, times: int = 1) -> Self:
        self.old.takes_client()
        errors = [6 for _ in self.wants]
        for _ in range(times):
            self.old.client(self.fetch(*self.wants)).takes_broker()
        for _ in range(times):
            self.old.broker(self.refusal(*self.wants, errors=errors)).takes_broker()
        return self

    def told(self, **leaders: int) -> Self:
        """Answer the oldest question for leaders: by partition, ``p0=2``."""
        self.old.takes_broker()
        self.old.broker(metadata_response(False, {int(name[1:]): (at, 5) for name, at in leaders.items()}))
        return self

    def says(self, node_id: int, *partitions: int, error: int = 0, records: bytes = RECORDS) -> Self:
        """Let a broker answer the gateway's own fetch."""
        play = self.old if node_id == OLD else self.new
        play.takes_broker()
        data = [entry(at, 50, error=error, records=b"" if error else records) for at in partitions]
        play.broker(fetch_response(11, (TOPIC, data), correlation_id=OURS))
        return self

    def proves(self, *partitions: int, end: int = 40) -> Self:
        self.new.takes_broker()
        self.new.broker(epochs_response(*((0, at, self.epoch, end) for at in partitions)))
        return self

    def blocks(self) -> Self:
        """Let the client send a fetch to the new leader that may wait for long."""
        self.new.takes_broker()
        self.new.client(self.fetch((TOPIC, 9), correlation=8, max_wait_ms=5000)).takes_broker()
        return self

    def tick(self, now: float) -> Self:
        self.old.now = self.new.now = now
        self.old.connection.tick(now)
        return self

    def wakes(self, wake: Callable[[], None]) -> Self:
        self.old.connection.attach(wake, lambda _: None)
        return self

    def ends(self, followed: int = 0, **reasons: int) -> None:
        """Check what became of the partitions, as far as it was counted."""
        told = {NotFollowed[name]: number for name, number in reasons.items()}
        assert self.counted() == ({"fetch": followed} if followed else {}, told)
        assert self.old.connection.buffered == 0
        for play in (self.old, self.new):
            play.takes_broker()
            play.takes_client()


def paused(partitions: int = 2, *, quiet: bool = True) -> Moving:
    """Return a client whose partition 0 is PAUSED while the question for partition 1 is unanswered.

    Partition 2, if any, is ASKED at the new leader.
    """
    two = Moving(partitions, quiet=quiet)
    return two.told(p0=OLD, **{"p2": NEW} if partitions > 2 else {}).tick(0.025).says(OLD, 0, error=6)


def held_twice() -> Moving:
    """Return a client with two fetches whose responses are held back."""
    with patch.object(Moving, "refused_by_old"):
        two = Moving()
    return two.refused_by_old(2)


def followed() -> Moving:
    """Return a client whose partition was followed once."""
    return Moving().told(p0=NEW).says(NEW, 0)


@reaches("WANTED UNKNOWN", "SEEKING SURE", "ASKED ANSWERED", "OPEN TOLD", "OPEN DONE", "WANTED SURE")
def a_leader_is_asked_and_the_next_time_at_once() -> None:
    followed().refused_by_old().says(NEW, 0).ends(2)


@reaches("WANTED NO_CONNECTION")
def a_known_leader_has_no_connection() -> None:
    two = followed()
    two.new.connection.ended()
    two.refused_by_old().ends(1, NO_CONNECTION=1)


@reaches("WANTED BUSY")
def a_known_leader_is_busy() -> None:
    followed().blocks().refused_by_old().ends(1, BUSY=1)


@reaches("SEEKING NOT_YET", "PAUSED AGAIN")
def the_former_leader_learns_it_later() -> None:
    Moving().told().tick(0.025).told(p0=NEW).says(NEW, 0).ends(1)


@reaches("SEEKING NOBODY")
def the_former_leader_never_learns_it() -> None:
    Moving().told().tick(0.025).told().tick(0.076).told().ends(NO_LEADER=1)


@reaches("SEEKING LOST")
def the_former_leader_closes() -> None:
    two = Moving()
    two.old.connection.broker_ended()
    two.ends(NO_LEADER=1)


@reaches("ASKED NOT_YET")
def a_broker_names_itself_and_refuses() -> None:
    paused().told().tick(HOLD_SECONDS).ends(NO_LEADER=2)


@reaches("PAUSED NOBODY")
def a_broker_names_itself_and_refuses_while_it_is_asked_for_the_last_time() -> None:
    Moving(2).told(p0=OLD).tick(0.08).says(OLD, 0, error=6).told().ends(NO_LEADER=2)


@reaches("PAUSED NOT_YET", seconds=3.0)
def a_broker_names_nobody_any_more() -> None:
    paused().told().tick(3.0).ends(NO_LEADER=2)


@reaches("ASKED NOBODY")
def a_broker_names_itself_and_refuses_late() -> None:
    Moving().told(p0=OLD).tick(0.08).says(OLD, 0, error=6).ends(NO_LEADER=1)


@reaches("PAUSED SURE")
def an_earlier_question_tells_the_leader() -> None:
    paused().told(p0=NEW, p1=NEW).says(NEW, 0, 1).ends(2)


@reaches("PAUSED BEHIND", "SEEKING BEHIND", "QUEUED SURE")
def a_leader_is_asked_for_further_partitions_later() -> None:
    paused(3).told(p0=NEW, p1=NEW).says(NEW, 2).says(NEW, 0, 1).ends(3)


@reaches("PAUSED NO_CONNECTION", "SEEKING NO_CONNECTION")
def a_leader_has_no_connection() -> None:
    paused().told(p0=THIRD, p1=THIRD).ends(NO_CONNECTION=2)


@reaches("PAUSED BUSY", "SEEKING BUSY")
def a_leader_is_busy() -> None:
    paused().blocks().told(p0=NEW, p1=NEW).ends(BUSY=2)


@reaches("PAUSED UNPROVEN", seconds=3.0)
def only_one_partition_of_a_leader_needs_a_proof() -> None:
    """Its epoch is 4, that of the other one is -1."""
    none, four = (b"\0\0\0\1" + epoch.to_bytes(4, signed=True) for epoch in (-1, 4))
    with patch.object(Moving, "fetch", lambda *args, **more: Two.fetch(*args, **more).replace(none, four)):
        two = paused()
    two.epoch = 4
    two.tick(0.076).told().told(p0=NEW, p1=NEW).proves(1).says(NEW, 0, 1).ends(2)


@reaches("SEEKING UNPROVEN", "PROVING SURE")
def a_position_is_proven() -> None:
    Moving(epoch=4).told(p0=NEW).proves(0).says(NEW, 0).ends(1)


@reaches("PROVING NOT_PROVEN")
def a_position_is_not_proven() -> None:
    Moving(epoch=4).told(p0=NEW).proves(0, end=39).ends(NOT_PROVEN=1)


@reaches("PROVING LOST")
def a_leader_closes_before_the_proof() -> None:
    two = Moving(epoch=4).told(p0=NEW)
    two.new.connection.ended()
    two.ends(CLOSED=1)


@reaches("QUEUED BEHIND", "QUEUED UNPROVEN")
def a_partition_waits_for_proof_and_answer_of_another_one() -> None:
    two = Moving(2, epoch=4).told(p0=NEW).tick(0.025).told(p1=NEW)
    two.proves(0).says(NEW, 0).proves(1).says(NEW, 1).ends(2)


@reaches("ASKED LOST", "QUEUED NO_CONNECTION")
def a_leader_closes() -> None:
    two = Moving(2).told(p0=NEW).tick(0.025).told(p1=NEW)
    two.new.connection.ended()
    two.ends(CLOSED=1, NO_CONNECTION=1)


@reaches("QUEUED BUSY")
def a_leader_becomes_busy() -> None:
    Moving(2).told(p0=NEW).tick(0.025).told(p1=NEW).blocks().says(NEW, 0).ends(1, BUSY=1)


@reaches("ASKED REFUSED")
def a_leader_refuses() -> None:
    Moving().told(p0=NEW).says(NEW, 0, error=1).ends(REFUSED=1)


@reaches("ANSWERED NO_ROOM")
def a_response_has_no_room() -> None:
    with patch.object(Moving, "fetch", lambda *args, **more: Two.fetch(*args, max_bytes=100, **more)):
        two = Moving(2)
    two.told(p0=NEW, p1=NEW).says(NEW, 0, 1).ends(1, NO_ROOM=1)


@reaches("SEEKING TIME", "OPEN TIME")
def the_time_is_over_while_the_leader_is_sought() -> None:
    Moving().tick(HOLD_SECONDS).ends(NO_LEADER=1)


@reaches("PAUSED TIME")
def the_time_is_over_while_nobody_leads() -> None:
    Moving().told().tick(HOLD_SECONDS).ends(NO_LEADER=1)


@reaches("QUEUED TIME", "ASKED TIME", "FAILED LOST", "SENT TOLD")
def the_time_is_over_while_a_leader_is_asked() -> None:
    two = Moving(2).told(p0=NEW).tick(0.025).told(p1=NEW).tick(HOLD_SECONDS)
    two.new.connection.ended()
    two.ends(LATE=2)


@reaches("PROVING TIME")
def the_time_is_over_while_a_leader_proves() -> None:
    Moving(epoch=4).told(p0=NEW).tick(HOLD_SECONDS).proves(0).ends(LATE=1)


def states() -> Iterator[Moving]:
    """Yield clients with a partition in each state but SEEKING: PAUSED, PROVING, ASKED and QUEUED."""
    yield Moving().told()
    yield Moving(epoch=4).told(p0=NEW)
    yield Moving(2).told(p0=NEW).tick(0.025).told(p1=NEW)


@reaches(
    "SEEKING RELEASE", "PAUSED RELEASE", "PROVING RELEASE", "ASKED RELEASE", "QUEUED RELEASE", "OPEN RELEASE"
)
def the_client_is_about_to_leave() -> None:
    for two in (Moving(), *states()):
        two.old.connection.close_session(0.03)
        two.ends(NO_LEADER=len(two.wants))


@reaches("PAUSED END", "PROVING END", "ASKED END", "QUEUED END", "OPEN END", "DROPPED TOLD")
def the_client_has_left() -> None:
    for two in states():
        two.old.connection.ended()
        two.new.connection.ended()
        two.ends()


@reaches("SEEKING END")
def the_client_leaves_in_the_middle_of_a_request() -> None:
    """The question for the leader waits for its rest."""
    with patch.object(Moving, "refused_by_old"):
        two = Moving()
    two.old.client(two.fetch(*two.wants)).takes_broker()
    two.old.client(produce(6, 1, 200_000)[:150_000]).takes_broker()
    two.old.broker(two.refusal(*two.wants)).nothing()
    two.old.connection.ended()
    two.ends()


@reaches("OPEN EMPTY", "PACED TIME", "PACED RELEASE", "PACED END")
def a_response_without_records_waits() -> None:
    ends: tuple[Callable[[Moving], object], ...] = (
        lambda two: two.tick(0.075),
        lambda two: two.old.connection.close_session(0.0),
        lambda two: two.old.connection.ended(),
    )
    for end, given in zip(ends, (1, 1, 0), strict=True):
        two = Moving(quiet=False).told(p0=NEW).says(NEW, 0, records=b"")
        assert two.counted() == ({}, {})
        end(two)
        two.ends(given)


@reaches("PACED TOLD", seconds=3.0)
def a_question_is_answered_when_all_is_known() -> None:
    two = paused(quiet=False).tick(0.076).told(p0=NEW, p1=NEW)
    two.says(NEW, 0, 1, records=b"").told().tick(3.0).ends(2)


@reaches("SENT TIME")
def to_send_a_response_releases_the_next_one_that_is_due() -> None:
    two = held_twice()
    two.wakes(two.old.connection.asker.release).tick(HOLD_SECONDS).ends(NO_LEADER=2)


@reaches("SENT RELEASE")
def to_release_a_response_releases_the_next_one() -> None:
    two = held_twice()
    two.wakes(two.old.connection.asker.release).old.connection.asker.release()
    two.ends(NO_LEADER=2)


@reaches("DROPPED TIME")
def to_send_a_response_ends_the_connection() -> None:
    two = held_twice().told().told()
    two.wakes(two.old.connection.ended).tick(HOLD_SECONDS).ends(NO_LEADER=1)


@reaches("DROPPED RELEASE")
def to_release_a_response_ends_the_connection() -> None:
    two = held_twice().told().told()
    two.wakes(two.old.connection.ended).old.connection.asker.release()
    two.ends(NO_LEADER=1)


@pytest.mark.parametrize("name", SCENES)
def test_a_pair_is_reached(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    scene, told, seconds = SCENES[name]
    pairs: Pairs = set()
    monkeypatch.setattr(repeat, "PARTITIONS", Seen(PARTITIONS, pairs))
    monkeypatch.setattr(asker, "RESPONSES", Seen(RESPONSES, pairs))
    monkeypatch.setattr(FetchRepeat, "seconds", seconds)
    scene()
    assert told <= pairs


def test_each_pair_of_both_tables_is_reached() -> None:
    named = {(state.name, event.name) for state, event in (*PARTITIONS, *RESPONSES)}
    assert named == {pair for _, pairs, _ in SCENES.values() for pair in pairs}
