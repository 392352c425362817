"""Asks new leaders for the parts of responses that a broker refused because they have moved. Sans-IO.

The response is held back. The gateway asks its broker for the new leader, if it does not know it. Then it
sends the failed part of the request to the new leader, once, on the same client's connection to that leader
(`Siblings`). The new leader's answer replaces the errors. If anything goes wrong, the client gets the errors
unchanged. The time for which a response is held back is limited.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Protocol

from proxy.core.asking.repeat import CORRELATION_ID, Failed, Repeat, spliced
from proxy.core.asking.role import Role
from proxy.core.asking.siblings import Sibling, Siblings
from proxy.core.asking.state import OPEN, RESPONSES, Action, Event, PartitionState, ResponseState
from proxy.core.connection_state import ConnectionState
from proxy.core.histograms import NOT_COUNTED
from proxy.core.in_flight import InFlight
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


@dataclass(slots=True, eq=False)
class _Exchange:
    """A request to one new leader, for some partitions of a held response."""

    leader_id: int
    sibling: Sibling
    failed: Sequence[Failed]


@dataclass(slots=True, eq=False)
class Hold:
    """A response that is held back until new leaders have answered. The tables in `state` drive it."""

    asker: "Asker"
    repeat: Repeat
    deadline: float
    state: ResponseState = ResponseState.OPEN
    again: float = AGAIN_SECONDS
    """How many seconds to wait after the broker's answer before it is asked again."""
    again_at: float = float("inf")
    questions: int = 0
    """How many times the broker was asked for new leaders and has not answered yet."""
    paced_until: float = 0.0
    """A response without records is sent no earlier, in seconds. Else the client would fetch again at
    once."""

    @property
    def is_held(self) -> bool:
        return self.state is ResponseState.OPEN or self.state is ResponseState.PACED

    def start(self, now: float) -> None:
        """Ask new leaders. If none can be asked, the response is not held back."""
        failed = self._in(PartitionState.WANTED)
        if self.asker.who is None or self.asker.over:
            self._move(failed, Event.NO_CONNECTION, now)
            failed = []
        for each in failed:
            epoch, leader = self.asker.known.get(each.place, (-1, None))
            if leader is not None and epoch == each.epoch and each.leader is None:
                each.leader, each.proven = leader, True
        self._move([each for each in failed if each.leader is None], Event.UNKNOWN, now)
        self._find([each for each in failed if each.leader is not None], now)
        self._go_on(now)

    def tick(self, now: float) -> None:
        """Do what is due."""
        if now >= self.deadline or (self.state is ResponseState.PACED and now >= self.paced_until):
            self.end(Event.TIME, now)
        elif now >= self.again_at:
            self.again_at = float("inf")
            self._move(self._in(PartitionState.PAUSED), Event.AGAIN, now)

    def end(self, event: Event, now: float) -> None:
        """Wait for no more answers, because of TIME, RELEASE or END."""
        self._move(self._in(*OPEN), event, now)
        self._turn(event)

    # The tables

    def _in(self, *states: PartitionState) -> list[Failed]:
        return [each for each in self.repeat.failed.values() if each.state in states]

    def _move(
        self, failed: Sequence[Failed], event: Event, now: float, exchange: _Exchange | None = None
    ) -> None:
        """Bring partitions into their next states, and carry out the action, once for all of them."""
        action = Action.NONE
        for each in failed:
            action = each.on(event)
            if action is Action.FORGET:
                self.asker.known.pop(each.place, None)
            elif action is Action.REMEMBER and not self._leads_here(each):
                self.asker.know(each)
        match action, exchange:
            case Action.SEEK, _:
                self._seek(now)
            case Action.PAUSE, _ if now + self.again < self.deadline:
                self.again_at = now + self.again
                self.again *= 2  # while nobody leads, many clients ask
                self.asker.alarm(self.again_at)
            case Action.PROVE, _Exchange() as there:
                self._prove(there, now)
            case Action.ASK, _Exchange() as there:
                self._repeat(there, now)

    def _turn(self, event: Event) -> Action:
        action, self.state = RESPONSES[self.state, event]
        if action is Action.SEND:
            self.asker.send(self)
        elif action is Action.WAIT:
            self.asker.alarm(self.paced_until)
        return action

    def _go_on(self, now: float) -> None:
        """Send the response if no partition is open. Without records it also waits for `paced_until`."""
        if self.state is not ResponseState.OPEN or self._in(*OPEN):
            return
        failed = self.repeat.failed.values()
        nothing = all(each.state is PartitionState.ANSWERED and not each.record_bytes for each in failed)
        self._turn(Event.EMPTY if nothing and now < self.paced_until else Event.DONE)

    # Who leads

    def _seek(self, now: float) -> None:
        topics = dict.fromkeys(each.place[0] for each in self._in(PartitionState.SEEKING))
        repeat = self.repeat
        frame = metadata_request(CORRELATION_ID, repeat.client_id, topics, by_id=repeat.by_id)
        self.questions += 1
        self.asker.ask(frame, self._take_leaders, now)

    def _take_leaders(self, frame: bytes | None, now: float) -> None:
        self.questions -= 1
        if self._turn(Event.TOLD) is not Action.READ:
            return
        if frame is None:
            self._move(self._in(PartitionState.SEEKING), Event.LOST, now)
        else:
            told: dict[Place, Leader] = {}
            with suppress(ProtocolError):
                told = read_metadata(frame, by_id=self.repeat.by_id)
            unknown = self._in(PartitionState.SEEKING, PartitionState.PAUSED)
            for each in unknown:
                each.leader = self._new(told.get(each.place), each)
            self._find([each for each in unknown if each.leader is not None], now)
            self._wait([each for each in unknown if each.leader is None], now)
        self._go_on(now)

    def _new(self, leader: Leader | None, failed: Failed) -> Leader | None:
        """Return the leader if it may be a new one. None if it is not."""
        if leader is None or leader.leader_id < 0 or leader.leader_epoch < failed.epoch:
            return None
        # The same broker may lead again, or only begin to: its Metadata says so before it serves.
        is_old = leader.leader_id == self.asker.node_id and leader.leader_epoch == failed.epoch
        return None if is_old else leader

    def _leads_here(self, failed: Failed) -> bool:
        """Whether a partition's new leader is the former one. Without an epoch, only its Metadata says so."""
        return failed.epoch < 0 and failed.is_led_by(self.asker.node_id)

    def _wait(self, failed: Sequence[Failed], now: float) -> None:
        """Ask again later who leads these partitions, if there is time, or wait for earlier questions."""
        may_come = self.questions or min(now + self.again, self.again_at) < self.deadline
        self._move(failed, Event.NOT_YET if may_come else Event.NOBODY, now)

    # What the new leader says

    def _find(self, failed: Sequence[Failed], now: float) -> None:
        """Ask new leaders. If needed, request the proof of the client's position first."""
        by_leader: dict[int, list[Failed]] = {}
        for each in failed:
            if each.leader is not None:
                by_leader.setdefault(each.leader.leader_id, []).append(each)
        asked = {
            each.leader.leader_id
            for each in self._in(PartitionState.PROVING, PartitionState.ASKED)
            if each.leader is not None
        }
        for leader_id, those in by_leader.items():
            there = Event.BEHIND if leader_id in asked else self._way_to(leader_id, now)
            if isinstance(there, Event):
                self._move(those, there, now)
            else:
                event = Event.SURE if all(each.sure for each in those) else Event.UNPROVEN
                self._move(those, event, now, _Exchange(leader_id, there, those))

    def _way_to(self, leader_id: int, now: float) -> Sibling | Event:
        """Return a connection to a leader, or the event that there is none now."""
        asker = self.asker
        found = asker.siblings.find(asker.who, leader_id, now)
        if found is not None and now + found[1] <= self.deadline + self.repeat.beyond:
            return found[0]
        own = asker.siblings.new(asker.who, leader_id) if self.repeat.may_connect else None
        return own or (Event.NO_CONNECTION if found is None else Event.BUSY)

    def _ask(
        self,
        exchange: _Exchange,
        frame: bytes,
        take: Callable[[_Exchange, bytes, float], None],
        now: float,
        partitions: int = NOT_COUNTED,
    ) -> None:
        """Send a request to a leader. `take` is called with the response, if one comes."""

        def told(frame: bytes | None, now: float) -> None:
            try:
                if frame is None:
                    self._move(exchange.failed, Event.LOST, now)
                else:
                    take(exchange, frame, now)
                if self._turn(Event.TOLD) is Action.READ:
                    self.asker.catch_up(now)  # the next request may have waited for this
                    queued = self._in(PartitionState.QUEUED)
                    self._find([each for each in queued if each.is_led_by(exchange.leader_id)], now)
                    self._go_on(now)
            except Exception as error:  # noqa: BLE001 - the other connection, which calls this, must not end by it
                self.asker.defect = error
                self.asker.alarm(now)

        exchange.sibling.ask(frame, told, now, partitions=partitions)

    def _prove(self, exchange: _Exchange, now: float) -> None:
        asked: dict[bytes, list[tuple[int, int, int]]] = {}
        for each in exchange.failed:
            if each.leader is not None and not each.sure:
                entry = each.place[1], each.leader.leader_epoch, each.epoch
                asked.setdefault(each.leader.topic, []).append(entry)
        frame = epochs_request(CORRELATION_ID, self.repeat.client_id, asked)
        self._ask(exchange, frame, self._take_epochs, now)

    def _take_epochs(self, exchange: _Exchange, frame: bytes, now: float) -> None:
        if self.state is not ResponseState.OPEN:
            return
        ends = {}
        with suppress(ProtocolError):
            ends = read_epochs(frame)
        for each in exchange.failed:
            end = ends.get((each.leader.topic, each.place[1])) if each.leader is not None else None
            # Its log has records of the client's epoch, and they reach the client's offset (KIP-320).
            if end is not None and not end.error_code and end.leader_epoch == each.epoch:
                each.proven |= 0 <= each.offset <= end.end_offset
        self._move([each for each in exchange.failed if not each.sure], Event.NOT_PROVEN, now)
        exchange.failed = [each for each in exchange.failed if each.sure]
        is_same = exchange.sibling.identity() == self.asker.who
        self._move(exchange.failed, Event.SURE if is_same else Event.LOST, now, exchange)

    def _repeat(self, exchange: _Exchange, now: float) -> None:
        """Send a new leader the failed part of the request. Earlier requests may block it there."""
        sibling, repeat = exchange.sibling, self.repeat
        wait = repeat.wait(self.deadline - now - sibling.wait_left(now))
        if wait and sibling is not self.asker and not sibling.quiet(now):
            # What the client sends there would wait behind it, and it may be another client of that name.
            self.paced_until, wait = max(self.paced_until, now + wait), 0.0
        frame = repeat.ask(exchange.failed, wait)
        self._ask(exchange, frame, self._take_answer, now, partitions=len(exchange.failed))

    def _take_answer(self, exchange: _Exchange, frame: bytes, now: float) -> None:
        entries, failed = self.repeat.read(frame, exchange.sibling), exchange.failed
        if self.state is not ResponseState.OPEN:
            return
        for each in failed:
            each.entry, each.record_bytes = entries.get(each.place, (b"", 0))
        refused = [each for each in failed if not each.entry]
        self._move([each for each in failed if each.entry], Event.ANSWERED, now)
        self._move([each for each in refused if not self._leads_here(each)], Event.REFUSED, now)
        self._wait([each for each in refused if self._leads_here(each)], now)


class Holding(Protocol):
    """The handler of a response that may be held back."""

    hold: Hold | None
    """None until the response is held back. While `is_held`, it is complete, but not for the client yet."""


class Asker(Role):
    """Asks new leaders for a part of the responses of one connection."""

    __slots__ = ("_holds", "_settle", "defect", "known")

    def __init__(self, siblings: Siblings, node_id: int | None, state: ConnectionState) -> None:
        super().__init__(siblings, node_id, state)
        self.defect: Exception | None = None
        """An error in this stage that was raised inside another connection. `tick` raises it for this one."""
        self.known: dict[Place, tuple[int, Leader]] = {}
        """By partition: the leader epoch that the client sent, and the new leader that has answered. If the
        client sends this epoch again, this leader is asked at once. The earlier proof stays valid, because a
        leader does not truncate its log."""
        self._settle: Callable[[], None] = lambda: None
        self._holds: dict[Hold, InFlight] = {}
        """With the request of each. Only here: its handler knows the hold, and a cycle would not be freed."""

    def __repr__(self) -> str:
        return f"<Asker {self._state.host} at {self.node_id} holds={len(self._holds)}>"

    def connect_core(
        self,
        process: Callable[[bytes, int, int, int], bool],  # noqa: ARG002 - as every stage
        resume: Callable[[], None],  # noqa: ARG002 - as every stage
        settle: Callable[[], None],
    ) -> None:
        self._settle = settle

    def follow(self, handler: Holding, repeat: Repeat) -> list[Buffer]:
        """Hold back the response that has just arrived, and ask leaders for a part of it.

        Return the client's bytes that are ready now.
        """
        now, queue = self._state.now, self._state.queue
        hold = Hold(self, repeat, now + repeat.seconds)
        hold.start(now)
        if not hold.is_held:
            return [self._settled(repeat)]
        handler.hold = hold
        self._holds[hold] = queue.expected[0]
        queue.buffered += len(repeat.frame)
        self.alarm(hold.deadline)
        return []

    def know(self, failed: Failed) -> None:
        if len(self.known) >= _MAX_KNOWN:
            self.known.clear()
        if failed.leader is not None:
            self.known[failed.place] = failed.epoch, failed.leader

    def send(self, hold: Hold) -> None:
        """Send a held response to the client."""
        request = self._holds.pop(hold, None)
        if request is None:  # it was not held back: `follow` returns it
            return
        state = self._state
        state.queue.buffered -= len(hold.repeat.frame)
        state.to_client += state.queue.in_turn(request, [self._settled(hold.repeat)])
        state.to_client += state.queue.ended(request)
        self._settle()
        self.wake()

    def _settled(self, repeat: Repeat) -> bytes:
        """Return a response in the form for the client, and count the retried partitions."""
        tally = self._state.tally
        repeat.settle()
        for each in repeat.failed.values():
            if each.state is PartitionState.ANSWERED:
                tally.leaders_followed[repeat.name] += 1
            else:
                tally.leaders_not_followed[each.why] += 1
        frame = spliced(repeat)
        if repeat.name == "fetch":
            more = len(frame) - len(repeat.frame)
            tally.client.fetch_response_bytes += more
            tally.client.add_responses(0, sum(each.record_bytes for each in repeat.failed.values()))
            self._state.meter.skip(0, more)
        return frame

    def tick(self, now: float) -> None:
        self._state.now = now
        if self.defect is not None:
            raise self.defect
        for hold in list(self._holds):
            hold.tick(now)

    def release(self) -> None:
        super().release()
        for hold in list(self._holds):
            hold.end(Event.RELEASE, self._state.now)

    def end(self) -> None:
        super().end()
        for hold in self._holds:
            hold.end(Event.END, self._state.now)
        self._holds.clear()


def asker_of(state: ConnectionState) -> Asker | None:
    """Return the stage of a connection that asks other brokers. None if it has none."""
    return next((each for each in state.stages if isinstance(each, Asker)), None)
