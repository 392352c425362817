"""Adds the rules of tools/deploy/transparent.sh, which redirect connections to a gateway."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tools.netns.namespace import Namespace

SCRIPT: Final = str(Path(__file__).parents[1] / "deploy" / "transparent.sh")


@contextmanager
def rules(place: Namespace, mode: str, *, ports: str, to: int, user: int) -> Iterator[None]:
    """Add the rules that redirect connections to brokers. Remove them at the end of the `with` block.

    `mode` is ``redirect`` or ``tproxy``. Connections of `user`, the id of the gateway's user, are not
    redirected.
    """
    place.run(SCRIPT, "up", "--mode", mode, "--ports", ports, "--to", str(to), "--user", str(user))
    try:
        yield
    finally:
        place.run(SCRIPT, "down")
