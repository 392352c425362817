"""Tests of the report in CSV format."""

import csv
import io

import pytest

from replay.report.csv import COLUMNS, FIGURES, NAMES, ZONE_COLUMNS, render
from replay.report.model import NetBetweenZones, Report, predicted_bytes
from tests.replay.report import hostile, sample


def rows_of(report: Report) -> list[dict[str, str]]:
    text = render(report)
    rows = csv.reader(io.StringIO(text, newline=""), strict=True)
    columns = (*COLUMNS, *ZONE_COLUMNS) if "zones" in report else COLUMNS
    assert tuple(next(rows)) == columns
    return [dict(zip(columns, row, strict=True)) for row in rows]


def test_columns_keep_their_names_and_order() -> None:
    assert render(sample.report()).splitlines()[0] == (
        "by,client_id,software,fetch_version,topic,broker,client,connection,connections,actual_requests,"
        "actual_responses,actual_request_bytes,actual_response_bytes,actual_record_bytes,"
        "actual_partitions_requested,actual_partitions_answered,eligible_exchanges,eligible_request_bytes,"
        "eligible_response_bytes,eligible_record_bytes,sessions_request_bytes,sessions_response_bytes,"
        "sessions_full,sessions_incremental,sessions_sessionless,sessions_added,sessions_altered,"
        "sessions_forgotten,sessions_partitions_requested,sessions_partitions_answered,sessions_close_bytes,"
        "sessions_repair_bytes,predicted_bytes,saved_bytes,saved_ratio,captured_seconds,saved_bytes_per_day,"
        "money_per_month,to_do,reason,passed_exchanges,passed_bytes,net_per_month,net_between_zones_per_month,"
        "advice_saves_bytes_per_day,advice_saves_money_per_month"
    )


def test_what_to_do_and_why_are_in_columns_of_their_own() -> None:
    rows = rows_of(sample.report())
    total, saved = rows[0], sample.report()["fetch"]["saved_bytes"]
    assert (total["captured_seconds"], total["saved_bytes_per_day"]) == ("3600.0", f"{saved * 24}")
    assert float(total["money_per_month"]) == pytest.approx(saved * 24 * 30 * 0.02e-9)
    assert total["reason"] == ""
    clients = {row["client_id"]: row for row in rows if row["by"] == "client"}
    assert clients["billing-enricher"]["to_do"].startswith("Put it behind a gateway: that saves 92.7 %, 9.75")
    assert clients["fraud-scorer"]["reason"] == "native session"
    connections = {row["client_id"]: row["reason"] for row in rows if row["by"] == "connection"}
    assert connections["audit-archiver"] == "one partition"
    assert connections["billing-enricher"] == ""
    passed = [
        (row["client_id"], row["reason"], row["passed_exchanges"], row["passed_bytes"])
        for row in rows
        if row["by"] == "passed"
    ]
    assert passed == [
        ("fraud-scorer", "native session", "48611", "44234750"),
        ("audit-archiver", "one partition", "13433", "6340730"),
    ]


def test_the_net_sums_are_in_the_total_row() -> None:
    report = sample.report()
    net = report["modelled"]["net"]
    assert net is not None
    total, *rows = rows_of(report)
    assert float(total["net_per_month"]) == net["services"][0]["net_per_month"]
    assert total["net_between_zones_per_month"] == ""  # no zone is known
    assert {row["net_per_month"] for row in rows} == {""}
    zoned: NetBetweenZones = {
        "saved_bytes": {"same": 0, "other": 1, "unknown": 0},
        "saved_per_month": 3.0,
        "net_per_month": -0.5,
        "net_per_year": -6.0,
        "paying": net["paying"],
    }
    report["modelled"]["net"] = {**net, "between_zones": zoned}
    assert rows_of(report)[0]["net_between_zones_per_month"] == "-0.5"
    report["modelled"]["net"] = None
    assert rows_of(report)[0]["net_per_month"] == ""


def test_every_kind_of_row_adds_up_to_the_total() -> None:
    rows = rows_of(sample.report())
    (total,) = (row for row in rows if row["by"] == "total")
    for kind in ("client", "topic", "broker", "connection"):
        these = [row for row in rows if row["by"] == kind]
        for column in FIGURES[:-1]:
            assert sum(int(row[column]) for row in these) == int(total[column]), (kind, column)
    assert len(rows) == 1 + 5 + 5 + 3 + 15 + 2
    assert int(total["predicted_bytes"]) == predicted_bytes(sample.report()["fetch"])
    assert float(total["saved_ratio"]) == sample.report()["fetch"]["saved_ratio"]


def test_a_row_says_what_it_is_of() -> None:
    rows = rows_of(sample.report())
    named = [{key: row[key] for key in NAMES if row[key]} for row in rows]
    assert named[0] == {"by": "total", "connections": "36"}
    assert named[1] == {
        "by": "client",
        "client_id": "billing-enricher",
        "software": "librdkafka 2.16.0",
        "fetch_version": "16",
        "connections": "3",
    }
    assert {"by": "topic", "topic": "payments.settled"} in named
    assert {"by": "topic"} in named  # the rest of each frame
    assert {"by": "broker", "broker": "[fd00:20::13]:9092", "connections": "12"} in named
    assert named[-15] == {
        "by": "connection",
        "client_id": "billing-enricher",
        "software": "librdkafka 2.16.0",
        "broker": "10.20.0.11:9092",
        "client": "10.20.1.1:40000",
        "connection": "10.20.1.1:40000 > 10.20.0.11:9092 #0",
    }


def test_lines_end_as_rfc_4180_has_them() -> None:
    text = render(sample.report())
    assert text.count("\r\n") == text.count("\n") == 32
    assert text.endswith("\r\n")


def test_peers_cannot_act_in_a_spreadsheet() -> None:
    report = hostile.report()
    render(report).encode()
    rows = rows_of(report)
    clients = [row["client_id"] for row in rows if row["by"] == "client"]
    assert clients[0] == hostile.NAMES[0]
    assert '\'=HYPERLINK("http://canary.invalid")' in clients
    assert '\'@SUM(1+1),"quoted"' in clients
    assert "'\uff1d1+1" in clients
    assert all(value.isprintable() for row in rows for value in row.values())
    assert not any(value[:1] in ("=", "+", "@") for row in rows for value in row.values())
    assert len(clients[-1]) == 32_000  # nothing is cut: programs read this


def test_a_report_without_fetches_has_its_total() -> None:
    (total,) = rows_of(sample.empty())
    assert total["actual_requests"] == total["saved_bytes"] == "0"


def test_zones_have_rows_and_columns_of_their_own() -> None:
    rows = rows_of({**sample.report(), "zones": sample.zones("az-1", "az-2")})
    zones = [{name: row[name] for name in row if row[name]} for row in rows if row["by"].startswith("zone")]

    figures = {
        "record_bytes_same_zone": "100000000",
        "record_bytes_other_zone": "200000000",
        "listing_bytes_same_zone": "1000000",
        "listing_bytes_other_zone": "2000000",
        "client_rack_bytes": "120000000",
        "rack_clients_bytes": "150000000",
    }
    assert {"by": "zones", **figures}.items() <= zones[0].items()
    assert [row.get("client_id") for row in zones if row["by"] == "zone client"] == ["az-1", "az-2"]
    assert [row.get("topic") for row in zones if row["by"] == "zone topic"] == ["az-1", "az-2", None]
    assert zones[-2:] == [
        {"by": "zone pair", "from_rack": "az-1", "to_rack": "az-2", "zone_bytes": "202040000"},
        {"by": "zone pair", "from_rack": "az-2", "zone_bytes": "5550"},
    ]
