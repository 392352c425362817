"""The two sides of a gateway are found in one capture. Other connections are never taken for them."""

import json
import random
from pathlib import Path

import pytest

from replay import cli
from replay.capture.kafka.both_sides import MOST, SAMPLED, Sample, Sampled, are_copies, busiest, pairs
from replay.capture.kafka.exchange import Exchange
from replay.report.model import actual_bytes
from tests.golden.measured import CAPTURES, kept
from tests.replay.measure.consumers import BROKER, CLIENT, captured_twice
from tests.replay.measure.shown import shown, shown_as_json

SECOND = 1_000_000_000


def exchange(correlation_id: int, asked: int, answered: int, api_key: int = 1) -> Exchange:
    return Exchange(
        "c", "a:1", "b:2", correlation_id, "id", "", api_key, 11, correlation_id, asked, answered, 100, 1000
    )


def sampled(connection: str, exchanges: list[tuple[int, int, int]], client_id: str = "id") -> Sampled:
    sample = Sample()
    for values in exchanges:
        sample.add(exchange(*values))
    return Sampled(
        connection=connection, client_id=client_id, exchanges=sample.exchanges, kept=sample.values()
    )


def polling(count: int, *, begin: int = SECOND, first: int = 1) -> list[tuple[int, int, int]]:
    """Return the exchanges of a consumer that sends two fetches per second."""
    return [
        (place, begin + place * SECOND // 2, begin + place * SECOND // 2 + 490_000_000)
        for place in range(first, first + count)
    ]


def forwarded(exchanges: list[tuple[int, int, int]], lag: int = 50_000) -> list[tuple[int, int, int]]:
    return [(number, asked + lag, answered - lag) for number, asked, answered in exchanges]


def test_a_forwarded_connection_is_found() -> None:
    client = polling(100)
    found = [sampled("gateway > broker", forwarded(client)), sampled("client > gateway", client)]

    assert pairs(found) == pairs(reversed(found)) == [("client > gateway", "gateway > broker")]


def test_it_is_found_where_the_capture_has_more_of_one_side() -> None:
    client = polling(1_000)
    assert pairs([sampled("a", client[5:]), sampled("b", forwarded(client)[:-3])]) == [("a", "b")]


def test_a_client_of_another_name_is_another_client() -> None:
    client = polling(100)
    assert pairs([sampled("a", client), sampled("b", forwarded(client), client_id="other")]) == []


def test_few_exchanges_prove_nothing() -> None:
    client = polling(7)
    assert pairs([sampled("a", client), sampled("b", forwarded(client))]) == []


def test_exchanges_in_which_no_time_passed_prove_nothing() -> None:
    """As in a capture whose times were removed."""
    client = [(place, SECOND, SECOND) for place in range(100)]
    assert pairs([sampled("a", client), sampled("b", client)]) == []


@pytest.mark.parametrize("seed", range(50))
def test_consumers_in_lockstep_are_two(seed: int) -> None:
    """Two consumers that are started at the same time are not taken for the two sides of a gateway.

    The broker answers the two consumers in any order.
    """
    chance = random.Random(seed)
    both = [
        [
            (number, asked + chance.randrange(1_000_000), answered + chance.randrange(1_000_000))
            for number, asked, answered in polling(100)
        ]
        for _ in range(2)
    ]
    assert pairs([sampled("a", both[0]), sampled("b", both[1])]) == []


def test_one_that_is_always_a_little_later_is_no_gateway() -> None:
    client = polling(100)
    later = [(number, asked + 50_000, answered + 50_000) for number, asked, answered in client]
    assert pairs([sampled("a", client), sampled("b", later)]) == []


def test_a_sample_is_bounded_and_does_not_depend_on_order() -> None:
    client = polling(5_000)
    shuffled = random.Random(1).sample(client, len(client))
    first, second = sampled("a", client).kept, sampled("a", shuffled).kept

    assert len(first) == SAMPLED
    assert sorted(first) == sorted(second)


def test_only_the_busiest_connections_are_compared() -> None:
    many = [
        Sampled(connection=f"{number}", client_id="id", exchanges=number % 97, kept=[])
        for number in range(MOST + 500)
    ]
    chosen = busiest(many)

    assert len(chosen) == MOST
    assert busiest(busiest(many[:1_000]) + busiest(many[1_000:])) == chosen
    assert min(one.exchanges for one in chosen) >= max(one.exchanges for one in many if one not in chosen)


def test_what_has_no_response_is_not_sampled() -> None:
    sample = Sample()
    for number in range(20):
        sample.add(exchange(number, SECOND, 0))
    assert sample.values() == []


GATEWAYS = {
    "aiokafka-gateway": ("127.0.0.1:23262", "127.0.0.1:17570"),
    "librdkafka-gateway": ("127.0.0.1:20372", "127.0.0.1:21482"),
    "librdkafka-gateway-no-records": ("127.0.0.1:19990", "127.0.0.1:20083"),
}
"""The captures of both sides of a gateway (captures/README.md). Each has the address to which clients connect
and the address of the broker."""


@pytest.mark.parametrize("path", CAPTURES, ids=lambda path: path.stem)
def test_of_real_captures_only_those_of_a_gateway_have_both_sides(path: Path) -> None:
    report = kept(path)
    sides = [(row["client_side"], row["broker_side"]) for row in report["both_sides"]]

    assert sides == ([GATEWAYS[path.stem]] if path.stem in GATEWAYS else [])
    for row in report["both_sides"]:
        (broker,) = (one for one in report["by_broker"] if one["broker"] == row["broker_side"])
        assert row["connections"] == 4
        assert 0 < row["fetch_bytes"] <= actual_bytes(broker["fetch"])


@pytest.mark.parametrize("translated", [CLIENT, BROKER], ids=["the client's address", "the broker's"])
@pytest.mark.parametrize("options", [(), ("--topic", "orders"), ("--cooperative", "2")], ids=str)
def test_copies_after_nat_count_once(tmp_path: Path, translated: bytes, options: tuple[str, ...]) -> None:
    capture = captured_twice(tmp_path / "nat.pcap", translated)
    found = shown_as_json(str(capture), *options)

    assert found["input"]["copied_connections"] == 1
    assert (found["input"]["connections"], found["fetch"]["actual"]["requests"]) == (2, 40)
    assert found["both_sides"] == []
    assert [row["client"] for row in found["connections"]] == ["10.0.0.1:40000", "10.0.0.1:41000"]
    for text in shown(str(capture), *options).both:
        assert "1 connection was captured twice, before and after NAT, and counts once" in text
        assert "gateway were captured" not in text


def test_inspect_and_drive_tell_of_copies(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capture = str(captured_twice(tmp_path / "nat.pcap", CLIENT))
    assert cli.main(["inspect", capture]) == 0
    told = "1 connection was captured twice, before and after NAT, and counts once in the first line and in "
    assert f"{told}measure." in " ".join(capsys.readouterr().out.split())
    assert cli.main(["drive", capture, "--dry-run", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    left_out = [row for row in report["left_out"] if row["reason"] == "captured twice, before and after NAT"]
    assert [(row["api"], row["requests"]) for row in left_out] == [("Fetch", 20)]
    assert (report["connections"], report["planned"]) == (2, 40)


def test_a_gateway_has_a_port_of_its_own() -> None:
    ours = "10.0.0.1:40000 > 10.0.0.2:9092 #0"
    assert are_copies(ours, "10.0.0.7:40000 > 10.0.0.2:9092 #1")
    assert are_copies("[fd00::1]:40000 > [fd00::2]:9092 #0", "[fd00::1]:40000 > [fd00::3]:9092 #0")
    assert not are_copies(ours, "10.0.0.7:40001 > 10.0.0.2:9092 #0")
