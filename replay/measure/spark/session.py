"""A Spark session of our own: quiet, on loopback, with a folder that is gone when it ends."""

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
"""A worker holds a few Arrow batches of this size at a time, whatever the capture's."""
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
    """Spark could not be started; the message is one line."""


@contextmanager
def session(master: str) -> Iterator[SparkSession]:
    """Start Spark, and stop it and remove what it left at the end.

    Args:
        master: as Spark's own --master.

    Raises:
        NoJavaError: there is no Java to run it on.
        SparkFailedError: it did not come up.
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
    """Give the root logger a handler: py4j would make it print a stack trace for a call that Ctrl-C ends."""
    handler = logging.NullHandler()
    logging.getLogger().addHandler(handler)
    try:
        yield
    finally:
        logging.getLogger().removeHandler(handler)


def is_local(master: str) -> bool:
    """Whether all of Spark runs on this machine."""
    return master.startswith("local")


def _start(master: str, scratch: Path) -> SparkContext:
    os.environ["JAVA_HOME"] = str(java_home(scratch))
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    (scratch / "log4j2.properties").write_text(_LOG4J, encoding="utf-8")
    conf = _conf(master, scratch)
    noise = scratch / "stderr"
    try:
        with noise.open("wb") as stderr, _interrupt_later():
            gateway = launch_gateway(conf, {"stdout": stderr, "stderr": stderr})  # type: ignore[no-untyped-call]  # PySpark's own
        return SparkContext(conf=conf, gateway=gateway)
    except (PySparkException, Py4JError, OSError) as error:
        raise SparkFailedError(f"--master {master}: {_reason(error, noise)}") from error


@contextmanager
def _interrupt_later() -> Iterator[None]:
    """Hold Ctrl-C back: a Java process that is interrupted while it starts would be left behind."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if came:
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


def _reason(error: Exception, noise: Path) -> str:
    """Give the line that tells why: Java's own last complaint, else the exception's."""
    with suppress(OSError):
        lines = [line.strip() for line in noise.read_text(errors="replace").splitlines()]
        told = [line for line in lines if "Exception" in line or "Error" in line]
        if told:
            return told[0].partition("Exception: ")[2] or told[0]
    return (str(error).splitlines() or [type(error).__name__])[0]


def _stop(context: SparkContext) -> None:
    """Stop Spark and the Java process: the gateway leaves when its standard input closes."""
    gateway = SparkContext._gateway  # noqa: SLF001 - PySpark keeps the process it started there alone
    context.stop()
    if gateway is None:
        return
    gateway.shutdown()
    process = gateway.proc
    process.stdin.close()
    process.wait(timeout=30)
    SparkContext._gateway = SparkContext._jvm = None  # noqa: SLF001 - so that another session starts anew
