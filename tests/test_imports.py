"""The import rules, folder by folder: see "Layout" in docs/developers/design.md."""

import ast
from pathlib import Path

import pytest

import proxy
import replay

ROOT = Path(__file__).parents[1]
FLOORS = (
    ("proxy.printable",),
    (
        "proxy.addresses",
        "proxy.installing",
        "proxy.logger",
        "proxy.options",
        "proxy.error_text",
        "proxy.adding",
        "proxy.units",
        "proxy.version",
        "proxy.protocol",
    ),
    ("proxy.session", "proxy.fetch_manager", "proxy.capture", "proxy.environment"),
    ("proxy.core",),
    ("proxy.cooperative",),
    ("proxy.config",),
    ("proxy.net", "proxy.exits", "proxy.effective_config"),
    ("proxy.telemetry", "proxy.completion"),
    ("proxy.server", "proxy.dashboard"),
    ("proxy.cli",),
    ("proxy.__main__",),
    ("replay.exits", "replay.environment"),
    ("replay.protocol", "replay.capture.tls"),
    ("replay.capture.files",),
    ("replay.capture.packets",),
    ("replay.capture.kafka",),
    ("replay.simulate", "replay.report"),
    ("replay.inspect", "replay.measure", "replay.drive", "replay.source"),
    ("replay.cli",),
)
"""The layers, from the lowest to the highest. A folder imports only from itself and from lower layers."""
SANS_IO = (
    "proxy.addresses",
    "proxy.installing",
    "proxy.printable",
    "proxy.adding",
    "proxy.units",
    "proxy.protocol",
    "proxy.session",
    "proxy.fetch_manager",
    "proxy.core",
    "proxy.cooperative",
)
"""Folders that open no socket or file, and read no clock. From `proxy`, `replay` may import only folders in
this list."""
WORLD = frozenset(
    {
        "asyncio",
        "concurrent",
        "http",
        "io",
        "logging",
        "multiprocessing",
        "os",
        "pathlib",
        "random",
        "secrets",
        "select",
        "selectors",
        "shutil",
        "signal",
        "socket",
        "ssl",
        "subprocess",
        "sys",
        "tempfile",
        "threading",
        "time",
        "urllib",
        "uuid",
        "uvloop",
    }
)


def _modules(package: str) -> dict[str, Path]:
    found = {}
    for path in sorted((ROOT / package).rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def _imports(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            assert node.module is not None
            names.add(node.module)
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return names


PROXY = _modules("proxy")
REPLAY = _modules("replay")
MODULES = PROXY | REPLAY
PACKAGES = frozenset({"proxy", "replay", "replay.capture"})
"""Packages whose `__init__` is only a docstring. They belong to no layer."""


def _within(name: str, package: str) -> bool:
    return name == package or name.startswith(f"{package}.")


def _in(name: str, packages: tuple[str, ...]) -> bool:
    return any(_within(name, package) for package in packages)


def _room(module: str) -> tuple[int, str]:
    """Return the layer of a module, and the entry of `FLOORS` that contains it."""
    ((floor, room),) = [
        (floor, room) for floor, rooms in enumerate(FLOORS) for room in rooms if _within(module, room)
    ]
    return floor, room


@pytest.mark.parametrize("module", sorted(name for name in PROXY if _in(name, SANS_IO)))
def test_a_sans_io_module_touches_no_world(module: str) -> None:
    imported = _imports(PROXY[module])

    assert not {name for name in imported if name.split(".")[0] in WORLD}
    assert not {name for name in imported if _within(name, "proxy") and not _in(name, SANS_IO)}


@pytest.mark.parametrize("module", sorted(name for name in PROXY if _in(name, SANS_IO)))
def test_a_sans_io_module_opens_and_prints_nothing(module: str) -> None:
    tree = ast.parse(PROXY[module].read_text(encoding="utf-8"))
    called = {
        node.func.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    assert not called & {"open", "print", "input", "__import__", "exec", "eval"}


@pytest.mark.parametrize("module", sorted(MODULES.keys() - PACKAGES))
def test_imports_go_one_way(module: str) -> None:
    own, room = _room(module)
    imported = _imports(MODULES[module])

    wrong = {
        name
        for name in imported & MODULES.keys() - PACKAGES
        if not _within(name, room) and _room(name)[0] >= own
    }
    assert not wrong
    above = ("tests", "tools") if module in REPLAY else ("replay", "tests", "tools")
    assert not {name for name in imported if _in(name, above)}


def test_no_modules_import_each_other() -> None:
    arrows = {
        module: _imports(path) & MODULES.keys() - PACKAGES - {module} for module, path in MODULES.items()
    }
    left = dict(arrows)
    while ground := {module for module in left if not left[module] & left.keys()}:
        left = {module: left[module] for module in left.keys() - ground}

    assert not left


@pytest.mark.parametrize("module", sorted(REPLAY))
def test_replay_uses_the_sans_io_half_of_proxy_alone(module: str) -> None:
    imported = {name for name in _imports(REPLAY[module]) if name in PROXY}

    assert not {name for name in imported if not _in(name, SANS_IO)}


@pytest.mark.parametrize("path", [ROOT / "proxy" / "__init__.py", ROOT / "replay" / "__init__.py"])
def test_a_packages_init_is_its_docstring(path: Path) -> None:
    (statement,) = ast.parse(path.read_text(encoding="utf-8")).body

    assert isinstance(statement, ast.Expr)
    assert isinstance(statement.value, ast.Constant)
    assert isinstance(statement.value.value, str)


def test_what_is_imported_as_proxy_and_replay_is_ours() -> None:
    assert Path(proxy.__file__) == ROOT / "proxy" / "__init__.py"
    assert Path(replay.__file__) == ROOT / "replay" / "__init__.py"
