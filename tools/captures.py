"""Makes the captures of `captures/` with real brokers and clients, each with a manifest of expected figures.

    python -m tools.captures --list
    python -m tools.captures librdkafka-gateway aiokafka-gateway --into captures

Every client connects through `fetchgate proxy`. With `--sessions off` the gateway changes nothing, so the
client's side is the same as without a gateway. The figures in the manifest are the gateway's own counts; they
were not read from the capture. Recipes that use tcpdump need tcpdump, and the right to capture.
"""

import argparse
import json
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

try:
    from rich.console import Console

    from tools import capture_clients as clients
    from tools.demo.frame import DemoError, Steps
except ImportError as error:
    raise SystemExit(f"captures: {error}; install '.[dev,kafka]'") from None

from proxy.version import VERSION
from tools.gateway import GatewayProcess
from tools.kafka import LATEST, Broker, reaper
from tools.kafka.admin import Admin

SETTLE: Final = 1.5
"""The wait until tcpdump has read the last packets from the kernel, in seconds."""
DESTINATION: Final = Path(__file__).parent.parent / "captures"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How to make one capture."""

    name: str
    what: str
    client: str
    run: Callable[[str], int]
    taken_by: Literal["tcpdump", "gateway"]
    options: tuple[str, ...]

    @property
    def sessions(self) -> bool:
        """Whether the gateway uses sessions with the broker."""
        return "--sessions" not in self.options


_WIRE: Final = "the client's side of a plain wire", "tcpdump", ("--sessions", "off")
_BOTH: Final = "both sides of a gateway", "gateway", ()
_NO_RECORDS: Final = (
    "both sides of a gateway, the contents of records left out",
    "gateway",
    ("--capture-records", "no"),
)
_KINDS: Final[dict[str, tuple[str, Literal["tcpdump", "gateway"], tuple[str, ...]]]] = {
    "librdkafka-rebalance": _WIRE,
    "librdkafka-gateway": _BOTH,
    "librdkafka-gateway-no-records": _NO_RECORDS,
    "aiokafka-rebalance": _WIRE,
    "aiokafka-gateway": _BOTH,
}
_LIBRARIES: Final[dict[str, tuple[str, Callable[[str], int]]]] = {
    "librdkafka": (clients.LIBRDKAFKA, clients.with_librdkafka),
    "aiokafka": (clients.AIOKAFKA, clients.with_aiokafka),
}
RECIPES: Final = tuple(
    Recipe(
        name=name,
        what=what,
        client=_LIBRARIES[name.partition("-")[0]][0],
        run=_LIBRARIES[name.partition("-")[0]][1],
        taken_by=taken_by,
        options=options,
    )
    for name, (what, taken_by, options) in _KINDS.items()
)


@contextmanager
def tcpdump(file: Path, ports: Sequence[int]) -> Iterator[str]:
    """Capture the loopback packets of ports. Yield tcpdump's command line. A lost packet is an error."""
    if shutil.which("tcpdump") is None:
        raise RuntimeError("tcpdump is not installed")
    what = "tcp and (" + " or ".join(f"port {port}" for port in ports) + ")"
    command = ["tcpdump", "-i", "lo", "-s", "0", "-B", "32768", "-U", "-w", str(file), what]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    reaper.watch(process.pid)
    try:
        output = ""
        while process.stderr is not None and "listening on" not in output:
            if not (line := process.stderr.readline()):
                raise RuntimeError(f"tcpdump: {output.strip()}")
            output += line
        yield f"tcpdump -i lo -s 0 -B 32768 -w FILE '{what}'"
        time.sleep(SETTLE)
        process.send_signal(signal.SIGINT)
        output = process.communicate(timeout=30)[1]
        if "\n0 packets dropped by kernel" not in output:
            raise RuntimeError(f"tcpdump lost packets: {output}")
    finally:
        process.kill()
        process.wait()
        reaper.forget(process.pid)


def capture(recipe: Recipe, folder: Path) -> tuple[Path, dict[str, Any]]:
    """Make one capture. Return its file and its manifest."""
    own, other = folder / "own", folder / "tcpdump.pcap"
    with ExitStack() as stack:
        broker = stack.enter_context(Broker(LATEST))
        with Admin(broker.address) as admin:
            for topic, partitions in clients.PARTITIONS.items():
                admin.create_topic(topic, partitions=partitions)
        options = ["--capture", str(own)] if recipe.taken_by == "gateway" else []
        gateway = stack.enter_context(GatewayProcess(broker.address, *options, *recipe.options))
        first = int(gateway.address.rpartition(":")[2])
        ports = [first, first + 1 + broker.node_id]
        command = " ".join(["fetchgate proxy --capture DIR", *recipe.options])
        with ExitStack() as watching:
            if recipe.taken_by == "tcpdump":
                command = watching.enter_context(tcpdump(other, ports))
            with clients.RateProducer(broker.address):
                read = recipe.run(gateway.address)
            totals = gateway.totals()
        state = gateway.state()
        gateway.stop()
    (file,) = [other] if recipe.taken_by == "tcpdump" else list(own.glob("*.pcap"))
    return file, {
        "what": f"{recipe.client}: {recipe.what}",
        "origin": "a run of this project on loopback; it holds nobody's data",
        "made_by": f"python -m tools.captures {recipe.name}",
        "taken_by": command,
        "story": list(clients.STORY),
        "versions": {
            "broker": f"Apache Kafka {LATEST}, one node, KRaft",
            "client": recipe.client,
            "fetchgate": VERSION,
            "python": platform.python_version(),
        },
        "sessions": "on" if recipe.sessions else "off: the gateway was a plain wire",
        "ports": {"client_side": ports, "broker_side": [broker.port] if recipe.taken_by == "gateway" else []},
        "expected": {
            "records_read": read,
            "connections": state["connections_accepted"],
            **{side: totals[side] for side in (("client", "broker") if recipe.sessions else ("client",))},
        },
    }


def make(recipe: Recipe, into: Path, steps: Steps) -> None:
    """Make one capture, and write it and its manifest."""
    with tempfile.TemporaryDirectory(prefix="fetchgate-") as folder, steps.step(recipe.name):
        file, manifest = capture(recipe, Path(folder))
        into.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, into / f"{recipe.name}.pcap")
    (into / f"{recipe.name}.manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Make captures. The exit code is 0 for success, 1 for a failure, 2 for wrong usage."""
    names = [recipe.name for recipe in RECIPES]
    parser = argparse.ArgumentParser(
        prog="python -m tools.captures",
        description="Make the captures of captures/ from real brokers and clients.",
    )
    parser.add_argument("name", nargs="*", metavar="NAME", help="captures to make (default: all)")
    parser.add_argument(
        "--into", type=Path, default=DESTINATION, metavar="DIR", help="write them to this directory"
    )
    parser.add_argument("--list", action="store_true", help="list their names, and exit")
    arguments = parser.parse_args(argv)
    console = Console(stderr=True)
    if arguments.list:
        sys.stdout.write("".join(f"{recipe.name}: {recipe.client}, {recipe.what}\n" for recipe in RECIPES))
        return 0
    if unknown := [name for name in arguments.name if name not in names]:
        parser.error(f"there is no capture {unknown[0]}; there are {', '.join(names)}")
    try:
        for recipe in RECIPES:
            if not arguments.name or recipe.name in arguments.name:
                make(recipe, arguments.into, Steps(console))
    except DemoError as error:
        console.print(f"captures: {error}", highlight=False, markup=False)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
