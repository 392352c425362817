"""The report on zones: `zones` in the report object.

A zone is a rack of Kafka's brokers. Names of racks are as brokers sent them, or as the user gave them. A zone
that is not known is null; it is never guessed.
"""

from typing import TypedDict


class ByZone(TypedDict):
    """Bytes by where they go: they stay in one zone, they go to another one, or it is not known."""

    same: int
    other: int
    unknown: int


class ZonedBroker(TypedDict):
    """A broker of the capture, or one that Metadata names."""

    broker: str
    """The broker's address: host:port."""
    node_id: int | None
    """None if no captured response has this address."""
    rack: str | None


class ZonedClients(TypedDict):
    """The clients of one zone."""

    rack: str | None
    connections: int


class ZonedFetches(TypedDict):
    """Bytes of fetches. They are called as in the gateway's metric `fetchgate_zone_bytes_total`."""

    record_bytes: ByZone
    """The records in fetch responses."""
    listing_bytes: ByZone
    """All other bytes of fetch requests and fetch responses."""


class ZonedBytes(ZonedFetches):
    """The bytes of all requests and responses."""

    produce_bytes: ByZone
    """Produce requests and their responses."""
    other_bytes: ByZone
    """All other requests and responses."""


class ZonedClient(ZonedBytes):
    """The bytes of one client id and software."""

    client_id: str
    software: str
    """The name and version of the client's software, "" if unknown."""


class ZonedTopic(ZonedFetches):
    """The fetch bytes of one topic. In one row the topic is None: it has the rest of each frame."""

    topic: str | None


class ZonePair(TypedDict("_Ends", {"from": str | None, "to": str | None})):
    """The bytes that went from one zone to another one, or stayed in one zone, in this direction."""

    bytes: int


class ZonesReport(ZonedBytes):
    """The bytes of the capture by zone. Rows add up to the totals."""

    brokers: list[ZonedBroker]
    clients: list[ZonedClients]
    by_client: list[ZonedClient]
    """The clients with the most bytes to other zones are first."""
    by_topic: list[ZonedTopic]
    """The topics with the most record bytes to other zones are first. The row without a topic is last."""
    pairs: list[ZonePair]
    """The pairs with the most bytes are first. All of them together have the bytes of all whole requests and
    responses."""
