"""Changes to a cluster for tests: topics, partitions, settings, quotas, leaders.

The request versions are those that brokers from 1.0 to 4.3 support. Exceptions: quotas need a broker of 2.6,
moving leaders 2.4, topic ids 2.8. Each method returns when the metadata of all brokers show the change, if
metadata show it at all. New leaders then serve their partitions, too.
"""

import struct
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Self
from uuid import UUID

from tools.kafka.metadata import ClusterState, request_metadata
from tools.kafka.raw import (
    API_VERSIONS,
    LIST_OFFSETS,
    METADATA,
    BodyReader,
    RawConnection,
    array,
    compact_array,
    compact_string,
    string,
)

CREATE_TOPICS, DELETE_TOPICS, DELETE_RECORDS, CREATE_PARTITIONS = 19, 20, 21, 37
ELECT_LEADERS, ALTER_REASSIGNMENTS = 43, 45
DESCRIBE_QUOTAS, ALTER_QUOTAS = 48, 49
OFFSET_FETCH, FIND_COORDINATOR = 9, 10
NOT_LEADER, TOPIC_ALREADY_EXISTS, ELECTION_NOT_NEEDED = 6, 36, 84

PATIENCE = 60.0
"""The time limit in seconds until the metadata of every broker shows a change."""
SYNC_SECONDS = 90.0


class AdminError(RuntimeError):
    """A broker responded with an error. `code` is Kafka's error code."""

    def __init__(self, what: str, code: int, message: str | None = None) -> None:
        super().__init__(f"{what}: error {code}{f' ({message})' if message else ''}")
        self.code = code


class Admin:
    """Sends requests, each to the broker that handles it. `bootstrap` may have several addresses."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = [_split(address) for address in bootstrap.split(",")]
        self._connections: dict[tuple[str, int], RawConnection] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for connection in self._connections.values():
            connection.close()

    def create_topic(
        self,
        name: str,
        *,
        partitions: int = 1,
        replication: int = 1,
        assignment: Mapping[int, Sequence[int]] | None = None,
        config: Mapping[str, object] | None = None,
    ) -> None:
        """Create a topic, maybe with node ids by partition, the leader first. Wait until leaders lead."""
        assigned = dict(assignment or {})
        counts = (-1, -1) if assigned else (partitions, replication)
        placed = [
            struct.pack(">i", partition) + _int32s(replicas) for partition, replicas in assigned.items()
        ]
        settings = [string(key) + string(str(value)) for key, value in (config or {}).items()]
        topic = string(name) + struct.pack(">ih", *counts) + array(placed) + array(settings)
        is_new = self.state(name).topics[name].error != 0
        reader = self._controller_call(CREATE_TOPICS, 2, array([topic]) + struct.pack(">i?", 20_000, False))
        reader.int32()  # throttle
        for _ in range(reader.int32()):
            what, code, message = f"create {reader.string()}", reader.int16(), reader.string()
            # If the controller is slow or changes, a broker sends the request again and gets this error.
            if not (is_new and code == TOPIC_ALREADY_EXISTS):
                _check(what, code, message)
        expected = len(assigned) or partitions
        self._await(f"{name} has {expected} leaders", lambda state: _led(state, name) == expected, name)
        self._await_leading(name)

    def delete_topic(self, name: str) -> None:
        """Delete a topic. Wait until no broker knows it and its name is free again."""
        body = array([string(name)]) + struct.pack(">i", 20_000)
        reader = self._controller_call(DELETE_TOPICS, 1, body)
        reader.int32()  # throttle
        for _ in range(reader.int32()):
            _check(f"delete {reader.string()}", reader.int16())
        self._await(
            f"{name} is gone", lambda state: state.topics[name].error != 0 and self._creatable(name), name
        )

    def _creatable(self, name: str) -> bool:
        """Whether a topic can be created: with ZooKeeper, a deleted one leaves the metadata earlier."""
        topic = string(name) + struct.pack(">ih", 1, 1) + array([]) + array([])
        reader = self._controller_call(CREATE_TOPICS, 2, array([topic]) + struct.pack(">i?", 20_000, True))
        reader.read(4 + 4)  # throttle, one topic
        reader.string()
        return reader.int16() != TOPIC_ALREADY_EXISTS

    def add_partitions(self, name: str, total: int) -> None:
        """Add partitions to a topic, up to `total`. Wait until all brokers know their leaders, who lead."""
        body = array([string(name) + struct.pack(">i", total) + b"\xff\xff\xff\xff"])  # null: brokers assign
        reader = self._controller_call(CREATE_PARTITIONS, 0, body + struct.pack(">i?", 20_000, False))
        reader.int32()  # throttle
        for _ in range(reader.int32()):
            _check(f"add partitions to {reader.string()}", reader.int16(), reader.string())
        self._await(f"{name} has {total} leaders", lambda state: _led(state, name) == total, name)
        self._await_leading(name)

    def delete_records(self, name: str, before: Mapping[int, int]) -> dict[int, int]:
        """Delete records before offsets (-1: all). Return the new log start offsets, by partition."""
        starts = {}
        for partition, offset in before.items():
            topic = string(name) + array([struct.pack(">iq", partition, offset)])
            connection = self._leader(name, partition)
            reader = BodyReader(
                connection.call(DELETE_RECORDS, 0, array([topic]) + struct.pack(">i", 20_000))
            )
            reader.read(4 + 4)  # throttle, one topic
            reader.string()
            reader.read(4 + 4)  # one partition
            starts[partition] = reader.int64()
            _check(f"delete records of {name}-{partition}", reader.int16())
        return starts

    def set_quota(self, client_id: str | None, quota: Mapping[str, float | None]) -> None:
        """Set the quotas of a client id, for example `{"consumer_byte_rate": 50_000}`.

        Wait until every broker knows the quotas. The broker must be 2.6 or later. Older brokers have the
        property `quota.consumer.default` instead. `client_id` is None for all clients. A value of None
        removes a quota.
        """
        entity = array([string("client-id") + string(client_id)])
        operations = [
            string(key) + struct.pack(">d?", value or 0.0, value is None) for key, value in quota.items()
        ]
        reader = self._controller_call(ALTER_QUOTAS, 0, array([entity + array(operations)]) + b"\0")
        reader.int32()  # throttle
        for _ in range(reader.int32()):
            _check(f"quota of {client_id}", reader.int16(), reader.string())
            for _ in range(reader.int32()):
                reader.string(), reader.string()

        def holds(node_id: int) -> bool:
            known = self._quotas(client_id, node_id)
            return all(known.get(key) == value for key, value in quota.items())

        self._await_each(f"{client_id} has {dict(quota)}", holds)

    def _quotas(self, client_id: str | None, node_id: int) -> dict[str | None, float]:
        """Return the quotas of a client id (None: the default of all), as one broker knows them."""
        match = b"\1" if client_id is None else b"\0"  # 1: the default, 0: by name
        component = string("client-id") + match + string(client_id)
        body = array([component]) + b"\1"  # strict: of no users
        reader = BodyReader(self._node(node_id).call(DESCRIBE_QUOTAS, 0, body))
        reader.int32()  # throttle
        _check(f"quotas of {client_id}", reader.int16(), reader.string())
        quotas = {}
        for _ in range(reader.int32()):
            for _ in range(reader.int32()):
                reader.string(), reader.string()
            for _ in range(reader.int32()):
                key = reader.string()
                (quotas[key],) = struct.unpack(">d", reader.read(8))
        return quotas

    def move_leader(self, name: str, partition: int, node_id: int) -> None:
        """Make a broker a replica if it is none, then the leader. Wait until every broker knows it."""
        replicas = self.state(name).topics[name].replicas[partition]
        order = [node_id, *(other for other in replicas if other != node_id)]
        if node_id not in replicas:
            order.pop()
        self.reorder(name, partition, order)
        self.elect(name, {partition: node_id})

    def reorder(self, name: str, partition: int, replicas: Sequence[int]) -> None:
        """Set the replicas of one partition. See `reorder_all`."""
        self.reorder_all(name, {partition: replicas})

    def reorder_all(self, name: str, replicas: Mapping[int, Sequence[int]]) -> None:
        """Set the replicas without an election. Wait until each first one is in sync, and brokers know."""
        orders = {partition: list(order) for partition, order in replicas.items()}
        self._reassign(name, orders)

        def holds(state: ClusterState) -> bool:
            topic = state.topics[name]
            return all(
                topic.replicas[partition] == order and order[0] in topic.in_sync[partition]
                for partition, order in orders.items()
            )

        self._await(f"{name} is on {orders}", holds, name)

    def elect(self, name: str, leaders: Mapping[int, int]) -> None:
        """Make each first replica, whose id is given, the leader. Wait until brokers know, and it leads."""
        places = [struct.pack(">i", partition) for partition in leaders]
        body = array([string(name) + array(places)]) + struct.pack(">i", 20_000)
        reader = self._controller_call(ELECT_LEADERS, 0, body)
        reader.int32()  # throttle
        for _ in range(reader.int32()):
            reader.string()
            for _ in range(reader.int32()):
                partition, code, message = reader.int32(), reader.int16(), reader.string()
                if code != ELECTION_NOT_NEEDED:
                    _check(f"elect {leaders[partition]} for {name}-{partition}", code, message)

        def holds(state: ClusterState) -> bool:
            led = state.topics[name].leaders
            return all(led[partition] == node_id for partition, node_id in leaders.items())

        self._await(f"{name} is led by {leaders}", holds, name)
        self._await_leading(name)

    def leaders(self, name: str) -> dict[int, int]:
        """Return the node id of each partition's leader, by partition. -1 if it has no leader."""
        return self.state(name).topics[name].leaders

    def await_in_sync(self, *names: str) -> None:
        """Wait until all replicas of topics are in sync, as far as the broker that is asked knows."""
        until(f"all replicas of {', '.join(names)} are in sync", lambda: self.in_sync(*names), SYNC_SECONDS)

    def in_sync(self, *names: str) -> bool:
        """Return whether all replicas of topics are in sync."""
        return all(
            topic.replicas
            and all(len(topic.in_sync[each]) == len(all_) for each, all_ in topic.replicas.items())
            for topic in self.state(*names).topics.values()
        )

    def topic_id(self, name: str) -> UUID:
        """Return the id of a topic (broker of 2.8 or later), all zeros if topics have none."""
        version = 10
        body = compact_array([bytes(16) + compact_string(name) + b"\0"]) + b"\0\0\0\0"
        reader = BodyReader(self._any().call(METADATA, version, body))
        reader.int32()  # throttle
        for _ in range(reader.uvarint() - 1):
            reader.int32(), reader.compact_string(), reader.int32(), reader.compact_string(), reader.tags()
        reader.compact_string(), reader.int32()  # cluster id, controller
        reader.uvarint()
        _check(f"id of {name}", reader.int16())
        reader.compact_string()
        return UUID(bytes=reader.read(16))

    def offsets(self, name: str, *, timestamp: int = -1) -> dict[int, int]:
        """Return offsets by partition: the ends (-1), the starts (-2), or the first from a time in ms on."""
        return {partition: self._offset(name, partition, timestamp) for partition in self.leaders(name)}

    def _offset(self, name: str, partition: int, timestamp: int) -> int:
        """Return one offset of a partition. Ask again while a new leader does not know that it is one."""
        deadline = time.monotonic() + PATIENCE
        while True:
            leader = self.leaders(name)[partition]
            code, offset = self._list_offsets(name, leader, [partition], timestamp)[partition]
            if code != NOT_LEADER or time.monotonic() >= deadline:
                _check(f"offset of {name}-{partition}", code)
                return offset
            time.sleep(0.05)

    def _list_offsets(
        self, name: str, node_id: int, partitions: Sequence[int], timestamp: int
    ) -> dict[int, tuple[int, int]]:
        """Ask a broker for one offset of each partition. Return error code and offset, by partition."""
        places = array([struct.pack(">iq", partition, timestamp) for partition in partitions])
        body = struct.pack(">i", -1) + array([string(name) + places])
        reader = BodyReader(self._node(node_id).call(LIST_OFFSETS, 1, body), 4)
        reader.string()
        found = {}
        for _ in range(reader.int32()):
            partition, code = reader.int32(), reader.int16()
            reader.int64()  # timestamp
            found[partition] = code, reader.int64()
        return found

    def await_coordinator(self, group: str) -> None:
        """Wait until a group has a coordinator that serves it.

        The first request makes the brokers create the topic of committed offsets. They name a coordinator
        before it is one; until then, librdkafka's synchronous commit fails.
        """

        def serves() -> bool:
            reader = BodyReader(self._any().call(FIND_COORDINATOR, 0, string(group)))
            if reader.int16():
                return False
            coordinator = self._node(reader.int32())
            reader = BodyReader(coordinator.call(OFFSET_FETCH, 2, string(group) + array([])))
            reader.int32()  # no topics
            return reader.int16() == 0

        until(f"a coordinator serves {group}", serves)

    def state(self, *topics: str, node_id: int | None = None) -> ClusterState:
        """Return the metadata of the topics."""
        connection = self._any() if node_id is None else self._node(node_id)
        return request_metadata(connection, *topics)

    def _reassign(self, name: str, orders: Mapping[int, Sequence[int]]) -> None:
        places = [
            struct.pack(">i", partition) + compact_array([struct.pack(">i", node) for node in order]) + b"\0"
            for partition, order in orders.items()
        ]
        topic = compact_string(name) + compact_array(places) + b"\0"
        body = struct.pack(">i", 20_000) + compact_array([topic]) + b"\0"
        reader = self._controller_call(ALTER_REASSIGNMENTS, 0, body)
        reader.int32()  # throttle
        _check(f"reassign {name}", reader.int16(), reader.compact_string())
        for _ in range(reader.uvarint() - 1):
            reader.compact_string()
            for _ in range(reader.uvarint() - 1):
                partition = reader.int32()
                _check(f"reassign {name}-{partition}", reader.int16(), reader.compact_string())
                reader.tags()
            reader.tags()

    def _await_leading(self, name: str) -> None:
        """Wait until the leaders of a topic serve it. Metadata name them earlier, sometimes by seconds."""
        self._await_each(f"each leader of {name} leads", lambda node_id: self._leads(name, node_id))

    def _leads(self, name: str, node_id: int) -> bool:
        led = [partition for partition, leader in self.leaders(name).items() if leader == node_id]
        return not led or not any(code for code, _ in self._list_offsets(name, node_id, led, -1).values())

    def _await(self, what: str, holds: Callable[[ClusterState], bool], *topics: str) -> None:
        """Wait until a condition, in words `what`, holds for the metadata of every broker."""
        self._await_each(what, lambda node_id: holds(self.state(*topics, node_id=node_id)))

    def _await_each(self, what: str, holds: Callable[[int], bool]) -> None:
        """Wait until a condition, in words `what`, holds for every broker."""
        until(what, lambda: all(holds(node_id) for node_id in self.state().brokers))

    def _controller_call(self, api_key: int, version: int, body: bytes) -> BodyReader:
        return BodyReader(self._node(self.state().controller).call(api_key, version, body))

    def _leader(self, name: str, partition: int) -> RawConnection:
        return self._node(self.leaders(name)[partition])

    def _node(self, node_id: int) -> RawConnection:
        brokers = self.state().brokers
        if node_id not in brokers:
            raise AdminError(f"broker {node_id}", -1, f"not among {sorted(brokers)}")
        return self._connection(brokers[node_id])

    def _any(self) -> RawConnection:
        """Connect to the first bootstrap address that accepts a connection."""
        refused: OSError | None = None
        for address in self._bootstrap:
            try:
                return self._connection(address)
            except OSError as error:
                refused = error
        raise refused or OSError("no bootstrap address")

    def _connection(self, address: tuple[str, int]) -> RawConnection:
        """Return a working connection to an address. Reconnect if the broker has restarted."""
        connection = self._connections.pop(address, None)
        if connection is not None:
            try:
                connection.call(API_VERSIONS, 0, b"")
            except OSError:
                connection.close()
                connection = None
        if connection is None:
            connection = RawConnection(*address)
        self._connections[address] = connection
        return connection


def until(what: str, holds: Callable[[], bool], seconds: float = PATIENCE) -> None:
    """Wait until a condition is true. `what` is the condition in words, for the error message."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if holds():
            return
        time.sleep(0.05)
    raise TimeoutError(f"not seen in {seconds:.0f} s: {what}")


def _led(state: ClusterState, name: str) -> int:
    """Return how many partitions of a topic have a leader. 0 if the topic is not known yet."""
    topic = state.topics[name]
    return 0 if topic.error else sum(leader >= 0 for leader in topic.leaders.values())


def _check(what: str, code: int, message: str | None = None) -> None:
    if code:
        raise AdminError(what, code, message)


def _int32s(values: Sequence[int]) -> bytes:
    return array([struct.pack(">i", value) for value in values])


def _split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host, int(port)
