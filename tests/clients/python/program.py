"""The common part of the Python consumer programs: command line, JSON output, commands, and the poll loop.

The module uses only the standard library, because it also runs in the separate environment of a client.
"""

import argparse
import hashlib
import json
import os
import queue
import sys
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

POLL_SECONDS = 0.05
USUAL = "CONSUME_USUAL" in os.environ
"""Whether the consumers have their usual settings. See `tests.clients`."""
FETCH_MAX_WAIT_MS = 500 if USUAL else 100
"""The longest wait of a fetch at the broker, in milliseconds.

It is short, so that a consumer without new records sends many fetches within a test of a few seconds.
"""
USUAL_METADATA_MAX_AGE_MS = 300_000
METADATA_MAX_AGE_MS = USUAL_METADATA_MAX_AGE_MS if USUAL else 500
COMMIT_INTERVAL_MS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The parsed command line of a consumer program."""

    bootstrap: str
    assign: list[tuple[str, int]]
    """All partitions to read. The list is empty for a member of a consumer group."""
    subscribe: list[str]
    group: str | None
    isolation: str
    suffix: str
    """The end of the client.id, which sets a lane."""
    client_id: str
    """The complete client.id. If it is empty, the client.id is the program's own one, followed by
    `suffix`."""
    strategy: str
    """The value of partition.assignment.strategy: `range`, or "" for the client's default."""
    session_ms: int
    """The value of session.timeout.ms, or 0 for the client's default."""

    def named(self, own: str) -> str:
        """Return the client.id to use.

        `own` is the client.id of the program, for the case that none is given.
        """
        return self.client_id or own + self.suffix


class Consumer(Protocol):
    """The commands that every consumer program supports."""

    def poll(self) -> None:
        """Print new records. If there are none, wait for them at most `POLL_SECONDS`."""

    def seek(self, topic: str, partition: int, offset: int) -> None:
        """Continue to read a partition at ``offset``."""

    def pause(self, topic: str, partition: int) -> None:
        """Stop delivering records of this partition."""

    def resume(self, topic: str, partition: int) -> None:
        """Deliver records of this partition again."""

    def watermarks(self, topic: str, partition: int) -> tuple[int | None, int | None]:
        """Return the low and the high watermark, as known from the last fetch responses.

        A value is None if the client library does not expose it.
        """

    def position(self, topic: str, partition: int) -> int:
        """Return the offset of the next record to deliver."""

    def commit(self) -> None:
        """Commit the positions to the group, and wait until the broker has confirmed this."""

    def close(self) -> None:
        """Close the client, so that it leaves its group."""


def options() -> Options:
    """Parse the command line of this process."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--assign", default="")
    parser.add_argument("--subscribe", default="")
    parser.add_argument("--group")
    parser.add_argument("--isolation", default="read_uncommitted")
    parser.add_argument("--suffix", default="")
    parser.add_argument("--client-id", default="")
    parser.add_argument("--strategy", default="")
    parser.add_argument("--session-ms", type=int, default=0)
    given = parser.parse_args()
    counts = [item.rsplit(":", 1) for item in given.assign.split(",") if item]
    return Options(
        bootstrap=given.bootstrap,
        assign=[(topic, partition) for topic, count in counts for partition in range(int(count))],
        subscribe=[topic for topic in given.subscribe.split(",") if topic],
        group=given.group,
        isolation=given.isolation,
        suffix=given.suffix,
        client_id=given.client_id,
        strategy=given.strategy,
        session_ms=given.session_ms,
    )


def emit(kind: str, **fields: Any) -> None:
    """Print one line and flush it.

    So the lines of all committed records are printed even if the program is killed later.
    """
    os.write(sys.stdout.fileno(), (json.dumps({"kind": kind, **fields}) + "\n").encode())


def emit_record(
    topic: str,
    partition: int,
    offset: int,
    timestamp: int,
    key: bytes | None,
    value: bytes | None,
    headers: Iterable[tuple[str, bytes | None]],
) -> None:
    """Print a record as a line: keys and headers in full, but only the length and the digest of the value."""
    emit(
        "record",
        topic=topic,
        partition=partition,
        offset=offset,
        timestamp=timestamp,
        key=None if key is None else key.hex(),
        value=None if value is None else f"{len(value)}:{hashlib.sha256(value).hexdigest()}",
        headers=[[name, None if content is None else content.hex()] for name, content in headers],
    )


def emit_acknowledged(topic: str, partition: int, offset: int) -> None:
    """Print that the group has accepted a commit."""
    emit("acknowledged", topic=topic, partition=partition, offset=offset)


class EndsReached:
    """Prints an end-of-partition line each time a consumer reaches an end.

    It is for client libraries that do not report this event.
    """

    def __init__(self) -> None:
        self._told: dict[tuple[str, int], int] = {}

    def look(self, topic: str, partition: int, position: int, end: int | None) -> None:
        """Print a line if a consumer's `position` has reached `end`, the end of the partition.

        Args:
            topic: the topic.
            partition: the partition.
            position: the offset of the consumer's next record.
            end: the end of the partition as of the last fetch response, or None.
        """
        at_end = end is not None and position >= end
        if at_end and self._told.get((topic, partition)) != position:
            self._told[topic, partition] = position
            emit("eof", topic=topic, partition=partition, offset=position)


def _read_commands(commands: "queue.Queue[dict[str, Any]]") -> None:
    for line in sys.stdin:
        commands.put(json.loads(line))
    commands.put({"do": "stop"})


def _obey(consumer: Consumer, command: dict[str, Any]) -> None:
    match command.pop("do"):
        case "seek":
            consumer.seek(**command)
        case "pause":
            consumer.pause(**command)
        case "resume":
            consumer.resume(**command)
        case "commit":
            consumer.commit()
            emit("committed")
        case "position":
            emit("position", **command, offset=consumer.position(**command))
        case "watermarks":
            low, high = consumer.watermarks(**command)
            emit("watermarks", **command, low=low, high=high)


def serve(consumer: Consumer) -> None:
    """Poll and execute commands until the command `stop`, or until the parent process has ended."""
    commands: queue.Queue[dict[str, Any]] = queue.Queue()
    threading.Thread(target=_read_commands, args=(commands,), daemon=True).start()
    while True:
        consumer.poll()
        while not commands.empty():
            command = commands.get()
            if command["do"] == "stop":
                consumer.close()
                emit("end")
                return
            _obey(consumer, command)
