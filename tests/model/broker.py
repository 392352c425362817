"""A model of a Kafka broker, for tests.

It answers Fetch as Kafka does (KIP-227), and ApiVersions. Its response to any other request is the request
without the API key and the version.
"""

import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import groupby

from tests.model.log import Partition, Topic
from tests.model.primitives import Reader, Writer
from tests.model.reading import HINTED, Allowance, Reading
from tests.model.releases import Release
from tests.model.sessions import CachedPartition, FetchSession, FetchSessionCache, Key, ShardError
from tests.model.wire import (
    FETCH,
    ZERO_ID,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    NodeEndpoint,
    PartitionData,
    TopicData,
    decode_request,
    encode_response,
    find_tag,
    node_endpoints_tag,
)

API_VERSIONS = 18
UNKNOWN_TOPIC_OR_PARTITION = 3
TOPIC_AUTHORIZATION_FAILED = 29
UNSUPPORTED_VERSION = 35
KAFKA_STORAGE_ERROR = 56
FETCH_SESSION_ID_NOT_FOUND = 70
INVALID_FETCH_SESSION_EPOCH = 71
UNSUPPORTED_COMPRESSION_TYPE = 76
UNKNOWN_TOPIC_ID = 100
INCONSISTENT_TOPIC_ID = 103
FETCH_SESSION_TOPIC_ID_ERROR = 106
MAX_EPOCH = 2**31 - 1


class ConnectionClosedError(Exception):
    """The broker closes the connection instead of answering."""


@dataclass(slots=True)
class Pending:
    """A received fetch. Its session has been updated, but no records have been read yet."""

    request: FetchRequest
    partitions: list[CachedPartition]
    session: FetchSession | None = None
    makes_session: bool = False
    error: int = 0


@dataclass(slots=True)
class Result:
    """The model broker's answer for one partition.

    It has the partition as it was requested, and its entry in the response.
    """

    partition: CachedPartition
    data: PartitionData


def next_epoch(epoch: int) -> int:
    if epoch < 0:
        return -1
    return 1 if epoch == MAX_EPOCH else epoch + 1


def same_topic(partition: CachedPartition) -> object:
    return partition.topic_id if partition.topic_id != ZERO_ID else partition.topic


@dataclass
class ModelBroker:
    """One broker of Kafka version `release`. Tests may change its state between two requests."""

    release: str = "4.3"
    node_id: int = 1
    slots: int = 1000
    fetch_max_bytes: int = 57_671_680
    seed: int = 0
    topics: dict[str, Topic] = field(default_factory=dict)
    nodes: dict[int, NodeEndpoint] = field(default_factory=dict)
    """The brokers that are alive, by node id."""
    denied: set[str] = field(default_factory=set)
    """Topics that may not be read."""
    throttle_ms: int = 0
    """If above 0, every consumer's fetch is treated as above its quota, with this throttle time in ms. Set by
    tests."""
    failure: int = 0
    """If not 0, every fetch fails with this error code, after its changes to the session were applied. Set by
    tests."""

    dialect: str = ""
    """How brokers other than Kafka write entries without error.

    "null": null in place of an empty list of aborted transactions. "list": an empty list of aborted
    transactions, also for read_uncommitted. "null records": null in place of empty records.
    """
    empties: bool = True
    """Whether a throttled response has no entries, as in releases that send throttled responses at once."""

    def __post_init__(self) -> None:
        self.quirks = Release.parse(self.release)
        self.cache = FetchSessionCache(slots=self.slots, sharded=self.quirks.sharded, seed=self.seed)
        self._ids = random.Random(self.seed + 1)

    # Topics

    def create_topic(self, name: str, partitions: int = 1) -> Topic:
        topic = Topic(name, self._ids.randbytes(16), {i: Partition(self.node_id) for i in range(partitions)})
        self.topics[name] = topic
        return topic

    def delete_topic(self, name: str) -> None:
        del self.topics[name]

    def partition(self, name: str, index: int = 0) -> Partition:
        return self.topics[name].partitions[index]

    # Frames

    def handle(self, frame: bytes, now: float) -> bytes:
        """Process one request frame and return the response. Neither frame has a length prefix.

        Args:
            frame: the request.
            now: the time in seconds.

        Raises:
            ConnectionClosedError: the broker does not know the Fetch version of the request.
        """
        reader = Reader(frame)
        key, version, correlation_id = reader.number("h"), reader.number("h"), reader.number("i")
        if key == FETCH:
            first, last = self.quirks.fetch_versions
            if not first <= version <= last:
                raise ConnectionClosedError(f"Fetch v{version}")
            return encode_response(self.fetch(decode_request(frame), now))
        if key == API_VERSIONS:
            return self._api_versions(version, correlation_id)
        return frame[4:]

    def _api_versions(self, version: int, correlation_id: int) -> bytes:
        release = self.quirks.version
        highest = 4 if release >= (4, 0) else 3 if release >= (2, 4) else 2 if release >= (2, 0) else 1
        answered = version if version <= highest else 0
        ranges = [
            (0, 0, 3),
            (FETCH, *self.quirks.fetch_versions),
            (3, 0, 5),
            (9, 0, 7 if release >= (2, 5) else 3),
            (10, 0, 4 if release >= (3, 0) else 1),
            (API_VERSIONS, 0, highest),
        ]
        if version > highest:
            ranges = ranges[-1:] if release >= (2, 4) else []

        def one(out: Writer, item: tuple[int, int, int]) -> None:
            for number in item:
                out.number("h", number)
            out.tags(())

        out = Writer(flexible=answered >= 3)
        out.number("i", correlation_id)
        out.number("h", UNSUPPORTED_VERSION if version > highest else 0)
        out.array(ranges, one)
        out.number("i", 0, when=answered >= 1)
        out.tags(())
        return bytes(out.data)

    # Fetch

    def fetch(self, request: FetchRequest, now: float) -> FetchResponse:
        """Answer a fetch at once, whatever its max_wait_ms."""
        try:
            pending = self.arrive(request, now)
        except ShardError:
            return self._failed(request, -1)
        return self.response(pending, now)

    def arrive(self, request: FetchRequest, now: float) -> Pending:
        """Process a received fetch: look up the session, apply the delta, advance the epoch.

        Raises:
            ShardError: the session id belongs to no shard.
        """
        if request.session_epoch in (0, -1):
            if request.session_id:
                self._drop(self.cache.get(request.session_id))
            listed = self._listed(request)
            return Pending(request, listed, makes_session=request.session_epoch == 0)
        session = self.cache.get(request.session_id)
        error = self._session_error(session, request)
        if session is None or error:
            return Pending(request, [], error=error)
        self._apply_delta(session, request)
        if not session.partitions:
            self._drop(session)
            return Pending(request, self._listed(request))
        if not self.quirks.touches_on_resize_only or len(session.partitions) != session.cached_size:
            self.cache.touch(session, round(now * 1000))
        session.epoch = next_epoch(session.epoch)
        return Pending(request, list(session.partitions.values()), session=session)

    def response(self, pending: Pending, now: float) -> FetchResponse:
        """Read the partitions of a received fetch, and return the response."""
        request, session = pending.request, pending.session
        if self.failure:
            return self._failed(request, self.failure)
        results = [] if pending.error else self._read(pending)
        throttled = self.throttle_ms if request.replica < 0 else 0
        overtaken = session is not None and session.epoch != next_epoch(request.session_epoch)
        if overtaken and session is not None:
            return self._response(
                request,
                [],
                error=INVALID_FETCH_SESSION_EPOCH,
                session_id=session.session_id,
                throttled=throttled,
            )
        session_id = session.session_id if session else 0
        if throttled and self.quirks.throttles_empty and self.empties:
            return self._response(request, [], session_id=session_id, throttled=throttled, hinted=results)
        if pending.error:
            return self._response(request, [], error=pending.error, throttled=throttled)
        if session is not None:
            results = self._changed(session, results)
        elif pending.makes_session:
            session_id = self._make_session(request, results, round(now * 1000))
        converted = [self._convert(request, result) for result in results]
        return self._response(request, converted, session_id=session_id, throttled=throttled, hinted=results)

    def _drop(self, session: FetchSession | None) -> None:
        if session is not None:
            self.cache.remove(session)

    @staticmethod
    def _session_error(session: FetchSession | None, request: FetchRequest) -> int:
        if session is None:
            return FETCH_SESSION_ID_NOT_FOUND
        if session.epoch != request.session_epoch:
            return INVALID_FETCH_SESSION_EPOCH
        return 0 if session.uses_ids == (request.version >= 13) else FETCH_SESSION_TOPIC_ID_ERROR

    def _cached(self, request: FetchRequest) -> Iterator[CachedPartition]:
        names = {topic.topic_id: topic.name for topic in self.topics.values()}
        for topic in request.topics:
            name = names.get(topic.topic_id) if request.version >= 13 else topic.topic
            for entry in topic.partitions:
                yield CachedPartition(name, topic.topic_id, entry)

    def _listed(self, request: FetchRequest) -> list[CachedPartition]:
        """Return the partitions of a full fetch, each once.

        A partition that the fetch lists twice has its first position and its last values.
        """
        return list({partition.key: partition for partition in self._cached(request)}.values())

    def _apply_delta(self, session: FetchSession, request: FetchRequest) -> None:
        for partition in self._cached(request):
            known = session.partitions.setdefault(partition.key, partition)
            known.entry = partition.entry
        for topic in request.forgotten:
            for index in topic.partitions:
                key: Key = (topic.topic_id if request.version >= 13 else topic.topic, index)
                session.partitions.pop(key, None)

    def _read(self, pending: Pending) -> list[Result]:
        request = pending.request
        names = {topic.topic_id: topic.name for topic in self.topics.values()}
        limit = request.max_bytes
        if self.quirks.caps_fetch_bytes:
            limit = min(limit, self.fetch_max_bytes)
        allowance = Allowance(limit, first=request.version >= 3)
        reading = Reading(
            request=request,
            release=self.quirks,
            node_id=self.node_id,
            in_session=pending.session is not None,
        )
        read: list[Result] = []
        unread: list[Result] = []
        for partition in pending.partitions:
            if partition.topic is None:
                partition.topic = names.get(partition.topic_id)
            error, beforehand = self._missing(partition)
            if not error:
                replica = self.topics[partition.topic or ""].partitions[partition.entry.partition]
                read.append(Result(partition, reading.read(replica, partition.entry, allowance)))
                continue
            data = PartitionData(
                partition_index=partition.entry.partition,
                error_code=error,
                aborted=self.quirks.unread_aborted if beforehand else None,
            )
            (unread if beforehand else read).append(Result(partition, data))
        # Ids are looked up for all partitions before anything else is: their errors stand first.
        return read + sorted(unread, key=lambda result: result.data.error_code != UNKNOWN_TOPIC_ID)

    def _missing(self, partition: CachedPartition) -> tuple[int, bool]:
        """Return the error of a partition that can't be read, or 0.

        Also return whether the broker finds this error before it reads.
        """
        if partition.topic is None:
            return UNKNOWN_TOPIC_ID, True
        if partition.topic in self.denied:
            return TOPIC_AUTHORIZATION_FAILED, True
        topic = self.topics.get(partition.topic)
        if topic is None:
            return UNKNOWN_TOPIC_OR_PARTITION, True
        if partition.entry.partition not in topic.partitions:
            return UNKNOWN_TOPIC_OR_PARTITION, self.quirks.knows_partitions_beforehand
        if partition.topic_id not in (ZERO_ID, topic.topic_id):
            return INCONSISTENT_TOPIC_ID, False
        return 0, False

    def _changed(self, session: FetchSession, results: list[Result]) -> list[Result]:
        """Return the entries that have changed since the last response, as in KIP-227.

        A partition with records moves to the end of the session. Up to release 2.8, each returned partition
        does.
        """
        included = [result for result in results if self._news(result.partition, result.data)]
        for result in included:
            if result.data.records or self.quirks.rotates_all_answered:
                key = result.partition.key
                if session.partitions.get(key) is result.partition:
                    session.move_to_end(key)
        return included

    @staticmethod
    def _news(partition: CachedPartition, data: PartitionData) -> bool:
        include = (
            bool(data.records) or data.preferred_read_replica != -1 or find_tag(data.tags, 0) is not None
        )
        if data.high_watermark != partition.high_watermark:
            partition.high_watermark, include = data.high_watermark, True
        if data.log_start_offset != partition.log_start_offset:
            partition.log_start_offset, include = data.log_start_offset, True
        if data.error_code:
            partition.high_watermark, include = -1, True
        return include

    def _make_session(self, request: FetchRequest, results: list[Result], now: int) -> int:
        for result in results:
            result.partition.high_watermark = result.data.high_watermark
            result.partition.log_start_offset = result.data.log_start_offset
        return self.cache.create(
            now,
            [result.partition for result in results],
            privileged=request.replica >= 0,
            uses_ids=request.version >= 13,
        )

    def _convert(self, request: FetchRequest, result: Result) -> Result:
        """Convert a partition's result for old clients.

        The session cache gets the result without this conversion.
        """
        topic = self.topics.get(result.partition.topic or "")
        if topic is not None and topic.zstd and self.quirks.refuses_zstd and request.version < 10:
            data = PartitionData(
                partition_index=result.data.partition_index,
                error_code=UNSUPPORTED_COMPRESSION_TYPE,
                aborted=self.quirks.unread_aborted,
                records=self.quirks.unread_records,
            )
            return Result(result.partition, data)
        if result.data.error_code == KAFKA_STORAGE_ERROR and request.version <= 5:
            return Result(result.partition, replace(result.data, error_code=6))
        return Result(result.partition, self._spelt(request, result.data))

    def _spelt(self, request: FetchRequest, data: PartitionData) -> PartitionData:
        if data.error_code or not self.dialect:
            return data
        if self.dialect == "null records":
            return replace(data, records=data.records or None)
        if self.dialect == "list":
            return data if request.isolation_level else replace(data, aborted=data.aborted or ())
        return replace(data, aborted=data.aborted or None)

    def _response(
        self,
        request: FetchRequest,
        results: Iterable[Result],
        *,
        error: int = 0,
        session_id: int = 0,
        throttled: int = 0,
        hinted: Iterable[Result] = (),
    ) -> FetchResponse:
        topics = []
        for _, run in groupby(results, key=lambda result: same_topic(result.partition)):
            group = list(run)
            first = group[0].partition
            name = (first.topic or "") if request.version <= 12 else ""
            entries = tuple(result.data for result in group)
            topics.append(TopicData(topic=name, topic_id=first.topic_id, partitions=entries))
        endpoints = self._endpoints(hinted) if request.version >= 16 else []
        return FetchResponse(
            version=request.version,
            correlation_id=request.correlation_id,
            throttle_time_ms=throttled,
            error_code=error,
            session_id=session_id,
            topics=tuple(topics),
            tags=(node_endpoints_tag(endpoints),) if endpoints else (),
        )

    def _endpoints(self, results: Iterable[Result]) -> list[NodeEndpoint]:
        """Return the endpoints of leaders in these entries, each once (KIP-951)."""
        leaders: dict[int, NodeEndpoint] = {}
        for result in results:
            hint = find_tag(result.data.tags, 1)
            if hint is not None and result.data.error_code in HINTED:
                leader = int.from_bytes(hint[:4], "big", signed=True)
                if leader in self.nodes:
                    leaders[leader] = self.nodes[leader]
        return list(leaders.values())

    def _failed(self, request: FetchRequest, code: int) -> FetchResponse:
        """Return the response of a broker that fails unexpectedly.

        It has the error code `code` and the session id of the request. Below v13, it also lists the requested
        partitions, each with this code.
        """

        def entry(part: FetchPartition) -> PartitionData:
            return PartitionData(
                partition_index=part.partition,
                error_code=code,
                aborted=self.quirks.unread_aborted,
                records=self.quirks.unread_records,
            )

        topics = tuple(
            TopicData(topic=topic.topic, partitions=tuple(entry(part) for part in topic.partitions))
            for topic in request.topics
            if request.version <= 12
        )
        return FetchResponse(
            version=request.version,
            correlation_id=request.correlation_id,
            error_code=code,
            session_id=request.session_id,
            topics=topics,
        )
