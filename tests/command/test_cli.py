"""Tests of the command ``fetchgate``: its messages, its exit codes, and its reactions to signals."""

import asyncio
import json
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest

from proxy import server
from proxy.__main__ import main
from proxy.command.config import GROUPS, OPTIONS
from proxy.protocol.api import ApiKey
from tests.shell import (
    WAIT_SECONDS,
    client,
    frame,
    request,
    response,
    stub_cluster,
    until,
)
from tools.kafka.ports import free_ports

LIST_GROUPS = ApiKey.LIST_GROUPS

pytestmark = pytest.mark.usefixtures("log_defaults", "alone")


def _fails(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[object, str]:
    """Run a command line that must fail. Return its exit code, and the only line of stderr."""
    try:
        code: object = main(arguments)
    except SystemExit as left:
        code = left.code
    out, err = capsys.readouterr()
    assert out == ""
    (line,) = err.splitlines()
    return code, line


def test_an_interrupt_while_a_command_is_imported_leaves_no_stack_trace(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Interrupted:
        def find_spec(self, name: str, *_: object) -> None:
            if name == "proxy.server.main":
                raise KeyboardInterrupt

    monkeypatch.delitem(sys.modules, "proxy.server.main", raising=False)
    monkeypatch.delattr(server, "main", raising=False)
    monkeypatch.setattr("sys.meta_path", [Interrupted(), *sys.meta_path])
    assert main(["proxy", "--bootstrap", "127.0.0.1:9"]) == 130
    assert capsys.readouterr() == ("", "")


def test_help_names_every_option_and_nothing_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["proxy", "--help"])
    assert left.value.code == 0
    text = capsys.readouterr().out
    for option in OPTIONS:
        assert option.flag in text
    assert "examples:\n  fetchgate proxy -b kafka:9092\n" in text
    assert "  SIZE       bytes, or a number with a unit: 10m, 256MiB, 1.5GB" in text
    with pytest.raises(SystemExit):
        main(["--help"])
    text = capsys.readouterr().out
    assert "run the gateway" in text
    assert "replay" in text


def test_the_help_of_the_gateway_has_its_options_in_groups(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["proxy", "--help"])
    lines = capsys.readouterr().out.splitlines()
    groups = [line.removesuffix(":") for line in lines if line.endswith(":") and line[0].isalpha()]
    assert [group for group in groups if group in GROUPS.values()] == list(GROUPS.values())
    names = [option.name for option in OPTIONS]
    assert sorted(GROUPS, key=names.index) == list(GROUPS)


@pytest.mark.parametrize("command", [[], ["proxy"], ["top"], ["completion"], ["replay"], ["replay", "drive"]])
def test_help_is_a_command_as_well(capsys: pytest.CaptureFixture[str], command: list[str]) -> None:
    told = []
    for arguments in ([*command, "--help"], ["help", *command]):
        with pytest.raises(SystemExit) as left:
            main(arguments)
        assert left.value.code == 0
        told.append(capsys.readouterr().out)
    assert told[0] == told[1]
    assert told[0].startswith(" ".join(["usage: fetchgate", *command]))


def test_help_for_an_unknown_command_names_those_that_are_there(capsys: pytest.CaptureFixture[str]) -> None:
    code, line = _fails(capsys, "help", "tap")
    assert code == 2
    assert "invalid choice: 'tap' (choose from 'proxy', 'top', 'completion', 'replay', 'help')" in line


@pytest.mark.parametrize(("typed", "meant"), [("proxi", "proxy"), ("topp", "top"), ("replya", "replay")])
def test_a_misspelt_command_is_told_which_one_may_be_meant(
    capsys: pytest.CaptureFixture[str], typed: str, meant: str
) -> None:
    code, line = _fails(capsys, typed)
    assert code == 2
    assert line.endswith(f"; did you mean {meant}? See fetchgate --help")


@pytest.mark.parametrize("command", ["proxy", "top", "replay", "completion"])
def test_help_may_come_behind_a_command(capsys: pytest.CaptureFixture[str], command: str) -> None:
    told = []
    for arguments in ([command, "help"], [command, "--help"]):
        with pytest.raises(SystemExit) as left:
            raise SystemExit(main(arguments))
        assert left.value.code == 0
        told.append(capsys.readouterr().out)
    assert told[0] == told[1]


def test_help_of_captures_is_a_command_as_well(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["replay", "help", "inspect"])
    assert left.value.code == 0
    assert capsys.readouterr().out.startswith("usage: fetchgate replay inspect")


def test_captures_are_read_without_the_gateway() -> None:
    """The commands that read captures do not import the gateway.

    Importing the gateway takes longer than reading a small capture.
    """
    asked = (
        "import sys; from proxy.__main__ import main; main(['replay', 'inspect', 'none']);"
        "print('proxy.server' in sys.modules)"
    )

    told = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=False)

    assert told.stdout.splitlines()[-1] == "False"


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["--version"])
    assert left.value.code == 0
    assert capsys.readouterr().out == "fetchgate 0.2.0\n"


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (
            [],
            "fetchgate: the following arguments are required: COMMAND; see fetchgate --help",
        ),
        (
            ["xyz"],
            (
                "fetchgate: argument COMMAND: invalid choice: 'xyz' "
                "(choose from 'proxy', 'top', 'completion', 'replay', 'help'); see fetchgate --help"
            ),
        ),
        (
            ["proxy", "--worker", "2"],
            (
                "fetchgate proxy: unrecognized arguments: --worker 2; "
                "did you mean --workers? See fetchgate proxy --help"
            ),
        ),
        (
            ["proxy", "--bootstrap", "k:1", "--sesions", "off"],
            (
                "fetchgate proxy: unrecognized arguments: --sesions off; "
                "did you mean --sessions? See fetchgate proxy --help"
            ),
        ),
        *(
            (
                ["proxy", *given],
                (
                    f"fetchgate proxy: unrecognized arguments: {' '.join(given)}; "
                    "did you mean --bootstrap? See fetchgate proxy --help"
                ),
            )
            for given in (
                ["--brokers", "k:1"],
                ["--broker-list", "k:1"],
                ["--broker=k:1"],
                ["--bootstrap-server", "k:1"],
                ["--bootstrap-servers=k:1"],
                ["--bootstrap.servers", "k:1"],
            )
        ),
        (
            ["top", "--onc"],
            "fetchgate top: unrecognized arguments: --onc; did you mean --once? See fetchgate top --help",
        ),
        (
            ["proxy", "--bootstrap", "k:1", "--zzz"],
            "fetchgate proxy: unrecognized arguments: --zzz; see fetchgate proxy --help",
        ),
        (
            ["proxy", "--bootstrap", "k:1", "--workers=2"],
            (
                "fetchgate proxy: --workers was removed: leave it out, or run several gateways at one port "
                "and divide the limits among them (docs/users/fleet.md); see fetchgate proxy --help"
            ),
        ),
        (
            ["top", "--sessions"],
            "fetchgate top: unrecognized arguments: --sessions; see fetchgate top --help",
        ),
        (
            ["proxy", "--bootstrap"],
            "fetchgate proxy: argument -b/--bootstrap: expected one argument; see fetchgate proxy --help",
        ),
        (
            ["proxy", "--bootstrap", "kafka"],
            "fetchgate proxy: --bootstrap: 'kafka' has no port; write HOST:PORT",
        ),
        (
            ["proxy", "--config", "/nonexistent.toml"],
            "fetchgate proxy: --config /nonexistent.toml: No such file or directory",
        ),
    ],
)
def test_wrong_usage_is_one_line_and_code_2(
    capsys: pytest.CaptureFixture[str], arguments: list[str], line: str
) -> None:
    assert _fails(capsys, *arguments) == (2, line)


def test_a_bad_toml_is_one_line_and_code_2(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "gate.toml"
    file.write_text("bootstrap = \n")

    assert _fails(capsys, "proxy", "--config", str(file)) == (
        2,
        f"fetchgate proxy: --config {file} is not TOML: Invalid value (at line 1, column 13)",
    )


def test_a_capture_that_can_t_be_written_is_one_line_and_code_2(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "file"
    file.write_text("")
    ports = ["--listen", "127.0.0.1:0", "--admin", "off"]

    code, line = _fails(
        capsys, "proxy", "--bootstrap", "127.0.0.1:1", *ports, "--capture", str(file / "captures")
    )

    assert code == 2
    assert line == (
        f"fetchgate proxy: can't write to {file}/captures: Not a directory; "
        "give --capture a directory that can be written"
    )


@pytest.mark.parametrize("flag", ["--listen", "--admin", "--metrics"])
def test_a_port_in_use_is_one_line_and_code_1(capsys: pytest.CaptureFixture[str], flag: str) -> None:
    port = free_ports(3)
    in_use = "Address already in use"
    ports = {f"--{name}": f"127.0.0.1:{port + at}" for at, name in enumerate(("listen", "admin", "metrics"))}
    with closing(socket.create_server(("127.0.0.1", int(ports[flag].split(":")[1])))):
        arguments = [word for pair in ports.items() for word in pair]
        assert _fails(capsys, "proxy", "--bootstrap", "127.0.0.1:1", *arguments) == (
            1,
            f"fetchgate proxy: can't listen at {ports[flag]}: {in_use}; give {flag} another HOST:PORT",
        )


class Process:
    """A running gateway process, with its ports and the log lines that it has written so far."""

    def __init__(self, process: asyncio.subprocess.Process, listen: int) -> None:
        self.listen = listen
        self.admin = listen + 9
        self.lines: list[dict[str, Any]] = []
        self._process = process

    async def read_lines(self) -> None:
        assert self._process.stderr is not None
        async for line in self._process.stderr:
            self.lines.append(json.loads(line))

    def said(self, event: str) -> list[dict[str, Any]]:
        return [line for line in self.lines if line["event"] == event]

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    async def left(self) -> int:
        return await asyncio.wait_for(self._process.wait(), WAIT_SECONDS)

    async def get(self, path: str) -> tuple[int, Any]:
        async with client(self.admin) as (reader, writer):
            writer.write(f"GET {path} HTTP/1.1\r\n\r\n".encode())
            head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        return int(head.split()[1]), json.loads(body)


@asynccontextmanager
async def _process(*arguments: str) -> AsyncIterator[Process]:
    port = free_ports(10)
    own = ["--listen", f"127.0.0.1:{port}", "--admin", f"127.0.0.1:{port + 9}", "--log-format", "json"]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "proxy", "proxy", *own, *arguments, stderr=asyncio.subprocess.PIPE
    )
    gate = Process(process, port)
    reading = asyncio.create_task(gate.read_lines())
    try:
        await until(lambda: gate.said("started"))
        yield gate
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        await reading


async def test_ports_that_the_system_chose_are_reported() -> None:
    chosen = ["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]
    async with _process("--bootstrap", "127.0.0.1:1", *chosen) as gate:
        (line,) = gate.said("started")
        gate.listen, gate.admin = (int(line[at].split(":")[1]) for at in ("listen", "admin"))
        assert (await gate.get("/state"))[1]["listen"] == f"127.0.0.1:{gate.listen}"
        assert "metrics" not in line


async def test_metrics_may_have_an_address_of_their_own(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("s3cret")

    options = ["--metrics", ":0", "--admin-token-file", str(token)]
    async with _process("--bootstrap", "127.0.0.1:1", *options) as gate:
        (line,) = gate.said("started")
        assert await _get(gate.admin, "/state") == 401
        assert await _get(gate.admin, "/state", "Authorization: Bearer s3cret\r\n") == 200
        metrics = int(line["metrics"].split(":")[1])
        assert await _get(metrics, "/metrics") == 200
        assert await _get(metrics, "/state") == 404
        gate.signal(signal.SIGTERM)
        assert await gate.left() == 0


async def _get(port: int, path: str, fields: str = "") -> int:
    async with client(port) as (reader, writer):
        writer.write(f"GET {path} HTTP/1.1\r\n{fields}\r\n".encode())
        return int((await reader.read()).split()[1])


@pytest.mark.parametrize("more", [[], ["--check"]])
def test_a_token_that_can_not_be_read_is_one_line_and_code_2(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, more: list[str]
) -> None:
    options = [
        "--transparent",
        "redirect",
        "--listen",
        ":0",
        "--admin-token-file",
        str(tmp_path / "none"),
        *more,
    ]
    assert main(["proxy", *options]) == 2
    assert capsys.readouterr().err == (
        f"fetchgate proxy: --admin-token-file {tmp_path / 'none'}: No such file or directory\n"
    )


async def test_sigterm_drains_and_leaves_with_0() -> None:
    async with stub_cluster((1, "", 0)) as cluster, _process("--bootstrap", cluster.address) as gate:
        await until(lambda: gate.said("ready"))
        async with client(gate.listen) as (reader, writer):
            writer.write(request(LIST_GROUPS, 0, 1))
            await until(lambda: request(LIST_GROUPS, 0, 1) in cluster.received)
            gate.signal(signal.SIGTERM)
            await until(lambda: gate.said("draining"))
            assert await gate.get("/readyz") == (503, {"state": "draining", "reasons": []})
            for broker in cluster.writers:
                broker.write(response(1, b"late"))
            assert await frame(reader) == struct.pack(">i", 1) + b"late"
            assert await reader.read() == b""
            writer.close()
            assert await gate.left() == 0
        await until(lambda: gate.said("stopped"))
        assert gate.said("stopped")[0]["cut_off"] == 0


@pytest.mark.slow
async def test_a_second_signal_leaves_at_once() -> None:
    async with stub_cluster((1, "", 0)) as cluster, _process("--bootstrap", cluster.address) as gate:
        async with client(gate.listen) as (_, writer):
            writer.write(request(LIST_GROUPS, 0, 1))
            await until(lambda: request(LIST_GROUPS, 0, 1) in cluster.received)
            gate.signal(signal.SIGINT)
            await until(lambda: gate.said("draining"))
            gate.signal(signal.SIGTERM)
            assert await gate.left() == 0
        await until(lambda: gate.said("stopped"))
        assert gate.said("stopped")[0]["cut_off"] == 1


async def test_an_unreachable_bootstrap_is_one_line_and_the_gateway_stays() -> None:
    async with _process("--bootstrap", "127.0.0.1:1") as gate:
        reason = "127.0.0.1:1: Connection refused"
        await until(lambda: gate.said("bootstrap unreachable, trying again"))
        assert await gate.get("/readyz") == (503, {"state": "starting", "reasons": [reason]})
        gate.signal(signal.SIGTERM)
        assert await gate.left() == 0
        (line,) = [line for line in gate.lines if line["level"] == "warning"]
        assert line["reason"] == reason


@pytest.mark.slow
async def test_sighup_turns_sessions_off_and_names_what_needs_a_restart(tmp_path: Path) -> None:
    file = tmp_path / "gate.toml"
    file.write_text('sessions = "on"\n')
    async with (
        stub_cluster((1, "", 0)) as cluster,
        _process("--bootstrap", cluster.address, "--config", str(file)) as gate,
    ):
        sessions = {"off_for": [], "held": 0, "max": 500}
        assert (await gate.get("/state"))[1]["sessions"] == {"on": True, **sessions}
        file.write_text('sessions = "off"\nsessions_off_for = ["a"]\nmax_sessions = 3\ncapture_files = 3\n')
        gate.signal(signal.SIGHUP)
        await until(lambda: gate.said("reloaded"))
        line = gate.said("reloaded")[0]  # the file is looked at as well, every five seconds
        assert line["applied"] == ["sessions", "sessions_off_for", "max_sessions"]
        assert line["needs_restart"] == ["capture_files"]
        sessions |= {"off_for": ["a"], "max": 3}
        assert (await gate.get("/state"))[1]["sessions"] == {"on": False, **sessions}

        file.write_text("sessions = 7\n")
        gate.signal(signal.SIGHUP)
        await until(lambda: gate.said("not reloaded"))
        assert gate.said("not reloaded")[0]["reason"] == f"sessions in {file}: '7' is not one of on, off"
        assert (await gate.get("/state"))[1]["sessions"]["on"] is False


@pytest.mark.slow
async def test_a_gateway_starts_without_the_wrong_file_of_a_folder(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "fetchgate.toml"
    file.write_text("sessions = 7\n")
    arguments = ("--bootstrap", "127.0.0.1:1", "--config", str(tmp_path))
    problem = f"sessions in {file}: '7' is not one of on, off"
    assert _fails(capsys, "proxy", *arguments, "--check") == (2, f"fetchgate proxy: {problem}")

    async with _process(*arguments) as gate:
        assert (await gate.get("/state"))[1]["sessions"]["on"] is True
        gate.signal(signal.SIGHUP)
        await until(lambda: gate.said("not reloaded"))
        assert gate.said("not reloaded")[0]["reason"] == problem
        file.write_text("sessions = false\n")
        gate.signal(signal.SIGHUP)
        await until(lambda: gate.said("reloaded"))
        assert (await gate.get("/state"))[1]["sessions"]["on"] is False


@pytest.mark.slow
async def test_more_connections_than_there_are_file_descriptors_for_are_reported() -> None:
    async with _process("--bootstrap", "127.0.0.1:1", "--max-connections", "1000000000") as gate:
        await until(lambda: gate.said("too few file descriptors for --max-connections"))
        (line,) = gate.said("too few file descriptors for --max-connections")
        assert line["needed"] == 2_000_000_256
        assert line["limit"] < line["needed"]
        assert line["remedy"] == "raise the limit (ulimit -n), or lower --max-connections"


@pytest.mark.parametrize("more", [[], ["--check"]])
def test_a_misspelt_variable_is_reported_where_its_option_is_missing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, more: list[str]
) -> None:
    monkeypatch.delenv("FETCHGATE_BOOTSTRAP", raising=False)
    monkeypatch.setenv("FETCHGATE_BOOTSTRP", "kafka:9092")
    assert main(["proxy", *more]) == 2
    first, second = capsys.readouterr().err.splitlines()
    assert first.endswith(
        "FETCHGATE_BOOTSTRP is not an option and is ignored; did you mean FETCHGATE_BOOTSTRAP?"
    )
    assert "--bootstrap is missing" in second


def test_an_error_has_no_control_characters(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (file := tmp_path / "pods").write_text('{"kind": "\\u001b[2J"}')
    told = rf"fetchgate top: --admin @{file}: it is a \x1b[2J, not a list of pods; give the output of"
    code, text = _fails(capsys, "top", "--once", "--admin", f"@{file}")
    assert (code, text.startswith(told)) == (2, True)


def test_top_leaves_out_a_wrong_file_of_the_gateway_s_directory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gateway has left it out as well, and `top` shows why."""
    (file := tmp_path / "fetchgate.toml").write_text("sesions = 1\n")
    nobody = f"127.0.0.1:{free_ports()}"
    asked = ("top", "--once", "--admin", nobody)
    monkeypatch.setenv("FETCHGATE_CONFIG", str(tmp_path))
    told = f"fetchgate top: no gateway at {nobody}: Connection refused; see --admin"
    assert _fails(capsys, *asked) == (1, told)
    told = f"fetchgate top: sesions in {file}: no such option; did you mean sessions?"
    assert _fails(capsys, *asked, "--config", str(file)) == (2, told)


def test_a_number_of_gateways_is_for_check_alone(capsys: pytest.CaptureFixture[str]) -> None:
    told = "fetchgate proxy: --gateways N needs --check; see fetchgate proxy --help"
    assert _fails(capsys, "proxy", "-b", "kafka:9092", "--gateways", "3") == (2, told)
    for text, shown in (("0", "'0'"), ("9" * 5000, f"'{'9' * 299} ... {'9' * 299}'")):
        told = f"fetchgate proxy: argument --gateways: {shown} is not a number of gateways; example: 200"
        told += "; see fetchgate proxy --help"
        assert _fails(capsys, "proxy", "-b", "kafka:9092", "--check", "--gateways", text) == (2, told)


def test_a_port_that_is_taken_in_one_ip_version_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    if not socket.has_dualstack_ipv6():
        pytest.skip("no IPv6 here")
    first = free_ports()
    options = ["--transparent", "redirect", "--listen", f"127.0.0.1:{first}", "--admin", "off"]
    reason = f"Address already in use at [::1]:{first}; give --listen another HOST:PORT"
    with socket.create_server(("::1", first), family=socket.AF_INET6):
        told = f"fetchgate proxy: can't listen at 127.0.0.1:{first}: {reason}"
        assert _fails(capsys, "proxy", *options) == (1, told)
