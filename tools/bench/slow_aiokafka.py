"""A slow aiokafka consumer: `python -m tools.bench.slow_aiokafka ADDRESS TOPICS PARTITIONS PAUSE`.

Its fetches leave out partitions with unread records, so the list changes every time. It uses Fetch v11, where
topics have names. It ends like the loads of `tools.bench.load`.
"""

import asyncio
import json
import select
import sys
from typing import Final

from aiokafka import AIOKafkaConsumer, TopicPartition  # type: ignore[import-untyped]  # it has no types

PARTITION_BYTES: Final = 8192


async def consume(address: str, topics: list[str], partitions: int, pause: float) -> int:
    """Read records in small portions until stopped. Return their number."""
    consumer = AIOKafkaConsumer(
        bootstrap_servers=address, enable_auto_commit=False, max_partition_fetch_bytes=PARTITION_BYTES
    )
    await consumer.start()
    seen = 0
    try:
        consumer.assign([TopicPartition(topic, number) for topic in topics for number in range(partitions)])
        print("ready", flush=True)
        while not select.select([sys.stdin], [], [], 0)[0]:
            for records in (await consumer.getmany(timeout_ms=100, max_records=20)).values():
                seen += len(records)
            await asyncio.sleep(pause)
    finally:
        await consumer.stop()
    return seen


if __name__ == "__main__":
    count = asyncio.run(consume(sys.argv[1], sys.argv[2].split(","), int(sys.argv[3]), float(sys.argv[4])))
    print(json.dumps({"consumed": count}), flush=True)
