"""The parts that all screens of the dashboard share: size, lines, pages, the line of keys. Pure functions."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.segment import Segment
from rich.text import Text

from proxy.dashboard.choice import Selection

WARNING: Final = "bold red"
BAD: Final = "red"
LABEL: Final = "bold"
STATE_STYLES: Final = {"ready": "bold green", "starting": "bold cyan", "draining": "bold magenta"}
"""Other states are a warning."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """The size of the screen."""

    width: int
    height: int | None = None
    """The number of lines. None if it is unlimited."""
    plain: bool = False
    """Whether the terminal shows only ASCII."""

    def room(self, *, keys: bool) -> int | None:
        # The line that explains the keys is not counted.
        return None if self.height is None else self.height - int(keys)


class _Plain:
    """A drawing in which `~` marks cut text, because rich's own mark is not ASCII."""

    def __init__(self, drawn: RenderableType) -> None:
        self._drawn = drawn

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for segment in console.render(self._drawn, options):
            yield Segment(segment.text.replace("\u2026", "~"), segment.style, segment.control)


def drawn(lines: Iterable[RenderableType], size: Size) -> RenderableType:
    """Return the lines as one screen."""
    return _Plain(Group(*lines)) if size.plain else Group(*lines)


def line(*parts: str | tuple[str, str] | Text) -> Text:
    """Return one line of the screen. It is cut where the screen ends."""
    return Text.assemble(*parts, no_wrap=True, overflow="ellipsis", end="\n")


def section(name: str, *parts: str | tuple[str, str]) -> Text:
    """Return the title line of a table."""
    return line((name, "bold reverse"), "  ", *parts)


def window(lines: Sequence[Text], first: int, room: int | None) -> Sequence[Text]:
    """Return the lines that fit, from `first` on. If more follow, the last line says how many."""
    if room is None or len(lines) <= room:
        return lines
    first = min(first, len(lines) - room)
    shown = list(lines[first : first + room])
    if below := len(lines) - first - room:
        shown[-1] = line(f"{below + 1} more lines: arrow down, PgDn")
    return shown


def cut(lines: list[Text], room: int) -> list[Text]:
    """Return the lines that fit. If there are more, the last line says how many, and what shows them."""
    if len(lines) <= room:
        return lines
    return [*lines[: room - 1], line(f"  {len(lines) - room + 1} more lines: Enter")]


def cell(text: str, width: int, *, left: bool) -> str:
    """Return a text as wide as its column, at the left or the right of it."""
    return set_cell_size(text, width) if left or cell_len(text) > width else text.rjust(width)


def sorting(some: str, choice: Selection, size: Size) -> list[str | tuple[str, str]]:
    """Return how the rows of a table are sorted and filtered, for its title. `some` is how many there are."""
    arrow = ("v" if choice.descending else "^") if size.plain else ("▼" if choice.descending else "▲")
    parts: list[str | tuple[str, str]] = [f"{some}, by {choice.sort} {arrow}"]
    if choice.filter or choice.typing:
        parts.append((f"  filter: {choice.filter}{'_' if choice.typing else ''}", LABEL))
    return parts


def packed(parts: Iterable[Text], width: int | None) -> list[Text]:
    """Put parts into as few lines as possible. Without a width, put all into one line."""
    lines: list[Text] = []
    for part in parts:
        if lines and (width is None or lines[-1].cell_len + 2 + part.cell_len <= width):
            lines[-1].append("  ").append_text(part)
        else:
            lines.append(line(part))
    return lines


def footer(text: str, size: Size) -> Text:
    """Return the last line of the screen, which explains the keys."""
    return Text(text.ljust(size.width)[: size.width], style="reverse", no_wrap=True, end="")


def explained(words: Iterable[tuple[str, str]]) -> list[Text]:
    """Return the lines of a help page: each word with its meaning. A word without a meaning is a title."""
    return [
        line((f"{word:<14}", LABEL), meaning) if meaning else line((word, "bold underline"))
        for word, meaning in words
    ]
