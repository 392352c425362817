"""The report object: its sums are right, also in the made-up reports that other tests use."""

import json

from replay.report.model import (
    Report,
    actual_bytes,
    eligible_bytes,
    predicted_bytes,
    sessions_bytes,
)
from tests.replay.report import sample


def test_predicted_is_sessions_and_what_was_not_eligible() -> None:
    fetch = sample.combined(
        lambda group, field: {
            ("actual", "request_bytes"): 1_000,
            ("actual", "response_bytes"): 5_000,
            ("eligible", "request_bytes"): 900,
            ("eligible", "response_bytes"): 4_000,
            ("sessions", "request_bytes"): 100,
            ("sessions", "response_bytes"): 300,
        }.get((group, field), 7)
    )
    assert (actual_bytes(fetch), eligible_bytes(fetch), sessions_bytes(fetch)) == (6_000, 4_900, 400)
    assert predicted_bytes(fetch) == 1_500
    assert fetch["saved_bytes"] == actual_bytes(fetch) - predicted_bytes(fetch) == 4_500
    assert fetch["saved_ratio"] == 0.75


def test_samples_add_up_and_have_every_field() -> None:
    for report in (sample.report(), sample.empty()):
        sample.assert_adds_up(report)
        assert report.keys() == Report.__required_keys__


def test_a_report_is_json_as_it_stands() -> None:
    assert json.loads(json.dumps(sample.report())) == sample.report()
