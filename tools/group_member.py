"""A member that logs its work (`tools.work_log`): `python -m tools.group_member ADDRESS TOPIC ...`."""

import argparse
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from tools.work_log import ASSIGNED, COMMITTED, PARTITION_BIT, SUBSCRIBED, WorkLog

_AT_ONCE: Final = 500
_POLL: Final = 0.1
_ERRORS: Final = 3
"""librdkafka's log level: errors, without a warning for each rebalance."""


class GroupMember:
    """A consumer that works on each record. It commits every half second, and when it leaves."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._work = options.work / 1e3
        self._log = WorkLog(options.log, options.entries)
        self._gated = options.gate
        self._open, self._stopped = threading.Event(), threading.Event()
        settings: dict[str, Any] = {
            "bootstrap.servers": options.bootstrap,
            "group.id": options.group,
            "client.id": options.client_id,
            "auto.offset.reset": "earliest",
            "enable.auto.offset.store": False,
            "auto.commit.interval.ms": 500,
            "session.timeout.ms": 6_000,
            "heartbeat.interval.ms": 500,
            "log_level": _ERRORS,
            "on_commit": self._committed,
        }
        self._consumer = Consumer(settings)
        self._mark(SUBSCRIBED, 0)
        self._consumer.subscribe([options.topic], on_assign=self._assigned, on_revoke=self._revoked)

    def run(self) -> None:
        """Work until stopped."""
        threading.Thread(target=self._listen, daemon=True).start()
        try:
            while not self._stopped.is_set():
                if self._gated and self._open.is_set():
                    self._gated = False
                    self._consumer.resume(self._consumer.assignment())
                messages = self._consumer.consume(1 if self._work else _AT_ONCE, _POLL)
                for message in messages:
                    self._handle(message)
                if messages:
                    self._store(messages[-1])
        finally:
            self._consumer.close()

    def _listen(self) -> None:
        """After a line on stdin, let the member get records. Stop the member when stdin is closed."""
        for _ in sys.stdin:
            self._open.set()
        self._stopped.set()

    def _handle(self, message: Message) -> None:
        if (problem := message.error()) is not None:
            raise KafkaException(problem)
        began = time.monotonic_ns()
        if self._work:
            time.sleep(self._work)
        key = message.key() or b"0"
        self._log.add(_place(message.partition(), message.offset()), int(key), began, time.monotonic_ns())

    def _store(self, message: Message) -> None:
        try:
            self._consumer.store_offsets(message)
        except KafkaException as error:
            if error.args[0].code() != KafkaError._STATE:  # noqa: SLF001 - the partition was taken away meanwhile
                raise

    def _assigned(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._mark(ASSIGNED, len(partitions))
        if self._gated:
            consumer.assign(partitions)
            consumer.pause(partitions)

    def _revoked(self, _: Consumer, _partitions: list[TopicPartition]) -> None:
        self._mark(ASSIGNED, 0)

    def _committed(self, error: KafkaError | None, partitions: list[TopicPartition]) -> None:
        for partition in partitions:
            if error is None and partition.error is None and partition.offset >= 0:
                self._mark(COMMITTED, _place(partition.partition, partition.offset))

    def _mark(self, kind: int, value: int) -> None:
        now = time.monotonic_ns()
        self._log.add(value, kind, now, now)


def _place(partition: int | None, offset: int | None) -> int:
    return (partition or 0) << PARTITION_BIT | (offset or 0)


def main() -> None:
    """Run one member."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent process ends it
    parser = argparse.ArgumentParser()
    for name in ("bootstrap", "topic", "group", "client_id"):
        parser.add_argument(name)
    parser.add_argument("log", type=Path)
    parser.add_argument("--work", type=float, default=0.0, help="of each record, in ms")
    parser.add_argument("--entries", type=int, default=1_000_000, help="that the log can have")
    parser.add_argument("--gate", action="store_true", help="wait for a line on stdin")
    GroupMember(parser.parse_args()).run()


if __name__ == "__main__":
    main()
