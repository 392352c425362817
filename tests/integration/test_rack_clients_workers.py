"""`--rack-clients` with workers: what one of them finds of a client, all of them know."""

import struct
from contextlib import ExitStack
from typing import Final

from tests.integration.bystander import until
from tests.integration.three_racks import HERE, PARTITIONS, TOPIC, make_brokers
from tools.gateway import GatewayProcess
from tools.kafka.metadata import request_metadata
from tools.kafka.raw import BodyReader, RawConnection, array, string

WORKERS, ALL_HERE = 2, {HERE}
CLIENT: Final = "spec"
DELETE_RECORDS: Final = 21


def deletes(connection: RawConnection, partition: int) -> int:
    """Delete no record. Return the error code."""
    topic = string(TOPIC) + array([struct.pack(">iq", partition, 0)])
    reader = BodyReader(connection.call(DELETE_RECORDS, 0, array([topic]) + struct.pack(">i", 9_000)))
    reader.read(4 + 4)  # throttle, one topic
    reader.string()
    reader.read(4 + 4 + 8)  # one partition, its number, its low watermark
    return reader.int16()


def test_a_client_that_is_no_consumer_gets_true_metadata_from_each_worker() -> None:
    """Its connections are spread over the workers."""
    options = ("--rack", f"R{HERE}", "--rack-clients", CLIENT, "--workers", str(WORKERS))
    with make_brokers({}) as brokers, GatewayProcess(brokers.cluster.bootstrap, *options) as gateway:

        def leaders(connection: RawConnection) -> set[int]:
            return set(request_metadata(connection, TOPIC).topics[TOPIC].leaders.values())

        with ExitStack() as stack:
            connections = [
                stack.enter_context(RawConnection(gateway.host, gateway.port)) for _ in range(2 * WORKERS)
            ]
            assert [leaders(each) for each in connections] == [ALL_HERE] * len(connections)
            found = request_metadata(connections[0], TOPIC)
            replica = stack.enter_context(RawConnection(*found.brokers[HERE]))
            errors = [deletes(replica, partition) for partition in range(PARTITIONS)]
            assert sorted(errors) == [0] * (PARTITIONS // 3) + [6] * (2 * PARTITIONS // 3)

            def all_true() -> bool:
                return all(leaders(each) != ALL_HERE for each in connections)

            until(all_true, "a worker still names the replica")
