"""The tables of held responses: each pair of state and event does what is told here, or raises an error."""

from itertools import product
from typing import Any, Final

import pytest

from proxy.core.asking.repeat import Failed
from proxy.core.asking.state import OPEN, PARTITIONS, RESPONSES, Event, PartitionState, ResponseState
from proxy.core.events import NotFollowed

PARTITION: Final = """
    WANTED    UNKNOWN        SEEK      SEEKING
    WANTED    SURE           ASK       ASKED
    WANTED    NO_CONNECTION  FORGET    FAILED    NO_CONNECTION
    WANTED    BUSY           FORGET    FAILED    BUSY

    SEEKING   SURE           ASK       ASKED
    SEEKING   UNPROVEN       PROVE     PROVING
    SEEKING   BEHIND         NONE      QUEUED
    SEEKING   NO_CONNECTION  FORGET    FAILED    NO_CONNECTION
    SEEKING   BUSY           FORGET    FAILED    BUSY
    SEEKING   NOT_YET        PAUSE     PAUSED
    SEEKING   NOBODY         NONE      FAILED    NO_LEADER
    SEEKING   LOST           NONE      FAILED    NO_LEADER
    SEEKING   TIME           NONE      FAILED    NO_LEADER
    SEEKING   RELEASE        NONE      FAILED    NO_LEADER
    SEEKING   END            NONE      FAILED    NO_LEADER

    PAUSED    AGAIN          SEEK      SEEKING
    PAUSED    SURE           ASK       ASKED
    PAUSED    UNPROVEN       PROVE     PROVING
    PAUSED    BEHIND         NONE      QUEUED
    PAUSED    NO_CONNECTION  FORGET    FAILED    NO_CONNECTION
    PAUSED    BUSY           FORGET    FAILED    BUSY
    PAUSED    NOT_YET        PAUSE     PAUSED
    PAUSED    NOBODY         NONE      FAILED    NO_LEADER
    PAUSED    TIME           NONE      FAILED    NO_LEADER
    PAUSED    RELEASE        NONE      FAILED    NO_LEADER
    PAUSED    END            NONE      FAILED    NO_LEADER

    QUEUED    SURE           ASK       ASKED
    QUEUED    UNPROVEN       PROVE     PROVING
    QUEUED    BEHIND         NONE      QUEUED
    QUEUED    NO_CONNECTION  FORGET    FAILED    NO_CONNECTION
    QUEUED    BUSY           FORGET    FAILED    BUSY
    QUEUED    TIME           NONE      FAILED    LATE
    QUEUED    RELEASE        NONE      FAILED    NO_LEADER
    QUEUED    END            NONE      FAILED    NO_LEADER

    PROVING   SURE           ASK       ASKED
    PROVING   NOT_PROVEN     FORGET    FAILED    NOT_PROVEN
    PROVING   LOST           FORGET    FAILED    CLOSED
    PROVING   TIME           NONE      FAILED    LATE
    PROVING   RELEASE        NONE      FAILED    NO_LEADER
    PROVING   END            NONE      FAILED    NO_LEADER

    ASKED     ANSWERED       REMEMBER  ANSWERED
    ASKED     REFUSED        FORGET    FAILED    REFUSED
    ASKED     LOST           FORGET    FAILED    CLOSED
    ASKED     NOT_YET        PAUSE     PAUSED
    ASKED     NOBODY         NONE      FAILED    NO_LEADER
    ASKED     TIME           NONE      FAILED    LATE
    ASKED     RELEASE        NONE      FAILED    NO_LEADER
    ASKED     END            NONE      FAILED    NO_LEADER

    ANSWERED  NO_ROOM        NONE      FAILED    NO_ROOM
    FAILED    LOST           FORGET    FAILED
"""
RESPONSE: Final = """
    OPEN      TOLD     READ   OPEN
    OPEN      DONE     SEND   SENT
    OPEN      EMPTY    WAIT   PACED
    OPEN      TIME     SEND   SENT
    OPEN      RELEASE  SEND   SENT
    OPEN      END      NONE   DROPPED

    PACED     TOLD     COUNT  PACED
    PACED     TIME     SEND   SENT
    PACED     RELEASE  SEND   SENT
    PACED     END      NONE   DROPPED

    SENT      TOLD     COUNT  SENT
    SENT      TIME     NONE   SENT
    SENT      RELEASE  NONE   SENT

    DROPPED   TOLD     COUNT  DROPPED
    DROPPED   TIME     NONE   DROPPED
    DROPPED   RELEASE  NONE   DROPPED
"""


def rows(told: str) -> dict[tuple[str, str], list[str]]:
    listed = (line.split() for line in told.splitlines() if line.strip())
    return {(state, event): step for state, event, *step in listed}


def names(step: tuple[Any, ...]) -> list[str]:
    return [each.name for each in step if each is not None]


TOLD: Final = rows(PARTITION)
TOLD_OF_RESPONSES: Final = rows(RESPONSE)


@pytest.mark.parametrize(("state", "event"), list(product(PartitionState, Event)))
def test_a_partition_does_what_is_told_or_stays_as_it_is(state: PartitionState, event: Event) -> None:
    failed = Failed((b"t", 0), 0, 0, b"", state=state)
    if step := TOLD.get((state.name, event.name)):
        assert names(PARTITIONS[state, event]) == step
        assert names((failed.on(event), failed.state)) == step[:2]
        assert failed.why is (NotFollowed[step[2]] if len(step) > 2 else NotFollowed.NO_LEADER)
    else:
        with pytest.raises(RuntimeError, match=f"{event.name} can't follow in state {state.name}"):
            failed.on(event)
        assert (failed.state, failed.why) == (state, NotFollowed.NO_LEADER)


@pytest.mark.parametrize(("state", "event"), list(product(ResponseState, Event)))
def test_a_response_does_what_is_told_or_raises_an_error(state: ResponseState, event: Event) -> None:
    if step := TOLD_OF_RESPONSES.get((state.name, event.name)):
        assert names(RESPONSES[state, event]) == step
    else:
        with pytest.raises(RuntimeError, match=f"{event.name} can't follow in state {state.name}"):
            RESPONSES[state, event]


@pytest.mark.parametrize("event", [Event.TIME, Event.RELEASE, Event.END])
def test_no_partition_is_open_after_the_end(event: Event) -> None:
    started = OPEN[1:]
    assert not [state for state in started if PARTITIONS[state, event].state in OPEN]
