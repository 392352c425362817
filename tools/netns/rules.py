"""The rules that bring a namespace's connections to a gateway: those of tools/deploy/transparent.sh."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tools.netns.namespace import Namespace

SCRIPT: Final = str(Path(__file__).parents[1] / "deploy" / "transparent.sh")


@contextmanager
def rules(place: Namespace, mode: str, *, ports: str, to: int, user: int) -> Iterator[None]:
    """Have connections to brokers taken while the `with` lasts.

    Args:
        place: where they begin.
        mode: ``redirect`` or ``tproxy``.
        ports: the brokers', as the script takes them.
        to: the port of the gateway.
        user: the number of the one who runs the gateway, whose own connections are left alone.
    """
    place.run(SCRIPT, "up", "--mode", mode, "--ports", ports, "--to", str(to), "--user", str(user))
    try:
        yield
    finally:
        place.run(SCRIPT, "down")
