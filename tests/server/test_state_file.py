"""The file of ``--state``, which keeps the known brokers over a restart."""

import asyncio
import json
from collections.abc import Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import structlog
from structlog.testing import capture_logs

from proxy.addresses import Address
from proxy.server import state_file
from proxy.server.process import Process, Tasks
from proxy.server.state_file import KeptBroker, StateFile
from tests.shell import config, run, until

KAFKA = KeptBroker(1, Address("kafka-1", 9092))


class Keeping(Tasks):
    """Replaces the gateway: it knows brokers, and keeps the background tasks."""

    def __init__(self, path: Path) -> None:
        super().__init__(loop := asyncio.get_running_loop())
        self.known = [KAFKA]
        self.tasks: list[asyncio.Task[None]] = []
        process = Process.of(config(bootstrap="k:1", state=str(path)), loop, structlog.get_logger())
        self.file = StateFile(replace(process, tasks=self), lambda: list(self.known))

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self.tasks.append(asyncio.get_running_loop().create_task(work))


def test_what_is_known_survives_a_restart(tmp_path: Path) -> None:
    async def scene() -> None:
        path = tmp_path / "state.json"
        keeping = Keeping(path)
        keeping.file.changed()
        assert not path.exists(), "more may change"
        keeping.file.close()

        assert json.loads(path.read_text()) == {"brokers": [{"id": 1, "host": "kafka-1", "port": 9092}]}
        assert Keeping(path).file.load() == [KAFKA]

    run(scene())
    assert [each.name for each in tmp_path.iterdir()] == ["state.json"]


async def test_a_port_of_a_range_is_kept(tmp_path: Path) -> None:
    keeping = Keeping(tmp_path / "state.json")
    keeping.known = [KAFKA._replace(port=19_093)]
    keeping.file.changed()
    keeping.file.close()
    assert keeping.file.load() == keeping.known


async def test_a_state_that_another_version_wrote_is_read(tmp_path: Path) -> None:
    """A state file of another version can be read. Fields that a newer version added are ignored."""
    path = tmp_path / "state.json"
    broker = {"id": 1, "host": "kafka-1", "port": 9092, "rack": "a"}
    path.write_text(json.dumps({"brokers": [broker], "format": 7}))
    assert Keeping(path).file.load() == [KAFKA]


async def test_many_changes_are_written_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many changes are written to the file together.

    Before the fix, a response with 2,000 brokers caused a write for each broker, and all clients waited half
    a minute.
    """
    monkeypatch.setattr(state_file, "SAVE_SECONDS", 0.01)
    written: list[int] = []
    replace = Path.replace

    def counted(self: Path, target: Path) -> Path:
        written.append(len(json.loads(self.read_text())["brokers"]))
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", counted)

    keeping = Keeping(tmp_path / "state.json")
    for number in range(2, 1001):
        keeping.known.append(KeptBroker(number, Address("kafka", number)))
        keeping.file.changed()
    await until(keeping.tasks[0].done)
    assert written == [1000]
    keeping.file.close()
    assert written == [1000], "nothing has changed since"
    keeping.file.changed()
    await until(keeping.tasks[1].done)
    assert written == [1000, 1000]


async def test_a_state_that_is_written_late_replaces_no_newer_one(tmp_path: Path) -> None:
    """An older state that is written late does not replace a newer one. The writing thread may run only after
    the gateway has closed.
    """
    path = tmp_path / "state.json"
    keeping = Keeping(path)
    keeping.file.changed()
    early = keeping.file._next()
    keeping.known.append(KeptBroker(2, Address("kafka-2", 9092)))
    keeping.file.changed()
    keeping.file.close()
    keeping.file._write(path, *early)
    assert [each.node_id for each in keeping.file.load()] == [1, 2]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"brokers": [{"id": "x"}]}',
        '{"brokers": 5}',
        '{"brokers": [{"id": Infinity, "host": "kafka-1", "port": 9092}]}',
        '{"brokers": [{"id": 1, "host": "kafka-1", "port": 99999}]}',
        '{"brokers": [{"id": 1, "host": "", "port": 9092}]}',
        "\xff",
        "[" * 100_000,
    ],
)
async def test_a_state_that_cant_be_read_is_no_reason_to_stay_down(tmp_path: Path, text: str) -> None:
    state = tmp_path / "state.json"
    state.write_text(text, encoding="latin-1")

    with capture_logs() as lines:
        assert Keeping(state).file.load() == []
    assert [line["event"] for line in lines] == ["--state file not read"]


async def test_a_state_that_cant_be_written_is_no_reason_to_fail(tmp_path: Path) -> None:
    keeping = Keeping(tmp_path / "none" / "state.json")
    keeping.file.changed()
    with capture_logs() as lines:
        keeping.file.close()
    assert [line["event"] for line in lines] == ["--state file not written"]
