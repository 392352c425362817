"""Draws the README's picture of one fetch: `python -m tools.diagram` writes docs/fetch.svg.

Its figures are those of BENCHMARKS.md, and its bars are to scale. Run it again after `make bench`.
"""

import html
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from tools.bench.page import sections

ROOT: Final = Path(__file__).parent.parent
BENCHMARKS: Final = ROOT / "BENCHMARKS.md"
PICTURE: Final = ROOT / "docs" / "fetch.svg"
TABLE: Final = "Broker's side: 100 partitions, one with 50 records/s"

LIGHT: Final = {
    "ground": "#ffffff",
    "edge": "#8c959f",
    "text": "#1f2328",
    "quiet": "#57606a",
    "before": "#b35900",
    "after": "#116329",
}
DARK: Final = {
    "ground": "#0d1117",
    "edge": "#6e7681",
    "text": "#e6edf3",
    "quiet": "#9da7b1",
    "before": "#f0a35e",
    "after": "#56d364",
}
"""The colours by role, for a light page and for a dark one. The picture has its own ground. So it can also be
read if the viewer and the page do not agree on which of the two it is."""

_WIDTH: Final = 720
_HEIGHT: Final = 256
_BAR: Final = 184.0
_FONT: Final = "system-ui, -apple-system, 'Segoe UI', 'Noto Sans', Helvetica, Arial, sans-serif"
_BOXES: Final = ((12, 88, "client"), (312, 112, "fetchgate"), (620, 88, "broker"))
"""Each with its left edge, its width and its name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchBytes:
    """The average bytes of one fetch without records."""

    request: int
    response: int

    @classmethod
    def of(cls, cells: Mapping[str, Mapping[str, str]], column: str) -> Self:
        """Read a column of the table."""
        return cls(request=_number(cells["request"][column]), response=_number(cells["response"][column]))

    @property
    def both(self) -> int:
        """The bytes of request and response."""
        return self.request + self.response


def main() -> None:
    """Write the picture."""
    PICTURE.write_text(picture(BENCHMARKS.read_text(encoding="utf-8")), encoding="utf-8")


def rows(page: str, title: str) -> dict[str, dict[str, str]]:
    """Return a table of BENCHMARKS.md: for each row the cells by column."""
    lines = [line for line in sections(page)[f"**{title}**"].splitlines() if line.startswith("|")]
    head, _, *body = [[cell.strip() for cell in line.strip("|").split(" |")] for line in lines]
    return {cells[0]: dict(zip(head, cells, strict=True)) for cells in body}


def picture(page: str) -> str:
    """Draw the figures of BENCHMARKS.md as SVG."""
    cells = rows(page, TABLE)
    direct, gateway = FetchBytes.of(cells, "direct"), FetchBytes.of(cells, "gateway")
    scale = _BAR / max(direct.request, direct.response)
    said = (
        f"Between client and fetchgate, a request of {direct.request:,} bytes and a response of "
        f"{direct.response:,} bytes. Between fetchgate and broker, {gateway.request:,} and "
        f"{gateway.response:,} bytes."
    )
    drawn = [
        _text(_WIDTH // 2, 26, "One fetch of a consumer with 100 partitions", "text strong", middle=True),
        *(_box(x, width, name) for x, width, name in _BOXES),
        *_exchange(114, direct, scale, "before", ("all 100 partitions", "all 100 partitions")),
        *_exchange(438, gateway, scale, "after", ("only what changed", "only what is new")),
        _text(
            _WIDTH // 2,
            218,
            f"{direct.both:,} bytes become {gateway.both:,}: {cells['below direct']['gateway']} % fewer",
            "text strong",
            middle=True,
        ),
        _text(
            _WIDTH // 2,
            242,
            "Averages; one of the partitions gets 50 records a second, which are not counted.",
            "quiet",
            middle=True,
        ),
    ]
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" '
        f'height="{_HEIGHT}" role="img" aria-labelledby="title said">'
    )
    return "\n".join(
        [
            head,
            '<title id="title">One fetch, with fetchgate between client and broker</title>',
            f'<desc id="said">{html.escape(said)}</desc>',
            "<style>",
            f"text {{ font: 15px {_FONT}; }}",
            "text.strong { font-weight: 600; font-size: 17px; }",
            *_colours(LIGHT),
            "@media (prefers-color-scheme: dark) {",
            *_colours(DARK),
            "}",
            "</style>",
            f'<rect class="frame" x="0.5" y="0.5" width="{_WIDTH - 1}" height="{_HEIGHT - 1}" rx="8"/>',
            *drawn,
            "</svg>",
            "",
        ]
    )


def _colours(colours: Mapping[str, str]) -> list[str]:
    inks = [role for role in colours if role not in {"ground", "edge"}]
    return [
        f".frame, .box {{ fill: {colours['ground']}; stroke: {colours['edge']}; }}",
        *(f".{role} {{ fill: {colours[role]}; }}" for role in inks),
    ]


def _exchange(x: int, fetch: FetchBytes, scale: float, role: str, whole: tuple[str, str]) -> list[str]:
    """Draw a request and a response, each with its bytes, a bar and what is in it."""
    drawn = []
    for y, arrow, name, size, what in (
        (62, "→", "request", fetch.request, whole[0]),
        (130, "←", "response", fetch.response, whole[1]),
    ):
        drawn += [
            _text(x, y, f"{arrow} {name}: {size:,} bytes", "text"),
            f'<rect class="{role}" x="{x}" y="{y + 7}" width="{size * scale:.1f}" height="13"/>',
            _text(x, y + 37, what, "quiet"),
        ]
    return drawn


def _box(x: int, width: int, name: str) -> str:
    box = f'<rect class="box" x="{x}" y="44" width="{width}" height="132" rx="6"/>'
    return f"{box}\n{_text(x + width // 2, 116, name, 'text strong', middle=True)}"


def _text(x: int, y: int, text: str, role: str, *, middle: bool = False) -> str:
    anchor = ' text-anchor="middle"' if middle else ""
    return f'<text class="{role}" x="{x}" y="{y}"{anchor}>{html.escape(text)}</text>'


def _number(cell: str) -> int:
    return int(cell.replace(",", ""))


if __name__ == "__main__":
    main()
