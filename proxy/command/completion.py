"""``fetchgate completion``: makes completion scripts for shells from the parsers of the command line.

The metavar of an option shows how its value is completed: with the words of ``on|off``, with files for FILE,
and with directories for DIR. zsh uses the script for bash (bashcompinit).
"""

import argparse
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from shlex import quote
from typing import Final

Parsers = Mapping[str, argparse.ArgumentParser]
"""By the command's words: ``""``, ``proxy``, ``replay drive``."""

_ZSH: Final = """\
autoload -Uz compinit bashcompinit
(( $+functions[compdef] )) || compinit
bashcompinit
"""
_BASH: Final = """\
_fetchgate() {{
  local IFS=$'\\n' at="${{COMP_WORDS[1]}}" words="" files=""
  local cur="${{COMP_WORDS[COMP_CWORD]}}" prev="${{COMP_WORDS[COMP_CWORD-1]}}"
  if [[ $COMP_CWORD == 1 ]]; then at=""
  elif [[ $at == replay && $COMP_CWORD != 2 ]]; then at="replay ${{COMP_WORDS[2]}}"; fi
  if [[ $cur == = ]]; then cur=""; elif [[ $prev == = ]]; then prev="${{COMP_WORDS[COMP_CWORD-2]}}"; fi
  case "$at:$prev" in
{cases}
  esac
  COMPREPLY=($(compgen -W "$words" -- "$cur"))
  if [[ -n $files ]]; then
    compopt -o filenames 2>/dev/null
    COMPREPLY+=($(compgen "$files" -- "$cur"))
  fi
}}
complete -F _fetchgate fetchgate
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Value:
    words: tuple[str, ...] = ()
    files: str = ""
    """The option of bash's compgen: ``-f`` for files, ``-d`` for directories."""


def script(shell: str, parsers: Parsers) -> str:
    """Return the completion script for a shell."""
    return SHELLS[shell](parsers)


def _bash(parsers: Parsers) -> str:
    cases = []
    for at, parser in parsers.items():
        for action in _options(parser):
            if action.nargs != 0:
                pattern = "|".join(quote(f"{at}:{flag}") for flag in action.option_strings)
                cases.append((pattern, _value(action)))
        flags = tuple(flag for action in _options(parser) for flag in action.option_strings)
        more = _arguments(parser)
        cases.append((f"{quote(f'{at}:')}*", _Value(words=(*more.words, *flags), files=more.files)))
    return _BASH.format(cases="\n".join(f"  {pattern}) {_assigned(value)} ;;" for pattern, value in cases))


def _assigned(value: _Value) -> str:
    words = "\\n".join(value.words)
    return f"words=$'{words}' files={quote(value.files)}"


def _fish(parsers: Parsers) -> str:
    lines = ["complete -c fetchgate -f"]
    for at, parser in parsers.items():
        last = at.rpartition(" ")[2]
        when = f"__fish_seen_subcommand_from {last}" if at else "__fish_use_subcommand"
        begin = f"complete -c fetchgate -n {quote(when)}"
        more = _arguments(parser)
        if more.words:
            others = f"{when}; and not __fish_seen_subcommand_from {' '.join(more.words)}"
            lines.append(f"complete -c fetchgate -n {quote(others)} -a {quote(' '.join(more.words))}")
        if more.files:
            lines.append(f"{begin} -F")
        for action in _options(parser):
            names = " ".join(
                f"-l {flag[2:]}" if flag.startswith("--") else f"-s {flag[1:]}"
                for flag in action.option_strings
            )
            lines.append(f"{begin} {names}{_of_fish(action)} -d {quote(_short(action.help))}")
    return "\n".join(lines) + "\n"


def _of_fish(action: argparse.Action) -> str:
    if action.nargs == 0:
        return ""
    value = _value(action)
    return " -r -F" if value.files else f" -x -a {quote(' '.join(value.words))}"


def _short(text: str | None) -> str:
    return re.split(r"[;:(]", text or "", maxsplit=1)[0].strip()


def _options(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    return (action for action in parser._actions if action.option_strings)  # noqa: SLF001 - argparse has no public list


def _arguments(parser: argparse.ArgumentParser) -> _Value:
    values = [_value(action) for action in parser._actions if not action.option_strings]  # noqa: SLF001 - as above
    words = tuple(word for value in values for word in value.words)
    return _Value(words=words, files="".join(value.files for value in values))


def _value(action: argparse.Action) -> _Value:
    if action.choices is not None:
        return _Value(words=tuple(map(str, action.choices)))
    parts = str(action.metavar).split("|")
    files = "-f" if "FILE" in parts else "-d" if "DIR" in parts else ""
    return _Value(words=tuple(part for part in parts if re.fullmatch("[a-z]+", part)), files=files)


SHELLS: Final[dict[str, Callable[[Parsers], str]]] = {
    "bash": _bash,
    "zsh": lambda parsers: _ZSH + _bash(parsers),
    "fish": _fish,
}
