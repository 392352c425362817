"""``--capture``: its files, the tap between sockets and protocols, and a disk that is full or slow."""

import asyncio
import errno
import os
import shutil
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from threading import Event
from typing import Any

import pytest
import structlog
from structlog.testing import capture_logs

from proxy.addresses import Address
from proxy.capture import tap
from proxy.capture.no_tap import BROKER
from proxy.capture.pcap import file_header
from proxy.capture.tap import FLUSH_BYTES, Capture, Files
from proxy.core.connection import Connection
from proxy.core.fast_path import FastPath
from proxy.server.gateway import Gateway
from tests.captured import ACK, FIN, RST, SYN, Packet, read, read_directory, streams
from tests.frames import entry, fetch, fetch_response
from tests.shell import (
    BOTH_LOOPS,
    WireGateway,
    client,
    gateway,
    link_of,
    request,
    response,
    run,
    stub_broker,
    until,
)

HEADER = len(file_header())


def _files(directory: Path, most_bytes: int = 1 << 20, most_files: int = 4) -> Files:
    return Files(directory, most_bytes=most_bytes, most_files=most_files)


def _content(size: int) -> bytes:
    """Return random bytes, without the byte that these tests' core treats as a fault."""
    return os.urandom(size).replace(b"\xff", b"\0")


def _sizes(directory: Path) -> list[int]:
    return [path.stat().st_size for path in sorted(directory.glob("*"))]


class _Blocked(Files):
    """A disk that accepts nothing until it is released."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, most_bytes=1 << 30, most_files=2)
        self.go_on = Event()

    def write(self, records: bytes) -> None:
        self.go_on.wait(30)
        super().write(records)


class _Full(Files):
    """A disk without room."""

    def write(self, _records: bytes) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class _AllPass(FastPath):
    """A fast path that forwards all bytes."""

    def request(self, data: bytes, now: float) -> tuple[int, bytes]:
        return len(data), data

    def response(self, data: bytes, began: float, now: float) -> tuple[int, bytes]:
        return len(data), data


class _FastGateway(WireGateway):
    """A gateway in which all bytes take the fast path."""

    def make_core(self, *args: Any) -> Connection:
        core = super().make_core(*args)
        core.fast_path = _AllPass(core.fast_path._state, max_request_bytes=1 << 20, on=True)
        return core


@asynccontextmanager
async def _capturing(
    broker: str, files: Files, *, records: bool = True, kind: type[Gateway] = WireGateway
) -> AsyncIterator[Gateway]:
    """Run a gateway that forwards and captures bytes. At the end, all captured bytes are on the disk."""
    async with gateway(broker, kind) as gate:
        capture = Capture(files, records=records, loop=gate.process.loop, log=structlog.get_logger())
        gate.server.set_tap(capture)
        try:
            yield gate
        finally:
            capture.close()


def _of(packets: list[Packet], port: int) -> list[Packet]:
    return [packet for packet in packets if any(end.endswith(f":{port}") for end in packet.ends)]


def test_files_are_filled_one_after_the_other_and_the_oldest_goes(tmp_path: Path) -> None:
    files = _files(tmp_path / "new" / "deeper", most_bytes=HEADER + 10, most_files=3)
    for letter in b"abcdefg":
        files.write(bytes([letter]) * 6)
    files.close()

    written = [path.read_bytes()[HEADER:] for path in sorted((tmp_path / "new" / "deeper").iterdir())]
    assert written == [b"e" * 6, b"f" * 6, b"g" * 6]


def test_a_file_is_as_full_as_it_may_be(tmp_path: Path) -> None:
    files = _files(tmp_path, most_bytes=HEADER + 10)
    for size in (6, 4, 1, 100, 1):
        files.write(bytes(size))
    files.close()

    assert _sizes(tmp_path) == [HEADER + 10, HEADER + 1, HEADER + 100, HEADER + 1]


def test_no_descriptor_is_closed_twice_where_the_next_file_can_not_be_made(tmp_path: Path) -> None:
    files = _files(tmp_path / "gone", most_bytes=HEADER + 10)
    files.write(bytes(10))
    shutil.rmtree(tmp_path / "gone")
    with pytest.raises(FileNotFoundError):
        files.write(bytes(10))

    of_others = [os.open(os.devnull, os.O_RDONLY) for _ in range(3)]  # the lowest numbers that are free
    files.close()

    for each in of_others:
        os.close(each)  # it would be closed already


def test_files_of_earlier_runs_count_and_others_are_left_alone(tmp_path: Path) -> None:
    for number, name in enumerate(["fetchgate-b.pcap", "fetchgate-a.pcap", "notes.txt", "other.pcap"]):
        (tmp_path / name).write_bytes(b"x")
        os.utime(tmp_path / name, (number, number))

    _files(tmp_path, most_files=2).close()

    _new, *rest = sorted(path.name for path in tmp_path.iterdir())
    assert rest == ["fetchgate-a.pcap", "notes.txt", "other.pcap"]


def test_of_files_that_were_written_at_the_same_time_the_first_by_name_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock of a file system advances every few milliseconds."""
    kept = [tmp_path / f"fetchgate-{name}.pcap" for name in "cab"]
    for path in kept:
        path.write_bytes(b"x")
        os.utime(path, (1, 1))
    monkeypatch.setattr(Path, "glob", lambda *_: iter(kept))

    _files(tmp_path, most_files=3).close()

    assert [path.name for path in kept if path.exists()] == ["fetchgate-c.pcap", "fetchgate-b.pcap"]


def test_two_of_the_same_second_and_number_do_not_write_into_one_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tap, "strftime", lambda *_: "now")
    first, second = _files(tmp_path), _files(tmp_path)
    first.write(b"first")
    second.write(b"second")
    first.close()
    second.close()

    assert [path.read_bytes()[HEADER:] for path in sorted(tmp_path.iterdir())] == [b"first", b"second"]


def test_files_are_for_their_owner_alone(tmp_path: Path) -> None:
    """For the review (docs/users/security.md): what it writes."""
    _files(tmp_path).close()

    (path,) = tmp_path.iterdir()
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_file_ends_with_the_last_whole_record_when_the_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = _files(tmp_path)
    files.write(b"whole")
    room = iter([3])

    def write(file: int, data: memoryview) -> int:
        return real(file, data[: next(room, 0)]) or _full()

    def _full() -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    real = os.write
    monkeypatch.setattr(os, "write", write)
    with pytest.raises(OSError, match="No space"):
        files.write(b"broken")
    files.close()

    (path,) = tmp_path.iterdir()
    assert path.read_bytes()[HEADER:] == b"whole"


@BOTH_LOOPS
@pytest.mark.parametrize("kind", [WireGateway, _FastGateway])
def test_what_passes_is_written_from_both_sides(tmp_path: Path, plain: bool, kind: type[Gateway]) -> None:
    sent = _content(768_000)
    ports: dict[str, int] = {}

    async def scene() -> None:
        async with stub_broker() as broker, _capturing(broker.address, _files(tmp_path), kind=kind) as gate:
            async with client(gate.listen.port) as (reader, writer):
                # No fast path begins before the broker has responded.
                await until(lambda: gate.server.links and link_of(gate).has_broker)
                writer.write(sent)
                assert await reader.readexactly(len(sent)) == sent
                ports["client"] = writer.get_extra_info("sockname")[1]
                ports["listener"], ports["broker"] = gate.listen.port, broker.port
                writer.write_eof()
                assert await reader.read() == b""
            await until(lambda: not gate.server.links)

    run(scene(), plain=plain)

    packets = read_directory(tmp_path)
    whole = streams(packets)
    assert sorted(whole.values()) == [sent] * 4
    at_client = (f"127.0.0.1:{ports['client']}", f"127.0.0.1:{ports['listener']}")
    assert whole[at_client] == whole[at_client[::-1]] == sent
    (at_broker,) = {packet.ends for packet in packets if packet.ends[1] == f"127.0.0.1:{ports['broker']}"}
    for there in (at_client, at_broker):
        flags = [(packet.ends == there, packet.flags) for packet in packets if there[0] in packet.ends]
        assert flags[:3] == [(True, SYN), (False, SYN | ACK), (True, ACK)]
        assert flags.count((True, FIN | ACK)) == 1
        assert not any(flag & RST for _, flag in flags)
    assert [packet.time for packet in packets] == sorted(packet.time for packet in packets)


def test_a_client_that_breaks_off_is_told_by_a_reset(tmp_path: Path) -> None:
    async def scene() -> None:
        async with stub_broker() as broker, _capturing(broker.address, _files(tmp_path)) as gate:
            sock = socket.create_connection(("127.0.0.1", gate.listen.port))
            sock.sendall(b"x")
            await until(lambda: broker.received)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            sock.close()
            await until(lambda: not gate.server.links)

    run(scene())

    resets = [packet for packet in read_directory(tmp_path) if packet.flags & RST]
    assert len(resets) >= 1
    first = read_directory(tmp_path)[0]
    assert resets[0].ends == first.ends


def test_what_the_gateway_cuts_off_is_told_by_a_reset_of_its_own(tmp_path: Path) -> None:
    async def scene() -> None:
        async with (
            stub_broker() as broker,
            _capturing(broker.address, _files(tmp_path)) as gate,
            client(gate.listen.port) as (_, writer),
        ):
            writer.write(b"x")
            await until(lambda: broker.received)
            gate.close()
            await until(lambda: not gate.server.links)

    run(scene())

    packets = read_directory(tmp_path)
    resets = [packet.ends for packet in packets if packet.flags & RST]
    opened = [packet.ends for packet in packets if packet.flags == SYN]
    assert sorted(resets) == sorted([opened[0][::-1], opened[1]])


def test_without_records_their_bytes_are_nowhere_in_the_files(tmp_path: Path) -> None:
    secret = b"SECRET" * 1_000
    asked = request(0, 2, 1, b"\0\1\0\0\0\0" + secret)

    async def scene() -> None:
        replies = iter([response(1, secret)])
        async with (
            stub_broker(lambda _: next(replies, b"")) as broker,
            _capturing(broker.address, _files(tmp_path), records=False) as gate,
            client(gate.listen.port) as (reader, writer),
        ):
            writer.write(asked)
            assert secret in await reader.readexactly(8 + len(secret))

    run(scene())

    assert b"SECRET" not in b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert sorted(map(len, streams(read_directory(tmp_path)).values())) == sorted(
        [len(asked), 8 + len(secret)] * 2
    )


def test_a_fetch_response_that_is_cut_off_is_in_the_capture_by_its_size(tmp_path: Path) -> None:
    asked = fetch(12, ("t", 0))
    half = fetch_response(12, ("t", [entry(0, 5, records=b"SECRET" * 1_000)]))[:3_000]

    async def scene() -> None:
        replies = iter([half])
        async with (
            stub_broker(lambda _: next(replies, b"")) as broker,
            _capturing(broker.address, _files(tmp_path), records=False) as gate,
        ):
            async with client(gate.listen.port) as (reader, writer):
                writer.write(asked)
                await reader.readexactly(len(half))
            await until(lambda: not gate.server.links)

    run(scene())

    assert b"SECRET" not in b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert sorted(map(len, streams(read_directory(tmp_path)).values())) == sorted([len(asked), len(half)] * 2)


def test_a_connection_goes_on_over_files(tmp_path: Path) -> None:
    sent = _content(3 * FLUSH_BYTES)

    async def scene() -> None:
        files = _files(tmp_path, most_bytes=FLUSH_BYTES, most_files=1_000)
        async with (
            stub_broker() as broker,
            _capturing(broker.address, files) as gate,
            client(gate.listen.port) as (reader, writer),
        ):
            writer.write(sent)
            assert await reader.readexactly(len(sent)) == sent

    run(scene())

    assert len(list(tmp_path.iterdir())) > 3
    for path in tmp_path.iterdir():
        read(path.read_bytes())  # each for itself
    assert list(streams(read_directory(tmp_path)).values()) == [sent] * 4


def _still_passes(tmp_path: Path, make: Callable[[Path], Files], then: Callable[[Files], Any]) -> list[Any]:
    """Check that a gateway still forwards bytes after its capture has stopped. Return its log lines."""
    sent = _content(FLUSH_BYTES)

    async def scene() -> None:
        files = make(tmp_path)
        async with stub_broker() as broker, _capturing(broker.address, files) as gate:
            async with client(gate.listen.port) as (reader, writer):
                assert not gate.status().capture_stopped
                for _ in range(8):
                    writer.write(sent)
                    assert await reader.readexactly(len(sent)) == sent
                    await asyncio.sleep(0)
                await until(lambda: gate.status().capture_stopped)
                assert [reason.split(":")[0] for reason in gate.status().problems] == [
                    "the capture has stopped"
                ]
                writer.write(b"after")
                assert await reader.readexactly(5) == b"after"
            then(files)

    with capture_logs() as lines:
        run(scene())
    return [line for line in lines if "capture" in line["event"]]


def test_a_full_disk_stops_the_capture_and_nothing_else(tmp_path: Path) -> None:
    def make(path: Path) -> Files:
        return _Full(path, most_bytes=1 << 30, most_files=2)

    (line,) = _still_passes(tmp_path, make, lambda _: None)

    assert line["event"] == "capture stopped, the gateway continues"
    assert line["reason"] == "No space left on device"
    assert line["log_level"] == "error"


def test_a_slow_disk_stops_the_capture_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tap, "BACKLOG_BYTES", 4 * FLUSH_BYTES)

    (line,) = _still_passes(tmp_path, _Blocked, lambda files: files.go_on.set())  # type: ignore[attr-defined]

    assert line["reason"].startswith("the disk is too slow: ")
    assert b"after" not in b"".join(streams(read_directory(tmp_path)).values())


async def test_without_capture_nothing_stands_between(tmp_path: Path) -> None:
    async with stub_broker() as broker, gateway(broker.address, WireGateway) as gate:
        protocol: Any = object()
        assert gate.server.tap(protocol, 0) is protocol


@pytest.mark.parametrize(("own", "peer"), [("192.0.2.1", "0.0.0.0"), ("2001:db8::1", "[::]"), (None, "[::]")])
def test_a_peer_that_has_left_has_an_address_of_the_same_ip_version(
    tmp_path: Path, own: str | None, peer: str
) -> None:
    """Its address can no longer be read. A packet with addresses of two IP versions could not be read."""

    class Left(asyncio.Transport):
        """A transport whose peer has left."""

        def get_extra_info(self, name: str, _default: Any = None) -> Any:
            return (own, 9092) if own and name == "sockname" else None

    async def connected() -> None:
        log = structlog.get_logger()
        capture = Capture(_files(tmp_path), records=True, loop=asyncio.get_running_loop(), log=log)
        capture(asyncio.Protocol(), BROKER).connection_made(Left())
        capture.close()

    run(connected())
    packets = read_directory(tmp_path)
    gateway = str(Address(own, 9092)) if own else f"{peer}:0"
    assert [packet.ends for packet in packets] == [
        (f"{peer}:0", gateway),
        (gateway, f"{peer}:0"),
        (f"{peer}:0", gateway),
    ]
