"""Draws the dashboard as text. `python -m tests.dashboard.drawn` writes the expected frames again."""

import io
from pathlib import Path
from typing import Final

from rich.console import Console

from proxy.dashboard.choice import Selection
from proxy.dashboard.rates import Rates
from proxy.dashboard.screen import Size
from proxy.dashboard.snapshot import Snapshot
from proxy.dashboard.view import GatewayUnreachable, frame
from tests.dashboard import fleets
from tests.dashboard.scenes import CHOICES, SCENES, seen

FOLDER: Final = Path(__file__).parent / "frames"
SIZES: Final = ((80, 24), (120, 40), (200, 60))
NAMED: Final = {
    **{f"{name}-{width}x{height}": (name, "", width, height) for name in SCENES for width, height in SIZES},
    **{f"unreachable-{width}x{height}": ("unreachable", "", width, height) for width, height in SIZES},
    **{
        f"cooperative-groups-{w}x{h}": ("cooperative", "groups", w, h)
        for w, h in ((80, 24), (80, 10), (200, 60))
    },
    **{f"{name}-60x15": (name, "", 60, 15) for name in ("busy", "hung", "crowded")},
    "hung-broker-1-80x24": ("hung", "broker-1", 80, 24),
    **{f"busy-{choice}-80x24": ("busy", choice, 80, 24) for choice in CHOICES if choice != "broker-1"},
}
"""The stored frames by name: scene, selection, width and height."""


def draw(
    what: Snapshot | GatewayUnreachable,
    choice: Selection,
    width: int,
    height: int | None,
    *,
    plain: bool = False,
    colours: str | None = None,
    keys: bool = True,
    before: Snapshot | None = None,
) -> str:
    """Draw the dashboard for a terminal of the given size, by default without colours.

    `before` is a snapshot from some seconds earlier. Rates are computed from it.
    """
    file = io.StringIO()
    console = Console(
        file=file,
        width=width,
        height=height or 25,
        force_terminal=colours is not None,
        color_system=colours,  # type: ignore[arg-type] # rich's own names
        highlight=False,
        legacy_windows=False,
        _environ={},
    )
    rates = Rates()
    if before is not None:
        rates.add(before)
    if isinstance(what, Snapshot):
        rates.add(what)
    console.print(frame(what, choice, Size(width=width, height=height, plain=plain), rates, keys=keys))
    return file.getvalue()


def kept(name: str) -> str:
    """Draw the dashboard as for the stored frame `name`."""
    scene, choice, width, height = NAMED[name]
    text = draw(seen(scene), CHOICES.get(choice, Selection()), width, height)
    return "".join(f"{line.rstrip()}\n" for line in text.splitlines())


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name in NAMED:
        (FOLDER / f"{name}.txt").write_text(kept(name), encoding="utf-8")
    for name in fleets.NAMED:
        (FOLDER / f"{name}.txt").write_text(fleets.kept(name), encoding="utf-8")
