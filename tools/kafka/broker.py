"""One broker on loopback, of any release since 1.0: KRaft from 3.5 on, before with a ZooKeeper."""

import atexit
import base64
import contextlib
import math
import shutil
import subprocess
import tempfile
import threading
import time
import uuid
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from tools.kafka import reaper
from tools.kafka.jars import classpath, parse_version
from tools.kafka.java import java
from tools.kafka.metadata import request_metadata
from tools.kafka.ports import free_ports
from tools.kafka.process import JVM, JavaProcess
from tools.kafka.raw import RawConnection
from tools.kafka.settings import (
    HOST,
    LOG4J,
    PROTOCOL_MAP,
    QUICK,
    QUICK_KRAFT,
    SESSION_EXPIRY,
    SESSION_TIMEOUT_MS,
    Listeners,
    Properties,
    listener_list,
    security_protocol,
    write_properties,
)
from tools.kafka.sharing import sharing
from tools.kafka.zookeeper import ZooKeeper

LATEST = "4.3.0"
PORT_TRIES = 5
"""How many times a broker tries other ports, if another process has taken one of its chosen ports."""
START_TIMEOUT = 180.0
"""The time limit for a start, in seconds. 3 to 6 s are usual, many more if all cores are busy."""
_TAKEN = "Address already in use"
"""The text in the log of a broker or a ZooKeeper that can't bind its port."""


class Broker:
    """A broker and, before 3.5, its ZooKeeper. `with` starts the broker, ends it, and removes its files.

    The package's docstring has the usual arguments. `voters` are the ports of the cluster's controllers, by
    node id; without them, only this broker is one. `zookeeper_port` is that of a ZooKeeper that runs.
    """

    def __init__(
        self,
        version: str = LATEST,
        *,
        properties: Properties | None = None,
        listeners: Listeners | None = None,
        node_id: int = 1,
        port: int = 0,
        heap: str = "512m",
        voters: Mapping[int, int] | None = None,
        cluster_id: str | None = None,
        options: Sequence[str] = (),
        zookeeper_port: int = 0,
    ) -> None:
        self.version = version
        self.node_id = node_id
        self.host = HOST
        self.folder = Path()
        self._heap = heap
        self._options = options
        self._properties = dict(properties or {})
        self._listeners = dict(listeners or {})
        self._chooses_ports = not port and not voters
        self._zookeeper_port = zookeeper_port
        self._place(port, voters)
        self._cluster_id = cluster_id or new_cluster_id()
        self._broker: JavaProcess | None = None
        self._zookeeper: ZooKeeper | None = None
        self._killed_at = -math.inf

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = f"pid={self.pid}" if self.running else "down"
        return f"<Broker {self.version} node={self.node_id} {self.address} {state}>"

    @property
    def address(self) -> str:
        """The host and port that clients connect to."""
        return f"{self.host}:{self.port}"

    @property
    def controller_port(self) -> int:
        """The port of the broker's own controller, or of its ZooKeeper."""
        return self._zookeeper_port or self._voters[self.node_id]

    @property
    def pid(self) -> int:
        """The process id of the broker."""
        if self._broker is None or not self._broker.running:
            raise RuntimeError(f"broker {self.node_id} is not running")
        return self._broker.pid

    @property
    def running(self) -> bool:
        """Whether the process is running."""
        return self._broker is not None and self._broker.running

    def port_of(self, listener: str) -> int:
        """Return the port on which the broker listens for an additional listener, not the advertised port."""
        return self._ports[listener]

    def configure(self, properties: Properties) -> None:
        """Change properties before the first start."""
        self._properties |= properties

    def log(self) -> str:
        """Return the broker's log, which has only warnings and errors."""
        return (self.folder / "broker.log").read_text(errors="replace")

    def start(self) -> None:
        """Start the broker and wait. The first time, other ports are tried if one is taken."""
        others = PORT_TRIES if self._chooses_ports and self.folder == Path() else 0
        while True:
            try:
                self.launch()
                return self.wait_ready()
            except RuntimeError as error:
                if not others or _TAKEN not in str(error) or "listeners" in self._properties:
                    raise
            others -= 1
            self.close()
            self._zookeeper, self.folder = None, Path()
            self._place()

    def launch(self) -> None:
        """Start the broker, and do not wait until it is ready. The first time, prepare its folder."""
        class_path = classpath(self.version)
        if self.folder == Path():
            self._prepare(class_path)
        options = [*sharing(self.version), *self._options]
        if self._uses_zookeeper:
            self._ensure_zookeeper(class_path)
            options.append(f"-Dlog4j.configuration=file:{self.folder / 'log4j.properties'}")
        arguments = ["kafka.Kafka", str(self.folder / "server.properties")]
        log = self.folder / "broker.log"
        self._broker = JavaProcess(class_path, arguments, log=log, heap=self._heap, options=options)

    def wait_ready(self, *, nodes: int = 1) -> None:
        """Wait until the broker responds, and its Metadata lists itself and at least `nodes` brokers."""
        if self._broker is None:
            raise RuntimeError(f"broker {self.node_id} was not started")
        began = time.monotonic()
        while time.monotonic() - began < START_TIMEOUT:
            if not self._broker.running:
                raise RuntimeError(f"{self!r} ended while starting:\n{self._broker.tail()}")
            with contextlib.suppress(OSError, ValueError):
                if self._serves(nodes):
                    return
            time.sleep(0.1)
        raise RuntimeError(f"{self!r} did not respond in {START_TIMEOUT:.0f} s:\n{self._broker.tail()}")

    def stop(self) -> None:
        """Shut the broker down cleanly (SIGTERM). Its data are kept for `restart`."""
        if self._broker is not None:
            self._broker.end()

    def kill(self) -> None:
        """Kill the broker (SIGKILL). Its data are kept for `restart`."""
        if self._broker is not None and self._broker.running:
            self._broker.end(kill=True)
            self._killed_at = time.monotonic()

    def restart(self) -> None:
        """Stop the broker if it is running, and start it on the same port with the same data."""
        self.stop()
        self.start()

    def close(self) -> None:
        """Kill the broker and its ZooKeeper, and remove their data and logs."""
        self.kill()
        if self._zookeeper is not None:
            self._zookeeper.close()
        if self.folder != Path():
            shutil.rmtree(self.folder, ignore_errors=True)

    def _place(self, port: int = 0, voters: Mapping[int, int] | None = None) -> None:
        first = free_ports(2 + len(self._listeners))
        self.port = port or first
        self._voters = dict(voters or {self.node_id: first + 1})
        self._ports = {name: first + 2 + number for number, name in enumerate(self._listeners)}

    @property
    def _uses_zookeeper(self) -> bool:
        return uses_zookeeper(self.version)

    def _prepare(self, class_path: str) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix=f"kafka-{self.version}-"))
        reaper.remove(self.folder)
        _open_brokers.add(self)
        write_properties(self.folder / "server.properties", self._settings())
        if not self._uses_zookeeper:
            self._format(class_path)

    def _settings(self) -> dict[str, object]:
        ports = {"PLAINTEXT": (self.host, self.port)} | {
            name: (HOST, port) for name, port in self._ports.items()
        }
        advertised = {name: self._listeners.get(name) or own for name, own in ports.items()}
        settings: dict[str, object] = {
            **QUICK,
            "log.dirs": self.folder / "data",
            PROTOCOL_MAP: ",".join(f"{name}:{security_protocol(name)}" for name in ports),
            "listeners": listener_list(ports),
            "advertised.listeners": listener_list(advertised),
            "broker.id": self.node_id,
        }
        if self._uses_zookeeper:
            settings["zookeeper.connect"] = f"{HOST}:{self.controller_port}"
            settings["zookeeper.session.timeout.ms"] = SESSION_TIMEOUT_MS
        else:
            settings |= self._kraft(settings)
        settings |= self._properties
        return {key: value for key, value in settings.items() if value is not None}

    def _kraft(self, settings: Properties) -> dict[str, object]:
        controller = listener_list({"CONTROLLER": (HOST, self.controller_port)})
        return {
            **QUICK_KRAFT,
            "broker.id": None,
            "node.id": self.node_id,
            "process.roles": "broker,controller",
            "controller.listener.names": "CONTROLLER",
            "controller.quorum.voters": ",".join(
                f"{node}@{HOST}:{port}" for node, port in self._voters.items()
            ),
            "listeners": f"{settings['listeners']},{controller}",
            PROTOCOL_MAP: f"{settings[PROTOCOL_MAP]},CONTROLLER:PLAINTEXT",
        }

    def _format(self, class_path: str) -> None:
        """Format the storage: once with Kafka's slow tool, then by copies of its files with other ids."""
        with _formatting:
            if self.version not in _formatted:
                self._format_with_tool(class_path)
                data = self.folder / "data"
                files = [file for file in data.rglob("*") if file.is_file()]
                _formatted[self.version] = {file.relative_to(data): file.read_bytes() for file in files}
                return
        for name, content in _formatted[self.version].items():
            file = self.folder / "data" / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
        ids = {"cluster.id": self._cluster_id, "node.id": str(self.node_id), "directory.id": _new_id()}
        meta = self.folder / "data" / "meta.properties"
        lines = [line.partition("=")[::2] for line in meta.read_text().splitlines()]
        write_properties(meta, {key: ids.get(key, value) for key, value in lines if value})

    def _format_with_tool(self, class_path: str) -> None:
        options = [*JVM, *sharing(self.version), "-XX:TieredStopAtLevel=1"]
        command = [str(java()), *options, "-cp", class_path, "kafka.tools.StorageTool"]
        command += ["format", "-t", self._cluster_id, "-c", str(self.folder / "server.properties")]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=START_TIMEOUT)
        if done.returncode:
            raise RuntimeError(f"{self!r}: its storage could not be formatted:\n{done.stdout}{done.stderr}")

    def _ensure_zookeeper(self, class_path: str) -> None:
        """Start ZooKeeper if it is not running. Wait until the session of a killed broker has expired."""
        write_properties(self.folder / "log4j.properties", LOG4J)
        if self._zookeeper is None and not self._zookeeper_port:
            self._zookeeper = ZooKeeper(class_path, port=self.controller_port, folder=self.folder)
        time.sleep(max(0.0, self._killed_at + SESSION_EXPIRY - time.monotonic()))

    def _serves(self, nodes: int) -> bool:
        with RawConnection(self.host, self.port, timeout=5) as connection:
            connection.versions()
            state = request_metadata(connection)
        return (
            state.brokers.get(self.node_id) == (self.host, self.port)
            and len(state.brokers) >= nodes
            and state.controller >= 0
        )


def uses_zookeeper(version: str) -> bool:
    """Return whether the brokers of a release need a ZooKeeper here: those before 3.5."""
    return parse_version(version) < (3, 5)


def new_cluster_id() -> str:
    """Make a cluster id: 16 bytes in base 64. StorageTool would read a dash at its begin as an option."""
    return "F" + _new_id()[1:]


def _new_id() -> str:
    """Make an id as Kafka's own `Uuid` writes it: 16 bytes in base 64."""
    return base64.urlsafe_b64encode(uuid.uuid4().bytes).decode()[:22]


_formatting = threading.Lock()
_formatted: dict[str, dict[Path, bytes]] = {}
"""For each release, the files that Kafka's own tool has written. From 4.4, one is in a folder."""
_open_brokers: weakref.WeakSet[Broker] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for broker in list(_open_brokers):
        broker.close()
