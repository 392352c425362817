"""Connections between two openssl programs are decrypted: each cipher of TLS 1.3, and a key update."""

import os
import select
import shutil
import socket
import subprocess
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from replay.capture.tls.conversation import TlsConversation
from replay.capture.tls.keylog import KeyLogReader
from tests.replay.capture.encrypting import TLS_1_2
from tools.certificates import Authority

pytestmark = pytest.mark.skipif(not shutil.which("openssl"), reason="the program openssl is not installed")


@dataclass
class Reader:
    """Collects the decrypted bytes of one direction of a connection."""

    data: bytes = b""
    missing: int = 0
    not_read: int = 0
    times: list[tuple[int, int]] = field(default_factory=list)

    def decrypted(self, view: memoryview, time: int, end_time: int) -> None:
        self.data += view
        self.times.append((time, end_time))

    def lacks(self, size: int, *, cut: bool) -> None:
        self.missing += size

    def unread(self, size: int, *, partial: bool) -> None:
        self.not_read += size


@dataclass
class Recorder:
    """Forwards one connection, and keeps the sent bytes. Each piece has its sender: True for the client."""

    target: int
    sent: list[tuple[bool, bytes]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        client, _ = self._listener.accept()
        with self._listener, client, socket.create_connection(("127.0.0.1", self.target)) as server:
            while True:
                for end in select.select([client, server], [], [], 20)[0]:
                    data = end.recv(1 << 16)
                    if not data:
                        return
                    self.sent.append((end is client, data))
                    (server if end is client else client).sendall(data)

    def join(self) -> None:
        self._thread.join(20)


def converse(
    folder: Path, commands: Sequence[tuple[str, bytes]], server_options: str = ""
) -> tuple[list[tuple[bool, bytes]], bytes]:
    """Run s_client and s_server of openssl. The server reverses each line and sends it back.

    Args:
        folder: the folder for certificates and the key log.
        commands: lines or commands for s_client, each with the output to wait for.
        server_options: further options for s_server.

    Returns:
        The sent bytes, and the key log.
    """
    pair = Authority(folder).sign("kafka")
    serve = ["openssl", "s_server", "-rev", "-accept", "127.0.0.1:0", "-naccept", "1"]
    serve += ["-cert", str(pair.cert), "-key", str(pair.key), *server_options.split()]
    keylog = folder / "keys.log"
    with subprocess.Popen(serve, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, bufsize=0) as server:
        accepts = _until(server, b"ACCEPT 127.0.0.1:", more=b"\n").rpartition(b"ACCEPT 127.0.0.1:")[2]
        recorder = Recorder(int(accepts.split()[0]))
        connect = [
            "openssl",
            "s_client",
            "-connect",
            f"127.0.0.1:{recorder.port}",
            "-keylogfile",
            str(keylog),
        ]
        with subprocess.Popen(
            connect, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, bufsize=0
        ) as client:
            assert client.stdin is not None
            _until(client, b"Verify return code")
            for line, printed in commands:
                client.stdin.write(line.encode() + b"\n")
                _until(client, printed)
            client.stdin.write(b"Q\n")
            client.wait(20)
        recorder.join()
        server.kill()
    return recorder.sent, keylog.read_bytes()


def _until(process: "subprocess.Popen[bytes]", text: bytes, more: bytes = b"") -> bytes:
    """Read a process's output until it contains `text`, and `more` after `text`."""
    assert process.stdout is not None
    seen = b""
    while text not in seen or more not in seen.partition(text)[2]:
        ready, _, _ = select.select([process.stdout], [], [], 20)
        data = os.read(process.stdout.fileno(), 1 << 16) if ready else b""
        assert data, seen
        seen += data
    return seen


def read(
    sent: Sequence[tuple[bool, bytes]], keylog: bytes
) -> tuple[Reader, Reader, list[str], TlsConversation]:
    log = KeyLogReader()
    log.feed(keylog)
    client, server, failed = Reader(), Reader(), list[str]()
    conversation = TlsConversation(client, server, log.finish(), failed.append)
    for time, (by_client, data) in enumerate(sent):
        direction = conversation.client if by_client else conversation.server
        direction.data(memoryview(data), time, time)
    conversation.finish()
    return client, server, failed, conversation


@pytest.mark.parametrize(
    "options",
    [
        *(
            f"-tls1_3 -ciphersuites {name}"
            for name in ("TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256")
        ),
        *(f"-tls1_2 -cipher {name}" for name in TLS_1_2),
        "-tls1_3 -groups P-521",
    ],
)
def test_each_cipher_is_read(tmp_path: Path, options: str) -> None:
    """Connections with each TLS cipher are decrypted.

    With the last options, the server first answers with a HelloRetryRequest.
    """
    sent, keylog = converse(tmp_path, [("hello", b"olleh"), ("again", b"niaga")], options)
    client, server, failed, _ = read(sent, keylog)

    assert failed == []
    assert (client.data, server.data) == (b"hello\nagain\n", b"olleh\nniaga\n")
    assert (client.not_read, server.not_read) == (0, 0)


def test_keys_may_be_updated(tmp_path: Path) -> None:
    commands = [("hello", b"olleh"), ("k", b"KEYUPDATE"), ("once", b"ecno"), ("K", b"KEYUPDATE")]
    sent, keylog = converse(tmp_path, [*commands, ("more", b"erom"), ("end", b"dne")], "-tls1_3")
    client, server, failed, _ = read(sent, keylog)

    assert failed == []
    assert (client.data, server.data) == (b"hello\nonce\nmore\nend\n", b"olleh\necno\nerom\ndne\n")


def test_after_a_renegotiation_nothing_is_read_and_it_says_so(tmp_path: Path) -> None:
    commands = [("hello", b"olleh"), ("R", b"RENEGOTIATING"), ("more", b"erom")]
    sent, keylog = converse(tmp_path, commands, f"-tls1_2 -cipher {TLS_1_2[0]} -client_renegotiation")
    client, server, failed, conversation = read(sent, keylog)

    assert failed == []
    assert conversation.renegotiated
    assert (client.data, server.data) == (b"hello\n", b"olleh\n")
    assert client.not_read > 0
    assert server.not_read > 0


def test_another_byte_in_a_record_ends_its_direction(tmp_path: Path) -> None:
    commands = [(f"line {number}", f"{number} enil".encode()) for number in range(5)]
    sent, keylog = converse(tmp_path, commands, "-tls1_3")
    last = max(place for place, (by_client, data) in enumerate(sent) if by_client and data[-1:] != b"")
    broken = sent[: last - 4] + [
        (by_client, bytes([*data[:-1], data[-1] ^ 1]) if by_client else data)
        for by_client, data in sent[last - 4 :]
    ]
    client, server, failed, _ = read(broken, keylog)

    assert failed == []
    assert b"line 0\nline 1\nline 2\nline 3\n".startswith(client.data)
    assert client.not_read > 0
    assert server.data.count(b"\n") == 5
