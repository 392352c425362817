"""The consumer program of confluent-kafka (librdkafka)."""

import os
from typing import Any, Final

import confluent_kafka
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition

from tests.clients.python.program import (
    COMMIT_INTERVAL_MS,
    FETCH_MAX_WAIT_MS,
    METADATA_MAX_AGE_MS,
    POLL_SECONDS,
    Options,
    emit,
    emit_acknowledged,
    emit_record,
    options,
    serve,
)

TLS_CA: Final = "CONSUME_TLS_CA"
"""An environment variable with the path of the CA's certificate. If it is not set, the program does not use
TLS.
"""


class Librdkafka:
    """A confluent-kafka consumer with the common commands."""

    def __init__(self, given: Options) -> None:
        self._consumer = Consumer(
            {
                "bootstrap.servers": given.bootstrap,
                "client.id": given.named("librdkafka"),
                "group.id": given.group or "unused",
                "enable.auto.commit": given.group is not None,
                "enable.auto.offset.store": False,  # records are printed first
                "auto.commit.interval.ms": COMMIT_INTERVAL_MS,
                "auto.offset.reset": "earliest",
                "enable.partition.eof": True,
                "isolation.level": given.isolation,
                "fetch.wait.max.ms": FETCH_MAX_WAIT_MS,
                "topic.metadata.refresh.interval.ms": METADATA_MAX_AGE_MS,
                "allow.auto.create.topics": False,
                "error_cb": _tell_error,
                "on_commit": _tell_acknowledged,
                "throttle_cb": _tell_throttled,
            }
            | _tls()
            | _membership(given)
        )
        self._commits = given.group is not None
        if given.assign:
            self._consumer.assign([TopicPartition(*pair, OFFSET_BEGINNING) for pair in given.assign])
        else:
            self._consumer.subscribe(given.subscribe, on_assign=_tell_assigned, on_revoke=_tell_revoked)

    def poll(self) -> None:
        for message in self._consumer.consume(1000, POLL_SECONDS):
            error = message.error()
            if error is None:
                _tell_record(message)
                if self._commits:
                    self._store(message)
            elif error.code() == KafkaError._PARTITION_EOF:
                emit("eof", topic=message.topic(), partition=message.partition(), offset=message.offset())
            else:
                _tell_error(error)

    def _store(self, message: Any) -> None:
        """Mark a record as consumed after it was printed, so that the next commit includes it."""
        try:
            self._consumer.store_offsets(message)
        except KafkaException as error:
            if error.args[0].code() != KafkaError._STATE:  # the partition was taken away meanwhile
                raise

    def seek(self, topic: str, partition: int, offset: int) -> None:
        self._consumer.seek(TopicPartition(topic, partition, offset))

    def pause(self, topic: str, partition: int) -> None:
        self._consumer.pause([TopicPartition(topic, partition)])

    def resume(self, topic: str, partition: int) -> None:
        self._consumer.resume([TopicPartition(topic, partition)])

    def watermarks(self, topic: str, partition: int) -> tuple[int | None, int | None]:
        low, high = self._consumer.get_watermark_offsets(TopicPartition(topic, partition), cached=True)
        return low, high

    def position(self, topic: str, partition: int) -> int:
        return int(self._consumer.position([TopicPartition(topic, partition)])[0].offset)

    def commit(self) -> None:
        try:
            self._consumer.commit(asynchronous=False)
        except KafkaException as error:
            if error.args[0].code() != KafkaError._NO_OFFSET:  # the interval's own commit was there first
                raise

    def close(self) -> None:
        self._consumer.close()


def _membership(given: Options) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    if given.strategy:
        settings["partition.assignment.strategy"] = given.strategy
    if given.session_ms:
        settings["session.timeout.ms"] = given.session_ms
        settings["heartbeat.interval.ms"] = given.session_ms // 6
    return settings


def _tls() -> dict[str, str]:
    ca = os.environ.get(TLS_CA)
    return {"security.protocol": "SSL", "ssl.ca.location": ca} if ca else {}


def _tell_record(message: Any) -> None:
    # Any: the library's types allow None for topic, partition and offset; a record has all three.
    _, timestamp = message.timestamp()
    emit_record(
        message.topic(),
        message.partition(),
        message.offset(),
        timestamp,
        message.key(),
        message.value(),
        message.headers() or [],
    )


def _tell_error(error: KafkaError) -> None:
    emit("error", code=error.name(), text=error.str())


def _tell_throttled(event: Any) -> None:
    if event.throttle_time:
        emit("throttled", broker=event.broker_id, seconds=event.throttle_time)


def _tell_acknowledged(error: KafkaError | None, partitions: list[TopicPartition]) -> None:
    for each in partitions:
        if error is None and each.error is None and each.offset >= 0:
            emit_acknowledged(each.topic, each.partition, each.offset)


def _tell_assigned(_: Consumer, partitions: list[TopicPartition]) -> None:
    emit("assigned", partitions=[[each.topic, each.partition] for each in partitions])


def _tell_revoked(_: Consumer, partitions: list[TopicPartition]) -> None:
    emit("revoked", partitions=[[each.topic, each.partition] for each in partitions])


if __name__ == "__main__":
    emit("start", client="confluent-kafka", version=confluent_kafka.__version__)
    serve(Librdkafka(options()))
