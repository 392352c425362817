"""Runs the injector (`tools/deploy/webhook`) as its image does: in a process, over TLS."""

import json
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPSConnection
from pathlib import Path
from typing import Any

from tests.tools.test_deploy import DEPLOY
from tools.certificates import Pair
from tools.kafka import reaper


class Injector:
    """A running injector.

    Args:
        process: its process.
        address: where it listens.
        ca: the file of the CA that signed its certificate.
        log: the file of its log.
    """

    def __init__(
        self, process: subprocess.Popen[bytes], address: tuple[str, int], ca: Path, log: Path
    ) -> None:
        self.process = process
        self._address = address
        self._tls = ssl.create_default_context(cafile=ca)
        self._log = log

    def connect(self) -> HTTPSConnection:
        """Return a new connection. It is not open yet."""
        return HTTPSConnection(*self._address, context=self._tls, timeout=30)

    def ask(self, path: str, body: str | bytes | None = None) -> tuple[int, str]:
        """Send a request on a connection of its own. Return the status and the text of the response."""
        connection = self.connect()
        try:
            connection.request("GET" if body is None else "POST", path, body)
            response = connection.getresponse()
            return response.status, response.read().decode()
        finally:
            connection.close()

    def log(self) -> str:
        """Return what it has logged."""
        return self._log.read_text()

    def runs(self) -> bool:
        """Return whether it serves."""
        try:
            return self.ask("/livez") == (200, "ok")
        except OSError:
            return False


@contextmanager
def injector(
    folder: Path, sidecar: dict[str, Any], pair: Pair, ca: Path, address: tuple[str, int]
) -> Iterator[Injector]:
    """Run an injector, with the container's file and the log in a folder."""
    file, log = folder / "sidecar.json", folder / "injector.log"
    file.write_text(json.dumps(sidecar))
    command = [sys.executable, "-m", "webhook", "--listen", f"{address[0]}:{address[1]}"]
    command += ["--sidecar", str(file), "--cert", str(pair.cert), "--key", str(pair.key)]
    with log.open("wb") as output:
        process = subprocess.Popen(command, cwd=DEPLOY, stdout=output, stderr=output)
    reaper.watch(process.pid)
    running = Injector(process, address, ca, log)
    try:
        while not running.runs():
            assert process.poll() is None, running.log()
            time.sleep(0.05)
        yield running
    finally:
        process.terminate()
        process.wait()
        reaper.forget(process.pid)
