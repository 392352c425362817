"""Messages between processes of a gateway arrive complete, for any split of their bytes."""

import asyncio
import pickle
import socket
import struct
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from select import select
from typing import Any

import pytest

from proxy.addresses import Address
from proxy.server.ipc import Channel, HandedOver, Question, receive_connection, respond, send_connection
from tests.shell import WAIT_SECONDS, until


def framed(*message: object) -> bytes:
    data = pickle.dumps(message)
    return struct.pack("<I", len(data)) + data


@pytest.fixture
def packets() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        yield ours, theirs


@pytest.mark.parametrize("size", [1, 3, 7, 1000])
def test_messages_are_whole_however_they_come(size: int) -> None:
    got: list[tuple[Any, ...]] = []
    channel = Channel(lambda *message: got.append(message), lambda: None)
    data = framed("one") + framed("two", {1: None}, b"x" * 50) + framed("three", [])

    for at in range(0, len(data), size):
        channel.data_received(data[at : at + size])

    assert got == [("one",), ("two", {1: None}, b"x" * 50), ("three", [])]


async def test_both_ends_speak_and_each_learns_when_the_other_is_gone() -> None:
    loop, got, lost = asyncio.get_running_loop(), [], []
    one = Channel(lambda *message: got.append(message), lambda: lost.append("one"))
    two = Channel(lambda *message: two.send("back", *message), lambda: lost.append("two"))
    ends = socket.socketpair()
    for channel, end in zip((one, two), ends, strict=True):
        end.setblocking(False)
        await channel.connect(loop, end)
    one.send("there", b"y" * 300_000)
    await until(lambda: got)
    assert got == [("back", "there", b"y" * 300_000)]
    one.close()
    await until(lambda: sorted(lost) == ["one", "two"])
    two.send("nobody hears it")


def test_a_question_stands_still_until_it_is_told(packets: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = packets
    theirs.setblocking(False)
    ask = Question(ours)
    with pytest.raises(BlockingIOError):
        respond(theirs, lambda: None)

    with ThreadPoolExecutor(1) as aside:
        told = aside.submit(ask, 2, 3)
        select([theirs], [], [], WAIT_SECONDS)
        respond(theirs, lambda a, b: a * b)
        assert told.result(WAIT_SECONDS) == 6

    theirs.close()
    with pytest.raises(OSError, match="the supervisor does not respond to its worker"):
        ask("anything")


def test_a_response_that_is_late_is_none_to_the_next_question(
    packets: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proxy.server.ipc.RESPONSE_SECONDS", 0.01)
    ours, theirs = packets
    ask = Question(ours)
    with pytest.raises(OSError, match="does not respond"):
        ask("first")
    respond(theirs, lambda what: f"late: {what}")
    theirs.send(pickle.dumps((2, "in time")))
    assert ask("second") == "in time"


HANDED = HandedOver(
    worker=3,
    client_address="[2001:db8::1]:40000",
    client_subject="CN=alice",
    server_name="b1.gate.example",
    reached_at="2001:db8::2",
    broker_address=Address("192.0.2.1", 9092),
)


@pytest.mark.parametrize("node_id", [None, 0, 7, -1, -3, 2**31 - 1])
@pytest.mark.parametrize("handed", [None, HANDED], ids=["accepted", "handed over"])
def test_a_connection_is_sent(
    packets: tuple[socket.socket, socket.socket], node_id: int | None, handed: HandedOver | None
) -> None:
    ours, theirs = packets
    theirs.setblocking(False)
    client, peer = socket.socketpair()
    with peer:
        with pytest.raises(BlockingIOError):
            receive_connection(theirs)
        with client:
            send_connection(ours, client, node_id, handed)
        taken = receive_connection(theirs)
        assert taken is not None
        assert taken.client is not None
        with taken.client as sock:
            assert (taken.node_id, taken.handed) == (node_id, handed)
            sock.send(b"hello")
            assert peer.recv(10) == b"hello"
        ours.close()
        assert receive_connection(theirs) is None
