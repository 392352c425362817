"""The consumer program of kafka-python. It runs on 2.0.2 (Fetch v4, no fetch sessions) and on 3.x."""

import sys
import time
from typing import Any

from tests.clients.python.program import (
    COMMIT_INTERVAL_MS,
    FETCH_MAX_WAIT_MS,
    POLL_SECONDS,
    USUAL,
    USUAL_METADATA_MAX_AGE_MS,
    EndsReached,
    Options,
    emit,
    emit_acknowledged,
    emit_record,
    options,
    serve,
)

try:
    # kafka-python 2.0.2 carries a copy of six whose lazy modules no longer import from Python 3.12 on; the
    # current six, installed beside it, takes its place. 3.x needs neither.
    import six  # type: ignore[import-untyped] # in the other environment only
except ImportError:
    pass
else:
    sys.modules["kafka.vendor.six"] = six
    sys.modules["kafka.vendor.six.moves"] = six.moves

import kafka  # type: ignore[import-untyped] # it carries no types
from kafka import ConsumerRebalanceListener, KafkaConsumer, TopicPartition
from kafka.coordinator.assignors.range import (  # type: ignore[import-untyped] # no types
    RangePartitionAssignor,
)

SINCE_3 = int(kafka.__version__.split(".")[0]) >= 3
METADATA_MAX_AGE_MS = USUAL_METADATA_MAX_AGE_MS if USUAL else 2000
POLL_MS = 500 if SINCE_3 else round(POLL_SECONDS * 1000)
"""The time limit of one poll, in milliseconds.

During a rejoin, short polls or frequent metadata requests can leave kafka-python 3.0.12 without partitions.
This happens without a gateway, too.
"""
FORGOTTEN_SECONDS = 10.0
"""The program rejoins its group after this time without partitions, in seconds.

kafka-python 3.0.12 forgets an assignment that arrives just as a poll ends, even without a gateway. Without a
rejoin, it would wait forever.
"""


class Rebalances(ConsumerRebalanceListener):  # type: ignore[misc] # no types
    """A listener that prints the partitions which the group assigns and revokes."""

    def __init__(self) -> None:
        self.taken_at: float | None = None
        """The time at which the group revoked partitions. None if it has assigned partitions since then."""

    def on_partitions_revoked(self, revoked: set[TopicPartition]) -> None:
        self.taken_at = time.monotonic()
        emit("revoked", partitions=[list(each) for each in revoked])

    def on_partitions_assigned(self, assigned: set[TopicPartition]) -> None:
        self.taken_at = None
        emit("assigned", partitions=[list(each) for each in assigned])


class KafkaPython:
    """A kafka-python consumer with the commands that all consumer programs have."""

    def __init__(self, given: Options) -> None:
        settings: dict[str, Any] = {"isolation_level": given.isolation} if SINCE_3 else {}
        if given.strategy:
            settings["partition_assignment_strategy"] = [RangePartitionAssignor]
        if given.session_ms:
            settings["session_timeout_ms"] = given.session_ms
            settings["heartbeat_interval_ms"] = given.session_ms // 6
        self._consumer = KafkaConsumer(
            bootstrap_servers=given.bootstrap.split(","),
            client_id=given.named(f"kafka-python-{kafka.__version__.split('.')[0]}"),
            group_id=given.group,
            enable_auto_commit=given.group is not None,
            auto_commit_interval_ms=COMMIT_INTERVAL_MS,
            default_offset_commit_callback=_tell_committed,
            auto_offset_reset="earliest",
            fetch_max_wait_ms=FETCH_MAX_WAIT_MS,
            metadata_max_age_ms=METADATA_MAX_AGE_MS,
            **settings,
        )
        self._ends = EndsReached()
        self._topics = given.subscribe
        self._rebalances = Rebalances()
        if given.assign:
            self._consumer.assign([TopicPartition(*pair) for pair in given.assign])
            self._consumer.seek_to_beginning()
        else:
            self._consumer.subscribe(self._topics, listener=self._rebalances)

    def poll(self) -> None:
        self._join_when_forgotten()
        try:
            batches = self._consumer.poll(timeout_ms=POLL_MS, max_records=5000)
        except kafka.errors.KafkaError as error:
            emit("error", code=type(error).__name__, text=str(error))
            return
        for where, records in batches.items():
            for record in records:
                emit_record(
                    where.topic,
                    where.partition,
                    record.offset,
                    record.timestamp,
                    record.key,
                    record.value,
                    record.headers,
                )
        for where in self._consumer.assignment():
            end = self._consumer.highwater(where)
            if end is not None:
                self._ends.look(where.topic, where.partition, self._consumer.position(where), end)

    def _join_when_forgotten(self) -> None:
        taken_at = self._rebalances.taken_at
        if taken_at is not None and time.monotonic() - taken_at > FORGOTTEN_SECONDS:
            self._rebalances.taken_at = None
            self._consumer.unsubscribe()
            self._consumer.subscribe(self._topics, listener=self._rebalances)

    def seek(self, topic: str, partition: int, offset: int) -> None:
        self._consumer.seek(TopicPartition(topic, partition), offset)

    def pause(self, topic: str, partition: int) -> None:
        self._consumer.pause(TopicPartition(topic, partition))

    def resume(self, topic: str, partition: int) -> None:
        self._consumer.resume(TopicPartition(topic, partition))

    def watermarks(self, topic: str, partition: int) -> tuple[int | None, int | None]:
        return None, self._consumer.highwater(TopicPartition(topic, partition))

    def position(self, topic: str, partition: int) -> int:
        return int(self._consumer.position(TopicPartition(topic, partition)))

    def commit(self) -> None:
        while True:
            try:
                self._consumer.commit()
            except kafka.errors.RebalanceInProgressError:
                self.poll()  # the group takes the member in again, and then its offsets
            else:
                return

    def close(self) -> None:
        self._consumer.close()


def _tell_committed(offsets: dict[TopicPartition, Any], result: Any) -> None:
    """Print what an automatic commit has committed. Its result is an exception if it failed."""
    if not isinstance(result, Exception):
        for place, each in offsets.items():
            emit_acknowledged(place.topic, place.partition, each.offset)


if __name__ == "__main__":
    emit("start", client="kafka-python", version=kafka.__version__)
    serve(KafkaPython(options()))
