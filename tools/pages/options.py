"""The page of options, from their declarations."""

import argparse
from collections.abc import Iterator
from typing import Final

from proxy.command.cli import parsers
from proxy.command.config import OPTIONS
from replay.cli import COMMANDS
from tools.pages.markdown import item, marked

_INTRODUCTION: Final = """\
# Options

`make pages` writes this page from the declarations of the options; `--help` has the same texts.
[Options](../users/run.md#options) explains how sizes, times and switches are written.

An option `--max-sessions` is also the variable `FETCHGATE_MAX_SESSIONS` and the key `max_sessions` of the
TOML file of `--config`. A flag overrides the variable; the variable overrides the file. A *live* option
applies while the gateway runs: within ten seconds after the file has changed, or at once with SIGHUP or
`systemctl reload`. Other options need a restart; if one of these was changed in the file, `/readyz` says so.
"""
_LIVE: Final = {option.flag for option in OPTIONS if option.live}


def page() -> str:
    """Return the text of the page."""
    known = parsers()
    shown = ["proxy", "top", *(f"replay {name}" for name in COMMANDS)]
    return "\n".join([_INTRODUCTION, *(line for name in shown for line in _command(name, known[name]))])


def _command(name: str, parser: argparse.ArgumentParser) -> Iterator[str]:
    yield f"## fetchgate {name}\n"
    yield f"{marked(parser.description or '')}\n"
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
    yield item(f"{names}{live}", "", shown)
