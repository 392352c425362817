"""The known facts about the captures. Other programs counted them, see `captures/README.md`."""

import json
from pathlib import Path
from typing import Any

import pytest

from replay.report.model import FetchReport, Report
from tests.replay.report.sample import assert_adds_up

CAPTURES = Path(__file__).parents[2] / "captures"
_INTERLEAVED = "many-clients-any"
"""A capture in which clients list partitions of different topics in turns, so that the topics interleave."""


def truth(name: str) -> dict[str, Any]:
    """Return the truth of a capture: the facts that other programs counted."""
    found: dict[str, Any] = json.loads((CAPTURES / f"{name}.truth.json").read_text())
    return found


def assert_true(report: Report, name: str) -> None:
    """Check a report with the policy `always` against the truth of its capture."""
    true, found = truth(name), report["input"]
    fetch, unpaired = true["fetch"], true["unpaired"]
    assert_adds_up(report)
    assert found["connections"] == true["totals"]["connections"]
    assert found["exchanges"] == true["totals"]["exchanges_paired"]
    assert found["gaps"] == true["gaps"]["count"]
    assert found["unpaired_requests"] == unpaired["requests_without_response"]
    assert found["unpaired_responses"] == unpaired["responses_without_request"]
    assert found["problems"] == []
    assert report["fetch"]["actual"] == {
        "requests": fetch["fetch_requests"],
        "responses": fetch["fetch_responses"],
        "request_bytes": fetch["fetch_request_bytes"],
        "response_bytes": fetch["fetch_response_bytes"],
        "record_bytes": fetch["record_bytes"],
        "partitions_requested": fetch["partitions_requested"],
        "partitions_answered": fetch["partitions_returned"],
    }
    _assert_sessions(report["fetch"], true.get("what_if_sessions"), interleaved=name == _INTERLEAVED)


def _assert_sessions(fetch: FetchReport, if_: dict[str, Any] | None, *, interleaved: bool) -> None:
    """Check the cost of sessions.

    The truth lists entries in captured order, but a broker lists them in the order of the session. If topics
    interleave, the bytes of topic elements may differ by up to 0.5 %.

    Args:
        fetch: the report to check.
        if_: the true cost. None if the capture has only the client's own sessions.
        interleaved: whether the topics of the capture interleave.
    """
    if if_ is None:
        assert fetch["eligible"]["exchanges"] == fetch["saved_bytes"] == 0
        return
    assert fetch["eligible"] == {
        "exchanges": if_["eligible_fetches"],
        "request_bytes": if_["request_bytes_seen"],
        "response_bytes": if_["response_bytes_seen"],
        "record_bytes": if_["record_bytes"],
    }
    sessions: dict[str, Any] = {**fetch["sessions"]}
    for figure in ("full", "incremental", "added", "altered", "forgotten"):
        assert sessions[figure] == if_[figure]
    for figure in ("request_bytes", "response_bytes"):
        assert sessions[figure] == pytest.approx(if_[figure], rel=0.005 if interleaved else 0)
