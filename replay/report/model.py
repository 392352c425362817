"""The report object. `measure --json` prints it, and every other form of the report is made from it.

It consists of plain dictionaries, so it can be written as JSON without conversion. Three rules hold:

- Bytes are counted, on whole Kafka frames (their 4-byte length included) unless a field says otherwise.
- predicted broker side = `sessions` + (`actual` - `eligible`), for requests and responses alike.
- Columns add up: the rows of `by_client`, of `by_topic` and of `by_broker` each sum to `fetch`.

Names (client ids, software, topics, hosts) are as clients and brokers sent them. Code that shows them must
escape them.
"""

from typing import Final, Literal, NotRequired, TypeAlias, TypedDict

from replay.report.zones_model import ByZone, ZonesReport

Action: TypeAlias = Literal[
    "gateway",
    "sidecar cost",
    "fetch.min.bytes",
    "own sessions",
    "one partition",
    "upgrade client",
    "upgrade brokers",
    "upgrade fetchgate",
    "capture again",
    "one side",
    "measure alone",
    "leave",
]


class Actual(TypedDict):
    """The fetches as captured."""

    requests: int
    """With or without a captured response."""
    responses: int
    """Those whose request was captured."""
    request_bytes: int
    """Those of whole requests."""
    response_bytes: int
    """Those of whole responses."""
    record_bytes: int
    """The part of `response_bytes` in the `records` fields."""
    partitions_requested: int
    """Entries of partitions in requests."""
    partitions_answered: int
    """Entries of partitions in responses."""


class Eligible(TypedDict):
    """The fetches that went through the session engine, as captured."""

    exchanges: int
    """Requests with their responses."""
    request_bytes: int
    response_bytes: int
    record_bytes: int


class SessionsReport(TypedDict):
    """The cost of the eligible fetches with sessions. The bytes include closes and repairs."""

    request_bytes: int
    response_bytes: int
    full: int
    """Fetches that request a session (epoch 0)."""
    incremental: int
    """Fetches within a session."""
    sessionless: int
    """Fetches without a session."""
    added: int
    """Partitions that incremental fetches add to a session."""
    altered: int
    """Partitions that incremental fetches change in a session."""
    forgotten: int
    """Partitions that incremental fetches remove from a session."""
    partitions_requested: int
    """Entries of partitions in requests."""
    partitions_answered: int
    """Entries of partitions in responses."""
    close_bytes: int
    """Bytes of fetches that close a session, both directions."""
    repair_bytes: int
    """Bytes of fetches that are sent again after a session was lost, both directions."""


PARTS: Final = {"actual": Actual, "eligible": Eligible, "sessions": SessionsReport}
"""The parts of a `FetchReport` that have only counts, with their types."""


class FetchReport(TypedDict):
    """The fetches of the whole capture, or of a client, topic, broker or connection."""

    actual: Actual
    eligible: Eligible
    sessions: SessionsReport
    saved_bytes: int
    """eligible - sessions, both directions. Negative if sessions would have cost more."""
    saved_ratio: float
    """saved_bytes / all actual fetch bytes of the row; 0.0 if there are none."""


class Problem(TypedDict):
    """A part of the input that could not be read. If there is any, the exit code is 3, or 1."""

    file: str
    """As the user named it; "" if the problem is not about one file."""
    problem: str
    """For people, in one line and without the file's name."""


class Input(TypedDict):
    """The input that was read."""

    files: int
    bytes: int
    packets: int
    connections: int
    """Those that speak Kafka."""
    copied_connections: int
    """Further ones that were left out: they are copies of others, captured after NAT."""
    exchanges: int
    """Requests with their responses, of all APIs."""
    gaps: int
    """Places where bytes of a stream are missing."""
    unpaired_requests: int
    """Requests whose response was not captured."""
    unpaired_responses: int
    """Responses whose request was not captured."""
    decrypted_connections: int
    """TLS connections that a key log decrypted. All figures are about their decrypted contents."""
    encrypted_connections: dict[str, int]
    """TLS connections that could not be decrypted, or only in part, by reason."""
    unread_packets: dict[str, int]
    """Packets that are not read although they may carry TCP, and IP fragments, by protocol."""
    clocks_apart_seconds: float
    """The smallest distance of two clocks, one for each direction of a connection, that explains the captured
    times. The largest value of all connections is given; 0 if it is below 1 ms, which queues may explain."""
    loopback: bool
    """Whether all clients whose fetches count are on the loopback of a host (127.0.0.0/8 or ::1)."""
    problems: list[Problem]
    """Parts that could not be read. With any, the exit code is 3, or 1."""


class Filters(TypedDict):
    """The filters of the input. An empty list means no filter."""

    ports: list[int]
    """The values of --port."""
    hosts: list[str]
    """The values of --host."""
    clients: list[str]
    """The values of --client."""
    topics: list[str]
    """The values of --topic."""


class Stretch(TypedDict):
    """An interval in which packets were captured, ISO 8601 in UTC."""

    first: str
    last: str


class Time(TypedDict):
    """Times of the first and the last packet, ISO 8601 in UTC; "" if there was no packet."""

    first: str
    last: str
    captured_seconds: float
    """The sum of `stretches`."""
    stretches: list[Stretch]
    """In order. Nothing was captured between two of them: a gap between files, or captures were joined."""


class Bucket(TypedDict):
    """The fetch bytes of one period of time, in both directions."""

    time: str
    """The start of the period, ISO 8601 in UTC."""
    seconds: float
    actual_bytes: int
    predicted_bytes: int


class Shares(TypedDict):
    """All fetch bytes, both directions, in five parts. The parts add up to the whole."""

    listing_bytes: int
    """The request bytes of partition entries, including forgotten partitions, and of their topic elements."""
    empty_entry_bytes: int
    """The response bytes of entries with nothing new."""
    entry_bytes: int
    """The response bytes of entries with something new, without the bytes of their records."""
    record_bytes: int
    """The response bytes in the `records` fields."""
    other_bytes: int
    """The bytes of the rest of all frames: headers, session fields, and topic elements of responses."""


class Where(TypedDict):
    """What the fetch bytes consist of: in the capture, and as predicted on the broker side."""

    actual: Shares
    predicted: Shares


class ReadableReport(TypedDict):
    """How much of the captured connections' TCP payload was understood."""

    readable_bytes: int
    unreadable_bytes: int
    """Lost, cut, encrypted or not Kafka. Readable and unreadable bytes add up to all bytes."""
    left_out_bytes: int
    """Contents of records that were not captured, for example with `--capture-records no`. No figure needs
    these bytes, and no other sum here includes them."""
    ratio: float
    """readable_bytes / all bytes; 1.0 if there are no bytes."""
    by_reason: dict[str, int]
    """Unreadable bytes by reason. They add up to `unreadable_bytes`."""


class Passed(TypedDict):
    """Fetches that did not use a session of the gateway, for one reason."""

    exchanges: int
    """Their number."""
    bytes: int
    """As captured, in both directions."""


class FetchesRow(TypedDict):
    """A row with fetches, and with those of them that did not use sessions."""

    fetch: FetchReport
    passed: dict[str, Passed]
    """By reason: not eligible, or forwarded unchanged by the policy."""


class OfClient(TypedDict):
    """What identifies a client."""

    client_id: str
    software: str
    """The name and version of the client's software, from ApiVersions v3 or later; "" if unknown."""
    fetch_version: int
    """The version of its fetches."""


class ToDo(OfClient):
    """Advice for one client id, software and fetch version."""

    action: Action
    """What to do, in a word or two for programs."""
    saved_bytes_per_day: int | None
    """The modelled saving of one day with sessions: `saved_bytes` of the client, at the rate of the captured
    time. None if less than 5 s were captured, or if `action` is "one side" or "measure alone"."""
    money_per_month: float | None
    """The price of it in 30 days. None without --price-per-gb, if `saved_bytes_per_day` is None, or if the
    captures may be of different hosts."""
    advice_saves_bytes_per_day: int | None
    """What the advice saves in a day, with sessions or with `fetch.min.bytes`. 0 if it saves nothing that is
    known; None as for `saved_bytes_per_day`."""
    advice_saves_money_per_month: float | None
    """The price of it in 30 days. None as for `money_per_month`."""
    sentence: str
    """For people. It does not name the client."""


class DifferentHosts(TypedDict):
    """What would be saved if captures that were taken one after the other are of different hosts.

    No client address is in two of these captures. A loopback address counts as another one for each broker.
    """

    captures: int
    """Their number."""
    captured_bytes_per_day: int
    """The sum over the captures: the fetch bytes of one day at the rate of the capture's own time."""
    saved_bytes_per_day: int
    """The same sum of what sessions save."""
    captured_per_month: float | None
    """The price of all fetch bytes in 30 days, as the same sum. None without --price-per-gb."""
    money_per_month: float | None
    """The part of it that sessions save. None without --price-per-gb."""
    shared_addresses: list[str]
    """The loopback addresses that clients have in more than one of the captures."""
    sidecars_priced: bool
    """Whether --sidecar-cost was given, so that only the different hosts prevent a net sum."""


class Decision(TypedDict):
    """The report's first lines: how much sessions would save, and what to do next."""

    captured_seconds: float
    """The captured time."""
    enough: bool
    """Whether at least an hour was captured. A shorter time says little about a day."""
    saved_bytes_per_day: int | None
    """The modelled saving of one day: `fetch.saved_bytes` at the rate of the captured time. None if less than
    5 s were captured, or if too many fetches are missing (`reason` is "bytes missing" or "unpaired")."""
    saved_ratio: float
    """As `fetch.saved_ratio`."""
    money_per_month: float | None
    """The modelled saving of money in 30 days. None without --price-per-gb, or if `saved_bytes_per_day` is
    None."""
    different_hosts: DifferentHosts | None
    """What would be saved if the captures are of different hosts. None if nothing suggests this."""
    reason: str
    """The reason why nothing is saved; "" if something is saved, or if there are no fetch bytes."""
    next_step: str
    """Advice if no fetch was found; "" if there are fetches."""
    to_do: list[ToDo]
    """Advice for each client in `by_client`. The client with the largest saving is first."""


class ClientRow(OfClient, FetchesRow):
    """One client id, software and fetch version."""

    connections: int
    connection_seconds: float
    """The captured time of the client's connections in seconds, added up. Each connection counts from its
    first packet to its last one."""


class TopicRow(TypedDict):
    """The entries and topic elements of one topic.

    In one row the topic is None. This row has the rest of each frame. It also has the figures that are
    counted once for each frame: requests, responses, exchanges, full, incremental, sessionless, added,
    altered, forgotten, close_bytes and repair_bytes. In the row of a topic, these figures are 0.
    """

    topic: str | None
    """If no captured Metadata response has the name, the topic id as Kafka writes it. None in the row with
    the rest of each frame."""
    fetch: FetchReport


class BrokerRow(FetchesRow):
    """The figures of one broker."""

    broker: str
    """host:port"""
    connections: int


class ConnectionRow(FetchesRow):
    """One of the connections with the most fetch bytes."""

    connection: str
    """For example "client host:port > broker host:port #n". n numbers the connections with the same ports."""
    client: str
    broker: str
    client_id: str
    software: str


class PolicyRow(TypedDict):
    """The saving of one policy for all fetches (see `Report.policy`)."""

    predicted_bytes: int
    saved_bytes: int
    saved_ratio: float


class SlotsNeeded(TypedDict):
    """The slots that one broker's sessions need in a period of time."""

    time: str
    """The start of the period, ISO 8601 in UTC. Periods without a change are left out: the last value
    continues."""
    needed: int
    """The most sessions that exist at the same time in this period."""


class SlotsRow(TypedDict):
    """The effect of the sessions on one broker's slots (max.incremental.fetch.session.cache.slots)."""

    broker: str
    sessions_at_once: int
    """The most sessions that had a slot at the same time."""
    requested_at_once: int
    """The most sessions at the same time, if there were slots for all of them."""
    slots: int
    """The slots that a broker has by default: 1,000."""
    evictions: int
    """Sessions that the broker evicted for others."""
    refused: int
    """Sessions that the broker did not create: no slot was free, and no session could be evicted."""
    over_time: list[SlotsNeeded]
    """At most 120 entries."""


class LimitFigures(TypedDict):
    """Responses and their limit: max_bytes (KIP-74), or `LimitsReport.max_fetch_bytes` if that is lower."""

    responses: int
    largest_record_bytes: int
    """Those in the largest response."""
    over_limit: int
    """Responses with more record bytes than the limit. A broker can exceed the limit only with the first
    batch of a response."""
    over_limit_bytes: int
    """Those above the limit, added up over all responses."""
    starved: int
    """How often a partition starved: it had records but got none, while other partitions got some."""
    starved_seconds: float
    """In total."""


class LimitsRow(OfClient, LimitFigures):
    """The limits of one client id, software and fetch version."""

    max_bytes: int
    """The largest max_bytes of this client's fetches, even if `LimitsReport.max_fetch_bytes` is lower. 0 for
    v0 to v2, which have none."""


class StarvedRow(TypedDict):
    """One time span in which a partition starved on a connection."""

    client_id: str
    broker: str
    """host:port"""
    topic: str
    """As in `TopicRow`."""
    partition: int
    """Its number."""
    since: str
    """ISO 8601 in UTC."""
    seconds: float
    """The seconds until the partition got records, had no more records, had an error, or was not fetched any
    more. If this was not captured: until the last response in which the partition starved."""
    responses: int
    """Those that brought records of other partitions in this time."""
    behind: int
    """The largest lag of the partition: from its fetch offset to the end of the readable log."""


class LimitsReport(LimitFigures):
    """The effect of the captured response limits, or of the lower limit `max_fetch_bytes`."""

    max_fetch_bytes: int
    """The value of --max-fetch-bytes. 0 if each fetch was measured by its own limit (v0 to v2: 50 MiB)."""
    by_client: list[LimitsRow]
    longest: list[StarvedRow]
    """The longest time spans in which a partition starved, at most 10."""


class FloorFigures(TypedDict):
    """What floors of min_bytes and max_wait_ms would save, and by how much records would come later.

    These figures are modelled: the records of a connection are taken to arrive evenly in its captured time.
    """

    requests: int
    """As captured."""
    fewer_requests: int
    """How many of them there would be fewer."""
    saved_bytes: int
    """The bytes of these requests and of their responses, without records. They are those with sessions, so
    that this saving comes on top of `FetchReport.saved_bytes`."""
    later_seconds: float
    """On average, of records of connections on which min_bytes is raised."""
    later_at_most_seconds: float
    """The longest time by which a record would come later."""


class FloorsRow(OfClient, FloorFigures):
    """The effect of the floors on one client id, software and fetch version."""


class FloorsReport(FloorFigures):
    """What `fetchgate proxy --fetch-min-bytes --fetch-max-wait` would save."""

    fetch_min_bytes: int
    """The value of --fetch-min-bytes. 0 if min_bytes is not raised."""
    fetch_max_wait_seconds: float
    """The value of --fetch-max-wait. 0 if max_wait_ms is not raised."""
    by_client: list[FloorsRow]
    """A row for each row of `Report.by_client`, in the same order."""
    how: str
    """How it is computed."""


class SpreadShare(TypedDict):
    """One figure in two forms: for the number of records, and for their bytes without compression."""

    records: float
    """Of the number of records."""
    bytes: float
    """Of the bytes of records."""


class HottestKey(SpreadShare):
    """The shares of the key with the most records, and of the key with the most bytes."""

    exact: bool
    """False if there are so many keys that several were counted as one. The true shares may then be a
    little lower."""


class CooperativeRow(TypedDict):
    """The records that brokers sent to a consumer group, and how evenly they would spread over members.

    If one connection got a record twice, it counts once. If two connections got it, it counts twice. Control
    batches don't count.
    """

    group: str | None
    """None if the group of the clients is unknown, or if they have several groups."""
    client_id: str | None
    """None if the group is known."""
    records: int
    """All records that were read."""
    bytes: int
    """Without compression."""
    records_without_key: int
    """They are spread evenly over the members, by offset."""
    unread_bytes: int
    """Bytes of unreadable batches and responses: cut, damaged, or older than Fetch v4 or Kafka 0.11."""
    partitions: int
    """All that were fetched, with or without records."""
    shared_partitions: int
    """Those of topics with fewer partitions than members. Only these would be shared."""
    spread: list[SpreadShare]
    """Of each member. Empty without records. The shares add up to 1."""
    evenness: SpreadShare | None
    """The largest share multiplied by the number of members. The value 1 means that all shares are equal.
    None without records."""
    hottest_key: HottestKey | None
    """None if no record has a key. A key in two partitions counts as two keys."""
    bound: float | None
    """The group is at most this many times as fast as one member, because two members never share a key. The
    value is 1 / `hottest_key.records`. If `hottest_key` is not exact, the true bound may be a little higher.
    """


class CooperativeReport(TypedDict):
    """How evenly keys would spread over the members of cooperative groups."""

    members: int
    """Of each group: the value of --cooperative."""
    groups: list[CooperativeRow]
    """A row for each group, and for each client id without a known group. Rows without records and unread
    bytes are left out. The rows with the most bytes are first."""


class TcpIp(TypedDict):
    """The modelled bytes of TCP and IP headers around the fetch bytes, in both directions."""

    bytes_actual: int
    bytes_predicted: int
    how: str
    """How it is computed."""


class Money(TypedDict):
    """Modelled: the cost of the saved fetch bytes, in the currency of the price."""

    price_per_gb: float
    """Of 10^9 bytes."""
    currency: str
    """The value of --currency, "" if it is not given."""
    saved: float
    """In the captured time."""
    saved_per_month: float | None
    """In 30 days, if the traffic continued as in the capture. None if less than 5 s were captured."""
    captured_per_month: float | None
    """The price of all captured fetch bytes in 30 days. None as `saved_per_month`, which is a part of it."""
    saved_between_zones_per_month: float | None
    """The part of `saved_per_month` of connections between two known zones. None if no zone of a saved byte
    is known, or if less than 5 s were captured."""
    how: str
    """How it is computed."""


class FetchMinBytes(TypedDict):
    """Modelled: what ``fetch.min.bytes`` in the clients would save alone, without sessions.

    Only clients for which sessions save bytes, or that may wait for records, are counted.
    """

    saved_bytes: int
    """Saved in the captured time, if no connection fetches more than twice a second."""
    saved_per_month: float | None
    """The price of `saved_bytes` in 30 days. None without --price-per-gb, or if less than 5 s were
    captured."""


class SidecarNeed(TypedDict):
    """What the sidecar of one client address would need, for fetches alone."""

    memory_bytes: int
    """Resident memory, without the responses in flight (--max-inflight-bytes)."""
    cpu_millicores: float
    """Thousandths of a core, on average over the captured time."""
    connections: int
    """Its connections."""
    partitions: int
    """The partitions that a fetch lists on average, added up over the connections."""
    fetches_per_second: float
    partitions_per_second: float
    """The partitions that the fetches list in a second."""
    record_bytes_per_second: float


class NetRow(TypedDict):
    """The saving, the cost and what is left, for a number of services alike.

    A service is what was captured: all of its clients. A month has 30 days, a year has twelve of them.
    """

    services: int
    """1, 20 or 200."""
    sidecars: int
    saved_per_month: float
    cost_per_month: float
    net_per_month: float
    """`saved_per_month` - `cost_per_month`. Negative if the sidecars cost more than they save."""
    saved_per_year: float
    cost_per_year: float
    net_per_year: float


class NetPaying(TypedDict):
    """What is left if only the clients whose sidecar saves more than it costs have one, for one service."""

    addresses: list[str]
    """The addresses of these clients. The largest saving is first."""
    saved_per_month: float
    cost_per_month: float
    net_per_month: float
    net_per_year: float


class NetBetweenZones(TypedDict):
    """What is left if only the saved bytes between zones have the price. The sidecars are the same."""

    saved_bytes: ByZone
    """What the clients with a sidecar save in the captured time, by where it goes."""
    saved_per_month: float
    """What `saved_bytes.other` costs in a month."""
    net_per_month: float
    """`saved_per_month` less the cost of the sidecars in a month."""
    net_per_year: float
    paying: NetPaying
    """The sum of the sidecars alone that save more than they cost if only bytes between zones cost money."""


class Net(TypedDict):
    """Modelled: what is left of the saving if sidecars have a price."""

    currency: str
    """The value of --currency."""
    sidecar_cost_per_month: float
    """The price of one sidecar in a month: the value of --sidecar-cost."""
    sidecars: int
    """How many client addresses have fetches for which sessions save bytes. Each of them has one sidecar: all
    clients at one address count as one."""
    sidecars_that_pay: int
    """How many of the sidecars save more than `sidecar_cost_per_month`."""
    paying: NetPaying
    """The sum of these sidecars alone."""
    break_even_price_per_gb: float | None
    """The price of 10^9 bytes at which the saving is the cost. None without sidecars."""
    largest: SidecarNeed | None
    """The needs of the sidecar that needs most CPU. None without sidecars."""
    services: list[NetRow]
    """The sum for 1, 20 and 200 services."""
    between_zones: NetBetweenZones | None
    """The sum of the saved bytes between zones alone, for one service. None if no zone of them is known."""
    captured_seconds: float
    """The captured time, from which a month is computed."""


class Modelled(TypedDict):
    """The figures that are modelled, not counted."""

    tcp_ip: TcpIp
    """The bytes of TCP and IP headers."""
    fetch_min_bytes: FetchMinBytes
    """What `fetch.min.bytes` in the clients would save."""
    money: Money | None
    """The modelled saving of money. None without --price-per-gb, if the saving is not known, or if both sides
    of a gateway were captured."""
    net: Net | None
    """What is left of it. None if `money` is, without --sidecar-cost, if less than 5 s were captured, or if
    the captures may be of different hosts."""


class BothSides(TypedDict):
    """A gateway whose two sides are both in the capture. All figures count the forwarded traffic twice."""

    client_side: str
    """The address to which the gateway's clients connect: host:port."""
    broker_side: str
    """The broker's address: host:port."""
    connections: int
    """Those of clients. Each of them has one connection to the broker."""
    fetch_bytes: int
    """Those of the connections to the broker, in both directions."""


class Report(FetchesRow):
    """The whole report, as a JSON object."""

    version: str
    """The version of fetchgate."""
    policy: str
    """The value of --policy: gateway or always."""
    filters: Filters
    decision: Decision
    policies: dict[str, PolicyRow]
    """The savings of both policies, by the policy's name. All other figures of the report are those of
    `policy`."""
    time: Time
    input: Input
    both_sides: list[BothSides]
    """The gateways whose two sides are both in the capture."""
    by_client: list[ClientRow]
    by_topic: list[TopicRow]
    by_broker: list[BrokerRow]
    connections: list[ConnectionRow]
    """Those with the most actual fetch bytes, at most 50."""
    over_time: list[Bucket]
    """Periods of equal length, in order, at most 120. Periods without a fetch are left out."""
    where: Where
    readable: ReadableReport
    not_eligible: dict[str, Passed]
    """The fetches that stay as captured, by reason."""
    slots: list[SlotsRow]
    limits: LimitsReport
    modelled: Modelled
    floors: NotRequired[FloorsReport]
    """Only with --fetch-min-bytes or --fetch-max-wait."""
    cooperative: NotRequired[CooperativeReport]
    """Only with --cooperative."""
    zones: NotRequired[ZonesReport]
    """Only if the rack of a broker or of a client is known."""


def stream_bytes(readable: ReadableReport) -> int:
    """Return all bytes of the captured TCP streams, readable or not."""
    return readable["readable_bytes"] + readable["unreadable_bytes"]


def actual_bytes(fetch: FetchReport) -> int:
    """Return all fetch bytes as captured, both directions."""
    return fetch["actual"]["request_bytes"] + fetch["actual"]["response_bytes"]


def eligible_bytes(fetch: FetchReport) -> int:
    """Return the bytes of eligible fetches as captured, both directions."""
    return fetch["eligible"]["request_bytes"] + fetch["eligible"]["response_bytes"]


def sessions_bytes(fetch: FetchReport) -> int:
    """Return the cost of the eligible fetches with sessions, both directions."""
    return fetch["sessions"]["request_bytes"] + fetch["sessions"]["response_bytes"]


def predicted_bytes(fetch: FetchReport) -> int:
    """Return the predicted bytes of the broker side, in both directions: sessions + (actual - eligible)."""
    return sessions_bytes(fetch) + actual_bytes(fetch) - eligible_bytes(fetch)
