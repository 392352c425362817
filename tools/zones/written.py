"""Writes numbered records, and notes the offset of each."""

import hashlib
import threading
import time
from typing import Any, Final, Self

from confluent_kafka import Producer

from tools.zones.brokers import PARTITIONS

FLUSH_SECONDS: Final = 60.0
TIMEOUT_MS: Final = 3_000
"""How long the producer waits for a broker that does not respond, in milliseconds. The default is 60 s. Until
then, there would be no new records of such a broker's partitions."""
_SILENT: Final = 0


class Written:
    """A producer with acks=all: `rate` records a second, each of `size` bytes, to partitions in turn."""

    def __init__(self, bootstrap: str, topic: str, rate: float, size: int = 100) -> None:
        self.values: dict[tuple[int, int], str] = {}
        """What programs print of each acknowledged value, by partition and offset."""
        self.refused = 0
        self._topic, self._rate, self._size = topic, rate, size
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,  # and with it acks=all
                "linger.ms": 0,
                "socket.timeout.ms": TIMEOUT_MS,
                "log_level": _SILENT,
            }
        )
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._produce, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()

    def stop(self) -> None:
        """Stop to write. Wait until all records are acknowledged."""
        self._stopped.set()
        self._thread.join()
        if left := self._producer.flush(FLUSH_SECONDS):
            raise RuntimeError(f"{left} records were not acknowledged in {FLUSH_SECONDS:.0f} s")

    def ends(self) -> dict[int, int]:
        """Return the offset after the last acknowledged record, by partition."""
        ends: dict[int, int] = {}
        for partition, offset in list(self.values):
            ends[partition] = max(ends.get(partition, 0), offset + 1)
        return ends

    def _produce(self) -> None:
        number, due = 0, time.monotonic()
        while not self._stopped.wait(max(0.0, due - time.monotonic())):
            value = (b"%d " % number).ljust(self._size, b".")
            partition = number % PARTITIONS
            self._producer.produce(self._topic, value, partition=partition, on_delivery=self._delivered)
            self._producer.poll(0)
            number, due = number + 1, due + 1 / self._rate

    def _delivered(self, error: Any, message: Any) -> None:
        if error is not None:
            self.refused += 1
            return
        value = message.value()
        digest = f"{len(value)}:{hashlib.sha256(value).hexdigest()}"
        self.values[message.partition(), message.offset()] = digest
