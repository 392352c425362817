"""Tests that responses completed from a session have the same bytes as responses without a session.

Another codec writes both the broker's response and the expected one. The broker leaves out each partition
that did not change since an earlier response.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.protocol.fetch_layout import LAYOUTS
from proxy.protocol.fetch_response import Received
from proxy.protocol.versions import raise_listing
from proxy.session.decision import Incremental
from proxy.session.expand import Expansion, expand
from proxy.session.handler import FetchSessionHandler
from proxy.session.state import Action
from tests.examples import examples
from tests.frames import VERSIONS, LiveExchange, entry, fetch, fetch_response, framed, live, parsed, walked
from tests.model import wire
from tests.session.handling import send

CORRELATION = b"\0\0\0\1"


@dataclass
class Session:
    """A session for a client: the partitions that the client lists, and the broker's last answers."""

    version: int
    """The client's version. To the broker, the session uses at least v7."""
    wants: Sequence[tuple[str, int]]
    isolation: int = 0
    handler: FetchSessionHandler = field(default_factory=FetchSessionHandler)

    @property
    def spoken(self) -> int:
        return max(self.version, 7)

    @property
    def aborted(self) -> tuple[wire.AbortedTransaction, ...] | None:
        return () if self.isolation else None

    def told(self, partition: int, hw: int) -> wire.PartitionData:
        return entry(partition, hw, aborted=self.aborted)

    def establish(self, *, hw: int = 5) -> "Session":
        listing = parsed(fetch(self.version, *self.wants, isolation_level=self.isolation)).listing
        assert listing is not None
        listing = raise_listing(listing)
        assert self.handler.learn_listing(listing, self.isolation)
        self.handler.ask_full()
        elements = [(name, [self.told(index, hw)]) for name, index in self.wants]
        full = fetch_response(self.spoken, *elements, session_id=77)
        assert self.handler.handle(walked(full, self.spoken, self.isolation)).action is Action.COMPLETE
        return self

    def expanded(
        self,
        wants: Sequence[tuple[str, int]],
        *elements: tuple[str, list[wire.PartitionData]],
        throttle: int = 0,
        chunk: int = 1 << 20,
        tags: bytes = b"",
    ) -> bytes:
        """Return the client's response, if the client lists `wants` and the broker answers with
        `elements`.
        """
        request = parsed(fetch(self.version, *wants, isolation_level=self.isolation))
        assert request.listing is not None
        listing = raise_listing(request.listing)
        delta = self.handler.compare(listing)
        assert delta is not None
        assert self.handler.ask(request, Incremental(b"", listing, delta))
        response = fetch_response(self.spoken, *elements, session_id=77, throttle_time_ms=throttle)
        result = self.handler.handle(walked(response, self.spoken, self.isolation))
        assert result.action is Action.EXPAND
        assert self.handler.table is not None
        what = Expansion(
            layout=LAYOUTS[self.version],
            listing=listing,
            table=self.handler.table,
            rows=delta.rows,
            entries=result.entries,
            entry_rows=result.rows,
            entry_bytes=result.size,
            late=result.late,
            starved=[],
            received=Received(*(response[at : at + chunk] for at in range(0, len(response), chunk))),
            correlation_id=CORRELATION,
            throttle_time_ms=throttle,
            tags=tags or (b"\0" if self.version >= 12 else b""),
        )
        pieces, size = expand(what)
        frame = b"".join(pieces)
        assert len(frame) == size == 4 + int.from_bytes(frame[:4])
        return frame

    def direct(
        self,
        wants: Sequence[tuple[str, int]],
        changes: dict[tuple[str, int], wire.PartitionData],
        hw: int = 5,
    ) -> bytes:
        """Return the full response that a broker without sessions would send.

        It has the entries of `changes`, and unchanged entries for all other partitions. Neighbouring
        partitions of one topic share a topic element.
        """
        elements: list[tuple[str, list[wire.PartitionData]]] = []
        for name, index in wants:
            data = changes.get((name, index), self.told(index, hw))
            if self.version < 5:
                data = replace(data, log_start_offset=-1)
            if elements and elements[-1][0] == name:
                elements[-1][1].append(data)
            else:
                elements.append((name, [data]))
        return fetch_response(self.version, *elements)


WANTS = [("t", 0), ("t", 1), ("u", 0), ("t", 2), ("u", 7)]


@pytest.mark.parametrize("isolation", [0, 1])
@pytest.mark.parametrize("version", VERSIONS)
def test_nothing_new(version: int, isolation: int) -> None:
    """Trap 50: if the broker's response has no entries, the client gets all entries, unchanged."""
    session = Session(version, WANTS, isolation).establish()
    for wants in (WANTS, WANTS[::-1], WANTS[2:] + WANTS[:2]):
        assert session.expanded(wants) == session.direct(wants, {})


@pytest.mark.parametrize("isolation", [0, 1])
@pytest.mark.parametrize("version", VERSIONS)
def test_records_watermarks_and_errors_in_place(version: int, isolation: int) -> None:
    """Trap 50: records, high watermarks and errors are at the right place in the client's full response."""
    session = Session(version, WANTS, isolation).establish()
    aborted = (wire.AbortedTransaction(producer_id=9, first_offset=4),) if isolation else None
    records = entry(1, 9, records=b"r" * 300, aborted=aborted)
    moved = entry(7, error=6)
    ahead = session.told(0, 8)
    changes = {("t", 1): records, ("u", 7): moved, ("t", 0): ahead}
    elements = [("u", [moved]), ("t", [records, ahead])]
    assert session.expanded(WANTS, *elements) == session.direct(WANTS, changes)
    # The watermarks are kept; records, errors and transactions were this response's own.
    kept = {("t", 1): session.told(1, 9), ("t", 0): ahead, ("u", 7): session.told(7, 5)}
    assert session.expanded(WANTS, ("u", [session.told(7, 5)])) == session.direct(WANTS, kept)


@pytest.mark.parametrize("version", VERSIONS)
def test_records_in_many_chunks(version: int) -> None:
    session = Session(version, WANTS).establish()
    records = entry(1, 9, records=bytes(range(256)) * 3)
    for chunk in (1, 7, 100, 500):
        frame = session.expanded(WANTS, ("t", [records]), chunk=chunk)
        assert frame == session.direct(WANTS, {("t", 1): records})


def test_records_are_not_copied() -> None:
    """Trap 52: the records of a response are forwarded without a copy."""
    session = Session(16, WANTS).establish()
    request = parsed(fetch(16, *WANTS))
    listing = request.listing
    assert listing is not None
    delta = send(session.handler, request)
    response = fetch_response(16, ("t", [entry(1, 9, records=bytes(100_000))]), session_id=77)
    result = session.handler.handle(walked(response, 16))
    assert session.handler.table is not None
    pieces, _ = expand(
        Expansion(
            layout=LAYOUTS[16],
            listing=listing,
            table=session.handler.table,
            rows=delta.rows,
            entries=result.entries,
            entry_rows=result.rows,
            entry_bytes=result.size,
            late=result.late,
            starved=[],
            received=Received(response),
            correlation_id=CORRELATION,
            throttle_time_ms=0,
            tags=b"\0",
        )
    )
    views = [piece for piece in pieces if isinstance(piece, memoryview) and piece.obj is response]
    assert sum(map(len, views)) > 100_000
    assert sum(map(len, pieces)) - sum(map(len, views)) < 1_000


@pytest.mark.parametrize("version", [4, 7, 12, 16])
def test_throttle_time_and_tags_are_the_responses_own(version: int) -> None:
    """Trap 52: the client's response has the throttle time and the tags of the broker's current response."""
    session = Session(version, WANTS).establish()
    endpoints = (wire.node_endpoints_tag([wire.NodeEndpoint(node_id=2, host="b2", port=9092)]),)
    tags = fetch_response(16, tags=endpoints)[4 + 4 + 1 + 10 + 1 :] if version >= 16 else b""
    frame = session.expanded(WANTS, ("t", [session.told(0, 6)]), throttle=250, tags=tags)
    decoded = wire.decode_response(frame[4:], version)
    assert (decoded.throttle_time_ms, decoded.error_code, decoded.session_id) == (250, 0, 0)
    assert decoded.tags == (endpoints if version >= 16 else ())


# --- v4 to v6 are spoken as v7 --------------------------------------------------------------------


@pytest.mark.parametrize(("version", "told"), [(4, 6), (5, 6), (6, 56)])
def test_storage_errors_are_told_as_the_client_knows_them(version: int, told: int) -> None:
    """Case 74: a storage error (56) becomes error 6 for clients of v4 and v5, which do not know error 56."""
    session = Session(version, WANTS).establish()
    frame = session.expanded(WANTS, ("t", [entry(1, error=56)]))
    assert frame == session.direct(WANTS, {("t", 1): entry(1, error=told)})


@pytest.mark.parametrize("chunk", [1, 13, 1000])
def test_v4_has_no_log_start_offset(chunk: int) -> None:
    """Trap 4: a v4 client gets a v4 response, although the session with the broker uses v7.

    The response has no field log_start_offset.
    """
    session = Session(4, WANTS, 1).establish()
    records = entry(1, 9, records=b"abc", aborted=(wire.AbortedTransaction(producer_id=1, first_offset=2),))
    frame = session.expanded(WANTS, ("t", [records]), chunk=chunk)
    assert frame == session.direct(WANTS, {("t", 1): records})


# --- order ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "code"),
    # From v13 on 3 in a session may be a name that stuck: the handler has it again in full.
    [(version, code) for version in VERSIONS for code in (3, 29, 100) if version < 13 or code != 3],
)
def test_errors_found_before_reading_stand_last(version: int, code: int) -> None:
    """Trap 23: a full response ends with the partitions whose errors the broker finds before it reads the
    log.
    """
    session = Session(version, WANTS).establish()
    gone = entry(1, error=code, aborted=())
    late = {("t", 1): gone, ("t", 0): replace(gone, partition_index=0)}
    frame = session.expanded(WANTS, ("t", [gone, late["t", 0]]))
    order = [want for want in WANTS if want not in late] + [("t", 0), ("t", 1)]
    assert frame == session.direct(order, late)


def test_an_element_that_is_left_empty_is_not_there() -> None:
    wants = [("t", 0), ("u", 0), ("v", 0), ("v", 1)]
    session = Session(11, wants).establish()
    denied = entry(0, error=29, aborted=())
    frame = session.expanded(wants, ("u", [denied]))
    assert frame == session.direct([("t", 0), ("v", 0), ("v", 1), ("u", 0)], {("u", 0): denied})


# --- uniform topics are written at once -----------------------------------------------------------


@pytest.mark.parametrize("each", [1, 3])
@pytest.mark.parametrize("version", [4, 7, 11, 12, 16])
def test_topics_of_one_shape(version: int, each: int) -> None:
    """Trap 50: the response is right for topics with equal name lengths and partition counts.

    Such topics are written together.
    """
    wants = [(f"t{number:02}", index) for number in range(12) for index in range(each)]
    session = Session(version, wants).establish()
    records = entry(0, 9, records=b"abc")
    for order in (wants, wants[each:] + wants[:each]):
        frame = session.expanded(order, ("t07", [records]))
        assert frame == session.direct(order, {("t07", 0): records})


@pytest.mark.parametrize(("version", "size"), [(11, 48), (12, 47), (16, 16)])
def test_names_that_look_like_their_own_length(version: int, size: int) -> None:
    """Responses are right for topic names that look like their own length: 48 times the character "0", whose
    code is 48 (0x30). With compact strings the length byte is one higher, so 47 times.
    """
    wants = [("0" * size, 0)] + [(f"{number}".rjust(size, "0"), 0) for number in range(1, 10)]
    session = Session(version, wants).establish()
    assert session.expanded(wants) == session.direct(wants, {})


@pytest.mark.parametrize("version", [7, 12, 16])
def test_topics_of_two_shapes(version: int) -> None:
    wants = [(f"t{number}", index) for number in range(12) for index in range(1 + number % 2)]
    session = Session(version, wants).establish()
    assert session.expanded(wants) == session.direct(wants, {})


# --- whatever is listed and answered --------------------------------------------------------------

LISTED = st.lists(
    st.tuples(st.sampled_from(["t", "u", "name"]), st.integers(0, 6)), min_size=1, max_size=14, unique=True
)


@pytest.mark.parametrize("version", [4, 5, 7, 10, 11, 12, 13, 18])
def test_expanded_is_direct_whatever_the_order_and_the_news(version: int) -> None:
    """Trap 23: for any order of partitions and any changes, the response equals one without a session."""

    @examples(25)
    @given(LISTED, st.integers(0, 1), st.data(), st.integers(1, 200))
    def check(wants: list[tuple[str, int]], isolation: int, data: st.DataObject, chunk: int) -> None:
        session = Session(version, wants, isolation).establish()
        order = data.draw(st.permutations(wants))
        changes: dict[tuple[str, int], wire.PartitionData] = {}
        for name, index in data.draw(st.lists(st.sampled_from(wants), unique=True)):
            kinds = [
                session.told(index, 9),
                entry(index, 9, records=data.draw(st.binary(max_size=150)), aborted=session.aborted),
                entry(index, error=data.draw(st.sampled_from([1, 6, 74, 29, 100]))),
            ]
            changes[name, index] = data.draw(st.sampled_from(kinds))
        elements = [(name, [told]) for (name, _), told in changes.items()]
        frame = session.expanded(order, *elements, chunk=chunk)
        late = [
            want
            for code in (100, 29)
            for want in order
            if want in changes and changes[want].error_code == code
        ]
        expected = [want for want in order if want not in late] + late
        assert frame == session.direct(expected, changes)

    check()


def test_a_row_that_was_forgotten_takes_another_place() -> None:
    session = Session(16, WANTS).establish()
    fewer = WANTS[1:]
    assert session.expanded(fewer) == session.direct(fewer, {})
    more = [("v", 3), *fewer, WANTS[0]]
    changes = {("v", 3): entry(3, 4), WANTS[0]: entry(0, 6)}
    frame = session.expanded(more, ("v", [changes["v", 3]]), ("t", [changes["t", 0]]))
    assert frame == session.direct(more, changes)


# --- live responses ---------------------------------------------------------------------------------

FULL = [
    one
    for one in live()
    if wire.decode_request(one.request[4:]).session_epoch in (0, -1)
    and wire.decode_request(one.request[4:]).replica_id == -1
    and wire.decode_response(one.response[4:], one.version).error_code == 0
    and wire.decode_response(one.response[4:], one.version).topics
]


@pytest.mark.parametrize("exchange", FULL, ids=str)
def test_live_responses_are_rebuilt_to_the_byte(exchange: LiveExchange) -> None:
    """Trap 50: a real broker's full response can be rebuilt byte by byte from its entries.

    The test gives the entries to a session, as if the broker had sent them there.
    """
    version = exchange.version
    request = parsed(exchange.request)
    assert request.listing is not None
    listing = raise_listing(request.listing)
    spoken = max(version, 7)
    decoded = wire.decode_response(exchange.response[4:], version)
    response = framed(wire.encode_response(replace(decoded, version=spoken, session_id=77)))
    handler = FetchSessionHandler()
    assert handler.learn_listing(listing, request.isolation_level)
    handler.ask_full()
    result = handler.handle(walked(response, spoken, request.isolation_level))
    assert (result.action, result.reason) == (Action.COMPLETE, "")
    assert handler.table is not None
    what = Expansion(
        layout=LAYOUTS[version],
        listing=listing,
        table=handler.table,
        rows=handler.table.locate(listing),
        entries=result.entries,
        entry_rows=result.rows,
        entry_bytes=result.size,
        late=result.late,
        starved=[],
        received=Received(response),
        correlation_id=response[4:8],
        throttle_time_ms=decoded.throttle_time_ms,
        tags=wire_tags(exchange),
    )
    frame = b"".join(expand(what)[0])
    assert frame == framed(wire.encode_response(replace(decoded, session_id=0)))


def wire_tags(exchange: LiveExchange) -> bytes:
    walk = walked(exchange.response, exchange.version)
    return exchange.response[walk.tags_at :] if walk.tags_at >= 0 else b""
