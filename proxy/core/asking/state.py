"""The states of a held response and of its failed partitions, and the two tables that drive them. Sans-IO.

A pair of state and event gives the action and the next state. `Hold` carries out the action.
"""

from collections.abc import Iterable
from enum import Enum
from typing import Final, NamedTuple, TypeVar

from proxy.core.events import NotFollowed


class PartitionState(Enum):
    """The states of a partition that the broker refused because its leader has moved."""

    WANTED = "nothing was done yet"
    SEEKING = "the former leader was asked who leads now"
    PAUSED = "nobody leads yet; the former leader is asked again later, or has yet to answer"
    QUEUED = "the new leader has a request of this response; it gets one at a time"
    PROVING = "the new leader was asked where the client's epoch ends in its log (KIP-320)"
    ASKED = "the new leader was asked for the partition"
    ANSWERED = "the client gets the new leader's entry"
    FAILED = "the client gets the error of the former leader"


class ResponseState(Enum):
    """The states of a held response."""

    OPEN = "a partition is neither answered nor failed"
    PACED = "all partitions are answered, without records; the client would fetch again at once"
    SENT = "the client has it"
    DROPPED = "the connection has ended first"


class Event(Enum):
    """What happens to partitions, to the response, or to both."""

    UNKNOWN = "no other leader is known"
    NOT_YET = "nobody leads yet, and there is time to ask again, or a question is unanswered"
    NOBODY = "nobody leads yet, and no answer can come in time"
    AGAIN = "the pause is over"
    BEHIND = "a request of this response to the same leader is unanswered"
    NO_CONNECTION = "there is no connection to the leader"
    BUSY = "the connection to the leader is blocked for too long"
    UNPROVEN = "the leader can be asked, after a proof of the client's position"
    SURE = "the leader can be asked: the position was proven, or the client sends no epoch"
    NOT_PROVEN = "the leader's log does not prove the position"
    ANSWERED = "the leader has sent an entry without an error"
    REFUSED = "the leader has sent an error, or nothing that can be used"
    LOST = "no answer will come, or the connection is no longer the client's"
    NO_ROOM = "with the leader's records, the response would be too large"
    TOLD = "an answer has come, or will not come"
    DONE = "the last partition is answered or failed"
    EMPTY = "the same, but without a record or an error, and too early for the client"
    TIME = "the response was held back long enough"
    RELEASE = "the client's connection is about to end"
    END = "the client's connection has ended"


class Action(Enum):
    """What to do."""

    NONE = "nothing"
    SEEK = "ask the former leader for the new one"
    PAUSE = "start a timer if there is time, and ask the former leader again then"
    PROVE = "ask the new leader for the end of the client's epoch"
    ASK = "ask the new leader for the partitions"
    REMEMBER = "the next time, ask this leader at once"
    FORGET = "the next time, ask the former leader"
    READ = "use the answer"
    COUNT = "only count the answer, as it is for nobody"
    WAIT = "start a timer, and send the response then"
    SEND = "send the response, with the entries of new leaders"


class PartitionStep(NamedTuple):
    """What an event does to a partition."""

    action: Action
    state: PartitionState
    why: NotFollowed | None = None
    """Why the client gets the error. None leaves the reason as it is."""


_Step = TypeVar("_Step")


class _Table(dict[tuple[Enum, Event], _Step]):
    def __missing__(self, key: tuple[Enum, Event]) -> _Step:
        state, event = key
        raise RuntimeError(f"{event.name} can't follow in state {state.name}")


def _failed(why: NotFollowed, action: Action = Action.FORGET) -> PartitionStep:
    return PartitionStep(action, PartitionState.FAILED, why)


_P, _E, _A = PartitionState, Event, Action
_FOUND: Final = (_P.WANTED, _P.SEEKING, _P.PAUSED, _P.QUEUED)
"""The states in which a way to the leader is looked for, when it is known."""
OPEN: Final = (*_FOUND, _P.PROVING, _P.ASKED)
"""The states of partitions for which the response is held back."""
_NO_LEADER: Final = _failed(NotFollowed.NO_LEADER, _A.NONE)


def _rows(
    states: Iterable[PartitionState], event: Event, step: PartitionStep
) -> dict[tuple[Enum, Event], PartitionStep]:
    return {(state, event): step for state in states}


PARTITIONS: Final[_Table[PartitionStep]] = _Table(
    {
        (_P.WANTED, _E.UNKNOWN): PartitionStep(_A.SEEK, _P.SEEKING),
        (_P.SEEKING, _E.NOT_YET): PartitionStep(_A.PAUSE, _P.PAUSED),
        (_P.SEEKING, _E.NOBODY): _NO_LEADER,
        (_P.SEEKING, _E.LOST): _NO_LEADER,
        (_P.PAUSED, _E.AGAIN): PartitionStep(_A.SEEK, _P.SEEKING),
        (_P.PAUSED, _E.NOT_YET): PartitionStep(_A.PAUSE, _P.PAUSED),  # an earlier question is answered
        (_P.PAUSED, _E.NOBODY): _NO_LEADER,
        **_rows(_FOUND, _E.NO_CONNECTION, _failed(NotFollowed.NO_CONNECTION)),
        **_rows(_FOUND, _E.BUSY, _failed(NotFollowed.BUSY)),
        # Of a leader that is known from the start, the proof is known as well.
        **_rows(_FOUND[1:], _E.BEHIND, PartitionStep(_A.NONE, _P.QUEUED)),
        **_rows(_FOUND[1:], _E.UNPROVEN, PartitionStep(_A.PROVE, _P.PROVING)),
        **_rows((*_FOUND, _P.PROVING), _E.SURE, PartitionStep(_A.ASK, _P.ASKED)),
        (_P.PROVING, _E.NOT_PROVEN): _failed(NotFollowed.NOT_PROVEN),
        **_rows((_P.PROVING, _P.ASKED), _E.LOST, _failed(NotFollowed.CLOSED)),
        (_P.ASKED, _E.ANSWERED): PartitionStep(_A.REMEMBER, _P.ANSWERED),
        (_P.ASKED, _E.REFUSED): _failed(NotFollowed.REFUSED),
        # The former leader says that it leads, but can't serve yet: its Metadata is ahead of it (KRaft).
        (_P.ASKED, _E.NOT_YET): PartitionStep(_A.PAUSE, _P.PAUSED),
        (_P.ASKED, _E.NOBODY): _NO_LEADER,
        (_P.ANSWERED, _E.NO_ROOM): _failed(NotFollowed.NO_ROOM, _A.NONE),
        (_P.FAILED, _E.LOST): PartitionStep(_A.FORGET, _P.FAILED),  # the response was sent meanwhile
        **_rows((_P.SEEKING, _P.PAUSED), _E.TIME, _NO_LEADER),
        **_rows((_P.QUEUED, _P.PROVING, _P.ASKED), _E.TIME, _failed(NotFollowed.LATE, _A.NONE)),
        **_rows(OPEN[1:], _E.RELEASE, _NO_LEADER),
        **_rows(OPEN[1:], _E.END, _NO_LEADER),
    }
)
"""What an event does to a partition. A missing pair is a bug in fetchgate: the lookup raises RuntimeError,
and the state does not change."""

_R = ResponseState
RESPONSES: Final = _Table[tuple[Action, ResponseState]](
    {
        (_R.OPEN, _E.TOLD): (_A.READ, _R.OPEN),
        (_R.OPEN, _E.DONE): (_A.SEND, _R.SENT),
        (_R.OPEN, _E.EMPTY): (_A.WAIT, _R.PACED),
        (_R.OPEN, _E.TIME): (_A.SEND, _R.SENT),
        (_R.OPEN, _E.RELEASE): (_A.SEND, _R.SENT),
        (_R.OPEN, _E.END): (_A.NONE, _R.DROPPED),
        (_R.PACED, _E.TOLD): (_A.COUNT, _R.PACED),
        (_R.PACED, _E.TIME): (_A.SEND, _R.SENT),
        (_R.PACED, _E.RELEASE): (_A.SEND, _R.SENT),
        (_R.PACED, _E.END): (_A.NONE, _R.DROPPED),
        (_R.SENT, _E.TOLD): (_A.COUNT, _R.SENT),
        (_R.DROPPED, _E.TOLD): (_A.COUNT, _R.DROPPED),
        # To send a response may end the connection: other responses are then released, or dropped.
        (_R.SENT, _E.TIME): (_A.NONE, _R.SENT),
        (_R.SENT, _E.RELEASE): (_A.NONE, _R.SENT),
        (_R.DROPPED, _E.TIME): (_A.NONE, _R.DROPPED),
        (_R.DROPPED, _E.RELEASE): (_A.NONE, _R.DROPPED),
    }
)
"""The same for a response: the action, and the next state."""
