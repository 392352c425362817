"""The consumer programs of clients in other languages, built when a test first asks for them.

Each client needs its own toolchain. If a toolchain is missing, the test is skipped with a message. Built
programs are kept in the cache folder.
"""

import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from tests.clients.runner import CACHE, Program, Sessions, python_programs
from tools.kafka import LATEST
from tools.kafka.jars import classpath

HERE = Path(__file__).parent
BUILT = CACHE / "clients"
BUILD_SECONDS = 240
QUICK_START = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
"""Options for a Java process that runs for only a few seconds."""


def tool(name: str) -> str:
    """Return the path of a toolchain's program. If it is missing, skip the test."""
    found = shutil.which(name)
    if found is None:
        import pytest  # noqa: PLC0415 - `make demo-zones` imports this module, and installs no pytest

        pytest.skip(f"no {name} on this machine: this client was not run")
    return found


def build(*command: str, folder: Path) -> None:
    subprocess.run(command, cwd=folder, check=True, timeout=BUILD_SECONDS)


def go_program(
    name: str,
    command: str,
    sessions: Sessions,
    *options: str,
    transactions: bool = True,
    markers: bool = True,
) -> Program:
    """Build a program.

    Args:
        name: the name of the client, with which the program is kept.
        command: the folder of the program.
        sessions: who makes sessions.
        options: more options of `go build`.
        transactions: whether it knows transactions.
        markers: whether it skips the markers of transactions.
    """
    output = BUILT / "go" / f"{command}-{name}"
    output.parent.mkdir(parents=True, exist_ok=True)
    build(tool("go"), "build", *options, "-o", str(output), f"./{command}", folder=HERE / "go")
    return Program(
        name=name,
        client_id=name,
        command=(str(output),),
        sessions=sessions,
        transactions=transactions,
        markers=markers,
    )


def sarama() -> Program:
    return go_program("sarama", "sarama", Sessions.GIVEN)


def old_sarama() -> Program:
    options = ("-modfile", "old.mod", "-tags", "old")
    return go_program("sarama-1.19", "sarama", Sessions.GIVEN, *options, transactions=False)


def franz_go() -> Program:
    return go_program("franz-go", "franz", Sessions.OWN)


def kafka_go() -> Program:
    return go_program("kafka-go", "kafkago", Sessions.NONE, transactions=False, markers=False)


def js_program(name: str, package: str, module: str, sessions: Sessions, *, aborted: int = 0) -> Program:
    node, npm = tool("node"), tool("npm")
    folder = BUILT / "js"
    folder.mkdir(parents=True, exist_ok=True)
    for file in ("package.json", ".npmrc"):
        shutil.copy(HERE / "js" / file, folder)
    if not (folder / "node_modules" / package).is_dir():
        build(npm, "install", folder=folder)
    command = (node, str(HERE / "js" / f"consume_{module}.js"), str(folder))
    return Program(name=name, client_id=name, command=command, sessions=sessions, aborted=aborted)


def kafkajs() -> Program:
    return js_program("kafkajs", "kafkajs", "kafkajs", Sessions.GIVEN)


def kafka_ts() -> Program:
    return js_program("kafka-ts", "kafka-ts", "kafka_ts", Sessions.OWN)


def platformatic() -> Program:
    """Return the program of @platformatic/kafka.

    If a response has two aborted transactions of the same producer, this client delivers the records of the
    first one: 8 records in each such case.
    """
    return js_program("platformatic", "@platformatic/kafka", "platformatic", Sessions.ASKED, aborted=16)


def kcat() -> Program:
    """Return the program of Debian's kcat. Its librdkafka is years older than that of confluent-kafka."""
    command = (sys.executable, "-m", "tests.clients.python.consume_kcat", tool("kcat"))
    return Program(name="kcat", client_id="kcat", command=command, sessions=Sessions.GIVEN)


def java(release: str = LATEST) -> Program:
    compiler, runtime = tool("javac"), tool("java")
    folder = BUILT / f"java-{release}"
    folder.mkdir(parents=True, exist_ok=True)
    jars = classpath(release)
    build(compiler, "-cp", jars, "-d", str(folder), "Consume.java", folder=HERE / "java")
    command = (runtime, "-Xmx256m", *QUICK_START, "-cp", f"{folder}:{jars}", "Consume")
    return Program(name="java", client_id="java", command=command, sessions=Sessions.OWN)


def newest_java() -> Program:
    """Return the program of the newest Java client.

    Its first ApiVersions request is v5, which the gateway does not support.
    """
    return java("4.4.0")


PROGRAMS: Mapping[str, Callable[[], Program]] = {
    "java": java,
    "java-4.4": newest_java,
    "sarama": sarama,
    "sarama-1.19": old_sarama,
    "franz-go": franz_go,
    "kafka-go": kafka_go,
    "kafkajs": kafkajs,
    "kafka-ts": kafka_ts,
    "platformatic": platformatic,
    "kcat": kcat,
}
COOPERATIVE = tuple(name for name in PROGRAMS if name != "platformatic")
"""The clients that can be members of a cooperative group: all except platformatic. In Fetch v12, platformatic
sends topic ids although v12 needs names, and gets error 3."""
TOOLCHAINS: Mapping[str, tuple[str, ...]] = {
    "java": ("javac", "java"),
    "sarama": ("go",),
    "franz-go": ("go",),
    "kafka-go": ("go",),
    "kafkajs": ("node", "npm"),
    "platformatic": ("node", "npm"),
}


def lacking(client: str) -> str:
    """Return which toolchain of a client this machine lacks, "" if it can run."""
    missing = [each for each in TOOLCHAINS.get(client, ()) if shutil.which(each) is None]
    return f"no {', '.join(missing)} on this machine" if missing else ""


def program_of(client: str) -> Program:
    """Build the program of a client in any language."""
    return PROGRAMS[client]() if client in PROGRAMS else python_programs()[client]
