"""``fetchgate replay``: the command line for captures. Exit codes are in `replay.exits`.

Imports take seconds. So only the module of the given command is imported, and `inspect` starts at once.
"""

import argparse
import importlib
import os
import sys
import tomllib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NoReturn

from proxy.text.printable import printable
from proxy.text.units import did_you_mean, meant_choice, switch, usage
from replay.environment import environment
from replay.exits import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_USAGE

PROGRAM: Final = "fetchgate replay"
COMMANDS: Final = {
    "inspect": ("replay.inspect.command", "show what captures contain, within seconds"),
    "measure": ("replay.measure.command", "compute what sessions would have saved"),
    "drive": ("replay.drive.command", "play captured requests against a live gateway or broker"),
}
"""The modules of the commands. Each has `add_arguments(parser)` and `run(arguments) -> int`."""
_EXTRAS: Final = {
    **dict.fromkeys(("asyncio_throttle", "jinja2", "markupsafe", "numpy", "pyarrow"), "measure"),
    **dict.fromkeys(("pandas", "py4j", "pyspark"), "replay"),
    **dict.fromkeys(("cramjam", "google_crc32c", "lz4", "zstandard"), "cooperative"),
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


class ReplayParser(argparse.ArgumentParser):
    """Reads options from the command line, the environment and a file. Reports errors in one line."""

    def __init__(self, prog: str) -> None:
        self._own: dict[str, argparse.Action] = {}
        super().__init__(prog=prog, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)

    def add_argument(self, *names: Any, **kwargs: Any) -> argparse.Action:
        action = super().add_argument(*names, **kwargs)
        if names[0].startswith("--"):
            self._own[action.dest] = action
        return action

    def error(self, message: str) -> NoReturn:
        self.exit(EXIT_USAGE, usage(self.prog, printable(message + meant_choice(message))))

    def parse(self, argv: Sequence[str], environ: Mapping[str, str]) -> argparse.Namespace:
        """Read the command line. A flag overrides the environment, and the environment overrides --config."""
        argv = self._with_values(argv)
        given = {argument.split("=")[0] for argument in argv}
        file = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
        file.add_argument("--config")
        named: str | None = file.parse_known_args(argv)[0].config
        if named is None and not Path(of_all := environ.get("FETCHGATE_CONFIG", "")).is_dir():
            named = of_all or None  # a directory has live options of a gateway
        settings = self._settings(named)
        more: list[str] = []
        for name, action in self._own.items():
            flag = action.option_strings[0]
            value = environ.get(f"FETCHGATE_{name.upper()}", settings.get(name))
            if value is not None and flag not in given and name not in {"config", "help"}:
                more += self._as_flags(name, action, value)
        arguments, unknown = self.parse_known_args([*more, *argv])
        if unknown:
            meant = did_you_mean(unknown[0].partition("=")[0], self._option_string_actions)
            self.error(f"unrecognized arguments: {' '.join(unknown)}{meant}")
        return arguments

    def _with_values(self, argv: Sequence[str]) -> list[str]:
        """Give options with an optional value the next argument, if it ends as their metavar does."""
        may_lack = {action.option_strings[0]: action for action in self._own.values() if action.nargs == "?"}
        found: list[str] = []
        rest = list(argv)
        while rest:
            argument = rest.pop(0)
            if argument == "--":
                return [*found, argument, *rest]
            if action := may_lack.get(argument):
                its_own = bool(rest) and rest[0].endswith(_suffix(action))
                argument = f"{argument}={rest.pop(0) if its_own else action.const}"
            found.append(argument)
        return found

    def _settings(self, file: str | None) -> dict[str, Any]:
        if file is None:
            return {}
        try:
            document = tomllib.loads(Path(file).read_text(encoding="utf-8-sig"))
            str(document)  # it raises an error for hexadecimal numbers whose digits are too many for str()
        except OSError as error:
            self.error(f"--config {file}: {error.strerror}")
        except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            self.error(f"--config {file} is not TOML: {error}")
        except RecursionError:
            self.error(f"--config {file}: its lists or tables are nested too deeply")
        except ValueError:  # int() refuses thousands of digits
            self.error(f"--config {file}: a number has thousands of digits")
        return document

    def _as_flags(self, name: str, action: argparse.Action, value: Any) -> list[str]:
        flag = action.option_strings[0]
        if action.nargs in {0, "?"}:
            if action.nargs == "?" and str(value).endswith(_suffix(action)):
                return [f"{flag}={value}"]
            try:
                on = switch(str(value))
            except ValueError as error:
                self.error(f"FETCHGATE_{name.upper()} or {name} in the file of --config: {error}")
            return [flag if action.nargs == 0 else f"{flag}={action.const}"] if on else []
        if action.default == [] and isinstance(value, str):
            value = [part.strip() for part in value.split(",") if part.strip()]
        return [f"{flag}={one}" for one in (value if isinstance(value, list) else [value])]


def _suffix(action: argparse.Action) -> str:
    return Path(str(action.metavar)).suffix


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
        module, parser = _parser(name)
        return int(module.run(parser.parse(argv, os.environ)))
    except ModuleNotFoundError as error:
        return _missing(error)


def _parser(name: str) -> tuple[Any, ReplayParser]:
    module = importlib.import_module(COMMANDS[name][0])
    parser = ReplayParser(f"{PROGRAM} {name}")
    module.add_arguments(parser)
    parser.add_argument("--config", metavar="FILE", help="a TOML file with these options as keys")
    return module, parser


def parsers() -> dict[str, argparse.ArgumentParser]:
    """Return the parsers of all commands by the words before the options, for `fetchgate completion`.

    Commands whose libraries are not installed are left out.
    """
    found: dict[str, argparse.ArgumentParser] = {"replay": _overview_parser()}
    for name in COMMANDS:
        with suppress(ModuleNotFoundError):
            found[f"replay {name}"] = _parser(name)[1]
    return found


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
        with suppress(OSError):  # what is not printed yet would fail again when Python ends
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAILED
    return code


def _overview(argv: Sequence[str]) -> int:
    """Print the list of commands. Return the exit code: 0 for --help, otherwise 2."""
    _overview_parser().parse_args(argv)
    return EXIT_USAGE


def _overview_parser() -> ReplayParser:
    parser = ReplayParser(PROGRAM)
    parser.description, parser.epilog = "Inspect, measure and play captures of Kafka traffic.", _EXAMPLES
    commands = parser.add_subparsers(metavar="COMMAND", required=True, parser_class=argparse.ArgumentParser)
    for name, (_, text) in COMMANDS.items():
        commands.add_parser(name, help=text)
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
