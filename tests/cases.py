"""Which test shows which conformance case of section 7: by the number in its name, or by the table here."""

import re
from collections import defaultdict
from functools import cache
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
REQUIRED: Final = frozenset({*range(14, 30), *range(50, 67), *range(68, 99)})
"""Those that concern a gateway with sessions on the broker's side. 1 to 13, 30 to 49 are of the broker's own
half (the model has tests of them), 67 is what the Java client does with a hint."""

_EQUIVALENCE = "tests/integration/test_equivalence.py"
_PYTHON = "tests/integration/test_clients_python.py"
_FAULTS = "tests/integration/test_faults_broker.py"
_SLOTS = "tests/integration/test_faults_sessions.py"

ELSEWHERE: Final[dict[int, list[str]]] = {
    # Only librdkafka itself tells ends of partitions.
    77: [
        f"{_PYTHON}::test_each_end_of_partition_is_told_once_at_the_same_offset",
        f"{_EQUIVALENCE}::test_new_records_arrive_in_order_with_each_end_told",
        f"{_EQUIVALENCE}::test_seek_to_the_end_skips_and_tells_the_end",
    ],
}
"""Case -> the tests that alone show it, under names of their own, and why there."""

CLIENTS: Final[dict[int, list[str]]] = {
    72: [f"{_FAULTS}::test_the_broker_connection_may_be_cut_at_any_byte_of_its_answers"],
    76: [f"{_PYTHON}::test_aborted_transactions_stay_hidden_from_read_committed"],
    78: [f"{_EQUIVALENCE}::test_seek_back_delivers_again"],
    79: [
        f"{_EQUIVALENCE}::test_a_paused_partition_stays_silent_until_resumed",
        f"{_EQUIVALENCE}::test_members_share_a_group_and_one_takes_over",
    ],
    80: [f"{_EQUIVALENCE}::test_a_topic_deleted_and_created_anew_is_read_on"],
    81: [f"{_EQUIVALENCE}::test_a_consumer_quota_slows_and_loses_nothing"],
    91: [f"{_SLOTS}::test_large_answers_of_sessions_wait_for_each_other_under_the_budget"],
    92: [f"{_FAULTS}::test_a_broker_killed_and_started_again_costs_no_record_and_is_said_once"],
}
"""Case -> tests with real clients or a running gateway, beside those that carry its number."""

_TEST = re.compile(r"^ *(?:async )?def (test_\w+)\(", re.MULTILINE)
_NUMBERED = re.compile(r"test_case_(\d+(?:_(?:(?:and|to)_)?\d+)*)(?:_|$)")


@cache
def names_by_path() -> dict[str, frozenset[str]]:
    """Names of the test functions of every file of tests, those of classes included."""
    return {
        path.relative_to(ROOT).as_posix(): frozenset(_TEST.findall(path.read_text()))
        for path in (ROOT / "tests").rglob("test_*.py")
    }


def numbers(name: str) -> set[int]:
    """The cases in a test's name: test_case_71_x, test_case_27_30_and_48_x, test_case_31_to_33_x."""
    match = _NUMBERED.match(name)
    if match is None:
        return set()
    found: set[int] = set()
    for span in match[1].replace("_to_", "-").replace("_and_", "_").split("_"):
        first, _, last = span.partition("-")
        found |= set(range(int(first), int(last or first) + 1))
    return found


@cache
def numbered_cases() -> dict[int, list[str]]:
    """Case -> the files with tests that carry its number."""
    found: dict[int, set[str]] = defaultdict(set)
    for path, names in names_by_path().items():
        for name in names:
            for number in numbers(name):
                found[number].add(path)
    return {number: sorted(paths) for number, paths in found.items()}
