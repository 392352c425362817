"""One socket of a link: the reasons why the gateway does not read it, and how long they last."""

import asyncio
import socket
from typing import cast

from proxy.addresses import Address
from proxy.net.endpoint import WRITE_HIGH_WATER, Endpoint, has_ended, set_options, unacknowledged
from proxy.net.transparent import outbound_socket
from tests.shell import BOTH_LOOPS, client, gateway, link_of, run, socket_of, stub_broker, until


class Transport:
    """A replacement for the transport of an event loop, as far as an endpoint uses it.

    It records the calls.
    """

    def __init__(self, *, tls: bool = False) -> None:
        self.told: list[str] = []
        self.closing = False
        self.tls = tls

    def set_write_buffer_limits(self, high: int) -> None:
        self.told.append(f"high {high}")

    def can_write_eof(self) -> bool:
        return not self.tls

    def is_closing(self) -> bool:
        return self.closing

    def pause_reading(self) -> None:
        self.told.append("pause")

    def resume_reading(self) -> None:
        self.told.append("resume")


def connected(transport: Transport, holds: int = 0) -> Endpoint:
    end = Endpoint(holds)
    end.connected(cast("asyncio.Transport", transport))
    assert transport.told == [f"high {WRITE_HIGH_WATER}"]
    transport.told.clear()
    return end


def test_it_is_read_while_nothing_holds_it_back() -> None:
    transport = Transport()
    end = connected(transport)
    end.hold(1)
    end.hold(4)
    end.hold(4)
    end.release(1)
    assert (transport.told, end.holds) == (["pause"], 4)
    end.release(4)
    end.release(4)
    assert (transport.told, end.holds) == (["pause", "resume"], 0)


def test_what_holds_it_back_from_the_beginning_is_taken_back_once() -> None:
    transport = Transport()
    end = connected(transport, holds=1)
    end.release(2)
    assert transport.told == []
    end.release(1)
    assert transport.told == ["resume"]


def test_a_socket_that_closes_or_is_not_there_is_left_alone() -> None:
    end = Endpoint()
    end.hold(1)
    end.release(1)
    transport = Transport()
    end = connected(transport)
    transport.closing = True
    end.hold(1)
    end.pause()
    end.release(1)
    assert (transport.told, end.holds) == ([], 0)


def test_what_goes_into_tls_is_written_as_one() -> None:
    assert not connected(Transport()).joins_writes
    assert connected(Transport(tls=True)).joins_writes


def test_what_asyncio_sends_is_written_as_one() -> None:
    """The `writelines` of Python 3.12 and 3.13 does not say that the buffer is full."""

    class OfAsyncio(asyncio.Transport):
        def can_write_eof(self) -> bool:
            return True

        def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
            pass

    end = Endpoint()
    end.connected(OfAsyncio())
    assert end.joins_writes
    assert end.half_closes


def test_a_peer_that_vanished_is_noticed_within_two_minutes() -> None:
    with socket.socket() as sock:
        set_options(sock)
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        idle, every, times = (
            sock.getsockopt(socket.IPPROTO_TCP, option)
            for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
        )
        assert idle + every * times == 120


@BOTH_LOOPS
def test_what_the_system_keeps_for_a_peer_goes_as_that_reads(plain: bool) -> None:
    async def scene() -> None:
        async with stub_broker(lambda _: b"") as broker, client(broker.port) as (_, writer):
            await until(lambda: broker.writers)
            socket_of(broker.writers[0]).pause_reading()
            writer.write(bytes(40_000_000))
            await until(lambda: unacknowledged(socket_of(writer)) > 0)
            socket_of(broker.writers[0]).resume_reading()
            await until(lambda: len(broker.received) == 40_000_000)
            await until(lambda: unacknowledged(socket_of(writer)) == 0)

    run(scene(), plain=plain)


def test_a_transport_without_a_socket_keeps_nothing_there() -> None:
    class Lost:
        def get_extra_info(self, _name: str) -> socket.socket:
            sock = socket.socket()
            sock.close()
            return sock

    assert unacknowledged(cast("asyncio.Transport", Lost())) == 0


@BOTH_LOOPS
def test_what_is_written_is_sent_at_once(plain: bool) -> None:
    """Written bytes are sent at once (TCP_NODELAY). asyncio's own loop sets this only if the socket names its
    protocol.
    """

    async def scene() -> None:
        async with stub_broker() as broker, gateway(broker.address) as gate, client(gate.listen.port):
            await until(lambda: gate.server.links and link_of(gate).has_broker)
            for end in (link_of(gate).client, link_of(gate).broker):
                assert end.transport is not None
                sock = end.transport.get_extra_info("socket")
                assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)

    run(scene(), plain=plain)


def test_a_socket_of_transparent_mode_names_its_protocol() -> None:
    with outbound_socket(Address("127.0.0.1", 9092)) as sock:
        assert sock.proto == socket.IPPROTO_TCP


@BOTH_LOOPS
def test_the_end_of_a_peer_that_is_not_read_is_seen(plain: bool) -> None:
    async def scene() -> None:
        async with (
            stub_broker() as broker,
            gateway(broker.address) as gate,
            client(gate.listen.port) as (reader, writer),
        ):
            writer.write(b"a")
            assert await reader.readexactly(1) == b"a"
            end = link_of(gate).client
            assert end.transport is not None
            end.hold(1)
            writer.write(b"b")
            assert not has_ended(end.transport)
            writer.write_eof()
            transport = end.transport
            await until(lambda: has_ended(transport))

    run(scene(), plain=plain)
