"""Captured responses are compared with responses in which one thing is changed."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from io import StringIO
from struct import pack
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from proxy.addresses import Address
from proxy.protocol.api import ApiKey
from replay.capture.kafka.exchange import CUT, ConnectionEnd
from replay.drive.asked import asked
from replay.drive.compare import (
    COORDINATED,
    CUT_RESPONSE,
    ELSEWHERE,
    INTERNAL,
    LOST,
    NO_RESPONSE,
    NOT_PARSED,
    NOT_READ,
    REDIRECTED,
    SHIFTED,
    THROTTLED,
    UNCAPTURED,
    CompareFigures,
    Comparison,
    Keeper,
    differs,
    render_comparison,
)
from replay.drive.differences import Difference
from replay.drive.mapping import Overrides
from replay.drive.options import DriveOptions, OffsetPolicy
from replay.drive.report import DriveReport
from replay.drive.running import drive
from replay.drive.script import ScriptMaker
from replay.drive.side import TargetSide, playable
from replay.drive.target import Destination, Target
from replay.drive.topics import Topic
from tests.frames import entry, fetch, fetch_response, framed
from tests.model.broker import ModelBroker
from tests.replay.drive.captured import CONNECTION, Capture, batch, request
from tests.replay.drive.serving import Served, serving
from tools.kafka import raw

Pair = tuple[bytes, bytes]
"""A request and its captured response; b"" for none."""

HERE = Address("127.0.0.1", 9092)
VERSIONS = {0: (0, 13), 1: (4, 18), 2: (1, 11), 3: (0, 13), 12: (0, 4), 18: (0, 4)}


def topic(partitions: int, *, id_: bytes = bytes(16), leaders: int = 1, latest: int = 100) -> Topic:
    return Topic(
        topic_id=id_,
        leaders=np.full(partitions, leaders, np.int32),
        leader_epochs=np.full(partitions, 0, np.int32),
        earliest=np.zeros(partitions, np.int64),
        latest=np.full(partitions, latest, np.int64),
    )


@dataclass
class Played:
    """Captured requests with their responses, and a target."""

    pairs: Sequence[Pair]
    topics: dict[str, Topic] = field(default_factory=lambda: {"t": topic(4), "u": topic(4)})
    names: dict[bytes, str] = field(default_factory=dict)
    """The names of topic ids in the capture."""
    node_id: int | None = None
    """The broker to which all requests go."""
    policy: OffsetPolicy = OffsetPolicy.KEEP
    missing: int = 0
    """How many bytes of each response were not captured."""
    brokers: int = 1
    """How many brokers the target has."""
    versions: dict[int, tuple[int, int]] = field(default_factory=lambda: dict(VERSIONS))
    denied: set[str] = field(default_factory=set)
    """The topics that the user of the target may not see."""
    allow: frozenset[Difference] = frozenset()

    def __post_init__(self) -> None:
        capture, maker = (
            Capture(),
            ScriptMaker({ApiKey.PRODUCE, ApiKey.HEARTBEAT, ApiKey.VOTE}, keep=Keeper().keep),
        )
        for number, (frame, response) in enumerate(self.pairs):
            exchange = capture.say(frame, number, answered=bool(response))
            exchange.correlation_id = 100 + number
            exchange.response_missing = self.missing
            exchange.response = [response] if response else []
            maker.add(exchange)
        end = capture.end()
        maker.add(ConnectionEnd(connection=end.connection, client="", broker="", topics=self.names))
        self.script = maker.finish()
        side = TargetSide(
            "target",
            Target(
                address=HERE,
                versions=self.versions,
                topics=self.topics,
                denied=self.denied,
                brokers=dict.fromkeys(range(self.brokers), HERE),
            ),
            names=self.script.topics,
            asked=asked(self.script, self.script.topics),
            policy=self.policy,
            overrides=Overrides(),
        )
        self.place = Destination(HERE, self.node_id)
        routes = {each.name: [self.place] for each in self.script.connections}
        self.played, _ = playable(self.script.connections, [side], routes)
        self.comparison = Comparison(self.script, side, routes, self.played, self.policy, self.allow)

    def now(self, *responses: bytes, sent: Iterable[bytes] = ()) -> CompareFigures:
        """Send the requests, and return the figures after these responses.

        `sent` has the frames that were sent, if they differ from the captured ones.
        """
        steps = [step for connection in self.played for step in connection.steps]
        frames = [*sent] or [step.frame for step in steps]
        for step, frame, response in zip(steps, frames, responses, strict=True):
            on_response = self.comparison.sent(self.played[0], self.place, step, frame)
            if response:
                on_response(response)
        return self.comparison.figures()


def compared(frame: bytes, captured: bytes, now: bytes, **fields: Any) -> CompareFigures:
    """Compare two responses to one request."""
    return Played([(frame, captured)], **fields).now(now)


def told(figures: CompareFigures) -> list[tuple[str, str, int, str, str, str]]:
    """Return each difference: API, kind, count, and entry, captured and now of the first example."""
    found = [
        (row["api"], row["difference"], row["count"], row["examples"][0]) for row in figures["differences"]
    ]
    return [
        (api, difference, count, first["entry"], first["captured"], first["now"])
        for api, difference, count, first in found
    ]


def reasons(figures: CompareFigures) -> list[tuple[str, str, int]]:
    return [(row["api"], row["reason"], row["count"]) for row in figures["not_compared"]]


FETCH = fetch(11, ("t", 0, 5), ("t", 1, 7), ("u", 2, 0), values={"partition_max_bytes": 1 << 20})


def fetched(*t: Any, u: Any = None, version: int = 11, **fields: Any) -> bytes:
    """Return a response to `FETCH`: by default one batch in t-0, and no records in t-1 and u-2.

    Each entry in `t` replaces the default entry of its partition. `u` has all entries of topic u.
    """
    full = {each.partition_index: each for each in (entry(0, 9, records=batch(5)), entry(1, 7), *t)}
    u = [entry(2, 0)] if u is None else u
    return fetch_response(version, ("t", [*full.values()]), *([("u", u)] if u else []), **fields)


def test_equal_responses_are_the_same() -> None:
    figures = compared(FETCH, fetched(), fetched())

    assert figures == {
        "apis": [{"api": "Fetch", "compared": 1, "same": 1, "allowed": 0, "not_allowed": 0}],
        "differences": [],
        "not_compared": [],
        "uncompared_ratio": 0.0,
    }
    assert not differs(figures)


FETCHES: list[tuple[bytes, str, str, str, str]] = [
    (fetched(entry(1, error=3)), "another error", "t-1", "no error", "error 3 UNKNOWN_TOPIC_OR_PARTITION"),
    (fetched(u=[]), "missing", "u-2", "there", "missing"),
    (fetched(entry(0, 9)), "fewer record bytes", "t-0", "record bytes 70", "record bytes 0"),
    (
        fetched(entry(0, 9, records=batch(4))),
        "another first offset",
        "t-0",
        "first offset 5",
        "first offset 4",
    ),
    (
        fetch_response(11, error_code=70),
        "another error",
        "",
        "no error",
        "error 70 FETCH_SESSION_ID_NOT_FOUND",
    ),
    (fetched()[:-1], "unreadable", "", "parses", "does not parse"),
]


@pytest.mark.parametrize(
    ("now", "difference", "entry", "before", "after"), FETCHES, ids=lambda each: str(each)[:20]
)
def test_a_fetch_differs_in_what_may_not(
    now: bytes, difference: str, entry: str, before: str, after: str
) -> None:
    figures = compared(FETCH, fetched(), now)

    assert told(figures) == [("Fetch", difference, 1, entry, before, after)]
    assert figures["differences"][0]["examples"][0]["connection"] == CONNECTION
    assert figures["differences"][0]["examples"][0]["correlation_id"] == 100
    assert figures["apis"] == [{"api": "Fetch", "compared": 1, "same": 0, "allowed": 0, "not_allowed": 1}]
    assert differs(figures)


NOT_LEADER = "error 6 NOT_LEADER_OR_FOLLOWER"
NOT_FOUND = "error 70 FETCH_SESSION_ID_NOT_FOUND"
MAY: list[tuple[bytes, bytes, str, str, str, str]] = [
    (
        fetched(),
        fetched(entry(0, 12, records=batch(5))),
        *("other offsets", "t-0", "high watermark 9", "high watermark 12"),
    ),
    (
        fetched(),
        fetched(entry(0, 9, records=batch(5) + batch(6))),
        *("more record bytes", "t-0", "record bytes 70", "record bytes 140"),
    ),
    (
        fetched(),
        fetched(entry(1, 7, records=batch(7))),
        *("more record bytes", "t-1", "record bytes 0", "record bytes 70"),
    ),
    (
        fetched(),
        fetched(entry(0, 9, records=batch(5, crc=8))),
        *("other record contents", "t-0", "CRC 7", "CRC 8"),
    ),
    (fetched(), fetched(entry(3, 0)), "added", "t-3", "not there", "there"),
    (fetched(entry(1, error=6)), fetched(), "no error any more", "t-1", NOT_LEADER, "no error"),
    (fetch_response(11, error_code=70), fetched(), "no error any more", "", NOT_FOUND, "no error"),
]


@pytest.mark.parametrize(
    ("captured", "now", "difference", "entry", "before", "after"), MAY, ids=lambda each: str(each)[:20]
)
def test_a_fetch_differs_in_what_may(
    captured: bytes, now: bytes, difference: str, entry: str, before: str, after: str
) -> None:
    figures = compared(FETCH, captured, now)

    assert told(figures) == [("Fetch", difference, 1, entry, before, after)]
    assert figures["apis"] == [{"api": "Fetch", "compared": 1, "same": 0, "allowed": 1, "not_allowed": 0}]
    assert not differs(figures)


def test_another_error_than_the_captured_one_may_not_be() -> None:
    figures = compared(FETCH, fetched(entry(1, error=6)), fetched(entry(1, error=3)))

    assert told(figures) == [
        (
            "Fetch",
            "another error",
            1,
            "t-1",
            "error 6 NOT_LEADER_OR_FOLLOWER",
            "error 3 UNKNOWN_TOPIC_OR_PARTITION",
        )
    ]


def test_the_same_error_is_no_difference() -> None:
    figures = compared(FETCH, fetched(entry(1, error=6)), fetched(entry(1, error=6)))

    assert figures["apis"][0]["same"] == 1


def test_records_may_be_missing_if_others_fill_the_response() -> None:
    """Missing records are allowed if another partition's new records leave no room for them (max_bytes)."""
    frame = fetch(11, ("t", 0, 5), ("t", 1, 7), ("u", 2, 0), max_bytes=1000)
    others = entry(1, 20, records=batch(7, size=931))

    full = compared(frame, fetched(), fetched(entry(0, 9), others))
    assert [row["difference"] for row in full["differences"]] == [
        Difference.FULL,
        Difference.MORE,
    ]
    assert not differs(full)
    with_room = compared(frame, fetched(), fetched(entry(0, 9), entry(1, 20, records=batch(7, size=930))))
    assert [row["difference"] for row in with_room["differences"]] == [Difference.FEWER, Difference.MORE]


def test_all_differences_are_listed_by_topic_client_and_broker() -> None:
    played = Played([(FETCH, fetched())] * 3)

    figures = played.now(*[fetched(entry(1, error=3), u=[entry(2, error=3)])] * 3)

    (row,) = figures["differences"]
    assert row["count"] == 6
    assert [(each["entry"], each["correlation_id"]) for each in row["examples"]] == [
        *(("t-1", number) for number in (100, 101, 102)),
        *(("u-2", number) for number in (100, 101, 102)),
    ]
    broker = CONNECTION.split(" > ")[1].split(" #")[0]
    assert row["places"] == [
        {"topic": name, "client": "c", "broker": broker, "count": 3} for name in ("t", "u")
    ]
    assert figures["apis"][0]["not_allowed"] == 3


def test_the_order_of_differences_does_not_depend_on_that_of_responses() -> None:
    found = []
    for order in ((0, 1, 2), (2, 0, 1)):
        played = Played([(FETCH, fetched())] * 3)
        steps = played.played[0].steps
        waiting = [played.comparison.sent(played.played[0], played.place, step, step.frame) for step in steps]
        for number in order:
            waiting[number](fetched(entry(1, error=3), u=[]))
        found.append(played.comparison.figures())
    assert found[0] == found[1]


def test_a_missing_acl_is_one_difference_whatever_apis_show_it() -> None:
    offsets = request(ApiKey.LIST_OFFSETS, 1)
    before = framed(bytes(4) + raw.array([raw.string("t") + raw.array([bytes(4) + bytes(2) + bytes(16)])]))
    after = framed(bytes(4) + raw.array([raw.string("t") + raw.array([bytes(4) + b"\0\x1d" + bytes(16)])]))
    played = Played([(FETCH, fetched()), (offsets, before)])

    figures = played.now(fetched(entry(0, error=29), entry(1, error=29)), after)

    (row,) = figures["differences"]
    assert (row["api"], row["difference"], row["allowed"]) == ("all", "missing ACL", False)
    assert {(each["api"], each["entry"]) for each in row["examples"]} == {
        ("Fetch", "t-0"),
        ("Fetch", "t-1"),
        ("ListOffsets", "t-0"),
    }
    assert [(row["topic"], row["count"]) for row in row["places"]] == [("t", 3)]


def test_a_topic_that_the_user_may_not_see_is_a_missing_acl() -> None:
    """The target tells no partitions of it, so no fetch of it is sent."""
    played = Played([(FETCH, fetched())], topics={}, denied={"t"})

    kinds = {row["difference"]: row["places"] for row in played.comparison.figures()["differences"]}
    assert {name: {place["topic"] for place in places} for name, places in kinds.items()} == {
        "missing ACL": {"t"},
        "missing": {"u"},
    }


def test_an_internal_topic_that_is_not_there_yet_is_no_difference() -> None:
    named = metadata(("t", 0, [(0, 0)]), ("__transaction_state", 0, [(0, 0)]))

    figures = compared(request(ApiKey.METADATA, 1, raw.array([])), named, metadata(("t", 0, [(0, 0)])))

    assert figures["differences"] == []
    assert figures["not_compared"] == [{"api": "Metadata", "reason": INTERNAL, "count": 1}]


def test_a_kind_of_difference_can_be_allowed() -> None:
    played = Played([(FETCH, fetched())], allow=frozenset({Difference.ERROR}))

    figures = played.now(fetched(entry(1, error=3)))

    assert not differs(figures)
    assert figures["apis"][0]["allowed"] == 1


def test_the_share_that_was_not_compared_is_told() -> None:
    metadata = (request(ApiKey.API_VERSIONS, 0), versions_of((0, 3, 9)))
    played = Played([(FETCH, fetched())] * 4 + [metadata] * 12)
    steps = played.played[0].steps
    for step in steps[1:]:
        response = fetched() if step.api_key == ApiKey.FETCH else metadata[1]
        played.comparison.sent(played.played[0], played.place, step, step.frame)(response)

    assert played.comparison.figures()["uncompared_ratio"] == 0.25  # of the fetches
    assert played.comparison.figures(times=2)["uncompared_ratio"] == 0.625


def test_topic_ids_are_compared_by_their_names() -> None:
    """A topic is compared by its name, because it has another id at the target.

    The captured id is "t", padded with zeros to 16 bytes, because the test frames make ids from names.
    """
    here, there = b"t".ljust(16, b"\0"), b"id at the target"
    frame = fetch(16, ("t", 0, 5))
    captured = fetch_response(16, ("t", [entry(0, 9, records=batch(5))]))
    names, topics = {here: "orders"}, {"orders": topic(4, id_=there)}

    same = compared(frame, captured, captured.replace(here, there), names=names, topics=topics)
    assert same["apis"][0]["same"] == 1
    without = fetch_response(16, ("t", [entry(0, error=100)])).replace(here, there)
    assert told(compared(frame, captured, without, names=names, topics=topics)) == [
        ("Fetch", "another error", 1, "orders-0", "no error", "error 100 UNKNOWN_TOPIC_ID")
    ]


def test_incremental_responses_lack_what_has_not_changed() -> None:
    created = fetch(11, ("t", 0, 5), ("t", 1, 7), session=(0, 0))
    further = fetch(11, session=(9, 1))
    first = fetch_response(11, ("t", [entry(0, 5), entry(1, 7)]), session_id=9)
    data = fetch_response(11, ("t", [entry(0, 9, records=batch(5))]), session_id=9)
    nothing = fetch_response(11, session_id=9)

    def both(captured: bytes, now: bytes) -> CompareFigures:
        return Played([(created, first), (further, captured)]).now(first, now)

    assert both(data, data)["apis"][0]["same"] == 2
    assert both(nothing, nothing)["apis"][0]["same"] == 2
    assert [row["difference"] for row in both(nothing, data)["differences"]] == [Difference.MORE]
    assert told(both(data, nothing)) == [
        ("Fetch", "fewer record bytes", 1, "t-0", "record bytes 70", "record bytes 0")
    ]
    new_error = fetch_response(11, ("t", [entry(1, error=6)]), session_id=9)
    assert [row["difference"] for row in both(nothing, new_error)["differences"]] == [Difference.ERROR]


def test_a_session_that_is_made_again_has_full_responses() -> None:
    """The response of a session that was created again may list more than the captured response.

    The captured response was incremental, so it left out unchanged partitions. The target's response is full.
    This is no difference.
    """
    created = fetch(11, ("t", 0, 5), ("t", 1, 7), session=(0, 0))
    first = fetch_response(11, ("t", [entry(0, 5), entry(1, 7)]), session_id=9)
    played = Played([(created, first), (fetch(11, session=(9, 1)), fetch_response(11, session_id=9))])

    figures = played.now(first, first, sent=[created, created])

    assert figures["apis"] == [{"api": "Fetch", "compared": 2, "same": 2, "allowed": 0, "not_allowed": 0}]


def test_a_partition_is_missing_in_a_session_that_is_made_again() -> None:
    created = fetch(11, ("t", 0, 5), ("t", 1, 7), session=(0, 0))
    first = fetch_response(11, ("t", [entry(0, 5), entry(1, 7)]), session_id=9)
    data = fetch_response(11, ("t", [entry(1, 9, records=batch(7))]), session_id=9)
    played = Played([(created, first), (fetch(11, session=(9, 1)), data)])
    without = fetch_response(11, ("t", [entry(0, 5)]), session_id=9)

    figures = played.now(first, without, sent=[created, created])

    assert told(figures) == [("Fetch", "missing", 1, "t-1", "there", "missing")]


@pytest.mark.parametrize(("captured", "differences"), [(0, ["missing"]), (3, [])])
def test_a_session_has_a_partition_that_the_target_lacks(captured: int, differences: list[str]) -> None:
    """A partition of a session that the target lacks is reported as missing.

    If the captured broker lacked the partition too (error 3), there is no difference.
    """
    created = fetch(11, ("t", 0, 5), session=(0, 0))
    first = fetch_response(11, ("t", [entry(0, 5)]), session_id=9)
    frame = fetch(11, ("gone", 0, 5), session=(9, 1))
    records = b"" if captured else batch(5)
    added = fetch_response(11, ("gone", [entry(0, 9, error=captured, records=records)]), session_id=9)
    played = Played([(created, first), (frame, added)])

    figures = played.now(first, fetch_response(11, session_id=9))

    assert [row["difference"] for row in figures["differences"]] == differences


def test_a_topic_that_the_target_lacks_is_missing() -> None:
    """The target lacks the topic, so the request can't be sent.

    The partition that had no error in the capture is reported as missing.
    """
    frame = fetch(11, ("gone", 0, 5), ("gone", 1, 5))
    captured = fetch_response(11, ("gone", [entry(0, 9), entry(1, error=6)]))

    figures = Played([(frame, captured)]).now()

    assert told(figures) == [("Fetch", "missing", 1, "gone-0", "there", "missing")]
    assert figures["apis"][0]["not_allowed"] == 1


def test_partitions_that_the_target_lacks_are_missing() -> None:
    """The target lacks a partition, so the request is sent without it.

    The partition is reported as missing.
    """
    now = fetch_response(11, ("t", [entry(0, 9, records=batch(5))]), ("u", [entry(2, 0)]))

    figures = compared(FETCH, fetched(), now, topics={"t": topic(1), "u": topic(4)})

    assert told(figures) == [("Fetch", "missing", 1, "t-1", "there", "missing")]


def test_a_version_that_the_target_does_not_support_differs() -> None:
    figures = Played([(FETCH, fetched())], versions={1: (12, 17)}).now()

    assert told(figures) == [("Fetch", "version not supported", 1, "", "v11", "v12 to v17")]
    assert differs(figures)


def test_partitions_of_other_brokers_are_not_compared() -> None:
    topics = {"t": topic(4), "u": topic(4, leaders=2)}

    figures = compared(FETCH, fetched(), fetched(u=[]), topics=topics, node_id=1)

    assert figures["differences"] == []
    assert reasons(figures) == [("Fetch", ELSEWHERE, 1)]


def test_records_of_shifted_partitions_are_not_compared() -> None:
    """The records of t-0 and u-2 are not compared, because their offsets are shifted.

    The offsets of t-1 are not shifted, because its highest fetch offset is the target's latest one.
    """
    topics = {"t": topic(4, latest=7), "u": topic(4)}
    now = fetched(entry(0, 9, records=batch(3)), u=[entry(2, 9, records=batch(9))])

    figures = compared(FETCH, fetched(), now, topics=topics, policy=OffsetPolicy.LATEST)

    assert figures["differences"] == []
    assert reasons(figures) == [("Fetch", SHIFTED, 2)]


def test_records_below_the_targets_first_offset_are_not_compared() -> None:
    topics = {"t": topic(4), "u": topic(4)}
    topics["t"].earliest[0] = 6

    figures = compared(FETCH, fetched(), fetched(entry(0, 9)), topics=topics, policy=OffsetPolicy.CLAMP)

    assert (figures["differences"], reasons(figures)) == ([], [("Fetch", SHIFTED, 1)])


def test_equal_summaries_and_lists_are_kept_once() -> None:
    first, second = (
        fetch_response(11, ("t", [entry(number, 9) for number in order])) for order in ((0, 1), (1, 0))
    )
    other = fetch_response(11, ("t", [entry(0, 9, records=batch(5)), entry(1)]))
    played = Played([(FETCH, each) for each in (first, second, other)])

    (steps,) = (connection.steps for connection in played.script.connections)
    one, two, three = (step.kept.summary for step in steps)  # type: ignore[attr-defined]  # they are `Kept`

    assert one is two
    assert one.listing is three.listing


def test_first_offsets_that_were_not_captured_are_counted() -> None:
    capture = fetched()
    at = capture.index(batch(5))
    played = Played([(FETCH, capture)])
    exchange = Capture().say(FETCH, 0)
    exchange.response = [capture[:at], CUT[:70], capture[at + 70 :]]
    step = played.script.connections[0].steps[0]
    step.kept = Keeper().keep(exchange, step)

    figures = played.now(fetched(entry(0, 9, records=batch(4, crc=8))))

    assert (figures["differences"], reasons(figures)) == ([], [("Fetch", UNCAPTURED, 1)])


def test_another_replica_is_not_compared() -> None:
    figures = compared(FETCH, fetched(), fetched(entry(0, 9, preferred_read_replica=3)))

    assert (figures["differences"], reasons(figures)) == ([], [("Fetch", REDIRECTED, 1)])


def test_a_throttled_response_is_not_compared() -> None:
    figures = compared(FETCH, fetched(), fetch_response(11, throttle_time_ms=50))

    assert (figures["apis"], reasons(figures)) == ([], [("Fetch", THROTTLED, 1)])


def test_what_can_not_be_compared_is_counted() -> None:
    vote = request(ApiKey.VOTE, 0)
    assert reasons(compared(FETCH, b"", fetched())) == [("Fetch", NO_RESPONSE, 1)]
    assert reasons(compared(FETCH, fetched(), fetched(), missing=3)) == [("Fetch", CUT_RESPONSE, 1)]
    assert reasons(compared(FETCH, fetched()[:-1], fetched())) == [("Fetch", NOT_PARSED, 1)]
    assert reasons(compared(FETCH, fetched(), b"")) == [("Fetch", LOST, 1)]
    frame, versions = framed(bytes(4)), {ApiKey.VOTE: (0, 0)}
    assert reasons(compared(vote, frame, frame, versions=versions)) == [("Vote", NOT_READ, 1)]


def versions_of(*ranges: tuple[int, int, int]) -> bytes:
    return framed(bytes(6) + raw.array([pack(">hhh", *each) for each in ranges]))


@pytest.mark.parametrize(
    ("now", "difference", "entry", "before", "after"),
    [
        (((0, 3, 9), (1, 4, 16)), "fewer versions", "Fetch", "highest version 17", "highest version 16"),
        (((0, 4, 9), (1, 4, 17)), "fewer versions", "Produce", "lowest version 3", "lowest version 4"),
        (((0, 3, 9),), "missing", "Fetch", "there", "missing"),
        (((0, 2, 9), (1, 4, 17)), "more versions", "Produce", "lowest version 3", "lowest version 2"),
        (((0, 3, 9), (1, 4, 18)), "more versions", "Fetch", "highest version 17", "highest version 18"),
        (((0, 3, 9), (1, 4, 17), (3, 0, 1)), "added", "Metadata", "not there", "there"),
    ],
)
def test_offered_versions_differ(
    now: tuple[tuple[int, int, int], ...], difference: str, entry: str, before: str, after: str
) -> None:
    frame = request(ApiKey.API_VERSIONS, 0)
    pair = frame, versions_of((0, 3, 9), (1, 4, 17))
    used = [(fetch(17, ("t", 0)), b""), (request(ApiKey.PRODUCE, 3), b"")]

    names = {b"t".ljust(16, b"\0"): "t"}
    figures = Played([pair, *used], names=names).now(versions_of(*now), b"", b"")

    assert told(figures) == [("ApiVersions", difference, 1, entry, before, after)]
    assert differs(figures) is (difference in {"fewer versions", "missing"})
    if differs(figures):
        unused = Played([pair]).now(versions_of(*now))
        assert told(unused) == [("ApiVersions", "fewer versions, not used", 1, entry, before, after)]
        assert not differs(unused)


NO_LEADER = "error 5 LEADER_NOT_AVAILABLE"
UNKNOWN_TOPIC = "error 3 UNKNOWN_TOPIC_OR_PARTITION"


def metadata(*topics: tuple[str, int, list[tuple[int, int]]], leader: int = 1) -> bytes:
    """Return a Metadata response (v1). Each topic is a name, an error, and (partition, error) pairs."""
    listed = [
        pack(">h", error)
        + raw.string(name)
        + b"\0"
        + raw.array([pack(">hii", code, number, leader) + bytes(8) for number, code in partitions])
        for name, error, partitions in topics
    ]
    return framed(bytes(4) + raw.array([]) + pack(">i", 1) + raw.array(listed))


@pytest.mark.parametrize(
    ("now", "difference", "count", "entry", "after"),
    [
        ([("t", 0, [(0, 0), (1, 0)])], "missing", 1, "u", "missing"),
        ([("t", 0, [(0, 0)]), ("u", 0, [(0, 0)])], "missing", 1, "t-1", "missing"),
        ([("t", 0, [(0, 0), (1, 5)]), ("u", 0, [(0, 0)])], "another error", 1, "t-1", NO_LEADER),
        ([("t", 3, []), ("u", 0, [(0, 0)])], "another error", 1, "t", UNKNOWN_TOPIC),
        ([("t", 0, [(0, 0), (1, 0), (2, 0)]), ("u", 0, [(0, 0)])], "added", 1, "t-2", "there"),
    ],
)
def test_topics_differ(
    now: list[tuple[str, int, list[tuple[int, int]]]], difference: str, count: int, entry: str, after: str
) -> None:
    frame = request(ApiKey.METADATA, 1, raw.array([raw.string("t"), raw.string("u")]))
    captured = metadata(("t", 0, [(0, 0), (1, 0)]), ("u", 0, [(0, 0)]))

    ((api, kind, times, where, _, text),) = told(compared(frame, captured, metadata(*now)))

    assert (api, kind, times, where, text) == ("Metadata", difference, count, entry, after)


def test_other_leaders_are_no_difference() -> None:
    frame = request(ApiKey.METADATA, 1, raw.array([raw.string("t")]))
    captured, now = (metadata(("t", 0, [(0, 0)]), leader=leader) for leader in (1, 2))

    assert compared(frame, captured, now)["apis"][0]["same"] == 1


def offsets(*entries: tuple[int, int, int]) -> bytes:
    """Return a ListOffsets response (v1): partitions of t with error and offset."""
    parts = [pack(">ihqq", number, error, -1, offset) for number, error, offset in entries]
    return framed(bytes(4) + raw.array([raw.string("t") + raw.array(parts)]))


def produced(error: int, offset: int) -> bytes:
    """Return a Produce response (v3) of t-0."""
    return framed(
        bytes(4) + raw.array([raw.string("t") + raw.array([pack(">ihqq", 0, error, offset, -1)])]) + bytes(4)
    )


def test_offsets_may_differ_and_errors_may_not() -> None:
    frame = request(ApiKey.LIST_OFFSETS, 1, bytes(4) + raw.array([]))
    captured = offsets((0, 0, 5), (1, 0, 6))

    assert told(compared(frame, captured, offsets((0, 0, 8), (1, 0, 6)))) == [
        ("ListOffsets", "other offsets", 1, "t-0", "offset 5", "offset 8")
    ]
    assert told(compared(frame, captured, offsets((0, 0, 5), (1, 3, -1)))) == [
        ("ListOffsets", "another error", 1, "t-1", "no error", "error 3 UNKNOWN_TOPIC_OR_PARTITION")
    ]
    assert told(compared(frame, captured, offsets((0, 0, 5)))) == [
        ("ListOffsets", "missing", 1, "t-1", "there", "missing")
    ]


def test_a_partition_of_another_broker_has_an_error_that_is_not_compared() -> None:
    frame = request(ApiKey.LIST_OFFSETS, 1, bytes(4) + raw.array([]))

    figures = compared(
        frame, offsets((0, 0, 5)), offsets((0, 6, -1)), topics={"t": topic(1, leaders=2)}, node_id=1
    )

    assert (figures["differences"], reasons(figures)) == ([], [("ListOffsets", ELSEWHERE, 1)])


def test_produced_records_may_get_other_offsets() -> None:
    frame = request(ApiKey.PRODUCE, 3, raw.string(None) + pack(">hi", 1, 1000) + raw.array([]))

    assert told(compared(frame, produced(0, 5), produced(0, 50))) == [
        ("Produce", "other offsets", 1, "t-0", "base offset 5", "base offset 50")
    ]
    assert differs(compared(frame, produced(0, 5), produced(7, -1)))


def test_other_apis_differ_in_errors_and_size() -> None:
    frame = request(ApiKey.HEARTBEAT, 0, raw.string("g") + bytes(4) + raw.string("m"))
    none, other = framed(bytes(6)), framed(bytes(4) + b"\0\x10")

    assert told(compared(frame, none, other)) == [
        ("Heartbeat", "another error", 1, "", "no error", "error 16 NOT_COORDINATOR")
    ]
    assert told(compared(frame, none, framed(bytes(8)))) == [
        ("Heartbeat", "another size", 1, "", "10 bytes", "12 bytes")
    ]


@pytest.mark.parametrize(("brokers", "differences"), [(1, ["another error"]), (2, [])])
def test_a_group_of_another_broker_is_not_compared(brokers: int, differences: list[str]) -> None:
    """With two brokers, the error of a group request is not compared.

    Requests go to the broker that leads the partitions of their connection. It may not be the group's
    coordinator.
    """
    frame = request(ApiKey.HEARTBEAT, 0, raw.string("g") + bytes(4) + raw.string("m"))
    played = Played([(frame, framed(bytes(6)))], brokers=brokers)

    figures = played.now(framed(bytes(4) + b"\0\x10"))

    assert [row["difference"] for row in figures["differences"]] == differences
    assert reasons(figures) == ([] if differences else [("Heartbeat", COORDINATED, 1)])


def test_it_is_shown_as_tables() -> None:
    played = Played([(FETCH, fetched()), (FETCH, fetched()), (FETCH, b"")])
    figures = played.now(fetched(entry(1, error=3)), fetched(entry(0, 12, records=batch(5))), fetched())
    console = Console(width=200, color_system=None, record=True, file=StringIO())

    console.print(render_comparison(figures))

    lines = [line.rstrip().replace(CONNECTION, "WHERE") for line in console.export_text().splitlines()]
    assert lines == SHOWN.splitlines()


SHOWN = """
Compared with the capture, 2 responses: 1 kind of difference not allowed
         compared  same  allowed  not allowed
  Fetch         2     0        1            1
Differences that are not allowed:
  Fetch  another error: 1
         c 1 x, such as t-1: no error -> error 3 UNKNOWN_TOPIC_OR_PARTITION  (WHERE, correlation id 100, v11)
Allowed differences:
  Fetch  other offsets: 1
         c 1 x, such as t-0: high watermark 9 -> high watermark 12  (WHERE, correlation id 101, v11)
Not compared:
  1 Fetch: its response was not captured
"""


def model(*, topics: Iterable[str] = ("t", "u"), seed: int = 0) -> ModelBroker:
    """Make a model of a broker with a record batch in each partition. A seed gives it other ids."""
    broker = ModelBroker(seed=seed)
    for name in topics:
        for partition in broker.create_topic(name, 2).partitions.values():
            partition.append(batch(0))
    return broker


async def played_at(served: Served, **options: object) -> DriveReport:
    """Play the capture of a client of two topics, without and with a session."""
    here = model()
    capture = Capture(here)
    capture.say(request(ApiKey.API_VERSIONS, 0), 0)
    for number, (version, epoch) in enumerate([(12, -1), (11, 0)], 1):
        capture.say(fetch(version, ("t", 0, 0), ("t", 1, 1), ("u", 0, 0), session=(0, epoch)), number)
    (session,) = here.cache.sessions
    capture.say(fetch(11, session=(session, 1)), 9)
    maker = ScriptMaker(keep=Keeper().keep)
    for exchange in capture.exchanges:
        maker.add(exchange)
    told = DriveOptions(target=served.address, compare=True, speed=None, **options)  # type: ignore[arg-type]  # fields of DriveOptions
    return await drive(maker.finish(), told, lambda _done, _all: None, [])


async def test_nothing_differs_at_a_broker_with_the_same_records() -> None:
    async with serving(model(seed=5)) as served:
        report = await played_at(served, connections=2, loop=2)

    assert report["compare"] is not None
    assert [row for row in report["compare"]["apis"] if row["api"] == "Fetch"] == [
        {"api": "Fetch", "compared": 12, "same": 12, "allowed": 0, "not_allowed": 0}
    ]
    assert report["compare"]["not_compared"] == []


async def test_a_topic_that_a_live_target_lacks_is_found() -> None:
    async with serving(model(topics=["t"], seed=5)) as served:
        report = await played_at(served)

    assert report["compare"] is not None
    rows = [row for row in report["compare"]["differences"] if row["api"] == "Fetch"]
    assert [(row["difference"], row["allowed"], row["count"]) for row in rows] == [("missing", False, 3)]
    assert {each["entry"] for each in rows[0]["examples"]} == {"u-0"}
