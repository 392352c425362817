"""Asks new leaders for the parts of responses that a broker refused because they have moved. Sans-IO.

The response is held back. The gateway asks its broker for the new leader, if it does not know it. Then it
sends the failed part of the request to the new leader, once, on the same client's connection to that leader
(`proxy.core.asking.siblings`). The new leader's answer replaces the errors. If anything goes wrong, the
client gets the errors unchanged. The time for which a response is held back is limited.
"""

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Protocol

from proxy.core.asking.repeat import CORRELATION_ID, Failed, Repeat, spliced
from proxy.core.asking.role import Role
from proxy.core.asking.siblings import Sibling, Siblings
from proxy.core.connection_state import ConnectionState
from proxy.core.events import NotFollowed
from proxy.core.histograms import NOT_COUNTED
from proxy.core.in_flight import InFlight
from proxy.protocol.api import ApiKey
from proxy.protocol.leader_requests import (
    Leader,
    Place,
    epochs_request,
    metadata_request,
    read_epochs,
    read_metadata,
)
from proxy.protocol.primitives import Buffer, ProtocolError

AGAIN_SECONDS: Final = 0.025
"""If a broker does not know the new leader yet, it is asked again after this time. It doubles with each
attempt."""
_MAX_KNOWN: Final = 1 << 15
_FETCH: Final = int(ApiKey.FETCH)


class Holding(Protocol):
    """The handler of a response that may be held back."""

    held: bool
    """Whether the response is complete but held back, until leaders have answered or its time is over."""


@dataclass(slots=True, eq=False)
class _Held:
    """A response that is held back until new leaders have answered."""

    request: InFlight
    handler: Holding
    repeat: Repeat
    deadline: float
    ask_at: float | None = None
    """When to ask the broker again for the new leader, in seconds."""
    again: float = AGAIN_SECONDS
    """How many seconds to wait after the broker's answer before it is asked again."""
    waits: int = 0
    """The number of the gateway's own requests without a response."""
    paced_until: float = 0.0
    """A response without records is sent no earlier, in seconds. Else the client would fetch again at
    once."""
    timed_until: float = 0.0
    """The value of `paced_until` for which a timer was started."""
    legs: dict[int, list[Failed]] = field(default_factory=dict)
    """For each new leader that has a request in flight: the partitions to request after its response."""
    done: bool = False


@dataclass(slots=True, eq=False)
class _Leg:
    """The exchange with one new leader for one held response."""

    held: _Held
    leader_id: int
    sibling: Sibling
    failed: list[Failed]


class Asker(Role):
    """Asks new leaders for a part of the responses of one connection."""

    __slots__ = ("_defect", "_held", "_known", "_settle")

    def __init__(self, siblings: Siblings, node_id: int | None, state: ConnectionState) -> None:
        super().__init__(siblings, node_id, state)
        self._settle: Callable[[], None] = lambda: None
        self._defect: Exception | None = None
        """An error in this stage that was raised inside another connection. `tick` raises it for this one."""
        self._held: list[_Held] = []
        self._known: dict[Place, tuple[int, Leader]] = {}
        """By partition: the leader epoch that the client sent, and the new leader that has answered. If the
        client sends this epoch again, this leader is asked at once. The earlier proof stays valid, because a
        leader does not truncate its log."""

    def connect_core(
        self,
        process: Callable[[bytes, int, int, int], bool],  # noqa: ARG002 - as every stage
        resume: Callable[[], None],  # noqa: ARG002 - as every stage
        settle: Callable[[], None],
    ) -> None:
        self._settle = settle

    def __repr__(self) -> str:
        return f"<Asker {self._state.host} at {self.node_id} held={len(self._held)}>"

    # What the broker says

    @property
    def _answered_now(self) -> InFlight:
        return self._state.queue.expected[0]

    def follow(self, handler: Holding, repeat: Repeat) -> list[Buffer]:
        """Hold back the response that has just arrived, and ask leaders for a part of it.

        Return the client's bytes that are ready now.
        """
        return self._begin(_Held(self._answered_now, handler, repeat, self._state.now + repeat.seconds))

    def _begin(self, held: _Held) -> list[Buffer]:
        """Ask new leaders, and hold back the response. Return it at once if no leader can be asked."""
        repeat, now = held.repeat, self._state.now
        failed = repeat.failed.values()
        if self.who is None or self.over:
            self._give_up(failed, NotFollowed.NO_CONNECTION)
            return [self._settled(held)]
        for each in failed:
            epoch, leader = self._known.get(each.place, (-1, None))
            if leader is not None and epoch == each.epoch and each.leader is None:
                each.leader, each.proven = leader, True
        known = [each for each in failed if each.leader is not None]
        if len(known) < len(failed):
            self._ask_leaders(held)
        self._go(held, known, now)
        if not held.waits:
            return [self._settled(held)]
        held.handler.held = True
        self._held.append(held)
        self._state.queue.buffered += len(repeat.frame)
        self.alarm(held.deadline)
        return []

    # Who leads

    def _ask_leaders(self, held: _Held) -> None:
        """Ask the former leader for the new one."""
        repeat = held.repeat
        topics = dict.fromkeys(each.place[0] for each in repeat.failed.values() if each.leader is None)
        frame = metadata_request(CORRELATION_ID, repeat.client_id, topics, by_id=repeat.by_id)
        held.ask_at = None
        held.waits += 1
        self.ask(frame, partial(self._leaders_told, held), self._state.now)

    def _leaders_told(self, held: _Held, frame: bytes | None, now: float) -> None:
        held.waits -= 1
        if held.done:
            return
        told: dict[Place, Leader] = {}
        if frame is not None:
            with suppress(ProtocolError):
                told = read_metadata(frame, by_id=held.repeat.by_id)
        found: list[Failed] = []
        unknown = False
        for each in held.repeat.failed.values():
            if each.leader is not None:
                continue
            leader = told.get(each.place)
            if leader is None or leader.leader_id < 0 or leader.leader_epoch < each.epoch:
                unknown = True
            elif leader.leader_id != self.node_id or each.epoch < leader.leader_epoch:
                # The same broker may lead again, or only begin to: its Metadata says so before it serves.
                each.leader = leader
                found.append(each)
            else:
                unknown = True
        self._go(held, found, now)
        if unknown and frame is not None:
            self._pause(held, now)
        self._go_on(held, now)

    def _pause(self, held: _Held, now: float) -> None:
        if now + held.again < held.deadline:
            held.ask_at = now + held.again
            held.again *= 2  # while nobody leads, many clients ask
            self.alarm(held.ask_at)

    # What the new leader says

    def _go(self, held: _Held, failed: Iterable[Failed], now: float) -> None:
        """Ask new leaders. If needed, request the proof of the client's position first."""
        by_leader: dict[int, list[Failed]] = {}
        for each in failed:
            if each.leader is not None:
                by_leader.setdefault(each.leader.leader_id, []).append(each)
        for leader_id, those in by_leader.items():
            if leader_id in held.legs:
                held.legs[leader_id] += those
                continue
            found_there = self.siblings.find(self.who, leader_id, now)
            late = found_there is None or now + found_there[1] > held.deadline + held.repeat.beyond
            if late and held.repeat.may_connect:
                own = self.siblings.new(self.who, leader_id)
                found_there, late = (own, 0.0) if own is not None else found_there, own is None
            if found_there is None or late:
                why = NotFollowed.NO_CONNECTION if found_there is None else NotFollowed.BUSY
                self._give_up(those, why)
                continue
            sibling, left = found_there
            held.legs[leader_id] = []
            leg = _Leg(held, leader_id, sibling, those)
            if all(each.sure for each in those):
                self._repeat(leg, now, left)
            else:
                self._ask_epochs(leg, now)

    def _done(self, leg: _Leg, now: float) -> None:
        """Finish an exchange, and ask its leader for further partitions."""
        held = leg.held
        if more := held.legs.pop(leg.leader_id):
            self._go(held, more, now)
        self._go_on(held, now)

    def _ask_epochs(self, leg: _Leg, now: float) -> None:
        asked: dict[bytes, list[tuple[int, int, int]]] = {}
        for each in leg.failed:
            if each.leader is not None and not each.sure:
                entry = each.place[1], each.leader.leader_epoch, each.epoch
                asked.setdefault(each.leader.topic, []).append(entry)
        frame = epochs_request(CORRELATION_ID, leg.held.repeat.client_id, asked)
        self._ask(leg, frame, self._epochs_told, now)

    def _ask(
        self,
        leg: _Leg,
        frame: bytes,
        take: Callable[[_Leg, bytes | None, float], None],
        now: float,
        partitions: int = NOT_COUNTED,
    ) -> None:
        """Send a request to a leader. `take` is called when the response has come, or will not come."""

        def told(frame: bytes | None, now: float) -> None:
            leg.held.waits -= 1
            try:
                take(leg, frame, now)
            except Exception as error:  # noqa: BLE001 - the other connection, which calls this, must not end by it
                self._defect = error
                self.alarm(now)

        leg.held.waits += 1
        leg.sibling.ask(frame, told, now, partitions=partitions)

    def _epochs_told(self, leg: _Leg, frame: bytes | None, now: float) -> None:
        held = leg.held
        if held.done:
            return
        ends = {}
        if frame is not None:
            with suppress(ProtocolError):
                ends = read_epochs(frame)
        for each in leg.failed:
            end = ends.get((each.leader.topic, each.place[1])) if each.leader is not None else None
            # Its log has records of the client's epoch, and they reach the client's offset (KIP-320).
            if end is not None and not end.error_code and end.leader_epoch == each.epoch:
                each.proven |= 0 <= each.offset <= end.end_offset
        unsure = [each for each in leg.failed if not each.sure]
        self._give_up(unsure, NotFollowed.CLOSED if frame is None else NotFollowed.NOT_PROVEN)
        leg.failed = [each for each in leg.failed if each.sure]
        if frame is None or leg.sibling.identity() != self.who:
            self._give_up(leg.failed, NotFollowed.CLOSED)
        elif leg.failed:
            self._repeat(leg, now, leg.sibling.wait_left(now))
            return
        self._done(leg, now)

    def _repeat(self, leg: _Leg, now: float, left: float) -> None:
        """Send a new leader the failed part of a request. Earlier ones may block it for `left` seconds."""
        held = leg.held
        wait = held.repeat.wait(held.deadline - now - left)
        if wait and leg.sibling is not self and not leg.sibling.quiet(now):
            # What the client sends there would wait behind it, and it may be another client of that name.
            held.paced_until, wait = max(held.paced_until, now + wait), 0.0
        frame = held.repeat.ask(leg.failed, wait)
        self._ask(leg, frame, self._answered, now, partitions=len(leg.failed))

    def _answered(self, leg: _Leg, frame: bytes | None, now: float) -> None:
        held = leg.held
        if frame is None:
            self._give_up(leg.failed, NotFollowed.CLOSED)
        else:
            told = held.repeat.read(frame)
            leg.sibling.count(told.partitions, told.record_bytes)
            if held.done:
                return
            for each in leg.failed:
                each.entry, each.record_bytes = told.entries.get(each.place, (b"", 0))
                here = each.epoch < 0 and leg.leader_id == self.node_id  # only its own Metadata says so
                if here and not each.entry:
                    each.leader = None
                elif not each.entry:
                    self._give_up([each], NotFollowed.REFUSED)
                elif each.leader is not None and not here:
                    self._know(each.place, each.epoch, each.leader)
            if any(each.leader is None for each in leg.failed):
                self._pause(held, now)
        if not held.done:
            self._state.now = max(self._state.now, now)  # the next request may have waited for this
            self._done(leg, now)

    def _know(self, place: Place, epoch: int, leader: Leader) -> None:
        if len(self._known) >= _MAX_KNOWN:
            self._known.clear()
        self._known[place] = epoch, leader

    # The end

    def _give_up(self, failed: Iterable[Failed], why: NotFollowed) -> None:
        """Stop retrying these partitions. The client gets their errors unchanged."""
        for each in failed:
            each.why = why
            self._known.pop(each.place, None)

    def _go_on(self, held: _Held, now: float) -> None:
        """Send a held response if no answer is missing. Without records it also waits for `paced_until`."""
        if held.waits or held.ask_at is not None:
            return
        nothing = all(each.entry and not each.record_bytes for each in held.repeat.failed.values())
        if not nothing or now >= held.paced_until:
            self._end(held)
        elif held.timed_until != held.paced_until:  # `tick` comes here with each timer of any response
            held.timed_until = held.paced_until
            self.alarm(held.paced_until)

    def _end(self, held: _Held) -> None:
        if held.done:  # the client has left while another response was sent: `release` came first
            return
        held.done = True
        request, state = held.request, self._state
        self._held.remove(held)
        held.handler.held = False
        state.queue.buffered -= len(held.repeat.frame)
        state.to_client += state.queue.in_turn(request, [self._settled(held)])
        state.to_client += state.queue.ended(request)
        self._settle()
        self.wake()

    def _settled(self, held: _Held) -> bytes:
        """Return a response in the form for the client, and count the retried partitions."""
        repeat, tally = held.repeat, self._state.tally
        repeat.settle()
        for each in repeat.failed.values():
            if each.entry:
                tally.leaders_followed[repeat.name] += 1
            else:
                tally.leaders_not_followed[each.why] += 1
        frame = spliced(repeat)
        if held.request.api_key == _FETCH:
            more = len(frame) - len(repeat.frame)
            tally.client.fetch_response_bytes += more
            tally.client.add_responses(0, sum(each.record_bytes for each in repeat.failed.values()))
            self._state.meter.skip(0, more)
        return frame

    def tick(self, now: float) -> None:
        self._state.now = now
        if self._defect is not None:
            raise self._defect
        for held in self._held.copy():
            if now >= held.deadline:
                for each in held.repeat.failed.values():
                    if each.leader is not None and not each.entry and each.why is NotFollowed.NO_LEADER:
                        each.why = NotFollowed.LATE
                self._end(held)
            elif held.ask_at is None:
                self._go_on(held, now)
            elif now >= held.ask_at and not held.done:
                self._ask_leaders(held)

    def release(self) -> None:
        super().release()
        for held in self._held.copy():
            self._end(held)

    def end(self) -> None:
        super().end()
        for held in self._held:
            held.done = True
        self._held.clear()


def asker_of(state: ConnectionState) -> Asker | None:
    """Return the stage of a connection that asks other brokers. None if it has none."""
    return next((each for each in state.stages if isinstance(each, Asker)), None)
