"""A forgotten step of a recipe in CONTRIBUTING.md makes a test of `make check` fail.

Most recipes have such tests where their code is tested. Here are the steps that only lists and pages have.
"""

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

import pytest

from proxy.command.config import OPTIONS
from proxy.protocol.api_versions import Features
from replay.cli import COMMANDS
from tests.clients import fixtures
from tests.clients.programs import PROGRAMS
from tests.clients.runner import python_programs
from tests.integration.test_lockstep import RELEASES
from tests.model.releases import Release
from tools.kafka import LATEST

ROOT: Final = Path(__file__).parents[1]
DOCS: Final = ROOT / "docs"
LINK: Final = re.compile(r"\]\(([^)\s#]+\.md)")
BROKERS: Final = (DOCS / "users" / "compatibility.md").read_text(encoding="utf-8")
CONSUMERS: Final = ROOT / "tests" / "clients"


@cache
def text_of(folder: str) -> str:
    return "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / folder).rglob("*.py"))


def attributes_in(folder: str) -> set[str]:
    """Return the names of all attributes that the code of a folder reads."""
    return set(re.findall(r"\.(\w+)", text_of(folder)))


def section_of(page: Path, heading: str) -> str:
    return page.read_text(encoding="utf-8").partition(f"\n{heading}")[2].partition("\n## ")[0]


# An option


def test_each_option_is_used() -> None:
    assert {each.name for each in OPTIONS} - attributes_in("proxy") == set()


def test_each_live_option_is_in_the_file_of_the_unit_in_order() -> None:
    file = (ROOT / "tools" / "deploy" / "systemd" / "fetchgate.toml").read_text(encoding="utf-8")
    shown = re.findall(r"^#?(\w+) = ", file, re.MULTILINE)
    assert shown == [option.name for option in OPTIONS if option.live], "tools/deploy/systemd/fetchgate.toml"


@pytest.mark.parametrize("command", ["inspect", "drive"])
def test_each_option_of_a_command_for_captures_is_used(command: str) -> None:
    used = {*re.findall(r"\b(?:options|self)\.(\w+)", text_of(f"replay/{command}"))}
    assert {option.name for option in COMMANDS[command].options.declared()} <= used


# A stage


def test_each_stage_is_made_for_a_connection() -> None:
    used = text_of("proxy")
    bases = dict(re.findall(r"^class (\w+)\((\w+)\)", used, re.MULTILINE))
    stages = {name for name in bases if "Stage" in (bases[name], bases.get(bases[name]))}
    made = re.findall(r"(?<!class )\b([A-Z]\w+)\(|partial\((\w+)|return \((\w+),\)", used)
    assert len(stages) >= 5
    assert stages - {*bases.values()} - {name for names in made for name in names} == set()


# A page


def links_of(page: Path) -> Iterator[Path]:
    for link in LINK.findall(page.read_text(encoding="utf-8")):
        yield (page.parent / link).resolve()


def test_each_page_is_found_from_the_first_one() -> None:
    """`docs/README.md` links each page."""
    found = {*links_of(DOCS / "README.md")}
    assert {*DOCS.rglob("*.md")} - found - {DOCS / "README.md"} == set()


# A client


def test_each_consumer_program_is_run() -> None:
    programs = "".join((CONSUMERS / name).read_text() for name in ("runner.py", "programs.py"))
    python = {path.stem for path in (CONSUMERS / "python").glob("consume_*.py")}
    assert {name for name in python if not re.search(rf"\b{name}\b", programs)} == set()
    script = {path.stem.removeprefix("consume_") for path in (CONSUMERS / "js").glob("consume_*.js")}
    assert {name for name in script if f'"{name}"' not in programs} == set()


def test_each_python_program_is_a_parameter_of_the_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.clients.runner.subprocess.run", lambda *_, **__: None)  # nothing is installed
    (mark,) = re.findall(r"params=(\[.*\])\)\ndef program\(", Path(fixtures.__file__).read_text())
    assert sorted(re.findall(r'"(.+?)"', mark)) == sorted(python_programs())


NAMES: Final = {"java": "Java", "java-4.4": "Java 4.4", "kafka-python-2.0.2": "kafka-python 2.0.2"}
"""The clients that are called otherwise on the page."""


def test_each_client_is_on_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.clients.runner.subprocess.run", lambda *_, **__: None)
    table = section_of(DOCS / "users" / "compatibility.md", "## Clients")
    told = re.findall(r"^\| ([^|]+) \|", table, re.MULTILINE)
    named = {NAMES.get(name, name.replace("-1.", " 1.")) for name in (*PROGRAMS, *python_programs())}
    shown = "\n".join(told).lower()
    assert {name for name in named if name.lower() not in shown} == set()


# A broker version


def test_each_release_is_in_the_model_with_the_fetch_versions_of_the_page() -> None:
    told = dict(re.findall(r"^\| (\d\S+) \| (\d+-\d+) \|", BROKERS, re.MULTILINE))
    assert told == {release: "{}-{}".format(*Release.parse(release).fetch_versions) for release in RELEASES}


def test_each_release_is_told_of_where_facts_were_checked() -> None:
    checked = section_of(DOCS / "developers" / "fetch-semantics.md", "## 8. Checked against")
    assert [release for release in RELEASES if release not in checked] == []


LISTS: Final = {
    "test_model_live.py": {"1.0.2"},  # it has no sessions, which are what is compared
    "test_addresses.py": {"3.9.1", "2.4.1", "1.1.1"},  # their responses have the layouts of others
    "test_brokers.py": {"4.3.0"},  # as 4.4.0
    "test_old_brokers.py": {"4.3.0"},  # as 4.4.0
}
"""The other lists of releases in `tests/integration`, and which releases each leaves out."""


@pytest.mark.parametrize("name", LISTS)
def test_each_release_is_in_the_other_lists(name: str) -> None:
    text = (ROOT / "tests" / "integration" / name).read_text(encoding="utf-8")
    listed = {*re.findall(r'^\s+\(?"(\d\.\d\.\d)"[:,]', text, re.MULTILINE)}
    assert {*RELEASES} - listed == LISTS[name]


def test_the_release_that_most_tests_run_is_one_of_the_newest_two() -> None:
    assert LATEST in RELEASES[:2]


# A broker's quirk


def test_each_difference_between_brokers_is_used() -> None:
    def properties(kind: type) -> set[str]:
        return {name for name, value in vars(kind).items() if isinstance(value, property)}

    assert properties(Features) - attributes_in("proxy") - attributes_in("replay/simulate") == set()
    assert properties(Release) - attributes_in("tests/model") == set()
