"""A consumer for tests, written with aiokafka."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import aiokafka  # type: ignore[import-untyped] # it carries no types
from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, TopicPartition
from aiokafka.coordinator.assignors.range import (  # type: ignore[import-untyped] # no types
    RangePartitionAssignor,
)

from tests.clients.python.program import (
    COMMIT_INTERVAL_MS,
    FETCH_MAX_WAIT_MS,
    METADATA_MAX_AGE_MS,
    POLL_SECONDS,
    EndsReached,
    Options,
    emit,
    emit_record,
    options,
    serve,
)

T = TypeVar("T")
STOP_SECONDS = 10.0


class Rebalances(ConsumerRebalanceListener):  # type: ignore[misc] # no types
    """Prints the partitions that the group assigns and revokes."""

    async def on_partitions_revoked(self, revoked: set[TopicPartition]) -> None:
        emit("revoked", partitions=[list(each) for each in revoked])

    async def on_partitions_assigned(self, assigned: set[TopicPartition]) -> None:
        emit("assigned", partitions=[list(each) for each in assigned])


class Aiokafka:
    """An aiokafka consumer with the common commands. Its event loop runs only during `poll` and commands."""

    def __init__(self, given: Options) -> None:
        self._loop = asyncio.new_event_loop()
        self._ends = EndsReached()
        self._isolation = given.isolation
        self._run(self._start(given))

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._loop.run_until_complete(work)

    async def _start(self, given: Options) -> None:
        settings: dict[str, Any] = {}
        if given.strategy:
            settings["partition_assignment_strategy"] = [RangePartitionAssignor]
        if given.session_ms:
            settings["session_timeout_ms"] = given.session_ms
            settings["heartbeat_interval_ms"] = given.session_ms // 6
        self._consumer = AIOKafkaConsumer(
            bootstrap_servers=given.bootstrap,
            client_id=given.named("aiokafka"),
            group_id=given.group,
            enable_auto_commit=given.group is not None,
            auto_commit_interval_ms=COMMIT_INTERVAL_MS,
            auto_offset_reset="earliest",
            isolation_level=given.isolation,
            fetch_max_wait_ms=FETCH_MAX_WAIT_MS,
            metadata_max_age_ms=METADATA_MAX_AGE_MS,
            **settings,
        )
        if given.subscribe:
            self._consumer.subscribe(given.subscribe, listener=Rebalances())
        await self._consumer.start()
        if given.assign:
            self._consumer.assign([TopicPartition(*pair) for pair in given.assign])

    def poll(self) -> None:
        self._run(self._poll())

    async def _poll(self) -> None:
        try:
            batches = await self._consumer.getmany(timeout_ms=round(POLL_SECONDS * 1000))
        except aiokafka.errors.KafkaError as error:
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
            end = self._end(where)
            if end is not None:
                self._ends.look(where.topic, where.partition, await self._consumer.position(where), end)

    def _end(self, where: TopicPartition) -> int | None:
        if self._isolation == "read_committed":
            stable: int | None = self._consumer.last_stable_offset(where)
            return stable
        high: int | None = self._consumer.highwater(where)
        return high

    def seek(self, topic: str, partition: int, offset: int) -> None:
        self._consumer.seek(TopicPartition(topic, partition), offset)

    def pause(self, topic: str, partition: int) -> None:
        self._run(self._pause(TopicPartition(topic, partition)))

    async def _pause(self, where: TopicPartition) -> None:
        self._consumer.pause(where)  # not a coroutine, but it asks for the running loop

    def resume(self, topic: str, partition: int) -> None:
        self._consumer.resume(TopicPartition(topic, partition))

    def watermarks(self, topic: str, partition: int) -> tuple[int | None, int | None]:
        return None, self._consumer.highwater(TopicPartition(topic, partition))

    def position(self, topic: str, partition: int) -> int:
        offset: int = self._run(self._consumer.position(TopicPartition(topic, partition)))
        return offset

    def commit(self) -> None:
        self._run(self._consumer.commit())

    def close(self) -> None:
        # Before Python 3.12 a wait_for that is answered just then swallows the cancellation of aiokafka's
        # heartbeats, and stop() waits for them for ever, with any broker. A second try cancels them again.
        stopping = self._loop.create_task(self._consumer.stop())
        while not self._run(self._ended(stopping)):
            for task in asyncio.all_tasks(self._loop) - {stopping}:
                task.cancel()
        self._loop.close()

    @staticmethod
    async def _ended(stopping: asyncio.Task[None]) -> bool:
        return bool((await asyncio.wait({stopping}, timeout=STOP_SECONDS))[0])


if __name__ == "__main__":
    emit("start", client="aiokafka", version=aiokafka.__version__)
    serve(Aiokafka(options()))
