"""Tests of the report as one HTML file, read by a parser. (test_browser opens it in a browser.)"""

import io
import re
from html.parser import HTMLParser
from typing import Any

from rich.console import Console

from replay.report import html, terminal
from replay.report.model import ClientRow, Report
from replay.report.table import BYTES, NAME, SAVING, ReportColumn, ReportLine, ReportTable, SavedBytes
from replay.report.wording import FORMULA, POLICY, PRODUCT
from tests.replay.report import hostile, sample

VOID = {"meta", "link"}


class Page(HTMLParser):
    """The elements of a page with their attributes, and its text. All elements must be closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] != "style":
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


def assert_asks_for_nothing(page: Page) -> None:
    """Check that nothing in the page (HTML, SVG or CSS) makes a browser load or run something."""
    tags = {tag for tag, _ in page.elements}
    assert not tags & {
        "script",
        "img",
        "iframe",
        "object",
        "embed",
        "base",
        "form",
        "image",
        "use",
        "video",
    }
    for tag, attributes in page.elements:
        assert not [
            name for name in attributes if name.startswith("on") or name in ("src", "srcset", "xlink:href")
        ]
        if "href" in attributes:  # a link asks for nothing before a reader follows it
            assert (tag, attributes["href"]) in {("link", "data:,"), ("a", PRODUCT[2])}
        assert "url(" not in (attributes.get("style") or "")


def test_the_whole_of_it() -> None:
    page = Page(html.render(sample.report()))
    assert page.text.startswith(
        "What fetch sessions would save - fetchgate What fetch sessions would save fetchgate is a small "
        "proxy beside a Kafka client that adds incremental fetch sessions ( KIP-227 ), so that fewer bytes "
        "go to and from the brokers; the records stay the same. Sessions would save 12.0 GB a day, 83.6 % of "
        "the fetch bytes: 7.23 of 8.65 USD a month at 0.02 USD per GB (estimated from 1 h). "
        "Conclusion: by what is left after the cost of sidecars, a gateway wins for "
        '"billing-enricher", "search-indexer" and (none). With fetch.min.bytes, records come up to 0.5 s '
        "later, with a gateway less than 1 ms. Net: 7.23 USD "
        "saved - 3.50 USD for 1 sidecar (one per client address) = 3.73 USD a month, 44.71 USD a year. "
        "Without fetchgate: fetch.min.bytes in the clients would save 70.0 %, 6.05 USD a month (at most 2 "
        "fetches a second on a connection). How sure: estimated from 1 h captured (3,600 seconds). 1 h from"
    )
    for words in (
        "83.6 % fewer fetch bytes to and from the brokers in 1 h",
        "502 MB saved in 1 h, both directions",
        "600 MB captured in 1 h: 162,170 fetch requests and their responses",
        "98.6 MB predicted in 1 h, with sessions",
        "99.8 % of what was captured in 1 h could be read",
        "Parts of the input could not be read. They are not in the figures.",
        "captures/node-7.pcap03: the last record is cut after 1,204 of 1,514 bytes",
        FORMULA,
        POLICY["gateway"],
        "Listed partitions in requests of consumers 256 MB 5.30 MB",
        "billing-enricher librdkafka 2.16.0 v16 66,303 438 MB 438 MB 31.8 MB 92.7 %",
        "(rest of each frame) 162,170",
        "all 162,170 600 MB 556 MB 98.6 MB 83.6 %",
        "Captured 162,170 264 MB 336 MB - eligible fetches as captured 113,547 240 MB 316 MB",
        "+ eligible fetches with sessions 113,547 12.6 MB 41.8 MB",
        "= predicted broker side 162,170 36.4 MB 62.2 MB",
        "What to do billing-enricher librdkafka 2.16.0 Put it behind a gateway: that saves 92.7 %, 9.75",
        "one partition the fetch lists a single partition: a session has nothing to leave out 13,433 6.34 MB",
        "fraud-scorer native session apache-kafka-java 4.3.0 v18 48,611 44.2 MB 0 B 44.2 MB 0.0 %",
        "[fd00:20::13]:9092 7 12 1,000 0 0",
        "Modelled, not counted",
        "TCP/IP headers 61.2 MB 21.2 MB 66 bytes for each",
        "At 0.02 USD per GB the saved bytes cost 0.01 USD in the 1 h of the capture, or 8.65 USD in 30 days",
        "1 1 7.23 3.50 3.73 86.71 42.00 44.71",
        "readable 988 MB 99.8 % TLS 1.90 MB 0.2 %",
        "9 requests without a response",
        "10.20.1.1:40000 > 10.20.0.11:9092 #0 billing-enricher",
        "fetchgate 0.2.0",
    ):
        assert words in page.text


def test_it_is_one_file_without_requests_or_scripts() -> None:
    text = html.render(sample.report())
    page = Page(text)
    assert_asks_for_nothing(page)
    assert text.startswith('<!doctype html>\n<html lang="en">')
    assert text.count(PRODUCT[2]) == 1
    assert not re.search(r"https?:|//|@import|url\(", text.replace(PRODUCT[2], ""))
    policies = [a["content"] for _, a in page.elements if a.get("http-equiv") == "Content-Security-Policy"]
    assert policies == ["default-src 'none'; style-src 'unsafe-inline'; img-src data:"]


def test_what_a_manager_reads_comes_before_what_engineers_need() -> None:
    text = html.render(sample.report())
    parts = ("Fetch bytes over time", "Saved, cost and net", "What to do", "Where the bytes go", "<details>")
    places = [text.index(part) for part in (*parts, FORMULA[:30], "</details>", "For engineers", "By client")]
    assert places == sorted(places)
    first, engineers = text.split("For engineers")
    assert ">v16<" not in first
    assert ">v16<" in engineers
    assert "<details open" not in text


def test_without_a_captured_time_no_tile_names_a_span() -> None:
    plain = sample.report()
    page = Page(html.render({**plain, "time": {**plain["time"], "captured_seconds": 0.0}}))
    assert "502 MB saved, both directions 3.73 USD net a month" in page.text
    assert "600 MB captured: 162,170 fetch requests" in page.text


def test_what_is_left_after_the_cost_of_sidecars_has_a_tile() -> None:
    tile = "3.73 USD net a month, less 3.50 USD for 1 sidecar (estimated from 1 h) 600 MB captured"
    assert tile in Page(html.render(sample.report())).text
    plain = sample.report()
    without: Report = {**plain, "modelled": {**plain["modelled"], "net": None}}
    assert "net a month" not in Page(html.render(without)).text


def test_what_needs_no_attention_is_folded() -> None:
    plain = sample.report()
    quiet: Report = {**plain, "limits": {**plain["limits"], "over_limit": 0, "starved": 0}}
    slots = "Fetch session slots of the brokers, most at once"
    assert f"<summary>{slots}: 12 of 1,000 needed</summary>" in html.render(plain)
    assert "<h2>Response limits</h2>" in html.render(plain)
    limits = "<summary>Response limits: no response above, no partition starved</summary>"
    assert limits in html.render(quiet)
    for change in ({"requested_at_once": 501}, {"evictions": 1}, {"refused": 1}):
        busy: Any = {**plain, "slots": [plain["slots"][0], {**plain["slots"][1], **change}]}
        assert f"<h2>{slots}</h2>" in html.render(busy)


def test_peers_cannot_act_in_the_page() -> None:
    text = html.render(hostile.report())
    text.encode()
    page = Page(text)
    assert_asks_for_nothing(page)
    assert {tag for tag, _ in page.elements} == {
        tag for tag, _ in Page(html.render(sample.report())).elements
    }
    assert sum(tag == "style" for tag, _ in page.elements) == 1
    assert "<script>document.title='hacked'</script>" in page.text
    assert "&lt;amp;&#60;" in page.text
    spaced = re.sub("(?<=[0-9])\N{NO-BREAK SPACE}", " ", text)  # the page's own, before units
    assert all(character.isprintable() or character == "\n" for character in spaced)


def test_a_figure_stays_in_one_line_with_its_unit() -> None:
    text = html.render(sample.report())
    for figure in ("12.0 GB a day, 83.6 % of the", "3.50 USD for 1 sidecar", "come up to 0.5 s later"):
        assert re.sub(r"(?<=\d) (?=GB|%|USD|s )", "\N{NO-BREAK SPACE}", figure) in text


def test_money_stands_there_only_with_a_price() -> None:
    plain = sample.report()
    page = Page(html.render({**plain, "modelled": {**plain["modelled"], "money": None}}))
    assert "per GB the saved bytes cost" not in page.text
    assert "TCP/IP headers" in page.text


def test_no_fetch_is_said_in_so_many_words() -> None:
    page = Page(html.render(sample.empty()))
    assert "No fetch request was found. Next: capture again." in page.text
    assert "Predicted" not in page.text
    assert (
        "How much could be read Readable: nothing, because no TCP payload was captured or selected."
        in page.text
    )
    assert "100.0 %" not in page.text
    assert not [tag for tag, _ in page.elements if tag == "svg"]


def test_sessions_that_cost_more_are_not_called_a_saving() -> None:
    plain = sample.report()
    report: Report = {**plain, "fetch": {**plain["fetch"], "saved_bytes": -1_000, "saved_ratio": -0.02}}
    page = Page(html.render(report))
    assert (
        "2.0 % more fetch bytes to and from the brokers in 1 h 1.00 kB added in 1 h, both directions"
        in page.text
    )
    assert ("div", {"class": "card lead dearer"}) in page.elements


def test_parts_without_rows_are_left_out() -> None:
    plain = sample.report()
    clients: list[ClientRow] = [{**row, "passed": {}} for row in plain["by_client"]]
    page = Page(html.render({**plain, "by_client": clients, "slots": [], "over_time": []}))
    assert "Why fetches pass" not in page.text
    assert "max.incremental.fetch.session.cache.slots" not in page.text
    assert "Fetch bytes over time" not in page.text


def test_a_fleet_makes_no_endless_page() -> None:
    plain = sample.report()
    names = [f"client-{place}" for place in range(5_000)]
    clients: list[ClientRow] = [
        {**plain["by_client"][place % 5], "client_id": name} for place, name in enumerate(names)
    ]
    problems = plain["input"]["problems"] * 500
    text = html.render({**plain, "by_client": clients, "input": {**plain["input"], "problems": problems}})
    assert "4,951 other clients" in text
    assert "and 980 more; the JSON has all" in text
    assert len(text) < 200_000


def test_a_table_has_one_description_for_all_forms() -> None:
    described = ReportTable(
        title="T",
        columns=[
            ReportColumn(title="Client id", unit=NAME),
            ReportColumn(title="Bytes", unit=BYTES),
            ReportColumn(title="Saved", unit=SAVING, short="part"),
            ReportColumn(title="Why", wide=True),
        ],
        lines=[ReportLine(values=("=a<b", 12_345, SavedBytes(-5, 10), "x"), note="note")],
    )
    out = io.StringIO()
    Console(file=out, width=80).print(terminal.table(described))
    page = html.environment().get_template("parts.html").module.table(described)  # type: ignore[attr-defined] # a macro

    assert " ".join(out.getvalue().split()) == "T client id bytes part =a<b 12.3 kB -50.0 % note"
    assert Page(page).text == "Client id Bytes Saved Why =a<b note 12.3 kB -50.0 % x"
    assert '<td class="n bad" title="-5 B" data-label="Saved">-50.0 %</td>' in page.replace("\xa0", " ")


def test_floors_are_a_part_of_its_own() -> None:
    assert "Fetch floors" not in Page(html.render(sample.report())).text
    text = Page(html.render({**sample.report(), "floors": sample.floors()})).text
    for words in ("Fetch floors", "50,400", "a gateway would leave out 116,030 of 149,684 fetch requests"):
        assert words in text


def test_zones_are_parts_of_their_own() -> None:
    assert "Bytes by zone" not in html.render(sample.report())
    text = Page(html.render({**sample.report(), "zones": sample.zones("az-1", "az-2")})).text
    for words in (
        "of records came from brokers in other zones",
        "Bytes by zone A zone is a rack of Kafka's brokers.",
        "records in fetch responses 100 MB 200 MB 5.00 kB",
        "Zone to zone From To Bytes az-1 az-2 202 MB az-2 unknown 5.55 kB",
        "Racks of brokers Broker Node id Rack 10.20.0.11:9092 1 az-1",
        "Between zones: 202 MB to clients for 0.02 USD, and 42.0 kB to brokers for <0.01 USD, in 1 h",
        "az-1 librdkafka 2.16.0 100 MB 200 MB 5.00 kB 202 MB 120 MB 150 MB",
        "moves from another zone, with an in-sync replica in the client's zone 120 MB 150 MB",
        "client unknown the client's software is not known, or was not tested 80.0 MB 0 B",
        "az-1 1 (az-1) 12.2 1,012.5 11 / 61 20 / 92",
    ):
        assert words in text
