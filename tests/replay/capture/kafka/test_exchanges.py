import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cache
from itertools import pairwise
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replay.capture.files.sources import expand, plan
from replay.capture.kafka.exchange import UNSEEN, ConnectionEnd, Exchange, is_cut
from replay.capture.kafka.exchanges import Connections, Event
from replay.capture.packets.segments import connection_key
from replay.capture.packets.segments import read as read_segments
from replay.capture.packets.tcp import FIN, RST, SYN
from tests.examples import examples, few
from tests.replay.capture.packets_of import CAPTURES, NAMES, Row, batch, packets, read, resized
from tests.replay.truths import truth

SEGMENT = 1448


def _split(events: Iterable[Event]) -> tuple[list[Exchange], list[ConnectionEnd]]:
    exchanges, ends = [], []
    for event in events:
        if isinstance(event, Exchange):
            exchanges.append(event)
        else:
            ends.append(event)
    return exchanges, ends


def _events_of_file(name: str) -> list[Event]:
    shares = plan(expand([str(CAPTURES / f"{name}.pcap")]), 1 << 30)
    return [*Connections().read(rows for share in shares for rows in read_segments(share))]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("lost", [0.0, 0.9])
def test_a_connection_that_is_held_is_read_alike(name: str, lost: float) -> None:
    chance = Random(name)
    rows = [packet for packet in packets(name) if chance.random() >= lost]
    found: list[dict[str, list[Event]]] = []
    for hold in (False, True):
        events = Connections(hold=hold).read([batch(rows)])
        found.append({})
        for event in events:
            found[-1].setdefault(event.connection, []).append(event)

    assert found[0] == found[1]


@pytest.mark.parametrize("ports", [frozenset[int](), frozenset({9092})])
def test_connections_without_payload_are_counted_as_if_they_were_read(ports: frozenset[int]) -> None:
    # 1,000 ports of 3 hosts: SYN, answered, sent again, used again, with a FIN, and a SYN from both ends.
    ways = [
        [(1, 5, SYN)],
        [(1, 5, SYN), (0, 9, SYN), (1, 6, FIN), (0, 10, RST)],
        [(1, 5, SYN), (1, 5, SYN)],
        [(1, 5, SYN), (0, 9, RST), (1, 77, SYN), (0, 8, SYN), (0, 9, SYN)],
        [(1, 5, RST)],
    ]
    rows = [
        Row(
            connection=connection_key(f"10.0.0.{host}:9092", f"10.0.1.1:{port}"),
            from_low=bool(low),
            time=10 + place,
            sequence=number,
            flags=flags,
        )
        for host in range(3)
        for port in range(1, 1001)
        for place, (low, number, flags) in enumerate(ways[port % len(ways)])
    ]
    held = Connections(ports=ports, hold=True)
    ends = Connections(ports=ports).read([batch(rows)])

    assert [*held.feed(batch(rows))] == []
    assert held.end_silent() == Counter(end.reason for end in ends if isinstance(end, ConnectionEnd))
    assert [*held.end()] == []


def calls(rows: Sequence[Row]) -> int:
    """Return the number of function calls in which rows are read. It is the same on any machine."""
    found, whole, held = Counter[str](), batch(rows), Connections(hold=True)
    before = sys.getprofile()
    sys.setprofile(lambda _frame, event, _function: found.update((event,)))
    try:
        assert [*held.feed(whole)] == []
    finally:
        sys.setprofile(before)
    return found["call"] + found["c_call"]


def test_a_row_of_a_port_scan_takes_little_work() -> None:
    """Each row is of another connection. To prepare anything for a connection's rows takes more calls."""
    rows = [
        Row(connection=connection_key("10.0.0.1:9092", f"10.0.1.1:{port}"), from_low=True, time=1, sequence=5)
        for port in range(1, 1101)
    ]
    assert calls(rows) - calls(rows[:100]) <= 8 * 1000


def _by_key(exchanges: list[Exchange]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for one in exchanges:
        if one.api_key == UNSEEN:
            continue
        empty: dict[str, Any] = {**dict.fromkeys(_COUNTED, 0), "versions": Counter()}
        counts = found.setdefault(str(one.api_key), empty)
        counts["versions"][str(one.api_version)] += 1
        counts["requests"] += 1
        counts["request_bytes"] += one.request_bytes
        if one.response_bytes:
            counts["responses"] += 1
            counts["response_bytes"] += one.response_bytes
        else:
            counts["unanswered"] += 1
            counts["unanswered_bytes"] += one.request_bytes
    return found


_COUNTED = ("requests", "responses", "unanswered", "request_bytes", "response_bytes", "unanswered_bytes")


def _check_truth(name: str, events: list[Event], *, untouched: bool) -> None:
    true = truth(name)
    exchanges, ends = _split(events)
    totals: dict[str, Any] = {
        "connections": len(ends),
        "request_frames": sum(one.request_bytes > 0 for one in exchanges),
        "response_frames": sum(one.response_bytes > 0 for one in exchanges),
        "request_stream_bytes": sum(end.client_bytes for end in ends),
        "response_stream_bytes": sum(end.broker_bytes for end in ends),
        "exchanges_paired": sum(one.request_bytes > 0 < one.response_bytes for one in exchanges),
        "bytes_not_framed": sum(end.unframed_bytes for end in ends),
        "partial_frame_bytes_at_end": sum(end.partial_bytes for end in ends),
        "resyncs": sum(end.resyncs for end in ends),
    }
    if untouched:
        totals["segments_repeated"] = sum(end.repeated_segments for end in ends)
        totals["clients"] = dict(
            Counter(one.software for one in exchanges if one.api_key == 18 and one.api_version >= 3)
        )
        totals["cut_segments"] = 0
        totals["segments_out_of_order_or_repeated"] = totals["segments_repeated"]
        assert totals == true["totals"]
    else:
        assert totals == {key: true["totals"][key] for key in totals}
    assert true["gaps"]["count"] == sum(end.gaps for end in ends)
    unpaired = true["unpaired"]
    assert unpaired["requests_without_response"] == sum(not one.response_bytes for one in exchanges)
    assert unpaired["responses_without_request"] == sum(not one.request_bytes for one in exchanges)
    told = {
        key: {name: counts[name] for name in (*_COUNTED, "versions")}
        for key, counts in true["exchanges"].items()
    }
    assert _by_key(exchanges) == told
    _check_connections(true["connections"], exchanges, ends)


def _check_connections(
    truth: list[dict[str, Any]], exchanges: list[Exchange], ends: list[ConnectionEnd]
) -> None:
    requests = Counter(one.connection for one in exchanges if one.request_bytes)
    responses = Counter(one.connection for one in exchanges if one.response_bytes)
    fetches = Counter(one.connection for one in exchanges if one.api_key == 1)
    found = {
        (
            end.client,
            end.broker,
            end.client_id,
            end.syn_seen,
            requests[end.connection],
            responses[end.connection],
            fetches[end.connection],
            end.client_bytes,
            end.broker_bytes,
        )
        for end in ends
    }
    told = {
        (
            one["client"],
            one["server"],
            one["client_id"],
            one["syn_seen"],
            one["request_frames"],
            one["response_frames"],
            one["fetches"],
            one["request_stream_bytes"],
            one["response_stream_bytes"],
        )
        for one in truth
    }
    assert found == told


@pytest.mark.parametrize("name", NAMES)
def test_a_capture_gives_what_its_truth_says(name: str) -> None:
    _check_truth(name, _events_of_file(name), untouched=True)


def _shuffled(rows: Sequence[Row], width: int) -> list[Row]:
    rng = Random(width)
    places = [place + rng.random() * width for place in range(len(rows))]
    return [one for _, one in sorted(zip(places, rows, strict=True), key=lambda pair: pair[0])]


def _wrapped(rows: Sequence[Row]) -> list[Row]:
    """Return rows whose sequence numbers wrap around (at 2**32) after 1,000 bytes, in each direction."""
    first: dict[tuple[bytes, bool], int] = {}
    for one in rows:
        first.setdefault((one.connection, one.from_low), one.sequence)
    return [
        replace(
            one,
            sequence=(one.sequence - first[one.connection, one.from_low] - 1000) & 0xFFFF_FFFF,
            ack=(one.ack - first[one.connection, not one.from_low] - 1000) & 0xFFFF_FFFF
            if one.ack > 0
            else -1,
        )
        for one in rows
    ]


CHANGES: dict[str, Callable[[list[Row]], list[Row]]] = {
    "split": lambda rows: list(resized(rows, 536)),
    "reordered": lambda rows: _shuffled(list(resized(rows, SEGMENT)), 6),
    "seen twice": lambda rows: [again for one in rows for again in (one, one)],
    "sent again later": lambda rows: [*rows[:100], *(row for pair in pairwise(rows[100:]) for row in pair)],
    "wrapped": lambda rows: _wrapped(list(resized(rows, SEGMENT))),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("name", few(NAMES, NAMES[1]))
def test_what_networks_do_to_segments_changes_nothing(name: str, change: str) -> None:
    rows = CHANGES[change](list(packets(name)))
    _check_truth(name, read(rows), untouched=False)


@cache
def _known(name: str) -> tuple[dict[tuple[str, int], Exchange], dict[tuple[str, int], bytes]]:
    exchanges, _ = _split(read(packets(name)))
    return (
        {(one.client, one.correlation_id): one for one in exchanges},
        {(one.client, one.correlation_id): b"".join(one.response) for one in exchanges},
    )


def _check_nothing_wrong(name: str, rows: list[Row]) -> None:
    known, contents = _known(name)
    exchanges, ends = _split(read(rows))
    frames: Counter[str] = Counter()
    for one in exchanges:
        place = one.client, one.correlation_id
        told = known[place]
        if one.request_bytes:
            assert (one.api_key, one.api_version, one.request_bytes) == (
                told.api_key,
                told.api_version,
                told.request_bytes,
            )
            assert told.request.startswith(one.request)
        if one.response_bytes:
            assert one.response_bytes == told.response_bytes
            _check_content(one, contents[place])
        frames[one.connection] += one.request_bytes + one.response_bytes
    for end in ends:
        accounted = frames[end.connection] + end.headerless_bytes + end.unframed_bytes + end.partial_bytes
        assert end.client_bytes + end.broker_bytes == accounted - end.frame_gap_bytes
    seen = sum(end.client_bytes + end.broker_bytes + end.repeated_bytes for end in ends)
    assert seen == sum(len(one.payload) for one in rows)


def _check_content(one: Exchange, content: bytes) -> None:
    at = 0
    for piece in one.response:
        if not is_cut(piece):
            assert content[at : at + len(piece)] == bytes(piece)
        at += len(piece)
    if one.response and not one.response_missing:
        assert at == one.response_bytes


@examples(20)
@given(
    name=st.sampled_from(NAMES),
    size=st.sampled_from([536, 1448, 65536]),
    start=st.floats(0, 0.5),
    loss=st.sampled_from([0.001, 0.01, 0.1, 0.3]),
    shuffle=st.sampled_from([0, 4]),
    seed=st.integers(0, 1 << 30),
)
def test_with_packets_lost_no_exchange_is_wrong_and_all_bytes_are_accounted_for(
    name: str, size: int, start: float, loss: float, shuffle: int, seed: int
) -> None:
    rng = Random(seed)
    rows = list(resized(packets(name), size))
    rows = [one for one in rows[int(start * len(rows)) :] if rng.random() > loss]
    _check_nothing_wrong(name, _shuffled(rows, shuffle) if shuffle else rows)


@examples(20)
@given(
    name=st.sampled_from(NAMES),
    snap=st.sampled_from([0, 8, 42, 200, 1000]),
    share=st.sampled_from([0.01, 0.3, 1.0]),
    seed=st.integers(0, 1 << 30),
)
def test_with_packets_cut_no_exchange_is_wrong_and_all_bytes_are_accounted_for(
    name: str, snap: int, share: float, seed: int
) -> None:
    rng = Random(seed)
    rows = [
        replace(one, payload=one.payload[:snap], missing=max(len(one.payload) - snap, 0))
        if rng.random() < share
        else one
        for one in packets(name)
    ]
    _check_nothing_wrong(name, rows)


def test_most_exchanges_survive_light_losses() -> None:
    rng = Random(1)
    rows = [one for one in resized(packets("many-clients-any"), SEGMENT) if rng.random() > 0.01]
    exchanges, _ = _split(read(rows))
    paired = sum(one.request_bytes > 0 < one.response_bytes for one in exchanges)
    assert paired > 0.95 * truth("many-clients-any")["totals"]["exchanges_paired"]
