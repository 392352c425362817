"""A kafka-python member of a group. It commits offsets on command, and prints the results.

python -m tests.integration.committing BOOTSTRAP TOPIC GROUP
"""

# ruff: noqa: T201 - its output is what the test reads
import sys
from typing import Final

import kafka  # type: ignore[import-untyped]  # it has no types

GIVES_UP_MS: Final = 60_000
"""The time limit for a commit that does not end by itself."""


def main() -> None:
    """Print a line after joining, and then one line for each command on standard input."""
    bootstrap, topic, group = sys.argv[1:]
    consumer = kafka.KafkaConsumer(
        topic,
        bootstrap_servers=bootstrap,
        group_id=group,
        enable_auto_commit=False,
        metadata_max_age_ms=5000,  # see `moving.consume_kafka_python`
    )
    while not consumer.assignment():
        consumer.poll(500)
    (partition,) = consumer.assignment()
    while consumer.committed(partition) is None:  # on a busy machine the first may end without an effect
        consumer.commit({partition: kafka.OffsetAndMetadata(0, "", -1)}, GIVES_UP_MS)
    print("joined", flush=True)
    for line in sys.stdin:
        try:
            consumer.commit({partition: kafka.OffsetAndMetadata(int(line), "", -1)}, GIVES_UP_MS)
            print(consumer.committed(partition), flush=True)
        except kafka.errors.KafkaError as error:
            print(type(error).__name__, flush=True)


if __name__ == "__main__":
    main()
