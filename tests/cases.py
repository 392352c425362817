"""The sections, traps and cases that docs/developers/fetch-semantics.md numbers, and where they are cited.

A citation is written "section 2.3", "Case 17", "Cases 22 to 27", "cases 14 and 15", "Trap 25a"; in comments
of the code "fetch-semantics 2.3 (case 17)". Rules are those of proxy/features/racks/README.md.
"""

import ast
import re
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from io import StringIO
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
PAGE: Final = ROOT / "docs" / "developers" / "fetch-semantics.md"
RULES: Final = ROOT / "proxy" / "features" / "racks" / "README.md"

_NUMBER: Final = r"\d+a?"
_CITATION: Final = re.compile(
    rf"\b(case|trap|rule)s? ({_NUMBER}(?:(?:, | and | to ){_NUMBER})*)", re.IGNORECASE
)
_SECTION: Final = re.compile(
    r"(?:fetch-semantics(?:\.md)?,? (?:section )?|\bsection )(\d+(?:\.\d+)?)", re.IGNORECASE
)
_WORD: Final = re.compile(r"\b(?:cases?|traps?|rules?)\s|section|fetch-semantics", re.IGNORECASE)
"""Every citation contains a match of this pattern. A file without a match is skipped, because reading a file
token by token is slow.
"""
_RFC: Final = re.compile(r"RFC \d+, section \d+")


@cache
def sections() -> frozenset[str]:
    """Return the numbers of the page's headings, such as "2.3"."""
    return frozenset(re.findall(r"^#{2,3} (\d+(?:\.\d+)?)[. ]", PAGE.read_text(), re.MULTILINE))


@cache
def traps() -> frozenset[str]:
    """Return the numbers of all traps: sections 6.1 to 6.12 list them."""
    return frozenset(re.findall(rf"^- \*\*({_NUMBER})\.\*\*", _between("## 6.", "### 6.13"), re.MULTILINE))


@cache
def cases() -> frozenset[str]:
    """Return the numbers of all cases: section 7 lists them."""
    return frozenset(re.findall(r"^(\d+)\. ", _between("## 7.", "## 8."), re.MULTILINE))


@cache
def rules() -> list[str]:
    """Return the numbers of all rules, in the order of the page."""
    return re.findall(rf"^- \*\*({_NUMBER})\.\*\*", RULES.read_text(), re.MULTILINE)


def _between(start: str, end: str) -> str:
    return PAGE.read_text().split(f"\n{start}")[1].split(f"\n{end}")[0]


def cited(text: str) -> set[tuple[str, str]]:
    """Return (case, trap or rule, number) for each citation in a text."""
    found: set[tuple[str, str]] = set()
    for kind, numbers in _CITATION.findall(" ".join(text.split())):
        for span in re.split(r", | and ", numbers):
            first, _, last = span.partition(" to ")
            each = map(str, range(int(first), int(last) + 1)) if last else [first]
            found |= {(kind.lower(), number) for number in each}
    return found


def cited_sections(text: str) -> set[str]:
    """Return the sections of the page that a text cites. Sections of an RFC do not count."""
    return set(_SECTION.findall(_RFC.sub("", " ".join(text.split()))))


@cache
def prose() -> dict[str, str]:
    """Return the text of comments, docstrings and other strings, for each file that may cite the page."""
    found = {}
    for folder in ("proxy", "replay", "tests"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            source = path.read_text()
            if not _WORD.search(source):
                continue
            kept = [
                token.string.lstrip("# ")
                for token in tokenize.generate_tokens(StringIO(source).readline)
                if token.type in (tokenize.COMMENT, tokenize.STRING)
            ]
            found[path.relative_to(ROOT).as_posix()] = "\n".join(kept)
    return found


def _tests(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            yield node


@cache
def docstrings_by_path() -> dict[str, dict[str, str]]:
    """Return all docstrings of tests: file path -> test name -> docstring. Tests in classes are included."""
    return {
        path.relative_to(ROOT).as_posix(): {node.name: ast.get_docstring(node) or "" for node in _tests(path)}
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
    }


@cache
def citing_tests(kind: str) -> dict[str, list[str]]:
    """Return case or trap number -> tests (path::test) that cite it in their docstrings."""
    found: dict[str, list[str]] = defaultdict(list)
    for path, tests in docstrings_by_path().items():
        for name, doc in tests.items():
            for what, number in cited(doc):
                if what == kind:
                    found[number].append(f"{path}::{name}")
    return found
