"""Runs the commands of ``fetchgate``; ``python -m proxy`` is the same.

Exit codes: 0 done; 1 failed at run time; 2 wrong usage or configuration; 130 interrupted. `replay.exits` has
further ones of ``fetchgate replay``.
"""

import os
import sys
from collections.abc import Sequence
from io import TextIOWrapper
from typing import Any

from proxy.command.cli import COMMANDS, HELP, REPLAY, parse, parsers
from proxy.command.completion import script
from proxy.command.config import TOP_OPTIONS, read
from proxy.command.exits import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_USAGE, complain, complain_of_variables
from proxy.text.options import ConfigError, OptionsFile


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    if isinstance(sys.stdout, TextIOWrapper):
        # Names of clients and topics may have letters that the output's encoding lacks.
        sys.stdout.reconfigure(errors="replace")
    try:
        return _command(sys.argv[1:] if argv is None else argv)
    except KeyboardInterrupt:  # until the command is imported, which handles the signal itself
        return EXIT_INTERRUPTED


def _command(argv: Sequence[str]) -> int:
    if [*argv[:1]] == [HELP]:
        argv = [*argv[1:], "--help"]
    if [*argv[1:]] == [HELP]:
        argv = [argv[0], "--help"]
    if [*argv[:1]] == [REPLAY]:
        return _other_command(REPLAY, argv[1:])
    arguments = parse(argv)
    if arguments["command"] == "top":
        return _top(arguments)
    if arguments["command"] == "completion":
        sys.stdout.write(script(arguments["shell"], parsers()))
        return 0
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # numpy's, which would start a thread for each CPU
    from proxy.server import main as running  # noqa: PLC0415 - this import takes half a second, and other commands do not need it

    return running.run(arguments)


def _top(arguments: dict[str, Any]) -> int:
    file = OptionsFile.of(arguments["config"], os.environ)
    try:
        try:
            options = read(TOP_OPTIONS, arguments, os.environ, file.path())
        except ConfigError:
            if not file.is_optional:
                raise
            options = read(TOP_OPTIONS, arguments, os.environ, None)
        from proxy.dashboard import fleet_top, gateways, top  # noqa: PLC0415 - rich takes long to import, and a gateway does not need it

        asked = gateways.Gateways.of(options)
    except ConfigError as error:
        complain_of_variables("top")
        return complain("top", str(error), EXIT_USAGE)
    if asked.single is None:
        return fleet_top.once(asked) if options["once"] else fleet_top.watch(asked, options["interval"])
    return top.once(asked.single) if options["once"] else top.watch(asked.single, options["interval"])


def _other_command(name: str, argv: Sequence[str]) -> int:
    from importlib.metadata import entry_points  # noqa: PLC0415 - it takes 4 MB, and a gateway does not need it

    for entry in entry_points(group=COMMANDS, name=name):
        try:
            command = entry.load()
        except ModuleNotFoundError as error:
            if error.name != entry.module.partition(".")[0]:
                raise
            break  # as in the gateway's image, which lacks the package
        code: int = command(argv)
        return code
    from proxy.text.environment import environment  # noqa: PLC0415 - it is needed for this message alone

    sys.stderr.write(
        f"fetchgate {name}: not installed; in fetchgate's source folder: "
        f"{environment().command_for_extra(name)}\n"
    )
    return EXIT_FAILED


if __name__ == "__main__":
    sys.exit(main())
