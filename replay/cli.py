"""``fetchgate replay``: the command line for captures. Exit codes are in `replay.exits`.

Imports take seconds. So only the module of the given command is imported, and `inspect` starts at once.
"""

import argparse
import importlib
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Final, NamedTuple

from proxy.command.config import ALL_OPTIONS, REMOVED
from proxy.command.flags import Parser, add_options
from proxy.text.environment import environment
from proxy.text.options import ConfigError, Option, OptionsFile, check_needs, find, parse
from proxy.text.printable import printable
from proxy.text.units import usage
from replay.drive.options import DriveOptions
from replay.exits import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_USAGE, discard_output
from replay.inspect.options import InspectOptions
from replay.measure.options import MeasureOptions
from replay.options import ReplayOptions

PROGRAM: Final = "fetchgate replay"


class Command(NamedTuple):
    """A command, and where it is. Its module, which is only imported to run it, has `run(options) -> int`."""

    options: type[ReplayOptions]
    module: str
    help: str


COMMANDS: Final = {
    "inspect": Command(
        InspectOptions, "replay.inspect.command", "show what captures contain, within seconds"
    ),
    "measure": Command(MeasureOptions, "replay.measure.command", "compute what sessions would have saved"),
    "drive": Command(
        DriveOptions, "replay.drive.command", "play captured requests against a live gateway or broker"
    ),
}
_KNOWN: Final = (*ALL_OPTIONS, *chain.from_iterable(each.options.declared() for each in COMMANDS.values()))
"""The options that may be in a file: it may be that of a gateway as well."""
_EXTRAS: Final = {
    **dict.fromkeys(
        ("asyncio_throttle", "google_crc32c", "jinja2", "markupsafe", "numpy", "pyarrow"), "measure"
    ),
    **dict.fromkeys(("pandas", "py4j", "pyspark"), "replay"),
    **dict.fromkeys(("cramjam", "lz4", "zstandard"), "cooperative"),
    "cryptography": "tls",
}
"""The packages that may be missing, and the optional extra of fetchgate that installs each."""
_EXAMPLES: Final = """\
examples:
  tcpdump -i any -w fetches.pcap tcp port 9092
      take a capture; it contains all that the clients read, records included
  fetchgate replay inspect fetches.pcap
  fetchgate replay measure captures/ --html report.html
  fetchgate replay drive fetches.pcap --target 127.0.0.1:19092

`fetchgate replay COMMAND --help` explains each.
"""


def read(name: str, argv: Sequence[str], environ: Mapping[str, str]) -> ReplayOptions:
    """Read the options of a command from flags, the environment and the file of --config.

    Raises:
        ConfigError: an option or the file can't be used. A wrong argument ends the process.
    """
    options = COMMANDS[name].options
    declared = options.declared()
    parser = _parser(name)
    flags, unknown = parser.parse_known_args(_with_values(argv, declared))
    if unknown:
        parser.refuse(unknown)
    # A directory in the variable has live options of a gateway.
    of_all = OptionsFile.of(None, environ)
    file = flags.config or (None if of_all.is_optional else of_all.path())
    given = find(declared, vars(flags), environ, file, _KNOWN, REMOVED)
    values = parse(declared, given, REMOVED)
    check_needs(declared, values)
    found = options(inputs=tuple(flags.inputs), **values)
    found.check(given)
    return found


def _with_values(argv: Sequence[str], options: Sequence[Option]) -> list[str]:
    """Give flags that may stand alone the next argument, if it ends as their metavar does."""
    may_lack = {option.flag: option for option in options if option.alone}
    found: list[str] = []
    rest = list(argv)
    while rest:
        argument = rest.pop(0)
        if argument == "--":
            return [*found, argument, *rest]
        if option := may_lack.get(argument):
            its_own = bool(rest) and rest[0].endswith(Path(option.metavar).suffix)
            argument = f"{argument}={rest.pop(0) if its_own else option.alone}"
        found.append(argument)
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments[:1] == ["help"]:
        arguments = [*arguments[1:], "--help"]
    name = arguments[0] if arguments else ""
    if name not in COMMANDS:
        return _overview(arguments)
    return _left(lambda: _command(name, arguments[1:]), f"{PROGRAM} {name}")


def _command(name: str, argv: Sequence[str]) -> int:
    try:
        options = read(name, argv, os.environ)
        return int(importlib.import_module(COMMANDS[name].module).run(options))
    except ConfigError as error:
        sys.stderr.write(usage(f"{PROGRAM} {name}", printable(str(error))))
        return EXIT_USAGE
    except ModuleNotFoundError as error:
        return _missing(error)


def _parser(name: str) -> Parser:
    options = COMMANDS[name].options
    parser = Parser(
        prog=f"{PROGRAM} {name}",
        description=options.description,
        epilog=options.examples,
    )
    metavar, text = options.takes
    parser.add_argument("inputs", nargs="+", metavar=metavar, help=text)
    add_options(parser, options.declared())
    parser.add_argument("--config", metavar="FILE", help="a TOML file with these options as keys")
    return parser


def parsers() -> dict[str, argparse.ArgumentParser]:
    """Return the parsers of all commands by the words before the options, for `fetchgate completion`."""
    return {"replay": _overview_parser(), **{f"replay {name}": _parser(name) for name in COMMANDS}}


def _left(run: Callable[[], int], program: str) -> int:
    """Run a command and return its exit code. Ctrl-C and failed output cause no stack trace."""
    try:
        code = run()
        sys.stdout.flush()
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except OSError as error:
        if not isinstance(error, BrokenPipeError):  # the reader of the output, as `head`, may have enough
            sys.stderr.write(f"{program}: {error}\n")
        discard_output()
        return EXIT_FAILED
    return code


def _overview(argv: Sequence[str]) -> int:
    """Print the list of commands. Return the exit code: 0 for --help, otherwise 2."""
    _overview_parser().parse_args(argv)
    return EXIT_USAGE


def _overview_parser() -> Parser:
    parser = Parser(
        prog=PROGRAM,
        description="Inspect, measure and play captures of Kafka traffic.",
        epilog=_EXAMPLES,
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True, parser_class=argparse.ArgumentParser)
    for name, command in COMMANDS.items():
        commands.add_parser(name, help=command.help)
    return parser


def _missing(error: ModuleNotFoundError) -> int:
    name = (error.name or "").partition(".")[0]
    if name not in _EXTRAS:
        # It is not an optional library, so this is a defect of fetchgate.
        raise error
    sys.stderr.write(
        f"{PROGRAM}: {name} is not installed; in fetchgate's source folder: "
        f"{environment().command_for_extra(_EXTRAS[name])}\n"
    )
    return EXIT_USAGE
