"""The benchmarks count and judge figures correctly. The measured speed itself is not tested."""

import os
import re
import shutil
import socket
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from io import StringIO
from itertools import count, pairwise
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from rich.console import Console

from proxy.protocol.fetch_layout import LAYOUTS
from proxy.protocol.fetch_request import parse_fetch_request
from proxy.protocol.fetch_response import FetchResponseWalk
from tools import debian
from tools.bench import __main__ as program
from tools.bench import bulk, idle, latency, law6, load, many, micro, wire
from tools.bench.figures import FigureRow, FigureTable, markdown, number, show
from tools.bench.frames import VERSION, fetch_request, fetch_response, rotated
from tools.bench.inside import Inside
from tools.bench.passthrough import address
from tools.bench.processes import HOST, Load, ProcessMeter, Proxy, Times, haproxy_command, haproxy_program
from tools.bench.stage import BenchStage
from tools.bench.traffic import RECORDS, Traffic, fetches, heartbeats, listing, produces
from tools.bench.windows import beside, beyond, turned
from tools.counting import CountedFetches, saved
from tools.kafka import Broker
from tools.kafka.ports import free_ports

TOPIC, OTHER = bytes(15) + b"\1", bytes(15) + b"\2"


def row(value: float, limit: float | None = None, *, least: bool = False) -> FigureRow:
    return FigureRow("figure", "µs", {"direct": 2.0, "gateway": value}, limit=limit, least=least)


def measuring(table: FigureTable) -> Callable[[BenchStage], list[FigureTable]]:
    return lambda _: [table]


class TestFigures:
    def test_what_replay_does_is_judged_as_the_gateway_is(self) -> None:
        values = {"tshark": 50.0, "replay": 130.0}

        assert FigureRow("measure", "MB/s", values, limit=120, least=True).met
        assert not FigureRow("measure", "MB/s", values, limit=150, least=True).met

    def test_all_of_our_own_modes_must_keep_a_limit(self) -> None:
        values = {"plain group": 1.0, "one gateway": 1.02, "one each": 1.04}

        assert not FigureRow("CPU", "times", values, limit=1.03).met
        assert FigureRow("CPU", "times", values, limit=1.04).met
        assert FigureRow("throughput", "times", values, limit=1.02, least=True).met
        assert not FigureRow("throughput", "times", values, limit=1.03, least=True).met

    @pytest.mark.parametrize(
        ("value", "least", "met"),
        [(1.1, False, True), (1.2, False, True), (1.3, False, False), (1.1, True, False), (1.2, True, True)],
    )
    def test_a_limit_is_the_most_or_the_least(self, value: float, least: bool, met: bool) -> None:
        assert row(value, 1.2, least=least).met is met

    def test_what_is_judged_is_what_is_shown(self) -> None:
        assert row(93.97, 94.0, least=True).met is True
        assert row(93.94, 94.0, least=True).met is False
        assert row(175.4, 175.1).met is True

    def test_without_a_limit_or_a_value_nothing_is_judged(self) -> None:
        assert row(1.0).met is None
        assert FigureRow("figure", "", {"Java": 3.0}, limit=1.0).met is None

    @pytest.mark.parametrize(
        ("value", "text"),
        [(12345.6, "12,346"), (99.75, "99.8"), (1.234, "1.23"), (0.0123, "0.012"), (7.0, "7"), (0.0, "0")],
    )
    def test_numbers_have_three_digits_that_count(self, value: float, text: str) -> None:
        assert number(value) == text

    def test_columns_are_the_routes_that_were_measured_in_a_fixed_order(self) -> None:
        table = FigureTable("t", [row(1.0), FigureRow("n", "", {"Java": 1.0})])
        assert table.columns == ["direct", "Java", "gateway"]

    def test_markdown_has_every_row_with_target_and_verdict(self) -> None:
        table = FigureTable("Title", [row(1.0, 1.2), row(3.0, 2.0, least=True)], ["Note."])
        assert markdown([table], "Measured.").splitlines() == [
            "**Title**",
            "",
            "|  | unit | direct | gateway | target |  |",
            "| --- | --- | ---: | ---: | ---: | ---: |",
            "| figure | µs | 2 | 1 | ≤ 1.20 | met |",
            "| figure | µs | 2 | 3 | ≥ 2 | met |",
            "",
            "Note.  ",
            "Measured.  ",
        ]

    def test_the_terminal_shows_a_miss(self) -> None:
        console = Console(width=100, record=True, file=StringIO())
        show(console, FigureTable("Title", [row(3.0, 1.2)], ["Note."]))
        text = console.export_text()
        assert "missed" in text
        assert "Note." in text

    def test_the_terminal_shows_names_in_brackets(self) -> None:
        console = Console(width=100, record=True, file=StringIO())
        extra = replace(row(3.0, 1.2), name="the gateway with [tls]")
        show(console, FigureTable("The [title]", [extra], ["A [note]."]))
        text = console.export_text()
        assert all(shown in text for shown in ("with [tls]", "The [title]", "A [note]."))


class TestFrames:
    def test_a_request_is_one_that_the_gateway_parses_to_its_last_byte(self) -> None:
        frame = fetch_request(7, [(TOPIC, [2, 0]), (OTHER, [1])], offsets={(OTHER, 1): 5}, wait_ms=250)
        request = parse_fetch_request(frame, VERSION, 4 + 8 + 2 + len("rdkafka") + 1)
        assert (request.session_id, request.session_epoch, request.partitions) == (0, -1, 3)
        assert request.max_wait_ms == 250
        assert request.listing is not None
        assert request.listing.keys == [TOPIC, OTHER]
        assert request.listing.counts == [2, 1]
        assert frame[8:12] == b"\0\0\0\7"

    def test_a_response_is_one_that_the_gateway_walks_to_its_end(self) -> None:
        frame = fetch_response(7, [(TOPIC, [0, 1, 2])], session_id=9, records={(TOPIC, 1): b"r" * 200})
        walk = FetchResponseWalk(LAYOUTS[VERSION], 1, keep=True)
        walk.feed(frame)
        assert walk.done
        assert (walk.session_id, walk.partitions, walk.record_bytes) == (9, 3, 200)
        assert [entry.ends_empty for entry in walk.entries] == [True, False, True]

    def test_a_list_that_turns_splits_a_topic(self) -> None:
        assert rotated([(TOPIC, [0, 1, 2]), (OTHER, [0])], 1) == [(TOPIC, [1, 2]), (OTHER, [0]), (TOPIC, [0])]


class TestMicro:
    @pytest.mark.parametrize("busy", [False, True])
    @pytest.mark.parametrize(("topics", "partitions"), [(1, 100), (20, 1)])
    def test_what_is_timed_is_an_incremental_exchange(self, topics: int, partitions: int, busy: bool) -> None:
        assert micro.exchange(fetches(topics, partitions, busy=busy), rounds=3) > 0

    def test_a_fetch_that_is_no_small_delta_is_not_timed(self) -> None:
        traffic = fetches(1, 100)
        other = replace(traffic, frames=fetches(2, 50).frames)

        with pytest.raises(RuntimeError, match="not sent as a small delta"):
            micro.exchange(other, rounds=1)

    @pytest.mark.parametrize("name", micro.COLD)
    @pytest.mark.parametrize("gateway", [False, True])
    def test_cold_exchanges_pass_the_gateway_and_the_floor(
        self, name: str, gateway: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        cooled: list[None] = []
        monkeypatch.setattr(micro, "cool", lambda: cooled.append(None))

        assert micro.exchange(micro.COLD[name], rounds=3, cold=True, gateway=gateway) > 0
        assert len(cooled) == 3

    def test_memory_is_that_of_many_partitions(self) -> None:
        assert 0 < micro.partition_bytes(2000) < 10_000


class TestInside:
    @pytest.mark.parametrize("gateway", [False, True])
    @pytest.mark.parametrize("traffic", [fetches(1, 1), produces(), heartbeats()])
    def test_what_needs_no_session_passes_whole(self, gateway: bool, traffic: Traffic) -> None:
        with Inside(gateway=gateway) as inside:
            if gateway:
                inside.begin(traffic.listed, session=traffic.session)
            request, response = traffic.frames(700)
            took, sent, received = inside.exchange(request, response)

        assert took > 0
        assert (sent, received) == (len(request), len(response))

    def test_a_session_sends_less_and_gives_the_client_all(self) -> None:
        traffic = fetches(1, 100, busy=True)
        with Inside(gateway=True) as inside:
            inside.begin(traffic.listed, session=True)
            _, sent, received = inside.exchange(*traffic.frames(700))

        assert sent <= traffic.most
        (topic, partitions), *_ = traffic.listed
        records = {(topic, 0): RECORDS}
        assert received == len(fetch_response(700, [(topic, partitions)], records=records))

    def test_a_large_response_comes_in_several_reads(self) -> None:
        traffic = fetches(1, 12, busy=True, size=1_000_000)
        with Inside(gateway=True) as inside:
            inside.begin(traffic.listed, session=True)
            _, _, received = inside.exchange(*traffic.frames(700))

        assert received > 1_000_000

    def test_no_session_where_one_is_wanted_is_an_error(self) -> None:
        with Inside(gateway=True) as inside, pytest.raises(RuntimeError, match="no session for 1 topics"):
            inside.begin(listing(1, 1), session=True)


def state(client: int, broker: int) -> dict[str, Any]:
    def side(fetches: int) -> dict[str, object]:
        return {
            "fetch_request_bytes": 100 * fetches,
            "fetch_response_bytes": 80 * fetches + 50,
            "fetch_record_bytes": 50,
            "fetches": {"full": 1, "incremental": fetches - 1, "sessionless": 0, "close": 0},
            "partitions_requested": 3 * fetches,
        }

    return {"totals": {"client": side(client), "broker": side(broker)}}


class TestCounting:
    def test_averages_are_of_what_was_counted_between_two_moments(self) -> None:
        counted = CountedFetches.of(state(30, 20)["totals"], "broker") - CountedFetches.of(
            state(30, 10)["totals"], "broker"
        )
        assert (counted.fetches, counted.kinds["incremental"], counted.partitions) == (10, 10, 30)
        assert (counted.request, counted.response, counted.bare, counted.whole) == (100, 80, 180, 180)

    def test_records_are_left_out_of_a_response_and_not_of_the_whole(self) -> None:
        counted = CountedFetches.of(state(1, 1)["totals"], "client")
        assert (counted.response, counted.bare, counted.whole, counted.total) == (80, 180, 230, 230)

    def test_saved_is_in_percent_of_direct(self) -> None:
        assert saved(200.0, 5.0) == 97.5
        assert saved(0.0, 5.0) == 0.0


class TestBytes:
    def test_what_passed_is_told_by_its_reason(self) -> None:
        before = {"totals": {"passthrough": {"resting": 2, "one partition": 1}}}
        after = {"totals": {"passthrough": {"resting": 5, "one partition": 1, "session busy": 4}}}
        assert wire.passed(before, after) == {"resting": 3, "session busy": 4}

    def test_java_is_the_limit_where_it_was_there(self) -> None:
        counted = {
            "direct": CountedFetches(1000, 1300, 100, 10, 1000, {}),
            "Java": CountedFetches(100, 150, 100, 10, 10, {}),
            "gateway": CountedFetches(100, 160, 100, 10, 10, {}),
        }
        workload = wire.WireWorkload("w", 100, 1, 50, 90.0, 90.0, mark=True)
        rows = {each.name: each for each in wire._table(workload, counted, {"resting": 3}).rows}
        assert rows["both"].values == {"direct": 220.0, "Java": 15.0, "gateway": 16.0}
        assert (rows["both"].limit, rows["both"].met) == (15.0, False)
        assert rows["below direct"].values["gateway"] == pytest.approx(92.727, abs=0.001)
        assert rows["records included"].values["gateway"] == pytest.approx(88.696, abs=0.001)
        del counted["Java"]
        table = wire._table(workload, counted, {"resting": 3})
        assert {each.name: each for each in table.rows}["both"].limit is None
        assert table.notes[3:] == [
            "Fetches that the gateway passed without a session: resting (3).",
            "Java: not there, nothing to compare with.",
        ]


class TestLaw6:
    def test_the_dearest_window_counts_not_the_sum(self) -> None:
        samples = [(0, 0), (100, 50), (200, 170), (300, 180)]
        assert law6.dearest(samples, 1) == 1.2
        assert law6.dearest(samples, 3) == 0.6

    def test_a_window_without_traffic_is_no_window(self) -> None:
        assert law6.dearest([(5, 5), (5, 5)], 1) == 0.0


class TestRounds:
    def test_each_round_begins_with_another_route(self) -> None:
        assert [turned("ab", number) for number in range(3)] == [["a", "b"], ["b", "a"], ["a", "b"]]
        assert ["".join(turned("abc", number)) for number in range(4)] == ["abc", "bac", "cab", "acb"]
        assert ["".join(turned("abcd", number)) for number in range(5)] == [
            "abcd",
            "badc",
            "cdab",
            "dcba",
            "abcd",
        ]
        assert [turned("a", number) for number in range(2)] == [["a"], ["a"]]

    def test_windows_are_compared_within_their_round(self) -> None:
        rounds = {
            "floor": [bulk.Drained(1.0, 9.0), bulk.Drained(2.0, 8.0), bulk.Drained(4.0, 1.0)],
            "gateway": [bulk.Drained(3.0, 9.0), bulk.Drained(5.0, 8.0), bulk.Drained(4.0, 1.0)],
        }
        assert beyond(rounds, "floor", "cpu") == {"floor": 0.0, "gateway": 2.0}
        assert beside(rounds, "floor", "cpu") == {"floor": 1.0, "gateway": 2.5}

    def test_latencies_and_cpu_of_a_window_are_found_together(self) -> None:
        printed = {"1": {"p50": 0.2, "p99": 1.0, "count": 9}, "0": {"p50": 0.1, "p99": 2.0, "count": 9}}
        assert latency.windows(printed, [5.0, 7.0]) == [
            latency.LatencyWindow(p50=0.1, p99=2.0, cpu=5.0),
            latency.LatencyWindow(p50=0.2, p99=1.0, cpu=7.0),
        ]

    @pytest.mark.parametrize(("rate", "limit"), [(500, None), (2000, 1.3)])
    def test_latency_is_held_against_the_floors(self, rate: int, limit: float | None) -> None:
        rounds = {
            name: [latency.LatencyWindow(p50=p50, p99=p99, cpu=cpu)]
            for name, p50, p99, cpu in (
                ("direct", 1.0, 2.0, 0.0),
                ("floor", 1.5, 4.0, 20.0),
                ("haproxy", 1.25, 4.0, 18.0),
                ("gateway", 1.75, 3.0, 25.0),
            )
        }
        rows = {each.name: each for each in latency._table(rate, 5.0, rounds, {"gateway": 40.0}).rows}
        assert rows["added to p50"].values == {"floor": 0.5, "haproxy": 0.25, "gateway": 0.75}
        assert rows["p50 above the floor's"].values["gateway"] == 0.25
        assert rows["p99 in the floor's"].values["gateway"] == 0.75
        assert rows["CPU in the floor's"].values == {"floor": 1.0, "haproxy": 0.9, "gateway": 1.25}
        assert rows["CPU in the floor's"].limit == limit
        assert (rows["p50 above the floor's"].met, rows["p99 in the floor's"].met) == (False, True)

    def test_bulk_is_told_in_the_floors(self) -> None:
        rounds = {
            "direct": [bulk.Drained(0.0, 400.0)] * 3,
            "floor": [bulk.Drained(0.5, 200.0), bulk.Drained(0.8, 150.0), bulk.Drained(0.4, 220.0)],
            "gateway": [bulk.Drained(0.9, 100.0), bulk.Drained(0.8, 147.0), bulk.Drained(0.4, 220.0)],
        }
        table = bulk._table(rounds, {"gateway": 60.0}, {"gateway": 50.0}, 2.0)
        cpu, kernel, times_cpu, pace, times_pace, resident = table.rows
        assert kernel.values == {"gateway": 60.0}
        assert cpu.values == {"floor": 0.5, "gateway": 0.8}
        assert times_cpu.values == {"floor": 1.0, "gateway": 1.0}
        assert pace.values["gateway"] == 147.0
        assert times_pace.values["gateway"] == 0.98
        assert (times_cpu.met, times_pace.met, resident.met) == (True, True, True)

    def test_idle_holds_gateway_and_broker_against_the_broker_alone(self) -> None:
        spent = {
            "direct": [idle.Spent(0.0, 40.0)],
            "floor": [idle.Spent(1.0, 40.0)],
            "gateway": [idle.Spent(2.0, 29.0)],
        }
        rows = {each.name: each for each in idle._table(spent, 90.0).rows}
        assert rows["proxy in the floor's"].values == {"floor": 1.0, "gateway": 2.0}
        assert rows["both in direct"].values == {"floor": 1.025, "gateway": 0.775}
        assert (rows["proxy in the floor's"].met, rows["both in direct"].met) == (False, True)

    def test_many_connections_are_held_against_the_floor_by_the_fetch(self) -> None:
        rounds = {
            "floor": [many.ManyWindow(fetches=900.0, core=3.0, cpu=33.0)],
            "gateway": [many.ManyWindow(fetches=450.0, core=2.0, cpu=44.0)],
        }
        rows = {each.name: each for each in many._table(rounds, {"gateway": 40.0}, 5.0).rows}
        assert rows["CPU of a fetch in the floor's"].values["gateway"] == pytest.approx(4 / 3)
        assert rows["CPU of a fetch in the floor's"].met is False


class TestFloor:
    def test_bytes_pass_in_both_directions_and_the_end_with_them(self) -> None:
        with socket.create_server((HOST, 0)) as server:
            port = free_ports()
            target = f"{HOST}:{server.getsockname()[1]}"
            command = [sys.executable, "-m", "tools.bench.passthrough", f"{HOST}:{port}", target]
            with Proxy(command, port) as proxy:
                server.accept()[0].close()  # the look whether it listens
                with socket.create_connection((HOST, port), timeout=30) as client:
                    client.sendall(b"early")
                    far, _ = server.accept()
                    with far:
                        far.settimeout(10)
                        assert far.recv(5, socket.MSG_WAITALL) == b"early"
                        self.pour(far, client, 3_000_000)
                        self.pour(client, far, 3_000_000)
                    assert client.recv(1) == b""
                assert proxy.meter.resident > 0
                assert proxy.meter.cpu >= 0

    def pour(self, source: socket.socket, sink: socket.socket, size: int) -> None:
        """Send `size` bytes and receive all of them. They are more than all buffers on the way can hold."""
        sender = threading.Thread(target=source.sendall, args=(b"x" * size,))
        sender.start()
        left = size
        while left:
            left -= len(sink.recv(left))
        sender.join()

    def test_an_address_is_host_and_port(self) -> None:
        assert address("127.0.0.1:9092") == ("127.0.0.1", 9092)


class TestProcesses:
    def test_a_proxy_that_does_not_listen_says_what_it_wrote(self) -> None:
        with pytest.raises(RuntimeError, match="out of paper"):
            Proxy([sys.executable, "-c", "raise SystemExit('out of paper')"], free_ports())

    def test_a_load_that_ends_before_it_is_ready_is_an_error(self) -> None:
        with Load("tools.kafka.ports") as load, pytest.raises(RuntimeError, match="before it was ready"):
            load.ready()

    def test_cpu_is_counted_finer_than_the_clock_ticks(self) -> None:
        spent = []
        for _ in range(20):
            spent.append(ProcessMeter(os.getpid()).cpu)
            sum(range(20_000))
        # Now and then the process does more meanwhile: it collects garbage, say.
        assert 0 < min(after - before for before, after in pairwise(spent)) < 0.01

    def test_cpu_is_told_by_where_it_was_spent(self) -> None:
        assert Times(3.0, 5.0).kernel_since(Times(2.0, 2.0)) == 75.0
        assert Times(2.0, 2.0).kernel_since(Times(2.0, 2.0)) == 0.0

    def test_haproxy_gets_one_thread_and_plain_tcp(self, tmp_path: Path) -> None:
        command = haproxy_command("haproxy", tmp_path, 1, 2)
        text = Path(command[2]).read_text()
        assert "mode tcp" in text
        assert "nbthread 1" in text
        assert "bind 127.0.0.1:1\n" in text
        assert "server broker 127.0.0.1:2\n" in text

    def test_haproxy_is_fetched_where_it_is_not_installed(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("FETCHGATE_CACHE", str(tmp_path))
        monkeypatch.setenv("PATH", str(tmp_path))
        program = debian.programs() / "haproxy"

        def fetch(packages: list[str]) -> dict[str, str]:
            assert packages == ["haproxy"]
            program.parent.mkdir(parents=True)
            program.touch(mode=0o755)
            return {}

        monkeypatch.setattr(debian, "link_installed", lambda _: False)
        monkeypatch.setattr(debian, "fetch", fetch)
        assert haproxy_program() == str(program)

    def test_without_haproxy_there_is_no_comparison(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("FETCHGATE_CACHE", str(tmp_path))
        monkeypatch.setenv("PATH", str(tmp_path))
        monkeypatch.setattr(debian, "link_installed", lambda _: False)
        monkeypatch.setattr(debian, "fetch", lambda _: {"haproxy": "no network"})
        with pytest.raises(RuntimeError, match="please install it: no network"):
            haproxy_program()


class TestProgram:
    def test_it_prints_and_writes_what_one_part_gave(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        page = tmp_path / "page.md"
        table = FigureTable("Title", [row(3.0, 2.0)])
        monkeypatch.setitem(program.PARTS, "micro", lambda _: [table])
        monkeypatch.setattr(sys, "argv", ["bench", "--only", "micro", "--quick", "--markdown", str(page)])
        program.main()
        assert "| figure | µs | 2 | 3 | ≤ 2 | missed |" in page.read_text()

    def test_parts_alone_replace_their_tables_in_a_page(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        page = tmp_path / "page.md"
        monkeypatch.setattr(sys, "argv", ["bench", "--only", "micro", "--quick", "--markdown", str(page)])
        for title, value in (("First", 3.0), ("Second", 4.0), ("First", 5.0)):
            table = FigureTable(title, [row(value, 9.0)], ["a note"])
            monkeypatch.setitem(program.PARTS, "micro", measuring(table))
            program.main()

        first, second = page.read_text().split("**First**")[1].split("**Second**")
        assert "| 5 |" in first
        assert "| 3 |" not in first
        assert "| 4 |" in second

    def test_a_table_that_has_another_title_now_is_replaced(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        page = tmp_path / "page.md"
        old = ("First", "Bulk: 1 MB", "Bulk: 2 MB", "TLS: 1 MB")
        page.write_text("".join(f"**{title}**\n\nold\n\n" for title in old))
        monkeypatch.setattr(sys, "argv", ["bench", "--only", "micro", "--quick", "--markdown", str(page)])
        new = ("Bulk: 2 MB", "Bulk: 3 MB", "Second")
        tables = [FigureTable(title, [row(3.0, 9.0)]) for title in new]
        monkeypatch.setitem(program.PARTS, "micro", lambda _: tables)
        program.main()

        titles = ["First", *new[:2], *old[3:], *new[2:]]
        assert re.findall(r"^\*\*(.+)\*\*$", page.read_text(), re.MULTILINE) == titles
        assert page.read_text().count("old\n") == 2

    def test_what_people_wrote_above_the_tables_stays(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        page = tmp_path / "page.md"
        page.write_text("# Old\n\nHead.\n\n## In short\n\nWords.\n\n## All figures\n\n**Gone**\n")
        table = FigureTable("First", [row(3.0, 9.0)])
        monkeypatch.setitem(program.PARTS, "micro", lambda _: [table])
        monkeypatch.setattr(program, "PARTS", {"micro": program.PARTS["micro"]})
        monkeypatch.setattr(sys, "argv", ["bench", "--quick", "--markdown", str(page)])
        program.main()

        text = page.read_text()
        assert "but other times.\n\n1 of 1 targets are met.\n\n## In short\n" in text
        assert "\nWords.\n\n## All figures\n\n**First**\n" in text
        assert "Gone" not in text

    def test_programs_that_were_fetched_are_found_after_what_is_installed(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("FETCHGATE_CACHE", str(tmp_path))
        monkeypatch.setenv("PATH", str(tmp_path / "installed"))
        fetched = debian.programs() / "haproxy"
        fetched.parent.mkdir(parents=True)
        fetched.touch(mode=0o755)
        found: list[str | None] = []

        def part(_: BenchStage) -> list[FigureTable]:
            found.append(shutil.which("haproxy"))
            return []

        monkeypatch.setitem(program.PARTS, "tls", part)
        monkeypatch.setattr(sys, "argv", ["bench", "--only", "tls", "--quick"])
        program.main()
        assert found == [str(fetched)]
        assert os.environ["PATH"].split(os.pathsep)[0] == str(tmp_path / "installed")
        assert "haproxy" in debian.PACKAGES

    def test_an_unknown_part_is_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sys, "argv", ["bench", "--only", "nothing"])
        with pytest.raises(SystemExit, match="2"):
            program.main()


class TestProduced:
    def test_a_producer_without_cpu_time_still_sends_the_records_of_its_window(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        windows: list[int] = []
        producer = Mock(produce=lambda _, value, **__: windows.append(load.STAMP.unpack_from(value)[1]))
        monkeypatch.setattr(load, "Producer", lambda _: producer)
        monkeypatch.setattr(load, "_stop_requested", lambda: False)
        # Each look at the clock comes ten seconds after the last.
        monkeypatch.setattr("tools.bench.load.time.monotonic", map(float, count(0, 10)).__next__)
        paced = ["--rate=20", "--warm-up=1", "--seconds=1.25", "--window=7"]
        monkeypatch.setattr(sys, "argv", ["load", "produce", "127.0.0.1:1", "topic", *paced])
        load.main()
        assert windows == [load.WARM_UP] * 20 + [7] * 5


@pytest.mark.nightly
@pytest.mark.integration
class TestLive:
    def test_records_come_through_every_route_and_latencies_with_them(self) -> None:
        with BenchStage(seconds=4, quick=True, console=Console(quiet=True)) as stage:
            assert isinstance(stage.broker, Broker)
            rounds, kernel = latency.measured(stage, 200)
        assert set(kernel) == {"floor", "haproxy", "gateway"}
        assert set(rounds) == {"direct", "floor", "haproxy", "gateway"}
        for name, found in rounds.items():
            assert len(found) == 2
            assert all(0 < each.p50 <= each.p99 for each in found)
            assert all((each.cpu > 0) is (name != "direct") for each in found)
