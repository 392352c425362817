"""Reads capture files, and makes the list of requests to send."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from replay.capture.files.counts import FileCounts
from replay.capture.files.secrets import load as load_secrets
from replay.capture.files.sources import expand, plan
from replay.capture.kafka.exchange import READ, ConnectionEnd, Exchange
from replay.capture.kafka.exchanges import Connections
from replay.capture.packets.segments import read
from replay.capture.packets.tcp import Filter
from replay.drive.script import Script, ScriptMaker, Step
from replay.protocol.errors import SCHEMAS

_ONE_SHARE: Final = 1 << 62


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Selects the requests of a capture to play."""

    include: frozenset[int] = frozenset()
    """The keys of APIs to send in addition to the APIs that only read."""
    clients: frozenset[str] = frozenset()
    """If empty, all clients."""
    ports: frozenset[int] = frozenset()
    """Those of brokers. If empty, Kafka connections are recognised by their bytes."""
    keylogs: tuple[str, ...] = ()
    start: float = 0.0
    """Play from this time on, in seconds after the first request."""
    longest_wait: float | None = None
    limit: int | None = None


def load(
    inputs: Iterable[str], wanted: Wanted, keep: Callable[[Exchange, Step], object] | None = None
) -> tuple[Script, list[str]]:
    """Read captures, and make a script of the requests to send.

    Returns:
        The script, and one line for each part of the input that could not be read.

    Raises:
        InputError: an input that the user named does not exist or has no capture, or a key log can't be read
            or has no secrets.
    """
    maker = ScriptMaker(wanted.include, wanted.clients, keep)
    problems: list[str] = []
    for item in _items(inputs, wanted, problems):
        maker.add(item)
    return maker.finish(longest_wait=wanted.longest_wait, limit=wanted.limit, start=wanted.start), problems


def _items(inputs: Iterable[str], wanted: Wanted, problems: list[str]) -> Iterator[Exchange | ConnectionEnd]:
    sources = expand(inputs)
    secrets, left_out = load_secrets(wanted.keylogs, sources)
    problems += left_out
    connections = Connections(
        ports=wanted.ports, keep_requests=True, responses=READ | SCHEMAS.keys(), secrets=secrets
    )
    for share in plan(sources, _ONE_SHARE):
        for batch in read(share, Filter(ports=wanted.ports)):
            for file in _files(batch):
                problems += [f"{file.file}: {problem}" for problem in file.problems]
            yield from connections.feed(batch)
    yield from connections.end()


def _files(batch: pa.RecordBatch) -> Iterator[FileCounts]:
    keys = batch.column("connection")
    for place, key in enumerate(keys.to_pylist()):
        if not key:
            yield FileCounts.from_json(batch.column("payload")[place].as_py())
