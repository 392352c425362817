"""Reads capture files, and makes the list of requests to send."""

from collections.abc import Iterator

from replay.capture.files.secrets import load as load_secrets
from replay.capture.files.sources import expand, whole
from replay.capture.kafka.exchange import READ, ConnectionEnd, Exchange
from replay.capture.kafka.exchanges import Connections
from replay.capture.kafka.pairing import Keep
from replay.capture.packets.segments import counts_in, read
from replay.capture.packets.tcp import Filter
from replay.drive.compare import Keeper
from replay.drive.options import DriveOptions
from replay.drive.script import Script, ScriptMaker
from replay.protocol.errors import SCHEMAS


def load(options: DriveOptions) -> tuple[Script, list[str]]:
    """Read captures, and make a script of the requests to send.

    Returns:
        The script, and one line for each part of the input that could not be read.

    Raises:
        InputError: an input that the user named does not exist or has no capture, or a key log can't be read
            or has no secrets.
    """
    keep = Keeper().keep if options.compare else None
    maker = ScriptMaker(options.include, options.client, keep)
    problems: list[str] = []
    for item in _items(options, problems):
        maker.add(item)
    script = maker.finish(longest_wait=options.longest_wait, limit=options.limit, start=options.start or 0.0)
    return script, problems


def _items(options: DriveOptions, problems: list[str]) -> Iterator[Exchange | ConnectionEnd]:
    sources = expand(options.inputs)
    secrets, left_out = load_secrets(options.keylog, sources)
    problems += left_out
    ports = frozenset(options.port)
    keep = Keep(requests=True, responses=READ | SCHEMAS.keys())
    connections = Connections(ports=ports, keep=keep, secrets=secrets)
    for batch in read(whole(sources), Filter(ports=ports)):
        if (file := counts_in(batch)) is not None:
            problems += [f"{file.file}: {problem}" for problem in file.problems]
        yield from connections.feed(batch)
    yield from connections.end()
