"""Each case of cooperative consuming (see CASES.md) is mentioned in the docstring of a test."""

import ast
import re
from itertools import chain
from pathlib import Path
from typing import Final

TESTS: Final = Path(__file__).parents[2]
FILES: Final = (
    *("features/cooperative/*.py", "core/test_member_*.py", "integration/test_cooperative*.py"),
    *("integration/test_lanes_live.py", "integration/test_individual_commit.py", "clients/test_*.py"),
)
CASES: Final = re.compile(r"\b[Cc]ases? (C\d+(?:(?:, | and | to )C\d+)*)")
LAST: Final = 68


def numbers(text: str) -> set[int]:
    """Return the numbers of the cases that a docstring names."""
    found: set[int] = set()
    for named in CASES.findall(text):
        for part in re.split(r", | and ", named.replace("C", "")):
            first, _, last = part.partition(" to ")
            found.update(range(int(first), int(last or first) + 1))
    return found


def test_each_case_is_a_test() -> None:
    found: set[int] = set()
    for path in chain.from_iterable(TESTS.glob(pattern) for pattern in FILES):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                found |= numbers(ast.get_docstring(node) or "")
    assert set(range(1, LAST + 1)) - found == set()


def test_each_case_has_its_row() -> None:
    page = (Path(__file__).parent / "CASES.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| C(\d+)(?:-C(\d+))? \|", page, re.MULTILINE)
    assert [each for first, last in rows for each in range(int(first), int(last or first) + 1)] == [
        *range(1, LAST + 1)
    ]
