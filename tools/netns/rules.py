"""Adds the rules of tools/deploy/transparent.sh, which redirect connections to a gateway."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tools.netns.namespace import Namespace

SCRIPT: Final = str(Path(__file__).parents[1] / "deploy" / "transparent.sh")


@contextmanager
def rules(place: Namespace, mode: str, *, ports: str, to: int, user: int) -> Iterator[None]:
    """Redirect connections to brokers, except those of the `user` id, by ``redirect`` or ``tproxy``."""
    place.run(SCRIPT, "up", "--mode", mode, "--ports", ports, "--to", str(to), "--user", str(user))
    try:
        yield
    finally:
        place.run(SCRIPT, "down")
