"""Draws the pictures of `fetchgate top`: `python -m tools.picture` writes docs/top.svg and docs/top-many.svg.

The first picture shows the recorded `/state` of a real run, which the dashboard's tests use, too. The second
one is an example of several gateways, made from it with other figures.
"""

import io
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Final

from rich._export_format import CONSOLE_SVG_FORMAT  # the template has no public name
from rich.console import Console, RenderableType
from rich.terminal_theme import SVG_EXPORT_THEME

from proxy.dashboard import fleet_view
from proxy.dashboard.choice import Selection
from proxy.dashboard.fleet import WORST_FIRST, Fleet
from proxy.dashboard.rates import Rates
from proxy.dashboard.reports import of_state
from proxy.dashboard.screen import Size
from proxy.dashboard.snapshot import Snapshot, parse
from proxy.dashboard.view import frame
from proxy.version import VERSION

ROOT: Final = Path(__file__).parent.parent
RECORDED: Final = ROOT / "tests" / "dashboard" / "state.json"
PICTURE: Final = ROOT / "docs" / "top.svg"
MANY: Final = ROOT / "docs" / "top-many.svg"
WIDTH: Final = 110
HEIGHT: Final = 30
SERVICES: Final = {"billing": 4, "orders": 8, "search": 3}
WRONG: Final = {
    "orders-5": ("all 500 session slots are taken",),
    "search-0": ("broker 2: no response for 13 s", "all 500 session slots are taken"),
}
SILENT: Final = "billing-2"
_FONT_FACES: Final = re.compile(r"@font-face \{\{.*?\}\}\s*", re.DOTALL)
_FONT: Final = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"


def main() -> None:
    """Write both pictures."""
    PICTURE.write_text(picture(recorded(RECORDED)), encoding="utf-8")
    MANY.write_text(picture_of_many(), encoding="utf-8")


def recorded(file: Path) -> Snapshot:
    """Read a recorded `/state`. It gets the version of the `top` that draws it."""
    return replace(parse(json.loads(file.read_text(encoding="utf-8"))), version=VERSION)


def picture(seen: Snapshot) -> str:
    """Draw a snapshot as SVG that loads no font."""
    rates = Rates()
    rates.add(seen)
    return _svg(frame(seen, Selection(), Size(width=WIDTH, height=HEIGHT), rates), HEIGHT, "top")


def picture_of_many() -> str:
    """Draw several gateways as SVG that loads no font: pods of three services, two with a problem."""
    report = of_state(recorded(RECORDED))
    names = [f"{service}-{at}" for service, pods in SERVICES.items() for at in range(pods)]
    fleet = Fleet((name, f"10.0.3.{at}:9464", "") for at, name in enumerate(names))
    for at, name in enumerate(names):
        part = (7 * at % 10 + 5) / 10
        one = replace(
            report,
            client_bytes=int(report.client_bytes * part),
            broker_bytes=int(report.broker_bytes * (part + at % 3)),
            connections=4 + 3 * at % 7,
            saved_now=(report.saved_now or 0.0) * part,
            uptime=100.0,
            cpu_seconds=4.0 * part,
            memory=int(52e6 + 9e6 * part),
        )
        fleet.add(name, replace(one, state="degraded", wrong=WRONG[name]) if name in WRONG else one, 0.0)
    fleet.fail(SILENT, "no response within 3 s", 0.0)
    return _svg(fleet_view.frame(fleet.every(95.0), WORST_FIRST, Size(width=WIDTH, height=24)), 24, "many")


def _svg(drawing: RenderableType, height: int, name: str) -> str:
    console = Console(
        record=True,
        file=io.StringIO(),
        width=WIDTH,
        height=height,
        force_terminal=True,
        color_system="standard",
        highlight=False,
        _environ={},
    )
    console.print(drawing)
    template = _FONT_FACES.sub("", CONSOLE_SVG_FORMAT).replace("Fira Code, monospace", _FONT)
    drawn = console.export_svg(
        title="fetchgate top", theme=SVG_EXPORT_THEME, code_format=template, unique_id=name
    )
    return "".join(f"{line.rstrip()}\n" for line in drawn.splitlines())


if __name__ == "__main__":
    main()
