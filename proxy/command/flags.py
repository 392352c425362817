"""Makes flags of declared options. The errors of argparse become one line."""

import argparse
from collections.abc import Mapping, Sequence
from typing import Any, Final, NoReturn

from proxy.command.exits import EXIT_USAGE
from proxy.text.options import Option
from proxy.text.printable import printable
from proxy.text.units import did_you_mean, meant_choice, usage

_NO_GROUPS: Final[Mapping[str, str]] = {}


class Parser(argparse.ArgumentParser):
    """An argument parser that prints an error in one line. It knows flags by their whole names alone."""

    def __init__(self, **rest: Any) -> None:
        super().__init__(formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False, **rest)

    def error(self, message: str) -> NoReturn:
        self.exit(EXIT_USAGE, usage(self.prog, printable(message + meant_choice(message))))

    def refuse(self, unknown: Sequence[str], known: Sequence[str] = ()) -> NoReturn:
        """End the process for arguments that no option takes. `known` are more flags that may be meant."""
        meant = did_you_mean(unknown[0].partition("=")[0], [*self._option_string_actions, *known])
        self.error(f"unrecognized arguments: {' '.join(unknown)}{meant}")


class _Offered(tuple[str, ...]):
    """The words that completion offers. argparse lets others pass: `Option.parse` has the better message."""

    __slots__ = ()

    def __contains__(self, _word: object) -> bool:
        return True


def add_options(
    parser: argparse.ArgumentParser, options: Sequence[Option], groups: Mapping[str, str] = _NO_GROUPS
) -> None:
    """Add flags for options, which `proxy.text.options.find` reads. `groups` has titles by first options."""
    group: argparse._ActionsContainer = parser
    for option in options:
        if option.name in groups:
            group = parser.add_argument_group(groups[option.name])
        names = [option.alias, option.flag] if option.alias else [option.flag]
        if not option.metavar:
            group.add_argument(*names, dest=option.name, action="store_const", const="on", help=option.help)
            continue
        alone: dict[str, Any] = {"nargs": "?", "const": option.alone} if option.alone else {}
        default = f" (default: {option.default})" if option.default else ""
        group.add_argument(
            *names,
            dest=option.name,
            metavar=option.metavar,
            choices=_Offered(option.words) if option.words else None,
            help=option.help + default,
            action="append" if option.many or option.repeat else "store",
            **alone,
        )
