"""`fetchgate top` as users run it: on a terminal (a pseudo terminal) with keys, and into a pipe."""

import fcntl
import json
import os
import pty
import re
import signal
import socket
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from proxy.__main__ import main
from proxy.dashboard.asking import MAX_RESPONSE_BYTES
from tests.dashboard.scenes import SCENES

WAIT_SECONDS = 30.0
TOP = [sys.executable, "-m", "proxy", "top"]
CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
HOME = "\x1b[H"


class StubGateway:
    """A server that answers `/state` with a scene."""

    def __init__(self) -> None:
        self.scene = "busy"
        self.body: bytes | None = None
        self.status = 200
        self.asked: list[str] = []
        self.answered = 0
        self.authorization = ""
        self.responses = threading.Event()
        """While this event is cleared, requests get no answer."""
        self.responses.set()
        self.port = 0
        self._server: ThreadingHTTPServer | None = None

    def start(self) -> None:
        stub = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                stub.asked.append(self.path)
                stub.authorization = self.headers.get("Authorization", "")
                stub.responses.wait(WAIT_SECONDS)
                body = stub.body if stub.body is not None else json.dumps(SCENES[stub.scene]()).encode()
                self.send_response(stub.status)
                self.send_header("Content-Length", str(len(body)))
                with suppress(BrokenPipeError, ConnectionResetError):  # who waited too long has left
                    self.end_headers()
                    self.wfile.write(body)
                stub.answered += 1

            def log_message(self, *_: object) -> None:
                pass

        class Server(ThreadingHTTPServer):
            allow_reuse_address = True

        self._server = Server(("127.0.0.1", self.port), Handler)
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def stop(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None


@pytest.fixture
def stub() -> Iterator[StubGateway]:
    gateway = StubGateway()
    gateway.start()
    try:
        yield gateway
    finally:
        gateway.stop()


class Terminal:
    """A program that runs on a terminal. Tests press keys and read the current frame."""

    def __init__(self, argv: list[str], *, columns: int = 80, rows: int = 24, **environ: str) -> None:
        self._master, slave = pty.openpty()
        self.before = termios.tcgetattr(slave)
        self._slave = slave
        self.resize(columns, rows)
        kept = {name: value for name, value in os.environ.items() if name not in {"COLUMNS", "LINES"}}
        self.process = subprocess.Popen(
            argv,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=kept | {"TERM": "xterm-256color"} | environ,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0) and None,  # noqa: PLW1509 - no threads here
        )
        self.all = ""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        while True:
            try:
                data = os.read(self._master, 65536)
            except OSError:
                return
            self.all += data.decode(errors="replace")

    @property
    def shown(self) -> str:
        """Return the last complete frame, without colours."""
        frames = self.all.split(HOME)
        complete = [frame for frame in frames[1:] if "quit" in frame or "Enter" in frame]
        return CONTROL.sub("", complete[-1]) if complete else ""

    def press(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def resize(self, columns: int, rows: int) -> None:
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def until(self, true: Callable[[str], object], what: str) -> str:
        deadline = time.monotonic() + WAIT_SECONDS
        while not true(self.shown):
            assert time.monotonic() < deadline, (
                f"{what} was not seen; shown:\n{self.shown}\n{self.all[-2000:]!r}"
            )
            assert self.process.poll() is None, f"it left: {self.all!r}"
            time.sleep(0.01)
        return self.shown

    def sees(self, text: str) -> str:
        return self.until(lambda shown: text in shown, text)

    def leaves(self) -> int:
        code = self.process.wait(WAIT_SECONDS)
        after = termios.tcgetattr(self._slave)
        assert after == self.before, "the terminal is as it was"
        self._end()
        return code

    def _end(self) -> None:
        """Read all that the program has written. It is read to its end when nobody has the terminal open."""
        os.close(self._slave)
        self._slave = -1
        self._reader.join(WAIT_SECONDS)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        if self._slave >= 0:
            self._end()
        os.close(self._master)


@contextmanager
def top(stub: StubGateway, *, columns: int = 80, rows: int = 24, **environ: str) -> Iterator[Terminal]:
    argv = [*TOP, "--admin", f"127.0.0.1:{stub.port}", "--interval", "0.1"]
    terminal = Terminal(argv, columns=columns, rows=rows, **environ)
    try:
        yield terminal
    finally:
        terminal.close()


@pytest.mark.parametrize("called", ["dumb", "unknown"])
def test_a_terminal_without_a_screen_is_called_so(stub: StubGateway, called: str) -> None:
    with top(stub, TERM=called) as terminal:
        assert terminal.leaves() == 2
    said = f"TERM={called} is a terminal without a screen; set TERM=xterm-256color, or give --once"
    assert terminal.all == f"fetchgate top: {said}\r\n"


def test_keys_sort_filter_pause_help_and_quit(stub: StubGateway) -> None:
    with top(stub) as terminal:
        terminal.sees("by bytes/s ▼")
        assert stub.asked[0] == "/state?connections=500"
        terminal.press("1")
        assert terminal.sees("by client ▲").index("audit") < terminal.shown.index("billing")
        terminal.press("r")
        assert terminal.sees("by client ▼").index("orders-2") < terminal.shown.index("orders-1")
        terminal.press("s")
        terminal.sees("by software ▲")
        terminal.press("S\x1b[A")
        terminal.sees("by client ▲")
        terminal.press("/bil")
        terminal.sees("filter: bil_   Enter keeps it")
        terminal.press("l\r")
        shown = terminal.until(lambda shown: "filter: bill" in shown and "q quit" in shown, "the filter")
        assert "orders-1" not in shown
        assert "billing" in shown
        terminal.press("\x1b")
        terminal.sees("orders-1")
        terminal.press("p")
        terminal.sees("PAUSED")
        stub.scene = "draining"
        terminal.press("h")
        terminal.sees("move the mark")
        terminal.press("h")
        assert "  ready  " in terminal.sees("PAUSED"), "the picture stands still"
        terminal.press("p")
        terminal.sees("  draining  ")
        terminal.press("q")
        assert terminal.leaves() == 0
        assert {"\x1b[?25h", "\x1b[?1049l"} <= set(CONTROL.findall(terminal.all)[-4:]), (
            "cursor and screen are back"
        )


def test_an_answer_to_what_was_asked_before_a_pause_changes_nothing(stub: StubGateway) -> None:
    with top(stub) as terminal:
        terminal.sees("  ready  ")
        stub.responses.clear()
        terminal.until(lambda _: len(stub.asked) > stub.answered, "a request")
        terminal.press("p")
        terminal.sees("PAUSED")
        stub.scene = "draining"
        stub.responses.set()
        terminal.until(lambda _: len(stub.asked) == stub.answered, "the response")
        terminal.press("h")
        terminal.sees("move the mark")
        terminal.press("h")
        assert "  ready  " in terminal.sees("PAUSED")


def test_rows_are_opened_expanded_and_scrolled(stub: StubGateway) -> None:
    with top(stub) as terminal:
        terminal.sees(">orders-1")
        assert "\x1b[?1000h\x1b[?1006h" in terminal.all, "the terminal reports the mouse"
        terminal.press("\x1b[B")
        terminal.sees(">billing")
        terminal.press("x")
        terminal.sees("   127.0.0.1:58076 @1")
        terminal.press("\x1b[<65;9;9M\x1b[<64;9;9M\r")
        terminal.sees("saves")
        terminal.until(
            lambda shown: " billing   " in shown and "since accepted" in shown, "the client's page"
        )
        terminal.press("\x1b[F")
        terminal.until(lambda shown: "since accepted" not in shown and "last event" in shown, "its end")
        terminal.press("\x1b")
        terminal.sees("by bytes/s")
        terminal.press("\tj\r")
        terminal.sees(" broker 2   127.0.0.1:30207")
        terminal.press("q")
        assert terminal.leaves() == 0
        assert "\x1b[?1006l\x1b[?1000l" in terminal.all


@pytest.mark.slow
def test_a_gateway_that_goes_and_comes_back(stub: StubGateway) -> None:
    with top(stub) as terminal:
        terminal.sees("  ready  ")
        stub.stop()
        shown = terminal.sees("not reachable")
        assert f"No response from 127.0.0.1:{stub.port}: Connection refused." in shown
        assert "The last state: ready, 13 connections" in shown
        stub.start()
        terminal.sees("  ready  ")
        stub.body = b"<html>"
        terminal.sees("another program responds there")
        stub.body, stub.scene = None, "idle"
        terminal.sees("  ready  ")
        stub.body = json.dumps(SCENES["busy"]() | {"uptime_seconds": float("inf")}).encode()
        terminal.sees("another program responds there")
        stub.body, stub.scene = None, "degraded"
        terminal.sees("  degraded  ")
        terminal.press("\x03")
        assert terminal.leaves() == 0


@pytest.mark.slow
def test_a_gateway_that_does_not_answer_makes_no_key_wait(stub: StubGateway) -> None:
    with top(stub) as terminal:
        terminal.sees("  ready  ")
        stub.responses.clear()
        asked = len(stub.asked)
        terminal.until(lambda _: len(stub.asked) > asked, "a request that is held")
        terminal.press("h")
        terminal.sees("move the mark")
        terminal.press("h/aud")
        terminal.sees("filter: aud_")
        terminal.press("\r")
        terminal.sees("no response within 3 s")
        stub.responses.set()
        assert "audit" in terminal.sees("  ready  ")
        terminal.press("q")
        assert terminal.leaves() == 0


@pytest.mark.slow
def test_it_waits_for_a_gateway_that_is_not_there_yet(stub: StubGateway) -> None:
    stub.stop()
    with top(stub) as terminal:
        assert "The last state" not in terminal.sees("not reachable")
        stub.scene = "starting"
        stub.start()
        terminal.sees("  starting  ")
        stub.scene = "idle"
        terminal.sees("  ready  ")
        terminal.press("q")
        assert terminal.leaves() == 0


@pytest.mark.slow
def test_it_follows_the_size_of_its_terminal(stub: StubGateway) -> None:
    with top(stub) as terminal:
        assert "software" not in terminal.sees("  ready  ")
        terminal.resize(200, 60)
        terminal.process.send_signal(signal.SIGWINCH)
        terminal.sees("software")
        terminal.process.send_signal(signal.SIGTERM)
        assert terminal.leaves() == 0


@pytest.mark.slow
def test_no_color(stub: StubGateway) -> None:
    colour = re.compile(r"\x1b\[[0-9;]*3[0-7][0-9;]*m")
    with top(stub) as terminal:
        terminal.sees("  ready  ")
        assert colour.search(terminal.all)
    with top(stub, NO_COLOR="1") as terminal:
        terminal.sees("  ready  ")
        assert not colour.search(terminal.all)


@pytest.mark.slow
def test_a_terminal_without_letters_of_its_own(stub: StubGateway) -> None:
    with top(stub, PYTHONIOENCODING="ascii", PYTHONUTF8="0") as terminal:
        assert terminal.sees("by bytes/s v").isascii()


def _once(
    stub: StubGateway, *more: str, encoding: str | None = None, **environ: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*TOP, "--once", "--admin", f"127.0.0.1:{stub.port}", *more],
        check=False,
        capture_output=True,
        text=True,
        encoding=encoding,
        env=os.environ | environ,
        timeout=WAIT_SECONDS,
    )


@pytest.mark.slow
def test_once_into_a_pipe(stub: StubGateway) -> None:
    done = _once(stub, COLUMNS="100")
    assert (done.returncode, done.stderr) == (0, "")
    assert "\x1b" not in done.stdout
    assert done.stdout.startswith("fetchgate 0.1.0 at 127.0.0.1:30555  ready  up 2 min ")
    assert all(f" {name} " in done.stdout for name in ("orders-1", "orders-2", "billing", "audit"))
    assert "q quit" not in done.stdout
    assert max(map(len, done.stdout.splitlines())) == 100


def _with_foreign_names() -> bytes:
    """Return a state in which a client has letters that most encodings lack."""
    return json.dumps(SCENES["busy"]()).replace("orders-1", r"b\u00fccher-\u6d88\u8cbb").encode()


@pytest.mark.slow
@pytest.mark.parametrize(("encoding", "name"), [("ascii", "b?cher-??"), ("iso-8859-1", "bücher-??")])
def test_letters_that_the_output_can_not_write_are_replaced(
    stub: StubGateway, encoding: str, name: str
) -> None:
    stub.body = _with_foreign_names()
    done = _once(stub, COLUMNS="100", PYTHONIOENCODING=encoding, PYTHONUTF8="0", encoding=encoding)
    assert (done.returncode, done.stderr) == (0, "")
    assert f" {name} " in done.stdout


@pytest.mark.slow
def test_letters_that_a_terminal_can_not_show_are_replaced(stub: StubGateway) -> None:
    stub.body = _with_foreign_names()
    with top(stub, PYTHONIOENCODING="ascii", PYTHONUTF8="0") as terminal:
        assert terminal.sees("b?cher-??").isascii()


def test_once_without_a_gateway_is_one_line_and_code_1(stub: StubGateway) -> None:
    stub.stop()
    done = _once(stub)
    assert (done.returncode, done.stdout) == (1, "")
    line = f"fetchgate top: no gateway at 127.0.0.1:{stub.port}: Connection refused; see --admin\n"
    assert done.stderr == line


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (404, b"{}"),
        (200, b"{}"),
        (200, b"[1]"),
        (200, b"\xff"),
        (200, b""),
        (500, b'{"version": 1}'),
        (200, b"[" * 100_000),
        (200, json.dumps(SCENES["busy"]() | {"uptime_seconds": float("nan")}).encode()),
        (200, json.dumps(SCENES["busy"]()).encode() + b" " * MAX_RESPONSE_BYTES),
    ],
    ids=["not found", "object", "array", "no text", "nothing", "failure", "deep", "no number", "endless"],
)
def test_what_is_no_gateway_is_reported(
    stub: StubGateway, capsys: pytest.CaptureFixture[str], status: int, body: bytes
) -> None:
    stub.status, stub.body = status, body
    assert main(["top", "--once", "--admin", f"127.0.0.1:{stub.port}"]) == 1
    assert "another program responds there" in capsys.readouterr().err


def test_the_address_of_metrics_is_no_address_of_admin(
    stub: StubGateway, capsys: pytest.CaptureFixture[str]
) -> None:
    stub.status = 404
    assert main(["top", "--once", "--admin", f"127.0.0.1:{stub.port}"]) == 1
    assert "or --metrics of a gateway; give the address of --admin" in capsys.readouterr().err


def test_what_does_not_speak_http_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    def response() -> None:
        sock, _ = listener.accept()
        with sock:
            sock.recv(4096)
            sock.sendall(b"hello\r\n\r\n")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=response)
        thread.start()
        port = listener.getsockname()[1]
        assert main(["top", "--once", "--admin", f"127.0.0.1:{port}"]) == 1
        thread.join()
    assert "another program responds there" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--admin", "nowhere"], "--admin: 'nowhere' has no port; write HOST:PORT"),
        (["--admin", "off"], "--admin: the gateway's admin endpoint is off"),
        (["--ca", "ca.pem"], "--ca has no effect alone: give --admin https://127.0.0.1:9464 as well"),
        (["--admin", "https://:1", "--ca", "/none"], "--ca /none: give CA certificates in PEM (No such file"),
        (["--token-file", "/none"], "--token-file /none: No such file or directory"),
        (["--interval", "0"], "--interval: '0' is not a time from 0.1 to 3600 s"),
        ([], "the output is not a terminal; give --once"),
        (
            ["--admin", "@/none"],
            "--admin @/none: No such file or directory; give a file with HOST:PORT, one a",
        ),
        (["--admin", "@"], "--admin: @ has no file after it; write @FILE, or HOST:PORT"),
        (["--admin", ""], "--admin: it is empty; write HOST:PORT, or @FILE"),
        (["--admin", "a:1", "--admin", "nowhere"], "--admin: 'nowhere' has no port; write HOST:PORT"),
        (
            ["--admin", "a:1", "--admin", "b:1", "--ca", "c"],
            "--ca has no effect alone: give --admin https://a:1",
        ),
        (["--admin", "a:1", "--admin", "b:1"], "the output is not a terminal; give --once"),
    ],
)
def test_wrong_usage_is_one_line_and_code_2(
    capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    assert main(["top", *arguments]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_a_token_is_sent_and_one_that_is_missing_or_refused_is_reported(
    stub: StubGateway, monkeypatch: Any, tmp_path: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "token"
    file.write_text("s3cret\n")
    admin = ["top", "--once", "--admin", f":{stub.port}"]
    assert main([*admin, "--token-file", str(file)]) == 0
    assert stub.authorization == "Bearer s3cret"
    monkeypatch.setenv("FETCHGATE_ADMIN_TOKEN_FILE", str(file))
    assert main(admin) == 0, "the option of the gateway beside it"
    assert stub.authorization == "Bearer s3cret"
    stub.status, stub.body = 401, b""
    assert main(admin) == 1
    assert "it refuses the token of --token-file" in capsys.readouterr().err
    monkeypatch.delenv("FETCHGATE_ADMIN_TOKEN_FILE")
    assert main(admin) == 1
    assert "it requires a token; give --token-file FILE" in capsys.readouterr().err
    assert stub.authorization == ""


def test_the_address_is_the_gateways_own_option(stub: StubGateway, monkeypatch: Any, tmp_path: Any) -> None:
    monkeypatch.setenv("FETCHGATE_ADMIN", f"0.0.0.0:{stub.port}")
    assert main(["top", "--once"]) == 0, "where a wildcard is bound it is found on loopback"
    monkeypatch.delenv("FETCHGATE_ADMIN")
    file = tmp_path / "fetchgate.toml"
    file.write_text(f'bootstrap = "kafka:9092"\nadmin = "127.0.0.1:{stub.port}"\n')
    assert main(["top", "--once", "--config", str(file)]) == 0
