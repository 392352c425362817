"""The net sum: what is saved, what sidecars cost, and what is left."""

import re
import struct
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replay import cli
from replay.measure import net as model
from replay.measure.net import AddressSums, client_hash, need, net, own_sidecars
from replay.measure.zone_places import Zone
from replay.report.decision import DailyRate, OwnSidecars
from replay.report.model import Net, Report
from replay.report.net import break_even, net_between_zones, net_explained, net_in_short, net_table
from tests.replay.measure.shown import shown, shown_as_json
from tests.replay.report import sample
from tests.replay.tables import CAPTURES
from tests.test_readme import FETCHES
from tools.diagram import BENCHMARKS, rows

ROOT = Path(__file__).parents[3]
CAPTURE = str(CAPTURES / "many-clients-any.pcap")
PRICES = ["--price-per-gb", "0.02", "--currency", "USD", "--sidecar-cost", "3.50"]
RATE = DailyRate(seconds=100.0, price_per_gb=0.5, currency="EUR")
"""A saved GB in 100 s is 25,920 GB in a month: 12,960 EUR."""
SAVES = AddressSums(
    connections=2,
    requests=1_000,
    partitions=300,
    partitions_requested=100_000,
    record_bytes=10**9,
    saved_bytes=10**9,
)
SAVES_LITTLE = AddressSums(connections=1, requests=10, saved_bytes=1_000)
SAVES_NOTHING = AddressSums(connections=1, requests=10, saved_bytes=0)
C, D, E = ("c", "", 11), ("d", "", 11), ("e", "", 11)
"""Clients."""
LOSES = AddressSums(connections=1, requests=10, saved_bytes=-5_000)


def net_of(*given: Any) -> Net:
    """Return the net sum, which there must be."""
    found = net(*given)
    assert found is not None
    return found


def test_net_is_the_saving_less_a_sidecar_for_each_address_that_saves() -> None:
    found = net_of({"a": SAVES, "b": SAVES, "c": SAVES_NOTHING, "d": LOSES}, RATE, 250.0)

    assert (found["sidecars"], found["sidecars_that_pay"]) == (2, 2)
    assert (found["currency"], found["sidecar_cost_per_month"]) == ("EUR", 250.0)
    assert found["captured_seconds"] == 100.0
    assert found["services"][0] == {
        "services": 1,
        "sidecars": 2,
        "saved_per_month": 25_920.0,
        "cost_per_month": 500.0,
        "net_per_month": 25_420.0,
        "saved_per_year": 311_040.0,
        "cost_per_year": 6_000.0,
        "net_per_year": 305_040.0,
    }


def test_services_alike_multiply_both_the_saving_and_the_cost() -> None:
    found = net_of({"a": SAVES_LITTLE}, RATE, 1.0)

    rows = {row["services"]: row for row in found["services"]}
    assert list(rows) == [1, 20, 200]
    assert [row["sidecars"] for row in rows.values()] == [1, 20, 200]
    assert rows[200]["saved_per_month"] == pytest.approx(200 * 0.012_96)
    assert rows[200]["cost_per_year"] == 2_400.0
    assert rows[20]["net_per_month"] == pytest.approx(20 * (0.012_96 - 1.0))
    assert found["sidecars_that_pay"] == 0


@given(
    st.lists(st.integers(-(10**12), 10**12), max_size=8),
    st.integers(1, 10**6),
    st.integers(0, 10**4),
)
def test_each_sum_adds_up(saved: list[int], price: int, cost: int) -> None:
    addresses = {str(at): AddressSums(connections=1, saved_bytes=count) for at, count in enumerate(saved)}
    found = net_of(addresses, DailyRate(seconds=60.0, price_per_gb=price / 1000), cost / 100)

    gains = [count for count in saved if count > 0]
    month = Fraction(sum(gains) * price * 30 * 86_400, 10**12 * 60)
    assert found["sidecars"] == len(gains)
    assert found["sidecars_that_pay"] <= found["sidecars"]
    for row in found["services"]:
        assert row["saved_per_month"] == pytest.approx(float(row["services"] * month))
        assert row["cost_per_month"] == pytest.approx(row["services"] * len(gains) * cost / 100)
        for span in ("month", "year"):
            assert row[f"net_per_{span}"] == pytest.approx(  # type: ignore[literal-required]  # keys of NetRow
                row[f"saved_per_{span}"] - row[f"cost_per_{span}"]  # type: ignore[literal-required]  # the same
            )
        assert row["net_per_year"] == 12 * row["net_per_month"]


def test_without_a_price_of_bytes_or_a_captured_time_there_is_no_net_sum() -> None:
    assert net({"a": SAVES}, DailyRate(seconds=100.0), 1.0) is None
    assert net({"a": SAVES}, DailyRate(seconds=0.0, price_per_gb=1.0), 1.0) is None
    assert net_in_short(None) == ""


def test_needs_follow_from_connections_partitions_fetches_and_records() -> None:
    assert need(SAVES, 100.0) == {
        "memory_bytes": 51_000_000 + 2 * 12_200 + 300 * 110,
        # 1,000 fetches of 160 µs, 100,000 partitions of 0.57 µs, 1 GB of 1.8 s, in 100 s
        "cpu_millicores": 20.17,
        "connections": 2,
        "partitions": 300,
        "fetches_per_second": 10.0,
        "partitions_per_second": 1_000.0,
        "record_bytes_per_second": 10_000_000.0,
    }


def test_the_largest_sidecar_is_the_one_with_most_cpu() -> None:
    found = net_of({"a": SAVES_LITTLE, "b": SAVES, "c": SAVES_LITTLE}, RATE, 1.0)

    assert found["largest"] == need(SAVES, 100.0)


@pytest.mark.parametrize(
    ("cost", "table", "row"),
    [
        (model.PROCESS_BYTES / 1e6, "Resident memory", "one client, after drains"),
        (model.CONNECTION_BYTES / 1e3, "Resident memory", "an idle connection"),
        (model.PARTITION_BYTES, "Resident memory", "a partition in a session"),
        (model.FETCH_SECONDS * 1e6, "500 connections of one partition", "CPU of a fetch"),
        (
            model.RECORD_SECONDS * 1e9,
            "Bulk: 2 GB of 1 KB records, 12 partitions, one confluent-kafka consumer",
            "CPU of the proxy",
        ),
        (
            FETCHES * (model.FETCH_SECONDS + 1_000 * model.LISTED_SECONDS) * 100,
            "Idle: 1,000 partitions, one with 100 records/s",
            "proxy",
        ),
    ],
)
def test_a_cost_is_never_below_that_in_the_benchmarks(cost: float, table: str, row: str) -> None:
    """A cost that became lower than this leaves the net sum too low, which misleads nobody."""
    measured = float(rows(BENCHMARKS.read_text(encoding="utf-8"), table)[row]["gateway"])
    assert measured * 0.99 <= cost <= measured * 2


def test_an_address_adds_up_its_connections() -> None:
    found = shown_as_json(CAPTURE, *PRICES)
    one = found["modelled"]["net"]

    assert (one["sidecars"], one["currency"]) == (1, "USD")
    assert one["largest"]["connections"] == sum(row["connections"] for row in found["by_client"])
    seconds = found["time"]["captured_seconds"]
    assert one["largest"]["fetches_per_second"] == found["fetch"]["actual"]["requests"] / seconds
    month = found["fetch"]["saved_bytes"] / 1e9 * 0.02 / seconds * 30 * 86_400
    assert one["services"][0]["net_per_month"] == pytest.approx(month - 3.5)
    assert one["services"][0]["saved_per_month"] == found["decision"]["money_per_month"]


def test_the_net_sum_is_in_the_first_lines_and_in_a_table() -> None:
    found = shown(CAPTURE, *PRICES)

    for text in found.both:
        assert (
            "Net: 8.0 USD saved - 3.50 USD for 1 sidecar (one per client address) = 4.5 USD a month, 54 USD "
            "a year."
        ) in text
        assert "Saved, cost and net, in USD (estimated from 11.2 s)" in text
        assert "11,000" in text
        assert "10,875" not in text
        assert "a month is 30 days" in text.lower()
    assert "8.0 of 9.2 USD a month at 0.02 USD per GB (estimated from 11.2 s)." in found.text


def test_clients_that_save_nothing_need_no_sidecar() -> None:
    found = net_of({"a": SAVES_NOTHING}, RATE, 3.5)

    assert (found["sidecars"], found["largest"]) == (0, None)
    assert {row["cost_per_year"] for row in found["services"]} == {0.0}
    assert net_in_short(found) == "Net: sessions save nothing for any client here, so no sidecar is needed."
    assert len(net_explained(with_net(found))) == 1


@given(st.integers(0, 10**10), st.integers(0, 10**8), st.sampled_from([10.0, 3_600.0]))
def test_the_line_adds_up_as_it_is_shown(saved: int, cost: int, seconds: float) -> None:
    found = net_of(
        {"a": AddressSums(saved_bytes=saved + 1)},
        DailyRate(seconds=seconds, price_per_gb=0.1),
        cost / 100,
    )
    told = net_in_short(found).replace(",", "").replace("<", "")
    whole, less, left = (
        Fraction(found)
        for found in re.match(r"Net: (\S+) saved - (\S+) for .* = (\S+) a month", told).groups()  # type: ignore[union-attr]  # a test fails without
    )
    assert whole - less == left or whole == Fraction("0.01")


def test_a_loss_is_said() -> None:
    found = net_of({"a": SAVES_LITTLE, "b": SAVES_LITTLE}, RATE, 3.5)

    assert net_in_short(found) == (
        "Net: 0.03 EUR saved - 7.00 EUR for 2 sidecars (one per client address) = -6.97 EUR a month, -84 EUR "
        "a year: the cost is higher than the saving. Sidecars pay at more than 135.04 EUR per GB."
    )
    left = net_table(found).columns[4]
    assert [left.unit.sign(value) for value in (-1.5, 0.0, 2.0)] == [-1, 0, 1]


@given(st.integers(1, 10**12), st.integers(0, 10**6), st.integers(1, 10**4))
def test_at_the_break_even_price_the_saving_is_the_cost(saved: int, price: int, cost: int) -> None:
    addresses = {"a": AddressSums(connections=1, saved_bytes=saved), "b": SAVES_LITTLE}
    found = net_of(addresses, DailyRate(seconds=60.0, price_per_gb=price / 1000), cost / 100)

    even = found["break_even_price_per_gb"]
    assert even is not None
    there = net(addresses, DailyRate(seconds=60.0, price_per_gb=even), cost / 100)
    assert there is not None
    assert there["services"][0]["saved_per_month"] == pytest.approx(2 * cost / 100)


def test_without_sidecars_there_is_no_break_even_price() -> None:
    found = net_of({"a": SAVES_NOTHING}, RATE, 3.5)

    assert found["break_even_price_per_gb"] is None


def test_a_price_of_nothing_has_a_break_even_price() -> None:
    found = net_of({"a": SAVES}, DailyRate(seconds=100.0, price_per_gb=0.0, currency="EUR"), 2_592.0)

    assert found["break_even_price_per_gb"] == pytest.approx(0.1)
    assert net_in_short(found).endswith(
        "the cost is higher than the saving. Sidecars pay at more than 0.1 EUR per GB."
    )


def test_a_break_even_price_has_three_digits_and_never_looks_lower_than_it_is() -> None:
    assert [break_even(price, "") for price in (0.0, 0.000_123_41, 0.02, 135.031, 123_456.7)] == [
        "0 per GB",
        "0.000124 per GB",
        "0.02 per GB",
        "135.04 per GB",
        "123,456.7 per GB",
    ]


def test_sidecars_that_pay_are_counted_where_all_together_do_not() -> None:
    found = net_of({"a": SAVES, "b": SAVES_LITTLE, "c": SAVES_LITTLE}, RATE, 12_000.0)

    assert (
        "1 of the 3 sidecars saves more than it costs. With sidecars only at a: 12,960 EUR saved - 12,000.00 "
        "EUR = 960 EUR a month, 12,000 EUR a year. Sidecars pay at more than"
    ) in net_in_short(found)


def test_sidecars_that_pay_are_named_where_all_together_pay_too() -> None:
    found = net_of({"b": SAVES_LITTLE, "a": SAVES, "c": SAVES}, RATE, 100.0)

    assert found["paying"] == {
        "addresses": ["a", "c"],
        "saved_per_month": 25_920.0,
        "cost_per_month": 200.0,
        "net_per_month": 25_720.0,
        "net_per_year": 308_640.0,
    }
    assert net_in_short(found).endswith(
        "2 of the 3 sidecars save more than they cost. With sidecars only at a, c: 25,900 EUR saved - "
        "200.00 EUR = 25,700 EUR a month, 310,000 EUR a year."
    )


@pytest.mark.parametrize("cost", [0.0, 15_000.0])
def test_where_all_sidecars_pay_or_none_no_address_is_named(cost: float) -> None:
    found = net_of({"a": SAVES, "b": SAVES}, RATE, cost)

    assert "sidecars only at" not in net_in_short(found)


def test_at_most_three_addresses_are_named() -> None:
    found = net_of({**dict.fromkeys("abcde", SAVES), "f": SAVES_LITTLE}, RATE, 100.0)

    assert "With sidecars only at a, b, c and 2 more:" in net_in_short(found)


def test_clients_at_one_address_share_its_sidecar() -> None:
    addresses = {
        "1": AddressSums(saved_bytes=10**9, clients={client_hash(C), client_hash(D)}),
        "2": AddressSums(saved_bytes=1_000, clients={client_hash(D)}),
    }

    assert own_sidecars({C: 0, D: 0, E: 0}, {}, addresses, RATE, 1.0) == {
        C: OwnSidecars(number=1, pay=1),
        D: OwnSidecars(number=2, pay=1),
        E: OwnSidecars(number=0, pay=0),
    }


@pytest.mark.parametrize(("waiting", "wins"), [(0.6, False), (0.8, True)])
@pytest.mark.parametrize("zoned", [False, True])
def test_waiting_wins_if_it_saves_more_than_the_sidecars_leave(
    waiting: float, *, wins: bool, zoned: bool
) -> None:
    """A sidecar costs 0.3 of what sessions save at its address, or of the half of it that has a price."""
    between = Counter({("a", "b"): 10**9, ("a", "a"): 10**9} if zoned else {})
    both = {client_hash(C), client_hash(D)}
    addresses = {"1": AddressSums(saved_bytes=2 * 10**9, clients=both, saved_between=between)}
    month = RATE.month(10**9 if zoned else 2 * 10**9)
    assert month is not None

    found = own_sidecars({C: round(2 * waiting * 10**9), D: 0}, {}, addresses, RATE, 0.3 * month, zone_of)
    assert [one.waiting_wins for one in found.values()] == [wins, wins]
    assert [one.others_wait for one in found.values()] == [False, wins]


def test_where_others_wait_instead_a_sidecar_has_to_pay_for_those_that_stay() -> None:
    """Sessions save 2 GB of C and of D. If C waits, which saves all of it, D is left with the sidecar."""
    addresses = {"1": AddressSums(saved_bytes=4 * 10**9, clients={client_hash(C), client_hash(D)})}
    saved = {C: 2 * 10**9, D: 2 * 10**9}
    month = RATE.month(10**9)
    assert month is not None

    for cost, pays in ((1.9, 1), (2.1, 0)):
        found = own_sidecars({C: round(2.2 * 10**9), D: 0}, saved, addresses, RATE, cost * month)
        assert found[C].waiting_wins
        assert found[D] == OwnSidecars(number=1, pay=pays, waiting_wins=True, others_wait=True)
    assert not own_sidecars({C: 2 * 10**9, D: 0}, saved, addresses, RATE, 1.9 * month)[C].waiting_wins


def test_a_sidecar_that_never_pays_does_not_wait_for_others() -> None:
    """Also for a client that waits, it has to pay for all clients there: it may keep the sidecar instead."""
    addresses = {"1": AddressSums(saved_bytes=4 * 10**9, clients={client_hash(C), client_hash(D)})}
    waiting, saved = {C: 10**10, D: 0}, {C: 3 * 10**9, D: 10**9}
    month = RATE.month(10**9)
    assert month is not None

    for cost, pay in ((0.9, 1), (3.9, 1), (4.1, 0)):
        found = own_sidecars(waiting, saved, addresses, RATE, cost * month)
        assert (found[C].pay, found[C].others_wait) == (pay, False)
        assert (found[D].pay, found[D].others_wait) == (int(cost < 1), bool(pay))


def test_waiting_wins_over_sidecars_that_do_not_pay() -> None:
    addresses = {"1": AddressSums(saved_bytes=10**6, clients={client_hash(C)})}

    assert own_sidecars({C: 10**6}, {}, addresses, RATE, 10**6)[C].waiting_wins
    assert not own_sidecars({C: 10**6}, {}, addresses, replace(RATE, price_per_gb=0.0), 10**6)[C].waiting_wins


@pytest.mark.parametrize(("cost", "action"), [("0.50", "gateway"), ("3.50", "fetch.min.bytes")])
def test_what_to_do_is_decided_by_client_address(cost: str, action: str, tmp_path: Path) -> None:
    """Only the sidecar of 10.0.0.1 pays. At 3.50 it leaves less than fetch.min.bytes saves."""
    asked = at_two_addresses(Path(CAPTURE), tmp_path / "two.pcap"), *PRICES[:-1], cost
    found = shown_as_json(*asked)
    net_sum = found["modelled"]["net"]
    assert (net_sum["sidecars"], net_sum["sidecars_that_pay"]) == (2, 1)
    assert net_sum["paying"]["addresses"] == ["10.0.0.1"]
    actions = {row["client_id"]: row["action"] for row in found["decision"]["to_do"]}
    assert [actions[client] for client in ("rdk", "kjs", "sarama")] == [action] * 3
    assert actions["kpy"] == "fetch.min.bytes"
    ways = {
        "gateway": 'a gateway wins for "rdk", "kjs" and "sarama", and fetch.min.bytes wins for "kpy"',
        "fetch.min.bytes": 'fetch.min.bytes wins for "rdk", "kjs", "sarama" and "kpy"',
    }
    for text in map(unescape, shown(*asked).both):
        assert f"Conclusion: by what is left after the cost of sidecars, {ways[action]}. With" in text
        assert ("Put it behind a gateway" in text) == (action == "gateway")
        assert "If they must not, or if you can't change a client, choose a gateway where its sidecar" in text
    sentences = {row["client_id"]: row["sentence"] for row in found["decision"]["to_do"]}
    assert "leave it as it is: its sidecar does not pay at your prices, see Net." in sentences["kpy"]
    assert ("If they must not, put it behind a gateway" in sentences["rdk"]) == (action == "fetch.min.bytes")

    for text in shown(*asked, "--anonymize").both:
        assert "1 of the 2 sidecars saves more than it costs. With sidecars only at host-" in text
        assert "10.0.0.1" not in text


def at_two_addresses(capture: Path, to: Path) -> str:
    """Write a capture again: kafka-python is at 10.0.0.2, all other clients are at 10.0.0.1."""

    def moved(record: bytearray) -> bytearray:
        for place, port in enumerate(struct.unpack_from(">HH", record, _PORTS)):
            if port != 33192:
                begin = _ADDRESSES + 4 * place
                record[begin : begin + 4] = bytes((10, 0, 0, 2 if port == 41642 else 1))
        return record

    return rewritten(capture, to, moved)


_ADDRESSES = 16 + 20 + 12
"""In a record: after its header, SLL2, and the first part of IPv4."""
_PORTS = 16 + 20 + 20


def rewritten(capture: Path, to: Path, change: Callable[[bytearray], bytes | bytearray]) -> str:
    """Write a capture again, with another record in place of each: a header of 16 bytes, and the packet."""
    data, at = capture.read_bytes(), 24
    records: list[bytes | bytearray] = [data[:at]]
    while at < len(data):
        end = at + 16 + struct.unpack_from("<I", data, at + 8)[0]
        records.append(change(bytearray(data[at:end])))
        at = end
    to.write_bytes(b"".join(records))
    return str(to)


def with_net(found: Net | None) -> Report:
    """Return a report with this net sum."""
    plain = sample.report()
    return {**plain, "modelled": {**plain["modelled"], "net": found}}


def zone_of(client: str, broker: str) -> Zone:
    if not client or not broker:
        return "unknown"
    return "same" if client == broker else "other"


def saving_between(**ends: int) -> AddressSums:
    """Return sums that save these bytes between two racks: ``ab`` is from a to b, x is not known."""
    between = Counter({(key[0].strip("x"), key[1].strip("x")): count for key, count in ends.items()})
    return AddressSums(connections=1, saved_bytes=between.total(), saved_between=between)


def test_bytes_between_zones_have_a_sum_of_their_own() -> None:
    first = saving_between(ab=6 * 10**8, aa=3 * 10**8)
    first.add(saving_between(ab=2 * 10**8, xa=10**8))
    addresses = {"1": first, "2": saving_between(aa=8 * 10**8), "no sidecar": saving_between(ab=-(10**6))}
    found = net_of(addresses, RATE, 500.0, zone_of)

    assert found["services"][0]["net_per_month"] == 25_920.0 - 1_000.0
    assert found["between_zones"] == {
        "saved_bytes": {"same": 11 * 10**8, "other": 8 * 10**8, "unknown": 10**8},
        "saved_per_month": 10_368.0,
        "net_per_month": 9_368.0,
        "net_per_year": 112_416.0,
        "paying": {
            "addresses": ["1"],
            "saved_per_month": 10_368.0,
            "cost_per_month": 500.0,
            "net_per_month": 9_868.0,
            "net_per_year": 118_416.0,
        },
    }
    assert net_between_zones(found) == (
        "Net if only bytes between zones cost money (800 MB of 2.00 GB saved, the zones of 100 MB are not "
        "known): 10,400 EUR saved - 1,000.00 EUR for 2 sidecars (one per client address) = 9,400 EUR a "
        "month, 110,000 EUR a year. 1 of the 2 sidecars saves more than it "
        "costs. With sidecars only at 1: 10,400 EUR saved - 500.00 EUR = 9,900 EUR a month, 120,000 EUR "
        "a year."
    )
    assert "with the same price" in net_explained(with_net(found))[1]


def test_bytes_that_stay_in_their_zone_have_no_price_there() -> None:
    found = net_of({"1": saving_between(aa=10**9)}, RATE, 500.0, zone_of)

    assert net_between_zones(found) == (
        "Net if only bytes between zones cost money (0 B of 1.00 GB saved): 0.00 EUR saved - 500.00 EUR for "
        "1 sidecar (one per client address) = -500.00 EUR a month, -6,000 EUR a year: the cost is higher "
        "than the saving."
    )


@pytest.mark.parametrize("addresses", [{}, {"1": saving_between(xx=10**9)}, {"1": saving_between(ab=-1)}])
def test_without_a_known_zone_there_is_no_sum_of_bytes_between_zones(
    addresses: dict[str, AddressSums],
) -> None:
    found = net_of(addresses, RATE, 500.0, zone_of)

    assert found["between_zones"] is None
    assert net_between_zones(found) == net_between_zones(None) == ""


@pytest.mark.parametrize(
    ("racks", "crossing"),
    [
        (["--broker-rack", "127.0.0.0/8=b"], True),
        (["--broker-rack", "127.0.0.0/8=a"], False),
        (["--broker-rack", "10.0.0.0/8=a"], None),
        ([], None),
    ],
)
def test_racks_give_the_sum_of_bytes_between_zones(racks: list[str], crossing: bool | None) -> None:
    asked = CAPTURE, *PRICES, *racks, *(["--client-rack", "127.0.0.0/8=a"] if racks else [])
    report = shown_as_json(*asked)
    found, whole = report["modelled"]["net"]["between_zones"], report["fetch"]["saved_bytes"]
    for text in shown(*asked).both:
        assert ("Net if only bytes between zones cost money" in text) == (crossing is not None)
        assert ("name the zones of clients with --client-rack" in text) == (not racks)
        assert ("name the zones of brokers with --broker-rack" in text) == (bool(racks) and crossing is None)
        assert "all clients at one address count as one" in text

    if crossing is None:
        assert found is None
    else:
        assert found["saved_bytes"]["other" if crossing else "same"] == whole
        assert found["saved_bytes"]["unknown"] == 0
        month = report["modelled"]["net"]["services"][0]["saved_per_month"]
        assert found["saved_per_month"] == (month if crossing else 0.0)


@pytest.mark.parametrize(
    ("broker", "action", "sentence"),
    [
        (
            "a",
            "sidecar cost",
            (
                "Leave it as it is: its sidecar does not pay for bytes known to be between zones, see Net. A "
                "gateway"
            ),
        ),
        (
            "b",
            "gateway",
            "Put it behind a gateway: its bytes saved between zones pay for it, see Net. A gateway",
        ),
    ],
)
def test_what_to_do_is_decided_by_bytes_between_zones(broker: str, action: str, sentence: str) -> None:
    racks = "--broker-rack", f"127.0.0.0/8={broker}", "--client-rack", "127.0.0.0/8=a"
    asked = CAPTURE, *PRICES[:-1], "0.50", *racks
    rows = shown_as_json(*asked)["decision"]["to_do"]
    assert {row["action"] for row in rows} & {"gateway", "sidecar cost"} == {action}
    for row in rows:
        if row["action"] == action:
            assert row["sentence"].startswith(sentence)
        assert "at your price." not in row["sentence"]
    between = "8.0" if broker == "b" else "0.00"
    for text in shown(*asked).both:
        assert (
            "8.0 of 9.2 USD a month at 0.02 USD per GB for every byte, or "
            f"{between} USD if you pay only between zones (estimated from 11.2 s)."
        ) in text
        first, second = (
            text.index(f"Net if {which} cost") for which in ("only bytes between zones", "each saved byte")
        )
        assert first < second


@pytest.mark.parametrize(("broker", "between"), [("a", "0.00"), ("b", "8.0")])
def test_without_a_cost_of_sidecars_zones_count_too(broker: str, between: str) -> None:
    racks = ["--broker-rack", f"127.0.0.0/8={broker}", "--client-rack", "127.0.0.0/8=a"]
    text = shown(CAPTURE, *PRICES[:4], *racks).text
    assert (
        f"at 0.02 USD per GB for every byte, or {between} USD if you pay only between zones (estimated"
        in text
    )
    assert "at your price." not in text
    assert "a month if you pay for every byte." in text
    found = shown_as_json(CAPTURE, *PRICES[:4], *racks)["modelled"]
    assert found["net"] is None
    saved = found["money"]["saved_per_month"]
    assert found["money"]["saved_between_zones_per_month"] == (saved if broker == "b" else 0.0)


def test_a_rack_in_clients_has_a_sum_beside_that_of_sessions() -> None:
    given = str(CAPTURES / "librdkafka-zones.pcap"), "--client-rack", "127.0.0.0/8=R2"
    found = shown_as_json(*given, *PRICES[:4])
    way, seconds = found["zones"]["client_rack"], found["time"]["captured_seconds"]
    assert way["saved_per_month"] == pytest.approx(way["moved_bytes"] / 1e9 * 0.02 / seconds * 30 * 86_400)
    sentence = "would move 25.7 kB into their zones (saves 0.23 USD a month, estimated from 5.7 s)"
    assert sentence in shown(*given, *PRICES[:4]).text
    assert shown_as_json(*given)["zones"]["client_rack"]["saved_per_month"] is None


def test_the_saving_is_shown_as_a_part_of_the_whole_price() -> None:
    found = shown_as_json(CAPTURE, *PRICES[:4])
    actual, money = found["fetch"]["actual"], found["modelled"]["money"]
    whole = actual["request_bytes"] + actual["response_bytes"]
    seconds = found["time"]["captured_seconds"]
    assert money["captured_per_month"] == pytest.approx(whole / 1e9 * 0.02 / seconds * 30 * 86_400)
    assert money["saved_per_month"] / money["captured_per_month"] == pytest.approx(
        found["fetch"]["saved_ratio"]
    )
    assert money["saved_between_zones_per_month"] is None


def test_a_rack_that_no_broker_has_is_said_at_the_net_sum() -> None:
    named = str(CAPTURES / "librdkafka-zones.pcap"), *PRICES, "--client-rack"
    said = (
        "No broker is in these racks of clients: us-east-1a. All bytes of these clients count as between "
        "zones. Give --client-rack the names that brokers have."
    )
    found = shown(*named, "127.0.0.0/8=us-east-1a")
    for text in found.both:
        assert f": the cost is higher than the saving. {said}" in text
    assert f"--client-rack: {said}\n" in found.err
    found = shown(*named, "127.0.0.0/8=R2")
    assert "No broker is in" not in found.text + found.err + found.html


@pytest.mark.parametrize(
    ("capture", "rack", "said", "missing"),
    [
        (
            CAPTURES / "librdkafka-zones.pcap",
            "10.9.0.0/16=R1",
            "10.9.0.0/16=R1: no client is in this network; the capture has clients at 127.0.0.1",
            "name the zones of clients, by the networks of this capture, with --client-rack (those of",
        ),
        (
            CAPTURE,
            "127.0.0.0/8=R1",
            "name the racks of brokers with --broker-rack",
            "name the zones of brokers with --broker-rack (those of clients are known): the report then has",
        ),
    ],
)
def test_a_client_rack_that_leads_to_no_zone_is_said(
    capture: Path | str, rack: str, said: str, missing: str
) -> None:
    found = shown(str(capture), *PRICES, "--client-rack", rack)
    assert "fetchgate replay measure: --client-rack" in found.err
    assert f"{said}\n" in found.err
    for text in (found.text, unescape(found.html)):
        assert missing in text
        assert "Net if only bytes between zones" not in text


def test_both_sides_of_a_gateway_have_no_sum_of_money() -> None:
    asked = str(CAPTURES / "librdkafka-gateway.pcap"), *PRICES
    for text in shown(*asked).both:
        assert "Both sides of a gateway were captured." in text
        assert "Put it behind a gateway" not in text
        assert "USD" not in text
    found = shown_as_json(*asked)
    assert {row["action"] for row in found["decision"]["to_do"]} == {"one side"}
    assert (found["modelled"]["net"], found["modelled"]["money"]) == (None, None)
    assert "USD a month" in shown(*asked, "--port", "20372").text


def at_one_time(capture: Path, to: Path, second: int = 1_700_000_000) -> str:
    """Write a capture again with all of its packets at the same time."""
    return rewritten(capture, to, lambda record: struct.pack("<II", second, 0) + record[8:])


def test_a_capture_of_no_time_says_why_there_is_no_net_sum(tmp_path: Path) -> None:
    capture = at_one_time(Path(CAPTURE), tmp_path / "one.pcap")
    found = shown(capture, *PRICES)

    assert found.text.startswith("Sessions would save 1.73 MB of 1.98 MB fetch bytes")
    for text in found.both:
        assert (
            "How sure: no time passed in the capture, so there is no saving a day, no money a month, and no "
            "net sum: capture for at least an hour."
        ) in text
        assert "30 days" not in text
    modelled = shown_as_json(capture, *PRICES)["modelled"]
    assert (modelled["net"], modelled["money"]["saved_per_month"]) == (None, None)
    assert modelled["money"]["saved"] > 0
    sentence = "no time passed in the capture, so there is no saving a day: capture for at least an hour."
    assert sentence in shown(capture).text


def test_a_saving_that_is_not_known_has_no_money(tmp_path: Path) -> None:
    """Most fetches were cut by the snap length."""
    capture = cut(Path(CAPTURE), tmp_path / "cut.pcap")
    found = shown(capture, *PRICES, code=3)
    for text in found.both:
        assert "The saving can't be computed" in unescape(text)
        assert "USD" not in text
    modelled = shown_as_json(capture, *PRICES, code=3)["modelled"]
    assert (modelled["money"], modelled["net"]) == (None, None)
    assert modelled["fetch_min_bytes"]["saved_per_month"] is None


def cut(capture: Path, to: Path) -> str:
    """Write a capture again with at most 116 bytes of each packet."""

    def shorter(record: bytearray) -> bytearray:
        packet = record[16 : 16 + 116]
        return record[:8] + struct.pack("<I", len(packet)) + record[12:16] + packet

    return rewritten(capture, to, shorter)


def test_a_capture_of_one_direction_has_no_net_sum(tmp_path: Path) -> None:
    def kept(record: bytearray) -> bytearray | bytes:
        return record if struct.unpack_from(">H", record, _PORTS + 2) == (33192,) else b""

    text = shown(rewritten(Path(CAPTURE), tmp_path / "to-broker.pcap", kept), *PRICES, code=3).text
    assert "fetches have no response; capture both directions." in text
    assert "Net" not in text


def test_a_capture_without_times_can_be_shown(tmp_path: Path) -> None:
    found = shown(at_one_time(Path(CAPTURE), tmp_path / "zero.pcap", 0), *PRICES)
    assert "no time passed in the capture" in found.text
    assert "1970-01-01" in found.html


def test_a_price_below_nothing_is_nothing() -> None:
    text = shown(CAPTURE, "--price-per-gb=-0.0", *PRICES[2:]).text
    assert "Net: 0.00 USD saved - 3.50 USD" in text
    assert "a month at 0 USD per GB" in text


@pytest.mark.parametrize(
    ("given", "currency"), [("[red]", "[red]"), (" EUR ", "EUR"), ("<b>x</b>", "<b>x</b>")]
)
def test_a_currency_is_shown_as_it_is(given: str, currency: str) -> None:
    found = shown(CAPTURE, "--price-per-gb", "0.02", "--currency", given, "--sidecar-cost", "3.50")
    assert f"Net: 8.0 {currency} saved - 3.50 {currency} for" in found.text
    assert f"Saved, cost and net, in {currency} (estimated from 11.2 s)" in found.text
    assert "<b>x</b>" not in found.html


def test_large_sums_fit_into_80_columns(capsys: pytest.CaptureFixture[str]) -> None:
    prices = ["--price-per-gb", "50000", "--currency", "VND", "--sidecar-cost", "87500"]
    assert cli.main(["measure", CAPTURE, *prices]) == 0
    text = capsys.readouterr().out
    assert re.search(r"\n +200 +200 +4,000,000,000 +17,500,000 +4,000,000,000 +48,000,000,000\n", text)
