"""The import rules, folder by folder: see "Layout" in docs/developers/design.md."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

import proxy
import replay
from proxy.features.declared import FEATURES as DECLARED

ROOT = Path(__file__).parents[1]
FLOORS = (
    ("proxy.addresses", "proxy.logger", "proxy.adding", "proxy.explained", "proxy.version", "proxy.protocol"),
    ("proxy.session", "proxy.text"),
    ("proxy.core", "proxy.capture"),
    ("proxy.prometheus",),
    ("proxy.features",),
    ("proxy.command",),
    ("proxy.net",),
    ("proxy.telemetry",),
    ("proxy.server", "proxy.dashboard"),
    ("proxy.__main__",),
    ("replay.exits", "replay.options"),
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
    "proxy.adding",
    "proxy.explained",
    "proxy.text.installing",
    "proxy.text.printable",
    "proxy.text.units",
    "proxy.text.values",
    "proxy.version",
    "proxy.protocol",
    "proxy.session",
    *(
        f"proxy.features.{path.parent.name}.{path.stem}"
        for path in sorted((ROOT / "proxy" / "features").glob("*/*.py"))
        if path.stem not in {"__init__", "options", "figures", "preflight", "running"}
    ),
    "proxy.core",
)
"""Folders that open no socket or file, and read no clock. From `proxy`, `replay` may import only folders in
this list, and `COMMAND_LINE`."""
OF_REPLAY = {
    *(f"proxy.features.cooperative.{name}" for name in ("batches", "key_hash", "plan")),
    *(f"proxy.features.cooperative.{name}" for name in ("positions", "ranges")),
    "proxy.features.limits.fetch_floors",
}
"""What `replay` uses of features."""
COMMAND_LINE = {
    "proxy.command.config",
    "proxy.command.flags",
    "proxy.features.limits.options",
    "proxy.net.tls",
    "proxy.text.environment",
    "proxy.text.options",
}
"""What the command line of `replay` uses in addition: its options are declared and read like those of the
gateway, whose options may be in the same file. So are the files of `--broker-tls-ca` and its like."""
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


FORBIDDEN = frozenset({"open", "print", "input", "__import__", "exec", "eval"})


def _modules(package: str) -> dict[str, Path]:
    found = {}
    for path in sorted((ROOT / package).rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def _imports(path: Path) -> frozenset[str]:
    names: set[str] = set()
    for node in ast.walk(_tree(path)):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            assert node.module is not None
            names.add(node.module)
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return frozenset(names)


PROXY = _modules("proxy")
REPLAY = _modules("replay")
MODULES = PROXY | REPLAY
PACKAGES = frozenset({"proxy", "replay", "replay.capture"})
"""Packages whose `__init__` is only a docstring. They belong to no layer."""


def _within(name: str, package: str) -> bool:
    return name == package or name.startswith(f"{package}.")


def _in(name: str, packages: tuple[str, ...]) -> bool:
    return any(_within(name, package) for package in packages)


@cache
def _room(module: str) -> tuple[int, str]:
    """Return the layer of a module, and the entry of `FLOORS` that contains it."""
    _, floor, room = max(
        (len(room), floor, room)
        for floor, rooms in enumerate(FLOORS)
        for room in rooms
        if _within(module, room)
    )
    return floor, room


PURE = {name: path for name, path in PROXY.items() if _in(name, SANS_IO)}


def test_sans_io_modules_touch_no_world() -> None:
    wrong = {
        (module, name)
        for module, path in PURE.items()
        for name in _imports(path)
        if name.split(".")[0] in WORLD or (_within(name, "proxy") and not _in(name, SANS_IO))
    }
    assert not wrong, wrong


def test_sans_io_modules_open_and_print_nothing() -> None:
    wrong = {
        (module, node.func.id)
        for module, path in PURE.items()
        for node in ast.walk(_tree(path))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in FORBIDDEN
    }
    assert not wrong, wrong


def test_imports_go_one_way() -> None:
    wrong = set()
    for module in MODULES.keys() - PACKAGES:
        own, room = _room(module)
        above = ("tests", "tools") if module in REPLAY else ("replay", "tests", "tools")
        for name in _imports(MODULES[module]) - PACKAGES:
            known = name in MODULES and not _within(name, room)
            if _in(name, above) or (known and _room(name)[0] >= own):
                wrong.add((module, name))
    assert not wrong, wrong


FEATURES = sorted(path.parent.name for path in (ROOT / "proxy" / "features").glob("*/__init__.py"))


@pytest.mark.parametrize("module", sorted(PROXY.keys() - PACKAGES))
def test_a_feature_is_named_in_its_folder_alone(module: str) -> None:
    other = {f"proxy.features.{each}" for each in FEATURES if not _within(module, f"proxy.features.{each}")}

    assert not {name for name in _imports(PROXY[module]) for each in other if _within(name, each)}


def test_the_base_names_no_option_of_a_feature() -> None:
    """`fetchgate top` may: `Snapshot` takes what a gateway without the feature leaves out as 0 or empty."""
    flags = "|".join(option.flag for each in DECLARED for option in each.options.declared()) or "(?!)"
    base = PROXY.items() - {
        item for item in PROXY.items() if _in(item[0], ("proxy.features", "proxy.dashboard"))
    }

    assert not [
        module for module, path in base if re.search(rf"(?<![\w-])({flags})(?![\w-])", path.read_text())
    ]


def test_no_modules_import_each_other() -> None:
    arrows = {
        module: _imports(path) & MODULES.keys() - PACKAGES - {module} for module, path in MODULES.items()
    }
    left = dict(arrows)
    while ground := {module for module in left if not left[module] & left.keys()}:
        left = {module: left[module] for module in left.keys() - ground}

    assert not left


def test_replay_uses_the_sans_io_half_of_proxy_alone() -> None:
    wrong = {
        (module, name)
        for module, path in REPLAY.items()
        for name in _imports(path)
        if name in PROXY and not _in(name, SANS_IO) and name not in COMMAND_LINE
    }
    assert not wrong, wrong
    used = {name for path in REPLAY.values() for name in _imports(path)} & PROXY.keys() - PACKAGES
    assert {name for name in used if _within(name, "proxy.features")} <= OF_REPLAY | COMMAND_LINE


def test_spark_is_imported_in_two_folders_alone() -> None:
    rooms = ("replay.measure.spark", "replay.source")
    wrong = {
        module
        for module, path in MODULES.items()
        for name in _imports(path)
        if _in(name, ("pyspark", "pandas")) and not _in(module, rooms)
    }
    assert not wrong, wrong


def test_a_packages_init_is_its_docstring() -> None:
    """Spark's workers import `proxy` and `replay`, so these import nothing."""
    for module in ("proxy", "replay"):
        (statement,) = _tree(MODULES[module]).body

        assert isinstance(statement, ast.Expr)
        assert isinstance(statement.value, ast.Constant)
        assert isinstance(statement.value.value, str)


def test_what_is_imported_as_proxy_and_replay_is_ours() -> None:
    assert Path(proxy.__file__) == ROOT / "proxy" / "__init__.py"
    assert Path(replay.__file__) == ROOT / "replay" / "__init__.py"
