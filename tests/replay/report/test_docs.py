"""The page on how to read the report names all its parts."""

import re
from pathlib import Path

import pytest

from replay.report import wording
from replay.report.csv import COLUMNS, ZONE_COLUMNS
from replay.report.model import Report

PAGE = (Path(__file__).parents[3] / "docs" / "users" / "report.md").read_text()
CODE = set(re.findall(r"`([^`\n]+)`", PAGE))


@pytest.mark.parametrize("column", [*COLUMNS, *ZONE_COLUMNS])
def test_each_csv_column_is_documented(column: str) -> None:
    assert column in CODE


@pytest.mark.parametrize("key", Report.__annotations__)
def test_each_key_of_the_report_is_documented(key: str) -> None:
    assert key in CODE


@pytest.mark.parametrize("policy", wording.POLICY)
def test_each_policy_is_documented(policy: str) -> None:
    assert f"--policy {policy}" in CODE


@pytest.mark.parametrize("reason", [*wording.REASONS, "fetch v3", "error 56"])
def test_each_reason_that_the_report_explains_is_documented(reason: str) -> None:
    assert reason in CODE
    assert wording.meaning(reason)
