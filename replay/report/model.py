"""The report object: what `measure --json` prints and what every other form of the report is made from.

Plain dictionaries, so that the object is the JSON and nothing has to be converted. Three rules hold for it:

- Bytes are counted, on whole Kafka frames (their 4-byte length included) unless a field says otherwise.
- predicted broker side = `sessions` + (`actual` - `eligible`), for requests and responses alike.
- Columns add up: the rows of `by_client`, of `by_topic` and of `by_broker` each sum to `fetch`.

Names in it (client ids, software, topics, hosts) are what the peers sent: whoever shows them escapes them.
"""

from typing import TypedDict


class Actual(TypedDict):
    """The fetches as captured."""

    requests: int
    """Whether answered or not."""
    responses: int
    """Only those whose request was seen."""
    request_bytes: int
    response_bytes: int
    record_bytes: int
    """Contents of the `records` fields; part of `response_bytes`."""
    partitions_requested: int
    partitions_answered: int


class Eligible(TypedDict):
    """The share of the fetches that the session engine took, as captured."""

    exchanges: int
    request_bytes: int
    response_bytes: int
    record_bytes: int


class SessionsReport(TypedDict):
    """What the eligible fetches cost through the engine; closes and repairs are part of the byte counts."""

    request_bytes: int
    response_bytes: int
    full: int
    incremental: int
    sessionless: int
    added: int
    altered: int
    forgotten: int
    partitions_requested: int
    partitions_answered: int
    close_bytes: int
    """Both directions of the fetches that close a session."""
    repair_bytes: int
    """Both directions of what is fetched again after a session was lost."""


class FetchReport(TypedDict):
    """One row's fetches: of the whole capture, a client, a topic, a broker or a connection."""

    actual: Actual
    eligible: Eligible
    sessions: SessionsReport
    saved_bytes: int
    """eligible - sessions, both directions; negative where sessions would have cost more."""
    saved_ratio: float
    """saved_bytes / all actual fetch bytes of the row, 0.0 where there are none."""


class Problem(TypedDict):
    """One thing in the input that could not be read; any of them makes the exit code 3."""

    file: str
    """The file as it was given, "" where it is no single file's."""
    problem: str
    """A line for a reader, without the file's name."""


class Input(TypedDict):
    """What was read."""

    files: int
    bytes: int
    packets: int
    connections: int
    """Connections that speak Kafka."""
    exchanges: int
    gaps: int
    unpaired_requests: int
    unpaired_responses: int
    problems: list[Problem]


class Filters(TypedDict):
    """What the report was narrowed to; an empty list is no filter."""

    ports: list[int]
    hosts: list[str]
    clients: list[str]
    topics: list[str]


class Time(TypedDict):
    """Span of the packets read, ISO 8601 in UTC; "" where none was read."""

    first: str
    last: str


class Bucket(TypedDict):
    """Fetch bytes, both directions, of one stretch of time."""

    time: str
    """Its beginning, ISO 8601 in UTC. Buckets ascend; those without a fetch may be left out."""
    seconds: float
    """Its length."""
    actual_bytes: int
    predicted_bytes: int


class Shares(TypedDict):
    """Where the bytes go; the five sum to all fetch bytes of both directions."""

    listing_bytes: int
    """Requests: partition entries and the topic elements that hold them, forgotten ones included."""
    empty_entry_bytes: int
    """Responses: entries that told nothing new."""
    entry_bytes: int
    """Responses: the other entries, without their records."""
    record_bytes: int
    """Responses: contents of the `records` fields."""
    other_bytes: int
    """The rest of the frames: headers, session fields, topic elements of responses."""


class Where(TypedDict):
    """The same split for the capture and for the predicted broker side."""

    actual: Shares
    predicted: Shares


class ReadableReport(TypedDict):
    """How much of the captured connections' TCP payload was understood."""

    readable_bytes: int
    unreadable_bytes: int
    """Lost, cut, opaque or not Kafka; readable and unreadable are the whole."""
    ratio: float
    """readable / whole, 1.0 where there is nothing."""
    by_reason: dict[str, int]
    """Unreadable bytes by reason; sums to `unreadable_bytes`."""


class NotEligible(TypedDict):
    """Fetches left as they are for one reason."""

    exchanges: int
    bytes: int
    """Both directions."""


class ClientRow(TypedDict):
    """One client id, software and fetch version."""

    client_id: str
    software: str
    """Name and version as told in ApiVersions v3+, "" where it was not."""
    fetch_version: int
    connections: int
    fetch: FetchReport


class TopicRow(TypedDict):
    """One topic's entries and topic elements.

    The row whose topic is None has the rest of each frame, and all that is counted by the frame: requests,
    responses, exchanges, full, incremental, sessionless, added, altered, forgotten, close_bytes and
    repair_bytes are 0 in a topic's row.
    """

    topic: str | None
    """Name; or the topic id as Kafka writes it, where no Metadata response named it."""
    fetch: FetchReport


class BrokerRow(TypedDict):
    """One broker."""

    broker: str
    """host:port"""
    connections: int
    fetch: FetchReport


class ConnectionRow(TypedDict):
    """One of the connections that fetch most bytes."""

    connection: str
    """As in "client host:port > broker host:port #n", n counts port reuse."""
    client: str
    broker: str
    client_id: str
    software: str
    fetch: FetchReport


class SlotsRow(TypedDict):
    """What the sessions would do to one broker's slots (max.incremental.fetch.session.cache.slots)."""

    broker: str
    sessions_at_once: int
    """Most sessions held at a time."""
    requested_at_once: int
    """Most connections that wanted one at a time."""
    slots: int
    evictions: int
    refused: int
    """Sessions asked for and not given, for want of a slot that might be evicted."""


class TcpIp(TypedDict):
    """Modelled: what TCP and IP headers add to the fetch bytes; the headers alone, both directions."""

    bytes_actual: int
    bytes_predicted: int
    how: str
    """The model in a sentence."""


class Money(TypedDict):
    """Modelled: what the saved fetch bytes cost, in the currency of the price."""

    price_per_gb: float
    """Per 10^9 bytes."""
    saved: float
    """Over the time of the capture."""
    saved_per_month: float
    """If the captured time went on for 30 days."""
    how: str


class Modelled(TypedDict):
    """The figures that are not counted."""

    tcp_ip: TcpIp
    money: Money | None
    """None without --price-per-gb."""


class Report(TypedDict):
    """The whole object."""

    version: str
    """Of fetchgate."""
    policy: str
    """As given: "gateway" or "always"."""
    filters: Filters
    time: Time
    input: Input
    fetch: FetchReport
    by_client: list[ClientRow]
    by_topic: list[TopicRow]
    by_broker: list[BrokerRow]
    connections: list[ConnectionRow]
    """The largest by actual fetch bytes, at most 50."""
    over_time: list[Bucket]
    """At most 120."""
    where: Where
    readable: ReadableReport
    not_eligible: dict[str, NotEligible]
    slots: list[SlotsRow]
    modelled: Modelled


def actual_bytes(fetch: FetchReport) -> int:
    """All fetch bytes as captured, both directions."""
    return fetch["actual"]["request_bytes"] + fetch["actual"]["response_bytes"]


def eligible_bytes(fetch: FetchReport) -> int:
    """The eligible fetches' bytes as captured, both directions."""
    return fetch["eligible"]["request_bytes"] + fetch["eligible"]["response_bytes"]


def sessions_bytes(fetch: FetchReport) -> int:
    """What the eligible fetches cost through the engine, both directions."""
    return fetch["sessions"]["request_bytes"] + fetch["sessions"]["response_bytes"]


def predicted_bytes(fetch: FetchReport) -> int:
    """The predicted broker side, both directions: sessions + (actual - eligible)."""
    return sessions_bytes(fetch) + actual_bytes(fetch) - eligible_bytes(fetch)
