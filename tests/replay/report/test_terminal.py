"""The report on a terminal has the right figures and warnings.

Hostile names have no effect on the terminal.
"""

import io
from collections.abc import Callable
from html import unescape
from typing import Any, cast

import pytest
from rich.console import Console

from replay.report import html, terminal
from replay.report.model import BothSides, Decision, DifferentHosts, FloorsReport, Input, Report
from replay.report.wording import POLICY
from tests.replay.report import hostile, sample

HOSTS: DifferentHosts = {
    "captures": 2,
    "captured_bytes_per_day": 22_000_000_000,
    "saved_bytes_per_day": 20_400_000_000,
    "captured_per_month": 13.2,
    "money_per_month": 12.24,
    "shared_addresses": [],
    "sidecars_priced": True,
}


def printed(report: Report, **console: object) -> str:
    out = io.StringIO()
    Console(file=out, **{"width": 80, **console}).print(terminal.render(report))  # type: ignore[arg-type] # any of its options
    return out.getvalue()


def said(**parts: Any) -> str:
    """Return the text of the sample report, with other values of some parts, without its line ends."""
    return " ".join(printed(cast("Report", {**sample.report(), **parts})).split())


def test_the_whole_of_it_at_80_columns() -> None:
    text = printed(sample.report())
    assert max(map(len, text.splitlines())) <= 80
    flat = " ".join(text.split())
    assert flat.startswith(
        "Sessions would save 12.0 GB a day, 83.6 % of the fetch bytes: 7.23 of 8.65 USD a month at 0.02 USD "
        "per GB (estimated from 1 h). "
        'Conclusion: by what is left after the cost of sidecars, a gateway wins for "billing-enricher", '
        '"search-indexer" and (none). With fetch.min.bytes, records come up to 0.5 s later, with a gateway '
        "less than 1 ms. "
        "Net: 7.23 USD saved - 3.50 USD for 1 sidecar (one per client address) = 3.73 USD a month, 44.71 USD "
        "a year. Without fetchgate: fetch.min.bytes in the clients would save 70.0 %, 6.05 USD a month (at "
        "most 2 fetches a second on a connection). "
        "How sure: estimated from 1 h captured (3,600 seconds). "
        "Not all of the input could be read: captures/node-7.pcap03: the last record is cut after 1,204 of "
        "1,514 bytes (1 more problem below). "
        "1 h from 2026-11-20 22:30:00 UTC: 36 Kafka connections in 2,345,678 packets,"
    )
    for words in (
        "What to do client id software fetch what to do billing-enricher librdkafka 2.16.0 v16 Put it behind",
        "Only port 9092.",
        "502 MB of 600 MB fetch bytes saved: 83.6 %",
        "Listed partitions in requests of consumers 256 MB 5.30 MB",
        "billing-enricher librdkafka 2.16.0 v16 66,303 438 MB 31.8 MB 92.7 %",
        "(rest of each frame)",
        "all 162,170 600 MB 98.6 MB 83.6 %",
        "Through sessions: 9 full, 100,105 incremental and 13,433 sessionless fetches",
        "fraud-scorer apache-kafka-java 4.3.0 v18 native session 48,611 44.2 MB",
        "44.2 MB 44.2 MB 0.0 % 4.3.0 native session",
        "gateway (this report) 98.6 MB 502 MB 83.6 % always 98.7 MB 502 MB 83.6 %",
        "[fd00:20::13]:9092 7 12 1,000 0 0",
        "2 responses of 154,000 had more records than their limit (max_bytes), by 8.40 kB in all;",
        "the largest had 52.4 MB. Partitions starved 131 times, for 4 min 6 s in all",
        "billing-enricher v16 52.4 MB 52.4 MB 2 8.40 kB 131",
        "partition client id time responses offsets behind events-17 billing-enricher 3 min 5 s 1,204 48,112",
        "Readable: 99.8 % of 990 MB in the streams; not: TLS 1.90 MB,",
        "captures/node-7.pcap03: the last record is cut",
        "Modelled, not counted: TCP/IP headers 61.2 MB captured, 21.2 MB predicted",
        "Modelled, not counted: money saved 0.01 USD in 1 h, or 8.65 USD in 30 days",
        "Saved, cost and net, in USD (estimated from 1 h) services sidecars saved/month cost/month net/month",
        "1 1 7.23 3.50 3.73 44.71 20 20 144.51 70.00 74.51 894.12",
        "the busiest one needs 51.1 MB of memory, without responses in flight, and 10.9 millicores",
        "its 9 connections with 300 partitions, 50.0 fetches a second, 5,000.0 listed partitions a second",
        POLICY["gateway"],
    ):
        assert words in flat


def test_plain_over_a_pipe() -> None:
    text = printed(sample.report())
    assert text.isascii()
    assert "\x1b" not in text


def test_no_color_means_no_colour(monkeypatch: pytest.MonkeyPatch) -> None:
    coloured = printed(sample.report(), force_terminal=True, color_system="standard", _environ={})
    assert "\x1b[1;32m83.6 %" in coloured
    plain = printed(sample.report(), force_terminal=True, color_system="standard", _environ={"NO_COLOR": "1"})
    assert "\x1b[1;32m" not in plain
    assert "83.6 %" in plain


def test_no_fetch_is_said_in_so_many_words() -> None:
    text = printed(sample.empty())
    assert "No fetch request was found.\nNext: capture again." in text
    assert "By client" not in text
    assert "Predicted" not in text
    assert "Readable: nothing, because no TCP payload was captured or selected\n" in text


def test_sessions_that_cost_more_are_not_called_a_saving() -> None:
    plain = sample.report()
    report: Report = {**plain, "fetch": {**plain["fetch"], "saved_bytes": -1_000, "saved_ratio": -0.02}}
    report["decision"] = {**plain["decision"], "reason": "sessions cost what they saved"}
    text = printed(report)
    flat = " ".join(text.split())
    assert "Sessions would add 1.00 kB to 600 MB fetch bytes, 2.0 %: sessions cost what they saved" in flat
    assert "-1.00 kB of 600 MB fetch bytes saved: -2.0 %" in text


def test_nothing_saved_stands_with_its_reason() -> None:
    plain = sample.report()
    assert said(
        fetch={**plain["fetch"], "saved_bytes": 0, "saved_ratio": 0.0},
        decision={**plain["decision"], "reason": "leader epochs"},
    ).startswith(
        "Sessions would save nothing of 600 MB fetch bytes: leader epochs (sessions of these brokers (2.1 to "
        "2.4) forget leader epochs (KAFKA-9338))."
    )


@pytest.mark.parametrize(
    ("reason", "lost", "told"),
    [
        ("bytes missing", "cut by the snap length", "321 of 162,170 fetches were cut; capture with -s 0."),
        ("bytes missing", "not in the capture", "321 of 162,170 fetches lack bytes that were not captured;"),
        ("unpaired", "TLS", "321 of 162,170 fetches have no response; capture both directions."),
    ],
)
def test_where_fetches_were_cut_no_saving_is_told(reason: str, lost: str, told: str) -> None:
    plain = sample.report()
    report: Report = {**plain, "fetch": {**plain["fetch"], "saved_bytes": 0, "saved_ratio": 0.0}}
    report["decision"] = {**plain["decision"], "reason": reason}
    report["passed"] = {reason: {"exchanges": 321, "bytes": 599_000_000}}
    report["readable"] = {**plain["readable"], "by_reason": {lost: 5}}
    flat = " ".join(printed(report).split())
    assert flat.startswith(f"The saving can't be computed: {told}")
    assert "How sure" not in flat
    assert "bytes saved" not in flat
    assert "fewer fetch bytes" not in html.render(report)


@pytest.mark.parametrize(("requests", "known"), [(60, False), (61, True)])
def test_with_few_fetches_on_each_connection_the_saving_is_not_known_yet(
    requests: int, *, known: bool
) -> None:
    """The clients of the sample have 12 connections."""
    plain = sample.report()
    fetch = sample.combined(lambda group, field: requests if (group, field) == ("actual", "requests") else 0)
    told = said(fetch=fetch, decision={**plain["decision"], "reason": "no session yet"})
    assert told.startswith("Sessions would save nothing") == known
    assert (
        told.startswith(
            "The saving is not known yet: there are only 60 fetches on 12 connections. Capture for at "
            "least an hour."
        )
        != known
    )
    assert ("Net:" in told) == known


@pytest.mark.parametrize("render", [printed, html.render])
def test_a_capture_of_brokers_alone_says_where_to_capture(render: Callable[[Report], str]) -> None:
    plain = sample.report()
    fetch = sample.combined(lambda group, field: 9 if (group, field) == ("actual", "requests") else 0)
    report: Report = {
        **plain,
        "fetch": fetch,
        "passed": {"not a consumer": {"exchanges": 9, "bytes": 0}},
        "decision": {**plain["decision"], "reason": "not a consumer"},
    }
    told = " ".join(render(report).split())
    assert (
        "No consumer is in this capture: all fetches are from brokers and controllers; capture for at least "
        "an hour, while consumers are connected, on the port that they use."
    ) in told
    for words in ("How sure", "Net:", "bytes saved", "no sidecar"):
        assert words not in told


def test_captures_that_may_be_of_different_hosts_are_added_up_in_the_first_line() -> None:
    for shared, told in (
        ([], "no client address is in two of them"),
        (["127.0.0.1"], "only the address 127.0.0.1 is in two of them"),
    ):
        hosts: DifferentHosts = {**HOSTS, "shared_addresses": shared}
        assert said(decision={**sample.report()["decision"], "different_hosts": hosts}).startswith(
            "If the 2 captures are of one host, sessions would save 12.0 GB a day, 83.6 % of the fetch "
            "bytes: 7.23 of 8.65 USD a month at 0.02 USD per GB (estimated from 1 h). If they are of "
            "different hosts, 20.4 GB a day, 92.7 % of the fetch bytes: 12.24 of 13.20 USD a month. For "
            "different hosts, measure each capture alone: the other figures here are too low for that case. "
            f"The captures were taken at different times, and {told}. Net: measure each capture alone; "
            "together they can't show it. Without fetchgate: fetch.min.bytes in the clients would save "
            "70.0 % (at most 2 fetches a second on a connection). How sure"
        )


def test_a_net_sum_that_nobody_asked_for_is_not_missed() -> None:
    """Without --sidecar-cost there is none."""
    plain = sample.report()
    hosts: DifferentHosts = {**HOSTS, "sidecars_priced": False}
    decision: Decision = {**plain["decision"], "different_hosts": hosts}
    assert "Net:" not in said(decision=decision, modelled={**plain["modelled"], "net": None})


@pytest.mark.parametrize("render", [printed, html.render])
def test_fetches_on_loopback_are_said_to_cost_nothing(render: Callable[[Report], str]) -> None:
    plain = sample.report()
    told = (
        "All fetches are on this host's loopback: they cost nothing unless something forwards them (ssh -L, "
        "kubectl port-forward, a proxy)."
    )
    assert told not in " ".join(render(plain).split())
    own: Report = {**plain, "input": {**plain["input"], "loopback": True}}
    text = " ".join(unescape(render(own)).replace("\N{NO-BREAK SPACE}", " ").split())
    assert text.index("How sure") < text.index(told) < text.index("What to do")


def test_where_no_limit_is_exceeded_this_is_said_in_so_many_words() -> None:
    plain = sample.report()["limits"]
    limits = {**plain, "over_limit": 0, "over_limit_bytes": 0}
    told = "No responses of 154,000 had more records than their limit (max_bytes); the largest had 52.4 MB."
    assert told in said(limits=limits)
    told = "No responses of 154,000 had more records than 1.00 MB or their own limit (max_bytes);"
    assert told in said(limits={**limits, "max_fetch_bytes": 10**6})


def test_less_than_an_hour_is_warned_of() -> None:
    decision: Decision = {**sample.report()["decision"], "captured_seconds": 107.2, "enough": False}
    assert (
        "How sure: not very. Only 1 min 47 s captured (107 seconds), less than an hour: a day may be quite "
        "different."
    ) in said(decision=decision)
    decision["captured_seconds"] = 23.4
    assert "Only 23.4 s captured, less than an hour" in said(decision=decision)
    decision["captured_seconds"] = 0.044
    assert (
        "How sure: 0.044 s is too short to say anything of a day, a month or a net sum: capture for at least "
        "an hour."
    ) in said(decision=decision)


def test_brokers_without_enough_slots_are_told_of_first() -> None:
    (slots, *_) = sample.report()["slots"]
    assert (
        "10.20.0.11:9092 would need 1,204 session slots, and a broker has 1,000 by default: raise "
        "max.incremental.fetch.session.cache.slots. 1 h from"
    ) in said(slots=[{**slots, "requested_at_once": 1_204}])


def sides(client: str, broker: str) -> BothSides:
    return {"client_side": client, "broker_side": broker, "connections": 3, "fetch_bytes": 5_000}


def test_both_sides_of_a_gateway_are_told_of_first() -> None:
    assert said(both_sides=[sides("10.0.0.9:19094", "10.20.0.11:9092")]).startswith(
        "Both sides of a gateway were captured. Fetches count twice, so the figures below are wrong. "
        "3 connections of 10.0.0.9:19094 and 10.20.0.11:9092 are the two sides of a gateway: 5.00 kB of "
        "fetches count twice. Measure one side: --port 19094. That leaves out 2 brokers without a gateway, "
        "too. Sessions would save "
    )


def test_one_list_of_ports_keeps_all_that_has_no_other_side() -> None:
    pairs = [("a:19094", "b:20083"), ("c:9094", "d:20084"), ("a:19095", "b:20085")]
    (broker, *_) = sample.report()["by_broker"]
    names = [*(name for pair in pairs for name in pair), "e:33192", "f:9092", "g:9092"]
    text = said(
        both_sides=[sides(*pair) for pair in pairs], by_broker=[{**broker, "broker": name} for name in names]
    )

    assert text.count("Measure one side") == 1
    assert (
        "Measure one side: --port 9092 --port 9094 --port 19094 --port 19095 --port 33192. Sessions" in text
    )


def test_sides_on_the_same_port_are_told_apart_by_host() -> None:
    text = said(both_sides=[sides("10.0.0.9:9092", "10.20.0.11:9092")])
    assert "Measure one side: both use the same port, so name the clients' hosts" in text


def test_peers_cannot_act_on_the_terminal() -> None:
    text = printed(hostile.report())
    assert all(character.isprintable() or character == "\n" for character in text)
    assert "[bold red]markup[/]" in " ".join(text.split())
    assert max(map(len, text.splitlines())) <= 80
    assert "\x1b]8;" not in printed(hostile.report(), force_terminal=True)  # no link of a peer's


def test_the_first_lines_tell_that_a_file_is_damaged() -> None:
    plain = sample.report()
    (first, *_) = plain["input"]["problems"]
    head = " ".join(printed(plain).split()).partition("What to do")[0]
    assert f"Not all of the input could be read: {first['file']}: {first['problem']}" in head
    none: Report = {**plain, "input": {**plain["input"], "problems": []}}
    assert "Not all of the input" not in printed(none)


@pytest.mark.parametrize("render", [printed, html.render])
def test_packets_that_are_not_read_are_listed_by_protocol(render: Callable[[Report], str]) -> None:
    plain = sample.report()
    assert "Packets not read" not in render(plain)
    read: Input = {**plain["input"], "unread_packets": {"IP fragments": 7, "MACsec": 1234}}
    told = " ".join(render({**plain, "input": read}).split())
    assert "Packets not read: MACsec 1,234, IP fragments 7" in told


def test_fetches_in_packets_that_are_not_read_are_not_said_to_lack_a_direction() -> None:
    plain = sample.report()
    read: Input = {**plain["input"], "packets": 10, "unread_packets": {"IP fragments": 7}}
    told = " ".join(
        printed(
            {
                **plain,
                "input": read,
                "decision": {**plain["decision"], "reason": "unpaired"},
                "passed": {"unpaired": {"exchanges": 5, "bytes": 0}},
            }
        ).split()
    )
    assert "fetches are incomplete; capture on a client's or a broker's host" in told
    assert "capture both directions" not in told


def test_many_problems_are_counted() -> None:
    plain = sample.report()
    problems = [*plain["input"]["problems"] * 10]
    text = printed({**plain, "input": {**plain["input"], "problems": problems}})
    assert "and 15 more problems; the JSON has all" in text


def test_floors_at_80_columns() -> None:
    text = printed({**sample.report(), "floors": sample.floors()})
    assert max(map(len, text.splitlines())) <= 80
    flat = " ".join(text.split())
    for words in (
        "Fetch floors client id fetch fetches fewer saved later at most",
        "billing-enricher v16 61,200 50,400 6.14 MB 0.3 s 1.0 s",
        "With --fetch-min-bytes 65,536 and --fetch-max-wait 1s, a gateway would leave out 116,030 of",
        "149,684 fetch requests (77.5 %). That saves 9.84 MB more than sessions alone.",
        "Records would come 0.4 s later on average, and at most 1.0 s later. Modelled: it was made up.",
    ):
        assert words in flat


def test_a_longer_wait_alone_makes_no_record_later() -> None:
    floors: FloorsReport = {
        **sample.floors(),
        "fetch_min_bytes": 0,
        "later_seconds": 0.0,
        "later_at_most_seconds": 0.0,
    }
    flat = said(floors=floors)
    assert "With --fetch-max-wait 1s, a gateway would leave out 116,030 of" in flat
    assert "later" not in flat.partition("more than sessions alone.")[2].partition("Modelled")[0]


def test_zones_at_80_columns() -> None:
    text = printed({**sample.report(), "zones": sample.zones("az-1", "az-2", "az-3")})
    assert max(map(len, text.splitlines())) <= 80
    flat = " ".join(text.split())
    for words in (
        "same other unknown records 100 MB 200 MB 5.00 kB listing 1.00 MB 2.00 MB 50 B",
        "all 101 MB 202 MB 5.55 kB",
        "from to bytes az-1 az-3 202 MB az-3 unknown 5.55 kB",
        "az-1 librdkafka 2.16.0 100 MB 200 MB 5.00 kB 120 MB 150 MB",
        "az-1 100 MB 200 MB 0 B 120 MB 150 MB",
        "10.20.0.11:9092 1 az-1 [fd00:20::13]:9092 unknown",
        "unknown 2 az-3 34",
        "moves 120 MB 150 MB below v10 0 B 50.0 MB broker in the zone 100 MB 100 MB",
        "client unknown 80.0 MB 0 B",
        "all records and produce 300 MB 300 MB",
        "az-1 1 (az-1) 12.2 1,012.5 11 / 61 20 / 92",
        "The rack of 1 broker is not known",
        "The rack of the clients of 2 connections is not known",
        "in 1 h at 0.01 USD per GB for each direction. Together 0.02 USD; if both ends pay, 0.04 USD.",
        "In 30 days of the same traffic as in these 1 h: 14.70 USD; if both ends pay, 29.40 USD.",
        "Of 14.70 USD, client.rack would save 8.64 USD, --rack-clients 10.80 USD.",
    ):
        assert words in flat


def test_the_first_lines_say_how_much_crosses_zones() -> None:
    zones = sample.zones("az-1", "az-2")
    crosses = (
        "200 MB of 300 MB of records came from brokers in other zones: 66.7 %. client.rack in the "
        "clients would move 120 MB into their zones (saves 1.73 USD a month, estimated from 1 h), without "
        "a gateway. --rack-clients would move 150 MB (saves 2.16 USD a month, estimated from 1 h). What to do"
    )
    assert crosses in said(zones=zones)
    plain = sample.report()
    unpriced: Report = {**plain, "modelled": {**plain["modelled"], "money": None}, "zones": zones}
    moved = "would move 120 MB into their zones, without a gateway. --rack-clients would move 150 MB. What"
    assert moved in " ".join(printed(unpriced).split())
    zones["record_bytes"] = {"same": 9_000, "other": 0, "unknown": 1_000}
    flat = said(zones=zones)
    assert "0 B of 10.0 kB of records came from brokers in other zones: 0.0 %. What to do" in flat
    zones["record_bytes"] = {"same": 0, "other": 0, "unknown": 1_000}
    assert "of records came" not in printed({**sample.report(), "zones": zones})


def test_a_rack_of_clients_without_brokers_is_named() -> None:
    zones = sample.zones("az-1", "az-3")
    absent = (
        "No broker is in these racks of clients: az-3. All bytes of these clients count as between zones. "
        "Give --client-rack the names that brokers have."
    )
    assert absent not in said(zones=zones)
    zones["brokers"][1]["rack"] = "az-2"
    first, _, rest = said(zones=zones).partition("What to do")
    assert f"would move 150 MB (saves 2.16 USD a month, estimated from 1 h). {absent}" in first
    assert absent in rest


def test_a_leader_to_which_nothing_was_written_has_a_rate_of_zero() -> None:
    zones = sample.zones("az-1", "az-2")
    zones["leaders"][0] |= {"records_per_second": 0.0, "leader_records_per_second": 0.0}
    assert "az-1 1 (az-1) 0.0 0.0 " in said(zones=zones)


def test_rows_of_zones_beyond_the_limit_are_added_up() -> None:
    names = [f"az-{number}" for number in range(15)]
    zones = sample.zones(*names)
    zones["pairs"] = [{"from": name, "to": name, "bytes": 1_000} for name in names]
    zones["clients"] = [{"rack": name, "connections": 2} for name in names]
    zones["brokers"] *= 8
    flat = said(zones=zones)
    for words in (
        "others 6.00 kB",
        "6 other racks 12",
        "6 other clients 600 MB",
        "6 other topics 600 MB",
        "6 other brokers",
    ):
        assert words in flat


def test_money_of_zones_stands_there_only_with_a_price_and_a_month_only_with_a_time() -> None:
    zones = sample.zones("az-1", "az-2")
    assert "Between zones" not in printed({**sample.report(), "zones": {**zones, "money": None}})
    assert zones["money"] is not None
    zones["money"] = {**zones["money"], "cost_per_month": None, "currency": ""}
    flat = said(zones=zones)
    assert "in 1 h at 0.01 per GB for each direction. Together 0.02; if both ends pay, 0.04." in flat
    assert "Of 0.02, client.rack would save 0.01, --rack-clients 0.01." in flat
    assert "In 30 days" not in flat.partition("Between zones")[2].partition("Predicted")[0]
