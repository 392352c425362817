"""A test is found by the name of its module: that of `proxy/core/own.py` is `tests/core/test_own.py`.

A large module, or one with a law of its own, has more files: `test_fetches_cost.py`.
"""

import ast
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[1]
FOLDERS: Final = ("core", "core/asking", "features/cooperative", "server")
"""The folders of `proxy` to which the rule applies."""
HANDFUL: Final = 12
"""A module with no more statements than this needs no test file."""

SPANNING: Final = {
    "features/cooperative/test_cases.py": "the numbers of cases that all tests of cooperative groups cite",
    "features/cooperative/test_cooperative_options.py": "the options of this feature",
    "core/test_conformance.py": "the cases of fetch-semantics, through a whole connection",
    "core/test_expanded_equals_direct.py": "the law of sessions, through a whole connection",
    "core/test_foreign.py": "connections that are not Kafka: both sides, and the gateway's sockets",
    "core/test_keep_order.py": "an option of which eligibility and responses have a part each",
    "core/test_native_equals_direct.py": "the law of clients' own sessions, through a whole connection",
    "core/test_remembered.py": "the memory of a whole connection",
    "core/test_slow_loris.py": "slow peers of all listeners of a gateway",
    "server/test_imported.py": "what a whole process imports",
}
"""Test files that span modules, and what of them."""
WITHIN: Final = {
    "features/cooperative/assignment.py": "features/cooperative/test_joining.py",
    "features/cooperative/figures.py": "features/cooperative/test_running.py",
    "features/cooperative/options.py": "features/cooperative/test_cooperative_options.py",
    "features/cooperative/identity.py": "features/cooperative/test_member_stage.py",
    "features/cooperative/member.py": "features/cooperative/test_joining.py",
    "features/cooperative/responses.py": "features/cooperative/test_member_stage.py",
    "features/cooperative/wire.py": "features/cooperative/test_offsets.py",
    "core/asking/asker.py": "features/leaders/test_stage.py",
    "core/asking/repeat.py": "features/leaders/test_fetch_repeat.py",
    "core/asking/role.py": "features/leaders/test_stage_siblings.py",
    "server/host.py": "features/racks/test_rack_audit.py",
    "server/main.py": "command/test_cli.py",
    "server/slots_check.py": "server/test_preflight.py",
}
"""Modules that are tested with the modules that use them, and the test file of these."""


def _modules(folder: str) -> dict[str, int]:
    """Return the modules of a folder, with their numbers of statements."""
    return {
        path.stem: sum(isinstance(node, ast.stmt) for node in ast.walk(ast.parse(path.read_text())))
        for path in (ROOT / "proxy" / folder).glob("*.py")
        if path.stem != "__init__"
    }


def _tested(name: str, modules: dict[str, int]) -> str | None:
    """Return the module that a test file is about: the longest name with which its own begins."""
    about = name.removeprefix("test_").removesuffix(".py")
    found = [module for module in modules if f"{about}_".startswith(f"{module}_")]
    return max(found, key=len, default=None)


@pytest.mark.parametrize("folder", FOLDERS)
def test_each_module_has_a_test_file_and_each_test_file_a_module(folder: str) -> None:
    modules = _modules(folder)
    files = {f"{folder}/{path.name}": path.name for path in (ROOT / "tests" / folder).glob("test_*.py")}
    spanning = {name for name in SPANNING if name.startswith(f"{folder}/")}
    tested = {_tested(name, modules) for path, name in files.items() if path not in spanning}
    large = {module for module, statements in modules.items() if statements > HANDFUL}
    within = {module for module in large if f"{folder}/{module}.py" in WITHIN}

    assert large - tested == within, "these modules have no test file, or are in WITHIN for nothing"
    assert None not in tested, [
        path for path, name in files.items() if path not in spanning and not _tested(name, modules)
    ]
    assert not spanning - files.keys()


def test_what_is_tested_with_another_module_is_there() -> None:
    assert not [path for path in WITHIN if not (ROOT / "proxy" / path).exists()]
    assert not [path for path in WITHIN.values() if not (ROOT / "tests" / path).exists()]
