"""Texts of declarations as Markdown."""

import re
import textwrap
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
_WIDTH: Final = 140
_CODE: Final = re.compile(
    r"(\]\([^)]+\)|`[^`]+`|\{\"[^ ]+.*\}|'\[\w+\]'|(?<![\w`-])--[a-z][\w-]*"
    r"|(?<![\w`/.-])[a-z]+(?:[_.][a-z0-9]+)+|(?<=[ (])/[a-z]{5,})|docs/(\w+)/([\w-]+\.md)"
)
"""What is the address of a link, or code in a text, or names a page of the documentation."""
_BLOCK: Final = re.compile(r" (?=(?:[-+*#>]|\d+[.)]) )")
"""A space that must not become the end of a line, since the next line would begin a list or a heading."""
_UNITS: Final = {
    "timestamp_seconds": "seconds since 1970",
    "bytes_per_day": "bytes",
    "bytes_per_second": "bytes a second",
    "bytes": "bytes",
    "seconds": "s",
    "ns": "ns",
    "ms": "ms",
}
"""The units by the ends of names. The first one that fits counts."""


def unit_of(name: str) -> str:
    """Return the unit that a name ends with. Empty if it has none."""
    return next((unit for end, unit in _UNITS.items() if name == end or name.endswith(f"_{end}")), "")


def item(name: str, facts: str, text: str, level: int = 0) -> str:
    """Return an item of a list: a name, facts about it (may be empty), and what it means."""
    indent = "    " * level
    begin = f"{name} ({facts})" if facts else name
    return indent + marked(f"- {begin}: {text}" if text else f"- {begin}", indent=f"{indent}  ")


def marked(text: str, indent: str = "") -> str:
    """Return a text as Markdown in lines: code is marked as such, and pages are links."""
    found = _CODE.sub(_marked, " ".join(text.split()).replace("%%", "%").replace("``", "`"))
    lines = textwrap.wrap(
        _BLOCK.sub("\0", found),
        _WIDTH,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return "\n".join(lines).replace("\0", " ")


def anchor(heading: str) -> str:
    """Return the anchor that GitHub gives to a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def _marked(found: re.Match[str]) -> str:
    code, folder, name = found.groups()
    if code is None:
        return f"[{name}]({name if folder == 'reference' else f'../{folder}/{name}'})"
    return code if code.startswith(("`", "]")) else f"`{code.strip(chr(39))}`"
