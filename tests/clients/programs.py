"""The consumer programs of clients in other languages, built when a test first asks for them.

Each needs its own toolchain; where that is missing the test is skipped and says what it wanted. What is built
goes to the cache folder.
"""

import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tests.clients.runner import CACHE, Program, Sessions
from tools.kafka import LATEST
from tools.kafka.jars import classpath

HERE = Path(__file__).parent
BUILT = CACHE / "clients"
BUILD_SECONDS = 240
QUICK_START = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
"""Of a Java that lives for seconds."""


def tool(name: str) -> str:
    """Give the path of a program of a toolchain, or skip the test."""
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"no {name} on this machine: this client was not run")
    return found


def build(*command: str, folder: Path) -> None:
    subprocess.run(command, cwd=folder, check=True, timeout=BUILD_SECONDS)


def go_program(name: str, command: str, sessions: Sessions, *, transactions: bool = True) -> Program:
    output = BUILT / "go"
    output.mkdir(parents=True, exist_ok=True)
    build(tool("go"), "build", "-o", str(output / command), f"./{command}", folder=HERE / "go")
    return Program(
        name=name,
        client_id=name,
        command=(str(output / command),),
        sessions=sessions,
        transactions=transactions,
    )


def sarama() -> Program:
    return go_program("sarama", "sarama", Sessions.GIVEN)


def franz_go() -> Program:
    return go_program("franz-go", "franz", Sessions.OWN)


def kafka_go() -> Program:
    return go_program("kafka-go", "kafkago", Sessions.NONE, transactions=False)


def kafkajs() -> Program:
    node, npm = tool("node"), tool("npm")
    folder = BUILT / "js"
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("package.json", ".npmrc"):
        shutil.copy(HERE / "js" / name, folder)
    if not (folder / "node_modules" / "kafkajs").is_dir():
        build(npm, "install", folder=folder)
    command = (node, str(HERE / "js" / "consume.js"), str(folder))
    return Program(name="kafkajs", client_id="kafkajs", command=command, sessions=Sessions.GIVEN)


def java() -> Program:
    compiler, runtime = tool("javac"), tool("java")
    folder = BUILT / "java"
    jars = classpath(LATEST)
    build(compiler, "-cp", jars, "-d", str(folder), "Consume.java", folder=HERE / "java")
    command = (runtime, "-Xmx256m", *QUICK_START, "-cp", f"{folder}:{jars}", "Consume")
    return Program(name="java", client_id="java", command=command, sessions=Sessions.OWN)


PROGRAMS: Mapping[str, Callable[[], Program]] = {
    "java": java,
    "sarama": sarama,
    "franz-go": franz_go,
    "kafka-go": kafka_go,
    "kafkajs": kafkajs,
}
