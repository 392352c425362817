"""Makes clients read from a replica in the gateway's rack: ``--rack-reads client`` (KIP-392). Sans-IO.

A leader with a replica selector that gets a fetch with a rack answers with the id of a follower in that rack,
and with no records. A client that understands this fetches from the follower. The gateway writes its own rack
into fetches without a rack, so that such clients need no setting.

Some clients do not understand the answer, and others never come back from a follower that has failed. So the
gateway watches what each client does with an answer, and stops writing the rack where it does not help. A
fetch without the rack is always served by the leader.
"""

from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, Protocol, TypeAlias

import numpy as np

from proxy.core.connection_state import ConnectionState, Phase
from proxy.core.eligibility import BrokerVersions
from proxy.core.in_flight import FetchHandler
from proxy.core.requests import read_client_names
from proxy.core.stage import Stage
from proxy.protocol.api import ApiKey
from proxy.protocol.api_versions import Features
from proxy.protocol.fetch_layout import RACK_VERSION
from proxy.protocol.fetch_request import FetchRequest
from proxy.protocol.primitives import ProtocolError
from proxy.protocol.produce import READ_WITHIN

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
"""The shortest time between two answers that lead a client away from the leader of one partition, in seconds.

A client that comes back sooner is served by the leader: it may not reach the follower.
"""
PAUSE_SECONDS: Final = 30.0
"""How long no fetch gets a rack after a follower has failed, in seconds. The leader may not know yet that it
has failed."""
MAX_PAUSE_SECONDS: Final = 300.0
"""The longest such pause. Each failure soon after the last pause doubles the pause."""
OVERDUE_SECONDS: Final = 2.0
"""A follower has failed if the response to a fetch is this late, in seconds, after max_wait_ms."""
MAX_READERS: Final = 10_000
"""The maximum number of clients of which the gateway remembers whether they follow."""
_LOOK_SECONDS: Final = 0.5
"""How often a late response is looked at while its bytes still arrive, in seconds."""
_MAX_PLACES: Final = 10_000
"""The maximum number of partitions that are remembered of one client."""
_FETCH: Final = int(ApiKey.FETCH)
_API_VERSIONS: Final = int(ApiKey.API_VERSIONS)
_NEVER_BACK: Final = frozenset({"kgo", "franz-go"})
"""Software that does not come back from a follower that has failed: franz-go (KIP-511 name ``kgo``)."""

Place: TypeAlias = tuple[bytes, int]
"""A partition: the topic's key in fetches (its name, or its id from v13 on), and the partition's number."""


class NotWritten(StrEnum):
    """Why a fetch has no rack of the gateway."""

    VERSION = "fetch version"
    OWN = "client has a rack"
    NOT_READ = "not read"
    NO_BROKER = "no broker in the rack"
    HERE = "broker is in the rack"
    UNKNOWN_BROKER = "broker's release is not known yet"
    OLD_BROKER = "broker before 3.5"
    CLIENT = "client never comes back from a failed replica"
    DOES_NOT_FOLLOW = "does not follow"
    REPLICA = "a replica failed"
    AGAIN = "asked the leader again"


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
    led: dict[Place, int] = field(default_factory=dict)
    """The partitions that a leader has led the client away from, each with the id of the follower."""


class RackReads:
    """What the connections of a process share.

    Args:
        rack: the gateway's rack.
        racks: the racks of the brokers.
    """

    def __init__(self, rack: str, racks: Racks) -> None:
        self.rack = rack.encode()
        self.racks = racks
        self.counts: Counter[str] = Counter(redirects=0, moved=0)
        """The number of partitions in answers that led a client to a follower, and of those that it then
        followed."""
        self.returns: Counter[str] = Counter(unreachable=0, closed=0, overdue=0)
        """The number of failed followers, by what was seen of them."""
        self._readers: OrderedDict[tuple[str, str, str], Reader] = OrderedDict()
        self._stages: set[RackReadsStage] = set()
        self._paused_until = 0.0
        self._pause = PAUSE_SECONDS

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
        return now < self._paused_until

    def failed(self, how: str, now: float) -> None:
        """Note that a follower does not serve its clients.

        Args:
            how: ``unreachable``, ``closed`` or ``overdue``.
            now: the time in seconds.
        """
        self.returns[how] += 1
        if self.paused(now):
            return
        recent = now - self._paused_until < MAX_PAUSE_SECONDS and self._paused_until > 0
        self._pause = min(2 * self._pause, MAX_PAUSE_SECONDS) if recent else PAUSE_SECONDS
        self._paused_until = now + self._pause
        self.changed()

    def unreachable(self, node_id: int | None, now: float) -> None:
        """Note that the gateway could not connect to a broker. If it is in the rack, it may be a follower."""
        if self.racks.is_here(node_id):
            self.failed("unreachable", now)

    def changed(self) -> None:
        """Have each connection decide anew, because something has changed for all of them."""
        for stage in self._stages:
            stage.forget()

    def add(self, stage: "RackReadsStage") -> None:
        """Add the stage of a new connection."""
        self._stages.add(stage)

    def remove(self, stage: "RackReadsStage") -> None:
        """Remove the stage of a connection that has ended."""
        self._stages.discard(stage)


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
        "_answered",
        "_bytes_in",
        "_due",
        "_features",
        "_kept",
        "_node_id",
        "_reader",
        "_recent",
        "_shared",
        "_software",
        "_state",
        "_to_follower",
        "_versions",
        "not_written",
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
        self._reader: Reader | None = None
        self._answered: set[Place] = set()
        """The partitions of the last answer that led the client elsewhere, until its next fetch."""
        self._recent: dict[Place, float] = {}
        """When the client was last led away from partitions of this broker, in seconds. Older entries than
        `AGAIN_SECONDS` are removed."""
        self._kept: set[Place] = set()
        """Those of these partitions that are still in the client's own session with this broker."""
        self.not_written: NotWritten | None = NotWritten.NO_BROKER
        """Why the client's last fetch got no rack, or None if it got one."""
        self._to_follower = False
        """Whether the client reads partitions here because an answer of their leader led it here."""
        self._bytes_in = 0
        """The number of bytes that the broker had sent at the last call of `tick`."""
        self._due = 0.0
        """The time at which `tick` next looks at the follower, in seconds."""
        self._alarm: Callable[[float], None] = lambda _: None
        shared.add(self)

    @property
    def follows(self) -> bool | None:
        """Whether the client follows. None if that is not known."""
        reader = self._reader
        if reader is None:
            return None
        if reader.follows:
            return True
        return False if reader.refused_until > self._state.now else None

    # Requests

    def on_request(self, data: bytes, size: int, api_key: int, version: int) -> bytes | None:
        """Read the name of the client's software from an ApiVersions request (KIP-511)."""
        if api_key == _API_VERSIONS and len(data) >= size and size < READ_WITHIN:
            with suppress(ProtocolError):
                _, software = read_client_names(data, version)
                if software is not None:
                    self._software, self._reader = software.name, None
        return data

    def on_fetch(self, fetch: FetchRequest) -> FetchRequest:
        """Return the fetch with the gateway's rack, if that makes sense."""
        self.not_written = self._against(fetch)
        return fetch if self.not_written is not None else fetch.with_rack(self._shared.rack)

    def repeats(self, api_key: int, _version: int, *, in_session: bool = False) -> bool:  # noqa: ARG002
        """Return whether the next fetch is decided like the last one.

        It is not while the rack is left out for some seconds only.
        """
        return api_key != _FETCH or self.not_written not in _PASSING

    def _against(self, fetch: FetchRequest) -> NotWritten | None:
        """Return the reason why a fetch gets no rack, or None. Note whether the client follows."""
        shared, now = self._shared, self._state.now
        if fetch.layout.version < RACK_VERSION:
            return NotWritten.VERSION
        if fetch.rack_id:
            return NotWritten.OWN
        if not shared.racks.here:
            return NotWritten.NO_BROKER
        reader = self._reader
        if reader is None:
            reader = self._reader = shared.reader(
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
        """Note which partitions the client fetches from a follower, as their leaders have told it."""
        if self._to_follower and reader.follows:
            return
        node_id = self._node_id()
        places = [place for place, to in reader.led.items() if to == node_id]
        if listed := _listed(fetch, places):
            self._followed(reader, len(listed))
            self._watch()

    def _asks_again(self, fetch: FetchRequest, reader: Reader, now: float) -> bool:
        """Return whether the client asks for a partition that the leader has just led elsewhere."""
        recent = self._recent
        if not recent:
            return False
        asked = self._asked(fetch, recent)
        answered, self._answered = self._answered, set()
        if answered and not reader.follows:
            if not answered <= asked:
                self._followed(reader, len(answered - asked))
                return False
            reader.misses += 1
            if reader.misses >= MISSES:
                reader.misses, reader.refused_until = 0, now + REFUSED_SECONDS
            return True
        for place in [place for place, at in recent.items() if now - at >= AGAIN_SECONDS]:
            del recent[place]
            self._kept.discard(place)
        return reader.follows and any(place in recent for place in asked)

    def _asked(self, fetch: FetchRequest, places: Collection[Place]) -> set[Place]:
        """Return those of the places that a fetch asks for.

        An incremental fetch of the client's own session also asks for partitions that it does not list, until
        it forgets them.
        """
        asked = _listed(fetch, places)
        if fetch.session_id and fetch.session_epoch > 0:
            for key, numbers in fetch.forgotten:
                self._kept.difference_update((key, int(each)) for each in np.frombuffer(numbers, ">i4"))
            asked |= self._kept
        return asked

    def _followed(self, reader: Reader, partitions: int) -> None:
        """Note that the client follows."""
        self._shared.counts["moved"] += partitions
        reader.follows, reader.misses, reader.refused_until = True, 0, 0.0

    # Responses

    def on_fetched(self, fetching: FetchHandler) -> None:
        """Note the partitions of a response that leads the client to a follower."""
        walk, fetch, reader = fetching.response.walk, fetching.fetch, self._reader
        if walk is None or not walk.replicas or fetching.resend is not None:
            return
        if fetch is None or reader is None or self.not_written is NotWritten.OWN:
            return
        now = self._state.now
        self._shared.counts["redirects"] += len(walk.replicas)
        for key, partition, node_id in walk.replicas:
            place = key, partition
            self._answered.add(place)
            self._recent[place] = now
            if fetch.session_epoch >= 0:
                self._kept.add(place)
            reader.led.pop(place, None)
            reader.led[place] = node_id
        if len(reader.led) > _MAX_PLACES:
            reader.led = dict(list(reader.led.items())[-_MAX_PLACES:])
        self.forget()

    def forget(self) -> None:
        """Decide anew about the next fetch."""
        self._state.plans.forget_fetch()

    # The follower's health

    def attach(self, _wake: Callable[[], None], alarm: Callable[[float], None]) -> None:
        """Attach the I/O shell."""
        self._alarm = alarm

    def _watch(self) -> None:
        """Begin to look whether the follower answers."""
        if not self._to_follower:
            self._to_follower = True
            self._look_at(self._state.now + OVERDUE_SECONDS)

    def _look_at(self, due: float) -> None:
        self._due = due
        self._alarm(due)

    def tick(self, now: float) -> None:
        """End the connection if the follower does not answer a fetch. The client then asks the leader."""
        state = self._state
        if not self._to_follower or now < self._due:
            return
        if state.fault is not None or state.phase is Phase.CLOSING:
            return
        head = state.queue.expected[0] if state.queue.expected else None
        due = now + OVERDUE_SECONDS
        if head is not None and head.api_key == _FETCH:
            due = head.sent_at + head.handler.wait + OVERDUE_SECONDS
            bytes_in = state.plans.count().broker.bytes_in
            if now >= due and bytes_in == self._bytes_in:
                self._shared.failed("overdue", now)
                state.fail("broker", "a replica in the rack does not respond, so its client asks the leader")
                return
            self._bytes_in = bytes_in
        self._look_at(due if due > now else now + _LOOK_SECONDS)

    def lose(self) -> None:
        """Note that the broker has closed the connection: it may be about to stop."""
        if self._to_follower and self._state.phase is not Phase.CLOSING and self._state.fault is None:
            self._shared.failed("closed", self._state.now)

    def end(self) -> None:
        """Forget the connection."""
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
