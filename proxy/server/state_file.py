"""The file of ``--state``, which keeps the known brokers from one start to the next."""

import asyncio
import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from threading import Lock
from typing import Any, Final, NamedTuple

from proxy.addresses import Address
from proxy.server.process import Process
from proxy.text.error_text import reason_of

SAVE_SECONDS: Final = 1.0
"""How long to wait after a change before the file is written. One response can name many new brokers."""


class KeptBroker(NamedTuple):
    """A broker in the state file."""

    node_id: int
    address: Address
    port: int | None = None
    """The port of the broker's listener. None if it follows from the broker's id."""


Known = list[KeptBroker]


class StateFile:
    """The state file. Without ``--state``, nothing is read or written.

    A second thread writes it, because a disk can be slow. Only `close` writes it itself.
    """

    def __init__(self, process: Process, known: Callable[[], Known]) -> None:
        self._process = process
        self._path = process.config.state
        self._log = process.log
        self._known = known
        self._due = False
        self._number = 0
        self._written = 0
        """The newest version that was written, or could not be."""
        self._writing = Lock()

    def load(self) -> Known:
        """Return the brokers that are in the file. The result is empty if the file can't be read."""
        if self._path is None or not self._path.exists():
            return []
        try:
            return list(_parse(json.loads(self._path.read_text(encoding="utf-8"))))
        except (OSError, ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
            self._log.warning("--state file not read", file=str(self._path), reason=reason_of(error))
            return []

    def changed(self) -> None:
        if self._path is not None and not self._due:
            self._due = True
            self._process.spawn(self._save_later(self._path))

    async def _save_later(self, path: Path) -> None:
        await asyncio.sleep(SAVE_SECONDS)
        await asyncio.to_thread(self._write, path, *self._next())

    def close(self) -> None:
        if self._path is not None and self._due:
            self._write(self._path, *self._next())

    def _next(self) -> tuple[int, Known]:
        self._due = False
        self._number += 1
        return self._number, self._known()

    def _write(self, path: Path, number: int, known: Known) -> None:
        # Replace the file in one step, so that no reader sees an incomplete file.
        brokers = [
            {"id": each.node_id, "host": each.address.host, "port": each.address.port}
            | ({} if each.port is None else {"listen_port": each.port})
            for each in known
        ]
        temporary = path.with_name(f"{path.name}.{os.getpid()}.new")
        with self._writing:
            if number < self._written:
                return  # a newer version is already written, by `close`
            self._written = number
            try:
                temporary.write_text(json.dumps({"brokers": brokers}, indent=1) + "\n", encoding="utf-8")
                temporary.replace(path)
            except OSError as error:
                self._log.warning("--state file not written", file=str(path), reason=reason_of(error))


def _parse(document: Any) -> Iterable[KeptBroker]:
    for entry in document["brokers"]:
        address = Address.parse(str(Address(str(entry["host"]), int(entry["port"]))))
        port = entry.get("listen_port")
        yield KeptBroker(int(entry["id"]), address, None if port is None else int(port))
