"""The rows of clients in the dashboard, and their recent traffic."""

from dataclasses import replace

import pytest

from proxy.dashboard import tables
from proxy.dashboard.figures import sparkline
from proxy.dashboard.rates import Rates
from proxy.dashboard.rows import ASCENDING, IDLE, NO_FETCHES, SORTS, ClientFigures, rows
from proxy.dashboard.snapshot import ClientConnection, Snapshot
from tests.dashboard.scenes import seen


def client(client_id: str, **more: object) -> ClientConnection:
    nothing: dict[str, object] = {
        "key": f"{client_id} {more.get('address', '')}",
        "age": 10.0,
        "software": "",
        "address": "",
        "broker": "1",
        "version": -1,
        "partitions": 0,
        "epoch": 0,
        "incremental": 0.0,
        "left_out": 0,
        "saved": 0,
        "fetches": 0,
        "client_bytes": 0,
        "broker_bytes": 0,
        "reasons": {},
        "errors": {},
        "phase": "open",
        "held": 0,
        "last_event": "",
        "last_error": "",
        "late": 0.0,
        "zone": "",
        "records": 0,
        "records_other_zone": 0,
    }
    return ClientConnection(client_id=client_id, **nothing | more)  # type: ignore[arg-type] # a test's shorthand


def busy() -> Snapshot:
    snapshot = seen("busy")
    assert isinstance(snapshot, Snapshot)
    return snapshot


def at(time: float, *clients: ClientConnection, cpu: float = 0.0) -> Snapshot:
    return replace(busy(), time=time, clients=clients, cpu_seconds=cpu)


def shown(*clients: ClientConnection, rates: Rates | None = None, **more: object) -> list[ClientFigures]:
    given: dict[str, object] = {"wanted": "", "sort": "client", "descending": False, "expanded": frozenset()}
    return rows(clients, rates or Rates(), **given | more)  # type: ignore[arg-type] # a test's shorthand


def test_a_client_is_the_sum_of_its_connections() -> None:
    one = client(
        "a", address="x:1", fetches=10, client_bytes=1000, broker_bytes=100, saved=900, epoch=3, partitions=5
    )
    two = client(
        "a", address="x:2", fetches=30, client_bytes=3000, broker_bytes=600, saved=2400, incremental=1.0
    )
    (row,) = shown(one, two)
    assert (row.key, row.connections, row.single) == ("client a", (two, one), False)
    assert (row.rate.fetches, row.rate.client, row.rate.broker, row.rate.saved) == (4, 400, 70, 330)
    assert (row.saved, row.fetches, row.partitions, row.incremental) == (3300, 40, 5, 0.75)


def test_its_connections_have_rows_of_their_own_where_it_is_expanded() -> None:
    clients = client("a", address="x:1"), client("a", address="x:2", client_bytes=5), client("b")
    found = shown(*clients, expanded=frozenset({"client a"}))
    assert [(row.key, row.single) for row in found] == [
        ("client a", False),
        ("a x:1", True),
        ("a x:2", True),
        ("client b", False),
    ]
    heavy = shown(*clients, expanded=frozenset({"client a"}), sort="bytes/s", descending=True)
    assert [row.key for row in heavy] == ["client a", "a x:2", "a x:1", "client b"]


@pytest.mark.parametrize("sort", SORTS)
def test_every_column_sorts_what_was_recorded(sort: str) -> None:
    descending = sort not in ASCENDING
    found = shown(*busy().clients, sort=sort, descending=descending)
    values = [SORTS[sort](row) for row in found]
    assert values == sorted(values, reverse=descending)
    assert len(values) == 4


@pytest.mark.parametrize("wanted", ["ORD", "librd", "10.1", "7"])
def test_the_filter_looks_at_id_software_address_and_broker(wanted: str) -> None:
    one = client("orders", software="librdkafka 2.16", address="10.1.2.3:40000", broker="7")
    assert [row.name for row in shown(one, client("x"), wanted=wanted)] == ["orders"]
    assert len(shown(one, client("x"))) == 2
    assert shown(one, wanted="no such") == []


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({}, NO_FETCHES),
        ({"fetches": 5, "client_bytes": 100, "broker_bytes": 10, "reasons": {"no session yet": 1}}, ""),
        (
            {"fetches": 5, "client_bytes": 100, "broker_bytes": 100, "reasons": {"native session": 5}},
            "native session",
        ),
        ({"fetches": 5, "reasons": {"one partition": 2, "no slot left": 3}}, "no slot"),
        ({"fetches": 5, "reasons": {"something new": 2}}, "something new"),
        ({"late": 1.5}, "waits for broker 1"),
        ({"late": 1.5, "broker": "bootstrap"}, "waits for bootstrap"),
        ({"late": 0.5, "fetches": 5, "client_bytes": 100, "broker_bytes": 10}, ""),
    ],
)
def test_why_nothing_is_saved(more: dict[str, object], why: str) -> None:
    (row,) = shown(client("a", **more))
    assert row.why == why


def test_rates_are_those_of_the_last_ten_seconds() -> None:
    rates = Rates()
    for second in range(31):
        moved = 100 * second if second <= 20 else 2000 + 500 * (second - 20)
        rates.add(at(second, client("a", client_bytes=moved, fetches=second, saved=moved), cpu=second / 2))
    now = client("a", client_bytes=7000, fetches=30, saved=7000)
    assert (rates.of(now).client, rates.of(now).fetches) == (500, 1)
    assert rates.saved([now]) == (100.0,) * 20 + (500.0,) * 10
    assert rates.cpu() == 0.5


def test_a_broker_s_bars_are_what_was_saved_with_it_from_each_snapshot_to_the_next() -> None:
    rates, snapshot = Rates(), busy()
    for second, saved in enumerate((0, 100, 100, 900)):
        brokers = tuple(replace(one, saved=saved if one.name == "2" else 0) for one in snapshot.brokers)
        rates.add(replace(snapshot, time=float(second), brokers=brokers))
    assert rates.saved_by_broker("2") == (100.0, 0.0, 800.0)
    assert rates.saved_by_broker("9") == ()
    columns = tables.broker_columns(200, brokers, bars=rates.bars)
    two = [one for one in brokers if one.name == "2"]
    (line,) = tables.brokers(two, columns, "", rates, plain=True)
    assert line.plain.rstrip().endswith(sparkline((100.0, 0.0, 800.0), 24, plain=True).rstrip())


def test_a_connection_that_stands_still_is_idle_whatever_it_did_before() -> None:
    rates, one = Rates(), client("a", fetches=5, reasons={"one partition": 5})
    assert shown(one, rates=rates)[0].why == "one partition"
    rates.add(at(1, one))
    rates.add(at(2, one))
    assert shown(one, rates=rates)[0].why == IDLE
    more = replace(one, fetches=6, reasons={"one partition": 5, "resting": 1})
    rates.add(at(3, more))
    assert shown(more, rates=rates)[0].why == "resting"


def test_a_new_connection_or_another_gateway_has_no_past() -> None:
    rates = Rates()
    rates.add(at(5, client("a", client_bytes=10)))
    rates.add(at(7, client("b", client_bytes=50)))
    assert rates.of(client("b", client_bytes=50)).client == 5, "since it was accepted"
    rates.add(at(1, client("a", client_bytes=20, age=2.0)))
    assert rates.of(client("a", client_bytes=20, age=2.0)).client == 10
    assert rates.cpu() is None


def test_records_from_other_zones_are_a_rate_and_a_share() -> None:
    rates = Rates()
    near, far = client("a", address="x:1", zone="same"), client("a", address="x:2", zone="other")
    rates.add(at(0, near, far))
    near, far = replace(near, records=1000), replace(far, records=3000, records_other_zone=3000)
    rates.add(at(10, near, far))
    (row,) = shown(near, far, rates=rates)
    assert (row.rate.records, row.rate.other_zone) == (400, 300)
    columns = tables.client_columns(80, bars=False, errors=False, zones=True)
    (line,) = tables.clients([row], columns, "", rates, 80, plain=True)
    assert " 300 B 75 % " in line.plain


@pytest.mark.parametrize("width", range(80, 241, 8))
def test_the_column_of_other_zones_is_there_only_if_the_gateway_has_a_rack(width: int) -> None:
    assert "other zone" not in tables.client_columns(width, bars=True, errors=True)
    assert tables.client_columns(width, bars=True, errors=True, zones=True)["other zone"] == 13
