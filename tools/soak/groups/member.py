"""One member of a group: a consumer that writes a line for each of its actions.

The lines, with the time in nanoseconds of the machine's monotonic clock after their kind:

    assigned TIME PARTITION[,PARTITION...]
    revoked TIME PARTITION[,PARTITION...]
    lost TIME PARTITION[,PARTITION...]
    fenced TIME
    refused TIME
    record TIME PARTITION OFFSET KEY
    committed TIME PARTITION OFFSET
    left TIME
    error TIME TEXT

A member is fenced if the coordinator refuses its commit: the group has continued without the member, or the
client has already joined again. Its commit is refused with error 27 while the group rebalances. A record's
line is written before the record is committed, and that of a commit after the response. Each line is one
write, so that a kill never leaves a part of a line. SIGTERM makes the member leave gracefully.
"""

import argparse
import os
import signal
import sys
import time
from typing import Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

POLL_SECONDS, WORK_SECONDS, COMMIT_SECONDS = 0.05, 0.001, 0.3
FENCED: Final = (KafkaError.ILLEGAL_GENERATION, KafkaError.UNKNOWN_MEMBER_ID, KafkaError.FENCED_INSTANCE_ID)


def tell(kind: str, *words: object) -> None:
    """Write one line to standard output: the kind, the time in nanoseconds, and the words."""
    os.write(sys.stdout.fileno(), (" ".join(map(str, (kind, time.monotonic_ns(), *words))) + "\n").encode())


class SoakMember:
    """A consumer that processes records one by one."""

    def __init__(self, given: argparse.Namespace) -> None:
        self._topic: str = given.topic
        self._leaves = False
        self._done: dict[int, int] = {}
        """The next offset of each partition that has records to commit."""
        settings: dict[str, str | int | bool] = {
            "bootstrap.servers": given.bootstrap,
            "group.id": given.group,
            "client.id": given.client_id,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "session.timeout.ms": given.session_ms,
            "heartbeat.interval.ms": given.session_ms // 6,
            "partition.assignment.strategy": given.strategy,
            "fetch.wait.max.ms": 200,
            "reconnect.backoff.max.ms": 500,
            "log_level": 0,
        }
        if given.instance:
            settings["group.instance.id"] = given.instance
        self._consumer = Consumer(settings)

    def run(self) -> None:
        """Process records until SIGTERM."""
        signal.signal(signal.SIGTERM, self._leave)
        self._consumer.subscribe(
            [self._topic], on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._lost
        )
        commit_at = time.monotonic() + COMMIT_SECONDS
        while not self._leaves:
            message = self._consumer.poll(POLL_SECONDS)
            if message is not None:
                self._process(message)
            if time.monotonic() >= commit_at:
                self._commit()
                commit_at = time.monotonic() + COMMIT_SECONDS
        self._commit()
        self._consumer.close()
        tell("left")

    def _leave(self, *_: object) -> None:
        self._leaves = True

    def _process(self, message: Message) -> None:
        error = message.error()
        if error is not None:
            tell("error", error)
            return
        partition, offset, key = message.partition(), message.offset(), message.key()
        if partition is None or offset is None or not isinstance(key, bytes):
            raise ValueError(f"a record without a place or a key: {message!r}")
        time.sleep(WORK_SECONDS)
        tell("record", partition, offset, key.decode())
        self._done[partition] = offset + 1

    def _commit(self) -> None:
        if not self._done:
            return
        offsets = [TopicPartition(self._topic, *each) for each in self._done.items()]
        try:
            said = self._consumer.commit(offsets=offsets, asynchronous=False)
        except KafkaException as error:
            tell("error", "commit:", error)
            if error.args[0].code() in FENCED:
                tell("fenced")
            elif error.args[0].code() == KafkaError.REBALANCE_IN_PROGRESS:
                tell("refused")
            return
        for each in said:
            if each.error is None:
                tell("committed", each.partition, each.offset)
                if self._done.get(each.partition) == each.offset:
                    del self._done[each.partition]
            else:
                tell("error", "commit:", each.error)

    def _assigned(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        tell("assigned", ",".join(str(each.partition) for each in partitions))

    def _revoked(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        self._commit()
        tell("revoked", ",".join(str(each.partition) for each in partitions))
        self._done.clear()

    def _lost(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        tell("lost", ",".join(str(each.partition) for each in partitions))
        self._done.clear()


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser("python -m tools.soak.groups.member", description=__doc__)
    for name in ("bootstrap", "topic", "group", "client-id"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--instance", default="", help="group.instance.id")
    parser.add_argument("--strategy", default="range", help="partition.assignment.strategy")
    parser.add_argument("--session-ms", type=int, default=6000)
    SoakMember(parser.parse_args()).run()


if __name__ == "__main__":
    main()
