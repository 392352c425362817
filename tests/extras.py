"""Runs Python as if fetchgate were installed with some of its extras only."""

import os
import tomllib
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path
from typing import Any, Final

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PROJECT: Final[dict[str, Any]] = tomllib.loads(
    (Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8")
)["project"]
_BLOCKS: Final = """\
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {missing!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Missing())
"""


def with_extras(folder: Path, *extras: str) -> dict[str, str]:
    """Return an environment in which Python finds no package that fetchgate with these extras does not need.

    It applies to child processes, too.

    Args:
        folder: an empty folder, for a module that Python imports when it starts.
        extras: the extras that are installed; none for the gateway alone.
    """
    needed = distributions(*extras)
    missing = {
        module
        for module, names in packages_distributions().items()
        if not needed.intersection(map(canonicalize_name, names))
    }
    (folder / "sitecustomize.py").write_text(_BLOCKS.format(missing=missing), encoding="utf-8")
    path = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHONPATH": path}


def distributions(*extras: str) -> set[str]:
    """Return the names of the packages that fetchgate needs with some extras, its own included."""
    found: set[tuple[str, frozenset[str]]] = set()
    wanted = [Requirement(f"{PROJECT['name']}[{','.join(extras)}]")]
    while wanted:
        requirement = wanted.pop()
        each = canonicalize_name(requirement.name), frozenset(requirement.extras)
        if each not in found:
            found.add(each)
            wanted += _needs(*each)
    return {name for name, _ in found}


def _needs(name: str, extras: frozenset[str]) -> Iterator[Requirement]:
    """Yield what a package needs on this machine. For fetchgate it is in pyproject.toml."""
    if name == canonicalize_name(PROJECT["name"]):
        yield from map(Requirement, PROJECT["dependencies"])
        for extra in extras:
            yield from map(Requirement, PROJECT["optional-dependencies"][extra])
        return
    try:
        declared = requires(name) or ()
    except PackageNotFoundError:  # it is for another machine
        return
    for requirement in map(Requirement, declared):
        if not requirement.marker or any(
            requirement.marker.evaluate({"extra": extra}) for extra in ("", *extras)
        ):
            yield requirement
