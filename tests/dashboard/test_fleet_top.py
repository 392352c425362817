"""`fetchgate top` for several gateways, as users run it: on a terminal with keys, and into a pipe.

The commands of docs/users/top.md run as they are written, with a list of pods for kubectl.
"""

import asyncio
import json
import os
import pty
import re
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from proxy.__main__ import main
from proxy.addresses import Address
from proxy.dashboard.pods import gateways
from proxy.net.listen import Binding
from proxy.telemetry.admin import AdminEndpoint
from tests.dashboard.test_pods import listed, pod, sidecar
from tests.dashboard.test_top import TOP, WAIT_SECONDS, StubGateway, Terminal
from tests.shell import gateway, run, stub_broker

METRICS_PATHS = ("/metrics", "/livez", "/readyz")


@pytest.fixture
def stubs() -> Iterator[list[StubGateway]]:
    gateways = [StubGateway() for _ in range(3)]
    with ExitStack() as stack:
        for one, scene in zip(gateways, ("busy", "degraded", "off"), strict=True):
            one.scene = scene
            one.start()
            stack.callback(one.stop)
        yield gateways


def names(stubs: list[StubGateway]) -> list[str]:
    return [f"127.0.0.1:{one.port}" for one in stubs]


def flags(stubs: list[StubGateway]) -> list[str]:
    return [word for name in names(stubs) for word in ("--admin", name)]


@pytest.fixture
def terminal(stubs: list[StubGateway]) -> Iterator[Terminal]:
    made = Terminal([*TOP, *flags(stubs), "--interval", "0.1"], columns=120)
    try:
        yield made
    finally:
        made.close()


def test_what_is_wrong_comes_first_and_enter_opens_a_gateway(
    stubs: list[StubGateway], terminal: Terminal
) -> None:
    busy, degraded, off = names(stubs)
    terminal.sees("3 gateways: 1 degraded, 2 ready")
    assert all(one.asked[0] == "/state?connections=0" for one in stubs), "rows need no connections"
    shown = terminal.sees(f">{degraded} ")
    assert shown.index(degraded) < shown.index(off) < shown.index(busy)
    assert "sessions are off: no saving" in shown
    terminal.press("\r")
    terminal.until(lambda shown: ">orders-1" in shown and "Esc gateways" in shown, "the gateway's clients")
    assert f" at {degraded}  degraded  " in terminal.shown
    terminal.until(lambda _: "/state?connections=500" in stubs[1].asked, "a request with connections")
    terminal.press("j\r")
    terminal.sees("since accepted")
    terminal.press("\x7f")
    terminal.sees("Esc gateways")
    terminal.press("/bill\r\x1b")
    terminal.until(lambda shown: "filter" not in shown and "Esc gateways" in shown, "no filter")
    terminal.press("\x1b")
    terminal.sees(f">{degraded} ")
    terminal.press("/ab\x7f\x7foff\r\r")
    terminal.sees(f" at {off}  ")
    terminal.press("\x7f")
    terminal.sees("1, by state")
    terminal.press("\x7f")
    terminal.sees(f">{off} ")
    terminal.press("1")
    terminal.sees("by gateway ▲")
    terminal.press("p")
    terminal.sees("PAUSED")
    terminal.press("h")
    terminal.sees("Gateways, those with problems first")
    terminal.press("\x1bp\rq")
    assert terminal.leaves() == 0


@pytest.mark.slow
def test_a_gateway_that_hangs_or_goes_costs_its_row_alone(
    stubs: list[StubGateway], terminal: Terminal, tmp_path: Path
) -> None:
    _, second, _ = names(stubs)
    terminal.sees("3 gateways: 1 degraded, 2 ready")
    stubs[0].responses.clear()
    stubs[1].stop()
    terminal.sees("2 unreachable, 1 ready")
    shown = terminal.sees("no response within 3 s")
    (line,) = [line for line in shown.splitlines() if line[1:].startswith(second)]
    assert "unreachable  Connection refused" in line
    stubs[2].scene = "draining"
    terminal.sees("2 unreachable, 1 draining")
    stubs[0].responses.set()
    terminal.sees("1 unreachable, 1 draining, 1 ready")
    terminal.press("\x1b[H\r")
    terminal.sees(f"No response from {second}: Connection refused.")
    stubs[1].start()
    terminal.sees(f" at {second}  degraded  ")
    terminal.press("\x03")
    assert terminal.leaves() == 0


@pytest.mark.slow
def test_a_list_on_standard_input_leaves_the_keys_to_the_terminal(
    stubs: list[StubGateway], tmp_path: Path
) -> None:
    file = tmp_path / "pods.json"
    pods = [pod(f"orders-{at}", "127.0.0.1") for at in range(3)]
    for one, stub in zip(pods, stubs, strict=True):
        sidecar(one)["env"].append({"name": "FETCHGATE_ADMIN", "value": f"0.0.0.0:{stub.port}"})
    file.write_text(json.dumps(listed(*pods, pod("pending-0", None, phase="Pending"))))
    command = " ".join(TOP)
    terminal = Terminal(["sh", "-c", f"cat {file} | {command} --admin - --interval 0.1"], columns=120)
    try:
        terminal.sees("4 gateways: 1 unreachable, 1 degraded, 2 ready")
        terminal.press("\r")
        terminal.sees("kubectl exec -it --namespace shop pending-0 -c fetchgate -- fetchgate top")
        terminal.press("\x7fj\r")
        terminal.sees(" at orders-1  degraded  ")
        terminal.press("q")
        assert terminal.leaves() == 0
    finally:
        terminal.close()


def test_without_a_terminal_keys_can_not_be_read(stubs: list[StubGateway]) -> None:
    master, slave = pty.openpty()
    try:
        done = subprocess.run(
            [*TOP, "--admin", "-"],
            check=False,
            input="\n".join(names(stubs)),
            stdout=slave,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"TERM": "xterm"},
            start_new_session=True,
            timeout=WAIT_SECONDS,
        )
    finally:
        os.close(master)
        os.close(slave)
    line = "fetchgate top: no terminal to read keys from; give --once, or the list as --admin @FILE\n"
    assert (done.returncode, done.stderr) == (2, line)


def test_once_prints_a_line_for_each_gateway(
    stubs: list[StubGateway], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["top", "--once", *flags(stubs)]) == 0
    title, _, _, _, *rows = capsys.readouterr().out.splitlines()
    assert title == "fetchgate top  3 gateways: 1 degraded, 2 ready"
    busy, degraded, off = names(stubs)
    assert [row.split()[0] for row in rows] == [degraded, off, busy]
    assert rows[0].endswith(
        "  127.0.0.1:9093: Connection refused; all 500 session slots are taken; and a third"
    ) or rows[0].endswith(" and a third")
    stubs[0].stop()
    stubs[2].status = 401
    assert main(["top", "--once", *flags(stubs)]) == 1
    _, _, _, _, *rows = capsys.readouterr().out.splitlines()
    assert [" ".join(row.split()[:3]) for row in rows[:2]] == sorted(
        [f"{busy} unreachable Connection", f"{off} unreachable it"],
        key=lambda line: int(line.split()[0][10:]),
    )
    assert "unreachable  it requires a token; give --token-file FILE" in "".join(rows)


@asynccontextmanager
async def endpoint(only: tuple[str, ...] = ()) -> AsyncIterator[int]:
    """Run a gateway. Yield the port of its admin endpoint."""
    async with stub_broker() as broker, gateway(broker.address) as gate:
        sockets = Binding().bind(Address("127.0.0.1", 0))
        admin = AdminEndpoint(gate, only=only)
        admin.start(sockets)
        try:
            yield sockets[0].getsockname()[1]
        finally:
            admin.close()


async def test_three_gateways(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    async with endpoint() as first, endpoint(METRICS_PATHS) as second, endpoint() as third:
        pods = [pod(f"orders-{at}", "127.0.0.1") for at in range(2)]
        for one, name, port in zip(pods, ("ADMIN", "METRICS"), (first, second), strict=True):
            sidecar(one)["env"].append({"name": f"FETCHGATE_{name}", "value": f"0.0.0.0:{port}"})
        file = tmp_path / "pods.json"
        file.write_text(json.dumps(listed(*pods)))
        arguments = ["top", "--once", "--admin", f"@{file}", "--admin", f"127.0.0.1:{third}"]
        assert await asyncio.to_thread(main, arguments) == 0
        _, sums, _, head, *rows = capsys.readouterr().out.splitlines()
        assert {row.split()[0] for row in rows} == {"orders-0", "orders-1", f"127.0.0.1:{third}"}
        assert " ".join(head.split()) == "gateway state conns saved/s saved CPU memory what is wrong"
        assert sums.startswith("0 B saved, -  0 B/s now  0 connections  CPU ")
        assert all(" MB" in row for row in rows), "their memory"


def test_a_gateway_that_is_not_ready_is_asked_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Metrics do not have the reasons. A gateway that does not serve yet has them in a 503."""

    async def scene() -> None:
        async with gateway("127.0.0.1:1") as gate:
            sockets = Binding().bind(Address("127.0.0.1", 0))
            admin = AdminEndpoint(gate, only=METRICS_PATHS)
            admin.start(sockets)
            one = pod("orders-0", "127.0.0.1")
            port = sockets[0].getsockname()[1]
            sidecar(one)["env"].append({"name": "FETCHGATE_METRICS", "value": f"0.0.0.0:{port}"})
            file = tmp_path / "pods.json"
            file.write_text(json.dumps(one))
            assert await asyncio.to_thread(main, ["top", "--once", "--admin", f"@{file}"]) == 0
            admin.close()

    run(scene())
    (row,) = capsys.readouterr().out.splitlines()[4:]
    assert row.startswith(" orders-0 starting ")
    assert row.endswith((" the bootstrap has not been asked yet", " 127.0.0.1:1: Connection refused"))


PAGE = Path(__file__).parents[2] / "docs" / "users" / "top.md"
COMMANDS = [
    line
    for block in re.findall(r"```sh\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    for line in block.splitlines()
]
KUBECTL = """\
#!/bin/sh
if [ "$1" = get ]; then exec cat pods.json; fi
while [ "$1" != -- ]; do shift; done
shift
exec "$@"
"""
"""A kubectl that lists the pods of a file, and runs commands here."""


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_commands_of_the_page_run_as_they_are_written(
    stubs: list[StubGateway], tmp_path: Path, command: str
) -> None:
    programs = {"kubectl": KUBECTL, "fetchgate": f'#!/bin/sh\nexec {" ".join(TOP[:-1])} "$@"\n'}
    for name, text in programs.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    pods = [pod(f"orders-{at}", "127.0.0.1") for at in range(3)]
    for one, stub in zip(pods, stubs, strict=True):
        sidecar(one)["env"].append({"name": "FETCHGATE_ADMIN", "value": f"0.0.0.0:{stub.port}"})
    (tmp_path / "pods.json").write_text(json.dumps(listed(*pods)))
    (tmp_path / "gateways").write_text("\n".join(names(stubs)))
    script, path = f"cd {tmp_path}; {command}", f"{tmp_path}:{os.environ['PATH']}"
    here = {"PATH": path, "PYTHONPATH": str(PAGE.parents[2])}
    several = "3 gateways: 1 degraded, 2 ready"
    if "--once" in command:
        done = subprocess.run(
            ["sh", "-c", script],
            check=True,
            capture_output=True,
            text=True,
            env=os.environ | here,
            timeout=60,
        )
        assert done.stdout.startswith(f"fetchgate top  {several}\n")
        return
    terminal = Terminal(["sh", "-c", script], columns=120, rows=24, **here)
    try:
        terminal.sees(several if "-admin -" in command or "@" in command else "atew")
        terminal.press("q")
        assert terminal.leaves() == 0
    finally:
        terminal.close()


def test_the_values_of_the_page_make_the_chart_s_pods_open(tmp_path: Path) -> None:
    """A pod with these values is asked at its admin endpoint."""
    (values,) = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    given = yaml.safe_load(values)
    one = pod("orders-0")
    sidecar(one)["env"] += given["extraEnv"]
    (found,), _ = gateways(one)
    assert (str(found.address), found.metrics) == ("10.0.0.7:9464", False)
    (volume,), (mount,) = given["extraVolumes"], given["extraVolumeMounts"]
    assert volume["name"] == mount["name"]
    assert given["extraEnv"][1]["value"] == f"{mount['mountPath']}/token"
