"""The Markdown pages have short lines, working links and new pictures. The names of code in them exist."""

import json
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Final

import pytest

from tools import diagram, docs_site, picture
from tools.pages.all import PAGES as PAGES_OF_CODE
from tools.pages.markdown import anchor

ROOT: Final = Path(__file__).parents[1]
FOLDERS: Final = ("docs", "captures", "proxy", "tests", "tools")
PAGES: Final = sorted(
    [*ROOT.glob("*.md"), *(page for name in FOLDERS for page in (ROOT / name).rglob("*.md"))]
)
MAX_LINE: Final = 160
LINK: Final = re.compile(r"\]\(([^)\s]+)\)")
CODE_BLOCK: Final = re.compile(r"^```[\s\S]*?^```$|^ {4,}\S.*$", re.MULTILINE)
SPECIFICATION: Final = "docs/developers/fetch-semantics.md"
BUDGETS: Final = {
    ("README.md",): 1_000,
    ("CHANGELOG.md",): 2_500,
    ("BENCHMARKS.md",): 3_500,
    (SPECIFICATION,): 9_500,
    ("docs/users/**/*.md", "README.md", "SECURITY.md", "docs/README.md"): 16_000,
    ("docs/developers/*.md", "CONTRIBUTING.md", "captures/README.md", "proxy/features/**/README.md"): 9_000,
}
"""The most words of pages together, without code and the addresses of links. Pages that are made from code
have none, and the specification, which is looked up by its numbers, has its own."""
CODE: Final = ("proxy", "replay", "tests", "tools")
FILE: Final = re.compile(r"`((?:proxy|replay|tests|tools|docs|captures)/[\w./-]*)")
TEST: Final = re.compile(r"\btests/[\w./]+|\btest_\w+")
NAME: Final = re.compile(r"`([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)`")
FILES: Final = (".md", ".py", ".toml")


def named(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@cache
def text(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def words_in(markdown: str) -> int:
    """Return the number of words, without the addresses of links."""
    return len(re.findall(r"\S*\w\S*", LINK.sub("]", markdown)))


@cache
def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub gives to the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", text(page), re.MULTILINE)
    return {*map(anchor, headings)}


def test_no_line_is_longer_than_a_reader_takes_in() -> None:
    lines = [
        (named(page), number, line)
        for page in PAGES
        for number, line in enumerate(text(page).splitlines(), 1)
    ]
    wrong = [(page, number) for page, number, line in lines if len(line) > MAX_LINE]
    assert not wrong, wrong


def leads_there(page: Path, link: str) -> bool:
    path, _, heading = link.partition("#")
    target = page.parent / path if path else page
    return target.exists() and (not heading or heading in anchors(target))


def test_each_link_to_a_file_or_a_heading_leads_there() -> None:
    links = [
        (page, link) for page in PAGES for link in LINK.findall(text(page)) if not link.startswith("http")
    ]
    wrong = [(named(page), link) for page, link in links if not leads_there(page, link)]
    assert not wrong, wrong


def test_each_file_of_the_repository_that_is_named_is_there() -> None:
    paths = [(named(page), path) for page in PAGES for path in FILE.findall(text(page))]
    wrong = [(page, path) for page, path in paths if "NAME" not in path and not (ROOT / path).exists()]
    assert not wrong, wrong


def test_each_field_of_the_state_is_explained() -> None:
    state = json.loads((ROOT / "tests" / "golden" / "state.json").read_text(encoding="utf-8"))
    page = text(ROOT / "docs" / "users" / "top.md").partition("| fields of `/state` |")[2]
    assert state.keys() - {*re.findall(r"`(\w+)`", page)} == set()


def test_each_name_of_the_code_on_the_page_for_contributors_is_there() -> None:
    code = "".join(path.read_text(encoding="utf-8") for name in CODE for path in (ROOT / name).rglob("*.py"))
    known = set(re.findall(r"\w+", code))
    for name in NAME.findall(text(ROOT / "CONTRIBUTING.md")):
        assert name.endswith(FILES) or set(name.split(".")) <= known, name


def test_the_supported_brokers_are_those_that_tests_run() -> None:
    """The page of brokers and the broker tests list the same Kafka releases."""
    brokers = text(ROOT / "docs" / "users" / "compatibility.md")
    table = brokers.partition("| broker | Fetch versions |")[2].partition("\n\n")[0]
    lockstep = (ROOT / "tests" / "integration" / "test_lockstep.py").read_text(encoding="utf-8")
    (run,) = re.findall(r"^RELEASES = \((.*)\)$", lockstep, re.MULTILINE)
    assert re.findall(r"^\| (\d\S+) \|", table, re.MULTILINE) == re.findall('"(.+?)"', run)


@pytest.mark.parametrize("path", PAGES_OF_CODE, ids=lambda path: path.stem)
def test_a_page_that_is_made_from_declarations_has_them(path: Path) -> None:
    assert path.read_text(encoding="utf-8") == PAGES_OF_CODE[path](), "a declaration has changed: make pages"


@pytest.mark.parametrize(
    ("file", "draw"),
    [
        (picture.PICTURE, lambda: picture.picture(picture.recorded(picture.RECORDED))),
        (picture.MANY, picture.picture_of_many),
        (diagram.PICTURE, lambda: diagram.picture(diagram.BENCHMARKS.read_text(encoding="utf-8"))),
    ],
    ids=["top", "many", "fetch"],
)
def test_a_picture_is_of_this_version(file: Path, draw: Callable[[], str]) -> None:
    assert file.read_text(encoding="utf-8") == draw(), "an old picture: run make pictures"


@pytest.mark.parametrize("pages", BUDGETS)
def test_pages_have_no_more_words_than_a_reader_has_time_for(pages: tuple[str, ...]) -> None:
    found = {page for pattern in pages for page in ROOT.glob(pattern)}
    if SPECIFICATION not in pages:
        found -= {ROOT / SPECIFICATION}
    words = {named(page): words_in(CODE_BLOCK.sub("", text(page))) for page in sorted(found)}
    assert sum(words.values()) <= BUDGETS[pages], words


def test_only_pages_for_developers_name_tests() -> None:
    pages = [page for folder in ("users", "reference") for page in (ROOT / "docs" / folder).rglob("*.md")]
    wrong = [(named(page), name) for page in pages for name in TEST.findall(text(page))]
    assert not wrong, wrong


def test_each_word_of_the_glossary_is_short_and_linked_from_a_page_for_users() -> None:
    page = text(ROOT / "docs" / "users" / "glossary.md")
    _, *entries = re.split(r"^### ", page, flags=re.MULTILINE)
    words = [entry.partition("\n")[0] for entry in entries]
    assert words == sorted(words)
    for word, entry in zip(words, entries, strict=True):
        assert len(re.findall(r"\.(?=\s)", entry)) <= 2, word
    users = "".join(text(page) for page in (ROOT / "docs" / "users").rglob("*.md"))
    linked = set(re.findall(r"glossary\.md#([\w-]+)", users))
    assert {word.lower().replace(" ", "-") for word in words} == linked


def test_each_page_has_its_place_in_the_site() -> None:
    """A page that is not in `nav` of mkdocs.yml would make `make docs` fail."""
    placed = re.findall(r"(\S+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE)
    there = {named(page) for page in docs_site.pages()}
    assert there - {*placed} == set(), "write it into nav of mkdocs.yml"
    assert {*placed} - there == set(), "no page links to it"


NOT_OURS: Final = re.compile(
    r"(?:pip|pipx|uv)3? (?:tool )?(?:install|inject|upgrade|add)\b[^\n`'\"]*(?<![\w.@/-])fetchgate\b(?!-)"
    r"|(?<![\w-])fetchgate\[",
)
TEXTS: Final = frozenset({".md", ".py", ".toml", ".sh", ".yaml", ".yml", ".ipynb", ".service"})
OTHER_TEXTS: Final = frozenset({"Makefile", "Containerfile"})


def test_no_text_names_another_projects_distribution() -> None:
    """No text tells users to install `fetchgate` from the public index, which is another project.

    Our distribution is called `kafka-fetchgate`.
    """
    files = [*ROOT.glob("*"), *(path for name in (*FOLDERS, *CODE) for path in (ROOT / name).rglob("*"))]
    texts = [path for path in files if path.suffix in TEXTS or path.name in OTHER_TEXTS]
    found = {path for path in texts if NOT_OURS.search(path.read_text(encoding="utf-8"))}
    assert found <= {Path(__file__)}


@pytest.mark.parametrize(
    "wrong", ["pip install fetchgate", "pip install -U 'fetchgate[replay]'", "pipx inject fetchgate x"]
)
def test_such_a_text_would_be_found(wrong: str) -> None:
    assert NOT_OURS.search(wrong)
