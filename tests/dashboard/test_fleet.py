"""The rows of several gateways: what each reports, what is wrong first, and how they are drawn."""

import json
import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from proxy.dashboard import fleet_view
from proxy.dashboard.choice import Listed, Selection, press, split_keys
from proxy.dashboard.fleet import SORTS, WORST_FIRST, Fleet, chosen, has_meaning
from proxy.dashboard.reports import Report, of_metrics, of_state, reasons_of
from proxy.dashboard.snapshot import NotAGatewayError, parse
from tests.dashboard.drawn import FOLDER
from tests.dashboard.fleets import CHOICES, FLEETS, METRICS, NAMED, draw, kept, large, mixed, report
from tests.dashboard.scenes import SCENES
from tests.dashboard.test_view import COLOUR
from tests.examples import examples


@pytest.mark.parametrize("name", NAMED)
def test_a_frame_is_as_it_was_kept(name: str) -> None:
    assert kept(name) == (FOLDER / f"{name}.txt").read_text(encoding="utf-8")


@given(
    fleet=st.sampled_from(list(FLEETS)),
    width=st.integers(60, 240),
    height=st.integers(8, 90),
    sort=st.sampled_from(list(SORTS)),
    looked_for=st.sampled_from(["", "orders", "nobody"]),
    opened=st.sampled_from(["", "", "pending-0", "gone"]),
    cursor=st.sampled_from(["", "audit-0", "10.1.1.99:9464", "gone"]),
    more=st.fixed_dictionaries({name: st.booleans() for name in ("help", "reverse", "typing", "paused")}),
    plain=st.booleans(),
)
@examples(60)
def test_a_frame_fits_its_terminal(
    *, fleet: str, width: int, height: int, looked_for: str, plain: bool, more: Any, **chosen: Any
) -> None:
    choice = Selection(filter=looked_for, **chosen, **more)
    lines = draw(FLEETS[fleet](), choice, width, height, plain=plain).split("\n")
    assert len(lines) <= height or choice.opened, "the last line has no end: a terminal would scroll"
    assert max(map(cell_len, lines)) <= width
    assert cell_len(lines[-1]) == width, "the line of keys"
    assert not plain or "\n".join(lines).isascii()


def test_the_marked_gateway_is_on_the_screen_wherever_it_is() -> None:
    rows = large()
    for row in rows[::7]:
        for height in (6, 12, 24):
            drawn = draw(rows, replace(WORST_FIRST, cursor=row.name), 80, height)
            assert f">{row.name} " in drawn


LONG = (
    "broker 600000123: its port is outside 1-65535; give it a port with --broker-ports, or all brokers with"
)


def test_a_problem_takes_the_room_of_figures_and_of_empty_lines() -> None:
    rows = [replace(row, wrong=(LONG,)) if row.wrong else row for row in mixed()]
    lines = draw(rows, replace(WORST_FIRST, cursor="orders-7f9c6d5b8-q8r7w"), 80, 24).splitlines()
    (row,) = [line for line in lines if line.startswith(">")]
    assert row.startswith(">orders-7f9c6d5b8-q8r7w  degraded    13 broker 600000123: its port is outside")
    told = lines.index("! broker 600000123: its port is outside 1-65535; give it a port with")
    assert lines[told + 1] == "  --broker-ports, or all brokers with"
    sorted_by = draw(rows, replace(WORST_FIRST, sort="CPU"), 80, 24).splitlines()
    (row,) = [line for line in sorted_by if line.startswith(" orders-7f9c6d5b8-q8r7w")]
    assert "   16 % broker 600000123" in row, "the figure by which rows are sorted stays"


def test_what_does_not_fit_below_the_table_is_counted() -> None:
    rows = [replace(row, wrong=(LONG,) * 9) if row.wrong else row for row in large()]
    lines = draw(rows, replace(WORST_FIRST, cursor="10.1.0.7:9464"), 80, 24).splitlines()
    assert lines[-2] == "  16 more lines: Enter"


@pytest.mark.parametrize("fleet", FLEETS)
@pytest.mark.parametrize("choice", CHOICES)
def test_colours_are_the_terminals_own_and_nothing_is_told_by_them_alone(fleet: str, choice: str) -> None:
    rows = FLEETS[fleet]()
    coloured = draw(rows, CHOICES[choice], 120, 40, colours="truecolor")
    assert COLOUR.sub("", coloured) == draw(rows, CHOICES[choice], 120, 40)
    codes = {int(code) for style in COLOUR.findall(coloured) for code in style.split(";") if code}
    assert codes <= {0, 1, 4, 7, 31, 32, 35, 36}, "neither white, black nor yellow"


def test_a_screen_for_a_script_has_a_line_for_each_gateway_and_all_that_is_wrong() -> None:
    lines = draw(mixed(), WORST_FIRST, 40, None).splitlines()
    assert len(lines) == 4 + 10
    (line,) = [line for line in lines if line.startswith(" orders-7f9c6d5b8-q8r7w ")]
    assert line.endswith(" 127.0.0.1:9093: Connection refused; all 500 session slots are taken; and a third")


def test_no_line_of_the_help_is_cut_at_80_columns() -> None:
    lines = [f"{word:<14}{meaning}" if meaning else word for word, meaning in fleet_view._HELP]
    assert [line for line in lines if len(line) > 80] == []


def test_what_is_wrong_comes_first_and_names_are_sorted_by_their_numbers() -> None:
    assert [row.state for row in chosen(mixed(), WORST_FIRST)] == [
        *("unreachable", "unreachable", "starting", "degraded", "degraded", "draining"),
        *("ready", "asking", "ready", "ready"),
    ]
    assert chosen(mixed(), WORST_FIRST)[6].wrong, "ready, with sessions off"
    by_name = [row.name for row in chosen(large(), replace(WORST_FIRST, sort="gateway"))]
    assert by_name[:3] == ["10.1.0.0:9464", "10.1.0.1:9464", "10.1.0.2:9464"]


@pytest.mark.parametrize("sort", SORTS)
def test_rows_are_sorted_by_every_column(sort: str) -> None:
    choice = replace(WORST_FIRST, sort=sort)
    values = [SORTS[sort](row) for row in chosen(mixed(), choice)]
    assert values == sorted(values, reverse=sort not in {"gateway", "state"})
    turned = [SORTS[sort](row) for row in chosen(mixed(), replace(choice, reverse=True))]
    assert turned == list(reversed(values))


@pytest.mark.parametrize(
    ("text", "found"),
    [("orders", 2), ("DEGRADED", 2), ("slots", 2), ("10.0.3.7", 1), ("pending", 1), ("", 10), ("x y", 0)],
)
def test_the_filter_looks_at_name_address_state_and_what_is_wrong(text: str, found: int) -> None:
    assert len(chosen(mixed(), replace(WORST_FIRST, filter=text))) == found


def test_cpu_is_that_of_the_last_ten_seconds_and_at_first_that_since_the_start() -> None:
    fleet = Fleet([("a", "a:1", "")])
    fleet.add("a", replace(report("busy", cpu=20.0), uptime=100.0), 50.0)
    assert fleet.row("a", 50.0).cpu == pytest.approx(0.2)
    for second in range(1, 21):
        fleet.add("a", report("busy", cpu=20.0 + 0.5 * second + (5 if second > 5 else 0)), 50.0 + second)
    assert fleet.row("a", 70.0).cpu == pytest.approx(0.5)
    fleet.add("a", replace(report("busy", cpu=1.0), uptime=2.0), 71.0)
    assert fleet.row("a", 71.0).cpu == pytest.approx(0.5), "restarted: since its start"
    fleet.add("a", replace(report("busy", cpu=3.0), uptime=3.0), 80.0)
    fleet.add("a", replace(report("busy", cpu=6.0), uptime=3.0), 96.0)
    assert fleet.row("a", 96.0).cpu == pytest.approx(3 / 16), "asked seldom: since it was asked last"


def test_a_gateway_that_does_not_respond_has_no_figures_and_says_for_how_long() -> None:
    fleet = Fleet([("a", "a:1", ""), ("b", "b:1", "")])
    assert (fleet.row("a", 9.0).state, fleet.asked, fleet.is_reachable("a")) == ("asking", False, True)
    fleet.add("a", report("busy"), 10.0)
    fleet.fail("b", "Connection refused", 12.0)
    assert fleet.asked
    fleet.fail("a", "no response within 3 s", 15.0)
    fleet.fail("a", "Connection refused", 18.0)
    row = fleet.row("a", 20.0)
    assert (row.state, row.wrong, row.seconds) == ("unreachable", ("Connection refused",), 10.0)
    assert (row.report, row.cpu, row.saved_now) == (None, None, None)
    assert not fleet.is_reachable("a")
    assert fleet.row("b", 20.0).seconds == 8.0
    fleet.add("a", report("busy"), 21.0)
    row = fleet.row("a", 21.0)
    assert (row.state, row.wrong, row.seconds) == ("ready", (), None)


def test_the_report_in_metrics() -> None:
    report = of_metrics(METRICS)
    assert (report.version, report.state, report.wrong) == ("0.2.0", "degraded", ())
    assert (report.connections, report.client_bytes, report.broker_bytes) == (507, 177 + 180, 210 + 213 + 246)
    assert (report.cpu_seconds, report.memory) == (12.5, 56_000_000)
    off = re.sub(r"^(fetchgate_sessions_enabled) .*$", r"\1 0.0", METRICS, flags=re.MULTILINE)
    assert of_metrics(off).wrong == ("sessions are off: no saving",)
    fleet = Fleet([("a", "a:1", "")])
    fleet.add("a", report, 10.0)
    assert fleet.row("a", 10.0).saved_now is None
    fleet.add("a", replace(report, client_bytes=report.client_bytes + 600, cpu_seconds=50.0), 12.0)
    assert fleet.row("a", 12.0).saved_now == 300.0


def _told_without_slot(refused: int, waiting: int) -> list[Report]:
    """Return the same report, as it is in `/metrics` and in `/state`."""
    none = re.sub(r"^fetchgate_broker_session_refusals_total{.*\n", "", METRICS, flags=re.MULTILINE)
    samples = (
        f'fetchgate_broker_session_refusals_total{{broker="1"}} {refused}.0\n'
        f'fetchgate_passthrough_total{{reason="no slot at the broker"}} {waiting}.0\n'
    )
    document = SCENES["busy"]()
    document["totals"] |= {
        "refusals": refused,
        "passthrough": {"no slot at the broker": waiting, "resting": 9},
    }
    return [replace(of_metrics(none + samples), state="ready"), of_state(parse(document))]


@pytest.mark.parametrize("source", [0, 1], ids=["metrics", "state"])
def test_a_broker_without_free_slots_is_wrong_while_fetches_have_none(source: int) -> None:
    """A gateway in this condition is ready, and saves nothing for some clients."""
    fleet = Fleet([("a", "a:1", ""), ("b", "b:1", "")])
    for second, refused, waiting in ((0, 60, 1000), (2, 60, 1000)):
        fleet.add("b", _told_without_slot(refused, waiting)[source], second)
        fleet.add("a", _told_without_slot(refused, waiting)[source], second)
        assert fleet.row("a", second).wrong == (), "what was long ago is not wrong now"
    fleet.add("b", _told_without_slot(62, 2058)[source], 4)
    assert fleet.row("b", 4).wrong == ("no session slot at the broker: 1,060 fetches",)
    assert [row.name for row in chosen(fleet.every(4), WORST_FIRST)] == ["b", "a"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "up 1\n",
        'fetchgate_state{state="ready"} much\n',
        *(f"{METRICS}process_cpu_seconds_total {value}\n" for value in ("nan", "-Inf", "1e19")),
        f"fetchgate_state{{{'a' * 4_000_000}}} 1\n",
    ],
    ids=range(7),
)
def test_other_metrics_are_no_report(text: str) -> None:
    with pytest.raises(NotAGatewayError):
        of_metrics(text)


def test_the_reasons_in_readyz() -> None:
    assert reasons_of(b'{"state": "degraded", "reasons": ["a", "b\\u001b"]}') == ("a", "b\ufffd")
    for body in (b"", b"[]", b"{}", b'{"reasons": 1}'):
        with pytest.raises(NotAGatewayError):
            reasons_of(body)


@pytest.mark.parametrize(
    ("keys", "changed"),
    [
        ("s", {"sort": "conns"}),
        ("S", {"sort": "gateway"}),
        ("1", {"sort": "gateway"}),
        ("7", {"sort": "memory"}),
        ("8", {}),
        ("\tgx", {}),
        ("/gx\t\r", {"filter": "gx"}),
        ("j", {"cursor": "silent-0"}),
        ("\r", {"opened": "pending-0"}),
        ("\r\x1b", {}),
        ("p", {"paused": True}),
        ("h", {"help": True}),
        ("q", {"quit": True}),
    ],
)
def test_what_keys_do(keys: str, changed: dict[str, Any]) -> None:
    choice, rows = WORST_FIRST, chosen(mixed(), WORST_FIRST)
    for key in split_keys(keys):
        if has_meaning(key, choice):
            choice = press(choice, key, Listed(keys=[row.name for row in rows], page=5, sorts=tuple(SORTS)))
    assert choice == replace(WORST_FIRST, **changed)


def test_what_a_terminal_would_obey_is_not_shown_of_metrics() -> None:
    text = METRICS.replace('state="degraded"', 'state="\x1b[2J"')
    told = of_metrics(text.replace('version="', 'version="\x1b]0;x\x07'))
    assert told.state == "\ufffd[2J"
    assert told.version.startswith("\ufffd]0;x\ufffd")


def test_texts_without_end_are_cut() -> None:
    """What responds may be anything: drawing three million reasons took a minute."""
    document = SCENES["degraded"]()
    document["reasons"] = ["x" * 100_000] * 100_000
    told = of_state(parse(document))
    assert told.wrong == ("x" * 1000,) * 100
    assert reasons_of(json.dumps({"reasons": ["y" * 2000] * 200}).encode()) == ("y" * 1000,) * 100
