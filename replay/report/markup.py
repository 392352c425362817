"""HTML and SVG elements for plots. All text in them is escaped, so it can't change the page's structure."""

import html
from collections.abc import Iterable

from markupsafe import Markup

__all__ = ["Markup", "element", "joined"]


def element(name: str, /, *children: str | Iterable[Markup], **attributes: str | float) -> Markup:
    """Build an element. Children are text (escaped), `Markup` (not escaped), or several `Markup`.

    Values of attributes are escaped, and empty ones left out. `class_` becomes class, and `_` in a name
    becomes a hyphen.
    """
    given = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{html.escape(str(value))}"'
        for key, value in attributes.items()
        if value != ""
    )
    return Markup(f"<{name}{given}>{''.join(map(_content, children))}</{name}>")  # noqa: S704 - all parts are escaped


def joined(parts: Iterable[Markup]) -> Markup:
    """Concatenate markup."""
    return Markup("".join(parts))  # noqa: S704 - they are markup


def _content(child: str | Iterable[Markup]) -> str:
    if isinstance(child, Markup):
        return child
    if isinstance(child, str):
        return html.escape(child)
    return "".join(map(_content, child))
