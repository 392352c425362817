"""Parses the command line of ``fetchgate``."""

import argparse
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from textwrap import fill
from typing import Any, Final, NoReturn

from proxy.addresses import MAX_INT32, whole_number
from proxy.command.completion import SHELLS
from proxy.command.config import GROUPS, OPTIONS, REMOVED, TOP_OPTIONS
from proxy.command.flags import Parser, add_options
from proxy.features.declared import FEATURES
from proxy.text.options import told_removed
from proxy.text.printable import brief
from proxy.version import VERSION

REPLAY: Final = "replay"
HELP: Final = "help"
COMMANDS: Final = "fetchgate.commands"
"""The Python entry points for more commands: functions that take the arguments and return the exit code.
Their modules have a function `parsers` for the completion."""

_LIVE: Final = fill(
    ", ".join(option.flag for option in OPTIONS if option.live),
    initial_indent="  ",
    subsequent_indent="  ",
    break_on_hyphens=False,
)
_EXAMPLES: Final = f"""\
examples:
  fetchgate proxy -b kafka:9092
      clients use bootstrap.servers=127.0.0.1:19092; broker 1 is at 127.0.0.1:19094, broker 2 at :19095 ...
  fetchgate proxy --bootstrap kafka1:9092,kafka2:9092 --listen 0.0.0.0:9000 --advertise gate.example
  fetchgate proxy --bootstrap kafka:9092 --broker-ports 29100,7=29050
      broker N at 29100 + N, broker 7 at 29050
  fetchgate proxy --bootstrap kafka:9092 --capture captures --capture-records no
      write the traffic of both sides as pcap files, without the contents of records
{"".join(each.example for each in FEATURES)}\
  fetchgate proxy --bootstrap kafka:9092 --check
      test the configuration, the bootstrap and the addresses to listen at; the exit code is 0 or 1
  fetchgate proxy --config gate.toml --show-config
      print what is in force, and whether it came from a flag, the environment, the file or a default

values:
  SIZE       bytes, or a number with a unit: 10m, 256MiB, 1.5GB; k, m and g, and KiB, MiB and GiB, are powers
             of 1024; KB, MB and GB are powers of 1000
  TIME       seconds, or a number with a unit: 500ms, 30s, 5m, 1h
  on|off     or true|false, yes|no, 1|0
  HOST:PORT  to listen at: :9000 and 9000 are at 127.0.0.1, the host of the defaults; 0.0.0.0:9000 is at all
             addresses of this machine; port 0 is a free port

Every option is also an environment variable (--max-sessions: FETCHGATE_MAX_SESSIONS) and a key of the TOML
file of --config (max_sessions = 200). A flag overrides the variable; the variable overrides the file.
SIGHUP reads the options again and applies
{_LIVE}.
SIGTERM finishes the requests in flight, then exits (--drain-timeout). A second SIGTERM exits at once.
"""

_TOP_EXAMPLES: Final = """\
examples:
  fetchgate top
      the gateway of this machine; press h for help
  fetchgate top --admin 10.0.0.7:9464 --interval 500ms
  fetchgate top --admin https://gate.example:9464 --ca ca.pem --token-file token
  fetchgate top --admin 10.0.0.7:9464 --admin 10.0.0.8:9464
      a row for each gateway, those with problems first; Enter opens one
  fetchgate top --admin @gateways
      the same for a file with one address a line
  kubectl get pods -l app=orders -o json | fetchgate top --admin -
      the same for the pods of a selector
  fetchgate top --once
      one screen, for scripts; for several gateways, a line for each; the exit code is 1 if one of them does
      not respond
"""


_COMPLETION_EXAMPLES: Final = """\
examples:
  eval "$(fetchgate completion bash)"                                    # in ~/.bashrc
  eval "$(fetchgate completion zsh)"                                     # in ~/.zshrc
  fetchgate completion fish > ~/.config/fish/completions/fetchgate.fish  # again after an upgrade
"""


_OTHER_NAMES: Final = dict.fromkeys(
    ("--broker", "--brokers", "--broker-list", "--bootstrap.servers", "--servers"), "--bootstrap"
)
"""Option names of other Kafka programs. A suggestion by spelling would name a wrong option."""


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="fetchgate", description="Incremental fetch sessions (KIP-227) for every Kafka client."
    )
    parser.add_argument("--version", action="version", version=f"fetchgate {VERSION}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True, parser_class=Parser)
    proxy = commands.add_parser(
        "proxy",
        help="run the gateway",
        description="Run the gateway: clients connect to it as to Kafka; "
        "their full fetches become incremental fetch sessions.",
        epilog=_EXAMPLES,
    )
    add_options(proxy, OPTIONS, GROUPS)
    _add_config(proxy)
    proxy.add_argument(
        "--check", action="store_true", help="test configuration, bootstrap and addresses, then exit"
    )
    proxy.add_argument(
        "--gateways",
        metavar="N",
        type=_count,
        default=0,
        help="with --check: also test whether the brokers have session slots for N gateways with this "
        "--max-sessions (docs/users/fleet.md)",
    )
    proxy.add_argument(
        "--show-config",
        action="store_true",
        help="print the effective options and the source of each, as a file for --config, then exit",
    )
    top = commands.add_parser(
        "top",
        help="watch a running gateway",
        description="Show what a running gateway does and saves, live, from its admin endpoint.",
        epilog=_TOP_EXAMPLES,
    )
    add_options(top, TOP_OPTIONS)
    _add_config(top)
    completion = commands.add_parser(
        "completion",
        help="print what a shell needs to complete commands and options",
        description="Print what a shell needs to complete commands and options.",
        epilog=_COMPLETION_EXAMPLES,
    )
    completion.add_argument("shell", choices=list(SHELLS), help="the shell")
    commands.add_parser(
        REPLAY,
        help="inspect, measure and play captures of Kafka traffic",
        add_help=False,
    )
    explained = commands.add_parser(HELP, help="explain a command", description="Explain a command.")
    explained.add_argument("explained", nargs="?", choices=[*commands.choices][:-1], help="the command")
    return parser


def _add_config(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--config",
        metavar="FILE|DIR",
        help="a TOML file with these options as keys, or a directory: its fetchgate.toml "
        "(optional) has live options",
    )


def parse(argv: Sequence[str]) -> dict[str, Any]:
    """Return the arguments of any command but `REPLAY`. A wrong argument ends the process."""
    parser = _parser()
    known, unknown = parser.parse_known_args(argv)
    arguments = vars(known)
    command = _commands(parser)[arguments["command"]]
    if unknown:
        _refuse(command, unknown)
    if arguments.get("gateways") and not arguments["check"]:
        command.error("--gateways N needs --check")
    return arguments


def _count(text: str) -> int:
    if (number := whole_number(text, 1, MAX_INT32)) is None:
        raise argparse.ArgumentTypeError(f"{brief(repr(text))} is not a number of gateways; example: 200")
    return number


def _commands(parser: argparse.ArgumentParser) -> dict[str, Parser]:
    (commands,) = (action for action in parser._actions if action.dest == "command")  # noqa: SLF001 - argparse has no public list
    return dict(commands.choices or {})


def _refuse(command: Parser, unknown: Sequence[str]) -> NoReturn:
    if not command.prog.endswith(" proxy"):
        command.refuse(unknown)
    flag = unknown[0].partition("=")[0]
    if told := told_removed(REMOVED, flag.removeprefix("--").replace("-", "_"), flag):
        command.error(told)
    if named := _OTHER_NAMES.get(flag):
        command.error(f"unrecognized arguments: {' '.join(unknown)}; did you mean {named}?")
    command.refuse(unknown, [f"--{name.replace('_', '-')}" for name in REMOVED if " " not in name])


def parsers() -> dict[str, argparse.ArgumentParser]:
    """Return the parsers of all commands that are installed. A key is the words before the options."""
    from importlib.metadata import entry_points  # noqa: PLC0415 - it takes 4 MB, and a gateway does not need it

    parser = _parser()
    found: dict[str, argparse.ArgumentParser] = {"": parser, **_commands(parser)}
    for entry in entry_points(group=COMMANDS, name=REPLAY):
        with suppress(ModuleNotFoundError):
            found |= import_module(entry.module).parsers()
    return found
