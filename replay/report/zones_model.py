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


def values_of(by_zone: ByZone) -> tuple[int, int, int]:
    """Return the bytes in the order of their names."""
    return by_zone["same"], by_zone["other"], by_zone["unknown"]


class ZonedBroker(TypedDict):
    """A broker of the capture, or one that Metadata names."""

    broker: str
    """host:port"""
    node_id: int | None
    """None if no captured response has this address."""
    rack: str | None
    """None if unknown."""


class ZonedClients(TypedDict):
    """The clients of one zone."""

    rack: str | None
    """None if unknown."""
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
    client_rack_bytes: int
    """Its part of `client_rack.moved_bytes`."""
    rack_clients_bytes: int
    """Its part of `rack_clients.moved_bytes`."""


class ZonedTopic(ZonedFetches):
    """The fetch bytes of one topic. In one row the topic is None: it has the rest of each frame."""

    topic: str | None
    client_rack_bytes: int
    """Its part of `client_rack.moved_bytes`."""
    rack_clients_bytes: int
    """Its part of `rack_clients.moved_bytes`."""


class ZonePair(TypedDict("_Ends", {"from": str | None, "to": str | None})):
    """The bytes that went from one zone to another one, or stayed in one zone, in this direction."""

    bytes: int


class ZoneMoves(TypedDict):
    """The record bytes that one way of reading in the client's own zone would move there.

    `moved_bytes` and `stays` add up to all record bytes and all produce bytes.
    """

    moved_bytes: int
    """Record bytes from brokers in other zones, of partitions that have an in-sync replica in the client's
    zone."""
    saved_per_month: float | None
    """The price of `moved_bytes` in 30 days: --price-per-gb. None without it, or if less than 5 s were
    captured."""
    stays: dict[str, int]
    """The bytes that stay where they are, by reason."""


class LatencyClass(TypedDict):
    """Latencies at one rate: from produce to a consumer that waits for records, in ms. Measured, not here."""

    records_per_second: int
    leader_p50_ms: int
    leader_p99_ms: int
    replica_p50_ms: int
    """From a replica that is not the leader."""
    replica_p99_ms: int


class LeaderRate(TypedDict):
    """How many records were written to the partitions of a topic that have one leader.

    Counted is how far the high watermarks of fetched partitions rose, so it may be less than all.
    """

    topic: str
    leader: int
    """Its node id."""
    rack: str | None
    records_per_second: float
    """Of this topic at this leader."""
    leader_records_per_second: float
    """Of all topics at this leader. A replica learns from the leader's next response for any of them that a
    record may be read."""
    latency: LatencyClass
    """The class of the highest rate that is not above the leader's, or the lowest class."""


class CrossedBytes(TypedDict):
    """The bytes that go to another zone in one direction, and their price if one end pays."""

    bytes: int
    cost: float


class ZoneMoney(TypedDict):
    """Modelled: what bytes between zones cost, in the time of the capture."""

    price_per_gb: float
    """Of 10^9 bytes in each direction."""
    currency: str
    """The value of --currency, "" if it is not given."""
    to_clients: CrossedBytes
    """From brokers to clients: records and all else in responses."""
    to_brokers: CrossedBytes
    """From clients to brokers: requests, with what is produced."""
    cost: float
    """Of both directions, if one end pays."""
    cost_both_ends: float
    """Of both directions, if both ends pay: twice `cost`."""
    client_rack_saves: float
    """The part of `cost` that `client_rack` would save."""
    rack_clients_saves: float
    """The part of `cost` that `rack_clients` would save."""
    captured_seconds: float
    cost_per_month: float | None
    """`cost` in 30 days, if the traffic continued as in the capture. None if less than 5 s were captured, or
    if no bytes have two known zones."""
    how: str
    """How it is computed."""


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
    client_rack: ZoneMoves
    """If the clients had a ``client.rack``, and the brokers a replica selector: the leader then names a
    replica in that rack. For fetches of v11 and later, of clients that follow."""
    rack_clients: ZoneMoves
    """If Metadata named a replica in the client's rack as the leader. For fetches of v10 and later."""
    leaders: list[LeaderRate]
    """The highest rates are first. Empty if no client's zone is known."""
    money: ZoneMoney | None
    """None without --zone-price-per-gb."""


def any_zone_known(found: ZonedBytes) -> bool:
    """Return whether any bytes are known to stay in a zone, or to go to another one."""
    kinds = found["record_bytes"], found["listing_bytes"], found["produce_bytes"], found["other_bytes"]
    return any(kind["same"] or kind["other"] for kind in kinds)
