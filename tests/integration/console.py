"""Runs Kafka's console consumer: the Java client from a broker's jars, without a compiler."""

import re
import subprocess
import threading
import time
from pathlib import Path
from typing import Final, Self

from tests.clients.programs import QUICK_START
from tests.clients.python.program import FETCH_MAX_WAIT_MS
from tests.clients.runner import Line, Place
from tools.kafka import reaper
from tools.kafka.jars import classpath, parse_version
from tools.kafka.java import java
from tools.kafka.process import JVM

SESSIONS: Final = "-Dorg.slf4j.simpleLogger.log.org.apache.kafka.clients.FetchSessionHandler=debug"
SHOWN: Final = ("partition", "offset", "timestamp", "key", "headers")
"""The printed fields of a record, in addition to its value."""
PLACE: Final = re.compile(r"\bPartition:(\d+)\tOffset:(\d+)\t")


class Console:
    """A console consumer that reads a topic from its beginning, until the `with` block ends.

    Args:
        release: the release of the Java client.
        bootstrap: "host:port".
        topic: the topic. The consumer is the only member of a group.
        folder: the folder for its log.
        isolation: `read_uncommitted` or `read_committed`.
    """

    def __init__(
        self,
        release: str,
        bootstrap: str,
        topic: str,
        folder: Path,
        *,
        isolation: str = "read_uncommitted",
    ) -> None:
        # 4.x has it among its tools, with other names for two options (KIP-1147).
        new = parse_version(release) >= (4,)
        main = "org.apache.kafka.tools.consumer.ConsoleConsumer" if new else "kafka.tools.ConsoleConsumer"
        client, formatter = ("command", "formatter-property") if new else ("consumer", "property")
        command = [str(java()), "-Xmx256m", *JVM, *QUICK_START, SESSIONS]
        command += ["-cp", classpath(release, tools=new), main, "--bootstrap-server", bootstrap]
        command += ["--topic", topic, "--from-beginning", "--isolation-level", isolation]
        for setting in ("client.id=java", f"fetch.max.wait.ms={FETCH_MAX_WAIT_MS}"):
            command += [f"--{client}-property", setting]
        for part in SHOWN:
            command += [f"--{formatter}", f"print.{part}=true"]
        self._topic = topic
        self._lines: list[str] = []
        self._log = folder / f"{topic}-{bootstrap.rpartition(':')[2]}"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                errors="backslashreplace",  # keys, values and headers are printed as they are
            )
        reaper.watch(self._process.pid)
        self._reader = threading.Thread(target=self._hear, daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        reaper.forget(self._process.pid)
        self._reader.join()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def _hear(self) -> None:
        for line in self._process.stdout or ():
            self._lines.append(line)

    def log(self) -> str:
        """Return the consumer's log: warnings, errors, and all actions of its fetch sessions."""
        return self._log.read_text(errors="replace")

    def wait_records(self, count: int, *, seconds: float = 60) -> None:
        """Wait until `count` records were read.

        Raises:
            AssertionError: it took too long, or the consumer ended.
        """
        deadline = time.monotonic() + seconds
        while len(self._lines) < count:
            assert self._reader.is_alive(), f"it ended: {self.log()}"
            assert time.monotonic() < deadline, f"{len(self._lines)} of {count} came: {self.log()[-4000:]}"
            time.sleep(0.05)

    def records(self) -> dict[Place, list[Line]]:
        """Return the printed records of each partition, in the order of delivery."""
        found: dict[Place, list[Line]] = {}
        for line in self._lines:
            place = PLACE.search(line)
            assert place is not None, line
            partition, offset = map(int, place.groups())
            found.setdefault((self._topic, partition), []).append({"offset": offset, "text": line})
        return found
