"""Makes BENCHMARKS.md (`--markdown`). What was not measured, and what people wrote, is kept."""

import re
from collections.abc import Collection, Mapping


def page(measured: str, before: str, only: Collection[str] | None) -> str:
    """Make the body of the page from the tables that were `measured`, in the form of `markdown`.

    `only` has the parts that were measured, or is None for all. Others are copied from the old page `before`,
    except tables whose titles begin like that of a new one, up to a colon. Text written by people is kept.
    """
    made = sections(measured)
    parts = _placed({} if only is None else sections(before), made) | made
    return "\n\n".join([_met(parts), *filter(None, [prose(before)]), *parts.values()])


def _placed(kept: Mapping[str, str], made: Mapping[str, str]) -> dict[str, str]:
    """Return the old tables, with new ones in the place of those whose titles begin alike, up to a colon."""
    placed: dict[str, str] = {}
    for title, text in kept.items():
        head, colon, _ = title.partition(": ")
        alike = _beginning(f"{head}: ", made) if colon else {}
        placed |= alike or {title: text}
    return placed


def _beginning(start: str, made: Mapping[str, str]) -> dict[str, str]:
    return {title: text for title, text in made.items() if title.startswith(start)}


def _met(parts: Mapping[str, str]) -> str:
    """Return how many targets of all tables are met."""
    lines = [line for part in parts.values() for line in part.splitlines()]
    met, missed = (sum(line.endswith(f"| {result} |") for line in lines) for result in ("met", "missed"))
    return f"{met} of {met + missed} targets are met."


def prose(text: str) -> str:
    """Return what people wrote: from the first heading of a part to the first table."""
    head = text.partition("\n**")[0]
    return head[head.find("\n## ") + 1 :].strip() if "\n## " in head else ""


def sections(text: str) -> dict[str, str]:
    """Split the output of `markdown`. Return each table with its notes, by title."""
    parts = re.split(r"^(?=\*\*)", text, flags=re.MULTILINE)
    return {part.partition("\n")[0]: part.rstrip("\n") for part in parts if part.startswith("**")}
