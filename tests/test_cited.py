"""Tests cite every case and trap of docs/developers/fetch-semantics.md, and every citation exists there."""

from typing import Final

import pytest

from tests.cases import (
    cases,
    cited,
    cited_sections,
    citing_tests,
    prose,
    rules,
    sections,
    traps,
)

NOT_SHOWN: Final[dict[str, str]] = {}
"""The cases that no test shows, each with the reason."""

NOT_TESTED: Final = {
    "15": "the broker counts it; there is nothing to do",
    "45": "a cost that the benchmarks measure, no behaviour",
}
"""The traps that no test shows, each with the reason."""

LIVE: Final = [str(number) for number in (*range(1, 30), *range(58, 66)) if number != 28]
"""Cases that are also shown with a live broker. Case 28 is missing, because no broker could be made to lower
its high watermark.
"""


def test_each_case_is_cited_by_a_test_or_listed_with_a_reason() -> None:
    assert cases() - citing_tests("case").keys() == NOT_SHOWN.keys()


def test_each_trap_is_cited_by_a_test_or_listed_with_a_reason() -> None:
    assert traps() - citing_tests("trap").keys() == NOT_TESTED.keys()


def test_a_live_broker_shows_these_cases_too() -> None:
    for case in LIVE:
        assert any(test.startswith("tests/integration/") for test in citing_tests("case")[case]), case


def test_each_citation_leads_somewhere() -> None:
    known = {("case", number) for number in cases()} | {("trap", number) for number in traps()}
    known |= {("rule", number) for number in rules()}
    astray = {path: cited(text) - known for path, text in prose().items()}
    astray_sections = {path: cited_sections(text) - sections() for path, text in prose().items()}

    assert not {path: wrong for path, wrong in astray.items() if wrong}
    assert not {path: wrong for path, wrong in astray_sections.items() if wrong}


def test_the_page_has_the_numbers_that_it_always_had() -> None:
    assert cases() == {str(number) for number in range(1, 99)}
    assert traps() == {"5a", "25a", *(str(number) for number in range(1, 53))}
    assert {"0", "1.1", "1.8", "2.9", "3.3", "4", "5", "6.13", "7", "8"} <= sections()


def test_each_rule_of_racks_has_one_number_and_is_cited_by_tests() -> None:
    assert rules() == [str(number) for number in range(1, len(rules()) + 1)]
    tests = [text for path, text in prose().items() if path.startswith("tests/features/racks/")]
    assert {("rule", number) for number in rules()} <= {each for text in tests for each in cited(text)}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Case 17: epochs begin at 1.", {("case", "17")}),
        ("Cases 22 to 24 and 27: each alone.", {("case", number) for number in ("22", "23", "24", "27")}),
        ("Trap 5a; cases 70, 71\nand 98.", {("trap", "5a"), *(("case", n) for n in ("70", "71", "98"))}),
        ("fetch-semantics 2.3 (case 17)", {("case", "17")}),
        ("In case of two, or in 2 cases.", set()),
    ],
)
def test_cases_and_traps_are_read_off_a_text(text: str, found: set[tuple[str, str]]) -> None:
    assert cited(text) == found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("docs/developers/fetch-semantics.md, section 2.8: error 0.", {"2.8"}),
        ("fetch-semantics 2.3 (case 17)", {"2.3"}),
        ("Section 4 of the page.", {"4"}),
        ("A question of DNS (RFC 1035, section 4).", set()),
    ],
)
def test_sections_are_read_off_a_text(text: str, found: set[str]) -> None:
    assert cited_sections(text) == found
