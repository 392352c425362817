"""Tests that the screen for each state equals the stored screen in `frames/`.

Some rules are tested for all screens.
"""

import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from proxy.dashboard import tables, view
from proxy.dashboard.choice import Selection
from proxy.dashboard.rows import SORTS
from proxy.dashboard.snapshot import Snapshot, parse
from tests.dashboard import fleets
from tests.dashboard.drawn import FOLDER, NAMED, draw, kept
from tests.dashboard.scenes import CHOICES, SCENES, seen
from tests.examples import examples

ALL = [*SCENES, "unreachable"]
COLOUR = re.compile(r"\x1b\[([0-9;]*)m")


@pytest.mark.parametrize("name", NAMED)
def test_a_frame_is_as_it_was_kept(name: str) -> None:
    assert kept(name) == (FOLDER / f"{name}.txt").read_text(encoding="utf-8")


def test_no_frame_is_kept_that_nothing_draws() -> None:
    assert {path.stem for path in FOLDER.iterdir()} == set(NAMED) | set(fleets.NAMED)


@given(
    scene=st.sampled_from(ALL),
    width=st.integers(60, 240),
    height=st.integers(14, 90),
    sort=st.sampled_from(list(SORTS)),
    looked_for=st.sampled_from(["", "orders", "nobody"]),
    groups=st.booleans(),
    opened=st.sampled_from(["", "", "client orders-1", "client nobody", "broker 2"]),
    cursor=st.sampled_from(["", "client audit", "client client-7", "broker 29"]),
    first=st.integers(0, 100),
    brokers=st.booleans(),
    plain=st.booleans(),
)
@examples(60)
def test_a_frame_fits_and_fills_its_terminal(
    *, scene: str, width: int, height: int, looked_for: str, plain: bool, **more: Any
) -> None:
    choice = Selection(filter=looked_for, **more)
    lines = draw(seen(scene), choice, width, height, plain=plain).split("\n")
    assert len(lines) <= height, "the last line has no end: a terminal would scroll"
    assert max(map(cell_len, lines)) <= width
    assert cell_len(lines[-1]) == width, "the line of keys"


@pytest.mark.parametrize("scene", ["busy", pytest.param("crowded", marks=pytest.mark.slow)])
def test_no_figure_is_cut_however_wide_the_terminal_is(scene: str) -> None:
    figures = re.compile(r" conns .*parts .*fetch/s +bytes/s .*saved/s .*why not")
    for width in range(80, 241, 8):
        lines = draw(seen(scene), Selection(), width, 40).splitlines()
        assert any(figures.search(line) for line in lines), f"{width} columns"
        assert any(
            re.search(r" address +conns +due sessions refused evicted +fetch +other", line) for line in lines
        ), f"{width}"


LONG = "orders-service-1-b7f3c9e2-5d1a-4c60-9f1e-2a"


def _after(**more: Any) -> tuple[Snapshot, Snapshot]:
    """Return two snapshots of a gateway: the present one, and one of 9 seconds earlier.

    The first client has a long name.
    """
    document = SCENES["busy"]()
    for one in document["connections"]:
        if one["client_id"] == "orders-1":
            one |= {"client_id": LONG, "last_event": "SessionMade"}
    document |= more
    now = parse(document)
    return replace(now, cpu_seconds=now.cpu_seconds + 9.9), replace(now, time=now.time - 9)


@pytest.mark.parametrize("width", [80, 100, 120, 140, 160, 180, 200, 240])
@pytest.mark.parametrize("error", ["", "error 70"])
def test_client_ids_have_room_however_many_columns_there_are(width: int, error: str) -> None:
    now, before = _after()
    now = replace(now, clients=tuple(replace(one, last_error=error) for one in now.clients))
    choice = Selection(cursor=f"client {LONG}")
    lines = draw(now, choice, width, 50, before=before).splitlines()
    (names,) = [line for line in lines if line.startswith(" client ") and "conns" in line]
    (row,) = [line for line in lines if line.startswith(">")]
    room = max(32 if width >= 100 else 26, width // 5)
    assert row[1 : 1 + room].rstrip() == LONG[:room]
    assert ("error" in names) is bool(error and width >= 160)
    assert ("lately" in names) is (width >= (180 if error else 160))
    (addresses,) = [line for line in lines if " address " in line]
    longest = max(len(broker.address) for broker in now.brokers)
    assert addresses.index("conns") <= len(" bootstrap ") + longest + 1, "no more room than they need"


@pytest.mark.parametrize(("late", "said"), [(0.9, ""), (1.0, "oldest request 1 s late")])
def test_a_request_is_late_from_a_second_on(late: float, said: str) -> None:
    now = parse(SCENES["hung"]())
    now = replace(now, brokers=tuple(replace(broker, late=late, problem="") for broker in now.brokers))
    screen = draw(now, Selection(), 120, 40)
    assert (said or "oldest request") in screen if said else "oldest request" not in screen
    opened = draw(now, Selection(opened="broker 1"), 120, 40)
    assert ("none of them late" in opened) is not bool(said)


@pytest.mark.parametrize(
    ("width", "shown"),
    [
        (44, "confluent-kafka-python 2.16.1-rdkafka-2.16.0"),
        (43, "confluent-kafka-python 2.16.1"),
        (28, "confluent-kafka-pyth~ 2.16.1"),
        (16, "confluen~ 2.16.1"),
    ],
)
def test_software_keeps_its_version(width: int, shown: str) -> None:
    assert tables._software("confluent-kafka-python 2.16.1-rdkafka-2.16.0", width) == shown
    assert tables._software("a-name-without-a-version-that-is-long", width).startswith("a-name-without")


def test_an_empty_column_takes_no_room() -> None:
    now, before = _after()
    assert "lately" not in draw(now, Selection(), 160, 50)
    assert "lately" in draw(now, Selection(), 160, 50, before=before)
    assert not re.search(r"\berror\b", draw(now, Selection(), 240, 30, before=before))


@pytest.mark.parametrize("width", [60, 70, 80, 100])
def test_cpu_and_memory_are_not_cut_off(width: int) -> None:
    process = {"resident_bytes": 123_000_000, "cpu_seconds": 7.0}
    now, before = _after(process=process, connections_open=5000, inflight_bytes=123_456_789)
    lines = draw(now, Selection(), width, 24, before=before).splitlines()
    (line,) = [line for line in lines if "CPU" in line]
    assert "CPU 110 %  123 MB" in line
    told = " ".join(line.strip() for line in lines[5:7])
    assert "5,000" in told
    assert "adds 0.23 ms + 0.26 ms" in told


def test_what_only_some_gateways_do_is_not_cut_off() -> None:
    drawn = draw(seen("serving"), Selection(), 80, 24)
    assert "  41 newer leaders\nlimit 10.0 MB\n" in drawn


@pytest.mark.parametrize("height", [30, 40, 50, 60])
def test_what_is_left_of_the_screen_tells_of_the_marked_row(height: int) -> None:
    now, before = _after()
    for choice, told in (
        (Selection(cursor=f"client {LONG}"), "  since accepted  79.1 MB saved"),
        (Selection(cursor="client audit"), "  since accepted  0 B saved"),
        (Selection(brokers=True, cursor="broker 2"), "  sessions        3 of 243 partitions"),
    ):
        lines = draw(now, choice, 160, height, before=before).splitlines()
        below = lines[next(at for at, line in enumerate(lines) if "ready: the bootstrap" in line) :]
        assert any(line.startswith(told) for line in below)
        if len(lines) < height or choice.cursor.endswith(LONG):
            assert ("more lines: Enter" in lines[-2]) is (len(lines) == height)


def test_the_last_event_is_told_in_words() -> None:
    now, before = _after()
    drawn = draw(now, Selection(opened=f"client {LONG}"), 80, None, before=before)
    assert "last event      session made" in drawn
    assert "SessionMade" not in drawn


@pytest.mark.parametrize("told", ["broker closed", "fault of the client: TLS", "defect", "RST", ""])
def test_what_is_words_already_stays(told: str) -> None:
    document = SCENES["busy"]()
    document["connections"][0]["last_event"] = told
    assert parse(document).clients[0].last_event == told


@pytest.mark.parametrize(
    ("rates", "line"),
    [
        ({"incremental": 244, "sessionless": 2}, "         246         246: 244 incr 2 sessionless"),
        (
            {"incremental": 6700, "sessionless": 1340, "full": 125},
            "       8,165       8,165: 6,700 incr 1,340 sessionless 125 full",
        ),
        (
            {"incremental": 244, "sessionless": 2, "full": 1.5, "close": 0.5},
            "         248         248: 244 incr 2 sessionless 1.5 full 0.5 close",
        ),
        ({}, "           0           0"),
    ],
)
def test_the_kinds_of_fetches_have_room(rates: dict[str, float], line: str) -> None:
    document = SCENES["busy"]()
    recent = document["recent"]
    for of_side in recent["fetches"].values():
        for kind in of_side:
            of_side[kind] = [int(2 * rates.get(kind, 0))] * len(recent["seconds"])
    recent["seconds"] = [2.0] * len(recent["seconds"])
    assert f"\nfetches/s  {line}\n" in re.sub(" +\n", "\n", draw(parse(document), Selection(), 80, 24))


@pytest.mark.parametrize("scene", ALL)
def test_a_plain_terminal_gets_plain_letters(scene: str) -> None:
    assert draw(seen(scene), Selection(), 80, 24, plain=True).isascii()


@pytest.mark.parametrize("scene", ALL)
@pytest.mark.parametrize("choice", [Selection(), *CHOICES.values()])
def test_colours_are_the_terminals_own_and_suit_light_and_dark(scene: str, choice: Selection) -> None:
    codes = {
        int(code)
        for style in COLOUR.findall(draw(seen(scene), choice, 120, 40, colours="truecolor"))
        for code in style.split(";")
        if code
    }
    bold, underline, reverse = 1, 4, 7
    red, green, magenta, cyan = 31, 32, 35, 36
    assert codes <= {0, bold, underline, reverse, red, green, magenta, cyan}, (
        "neither white, black nor yellow"
    )


@pytest.mark.parametrize("scene", ALL)
def test_nothing_is_told_by_colour_alone(scene: str) -> None:
    coloured = draw(seen(scene), Selection(), 120, 40, colours="standard")
    assert COLOUR.sub("", coloured) == draw(seen(scene), Selection(), 120, 40)


def test_one_picture_for_a_script_has_all_clients_and_no_keys() -> None:
    lines = draw(seen("crowded"), Selection(), 100, None, keys=False).splitlines()
    assert sum(line.startswith(" client-") for line in lines) == 500
    assert "quit" not in lines[-1]


def test_one_picture_for_a_script_has_the_cooperative_groups() -> None:
    drawn = draw(seen("cooperative"), Selection(), 100, None, keys=False)
    assert "billing.host-2" in drawn
    assert "Cooperative groups" not in draw(seen("busy"), Selection(), 100, None, keys=False)


def test_a_group_without_a_member_is_on_the_page_of_groups() -> None:
    document = SCENES["cooperative"]()
    for group in document["cooperative"]["groups"]:
        group.update(members=[], exclusive="", unowned_ranges=0)
    drawn = draw(parse(document), Selection(groups=True), 100, 40)
    assert "billing  0 members" in drawn
    assert "shipping  0 members" in drawn
    assert "--cooperative" not in drawn


def test_one_picture_for_a_script_has_every_reason_whole() -> None:
    document = SCENES["degraded"]()
    document["reasons"][0] = "kafka-1.example.net:9092: " + "its certificate has expired, " * 5 + "at last"
    drawn = draw(parse(document), Selection(), 80, None, keys=False)
    told = " ".join(drawn.split("\n\n")[0].split())
    for reason in document["reasons"]:
        assert f"! {reason}" in told


def test_what_a_gateway_tells_is_text_and_not_markup() -> None:
    document = SCENES["busy"]()
    document["connections"][0]["client_id"] = "[red]x[/red]\x1b[2J"
    shown = draw(parse(document), Selection(sort="client"), 200, 60)
    assert "[red]x[/red]\ufffd[2J" in shown


def test_no_line_of_the_help_is_cut_at_80_columns() -> None:
    lines = [f"{word:<14}{meaning}" if meaning else word for word, meaning in view._HELP]
    assert [line for line in lines if len(line) > 80] == []
