"""A Spark session: a new one, or the session that spark-submit prepared.

A new session prints nothing, uses only loopback unless a cluster is named, and removes its folder at the end.
"""

import logging
import os
import pwd
import re
import shutil
import signal
import socket
import sys
import tempfile
import threading
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from subprocess import TimeoutExpired
from types import MappingProxyType
from typing import Any, Final
from urllib.parse import urlsplit

from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext, __version__
from pyspark.errors import PySparkException
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from replay.measure.spark.errors import SparkFailedError
from replay.measure.spark.java import SUBMITTED, java_home

BATCH_BYTES: Final = 4 << 20
"""The size of Arrow batches, in bytes. A worker has a few of them in memory, for a capture of any size."""
_LOG4J: Final = """\
rootLogger.level = error
rootLogger.appenderRef.file.ref = err
appender.err.type = Console
appender.err.name = err
appender.err.target = SYSTEM_ERR
appender.err.layout.type = PatternLayout
appender.err.layout.pattern = %p %c{1}: %m%n%ex{short}
"""


_ANSWER_SECONDS: Final = 10.0
"""How long a Spark master may take to accept a connection, for all of its addresses together. A slower one
counts as unreachable. Spark's own limit is a minute."""
_STOP_SECONDS: Final = 30
_NOTHING: Final[Mapping[str, str]] = MappingProxyType({})


@contextmanager
def session(master: str | None = None, settings: Mapping[str, str] = _NOTHING) -> Iterator[SparkSession]:
    """Start Spark. At the end, stop Spark and remove its files.

    Args:
        master: the master, like Spark's own --master. If None, the one in `settings` is used, or else that of
            spark-submit or of Spark's own files. If there is none, local[*] is used.
        settings: settings, like Spark's own --conf. They override the settings that are made here.

    Raises:
        NoJavaError: there is no Java for Spark.
        SparkFailedError: Spark did not start.
    """
    master = master or settings.get("spark.master")
    if master:
        check_reachable(master)
    scratch = Path(tempfile.mkdtemp(prefix="fetchgate-spark-"))
    try:
        with _quiet(), _own_handlers():
            context = _start(master, settings, scratch)
            try:
                yield SparkSession(context)
            finally:
                with _signals_later():
                    _stop(context)
    finally:
        with _signals_later():
            shutil.rmtree(scratch, ignore_errors=True)


@contextmanager
def _quiet() -> Iterator[None]:
    """Add a handler to the root logger, so that py4j prints no stack trace when Ctrl-C ends a call."""
    handler = logging.NullHandler()
    logging.getLogger().addHandler(handler)
    try:
        yield
    finally:
        logging.getLogger().removeHandler(handler)


@contextmanager
def _own_handlers() -> Iterator[None]:
    """Restore the earlier handler of Ctrl-C at the end: PySpark's would call Java, which has ended."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def is_local(master: str | None) -> bool:
    """Return whether Spark runs only on this machine."""
    return (master or "").startswith("local")


def check_reachable(master: str) -> None:
    """Check that a standalone master, or the API server of Kubernetes, accepts connections.

    Raises:
        SparkFailedError: no address in the URL accepts connections.
    """
    ends = _ends(master)
    reasons = []
    for host, port in ends:
        try:
            socket.create_connection((host, port), _ANSWER_SECONDS / len(ends)).close()
        except OSError as error:
            reasons.append(f"{host}:{port} {_why(error)}")
        else:
            return
    if reasons:
        raise SparkFailedError(
            f"--master {master}: can't be reached ({', '.join(reasons)}); check the address, and that the "
            "master runs and listens on it"
        )


def _ends(master: str) -> list[tuple[str, int]]:
    """Return the addresses in a master's URL (spark://a:7077,b:7077). Empty if only Spark can resolve it."""
    scheme, _, rest = master.partition("://")
    if scheme == "spark":
        parts = [urlsplit(f"//{part}") for part in rest.split(",")]
    elif scheme == "k8s":
        parts = [urlsplit(rest if "://" in rest else f"https://{rest}")]
    else:
        return []
    with suppress(ValueError):  # Spark tells what is wrong with the port
        ports = [part.port or {"https": 443, "http": 80}.get(part.scheme, 0) for part in parts]
        return [
            (part.hostname, port) for part, port in zip(parts, ports, strict=True) if part.hostname and port
        ]
    return []


def _why(error: OSError) -> str:
    if isinstance(error, TimeoutError):
        return "does not respond"
    return (error.strerror or str(error)).lower()


def _start(master: str | None, chosen: Mapping[str, str], scratch: Path) -> SparkContext:
    output = scratch / "stderr"
    try:
        with output.open("wb") as stderr, _signals_later():
            gateway = _gateway(master, chosen, scratch, stderr)
        try:
            conf = _completed(SparkConf(_jvm=gateway.jvm), master, chosen)
            if is_local(conf.get("spark.master")):
                os.environ["PYSPARK_PYTHON"] = sys.executable  # that of the shell may not have fetchgate
            return SparkContext(conf=conf, gateway=gateway)
        except BaseException:
            with _signals_later():
                _stop_java(gateway)
            raise
    except (PySparkException, Py4JError, OSError) as error:
        if interrupted(error):
            raise KeyboardInterrupt from error
        named = f"--master {master}: " if master else "Spark did not start: "
        raise SparkFailedError(named + _reason(error, output)) from error


def _gateway(master: str | None, chosen: Mapping[str, str], scratch: Path, stderr: Any) -> Any:
    """Return the connection to Java. spark-submit has prepared it, or a new Java process is started."""
    if SUBMITTED in os.environ:
        return launch_gateway()  # type: ignore[no-untyped-call]  # PySpark's own
    _prepare_environment(master)
    os.environ["JAVA_HOME"] = str(java_home(scratch))
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    (scratch / "log4j2.properties").write_text(_LOG4J, encoding="utf-8")
    settings = {**_of_java(scratch, chosen.get(_JAVA_OPTIONS, "")), **_SETTINGS}
    settings |= {key: value for key, value in chosen.items() if key != _JAVA_OPTIONS}
    conf = SparkConf(loadDefaults=False).setAll(list(settings.items()))
    if master:
        conf.setMaster(master)
    return launch_gateway(conf, {"stdout": stderr, "stderr": stderr})  # type: ignore[no-untyped-call]  # PySpark's own


def _prepare_environment(master: str | None) -> None:
    """Remove what the shell has set for other programs of Spark, and refuse what Java can't run with."""
    os.environ.pop("PYSPARK_SUBMIT_ARGS", None)  # the command has its own --master and --conf
    if (home := os.environ.get("SPARK_HOME")) and (found := _release(Path(home))) != __version__:
        if master and not is_local(master):
            raise SparkFailedError(
                f"SPARK_HOME is {home}, which has Spark {found or 'of no known release'}, and the package "
                f"pyspark is {__version__}: unset SPARK_HOME, or install the pyspark of your cluster"
            )
        del os.environ["SPARK_HOME"]
    try:
        pwd.getpwuid(os.getuid())
    except KeyError:
        raise SparkFailedError(
            f"the user id {os.getuid()} has no entry in /etc/passwd, and Spark's Java needs one: add it, or "
            "measure with --in-process"
        ) from None
    try:
        socket.gethostbyname(socket.gethostname())
    except OSError:
        os.environ |= {"SPARK_LOCAL_IP": "127.0.0.1", "SPARK_LOCAL_HOSTNAME": "localhost"}


def _release(home: Path) -> str:
    """Return the release of Spark in a folder, without the name of its build, or "" if it is not known."""
    jars = (
        re.search(r"-(\d+(?:\.\d+)+)(?:-.+)?\.jar$", path.name) for path in home.glob("jars/spark-core_*.jar")
    )
    return next((found[1] for found in jars if found), "")


@contextmanager
def _signals_later() -> Iterator[None]:
    """Delay Ctrl-C and SIGTERM until the end of the block.

    Without the delay, a Java process that is just starting would continue to run, or a folder would be
    removed only in part.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received: list[int] = []
    before = {
        number: signal.signal(number, lambda number, _: received.append(number))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if received:
        signal.raise_signal(received[0])


def interrupted(error: BaseException | None) -> bool:
    """Return whether the user pressed Ctrl-C, even if PySpark has raised another exception for it."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__context__
    return error is not None


_OF_JAVA: Final = re.compile(r"\.(\w+(?:Exception|Error)): (.+)")
"""The name of an exception of Java, and its message."""
_NO_JVM: Final = "Error: Could not create the Java Virtual Machine"
"""What Java prints after the reason, which is not the text of an exception."""
_JAVA_OPTIONS: Final = "spark.driver.extraJavaOptions"
_SETTINGS: Final = {
    "spark.app.name": "fetchgate replay measure",
    "spark.log.level": "ERROR",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.execution.arrow.maxBytesPerBatch": str(BATCH_BYTES),
    "spark.sql.execution.pyspark.udf.faulthandler.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
    "spark.executorEnv.PYTHONPATH": str(Path(__file__).parents[3]),
}
_LOOPBACK: Final = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}


def _of_java(scratch: Path, options: str) -> dict[str, str]:
    ours = (  # quoted, because the name of a temporary folder may have spaces
        f'"-Dlog4j2.configurationFile={(scratch / "log4j2.properties").as_uri()}" '
        f'"-Djava.io.tmpdir={scratch}" -XX:+UseParallelGC -XX:TieredStopAtLevel=1 -Xshare:auto'
    )
    return {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        _JAVA_OPTIONS: f"{ours} {options}".rstrip(),
        "spark.driver.memory": "1g",
        "spark.local.dir": str(scratch),
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
    }


def _completed(conf: SparkConf, master: str | None, chosen: Mapping[str, str]) -> SparkConf:
    """Complete the settings of Java. Those of spark-submit are kept, unless the command has its own."""
    if master:
        conf.setMaster(master)
    for key, value in chosen.items():
        if key != _JAVA_OPTIONS:
            conf.set(key, value)
    local = is_local(conf.get("spark.master"))
    for key, value in (_SETTINGS | (_LOOPBACK if local else {})).items():
        conf.setIfMissing(key, value)
    return conf


def _reason(error: Exception, output: Path) -> str:
    """Return why Spark failed, in one line: the first exception that Java printed, or else `error`."""
    with suppress(OSError):
        lines = [line.strip() for line in output.read_text(errors="replace").splitlines()]
        for before, line in pairwise(["", *lines]):
            if found := _OF_JAVA.search(line):
                name, text = found.groups()
                return text if name == "SparkException" else f"{name}: {text}"
            if before and line.startswith(_NO_JVM):
                return before
    return (str(error).splitlines() or [type(error).__name__])[0]


def _stop(context: SparkContext) -> None:
    gateway = SparkContext._gateway  # noqa: SLF001 - only PySpark's own attribute has the process
    with warnings.catch_warnings(), suppress(PySparkException, Py4JError, OSError):
        warnings.simplefilter("ignore")  # PySpark warns where Java is gone
        context.stop()
    _stop_java(gateway)


def _stop_java(gateway: Any) -> None:
    """Stop the Java process by closing its standard input, unless the process belongs to spark-submit."""
    process = gateway.proc if gateway else None
    if process is None:
        return
    with suppress(Py4JError, OSError):
        gateway.shutdown()
    with suppress(OSError):
        process.stdin.close()
    try:
        process.wait(timeout=_STOP_SECONDS)
    except TimeoutExpired:
        process.kill()
        process.wait()
    SparkContext._gateway = SparkContext._jvm = None  # noqa: SLF001 - so that another session starts anew
