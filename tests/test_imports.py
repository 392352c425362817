"""The import rules: protocol <- session <- connection <- server <- cli; sans-IO modules touch no world."""

import ast
from pathlib import Path

import pytest

import proxy
import replay

ROOT = Path(__file__).parent.parent
SHELL = frozenset(
    f"proxy.{name}"
    for name in (
        "__main__",
        "admin",
        "binding",
        "bootstrap",
        "captures",
        "channel",
        "checking",
        "cli",
        "config",
        "dashboard.top",
        "front",
        "hand",
        "heap",
        "lean",
        "listeners",
        "logs",
        "looping",
        "loops",
        "metrics",
        "reach",
        "reloading",
        "running",
        "server",
        "sockets",
        "serving",
        "state",
        "systemd",
        "tls",
        "transparent",
        "transports",
        "upkeep",
        "worker",
        "workers",
    )
)
"""All other modules of proxy are sans-IO."""
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
LAYERS = (
    "proxy.protocol",
    "proxy.session",
    "proxy.connection",
    "proxy.transports",
    "proxy.serving",
    "proxy.server",
    "proxy.cli",
)
"""Each may import those before it, never one after it."""


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
SANS_IO = sorted(PROXY.keys() - SHELL)


def _within(name: str, package: str) -> bool:
    return name == package or name.startswith(f"{package}.")


def test_the_modules_named_as_shell_exist() -> None:
    assert PROXY.keys() >= SHELL


@pytest.mark.parametrize("module", SANS_IO)
def test_a_sans_io_module_touches_no_world(module: str) -> None:
    imported = _imports(PROXY[module])

    assert not {name for name in imported if name.split(".")[0] in WORLD}
    assert not {name for name in imported if name in SHELL}


@pytest.mark.parametrize("module", SANS_IO)
def test_a_sans_io_module_opens_and_prints_nothing(module: str) -> None:
    tree = ast.parse(PROXY[module].read_text(encoding="utf-8"))
    called = {
        node.func.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    assert not called & {"open", "print", "input", "__import__", "exec", "eval"}


@pytest.mark.parametrize("module", sorted(PROXY))
def test_imports_go_one_way(module: str) -> None:
    imported = _imports(PROXY[module])
    own = next((rank for rank, layer in enumerate(LAYERS) if _within(module, layer)), None)

    if own is not None:
        later = [layer for layer in LAYERS[own + 1 :] if any(_within(name, layer) for name in imported)]
        assert not later
    assert not {name for name in imported if _within(name, "replay") or _within(name, "tests")}
    assert not {name for name in imported if _within(name, "tools")}


@pytest.mark.parametrize("module", sorted(name for name in PROXY if _within(name, "proxy.protocol")))
def test_the_protocol_stands_alone(module: str) -> None:
    imported = _imports(PROXY[module])

    assert not {name for name in imported if _within(name, "proxy") and not _within(name, "proxy.protocol")}


@pytest.mark.parametrize("module", sorted(REPLAY))
def test_replay_uses_the_sans_io_half_of_proxy_alone(module: str) -> None:
    assert not {name for name in _imports(REPLAY[module]) if name in SHELL}


@pytest.mark.parametrize("path", [ROOT / "proxy" / "__init__.py", ROOT / "replay" / "__init__.py"])
def test_a_packages_init_is_its_docstring(path: Path) -> None:
    (statement,) = ast.parse(path.read_text(encoding="utf-8")).body

    assert isinstance(statement, ast.Expr)
    assert isinstance(statement.value, ast.Constant)
    assert isinstance(statement.value.value, str)


def test_what_is_imported_as_proxy_and_replay_is_ours() -> None:
    assert Path(proxy.__file__) == ROOT / "proxy" / "__init__.py"
    assert Path(replay.__file__) == ROOT / "replay" / "__init__.py"
