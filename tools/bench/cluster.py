"""A standalone cluster of Spark on loopback: a Master and Workers, from the pyspark package."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from tools.kafka.java import java_home

ROOT: Final = Path(__file__).parents[2]
CODE: Final = "import sys; from replay.cli import main; sys.exit(main(sys.argv[1:]))"
_PATIENCE: Final = 240
"""The time limit in seconds for each process. On a busy machine a worker took 50 s to begin to register."""
_LOOPBACK: Final = (
    "spark.driver.host=127.0.0.1",
    "spark.driver.bindAddress=127.0.0.1",
    "spark.executor.memory=512m",
    "spark.executor.cores=1",
)


@dataclass
class Cluster:
    """A master, and the processes of its workers."""

    url: str
    workers: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def options(self, *conf: str) -> list[str]:
        """Return a driver's options to use the cluster. `conf` has settings of Spark, as KEY=VALUE."""
        return ["--master", self.url, *(part for one in (*_LOOPBACK, *conf) for part in ("--conf", one))]

    def measure(self, *arguments: str, conf: tuple[str, ...] = ()) -> list[str]:
        """Return the command line that runs a measurement on the cluster."""
        return [sys.executable, "-c", CODE, "measure", *arguments, *self.options(*conf), "--json"]


def environment(folder: Path) -> dict[str, str]:
    """Return the environment of a driver: the Java of brokers, and a scratch folder of its own."""
    return {
        **os.environ,
        "JAVA_HOME": str(folder / "java"),
        "TMPDIR": str(folder / "tmp"),
        "PYTHONPATH": str(ROOT),
    }


@contextmanager
def cluster(folder: Path, workers: int = 2) -> Iterator[Cluster]:
    """Start a master, and workers with one core each. Stop them at the end."""
    (folder / "tmp").mkdir()
    java_home(folder)
    with ExitStack() as stack:
        arguments = ("--port", "0", "--webui-port", "0")
        _, log = _start(stack, folder, "master.Master", *arguments)
        made = Cluster(_line(log, r"Starting Spark master at (spark://\S+)"))
        logs = []
        for number in range(workers):
            own = ("--cores", "1", "--memory", "600m", "--work-dir", str(folder / f"work{number}"))
            process, log = _start(stack, folder, "worker.Worker", *arguments, *own, made.url)
            made.workers.append(process)
            logs.append(log)
        for log in logs:
            _line(log, r"(Successfully registered) with master")
        yield made


def _start(
    stack: ExitStack, folder: Path, name: str, *arguments: str
) -> tuple[subprocess.Popen[bytes], Path]:
    log = folder / f"{name}.{len(list(folder.glob('*.log')))}.log"
    home = _spark_home()
    command = [str(home / "bin/spark-class"), f"org.apache.spark.deploy.{name}", "--host", "127.0.0.1"]
    variables = {
        **environment(folder),
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_DIRS": str(folder / "tmp"),
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": f"-XX:TieredStopAtLevel=1 -Djava.io.tmpdir={folder / 'tmp'}",
    }
    with log.open("wb") as output:
        process = subprocess.Popen([*command, *arguments], stdout=output, stderr=output, env=variables)
    stack.callback(_stop, process)
    return process, log


def _spark_home() -> Path:
    """Return the folder of the pyspark package, without importing it."""
    found = find_spec("pyspark")
    if found is None or not found.submodule_search_locations:
        raise RuntimeError("pyspark is not installed")
    return Path(found.submodule_search_locations[0])


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _line(log: Path, pattern: str) -> str:
    """Wait until a log has a line that matches a pattern. Return the pattern's first group."""
    until = time.monotonic() + _PATIENCE
    while not (found := re.search(pattern, log.read_text(errors="replace"))):
        if time.monotonic() > until:
            raise RuntimeError(f"{log.name}: {log.read_text(errors='replace')[-2000:]}")
        time.sleep(0.1)
    return found[1]
