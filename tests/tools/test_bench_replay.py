"""Tests that the benchmark's generated captures have the right content, as replay reads it."""

from pathlib import Path

import numpy as np
import pytest

from proxy.protocol.api import ApiKey, request_header
from proxy.protocol.fetch_request import Listing, parse_fetch_request
from replay.capture.kafka.exchange import ConnectionEnd, Exchange
from replay.simulate.captured_response import CapturedResponse
from replay.simulate.engine import Engine
from tests.replay.events import captured_events
from tools.bench import captures
from tools.bench.captures import Shape, make

SIZE = 600_000


def exchanges(path: Path) -> list[Exchange]:
    return [event for event in captured_events(path) if isinstance(event, Exchange)]


@pytest.mark.parametrize(
    "shape",
    [
        Shape(connections=3),
        Shape(connections=3, skew=0.8, filled=3, records=500),
        Shape(connections=3, filled=0),
        Shape(connections=3, filled=0, partitions=1, opening=0, each=2),
        Shape(connections=3, partitions=7, opening=1, each=4),
        Shape(connections=3, partitions=15, topics=3, filled=4, records=500),
    ],
)
def test_what_is_told_of_a_capture_is_in_it(tmp_path: Path, shape: Shape) -> None:
    file = tmp_path / "made.pcap"

    truth = make(file, SIZE, shape)

    found = exchanges(file)
    fetches = [each for each in found if each.api_key == ApiKey.FETCH]
    assert truth.bytes == file.stat().st_size
    assert truth.exchanges == len(found)
    assert truth.fetches == len(fetches)
    assert truth.fetch_request_bytes == sum(each.request_bytes for each in fetches)
    assert truth.fetch_response_bytes == sum(each.response_bytes for each in fetches)


def test_a_capture_may_have_two_small_fetches_of_each_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(captures, "_PORTS", 100)
    connections = 250
    shape = Shape(filled=0, connections=connections, partitions=1, opening=0, each=2)

    truth = make(tmp_path / "made.pcap", 0, shape)

    found = [event for event in captured_events(tmp_path / "made.pcap") if isinstance(event, ConnectionEnd)]
    assert len({end.client for end in found}) == len(found) == truth.connections == connections
    assert {end.reason for end in found} == {""}
    assert truth.fetches == 2 * connections
    assert truth.bytes < 1_000 * connections


def test_a_connection_rotates_its_list_and_alters_what_had_records(tmp_path: Path) -> None:
    file = tmp_path / "made.pcap"
    shape = Shape(connections=1)
    make(file, SIZE, shape)
    engine, outcomes = Engine("always"), []

    for exchange in exchanges(file):
        outcomes += engine.add(exchange)

    firsts = [first_partition(outcome.exchange) for outcome in outcomes]
    assert firsts == list(range(len(outcomes)))
    assert [outcome.kind for outcome in outcomes] == ["sessionless"] * len(outcomes)
    assert [outcome.altered for outcome in outcomes] == [0, *[shape.filled] * (len(outcomes) - 1)]
    assert {outcome.record_bytes for outcome in outcomes} == {shape.filled * shape.records}
    assert all(outcome.session_record_bytes == outcome.record_bytes for outcome in outcomes)


def test_each_connection_has_lists_offsets_and_ids_of_its_own(tmp_path: Path) -> None:
    connections = 1_002  # two of them have the first topic
    make(tmp_path / "made.pcap", 22_000_000, Shape(filled=0, connections=connections))
    lists: dict[str, tuple[bytes, bytes, bytes]] = {}
    first_ids: dict[str, int] = {}
    topics: list[dict[bytes, str]] = []

    for event in captured_events(tmp_path / "made.pcap"):
        if isinstance(event, ConnectionEnd):
            topics.append(event.topics)
            continue
        first_ids.setdefault(event.connection, event.correlation_id)
        if event.api_key == ApiKey.FETCH and event.connection not in lists:
            listing = listing_of(event)
            listed = listing.entries.view(listing.layout.request_fields)
            answer = CapturedResponse(event.response, event.api_version, isolation_level=1)
            [(key, entries)] = answer.empty_entries
            ends = entries.view(listing.layout.response_fields)["high_watermark"]
            assert ([key], ends.tolist()) == (listing.keys, listed["offset"].tolist())
            partitions = np.sort(listed["partition"]).tobytes()
            lists[event.connection] = key, partitions, listed["offset"].tobytes()

    assert len(lists) > 800  # the others have no fetch
    assert len({(key, partitions) for key, partitions, _ in lists.values()}) == len(lists)
    assert len({offsets for _, _, offsets in lists.values()}) == len(lists)
    assert len(set(first_ids.values())) == len(topics) == connections
    assert len({name for names in topics for name in names.values()}) == 1_000
    assert {len(names) for names in topics} == {1}
    assert {key for key, _, _ in lists.values()} <= {key for names in topics for key in names}


def first_partition(fetch: Exchange) -> int:
    listing = listing_of(fetch)
    return int(listing.entries.view(listing.layout.request_fields)["partition"][0])


def listing_of(fetch: Exchange) -> Listing:
    body = request_header(fetch.request, 4)[4]
    listing = parse_fetch_request(fetch.request, fetch.api_version, body).listing
    assert listing is not None
    return listing
