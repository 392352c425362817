"""HTML and SVG elements that no text put into them can break: all but markup itself is escaped."""

import html
from collections.abc import Iterable
from typing import Final

_VOID: Final = frozenset({"meta", "link"})


class Markup(str):
    """Text that is HTML already. Only this module and constants of this package make any."""

    __slots__ = ()


def element(name: str, /, *children: str | Iterable[Markup], **attributes: str | float) -> Markup:
    """Build an element.

    Args:
        name: the tag.
        children: text, which is escaped; `Markup`, which is not; or several `Markup` in a row.
        attributes: values are escaped, empty ones left out; in their names `class_` stands for class, `_` for
            a hyphen.

    Returns:
        the element, closed where it has to be.
    """
    given = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{html.escape(str(value))}"'
        for key, value in attributes.items()
        if value != ""
    )
    if name in _VOID:
        return Markup(f"<{name}{given}>")
    return Markup(f"<{name}{given}>{''.join(map(_content, children))}</{name}>")


def joined(parts: Iterable[Markup]) -> Markup:
    """Put markup in a row."""
    return Markup("".join(parts))


def _content(child: str | Iterable[Markup]) -> str:
    if isinstance(child, Markup):
        return child
    if isinstance(child, str):
        return html.escape(child)
    return "".join(map(_content, child))
