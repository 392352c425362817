"""One side of a run: a target with its counts, and the frames that it gets for each step. Sans-IO."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from proxy.addresses import Address
from proxy.protocol.api import ApiKey
from proxy.protocol.fetch_request import INITIAL_EPOCH
from proxy.protocol.primitives import ProtocolError
from replay.drive.asked import Asked
from replay.drive.mapping import (
    FetchMapping,
    Overrides,
    bounds_of,
    most_leading,
    with_ids,
    without_creation,
)
from replay.drive.options import OffsetPolicy
from replay.drive.script import READS, LeftOut, PlayedConnection, Step
from replay.drive.sessions import Session, SideSessions
from replay.drive.tally import DriveTotals
from replay.drive.target import Destination, Target

RETRIES: Final = 600
UNSPOKEN: Final = "the target does not speak version {}"
ABSENT: Final = "this broker of the target leads none of its partitions"
NAMELESS: Final = "neither capture nor target have names for its topic ids; give them with --topic-id"
EARLIER: Final = "its session began before the capture"
CREATES: Final = "it could create topics that the target does not have"
NO_FETCH: Final = "not needed: no fetch can be sent"


class TargetSide:
    """A Kafka cluster or gateway to which requests are played, with its counts.

    Args:
        names: topic id -> name, from the capture.
        asked: the offsets that the capture's fetches requested, by topic.
        written: for each topic, the partitions to which the run writes, with the captured offset of their
            first written record.
    """

    def __init__(
        self,
        name: str,
        target: Target,
        *,
        names: Mapping[bytes, str],
        asked: Mapping[str, Asked],
        policy: OffsetPolicy,
        overrides: Overrides,
        written: Mapping[str, Mapping[int, int]] | None = None,
    ) -> None:
        self.name = name
        self.target = target
        self.tally = DriveTotals()
        self.lost = 0
        """How many requests have got no response although they should have one."""
        self.patience = RETRIES
        """How many more requests may be sent again because a coordinator is not ready."""
        self.heard: dict[Address, float] = {}
        """When each broker last responded (perf_counter)."""
        found = {
            topic: bounds_of(policy, target.topics[topic], asked[topic], (written or {}).get(topic))
            for topic in asked.keys() & target.topics.keys()
        }
        bounds = {topic: each for topic, each in found.items() if each is not None}
        growing = {topic: frozenset(found) for topic, found in (written or {}).items()}
        self.fetches = FetchMapping(names, target.topics, bounds, overrides, growing)
        self._ids = {
            captured: target.topics[topic].topic_id
            for captured, topic in names.items()
            if topic in target.topics
        }
        self._plain: dict[tuple[bytes, int | None, bool], bytes] = {}

    def why_not(self, step: Step, place: Destination) -> str:
        """Return the reason why a step can't be played here; "" if none is known before the run."""
        if not self.target.speaks(step.api_key, step.version):
            return UNSPOKEN.format(step.version)
        if step.api_key == ApiKey.FETCH:
            if self.fetches.map(step, place.node_id) is not None:
                return ""
            return NAMELESS if self.fetches.nameless(step) else ABSENT
        if step.api_key == ApiKey.METADATA:
            try:
                return "" if without_creation(step, self.target.topics) is not None else CREATES
            except ProtocolError as error:
                return f"not understood: {error}"
        return ""

    def place(self, partitions: Mapping[str, Iterable[int]]) -> Destination:
        return self.target.place(most_leading(partitions, self.target.topics))

    def frame(
        self, step: Step, place: Destination, sessions: SideSessions
    ) -> tuple[bytes, Session | None] | None:
        """Return the frame of a step, and its session if it has one. Return None if it can't be sent."""
        if step.api_key != ApiKey.FETCH:
            return self._other(step), None
        plain = step.session_id == 0 and step.session_epoch < 0
        reads = self.fetches.reads(step)
        plain = plain and (reads is None or not reads.found)
        key = step.frame, place.node_id, reads is None
        if plain and key in self._plain:
            return self._plain[key], None
        fetch = self.fetches.map(step, place.node_id)
        built = None if fetch is None else sessions.frame(step, fetch, reads)
        if plain and built is not None:
            self._plain[key] = built[0]
        return built

    def _other(self, step: Step) -> bytes:
        frame = self._plain.get((step.frame, None, True))
        if frame is None:
            frame = step.frame
            if step.api_key == ApiKey.METADATA:
                frame = without_creation(step, self.target.topics) or frame
            frame = self._plain[step.frame, None, True] = with_ids(frame, self._ids)
        return frame


def playable(
    connections: Iterable[PlayedConnection],
    sides: Sequence[TargetSide],
    routes: Mapping[str, Sequence[Destination]],
    earlier: Iterable[tuple[str, Step]] = (),
) -> tuple[list[PlayedConnection], Counter[LeftOut]]:
    """Leave out steps that can't be played at every side, so that all sides get the same steps.

    If fetches are left out and only other requests that read (such as Metadata) remain, these are left out,
    too. Without fetches, they would look like a successful run.

    Connections to the same captured broker have the same destinations. `earlier` has the fetches from which
    sessions are built, each with its captured broker.
    """
    connections = list(connections)
    places = {connection.broker: routes[connection.name] for connection in connections}
    left_out: Counter[LeftOut] = Counter()
    kept: list[PlayedConnection] = []

    def why_not(broker: str, step: Step) -> str:
        both = zip(sides, places[broker], strict=True)
        return next(filter(None, (side.why_not(step, place) for side, place in both)), "")

    made: dict[tuple[str, int], str] = {}
    """For each captured broker and session id: why the session can't be created, or "". The id is 0 if it is
    unknown."""
    played = [(each.broker, step) for each in connections for step in each.steps]
    for broker, step in (*(item for item in earlier if item[0] in places), *played):
        if step.api_key == ApiKey.FETCH and step.session_epoch == INITIAL_EPOCH:
            key, reason = (broker, step.given), why_not(broker, step)
            made[key] = made.get(key, reason) and reason
    for connection in connections:
        steps = []
        for step in connection.steps:
            reason = why_not(connection.broker, step)
            if not reason and step.session_id and step.session_epoch != INITIAL_EPOCH:
                unknown = made.get((connection.broker, 0), EARLIER)
                reason = made.get((connection.broker, step.session_id), unknown)
            if reason:
                left_out[LeftOut(step.api_key, reason)] += 1
            else:
                steps.append(step)
        kept.append(replace(connection, steps=steps))
    rest = [step for connection in kept for step in connection.steps]
    lost_fetches = any(each.api_key == ApiKey.FETCH for each in left_out)
    if lost_fetches and all(step.api_key in READS - {ApiKey.FETCH} for step in rest):
        left_out.update(LeftOut(step.api_key, NO_FETCH) for step in rest)
        kept = [replace(connection, steps=[]) for connection in kept]
    return kept, left_out
