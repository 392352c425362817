"""Makes a realistic report whose columns add up. Also checks the sums that hold for every report."""

from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import cast

from replay.measure.net import AddressSums, net
from replay.measure.report import About
from replay.report.decision import DailyRate, decide, why
from replay.report.model import (
    PARTS,
    Bucket,
    ClientRow,
    ConnectionRow,
    FetchReport,
    FloorsReport,
    Passed,
    Report,
    Shares,
    TopicRow,
    actual_bytes,
    predicted_bytes,
)
from replay.report.zones_model import ByZone, ZonedClient, ZonesReport
from tests.replay.tables import NO_FILTERS, report_of

BY_FRAME = frozenset(
    {
        "requests",
        "responses",
        "exchanges",
        "full",
        "incremental",
        "sessionless",
        "added",
        "altered",
        "forgotten",
        "close_bytes",
        "repair_bytes",
    }
)
"""The fields that a topic's row does not have, because they belong to whole frames."""

RATE = DailyRate(seconds=3600.0, price_per_gb=0.02, currency="USD")
BEGIN = datetime(2026, 11, 20, 22, 30, tzinfo=UTC)
CLIENTS = (
    # client id, software, fetch version, connections, fetches, partitions, has sessions already
    ("billing-enricher", "librdkafka 2.16.0", 16, 3, 61_200, 100, False),
    ("search-indexer", "aiokafka 0.12.0", 11, 3, 30_010, 48, False),
    ("fraud-scorer", "apache-kafka-java 4.3.0", 18, 3, 44_870, 100, True),
    ("", "", 4, 2, 1_204, 12, False),
    ("audit-archiver", "sarama 1.61.1", 11, 1, 12_400, 1, False),
)
REASONS = {"fraud-scorer": "native session", "audit-archiver": "one partition"}
BROKERS = ("10.20.0.11:9092", "10.20.0.12:9092", "[fd00:20::13]:9092")
TOPICS = {"events": 70, "orders": 20, "payments.settled": 8, "AAAAAAAAAAAAAAAAAAAAAg": 1}
"""The topics, each with its share of the bytes. The last key is a topic id whose name is unknown."""


def _passed(fetch: FetchReport, reason: str) -> dict[str, Passed]:
    """Return the fetches of a row that cannot use a session, by the reason. All have the same reason."""
    count = figure(fetch, "sessions", "sessionless") or (
        0 if fetch["eligible"]["exchanges"] else figure(fetch, "actual", "requests")
    )
    return {reason: {"exchanges": count, "bytes": actual_bytes(fetch)}} if count else {}


def report() -> Report:
    """Make a report of one hour. It has five clients at three brokers."""
    cells = {(client, broker): _cell(client, broker) for client in CLIENTS for broker in BROKERS}
    total = added(cells.values())
    clients = {client: added(cells[client, broker] for broker in BROKERS) for client in CLIENTS}
    by_client: list[ClientRow] = [
        {
            "client_id": client[0],
            "software": client[1],
            "fetch_version": client[2],
            "connections": client[3],
            "connection_seconds": client[3] * 3600.0,
            "fetch": fetch,
            "passed": _passed(fetch, REASONS.get(client[0], "")) if client[0] in REASONS else {},
        }
        for client, fetch in clients.items()
    ]
    passed = {reason: found for row in by_client for reason, found in row["passed"].items()}
    begin, end = BEGIN.isoformat(), (BEGIN + timedelta(hours=1)).isoformat()
    return {
        "version": "0.2.0",
        "policy": "gateway",
        "filters": {"ports": [9092], "hosts": [], "clients": [], "topics": []},
        "decision": decide(total, why(total, passed), by_client, RATE),
        "policies": {
            "gateway": {
                "predicted_bytes": predicted_bytes(total),
                "saved_bytes": total["saved_bytes"],
                "saved_ratio": total["saved_ratio"],
            },
            "always": {
                "predicted_bytes": predicted_bytes(total) + 50_000,
                "saved_bytes": total["saved_bytes"] - 50_000,
                "saved_ratio": (total["saved_bytes"] - 50_000) / actual_bytes(total),
            },
        },
        "time": {
            "first": begin,
            "last": end,
            "captured_seconds": 3600.0,
            "stretches": [{"first": begin, "last": end}],
        },
        "input": {
            "files": 12,
            "bytes": 1_234_567_890,
            "packets": 2_345_678,
            "connections": 36,
            "copied_connections": 0,
            "exchanges": 154_321,
            "gaps": 3,
            "unpaired_requests": 9,
            "unpaired_responses": 1,
            "decrypted_connections": 0,
            "encrypted_connections": {},
            "unread_packets": {},
            "clocks_apart_seconds": 0.0,
            "loopback": False,
            "problems": [
                {
                    "file": "captures/node-7.pcap03",
                    "problem": "the last record is cut after 1,204 of 1,514 bytes",
                },
                {"file": "", "problem": "10.20.0.12:9092: 3 gaps, 48,112 bytes that the capture lost"},
            ],
        },
        "fetch": total,
        "both_sides": [],
        "by_client": by_client,
        "by_topic": _topics(total),
        "by_broker": [
            {
                "broker": broker,
                "connections": 12,
                "fetch": added(cells[c, broker] for c in CLIENTS),
                "passed": passed,
            }
            for broker in BROKERS
        ],
        "connections": [_connection(client, broker, fetch) for (client, broker), fetch in cells.items()],
        "over_time": _over_time(total),
        "where": {"actual": _shares(total, predicted=False), "predicted": _shares(total, predicted=True)},
        "readable": {
            "readable_bytes": 987_654_321,
            "unreadable_bytes": 2_048_112,
            "left_out_bytes": 0,
            "ratio": 987_654_321 / (987_654_321 + 2_048_112),
            "by_reason": {"TLS": 1_900_000, "lost by the capture": 48_112, "cut by the snap length": 100_000},
        },
        "not_eligible": {
            "native session": {
                "exchanges": 44_870,
                "bytes": actual_bytes(clients[CLIENTS[2]]),
            },
            "unpaired": {"exchanges": 9, "bytes": 26_631},
        },
        "passed": passed,
        "slots": [
            {
                "broker": broker,
                "sessions_at_once": 9 - place,
                "requested_at_once": 12,
                "slots": 1000,
                "evictions": 0,
                "refused": 0,
                "over_time": [
                    {"time": begin, "needed": 8},
                    {"time": (BEGIN + timedelta(minutes=30)).isoformat(), "needed": 12},
                ],
            }
            for place, broker in enumerate(BROKERS)
        ],
        "limits": {
            "max_fetch_bytes": 0,
            "responses": 154_000,
            "largest_record_bytes": 52_433_000,
            "over_limit": 2,
            "over_limit_bytes": 8_400,
            "starved": 131,
            "starved_seconds": 246.0,
            "by_client": [
                {
                    "client_id": client,
                    "software": software,
                    "fetch_version": version,
                    "max_bytes": 52_428_800,
                    "responses": 77_000,
                    "largest_record_bytes": 52_433_000 if starved else 200_000,
                    "over_limit": 2 if starved else 0,
                    "over_limit_bytes": 8_400 if starved else 0,
                    "starved": starved,
                    "starved_seconds": 246.0 if starved else 0.0,
                }
                for client, software, version, starved in (
                    ("billing-enricher", "librdkafka 2.16.0", 16, 131),
                    ("search-indexer", "aiokafka 0.12.0", 11, 0),
                )
            ],
            "longest": [
                {
                    "client_id": "billing-enricher",
                    "broker": BROKERS[0],
                    "topic": "events",
                    "partition": 17,
                    "since": BEGIN.isoformat(),
                    "seconds": 185.0,
                    "responses": 1_204,
                    "behind": 48_112,
                }
            ],
        },
        "modelled": {
            "tcp_ip": {
                "bytes_actual": 61_204_112,
                "bytes_predicted": 21_204_112,
                "how": "66 bytes for each 1,448 bytes of a frame and one acknowledgement for two segments",
            },
            "fetch_min_bytes": {"saved_bytes": 420_000_000, "saved_per_month": 6.05},
            "money": {
                "price_per_gb": 0.02,
                "currency": "USD",
                "saved": actual_bytes(total) * 0.02e-9,
                "saved_per_month": actual_bytes(total) * 0.02e-9 * 720,
                "captured_per_month": actual_bytes(total) * 0.02e-9 * 720,
                "saved_between_zones_per_month": None,
                "how": "saved fetch bytes times the price given with --price-per-gb",
            },
            "net": net(
                {
                    "10.20.1.7": AddressSums(
                        connections=9,
                        requests=180_000,
                        partitions=300,
                        partitions_requested=18_000_000,
                        record_bytes=36_000_000,
                        saved_bytes=total["saved_bytes"],
                    )
                },
                RATE,
                3.5,
            ),
        },
    }


def zones(*names: str) -> ZonesReport:
    """Make a report on zones.

    Args:
        names: names of clients and topics. The zones have these names, too.
    """
    first, *_, last = names

    def by_zone(same: int, other: int, unknown: int = 0) -> ByZone:
        return {"same": same, "other": other, "unknown": unknown}

    produce, other = by_zone(0, 40_000), by_zone(1_000, 2_000, 500)
    client: list[ZonedClient] = [
        {
            "client_id": name,
            "software": "librdkafka 2.16.0",
            "record_bytes": by_zone(100_000_000, 200_000_000, 5_000),
            "listing_bytes": by_zone(1_000_000, 2_000_000, 50),
            "produce_bytes": produce,
            "other_bytes": other,
            "client_rack_bytes": 120_000_000,
            "rack_clients_bytes": 150_000_000,
        }
        for name in names
    ]
    topics: list[str | None] = [*names, None]
    return {
        "brokers": [
            {"broker": BROKERS[0], "node_id": 1, "rack": first},
            {"broker": BROKERS[2], "node_id": None, "rack": None},
        ],
        "clients": [{"rack": None, "connections": 2}, {"rack": last, "connections": 34}],
        "record_bytes": by_zone(100_000_000, 200_000_000, 5_000),
        "listing_bytes": by_zone(1_000_000, 2_000_000, 50),
        "produce_bytes": produce,
        "other_bytes": other,
        "by_client": client,
        "by_topic": [
            {
                "topic": topic,
                "record_bytes": by_zone(100_000_000, 200_000_000),
                "listing_bytes": by_zone(1_000_000, 2_000_000),
                "client_rack_bytes": 120_000_000,
                "rack_clients_bytes": 150_000_000,
            }
            for topic in topics
        ],
        "pairs": [
            {"from": first, "to": last, "bytes": 202_040_000},
            {"from": last, "to": None, "bytes": 5_550},
        ],
        "client_rack": {
            "moved_bytes": 120_000_000,
            "saved_per_month": 1.728,
            "stays": {"broker in the zone": 100_000_000, "client unknown": 80_005_000, "produce": 40_000},
        },
        "rack_clients": {
            "moved_bytes": 150_000_000,
            "saved_per_month": 2.16,
            "stays": {"broker in the zone": 100_000_000, "below v10": 50_005_000, "produce": 40_000},
        },
        "leaders": [
            {
                "topic": name,
                "leader": 1,
                "rack": first,
                "records_per_second": 12.25,
                "leader_records_per_second": 1_012.5,
                "latency": {
                    "records_per_second": 1_000,
                    "leader_p50_ms": 11,
                    "leader_p99_ms": 61,
                    "replica_p50_ms": 20,
                    "replica_p99_ms": 92,
                },
            }
            for name in names
        ],
        "money": {
            "price_per_gb": 0.01,
            "currency": "USD",
            "to_clients": {"bytes": 202_000_000, "cost": 0.02},
            "to_brokers": {"bytes": 42_000, "cost": 0.000_42},
            "cost": 0.020_42,
            "cost_both_ends": 0.040_84,
            "client_rack_saves": 0.012,
            "rack_clients_saves": 0.015,
            "captured_seconds": 3600.0,
            "cost_per_month": 14.70,
            "how": "bytes between zones times the price",
        },
    }


def empty() -> Report:
    """Make the report of a capture without a fetch."""
    made = report_of([], About(version="0.2.0", policy="gateway", filters=NO_FILTERS))
    return {
        **made,
        "decision": {**made["decision"], "next_step": "Next: capture again."},
        "input": {**made["input"], "files": 1, "bytes": 24},
    }


def floors() -> FloorsReport:
    """Make what floors of fetches would save, for two clients."""
    return {
        "fetch_min_bytes": 65_536,
        "fetch_max_wait_seconds": 1.0,
        "requests": 149_684,
        "fewer_requests": 116_030,
        "saved_bytes": 9_840_000,
        "later_seconds": 0.412,
        "later_at_most_seconds": 1.0,
        "by_client": [
            {
                "client_id": client,
                "software": software,
                "fetch_version": version,
                "requests": requests,
                "fewer_requests": fewer,
                "saved_bytes": saved,
                "later_seconds": later,
                "later_at_most_seconds": 1.0,
            }
            for client, software, version, requests, fewer, saved, later in (
                ("billing-enricher", "librdkafka 2.16.0", 16, 61_200, 50_400, 6_140_000, 0.35),
                ("search-indexer", "aiokafka 0.12.0", 11, 30_010, 19_210, 3_700_000, 0.5),
            )
        ],
        "how": "it was made up",
    }


def combined(value: Callable[[str, str], int]) -> FetchReport:
    """Make a FetchReport. Its savings are computed from its figures.

    Args:
        value: returns a figure by its group and its field.
    """
    groups = {
        group: {field: value(group, field) for field in fields.__annotations__}
        for group, fields in PARTS.items()
    }
    eligible, sessions = (groups[name] for name in ("eligible", "sessions"))
    saved = sum(eligible[name] - sessions[name] for name in ("request_bytes", "response_bytes"))
    whole = groups["actual"]["request_bytes"] + groups["actual"]["response_bytes"]
    return cast(
        "FetchReport", {**groups, "saved_bytes": saved, "saved_ratio": saved / whole if whole else 0.0}
    )


def figure(fetch: FetchReport, group: str, field: str) -> int:
    """Return one figure of a FetchReport, by the names of its group and field."""
    return int(cast("dict[str, dict[str, int]]", fetch)[group][field])


def added(fetches: Iterable[FetchReport]) -> FetchReport:
    """Return the sum of rows, field by field."""
    rows = list(fetches)
    return combined(lambda group, field: sum(figure(row, group, field) for row in rows))


def assert_adds_up(report: Report) -> None:
    """Check the sums that hold by definition for any report without a filter by topic."""
    whole = report["fetch"]
    if report["by_client"]:
        assert added(row["fetch"] for row in report["by_client"]) == whole
        assert added(row["fetch"] for row in report["by_broker"]) == whole
        assert added(row["fetch"] for row in report["by_topic"]) == whole
    for topic in report["by_topic"]:
        if topic["topic"] is not None:
            assert not any(figure(topic["fetch"], *name) for name in _names() if name[1] in BY_FRAME)
    assert sum(cast("dict[str, int]", report["where"]["actual"]).values()) == actual_bytes(whole)
    assert sum(cast("dict[str, int]", report["where"]["predicted"]).values()) == predicted_bytes(whole)
    assert sum(bucket["actual_bytes"] for bucket in report["over_time"]) == actual_bytes(whole)
    assert sum(bucket["predicted_bytes"] for bucket in report["over_time"]) == predicted_bytes(whole)
    assert sum(report["readable"]["by_reason"].values()) == report["readable"]["unreadable_bytes"]
    assert len(report["over_time"]) <= 120
    times = [datetime.fromisoformat(bucket["time"]) for bucket in report["over_time"]]
    assert times == sorted(set(times))


def _names() -> list[tuple[str, str]]:
    return [(group, field) for group, fields in PARTS.items() for field in fields.__annotations__]


def _cell(client: tuple[str, str, int, int, int, int, bool], broker: str) -> FetchReport:
    """Return the figures for the fetches of one client at one broker."""
    _, _, version, _, fetches, partitions, native = client
    count = fetches // (2 + BROKERS.index(broker))
    took = 0 if native else count
    request = 90 + partitions * (4 if native else 28)
    response = 60 + partitions * (1 if native else 34) + 260
    pays = partitions > 1
    figures = {
        "actual": {
            "requests": count + 1,
            "responses": count,
            "request_bytes": (count + 1) * request,
            "response_bytes": count * response,
            "record_bytes": count * 200,
            "partitions_requested": (count + 1) * (1 if native else partitions),
            "partitions_answered": count * (1 if native else partitions),
        },
        "eligible": {
            "exchanges": took,
            "request_bytes": took * request,
            "response_bytes": took * response,
            "record_bytes": took * 200,
        },
        "sessions": {
            "request_bytes": took * (110 if pays else request) + (130 if took and pays else 0),
            "response_bytes": took * (370 if pays else response) + (74 if took and pays else 0),
            "full": 1 if took and pays else 0,
            "incremental": took - 1 if took and pays else 0,
            "sessionless": 0 if pays else took,
            "added": version if took and pays else 0,
            "altered": took if pays else 0,
            "forgotten": 2 if took and pays else 0,
            "partitions_requested": took + partitions if took else 0,
            "partitions_answered": took + partitions if took else 0,
            "close_bytes": 130 if took and pays else 0,
            "repair_bytes": 0,
        },
    }
    return combined(lambda group, field: figures[group][field])


def _topics(total: FetchReport) -> list[TopicRow]:
    """Divide a FetchReport among the topics. The last row has the figures that belong to no topic."""
    rows: list[TopicRow] = [
        {"topic": name, "fetch": combined(partial(_part, total, part))} for name, part in TOPICS.items()
    ]
    rest = combined(
        lambda group, field: (
            figure(total, group, field) - sum(figure(row["fetch"], group, field) for row in rows)
        )
    )
    return [*rows, {"topic": None, "fetch": rest}]


def _part(total: FetchReport, part: int, group: str, field: str) -> int:
    return 0 if field in BY_FRAME else figure(total, group, field) * part // 100


def _connection(
    client: tuple[str, str, int, int, int, int, bool], broker: str, fetch: FetchReport
) -> ConnectionRow:
    address = f"10.20.1.{CLIENTS.index(client) + 1}:{40_000 + BROKERS.index(broker)}"
    return {
        "connection": f"{address} > {broker} #0",
        "client": address,
        "broker": broker,
        "client_id": client[0],
        "software": client[1],
        "fetch": fetch,
        "passed": _passed(fetch, REASONS[client[0]]) if client[0] in REASONS else {},
    }


def _over_time(total: FetchReport) -> list[Bucket]:
    """Divide the bytes over an hour. The middle has more bytes, and there is a pause of half a minute."""
    weights = {place: 60 - abs(60 - place) + place % 7 for place in range(120) if place != 100}
    whole = sum(weights.values())
    shares = {
        place: (actual_bytes(total) * weight // whole, predicted_bytes(total) * weight // whole)
        for place, weight in weights.items()
    }
    left = [count(total) - sum(share[way] for share in shares.values()) for way, count in enumerate(_WAYS)]
    shares[60] = (shares[60][0] + left[0], shares[60][1] + left[1])
    return [
        {
            "time": (BEGIN + timedelta(seconds=30 * place)).isoformat(),
            "seconds": 30.0,
            "actual_bytes": before,
            "predicted_bytes": after,
        }
        for place, (before, after) in shares.items()
    ]


_WAYS = (actual_bytes, predicted_bytes)


def _shares(total: FetchReport, *, predicted: bool) -> Shares:
    whole = predicted_bytes(total) if predicted else actual_bytes(total)
    records = total["actual"]["record_bytes"]
    listing = (whole - records) * (8 if predicted else 45) // 100
    empty_entries = (whole - records) * (3 if predicted else 44) // 100
    entry = (whole - records) * 5 // 100
    return {
        "listing_bytes": listing,
        "empty_entry_bytes": empty_entries,
        "entry_bytes": entry,
        "record_bytes": records,
        "other_bytes": whole - records - listing - empty_entries - entry,
    }
