"""Makes clients read from a replica in the gateway's rack: ``--rack-reads client`` (KIP-392). Sans-IO.

A leader with a replica selector that gets a fetch with a rack answers with the id of a follower in that rack,
and with no records. A client that understands this fetches from the follower. The gateway writes its own rack
into fetches without a rack, so that such clients need no setting.

Some clients do not understand the answer, and others never come back from a follower that has failed. So the
gateway watches what each client does with an answer, and stops writing the rack where it does not help. A
fetch without the rack is always served by the leader.
"""

from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Protocol

import numpy as np

from proxy.core.connection_state import ConnectionState
from proxy.core.eligibility import BrokerVersions
from proxy.core.follower import ASK_SECONDS, Edit, Follower, FromFollower, Pause, not_leader
from proxy.core.in_flight import FetchHandler, Handler, InFlight
from proxy.core.racks import NotWritten
from proxy.core.requests import read_client_names
from proxy.core.stage import Stage
from proxy.protocol.api import ApiKey
from proxy.protocol.api_versions import Features
from proxy.protocol.fetch_layout import RACK_VERSION
from proxy.protocol.fetch_request import FetchRequest
from proxy.protocol.fetch_response import HintAt, PartitionError
from proxy.protocol.leader_requests import Place
from proxy.protocol.primitives import ProtocolError
from proxy.protocol.produce import READ_WITHIN
from proxy.protocol.replicas import read_replicas

OLDEST_FETCH_MAX: Final = 15
"""The lowest highest version of Fetch of a broker that gets a rack: Kafka 3.5.

Older leaders may answer only after max_wait_ms (KAFKA-13767), may name a follower that is not in sync
(KAFKA-14372), and their followers are slow to serve new records (KAFKA-14334).
"""
MISSES: Final = 3
"""The number of answers in a row that a client does not follow, after which it gets no rack."""
REFUSED_SECONDS: Final = 3600.0
"""How long a client that does not follow gets no rack, in seconds."""
AGAIN_SECONDS: Final = 10.0
"""How long a client is served by the leader that has led it away from a partition, if it comes back without a
response of the follower, in seconds. It may not reach the follower.

kafka-python comes back after each response of the follower. It is led away again.
"""
MAX_READERS: Final = 10_000
"""The maximum number of clients of which the gateway remembers whether they follow."""
_MAX_PLACES: Final = 10_000
"""The maximum number of partitions that are remembered of one client."""
_FETCH: Final = int(ApiKey.FETCH)
_API_VERSIONS: Final = int(ApiKey.API_VERSIONS)
_ASK_LEADER: Final = ("apache-kafka-java", "librdkafka", "confluent-kafka", "kafka-python")
"""Parts of the names of software that asks the leader if a follower answers OFFSET_OUT_OF_RANGE."""
_NEVER_BACK: Final = frozenset({"kgo", "franz-go"})
"""Software that does not come back from a follower that has failed: franz-go (KIP-511 name ``kgo``)."""


class Racks(Protocol):
    """The racks of the brokers, as far as they are known."""

    @property
    def here(self) -> bool:
        """Whether any broker is known to be in the gateway's rack."""

    def is_here(self, node_id: int | None) -> bool:
        """Return whether a broker is known to be in the gateway's rack."""


@dataclass(slots=True, eq=False)
class Reader:
    """What is known of one client: its client id, host and software."""

    follows: bool = False
    """Whether the client has followed an answer."""
    misses: int = 0
    """The number of answers in a row that the client did not follow."""
    refused_until: float = 0.0
    """The time until which the client gets no rack, in seconds."""
    answered: set[Place] = field(default_factory=set)
    """The partitions of the last answer, until it is known whether the client follows it. Empty if the client
    has followed before."""
    answered_by: "RackReadsStage | None" = None
    """The connection of that answer. None if it has ended."""
    led: dict[Place, int] = field(default_factory=dict)
    """The partitions that a leader has led the client away from, each with the id of the follower."""
    unseen: set[Place] = field(default_factory=set)
    """Those of them for which the follower has not responded without an error yet."""


class RackReads:
    """What the connections of a process share.

    Args:
        rack: the gateway's rack.
        racks: the racks of the brokers.
        named: returns whether Metadata names replicas for a client id. Such a client gets no rack.
    """

    def __init__(self, rack: str, racks: Racks, named: Callable[[str], bool] = lambda _: False) -> None:
        self.named = named
        self.rack = rack.encode()
        self.racks = racks
        self.counts: Counter[str] = Counter(redirects=0, moved=0, held=0)
        """The number of partitions in answers that led a client to a follower, the number of those that
        the follower then served, and the number of responses that were held back."""
        self.returns: Counter[str] = Counter(unreachable=0, closed=0, overdue=0, out_of_range=0, isr=0)
        """The number of failed followers, by what was seen of them. ``isr``: the number of partitions that
        clients have left because the follower was not in sync any more."""
        self._readers: OrderedDict[tuple[str, str, str], Reader] = OrderedDict()
        self._stages: set[RackReadsStage] = set()
        self._pause = Pause()
        self._silent: dict[int | None, float] = {}
        """The brokers that were late with a fetch, each with the time at which the pause ends, in seconds."""

    def reader(self, client_id: str, host: str, software: str) -> Reader:
        """Return what is known of a client."""
        key = client_id, host, software
        reader = self._readers.setdefault(key, Reader())
        self._readers.move_to_end(key)
        if len(self._readers) > MAX_READERS:
            self._readers.popitem(last=False)
        return reader

    def paused(self, now: float) -> bool:
        """Return whether no fetch gets a rack now, because a follower has failed."""
        return now < self._pause.until

    def failed(self, how: str, now: float) -> None:
        """Note that a follower does not serve its clients.

        Args:
            how: ``unreachable``, ``closed``, ``overdue`` or ``out_of_range``.
            now: the time in seconds.
        """
        self.returns[how] += 1
        if self.paused(now):
            return
        self._pause = self._pause.after(now)
        self.changed()

    def overdue(self, node_id: int | None, now: float) -> None:
        """Note that a follower is late with a fetch. It is probably late with other requests as well."""
        self._silent[node_id] = self._pause.until
        for stage in tuple(self._stages):
            stage.follower.hurry(now)

    def silent(self, node_id: int | None, now: float) -> bool:
        """Return whether a follower was late with a fetch, less than a pause ago."""
        return now < self._silent.get(node_id, 0.0)

    def unreachable(self, node_id: int | None, now: float) -> None:
        """Note that the gateway could not connect to a broker. If it is in the rack, it may be a follower."""
        if self.racks.is_here(node_id):
            self.failed("unreachable", now)

    def changed(self, reader: Reader | None = None) -> None:
        """Have the connections of a client decide anew. Without an argument, those of all clients."""
        for stage in self._stages:
            if reader is None or stage.reader is reader:
                stage.forget()

    def add(self, stage: "RackReadsStage") -> None:
        """Add the stage of a new connection."""
        self._stages.add(stage)

    def remove(self, stage: "RackReadsStage") -> None:
        """Remove the stage of a connection that has ended."""
        self._stages.discard(stage)


class Led(FromFollower["RackReadsStage"]):
    """Makes the client's response to a fetch that an answer of a leader has led to a follower.

    A follower that has fallen behind may answer OFFSET_OUT_OF_RANGE for records that the leader has. Some
    clients would begin at another offset then. They get NOT_LEADER_OR_FOLLOWER instead.

    Args:
        stage: the stage of the connection.
        inner: makes the response.
        fetching: the fetch, which is the innermost handler.
    """

    __slots__ = ()

    def concerns(self) -> bool:
        """Return whether the response comes from a follower, and may be changed."""
        return super().concerns() and self._fetching.direct

    def edits(self, errors: Sequence[PartitionError], _hints: Sequence[HintAt]) -> list[Edit]:
        """Return the changes in entries with OFFSET_OUT_OF_RANGE, if the client does not ask the leader."""
        if errors:
            self._stage.out_of_range()
        return [] if self._stage.asks_leader else [not_leader(error) for error in errors]


class RackReadsStage(Stage):
    """Writes the rack into the fetches of one connection, and watches what the client makes of the answers.

    Args:
        shared: what the connections of the process share.
        node_id: returns the node id of the broker, or None while it is unknown.
        versions: the broker's features.
        state: the state of the connection.
    """

    __slots__ = (
        "_alarm",
        "_ask_at",
        "_features",
        "_kept",
        "_node_id",
        "_recent",
        "_shared",
        "_software",
        "_state",
        "_versions",
        "follower",
        "leaving",
        "not_written",
        "reader",
    )

    def __init__(
        self,
        shared: RackReads,
        node_id: Callable[[], int | None],
        versions: BrokerVersions,
        state: ConnectionState,
    ) -> None:
        self._shared = shared
        self._node_id = node_id
        self._versions = versions
        self._state = state
        self._features: Features | None = None
        self._software: str | None = None
        """The name of the client's software, or None if it has not told it."""
        self.reader: Reader | None = None
        """What is known of the client. None before its first fetch."""
        self._recent: dict[Place, float] = {}
        """When the client was last led away from partitions of this broker, in seconds. Older entries than
        `AGAIN_SECONDS` are removed."""
        self._kept: set[Place] = set()
        """Those of these partitions that are still in the client's own session with this broker. If it is a
        follower, the partitions in this session that it has served."""
        self.not_written: NotWritten | None = NotWritten.NOT_READ
        """Why the client's last fetch got no rack, or None if it got one."""
        self.follower = Follower(state, self._failed, self._count_held, self._silent)
        """The broker, if the client reads partitions here because an answer of their leader led it here."""
        self._alarm: Callable[[float], None] = lambda _: None
        self._ask_at = 0.0
        """The time at which the follower is next asked which replicas are in sync, in seconds."""
        self.leaving: set[Place] = set()
        """The partitions that the client has to read from their leader from the next response on, because the
        follower is not in sync any more."""
        shared.add(self)

    @property
    def follows(self) -> bool | None:
        """Whether the client follows. None if that is not known."""
        reader = self.reader
        if reader is None:
            return None
        if reader.follows:
            return True
        return False if reader.refused_until > self._state.now else None

    @property
    def became(self) -> str:
        """What became of the rack in the client's last fetch: ``written``, or the reason why it was not."""
        return "written" if self.not_written is None else self.not_written

    # Requests

    def on_request(self, data: bytes, size: int, api_key: int, version: int) -> bytes | None:
        """Read the name of the client's software from an ApiVersions request (KIP-511)."""
        if api_key == _API_VERSIONS and len(data) >= size and size < READ_WITHIN:
            with suppress(ProtocolError):
                _, software = read_client_names(data, version)
                if software is not None:
                    self._software, self.reader = software.name, None
        self.follower.asked(api_key)
        return data

    def on_fetch(self, fetch: FetchRequest) -> FetchRequest:
        """Return the fetch with the gateway's rack, if that makes sense."""
        self.not_written = self._against(fetch)
        if self.follower.watched and self._state.now >= self._ask_at:
            self._ask(fetch)
        return fetch if self.not_written is not None else fetch.with_rack(self._shared.rack)

    def repeats(self, api_key: int, _version: int, *, in_session: bool = False) -> bool:  # noqa: ARG002
        """Return whether the next fetch is decided like the last one.

        It is not while the rack is left out for some seconds only, or while responses are held back.
        """
        return api_key != _FETCH or not (self.not_written in _PASSING or self.follower.early)

    def _against(self, fetch: FetchRequest) -> NotWritten | None:
        """Return the reason why a fetch gets no rack, or None. Note whether the client follows."""
        shared, now = self._shared, self._state.now
        if fetch.layout.version < RACK_VERSION:
            return NotWritten.VERSION
        if fetch.rack_id:
            return NotWritten.OWN
        if shared.named(self._state.client_id):
            return NotWritten.NAMED
        if self._state.has_lane:
            return NotWritten.MEMBER  # its fences and scans need the high watermark of one broker
        if not shared.racks.here:
            return NotWritten.NO_BROKER
        reader = self.reader
        if reader is None:
            reader = self.reader = shared.reader(
                self._state.client_id, self._state.host, self._software or ""
            )
        if shared.racks.is_here(self._node_id()):
            self._arrived(fetch, reader)
            return NotWritten.HERE
        again = self._asks_again(fetch, reader, now)
        features = self._features = self._features or self._versions.features
        if features is None:
            return NotWritten.UNKNOWN_BROKER
        if features.fetch_max < OLDEST_FETCH_MAX:
            return NotWritten.OLD_BROKER
        if self._never_comes_back(fetch):
            return NotWritten.CLIENT
        if now < reader.refused_until:
            return NotWritten.DOES_NOT_FOLLOW
        if shared.paused(now):
            return NotWritten.REPLICA
        return NotWritten.AGAIN if again else None

    def _never_comes_back(self, fetch: FetchRequest) -> bool:
        """Return whether the client would stay with a follower that has failed.

        franz-go tells its name. KafkaJS does not; it sends v11 without leader epochs.
        """
        if self._software is not None:
            return self._software in _NEVER_BACK
        if fetch.layout.version != RACK_VERSION or fetch.listing is None or not fetch.partitions:
            return False
        epochs = fetch.listing.entries.view(fetch.layout.request_fields)["epoch"]
        return bool((epochs < 0).all())

    def _arrived(self, fetch: FetchRequest, reader: Reader) -> None:
        """Note whether the client fetches from a follower, as a leader has told it."""
        self._leave_out(fetch)
        if self.follower.watched and reader.follows:
            return
        if _listed(fetch, self._led_here(reader.led, reader)):
            self._followed(reader)
            self.follower.watch()
            self._ask_later()

    def _led_here(self, places: Iterable[Place], reader: Reader) -> list[Place]:
        """Return those of the places for which a leader has sent the client to this broker."""
        node_id = self._node_id()
        return [place for place in places if reader.led.get(place) == node_id]

    def _asks_again(self, fetch: FetchRequest, reader: Reader, now: float) -> bool:
        """Return whether the client asks for a partition that a leader has just led elsewhere."""
        if reader.answered:
            asked, here = self._asked(fetch, reader.answered), reader.answered_by is self
            if here and len(asked) < len(reader.answered):
                self._followed(reader)
            elif asked:
                reader.answered = set()
                # If the connection of the answer has ended, the client may have got no chance to follow.
                reader.misses += reader.answered_by is not None
                if reader.misses >= MISSES:
                    reader.misses, reader.refused_until = 0, now + REFUSED_SECONDS
                return True
        recent = self._recent
        for place in [place for place, at in recent.items() if now - at >= AGAIN_SECONDS]:
            del recent[place]
            self._kept.discard(place)
        unseen = reader.unseen.intersection(recent) if reader.follows else ()
        return bool(unseen) and bool(self._asked(fetch, unseen))

    def _asked(self, fetch: FetchRequest, places: Collection[Place]) -> set[Place]:
        """Return those of the places that a fetch asks for.

        An incremental fetch of the client's own session also asks for partitions that it does not list, until
        it forgets them.
        """
        self._leave_out(fetch)
        return _listed(fetch, places) | self._kept.intersection(places)

    def _leave_out(self, fetch: FetchRequest) -> None:
        """Note the partitions that are not in the client's own session with this broker any more."""
        if fetch.session_id == 0 or fetch.session_epoch <= 0:
            self._kept.clear()
        elif self._kept:
            for key, numbers in fetch.forgotten:
                self._kept.difference_update((key, int(each)) for each in np.frombuffer(numbers, ">i4"))

    @staticmethod
    def _followed(reader: Reader) -> None:
        """Note that the client follows."""
        reader.follows, reader.misses, reader.refused_until = True, 0, 0.0
        reader.answered = set()

    # Responses

    def on_fetched(self, fetching: FetchHandler) -> None:
        """Note the partitions of a response that leads the client to a follower, or that comes from it."""
        walk, fetch, reader = fetching.response.walk, fetching.fetch, self.reader
        if fetch is None or reader is None or fetching.resend is not None:
            return
        if (
            self.follower.watched
            and fetch.frame  # a fetch of the fast path has none, and the next one takes another way
            and reader.unseen
            and not (walk is not None and (walk.failed or walk.error_code))
        ):
            seen = self._asked(fetch, self._led_here(reader.unseen, reader))
            self._shared.counts["moved"] += len(seen)
            reader.unseen -= seen
            if fetch.session_epoch >= 0:
                self._kept |= seen
                if len(self._kept) > _MAX_PLACES:
                    self._kept.intersection_update(reader.led)
        if walk is None or not walk.replicas or self.not_written is NotWritten.OWN:
            return
        now = self._state.now
        self._shared.counts["redirects"] += len(walk.replicas)
        if not reader.follows:
            reader.answered, reader.answered_by = {(key, number) for key, number, _ in walk.replicas}, self
        for key, partition, node_id in walk.replicas:
            place = key, partition
            self._recent[place] = now
            if fetch.session_epoch >= 0:
                self._kept.add(place)
            reader.led.pop(place, None)
            reader.led[place] = node_id
            reader.unseen.add(place)
        if len(reader.led) > _MAX_PLACES:
            reader.led = dict(list(reader.led.items())[-_MAX_PLACES:])
            reader.unseen.intersection_update(reader.led)
        # Here and at the follower, the next fetch is not like the last one.
        self._shared.changed(reader)

    def forget(self) -> None:
        """Decide anew about the next fetch."""
        self._state.plans.forget_fetch()

    # Responses of a follower

    def around_fetch(self, request: InFlight, fetching: FetchHandler) -> Handler:
        """Return the handler of a fetch that a leader has led here.

        If Metadata named the broker before, until a reload, the stage of ``--rack-clients`` still does this.
        """
        here = self.follower.watched and self._shared.racks.is_here(self._node_id()) and fetching.follows
        return Led(self, request.handler, fetching) if here else request.handler

    @property
    def asks_leader(self) -> bool:
        """Whether the client itself asks the leader if a follower answers OFFSET_OUT_OF_RANGE."""
        return self._software is not None and any(name in self._software for name in _ASK_LEADER)

    def out_of_range(self) -> None:
        """Note that a follower lacks records that its client asks for."""
        self._shared.failed("out_of_range", self._state.now)

    def _failed(self, how: str, now: float) -> None:
        self._shared.failed(how, now)
        if how == "overdue":
            self._shared.overdue(self._node_id(), now)

    def _silent(self, now: float) -> bool:
        return self._shared.silent(self._node_id(), now)

    # Replicas in sync

    def _ask_later(self) -> None:
        self._ask_at = self._state.now + ASK_SECONDS
        self._alarm(self._ask_at)

    def _ask(self, fetch: FetchRequest) -> None:
        """Ask the follower for Metadata of the topics that leaders have led the client to."""
        self._ask_later()
        reader = self.reader
        if reader is not None:
            topics = {key for key, _ in self._led_here(reader.led, reader)}
            self.follower.ask(fetch, topics, partial(self._learn, fetch))

    def _learn(self, fetch: FetchRequest, body: bytes, version: int, _now: float) -> None:
        """Note which partitions of a fetch the follower is not in sync with any more.

        Raises:
            ProtocolError: the body is no Metadata response of this version.
        """
        found, node_id, reader = read_replicas(body, version), self._node_id(), self.reader
        if reader is None or node_id is None:
            return
        out = (found.error == 0) & (found.leader != node_id) & ~(found.in_sync == node_id).any(axis=1)
        places = {
            (key, int(number))
            for topic in found.topics
            for number in found.partition[topic.start : topic.end][out[topic.start : topic.end]]
            for key in (topic.name, topic.topic_id)
        }
        self.leaving = self._asked(fetch, self._led_here(places, reader))

    def leave(self) -> set[Place]:
        """Return the partitions that the client leaves with the next response, and note that it is told."""
        leaving, self.leaving = self.leaving, set()
        self._shared.returns["isr"] += len(leaving)
        if self.reader is not None:
            for place in leaving:
                self.reader.led.pop(place, None)
        return leaving

    def _count_held(self) -> None:
        self._shared.counts["held"] += 1

    def attach(self, _wake: Callable[[], None], alarm: Callable[[float], None]) -> None:
        """Attach the I/O shell."""
        self._alarm = alarm
        self.follower.attach(alarm)

    def tick(self, now: float) -> None:
        """See `Follower.tick`. From time to time, the follower is asked before the next fetch."""
        self.follower.tick(now)
        if self.follower.watched and now >= self._ask_at:
            self.forget()

    def release(self) -> None:
        """See `Follower.release`."""
        self.follower.release()

    def lose(self) -> None:
        """See `Follower.lose`."""
        self.follower.lose()

    def end(self) -> None:
        """Forget the connection."""
        self.follower.end()
        if self.reader is not None and self.reader.answered_by is self:
            self.reader.answered_by = None
        self._shared.remove(self)


def _listed(fetch: FetchRequest, places: Collection[Place]) -> set[Place]:
    """Return which of the places a fetch lists."""
    listing = fetch.listing
    if listing is None or not places:
        return set()
    numbers = listing.entries.view(listing.layout.request_fields)["partition"]
    found: set[Place] = set()
    for key, start, end in _spans(listing.keys, listing.counts):
        wanted = [number for topic, number in places if topic == key]
        if wanted:
            present = np.asarray(wanted)[np.isin(wanted, numbers[start:end])]
            found.update((key, int(number)) for number in present)
    return found


def _spans(keys: list[bytes], counts: list[int]) -> Iterator[tuple[bytes, int, int]]:
    """Yield each topic's key with the range of its entries."""
    done = 0
    for key, count in zip(keys, counts, strict=True):
        yield key, done, done + count
        done += count


_PASSING: Final = frozenset({NotWritten.REPLICA, NotWritten.AGAIN, NotWritten.UNKNOWN_BROKER})
"""Reasons that end by themselves after some time."""
