"""The README is short, begins with what a reader tries first, and has the figures of BENCHMARKS.md."""

import re
from pathlib import Path
from typing import Final

import pytest

from tests.test_docs import words_in
from tools.diagram import BENCHMARKS, rows

ROOT: Final = Path(__file__).parents[1]
README: Final = (ROOT / "README.md").read_text(encoding="utf-8")
MEASURED: Final = BENCHMARKS.read_text(encoding="utf-8")
DECIDE: Final = (ROOT / "docs" / "users" / "decide.md").read_text(encoding="utf-8")
MAX_WORDS: Final = 1000
SCREEN: Final = 30
"""How many lines of the page are on the first screen."""


def test_it_is_read_in_five_minutes() -> None:
    assert words_in(README) <= MAX_WORDS


@pytest.mark.parametrize("first", ["make demo ", "make test ", "(docs/fetch.svg)", "(docs/users/decide.md)"])
def test_the_first_screen_has_the_two_commands_the_picture_and_the_alternatives(first: str) -> None:
    assert first in "\n".join(README.splitlines()[:SCREEN])


def test_no_picture_is_made_of_characters() -> None:
    assert not re.search(r"\+--|--\+|-->|<--", README)


@pytest.mark.parametrize(
    ("follows", "table"),
    [
        ("100 partitions, one with 50 records a second", "100 partitions, one with 50 records/s"),
        ("1,000 partitions, one with 50 records a second", "1,000 partitions, one with 50 records/s"),
        ("100 partitions, each with 5 records a second", "100 partitions with 5 records/s each"),
    ],
)
def test_what_is_saved_was_measured(follows: str, table: str) -> None:
    row = rows(MEASURED, f"Broker's side: {table}")
    both, below, included = row["both"], row["below direct"], row["records included"]
    cells = (both["direct"], both["gateway"], f"{below['gateway']} %", f"{included['gateway']} %")
    assert f"| {follows} | {' | '.join(cells)} |" in README


CLIENTS: Final = "Alternatives: one consumer, other ways to fewer bytes"


def test_the_example_in_money_is_computed_from_what_was_measured() -> None:
    sent = rows(MEASURED, CLIENTS)["bytes without records"]
    direct, gateway, waiting = (float(sent[name]) for name in ("direct", "gateway", "fetch.min.bytes"))
    saved = direct - gateway
    sidecar = 0.1 * 10 + 0.05 * 50
    steps = (
        f"{saved:.2f} kB/s |",
        f"{direct:.0f} kB a second direct, {gateway:.2f} with fetchgate",
        f"3 connections, 30 days | {_month(saved):,.0f} GB",
        f"cross zones | {_month(saved) * 2 / 3:,.0f} GB",
        f"(0.01 at each end) | {_price(saved):.2f} USD",
        f"0.05 cores at 50 USD | {sidecar:.2f} USD",
        f"**left in a month** | **{_price(saved) - sidecar:.2f} USD**",
        f"leaves {_price(direct - waiting):.2f} USD",
    )
    assert [step for step in steps if step not in README] == []


def test_the_partitions_from_which_a_sidecar_pays_are_computed_from_what_was_measured() -> None:
    both = rows(MEASURED, "Broker's side: 100 partitions, one with 50 records/s")["both"]
    saved = (float(both["direct"].replace(",", "")) - float(both["gateway"])) / 100
    least = 3.5 / (saved * 30 * 86_400 / 1e9 * 0.02 * 2 / 3)
    (said,) = re.findall(r"it pays from about ([\d,]+) listed partitions", DECIDE)
    assert int(said.replace(",", "")) == round(least, -2)


def _month(kilobytes: float) -> float:
    """Return the GB that three connections have in 30 days, with so many kB in a second."""
    return kilobytes * 3 * 30 * 86_400 / 1_000_000


def _price(kilobytes: float) -> float:
    """Return the price of two thirds of these GB, at 0.02 each."""
    return _month(kilobytes) * 2 / 3 * 0.02


def test_the_picture_is_described_with_its_figures() -> None:
    both = rows(MEASURED, "Broker's side: 100 partitions, one with 50 records/s")["both"]
    assert f"{both['direct']} bytes become {both['gateway']}](docs/fetch.svg)" in README


TLS: Final = "TLS toward the broker: 2 GB of 1 KB records, 12 partitions, one consumer"
BULK: Final = "Bulk: 2 GB of 1 KB records, 12 partitions, one confluent-kafka consumer"
SLOW: Final = "Latency: 500 records/s of 200 bytes, produce to consume"
FAST: Final = "Latency: 2,000 records/s of 200 bytes, produce to consume"
IDLE: Final = "Idle: 1,000 partitions, one with 100 records/s"
MEMORY: Final = "Resident memory"
MANY: Final = "500 connections of one partition"
(FETCHES,) = map(int, re.findall(r"^Some (\d+) incremental fetches a second\.", MEASURED, re.MULTILINE))
"""The fetches a second of the table `IDLE`, by its notes."""


def measured(table: str, row: str) -> float:
    return float(rows(MEASURED, table)[row]["gateway"])


@pytest.mark.parametrize(
    ("sentence", "table", "row", "column"),
    [
        ("{} s for each GB", BULK, "CPU of the proxy", "gateway"),
        ("): {} times the bare proxy", BULK, "CPU in the floor's", "gateway"),
        ("(haproxy: {} times)", BULK, "CPU in the floor's", "haproxy"),
        ("times); {} MB/s", BULK, "throughput", "gateway"),
        ("MB/s (direct {})", BULK, "throughput", "direct"),
        ("| {} % of a core", IDLE, "proxy", "gateway"),
        ("core: {} times the bare proxy", IDLE, "proxy in the floor's", "gateway"),
        ("each GB (TLS to brokers: {})", TLS, "CPU of the proxy", "gateway"),
        ("| {} MB with one client", MEMORY, "a sidecar with one client", "gateway"),
        ("{} KB for each idle connection", MEMORY, "an idle connection", "gateway"),
        ("{} bytes for each partition in a session", MEMORY, "a partition in a session", "gateway"),
    ],
)
def test_what_it_costs_was_measured(sentence: str, table: str, row: str, column: str) -> None:
    assert sentence.format(rows(MEASURED, table)[row][column]) in README


@pytest.mark.parametrize(("load", "table"), [("500 records/s", SLOW), ("2,000 records/s", FAST)])
def test_the_latency_was_measured(load: str, table: str) -> None:
    added, p99 = (rows(MEASURED, table)[row] for row in ("added to p50", "p99"))
    median, bare = (f"{float(added[column]):+.2f}" for column in ("gateway", "floor"))
    most = f"{p99['gateway']} ms (bare proxy {p99['floor']}, direct {p99['direct']})"
    costs = f"median {median} ms (bare proxy {bare}), p99 {most}"
    assert f", {load} | {costs} |" in README


@pytest.mark.parametrize(
    ("load", "seconds"),
    [
        ("of one partition without session", measured(MANY, "CPU of a fetch") / 1e6),
        ("of 1,000 in one", measured(IDLE, "proxy") / 100 / FETCHES),
    ],
)
def test_the_load_of_a_process_is_computed_from_what_was_measured(load: str, seconds: float) -> None:
    said = re.search(rf"([\d,]+)(?: fetches a second)? {load}", README)
    assert said
    assert int(said[1].replace(",", "")) == round(1 / seconds, -2)
    assert f"1,000 partitions, {FETCHES} fetches a second" in README


def test_a_saving_is_not_said_to_be_higher_than_measured() -> None:
    said = re.search(r"up to (\d+) % smaller", README)
    assert said
    table = "Broker's side: 1,000 partitions, one with 50 records/s"
    assert int(said[1]) <= measured(table, "records included")
