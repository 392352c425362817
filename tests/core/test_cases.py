"""No conformance case is missing, and what shows it elsewhere is there."""

import pytest

from tests.cases import CLIENTS, ELSEWHERE, REQUIRED, names_by_path, numbered_cases, numbers


def test_no_case_is_missing() -> None:
    found = numbered_cases()
    missing = sorted(REQUIRED - found.keys() - ELSEWHERE.keys())
    assert not missing, f"no test carries the number of these cases: {missing}"


def test_what_is_shown_elsewhere_is_there() -> None:
    for number, tests in {**ELSEWHERE, **CLIENTS}.items():
        for path, name in (test.split("::") for test in tests):
            assert name in names_by_path()[path], f"case {number}: {path}::{name}"


@pytest.mark.parametrize("number", sorted({*range(14, 30), *range(58, 66)} - {28}))
def test_cases_14_to_29_and_58_to_65_are_run_against_a_live_broker_too(number: int) -> None:
    """All but 28: no live broker could be made to take its high watermark back."""
    assert [path for path in numbered_cases()[number] if path.startswith("tests/integration/")]


@pytest.mark.parametrize(
    ("name", "cases"),
    [
        ("test_case_71_session_errors", {71}),
        ("test_case_02", {2}),
        ("test_case_70_and_98_x", {70, 98}),
        ("test_case_27_30_and_48_throttled", {27, 30, 48}),
        ("test_case_31_to_33_order", {31, 32, 33}),
        ("test_cases_14_to_29_are_run", set()),
        ("test_case_of_its_own", set()),
    ],
)
def test_numbers_are_read_off_names(name: str, cases: set[int]) -> None:
    assert numbers(name) == cases
