"""`make test` runs each test, although it names the folders of integration tests."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
MARK = re.compile(r"\bmark\.integration\b")


def test_each_integration_test_is_in_a_folder_that_make_test_names() -> None:
    (named,) = re.findall(r"^INTEGRATION := (.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    folders = [ROOT / folder for folder in named.split()]
    marked = [path for path in (ROOT / "tests").rglob("*.py") if MARK.search(path.read_text())]
    assert [path for path in marked if not any(map(path.is_relative_to, folders))] == []
    for folder in folders:
        assert any(path.is_relative_to(folder) for path in marked), folder
