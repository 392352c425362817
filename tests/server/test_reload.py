"""Options are read again at run time: when they apply, to which connections, and what is logged about
mistakes.
"""

import asyncio
import json
import os
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from proxy.server import reload, server
from proxy.server.gateway import Gateway
from proxy.server.reload import Reloader, load_all, load_first
from proxy.telemetry.metrics import exposition
from proxy.telemetry.state import document
from proxy.text.options import ConfigError, OptionsFile
from tests.shell import client, gateway, request, run, stub_cluster, until

LIST_GROUPS = 16

pytestmark = pytest.mark.usefixtures("log_defaults")


@pytest.fixture
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the gateway check files and connections often, so that the tests are quick."""
    monkeypatch.setattr(reload, "TICK_SECONDS", 0.01)
    monkeypatch.setattr(server, "TICK_SECONDS", 0.01)


def _reloader(gate: Gateway, bootstrap: str, named: Path) -> Reloader:
    flags: dict[str, Any] = {"bootstrap": bootstrap, "listen": "127.0.0.1:0", "config": str(named)}
    config, read = load_first(flags, {})
    return Reloader(gate, config, partial(load_all, flags, {}), OptionsFile.of(flags["config"], {}), read)


@asynccontextmanager
async def _following(named: Path) -> AsyncIterator[tuple[Gateway, Reloader]]:
    """Run a gateway that reads an options file, and reads it again when it has changed."""
    async with stub_cluster((1, "", 0)) as cluster, gateway(cluster.address, Gateway) as gate:
        await until(lambda: gate.monitor.reach.answered)
        options = _reloader(gate, cluster.address, named)
        gate.process.spawn(options.watch_file())
        yield gate, options


@pytest.mark.usefixtures("_quick")
async def test_a_file_that_changes_is_applied_without_a_signal(tmp_path: Path) -> None:
    file = tmp_path / "gate.toml"
    file.write_text("max_sessions = 5\n")

    async with _following(file) as (gate, options):
        aside = tmp_path / "new"
        aside.write_text(
            "max_sessions = 6\nmax_inflight_bytes = 1000\ndrain_timeout = 1.5\ncapture_files = 2\n"
        )
        aside.replace(file)
        await until(lambda: gate.server.sessions.max_sessions == 6)
        assert gate.server.budget.limit == 1000
        assert options.config.drain_timeout == 1.5
        (told,) = [each for each in gate.process.events if each.kind == "reloaded"]
        assert told.warning
        assert told.text == (
            "a restart is needed for capture_files; "
            "options reloaded: max_sessions, max_inflight_bytes, drain_timeout"
        )


async def test_what_needs_a_restart_is_told_until_it_is_taken_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "gate.toml"
    file.write_text("capture_files = 3\n")

    async with stub_cluster((1, "", 0)) as cluster, gateway(cluster.address, Gateway) as gate:
        await until(lambda: gate.health().state == "ready")
        options = _reloader(gate, cluster.address, file)

        async def shown() -> tuple[str, list[str], Any, float]:
            state = json.loads(await document(gate))
            samples = exposition(gate.server.account()).decode()
            (told,) = re.findall(r"^fetchgate_options_need_restart (.*)$", samples, re.MULTILINE)
            return state["state"], state["reasons"], state["needs_restart"], float(told)

        file.write_text("capture_files = 2\nmax_sessions = 6\nreuse_port = true\n")
        options.reload()
        said = capsys.readouterr().err  # a reload sets up the log anew
        restart = "needs_restart=['reuse_port', 'capture_files']"
        assert f"[warning  ] reloaded applied=['max_sessions'] {restart}" in said
        reason = "a restart is needed for reuse_port, capture_files"
        assert await shown() == ("degraded", [reason], ["reuse_port", "capture_files"], 2)
        file.write_text("capture_files = -\n")
        options.reload()
        assert (await shown())[2] == ["reuse_port", "capture_files"], "a mistake takes nothing back"
        file.write_text("capture_files = 3\nmax_sessions = 6\n")
        options.reload()
        assert "[info     ] reloaded applied=[] needs_restart=[]" in capsys.readouterr().err
        assert await shown() == ("ready", [], [], 0)


@pytest.mark.usefixtures("_quick")
async def test_a_file_that_broke_changes_nothing_and_one_that_is_mended_counts(tmp_path: Path) -> None:
    file = tmp_path / "gate.toml"
    file.write_text("max_sessions = 5\n")

    async with _following(file) as (gate, _):
        before = gate.server.sessions.max_sessions

        def told() -> list[str]:
            return [line["reason"] for line in lines if line["event"] == "not reloaded"]

        with capture_logs() as lines:
            file.write_text("max_sessions = -\n")
            await until(told)
            await asyncio.sleep(0.05)
        assert told() == [f"--config {file} is not TOML: Invalid value (at line 1, column 16)"], "once"
        assert gate.server.sessions.max_sessions == before
        status = gate.status()
        assert (status.reload_failures, status.reloaded_at) == (1, gate.process.options.reloaded_at)
        (reason,) = gate.health().reasons
        assert reason == f"options not reloaded: {told()[0]} (a restart would fail)"
        file.write_text("max_sessions = 7\n")
        await until(lambda: gate.server.sessions.max_sessions == 7)
        assert gate.health().reasons == []
        assert gate.status().reload_failures == 1
        assert gate.status().reloaded_at > status.reloaded_at


class _Mount:
    """A folder in which the kubelet mounts an optional ConfigMap. It is empty while there is no ConfigMap.

    The file is a symbolic link into ``..data``, a link to the folder of one version. Another version takes
    its place by a rename (`pkg/volume/util/atomic_writer.go` of Kubernetes).
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file = folder / "fetchgate.toml"
        self._versions = 0
        self._swap()

    def write(self, text: str, name: str = "fetchgate.toml") -> None:
        """Mount a version of the ConfigMap that has the file alone."""
        self._swap(text, name)
        if not (link := self.folder / name).is_symlink():
            link.symlink_to(f"..data/{name}")
        self._remove_all_but(name)

    def delete(self) -> None:
        """Mount what there is without the ConfigMap."""
        self._swap()
        self._remove_all_but("")

    def _remove_all_but(self, name: str) -> None:
        for each in self.folder.glob("[!.]*"):
            if each.name != name:
                each.unlink()

    def _swap(self, text: str | None = None, name: str = "fetchgate.toml") -> None:
        self._versions += 1
        version = self.folder / f"..version_{self._versions}"
        version.mkdir()
        if text is not None:
            (version / name).write_text(text)
        (new := self.folder / "..data_tmp").symlink_to(version.name)
        data = self.folder / "..data"
        before = data.resolve() if data.is_symlink() else None
        new.rename(data)
        if before is not None:
            for each in (*before.iterdir(), before):
                each.unlink() if each.is_file() else each.rmdir()


@pytest.mark.usefixtures("_quick")
async def test_a_folder_s_file_counts_from_when_it_appears_until_it_vanishes(tmp_path: Path) -> None:
    """As a ConfigMap that is created, changed to a wrong one, mended and deleted."""
    mount = _Mount(tmp_path)

    async with _following(tmp_path) as (gate, options):
        await until(lambda: gate.health().state == "ready")

        def told() -> list[str]:
            return [each.text for each in gate.process.events if "reloaded" in each.kind]

        await asyncio.sleep(0.05)
        assert (options.config.sessions, told()) == (True, []), "no file is needed"
        mount.write("sessions = false\n")
        await until(lambda: not options.config.sessions)
        assert told() == ["options reloaded: sessions"]
        mount.write("sesions = false\n")
        await until(lambda: gate.health().state == "degraded")
        await asyncio.sleep(0.05)
        problem = f"sesions in {mount.file}: no such option; did you mean sessions?"
        assert told()[1:] == [f"options not reloaded: {problem}"], "once"
        assert gate.health().reasons == [
            f"options not reloaded: {problem} (a restart would leave the file out)"
        ]
        assert not options.config.sessions, "the last options that were right"
        mount.write("sessions = false\nmax_sessions = 7\n")
        await until(lambda: gate.server.sessions.max_sessions == 7)
        assert gate.health().state == "ready"
        mount.delete()
        await until(lambda: options.config.sessions)
        assert told()[-1] == "options reloaded: sessions, max_sessions"
        assert gate.server.sessions.max_sessions == 500, "the default again"
        mount.write("sessions = false\n")
        await until(lambda: not options.config.sessions)


@pytest.mark.usefixtures("_quick")
async def test_a_wrong_file_in_a_folder_keeps_no_gateway_from_starting(tmp_path: Path) -> None:
    """Else a mistake in a ConfigMap would keep all new pods of a namespace from starting."""
    mount = _Mount(tmp_path)
    mount.write("sessions = maybe\n")

    async with _following(tmp_path) as (gate, options):
        assert options.config.sessions
        await until(lambda: gate.health().state == "degraded")
        (reason,) = gate.health().reasons
        assert reason.startswith(f"options not reloaded: --config {mount.file} is not TOML")
        assert reason.endswith(" (a restart would leave the file out)")
        mount.write("sessions = false\n")
        await until(lambda: not options.config.sessions)
        assert gate.health().reasons == []


@pytest.mark.usefixtures("_quick")
def test_a_file_of_another_name_in_the_folder_is_reported_as_a_wrong_one(tmp_path: Path) -> None:
    """As a ConfigMap with a wrong key: else nobody learns that its options are not applied."""
    mount = _Mount(tmp_path)
    mount.write("sessions = false\n", "fetchgate.yml")
    problem = (
        f"--config {tmp_path} has fetchgate.yml, and no fetchgate.toml: "
        "name the file, or the key of the ConfigMap, fetchgate.toml"
    )
    flags: dict[str, Any] = {"bootstrap": "kafka:9092", "listen": ":0", "config": str(tmp_path)}

    async def scene() -> None:
        with capture_logs() as lines:
            async with _following(tmp_path) as (gate, options):

                def told() -> list[str]:
                    return [line["reason"] for line in lines if line["event"] == "not reloaded"]

                await until(told)
                await asyncio.sleep(0.05)
                assert told() == [problem], "once"
                reason = f"options not reloaded: {problem} (a restart would leave the file out)"
                assert (gate.health().state, gate.health().reasons) == ("degraded", [reason])
                assert (options.config.sessions, gate.status().reload_failures) == (True, 1), (
                    "as if it were absent"
                )
                mount.write("sessions = false\n")
                await until(lambda: not options.config.sessions)
                assert gate.health().state == "ready"
                mount.write("sessions = true\n", "options")
                await until(lambda: gate.health().state == "degraded")
                assert gate.health().reasons == [reason.replace("fetchgate.yml", "options")]
                assert not options.config.sessions, "the last options that were right"
                mount.delete()
                await until(lambda: options.config.sessions)
                assert gate.health().state == "ready"

    run(scene())
    mount.write("", "fetchgate.yml")
    with pytest.raises(ConfigError, match=re.escape(problem)):  # --check and --show-config
        load_all(flags, {})


def test_what_is_no_option_file_in_the_folder_is_not_reported(tmp_path: Path) -> None:
    """A volume has the folder lost+found, editors write hidden files, and the kubelet removes links late."""
    flags: dict[str, Any] = {"bootstrap": "kafka:9092", "listen": ":0", "config": str(tmp_path)}
    (tmp_path / "lost+found").mkdir()
    (tmp_path / ".fetchgate.toml.swp").write_text("")
    (tmp_path / "fetchgate.toml").symlink_to("..data/fetchgate.toml")
    assert load_first(flags, {})[1] is None
    assert load_all(flags, {}).sessions


@pytest.mark.usefixtures("_quick")
@pytest.mark.parametrize("start", ["absent", "wrong"])
async def test_whatever_is_there_instead_of_a_file_is_reported_and_left_behind(
    start: str, tmp_path: Path
) -> None:
    """Nothing ends the task that watches the file, and none of it keeps the gateway from working."""
    file = tmp_path / "fetchgate.toml"
    if start == "wrong":
        file.write_text("max_sessions = " + "9" * 5000)

    def pipe() -> None:
        os.mkfifo(file)

    wrong: dict[str, tuple[Callable[[], object], str]] = {
        "digits": (lambda: file.write_text("max_sessions = " + "9" * 5000), "thousands of digits"),
        "hex": (lambda: file.write_text("max_sessions = 0x" + "f" * 5000), "thousands of digits"),
        "depth": (lambda: file.write_text("a = " + "[" * 5000), "nested too deeply"),
        "bytes": (lambda: file.write_bytes(b"\xff" * 9), "is not TOML"),
        "pipe": (pipe, "it is a pipe"),
        "folder": (file.mkdir, "Is a directory"),
        "loop": (lambda: file.symlink_to(file), "symbolic links"),
    }

    def reported(gate: Gateway, told: str) -> bool:
        return any(told in each for each in gate.health().reasons)

    def applied(gate: Gateway, limit: int) -> bool:
        return gate.server.sessions.max_sessions == limit

    async with _following(tmp_path) as (gate, _):
        for place, (make, told) in enumerate(wrong.values(), 1):
            file.unlink(missing_ok=True)
            make()
            await until(partial(reported, gate, told))
            assert gate.server.sessions.max_sessions == (500 if place == 1 else place - 1)
            file.rmdir() if file.is_dir() else file.unlink()
            file.write_text(f"max_sessions = {place}")
            await until(partial(applied, gate, place))
            assert gate.health().state == "ready"


@pytest.mark.usefixtures("_quick")
async def test_a_file_that_could_not_even_be_looked_at_is_reported(tmp_path: Path) -> None:
    """It has no stamp, as if it were absent."""
    (tmp_path / "fetchgate.toml").symlink_to("fetchgate.toml")

    async with _following(tmp_path) as (gate, _):
        await until(lambda: "symbolic links" in "".join(gate.health().reasons))


@pytest.mark.usefixtures("_quick")
def test_a_folder_s_file_is_for_live_options_alone(tmp_path: Path) -> None:
    """Else a file that running gateways can't apply could keep new ones from starting."""
    mount = _Mount(tmp_path)
    wrong = 'sessions = false\nbroker_tls = true\nbroker_tls_ca = "/nowhere"\nlisten = "127.0.0.1:1"\n'
    mount.write(wrong)
    told = (
        f"broker_tls in {mount.file}: it needs a restart, and the directory of --config is for live options; "
        "give --broker-tls or FETCHGATE_BROKER_TLS"
    )

    async def scene() -> None:
        async with _following(tmp_path) as (gate, options):
            reason = f"options not reloaded: {told} (a restart would leave the file out)"
            await until(lambda: gate.health().reasons == [reason])
            assert (options.config.sessions, options.config.broker_tls) == (True, False)
            mount.write('sessions = false\nlisten = "127.0.0.1:1"\n')  # a flag overrides listen
            await until(lambda: not options.config.sessions)
            assert gate.health().state == "ready"

    run(scene())
    mount.write(wrong)
    with pytest.raises(ConfigError, match=re.escape(told)):  # --check and --show-config
        load_all({"bootstrap": "kafka:9092", "listen": ":0", "config": str(tmp_path)}, {})
    whole = tmp_path / "whole.toml"
    whole.write_text("broker_tls = true\n")
    assert load_all({"bootstrap": "kafka:9092", "config": str(whole)}, {}).broker_tls


def test_a_gateway_that_cant_start_without_the_file_says_what_is_wrong_with_it(tmp_path: Path) -> None:
    file = tmp_path / "fetchgate.toml"
    for text, told in (
        ('bootstrap = "kafka:9092"\nsesions = true\n', f"sesions in {file}: no such option"),
        ('bootstrap = "kafka:9092"\n', f"bootstrap in {file}: it needs a restart"),
    ):
        file.write_text(text)
        with pytest.raises(ConfigError, match=re.escape(told)):
            load_first({"config": str(tmp_path)}, {})


@pytest.mark.usefixtures("_quick")
async def test_a_file_that_changed_while_the_gateway_started_is_read(tmp_path: Path) -> None:
    mount = _Mount(tmp_path)
    flags: dict[str, Any] = {"bootstrap": "kafka:9092", "listen": "127.0.0.1:0", "config": str(tmp_path)}

    config, read = load_first(flags, {})
    mount.write("sessions = false\n")
    file = OptionsFile.of(flags["config"], {})
    async with stub_cluster((1, "", 0)) as cluster, gateway(cluster.address, Gateway) as gate:
        options = Reloader(gate, config, partial(load_all, flags, {}), file, read)
        gate.process.spawn(options.watch_file())
        await until(lambda: not options.config.sessions)


async def test_a_drain_under_way_keeps_the_time_that_it_was_given(tmp_path: Path) -> None:
    file = tmp_path / "gate.toml"
    file.write_text("drain_timeout = 20\n")

    async with stub_cluster((1, "", 0)) as cluster, gateway(cluster.address, Gateway) as gate:
        options = _reloader(gate, cluster.address, file)
        options.draining = True
        file.write_text("drain_timeout = 3\nmax_sessions = 6\n")
        for applied in ("max_sessions", "nothing changed"):
            options.reload()
            *_, told = gate.process.events
            assert told.text == f"a restart is needed for drain_timeout; options reloaded: {applied}"
        assert (options.config.drain_timeout, gate.process.config.max_sessions) == (20, 6)


async def test_a_lower_limit_leaves_sessions_that_stand_and_gives_no_more(tmp_path: Path) -> None:
    file = tmp_path / "gate.toml"
    file.write_text("max_sessions = 2\n")

    async with stub_cluster((1, "", 0)) as cluster, gateway(cluster.address, Gateway) as gate:
        options = _reloader(gate, cluster.address, file)
        assert gate.server.sessions.reserve()
        assert gate.server.sessions.reserve()
        file.write_text("max_sessions = 1\n")
        options.reload()
        assert gate.server.sessions.used == 2
        gate.server.sessions.release()
        assert not gate.server.sessions.reserve()
        gate.server.sessions.release()
        assert gate.server.sessions.reserve()


async def test_memory_that_a_lower_limit_makes_short_holds_brokers_back(tmp_path: Path) -> None:
    file = tmp_path / "gate.toml"
    file.write_text("")

    class Holder:
        buffered_changed_at = 0.0
        can_go_on = True
        waits = False

        def wait_for_budget(self, waits: bool) -> None:
            self.waits = waits

        def report_buffered(self) -> None:
            pass

    async with stub_cluster((1, "", 0)) as cluster, gateway(cluster.address, Gateway) as gate:
        options = _reloader(gate, cluster.address, file)
        first, second = Holder(), Holder()
        gate.server.budget.update(first, 60)
        gate.server.budget.update(second, 60)
        file.write_text("max_inflight_bytes = 100\n")
        options.reload()
        assert (first.waits, second.waits, gate.server.sessions.crowded) == (False, True, True)
        file.write_text("max_inflight_bytes = 200\n")
        options.reload()
        assert (first.waits, second.waits, gate.server.sessions.crowded) == (False, False, False)


async def test_a_larger_request_is_taken_from_connections_that_come_after_the_reload(tmp_path: Path) -> None:
    file = tmp_path / "gate.toml"
    file.write_text("max_request_bytes = 100\n")
    large = request(LIST_GROUPS, 0, 1, bytes(200))

    async with (
        stub_cluster((1, "", 0)) as cluster,
        gateway(cluster.address, Gateway, max_request_bytes="100") as gate,
    ):
        cluster.others = lambda _: b"taken"
        options = _reloader(gate, cluster.address, file)
        async with client(gate.listen.port) as (reader, writer):
            writer.write(large)
            assert await reader.read() == b""
        file.write_text("max_request_bytes = 1000\n")
        options.reload()
        async with client(gate.listen.port) as (reader, writer):
            writer.write(large)
            assert await reader.readexactly(13) == (9).to_bytes(4) + (1).to_bytes(4) + b"taken"
