"""Makes the traffic of consumers of any Fetch version, with everything that disturbs its measurement.

A consumer's traffic is a list of steps. Most steps are runs of fetches that rotate their list and get nothing
new, because these are what the fast ways of `measure` take together.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import chain, pairwise
from typing import Any, Final, TypeVar

from hypothesis import strategies as st

from proxy.protocol.api import ApiKey
from proxy.protocol.messages import response
from proxy.protocol.primitives import encode_compact_count, encode_compact_string
from proxy.protocol.schemas import DESCRIBE_CLUSTER, METADATA
from replay.capture.packets.tcp import FIN, RST, SYN
from tests.features.cooperative.batch import batch
from tests.frames import Want, entry, fetch, fetch_response, framed, topic_id
from tests.model.broker import ModelBroker
from tests.replay.capture.packets_of import Row, resized
from tests.replay.measure.consumers import keyed, string

T = TypeVar("T")
TOPICS: Final = ("orders", "audit", "events")
_MS: Final = 1_000_000
_START: Final = 1_700_000_000_000 * _MS
_SESSION: Final = 4711


@dataclass(frozen=True, slots=True)
class Step:
    """Something that a consumer does, some times in a row."""

    kind: str
    times: int
    number: int
    """Selects a partition, an error, or how much is asked for."""
    after: int = _MS
    """Nanoseconds from the last packet to the first one of the step."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What a consumer does."""

    version: int
    """The version of its fetches."""
    topics: int
    partitions: int
    """The number of partitions of each topic."""
    size: int
    """The payload of a packet has at most this many bytes."""
    begins: bool
    """Whether the beginning of the connection is captured."""
    steps: list[Step]
    isolation: int = 0
    ring: bool = False
    """Whether the partitions of all topics are rotated in one list, as librdkafka does. Then the list of a
    fetch may begin and end with partitions of the same topic. Otherwise those of each topic are rotated."""


@dataclass(slots=True)
class Traffic:
    """One consumer's connection, as rows of captured packets."""

    number: int
    plan: Plan
    rows: list[Row] = field(default_factory=list)
    _time: int = _START
    _next: dict[bool, int] = field(default_factory=lambda: {True: 7, False: 9})
    _correlation: int = 0
    _turned: int = 0
    _offsets: dict[tuple[str, int], int] = field(default_factory=dict)
    _epoch: int = 0

    def play(self) -> list[Row]:
        """Play the whole plan, and return the rows."""
        if self.plan.begins:
            self._reopened(0)
        for step in self.plan.steps:
            self._time += step.after
            for _ in range(step.times):
                getattr(self, f"_{step.kind}")(step.number)
        return self.rows

    def _idle(self, _: int) -> None:
        self._turned += 1
        self._fetch()

    def _records(self, number: int) -> None:
        self._turned += 1
        self._fetch(records={number % (self.plan.topics * self.plan.partitions)})

    def _moved(self, number: int) -> None:
        wants = self._wants()
        topic, partition, offset = wants[number % len(wants)]
        self._offsets[topic, partition] = offset + 1 + number
        self._fetch()

    def _unlisted(self, number: int) -> None:
        wants = self._wants()
        del wants[number % len(wants)]
        self._fetch(wants)

    def _error(self, number: int) -> None:
        self._fetch(errors={number: (1, 3, 6, 74, 100)[number % 5]})

    def _failed(self, number: int) -> None:
        self._fetch(error_code=(70, 71, 6, -1)[number % 4] if self.plan.version > 6 else 0)

    def _throttled(self, number: int) -> None:
        self._fetch(throttle_time_ms=number)

    def _asks_otherwise(self, number: int) -> None:
        self._fetch(asked={"max_bytes": 1_000 * (1 + number), "isolation_level": number % 2})

    def _own_session(self, number: int) -> None:
        """Fetch in a session of the client's own: in full at first, then one partition."""
        wants = self._wants() if not self._epoch else self._wants()[:1]
        session = (_SESSION if self._epoch else 0, self._epoch)
        self._epoch += 1
        self._fetch(wants, session=session, answered={number} if self._epoch > 1 else None)

    def _pipelined(self, number: int) -> None:
        self._pairs([self._pair(), self._pair(records={number})])

    def _same_ids(self, number: int) -> None:
        pairs = [self._pair(), self._pair(records={number})]
        self._correlation -= 1
        self._pairs([pairs[0], self._pair(records={number})])

    def _wrong_id(self, _: int) -> None:
        asked, told = self._pair()
        self._pairs([(asked, told[:4] + b"\x7f" + told[5:])])

    def _asked_twice(self, _: int) -> None:
        asked, told = self._pair()
        self._pairs([(asked * 2, told)])

    def _unanswered(self, _: int) -> None:
        self._pairs([(self._pair()[0], b"")])

    def _lost(self, number: int) -> None:
        """Send a fetch and its response, and lose one of their packets."""
        before = len(self.rows)
        self._fetch(records={number} if number % 3 == 0 else frozenset())
        del self.rows[before + number % (len(self.rows) - before)]

    def _again(self, number: int) -> None:
        self.rows += self.rows[-1 - number % 3 :]

    def _swapped(self, _: int) -> None:
        """Swap the last two packets. A connection that the capture joins late may have none yet."""
        for first, second in pairwise(self.rows[-2:]):
            self.rows[-2:] = replace(second, time=first.time), replace(first, time=second.time)

    def _group(self, number: int) -> None:
        group = string(f"group-{number % 2}")
        self._ask(ApiKey.HEARTBEAT, 3, group + bytes(4) + string("member") + b"\xff\xff")

    def _produces(self, _: int) -> None:
        self._say(self._request(ApiKey.PRODUCE, 7, b"\xff\xff\0\0" + bytes(8)), client=True)

    def _fin(self, _: int) -> None:
        self._add(b"", client=True, flags=FIN)

    def _rst(self, _: int) -> None:
        self._add(b"", client=False, flags=RST)

    def _reopened(self, _: int) -> None:
        """Add SYN packets, and what a client asks for first."""
        self._time += _MS
        self._next = {True: 0xFFFF_F000 + self._time // _MS % 4000, False: 2000 + self.number}
        self._add(b"", client=True, flags=SYN)
        self._add(b"", client=False, flags=SYN)
        self._ask(ApiKey.API_VERSIONS, 0, b"")
        if self.plan.version > 12:
            metadata = _metadata(self.plan.topics, self.plan.partitions)
            self._ask(ApiKey.METADATA, 12, bytes(4), metadata, flexible=True)

    def _cluster(self, number: int) -> None:
        """Ask for the brokers. Their racks and the replicas in the ISR depend on the number."""
        version = 1 + number % 13
        nodes = [
            {
                "node_id": at,
                "host": f"10.0.0.{2 + at}".encode(),
                "port": 9092,
                "rack": (b"R0", b"R1", None)[(at + number // 3) % 3],
                "is_fenced": False,
            }
            for at in range(3)
        ]
        head = {
            "throttle_time_ms": 0,
            "brokers": nodes,
            "controller_id": 0,
            "cluster_authorized_operations": 0,
        }
        head |= {"cluster_id": (b"c", b"d")[number % 5 == 4], "error_code": 0}
        if number % 4 == 3:
            head |= {"error_message": None, "endpoint_type": 1}
            self._ask(ApiKey.DESCRIBE_CLUSTER, number % 3, b"", _body(DESCRIBE_CLUSTER, 60, number % 3, head))
            return
        isr = [at for at in range(3) if (number + at) % 2]
        partition = {"error_code": 0, "leader_id": 0, "leader_epoch": 1, "offline_replicas": []}
        topics = [
            {
                "error_code": 0,
                "name": name.encode(),
                "topic_id": topic_id(name),
                "is_internal": False,
                "partitions": [
                    {**partition, "partition_index": at, "replica_nodes": [0, 1, 2], "isr_nodes": isr}
                    for at in range(self.plan.partitions)
                ],
                "topic_authorized_operations": 0,
            }
            for name in TOPICS[: self.plan.topics]
        ]
        told = _body(METADATA, ApiKey.METADATA, version, head | {"topics": topics})
        self._ask(ApiKey.METADATA, version, b"", told)

    def _garbage(self, number: int) -> None:
        self._say(bytes(range(number)) * 9 or b"?", client=number % 2 == 0)

    def _wants(self) -> list[tuple[str, int, int]]:
        """Return all partitions, rotated as often as fetches were sent."""
        topics, count, turned = TOPICS[: self.plan.topics], self.plan.partitions, self._turned
        if self.plan.ring:
            listed = rotated([(topic, at) for topic in topics for at in range(count)], turned)
        else:
            listed = [(topic, at) for topic in topics for at in rotated(range(count), turned)]
        return [(topic, at, self._offsets.get((topic, at), 0)) for topic, at in listed]

    def _fetch(self, wants: Sequence[Want] | None = None, **more: Any) -> None:
        self._pairs([self._pair(wants, **more)])

    def _pair(
        self,
        wants: Sequence[Want] | None = None,
        *,
        records: Iterable[int] = (),
        errors: dict[int, int] | None = None,
        answered: set[int] | None = None,
        session: tuple[int, int] = (0, -1),
        asked: dict[str, Any] | None = None,
        **told: int,
    ) -> tuple[bytes, bytes]:
        """Return a fetch and its response. Numbers select partitions by their places in the fetch."""
        wants = wants if wants is not None else self._wants()
        self._correlation += 1
        filled = {at % len(wants) for at in records}
        failed = {at % len(wants): code for at, code in (errors or {}).items()}
        shown = range(len(wants)) if answered is None else {at % len(wants) for at in answered}
        request = fetch(
            self.plan.version,
            *wants,
            session=session,
            correlation=self._correlation,
            client=self._client,
            **{"isolation_level": self.plan.isolation} | (asked or {}),
        )
        topics: list[tuple[str, list[Any]]] = []
        for at, (topic, partition, *offset) in enumerate(wants):
            if at not in shown:
                continue
            begin = offset[0] if offset else 0
            own = _batch(begin) if at in filled else b""
            error, end = failed.get(at, 0), begin + (9 if own else 0)
            none = () if self.plan.isolation and not error else None
            made = entry(partition, end, error=error, records=own, aborted=none)
            if not topics or topics[-1][0] != topic:
                topics.append((topic, []))
            topics[-1][1].append(made)
            if own:
                self._offsets[topic, partition] = begin + 9
        session_id = _SESSION if session[1] >= 0 else 0
        told = {"correlation_id": self._correlation, "session_id": session_id} | told
        elements = [] if told.get("error_code") else topics
        return request, fetch_response(self.plan.version, *elements, **told)

    def _pairs(self, pairs: Sequence[tuple[bytes, bytes]]) -> None:
        """Send requests, and then their responses."""
        self._say(b"".join(asked for asked, _ in pairs), client=True)
        self._say(b"".join(told for _, told in pairs), client=False)

    def _ask(self, key: int, version: int, body: bytes, told: bytes = b"", *, flexible: bool = False) -> None:
        request = self._request(key, version, (b"\0" if flexible else b"") + body)
        response = self._correlation.to_bytes(4) + (told or bytes(6))
        if key == ApiKey.API_VERSIONS:
            response = ModelBroker("4.3" if self.plan.version > 3 else "3.9").handle(request[4:], 0.0)
        self._pairs([(request, framed(response))])

    def _request(self, key: int, version: int, body: bytes) -> bytes:
        self._correlation += 1
        head = int(key).to_bytes(2) + version.to_bytes(2) + self._correlation.to_bytes(4)
        return framed(head + string(self._client) + body)

    @property
    def _client(self) -> str:
        return f"client-{self.number % 2}"

    def _say(self, payload: bytes, *, client: bool) -> None:
        self._time += _MS
        self._add(payload, client=client) if payload else None

    def _add(self, payload: bytes, *, client: bool, flags: int = 0) -> None:
        ends = (bytes([10, 0, 0, 1]), 50_000 + self.number), (bytes([10, 0, 0, 2 + self.number // 2]), 9092)
        made = Row(
            connection=b"\4" + b"".join(address + port.to_bytes(2) for address, port in ends),
            from_low=client,
            time=self._time,
            sequence=self._next[client],
            payload=payload,
            flags=flags,
            ack=-1 if flags & SYN and client else self._next[not client],
        )
        self.rows += resized([made], self.plan.size)
        self._next[client] = self._next[client] + len(payload) + bool(flags & (SYN | FIN)) & 0xFFFF_FFFF


def rotated(values: Sequence[T], times: int) -> list[T]:
    at = times % len(values)
    return [*values[at:], *values[:at]]


def _body(schema: str, key: int, version: int, values: dict[str, Any]) -> bytes:
    """Return a response without its length and correlation id."""
    return response(schema, key, version, bytes(4), **values)[8:]


@cache
def _batch(base: int) -> bytes:
    """Return nine records with keys from this offset on."""
    return batch(keyed([b"key-%d" % (at % 4) for at in range(9)], base))


@cache
def _metadata(topics: int, partitions: int) -> bytes:
    """Return a Metadata response of v12, without its correlation id."""
    nodes = encode_compact_count(1) + bytes(4)
    each = b"".join(bytes(2) + at.to_bytes(4) + bytes(8) + nodes * 2 + b"\1\0" for at in range(partitions))
    host = (
        bytes(4) + encode_compact_string(b"host") + (9092).to_bytes(4) + encode_compact_string(None) + b"\0"
    )
    found = b"\0" + bytes(4) + encode_compact_count(1) + host + encode_compact_string(b"cluster") + bytes(4)
    found += encode_compact_count(topics)
    for name in TOPICS[:topics]:
        head = bytes(2) + encode_compact_string(name.encode()) + topic_id(name) + b"\0"
        found += head + encode_compact_count(partitions) + each + bytes(4) + b"\0"
    return found + b"\0"


KINDS: Final = (
    *(
        "idle",
        "records",
        "moved",
        "unlisted",
        "error",
        "failed",
        "throttled",
        "asks_otherwise",
        "own_session",
    ),
    *("pipelined", "same_ids", "wrong_id", "asked_twice", "unanswered", "lost", "again", "swapped", "group"),
    *("produces", "fin", "rst", "reopened", "garbage", "cluster"),
)
"""The kinds of steps."""

_pauses = st.sampled_from([0, 1, _MS, 500 * _MS, 3_000 * _MS, 700_000 * _MS])
_settled = st.builds(Step, st.sampled_from(["idle", "records"]), st.integers(4, 25), st.integers(0, 9))
_odd = st.builds(Step, st.sampled_from(KINDS), st.integers(1, 3), st.integers(0, 29), _pauses)


plans = st.lists(
    st.builds(
        Plan,
        version=st.integers(0, 18),
        topics=st.integers(1, 3),
        partitions=st.sampled_from([1, 5, 12]),
        size=st.sampled_from([150, 1448, 30_000]),
        begins=st.sampled_from([True, True, True, False]),
        steps=st.lists(st.one_of(_settled, _odd), min_size=1, max_size=10),
        isolation=st.sampled_from([0, 0, 1]),
        ring=st.booleans(),
    ),
    min_size=1,
    max_size=3,
)


def traffic(plans: Iterable[Plan]) -> list[Row]:
    """Return the rows of several consumers, in the order of their times."""
    made = chain(*(Traffic(number, plan).play() for number, plan in enumerate(plans)))
    return sorted(made, key=lambda one: one.time)


def every_kind(version: int) -> Plan:
    """Return a plan with steps of all kinds."""
    steps = [step for at, kind in enumerate(KINDS) for step in (Step("idle", 6, 0), Step(kind, 2, at))]
    return Plan(version=version, topics=2, partitions=5, size=1448, begins=True, steps=steps)
