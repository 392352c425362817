"""ZooKeeper for one broker before 3.5. It is in the broker's own jars."""

import socket
import time
from pathlib import Path

from tools.kafka.process import JavaProcess
from tools.kafka.settings import HOST, LOG4J, write_properties

START_TIMEOUT = 120.0
"""Seconds for ZooKeeper to listen on its port. Half a second is usual."""


class ZooKeeper:
    """A ZooKeeper that is started when it is made, and ended by `close`. The broker uses the same folder."""

    def __init__(self, class_path: str, *, port: int, folder: Path) -> None:
        config = folder / "zookeeper.properties"
        settings = {"clientPort": port, "clientPortAddress": HOST, "dataDir": folder / "zookeeper"}
        write_properties(config, {**settings, "tickTime": 500, "admin.enableServer": "false"})
        write_properties(folder / "log4j.properties", LOG4J)
        options = [f"-Dlog4j.configuration=file:{folder / 'log4j.properties'}"]
        options.append("-Dzookeeper.jmx.log4j.disable=true")  # Kafka 1.1 comes without log4j
        main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
        log = folder / "zookeeper.log"
        self._process = JavaProcess(class_path, [main, str(config)], log=log, heap="128m", options=options)
        self._wait_ready(port)

    def close(self) -> None:
        """Kill ZooKeeper."""
        self._process.end(kill=True)

    def _wait_ready(self, port: int) -> None:
        began = time.monotonic()
        while self._process.running and time.monotonic() - began < START_TIMEOUT:
            try:
                socket.create_connection((HOST, port), timeout=1).close()
            except OSError:
                time.sleep(0.1)
            else:
                return
        self._process.end(kill=True)
        raise RuntimeError(f"ZooKeeper did not listen on port {port}:\n{self._process.tail()}")
