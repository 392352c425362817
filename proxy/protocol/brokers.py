"""Reads the brokers that Metadata and DescribeCluster responses name, with address and rack. Sans-IO."""

from typing import Final, NamedTuple

from proxy.protocol.api import ApiKey
from proxy.protocol.messages import Struct, read
from proxy.protocol.schemas import ADDRESSED

VERSIONS: Final = {
    int(key): range(first, ADDRESSED[key].last + 1)
    for key, first in ((ApiKey.METADATA, 1), (ApiKey.DESCRIBE_CLUSTER, 0))
}
"""The APIs whose responses have the racks of brokers, and the versions in which they can be read."""


class Broker(NamedTuple):
    """A broker in a response."""

    node_id: int
    host: str
    port: int
    rack: str
    """Empty if the broker has none."""


def read_brokers(api_key: int, version: int, body: bytes) -> tuple[list[Broker], int]:
    """Return the brokers in a response of one of `VERSIONS`, and the offset at which they end.

    `body` is the response without its header. It may end after the brokers.

    Raises:
        ProtocolError: the body does not match the version, or ends before the last broker.
    """
    message = ADDRESSED[api_key]
    found = read(message.schema, api_key, version, body, 0, only=message.where, whole=False)
    return brokers_in(found), found.spans["brokers"][1]


def brokers_in(found: Struct) -> list[Broker]:
    """Return the brokers in the fields of a response."""
    return [
        Broker(
            broker["node_id"],
            (broker["host"] or b"").decode(errors="replace"),
            broker["port"],
            (broker["rack"] or b"").decode(errors="replace"),
        )
        for broker in found["brokers"] or ()
    ]
