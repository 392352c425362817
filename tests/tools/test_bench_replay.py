"""Tests that the benchmark's generated captures have the right content, as replay reads it."""

from pathlib import Path

import pytest

from proxy.protocol.api import ApiKey, request_header
from proxy.protocol.fetch_request import parse_fetch_request
from replay.capture.kafka.exchange import Exchange
from replay.simulate.engine import Engine
from tests.replay.events import captured_events
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


def first_partition(fetch: Exchange) -> int:
    body = request_header(fetch.request, 4)[4]
    listing = parse_fetch_request(fetch.request, fetch.api_version, body).listing
    assert listing is not None
    return int(listing.entries.view(listing.layout.request_fields)["partition"][0])
