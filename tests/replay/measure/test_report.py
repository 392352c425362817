"""The report does not depend on how rows were summed up before it. The values of its parts are right."""

import dataclasses
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import pytest

from replay.capture.files.counts import FileCounts
from replay.capture.kafka.exchange import ConnectionEnd
from replay.measure.digest import Digest
from replay.measure.groups import GROUPED, SUMMED, Group
from replay.measure.report import About
from replay.measure.rows import RowFilter
from replay.report.model import Filters, actual_bytes
from tests.examples import few
from tests.replay.report.sample import assert_adds_up
from tests.replay.tables import CAPTURES, NO_FILTERS, measured, rows_of, single, table
from tests.replay.tables import report_of as report

FETCH = {"api_key": 1, "api_version": 11}
ABOUT = About(
    version="1",
    policy="gateway",
    filters=NO_FILTERS,
    price_per_gb=2.0,
)


def summed(rows: Iterable[dict[str, Any]]) -> list[Group]:
    """Sum up rows in Python, in the same way as the query over the table."""
    groups: dict[tuple[Any, ...], list[Group]] = defaultdict(list)
    for row in single(rows):
        groups[tuple(row[name] for name in GROUPED)].append(row)
    return [
        dict(zip(GROUPED, key, strict=True))
        | {name: sum(one[name] for one in group) for name in ("count", *SUMMED)}
        | {"details": [detail for one in group for detail in one["details"]]}
        for key, group in groups.items()
    ]


@pytest.mark.parametrize(
    "choice",
    [
        pytest.param(RowFilter(), marks=pytest.mark.nightly),
        RowFilter(policy="always", clients=frozenset({"rdk"})),
    ],
)
def test_grouping_and_order_make_no_difference(choice: RowFilter) -> None:
    rows = rows_of(table(choice, *sorted(CAPTURES.glob("*.pcap"))))
    made = report(single(rows), ABOUT)

    assert made == report(reversed(summed(rows)), ABOUT)
    assert_adds_up(made)


def group(**more: Any) -> Group:
    return {
        **dict.fromkeys(GROUPED),
        **dict.fromkeys(SUMMED, 0),
        "client": "10.0.0.1:40000",
        "count": 1,
        "details": [],
        **more,
    }


def ended(**more: Any) -> Group:
    end = ConnectionEnd(connection="c", client="a:1", broker="b:2", **more)
    return group(row="connection", connection="c", details=[Digest().summary(end)])


def test_parts_of_a_file_are_one_file_and_its_problems_are_named() -> None:
    parts = [
        FileCounts(file="f", number=1, packets=2, file_bytes=10, unread={"MACsec": 1}, fragments=1),
        FileCounts(file="f", number=1, packets=3, file_bytes=20, unread={"MACsec": 2}, problems=["torn"]),
    ]
    parts[0].add_stretches([[5_000_000_000, 6_500_000_000]])
    parts[1].add_stretches([[4_000_000_000, 4_000_000_000]])
    made = report([group(row="file", details=parts)], ABOUT)

    assert (made["input"]["files"], made["input"]["packets"], made["input"]["bytes"]) == (1, 5, 30)
    assert made["input"]["problems"] == [{"file": "f", "problem": "torn"}]
    assert made["input"]["unread_packets"] == {"MACsec": 3, "IP fragments": 1}
    assert "4 of 5 packets are not read (MACsec 3, IP fragments 1)" in made["decision"]["next_step"]
    stretch = {"first": "1970-01-01T00:00:04.000000Z", "last": "1970-01-01T00:00:06.500000Z"}
    assert made["time"] == {**stretch, "captured_seconds": 2.5, "stretches": [stretch]}


def minutes(file: str, *pairs: tuple[float, float]) -> Group:
    """Return the counts of a file that was captured in these intervals, which are given in minutes."""
    counts = FileCounts(file=file, number=sum(file.encode()))
    for first, last in pairs:
        counts.add_stretches([[int(first * 60e9), int(last * 60e9)]])
    return group(row="file", details=[counts])


@pytest.mark.parametrize(
    ("files", "seconds", "stretches"),
    [
        ([minutes("a", (1, 2)), minutes("b", (35, 36))], 120, 2),  # a gap of 33 minutes between two files
        ([minutes("a", (1, 2), (35, 36))], 120, 2),  # the same as one file, joined by mergecap
        ([minutes("a", (1, 2)), minutes("b", (2.1, 3.1))], 126, 1),  # a ring: the next packet is in the next
        ([minutes("a", (1, 2)), minutes("b", (2.5, 3.5))], 120, 2),
        ([minutes("a", (1, 3)), minutes("b", (2, 4))], 180, 1),  # two hosts at the same time
        ([minutes("a", (1, 2), (6, 7))], 360, 1),  # a quiet time
    ],
)
def test_only_captured_time_counts(files: list[Group], seconds: float, stretches: int) -> None:
    made = report([*files, ended(), fetches(eligible=True, response_bytes=10**9, full=1)], ABOUT)

    assert made["time"]["captured_seconds"] == made["decision"]["captured_seconds"] == seconds
    assert len(made["time"]["stretches"]) == stretches
    assert made["decision"]["saved_bytes_per_day"] == round(10**9 / seconds * 86_400)
    assert made["modelled"]["money"] is not None
    assert made["modelled"]["money"]["saved_per_month"] == made["decision"]["money_per_month"]
    assert made["decision"]["money_per_month"] == pytest.approx(2.0 / seconds * 30 * 86_400)


def reading(
    name: str, first: float, last: float, saved: int, *, client: str, broker: str = "b:2"
) -> list[Group]:
    """Return a connection in these minutes, on which sessions save this many bytes."""
    ends = {"connection": name, "client": client, "broker": broker}
    end = ConnectionEnd(
        connection=name,
        client=client,
        broker=broker,
        first_time=int(first * 60e9),
        last_time=int(last * 60e9),
    )
    named = {"client_id": "id", "software": "", "eligible": True, "counted": True, **FETCH, **ends}
    return [
        group(row="exchange", response_bytes=saved, full=1, **named),
        group(row="connection", details=[Digest().summary(end)], **ends),
    ]


@pytest.mark.parametrize(
    ("seen", "captures", "day"),
    [
        (reading("y", 35, 36, 10, client="10.0.0.2:9"), 2, (1000 + 10) * 1440),
        (reading("y", 35, 36, 10, client="10.0.0.1:9", broker="c:2"), 0, 0),  # the same client again
        (reading("y", 2, 35, 10, client="10.0.0.2:9"), 0, 0),  # a connection in both
        (reading("y", 1, 2, 10, client="10.0.0.2:9"), 0, 0),  # no fetch in the second
        (reading("y", 35, 36, -10, client="10.0.0.2:9"), 2, (1000 - 10) * 1440),
    ],
)
def test_captures_of_different_hosts_are_added_up(seen: list[Group], captures: int, day: int) -> None:
    files = [minutes("a", (1, 2)), minutes("b", (35, 36))]
    made = report([*files, *reading("x", 1, 2, 1000, client="10.0.0.1:9"), *seen], ABOUT)
    found = made["decision"]["different_hosts"]

    if not captures:
        assert found is None
        return
    assert found is not None
    assert (found["captures"], found["saved_bytes_per_day"]) == (captures, day)
    assert not found["sidecars_priced"]
    assert found["money_per_month"] == pytest.approx(day * 30 * 2.0 / 1e9)
    whole = sum(map(actual_bytes, (row["fetch"] for row in made["connections"])))
    assert found["captured_bytes_per_day"] == whole * 1440
    assert found["captured_per_month"] == pytest.approx(whole * 1440 * 30 * 2.0 / 1e9)
    assert made["decision"]["saved_bytes_per_day"] == day // 2


@pytest.mark.parametrize(
    ("clients", "loopback"),
    [
        (["127.0.0.1:9", "[::1]:9", "127.1.2.3:9"], True),
        (["127.0.0.1:9", "10.0.0.1:9"], False),
        (["[::127]:9"], False),
        ([], False),
    ],
)
def test_fetches_are_all_on_loopback_or_not(clients: list[str], loopback: bool) -> None:
    groups = [one for at, client in enumerate(clients) for one in reading(str(at), 1, 2, 1000, client=client)]
    assert report([minutes("a", (1, 2)), *groups], ABOUT)["input"]["loopback"] == loopback


def test_a_loopback_address_is_that_of_any_host() -> None:
    files = [minutes("a", (1, 2)), minutes("b", (35, 36))]
    first = reading("x", 1, 2, 1000, client="127.0.0.1:9")
    for broker, added in (("b:2", False), ("c:2", True)):
        second = reading("y", 35, 36, 10, client="127.0.0.1:9", broker=broker)
        made = report([*files, *first, *second], dataclasses.replace(ABOUT, sidecar_cost=3.5))
        found = made["decision"]["different_hosts"]
        assert (found is not None) == added
        assert found is None or (found["shared_addresses"], found["sidecars_priced"]) == (["127.0.0.1"], True)
        # The saving of each host would be divided by the time of both captures.
        assert (made["modelled"]["net"] is None) == added
        assert ([row["money_per_month"] for row in made["decision"]["to_do"]] == [None]) == added


def test_a_port_that_a_file_does_not_have_was_not_captured_in_it() -> None:
    """Files of other hosts do not make a saving smaller. The port may be quiet in a file that has it."""
    with_it = FileCounts(file="a", packets=10, filtered=3, not_tcp=6)
    without = FileCounts(file="b", number=1, packets=10, filtered=4, not_tcp=6)
    with_it.add_stretches([[0, 60_000_000_000], [600_000_000_000, 660_000_000_000]])
    without.add_stretches([[3_600_000_000_000, 7_200_000_000_000]])
    files = [group(row="file", details=[with_it, without])]
    filters: Filters = {**ABOUT.filters, "ports": [9092]}

    assert report(files, dataclasses.replace(ABOUT, filters=filters))["time"]["captured_seconds"] == 120
    assert report(files, ABOUT)["time"]["captured_seconds"] == 120 + 3600


def test_both_policies_stand_side_by_side() -> None:
    own = {**ended()}
    (detail,) = own["details"]
    own["details"] = [dataclasses.replace(detail, saved_by_other=25)]
    taken = fetches(eligible=True, request_bytes=100, session_request_bytes=60)
    always = dataclasses.replace(ABOUT, policy="always")

    assert report([own, taken], ABOUT)["policies"] == {
        "gateway": {"predicted_bytes": 60, "saved_bytes": 40, "saved_ratio": 0.4},
        "always": {"predicted_bytes": 75, "saved_bytes": 25, "saved_ratio": 0.25},
    }
    assert report([own, taken], always)["policies"]["gateway"]["saved_bytes"] == 25


@pytest.mark.parametrize(
    "name",
    few(
        ("librdkafka-100p", "aiokafka-rebalance", "librdkafka-gateway", "many-clients-any"),
        "librdkafka-100p",
        "aiokafka-rebalance",
    ),
)
def test_the_other_policy_is_what_its_own_report_says(name: str) -> None:
    capture = CAPTURES / f"{name}.pcap"
    gateway, always = measured("gateway", capture), measured("always", capture)

    assert gateway["policies"] == always["policies"]
    assert gateway["policies"]["gateway"]["saved_bytes"] != gateway["policies"]["always"]["saved_bytes"]


def test_why_fetches_passed_is_told_by_client() -> None:
    made = report(
        [
            ended(),
            fetches(eligible=True, request_bytes=10, count=2),
            fetches(eligible=True, reason="resting", request_bytes=20, count=3),
            fetches(eligible=False, reason="one partition", response_bytes=30),
            {**fetches(eligible=False, response_bytes=40), "client_id": "other"},
        ],
        ABOUT,
    )

    assert [row["passed"] for row in made["by_client"]] == [
        {"one partition": {"exchanges": 1, "bytes": 30}, "resting": {"exchanges": 3, "bytes": 20}},
        {"not understood": {"exchanges": 1, "bytes": 40}},
    ]
    assert made["passed"] == {
        "not understood": {"exchanges": 1, "bytes": 40},
        "one partition": {"exchanges": 1, "bytes": 30},
        "resting": {"exchanges": 3, "bytes": 20},
    }


def test_what_could_not_be_read_is_told_by_reason() -> None:
    ends = [
        ended(
            client_bytes=600,
            broker_bytes=300,
            gap_bytes=130,
            cut_bytes=70,
            left_out_bytes=30,
            gaps=5,
            left_out_gaps=2,
            unframed_bytes=50,
            partial_bytes=10,
            headerless_bytes=9,
            token_bytes=7,
        ),
        ended(client_bytes=500, unframed_bytes=500, reason="TLS"),
    ]
    made = report(ends, ABOUT)
    readable = made["readable"]

    assert readable["by_reason"] == {
        "TLS": 500,
        "authentication (SASL)": 7,
        "cut by the snap length": 40,
        "frames that begin and do not end": 10,
        "frames without a header": 2,
        "no frame found after a gap": 50,
        "not in the capture": 60,
    }
    assert (readable["readable_bytes"], readable["unreadable_bytes"]) == (831, 669)
    assert readable["ratio"] == 831 / 1500
    assert report([], ABOUT)["readable"]["ratio"] == 1.0
    assert (readable["left_out_bytes"], made["input"]["gaps"]) == (30, 3)


def test_only_what_awaits_a_response_is_unpaired() -> None:
    groups = [group(row="request", answer_due=True, count=2), group(row="request", answer_due=False, count=9)]
    made = report([*groups, group(row="response", count=3), group(row="exchange", count=4)], ABOUT)

    assert [made["input"][name] for name in ("unpaired_requests", "unpaired_responses", "exchanges")] == [
        2,
        3,
        4,
    ]


def fetches(**more: Any) -> Group:
    named = {"client": "a:1", "broker": "b:2", "client_id": "id", "software": "", **FETCH}
    return group(row="exchange", connection="c", counted=True, **named, **more)


def test_a_client_has_the_time_of_its_own_connections() -> None:
    short = ended(first_time=1_000_000_000, last_time=3_500_000_000)
    idle = {**ended(first_time=1_000_000_000, last_time=900_000_000_000), "connection": "idle"}
    made = report([short, fetches(), {**fetches(), "api_version": 12}, idle], ABOUT)

    assert [(row["connections"], row["connection_seconds"]) for row in made["by_client"]] == [(1, 2.5)] * 2


def test_money_and_headers_are_estimated_from_what_was_counted() -> None:
    file = FileCounts(file="f")
    file.add_stretches([[1_000_000_000, 11_000_000_000]])
    taken = fetches(
        eligible=True,
        count=10,
        request_bytes=10**9,
        response_bytes=10**9,
        session_request_bytes=10**9,
        incremental=10,
    )
    made = report([group(row="file", details=[file]), ended(), taken], ABOUT)
    money = made["modelled"]["money"]

    assert money is not None
    assert (money["saved"], money["saved_per_month"]) == (2.0, 2.0 * 30 * 86_400 / 10)
    assert made["modelled"]["tcp_ip"]["bytes_actual"] == (20 + 2 * 10**9 // 1448) * 52
    assert made["modelled"]["tcp_ip"]["bytes_predicted"] == (20 + 10**9 // 1448) * 52
    assert report([], dataclasses.replace(ABOUT, price_per_gb=None))["modelled"]["money"] is None


def test_a_close_that_was_not_captured_is_no_request() -> None:
    closing = {**fetches(session_request_bytes=40, session_response_bytes=20, close_bytes=60, closes=1)}
    made = report([ended(), {**closing, "row": "closing"}], ABOUT)

    assert made["fetch"]["actual"]["requests"] == 0
    assert (made["fetch"]["sessions"]["close_bytes"], made["fetch"]["saved_bytes"]) == (60, -60)
    assert made["not_eligible"] == {}


@pytest.mark.parametrize(
    ("ends", "told"),
    [
        ([ended(client_bytes=9, reason="TLS"), ended(client_bytes=5, reason="not Kafka")], "--keylog FILE"),
        ([ended(client_bytes=9, reason="TLS, handshake not captured")], "before the clients connect"),
        ([ended(client_bytes=9, reason="not Kafka")], "--port N"),
        ([ended()], "Kafka was found, but no fetch"),
        ([], "there is no packet"),
    ],
)
def test_where_no_fetch_was_found_it_is_said_what_to_do_next(ends: list[Group], told: str) -> None:
    assert told in report(ends, ABOUT)["decision"]["next_step"]


def test_filters_that_leave_out_all_fetches_are_told() -> None:
    filters: Filters = {**ABOUT.filters, "clients": ["nobody"], "topics": ["nothing"]}
    told = report([ended()], dataclasses.replace(ABOUT, filters=filters))

    assert told["decision"]["next_step"].startswith("Next: leave out --client and --topic: Kafka was found")


def test_a_wrong_port_is_told() -> None:
    file = FileCounts(file="f", other_ports={33192: 9, 50001: 4})
    filters: Filters = {**ABOUT.filters, "ports": [9092]}
    told = report([group(row="file", details=[file])], dataclasses.replace(ABOUT, filters=filters))

    assert "no connection uses port 9092; most packets are on port 33192" in told["decision"]["next_step"]
