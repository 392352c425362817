"""Draws the README's picture of `fetchgate top`: `python -m tools.picture` writes docs/top.svg.

The picture shows a recorded `/state`, or the `/state` of a running gateway. The recorded one is from a real
run. The dashboard's tests use it, too.
"""

import argparse
import asyncio
import io
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from rich._export_format import CONSOLE_SVG_FORMAT  # the template has no public name
from rich.console import Console
from rich.terminal_theme import SVG_EXPORT_THEME

from proxy.addresses import Address
from proxy.dashboard.admin_reader import AdminReader
from proxy.dashboard.asking import UnreachableError, ask
from proxy.dashboard.choice import Selection
from proxy.dashboard.rates import Rates
from proxy.dashboard.screen import Size
from proxy.dashboard.snapshot import NotAGatewayError, Snapshot, parse
from proxy.dashboard.view import frame

ROOT: Final = Path(__file__).parent.parent
RECORDED: Final = ROOT / "tests" / "dashboard" / "state.json"
PICTURE: Final = ROOT / "docs" / "top.svg"
WIDTH: Final = 110
HEIGHT: Final = 30
_FONT_FACES: Final = re.compile(r"@font-face \{\{.*?\}\}\s*", re.DOTALL)
_FONT: Final = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"
FAILED: Final = 1


def main(argv: Sequence[str] | None = None) -> int:
    """Write the picture and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tools.picture", description=__doc__)
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--admin", metavar="HOST:PORT", type=Address.parse, help="a running gateway")
    where.add_argument(
        "--state",
        metavar="FILE",
        type=Path,
        default=RECORDED,
        help="a recorded /state (default: %(default)s)",
    )
    parser.add_argument("--out", metavar="FILE", type=Path, default=PICTURE, help="default: %(default)s")
    arguments = parser.parse_args(argv)
    try:
        seen = (
            asyncio.run(ask(AdminReader(address=arguments.admin)))
            if arguments.admin
            else recorded(arguments.state)
        )
        arguments.out.write_text(picture(seen), encoding="utf-8")
    except (OSError, UnreachableError, NotAGatewayError, json.JSONDecodeError) as error:
        sys.stderr.write(f"picture: {arguments.admin or arguments.state}: {error}\n")
        return FAILED
    print(f"{arguments.out} written")
    return 0


def recorded(file: Path) -> Snapshot:
    """Read a recorded `/state`."""
    return parse(json.loads(file.read_text(encoding="utf-8")))


def picture(seen: Snapshot) -> str:
    """Draw a snapshot as SVG that loads no font."""
    console = Console(
        record=True,
        file=io.StringIO(),
        width=WIDTH,
        height=HEIGHT,
        force_terminal=True,
        color_system="standard",
        highlight=False,
        _environ={},
    )
    rates = Rates()
    rates.add(seen)
    console.print(frame(seen, Selection(), Size(width=WIDTH, height=HEIGHT), rates))
    template = _FONT_FACES.sub("", CONSOLE_SVG_FORMAT).replace("Fira Code, monospace", _FONT)
    drawn = console.export_svg(
        title="fetchgate top", theme=SVG_EXPORT_THEME, code_format=template, unique_id="top"
    )
    return "".join(f"{line.rstrip()}\n" for line in drawn.splitlines())


if __name__ == "__main__":
    raise SystemExit(main())
