"""For the captures made by `tools.captures`, `measure` gives the figures that the gateway counted."""

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from proxy.protocol.api import ApiKey
from replay.capture.kafka.exchange import ConnectionEnd, Exchange
from replay.simulate.engine import Engine
from replay.simulate.outcome import Outcome
from tests.replay.events import captured_events

CAPTURES = Path(__file__).parents[3] / "captures"
MADE = sorted(
    path.name.removesuffix(".manifest.json")
    for path in CAPTURES.glob("*.manifest.json")
    if "-m tools.captures " in path.read_text()
)
BOTH_SIDES = [name for name in MADE if "gateway" in name]


def _manifest(name: str) -> dict[str, Any]:
    manifest: dict[str, Any] = json.loads((CAPTURES / f"{name}.manifest.json").read_text())
    return manifest


def _events(name: str) -> list[Exchange | ConnectionEnd]:
    return captured_events(CAPTURES / f"{name}.pcap")


def _on(side: str, name: str, events: Iterable[Exchange | ConnectionEnd]) -> list[Exchange | ConnectionEnd]:
    ports = {str(port) for port in _manifest(name)["ports"][f"{side}_side"]}
    return [event for event in events if event.broker.rpartition(":")[2] in ports]


def _sides(name: str) -> list[str]:
    return [side for side in ("client", "broker") if side in _manifest(name)["expected"]]


def _played(events: Iterable[Exchange | ConnectionEnd]) -> list[Outcome]:
    """Run every connection through the engine, with the policy `gateway`."""
    engines: dict[str, Engine] = {}
    outcomes: list[Outcome] = []
    for event in events:
        engine = engines.setdefault(event.connection, Engine("gateway"))
        if isinstance(event, Exchange):
            outcomes += engine.add(event)
            continue
        rest, closing = engine.end(event)
        outcomes += [*rest, *filter(None, [closing])]
        assert engine.differing == 0
    return outcomes


def test_there_are_captures_of_both_libraries_and_of_both_kinds() -> None:
    assert {name.partition("-")[0] for name in MADE} == {"librdkafka", "aiokafka"}
    assert len(BOTH_SIDES) >= 2


@pytest.mark.parametrize("name", MADE)
def test_it_is_small(name: str) -> None:
    assert (CAPTURES / f"{name}.pcap").stat().st_size < 1_000_000


@pytest.mark.parametrize("name", MADE)
def test_every_byte_is_read_as_kafka(name: str) -> None:
    events = _events(name)
    ends = [event for event in events if isinstance(event, ConnectionEnd)]
    expected = _manifest(name)["expected"]

    assert {(end.reason, end.unframed_bytes, end.resyncs, end.syn_seen) for end in ends} == {("", 0, 0, True)}
    clients = [end for end in _on("client", name, events) if isinstance(end, ConnectionEnd)]
    assert len(clients) == expected["connections"]
    for side in _sides(name):
        sided = [end for end in _on(side, name, events) if isinstance(end, ConnectionEnd)]
        crossed = sum(end.client_bytes + end.broker_bytes + end.cut_bytes for end in sided)
        counted = expected[side]["bytes_in"] + expected[side]["bytes_out"]
        # What is written to a client that has reset meanwhile was counted, and is not on the wire.
        assert crossed == counted or (crossed < counted and "tcpdump" in _manifest(name)["taken_by"])


def test_records_that_were_left_out_are_no_gaps() -> None:
    name = "librdkafka-gateway-no-records"
    ends = [event for event in _events(name) if isinstance(event, ConnectionEnd)]

    assert sum(end.left_out_gaps for end in ends) == sum(end.gaps for end in ends) > 0
    assert sum(end.left_out_bytes for end in ends) == sum(end.gap_bytes for end in ends) > 0


@pytest.mark.parametrize(("name", "side"), [(name, side) for name in MADE for side in _sides(name)])
def test_fetches_are_those_that_the_gateway_counted(name: str, side: str) -> None:
    expected = _manifest(name)["expected"][side]
    events = _on(side, name, _events(name))
    fetches = [event for event in events if isinstance(event, Exchange) and event.api_key == ApiKey.FETCH]
    outcomes = [outcome for outcome in _played(events) if outcome.kind is not None]
    kinds = Counter(str(outcome.kind) for outcome in outcomes)

    assert sum(fetch.request_bytes for fetch in fetches) == expected["fetch_request_bytes"]
    assert sum(fetch.response_bytes for fetch in fetches) == expected["fetch_response_bytes"]
    assert sum(outcome.record_bytes for outcome in outcomes) == expected["fetch_record_bytes"]
    assert sum(outcome.partitions_requested for outcome in outcomes) == expected["partitions_requested"]
    assert sum(outcome.partitions_answered for outcome in outcomes) == expected["partitions_answered"]
    assert kinds == {kind: count for kind, count in expected["fetches"].items() if count}


@pytest.mark.parametrize("name", BOTH_SIDES)
def test_what_is_predicted_from_the_clients_side_is_what_was_counted_on_the_brokers(name: str) -> None:
    measured = _manifest(name)["expected"]["broker"]
    outcomes = _played(_on("client", name, _events(name)))
    left = [outcome for outcome in outcomes if not outcome.eligible and outcome.kind is not None]

    def total(session: str, actual: str) -> int:
        through: int = sum(getattr(outcome, session) for outcome in outcomes)
        passed: int = sum(getattr(outcome, actual) for outcome in left)
        return through + passed

    sizes = {"request": 0, "response": 0}
    for outcome in left:
        sizes["request"] += outcome.exchange.request_bytes
        sizes["response"] += outcome.exchange.response_bytes
    predicted = {
        "fetch_request_bytes": sum(o.session_request_bytes for o in outcomes) + sizes["request"],
        "fetch_response_bytes": sum(o.session_response_bytes for o in outcomes) + sizes["response"],
        "partitions_requested": total("session_partitions_requested", "partitions_requested"),
        "partitions_answered": total("session_partitions_answered", "partitions_answered"),
        "full": sum(o.full for o in outcomes),
        "incremental": sum(o.incremental for o in outcomes),
        "sessionless": sum(o.sessionless for o in outcomes),
        "close": sum(o.closes for o in outcomes),
    }
    assert predicted == {key: measured[key] for key in predicted if key in measured} | measured["fetches"]
