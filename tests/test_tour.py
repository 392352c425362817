"""The tour of a fetch in the docstring of `proxy.core` names what is there."""

import re
from importlib import import_module
from pathlib import Path

import proxy.core

ROOT = Path(__file__).parents[1]
ROOMS = ("proxy/core", "proxy/session")


def test_each_name_of_the_tour_is_there() -> None:
    found: dict[str, object] = {}
    for path in [path for room in ROOMS for path in (ROOT / room).glob("*.py")]:
        found |= vars(import_module(".".join(path.relative_to(ROOT).with_suffix("").parts)))
    names = re.findall(r"`([A-Za-z_.]+)`", proxy.core.__doc__ or "")

    assert len(names) > 20
    for name in names:
        owner, _, member = name.partition(".")
        assert owner in found, name
        assert not member or hasattr(found[owner], member), name
