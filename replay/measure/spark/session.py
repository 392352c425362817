"""A Spark session of our own: it prints nothing, stays on loopback, and removes its folder when it ends."""

import logging
import os
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from replay.measure.spark.java import java_home

BATCH_BYTES: Final = 4 << 20
"""A worker has a few Arrow batches of this size in memory, however large the capture is."""
_LOG4J: Final = """\
rootLogger.level = error
rootLogger.appenderRef.file.ref = err
appender.err.type = Console
appender.err.name = err
appender.err.target = SYSTEM_ERR
appender.err.layout.type = PatternLayout
appender.err.layout.pattern = %p %c{1}: %m%n%ex{short}
"""


class SparkFailedError(Exception):
    """Spark could not be started, or failed. The message is one line."""


@contextmanager
def session(master: str) -> Iterator[SparkSession]:
    """Start Spark. At the end, stop it and remove its files.

    Args:
        master: as Spark's own --master.

    Raises:
        NoJavaError: there is no Java for Spark.
        SparkFailedError: Spark did not start.
    """
    scratch = Path(tempfile.mkdtemp(prefix="fetchgate-spark-"))
    try:
        with _quiet():
            context = _start(master, scratch)
            try:
                yield SparkSession(context)
            finally:
                _stop(context)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


@contextmanager
def _quiet() -> Iterator[None]:
    """Add a handler to the root logger. Without one, py4j prints a stack trace when Ctrl-C ends a call."""
    handler = logging.NullHandler()
    logging.getLogger().addHandler(handler)
    try:
        yield
    finally:
        logging.getLogger().removeHandler(handler)


def is_local(master: str) -> bool:
    """Whether Spark runs only on this machine."""
    return master.startswith("local")


def _start(master: str, scratch: Path) -> SparkContext:
    os.environ["JAVA_HOME"] = str(java_home(scratch))
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    (scratch / "log4j2.properties").write_text(_LOG4J, encoding="utf-8")
    conf = _conf(master, scratch)
    output = scratch / "stderr"
    try:
        with output.open("wb") as stderr, _interrupt_later():
            gateway = launch_gateway(conf, {"stdout": stderr, "stderr": stderr})  # type: ignore[no-untyped-call]  # PySpark's own
        return SparkContext(conf=conf, gateway=gateway)
    except (PySparkException, Py4JError, OSError) as error:
        raise SparkFailedError(f"--master {master}: {_reason(error, output)}") from error


@contextmanager
def _interrupt_later() -> Iterator[None]:
    """Delay Ctrl-C: a Java process that is interrupted while it starts would be left behind."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: received.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if received:
        raise KeyboardInterrupt


def _conf(master: str, scratch: Path) -> SparkConf:
    conf = SparkConf(loadDefaults=False).setMaster(master).setAppName("fetchgate replay measure")
    packages = str(Path(__file__).parents[3])
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile=file:{scratch}/log4j2.properties "
        "-XX:+UseParallelGC -XX:TieredStopAtLevel=1 -Xshare:auto",
        "spark.driver.memory": "1g",
        "spark.local.dir": str(scratch),
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.execution.arrow.maxBytesPerBatch": str(BATCH_BYTES),
        "spark.sql.execution.pyspark.udf.faulthandler.enabled": "true",
        "spark.sql.session.timeZone": "UTC",
        "spark.executorEnv.PYTHONPATH": packages,
    }
    if is_local(master):
        settings |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    return conf.setAll(list(settings.items()))


def _reason(error: Exception, output: Path) -> str:
    """Return the reason in one line: the first error that Java printed, or else the exception."""
    with suppress(OSError):
        lines = [line.strip() for line in output.read_text(errors="replace").splitlines()]
        errors = [line for line in lines if "Exception" in line or "Error" in line]
        if errors:
            return errors[0].partition("Exception: ")[2] or errors[0]
    return (str(error).splitlines() or [type(error).__name__])[0]


def _stop(context: SparkContext) -> None:
    """Stop Spark and the Java process. PySpark's gateway exits when its standard input closes."""
    gateway = SparkContext._gateway  # noqa: SLF001 - only PySpark's own attribute has the process
    context.stop()
    if gateway is None:
        return
    gateway.shutdown()
    process = gateway.proc
    process.stdin.close()
    process.wait(timeout=30)
    SparkContext._gateway = SparkContext._jvm = None  # noqa: SLF001 - so that another session starts anew
