"""Writes docs/reference/options.md from the declarations of the options: `python -m tools.options_page`."""

import argparse
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from proxy.command.cli import parsers
from proxy.command.config import OPTIONS
from replay.cli import COMMANDS

ROOT: Final = Path(__file__).parent.parent
PAGE: Final = ROOT / "docs" / "reference" / "options.md"
RENEW: Final = ".venv/bin/python -m tools.options_page"
_WIDTH: Final = 140
_INTRODUCTION: Final = f"""\
# Options

`{RENEW}` writes this page from the declarations of the options; `--help` has the same texts.
[Options](../users/run.md#options) explains how sizes, times and switches are written.

An option `--max-sessions` is also the variable `FETCHGATE_MAX_SESSIONS` and the key `max_sessions` of the
TOML file of `--config`. A flag overrides the variable; the variable overrides the file. A *live* option
applies while the gateway runs: within ten seconds after the file has changed, or at once with SIGHUP or
`systemctl reload`. Other options need a restart; if one of these was changed in the file, `/readyz` says so.
"""
_LIVE: Final = {option.flag for option in OPTIONS if option.live}
_CODE: Final = re.compile(
    r"(`[^`]+`|\{\"[^ ]+.*\}|'\[\w+\]'|(?<![\w`-])--[a-z][\w-]*)|docs/(\w+)/([\w-]+\.md)"
)
"""What is code in a help text, or names a page of the documentation."""
_BLOCK: Final = re.compile(r" (?=(?:[-+*#>]|\d+[.)]) )")
"""A space that must not become the end of a line, since the next line would begin a list or a heading."""


def page() -> str:
    """Return the text of the page."""
    known = parsers()
    shown = ["proxy", "top", *(f"replay {name}" for name in COMMANDS)]
    return "\n".join([_INTRODUCTION, *(line for name in shown for line in _command(name, known[name]))])


def _command(name: str, parser: argparse.ArgumentParser) -> Iterator[str]:
    yield f"## fetchgate {name}\n"
    yield f"{_text(parser.description or '')}\n"
    for group in parser._action_groups:  # noqa: SLF001 - argparse has no public list
        actions = [action for action in group._group_actions if action.dest != "help"]  # noqa: SLF001 - as above
        if actions and group.title not in {"options", "positional arguments"}:
            yield f"### {name}: {group.title}\n"
        for action in actions:
            yield from _option(name, action)
        if actions:
            yield ""


def _option(command: str, action: argparse.Action) -> Iterator[str]:
    flags = [*action.option_strings] or [str(action.metavar)]
    metavar = str(action.metavar or "|".join(map(str, action.choices or ())))
    value = f" {metavar}" if action.option_strings and action.nargs != 0 else ""
    if action.nargs == "?":
        value = f" [{metavar}]"
    names = ", ".join(f"`{flag}{value}`" for flag in flags)
    live = " *(live)*" if command == "proxy" and not _LIVE.isdisjoint(flags) else ""
    shown = (action.help or "").replace("%(default)s", str(action.default))
    yield _text(f"- {names}{live}: {shown}", indent="  ")


def _text(text: str, indent: str = "") -> str:
    """Return a help text as Markdown: code is marked as such, and pages are links."""
    marked = _CODE.sub(_marked, " ".join(text.split()).replace("%%", "%"))
    lines = textwrap.wrap(
        _BLOCK.sub("\0", marked),
        _WIDTH,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return "\n".join(lines).replace("\0", " ")


def _marked(found: re.Match[str]) -> str:
    code, folder, name = found.groups()
    if code is None:
        return f"[{name}]({name if folder == 'reference' else f'../{folder}/{name}'})"
    return code if code.startswith("`") else f"`{code.strip(chr(39))}`"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
