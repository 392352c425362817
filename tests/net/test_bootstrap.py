import asyncio
import struct
from collections.abc import Callable

import pytest

from proxy.addresses import Address
from proxy.net import bootstrap
from proxy.net.bootstrap import (
    BootstrapError,
    BootstrapResponse,
    ask,
    ask_any,
    brokers_of,
    metadata_request,
    metadata_version,
)
from proxy.net.resolve import Resolver
from proxy.protocol.primitives import ProtocolError
from tests.shell import api_versions, expire_once_connected, response, run, stub_broker

API_VERSIONS_REQUEST = bytes.fromhex("0000001300120000000000010009") + b"fetchgate"


def _broker(node_id: int, host: bytes, port: int, rack: bytes | None = None) -> bytes:
    tail = struct.pack(">h", -1) if rack is None else struct.pack(">h", len(rack)) + rack
    return struct.pack(">ih", node_id, len(host)) + host + struct.pack(">i", port) + tail


def _metadata(*brokers: bytes, throttle: bytes = b"") -> bytes:
    return throttle + struct.pack(">i", len(brokers)) + b"".join(brokers) + struct.pack(">ii", 1, 0)


@pytest.mark.parametrize(
    ("ranges", "version"),
    [
        ([(1, 0, 18), (3, 0, 13), (18, 0, 4)], 1),
        ([(3, 4, 13)], 4),
        ([(3, 8, 8)], 8),
        ([(3, 9, 13)], None),
        ([(3, 0, 0)], None),
        ([(18, 0, 4)], None),
        ([], None),
    ],
)
def test_metadata_is_asked_at_the_lowest_version_that_both_know(
    ranges: list[tuple[int, int, int]], version: int | None
) -> None:
    assert metadata_version(api_versions(*ranges)) == version


def test_an_api_versions_response_with_an_error_is_no_response() -> None:
    with pytest.raises(ProtocolError, match="error 35 in response to ApiVersions"):
        metadata_version(api_versions((18, 0, 4), error=35))


@pytest.mark.parametrize(
    ("version", "body"),
    [(1, "00000000"), (3, "00000000"), (4, "0000000000"), (7, "0000000000"), (8, "00000000000000")],
)
def test_a_metadata_request_asks_for_no_topic(version: int, body: str) -> None:
    assert metadata_request(version)[23:].hex() == body


def test_brokers_are_read_at_every_version() -> None:
    brokers = [_broker(1, b"kafka-1", 9092), _broker(2, b"10.0.0.2", 9093, b"rack")]
    expected = {1: Address("kafka-1", 9092), 2: Address("10.0.0.2", 9093)}

    assert brokers_of(_metadata(*brokers), 1) == (expected, {2: "rack"})
    assert brokers_of(_metadata(*brokers, throttle=b"\x00\x00\x00\x07"), 3) == (expected, {2: "rack"})


@pytest.mark.parametrize(
    "broker",
    [
        _broker(2, b"kafka", 65536),
        _broker(2, b"kafka", 0),
        _broker(2, b"kafka", -1),
        _broker(2, b"", 9092),
        _broker(-1, b"kafka", 9092),
    ],
)
def test_a_broker_to_which_nobody_can_connect_is_left_out(broker: bytes) -> None:
    known, _ = brokers_of(_metadata(_broker(1, b"kafka", 65535), broker), 1)
    assert known == {1: Address("kafka", 65535)}


def _cluster(metadata: bytes) -> Callable[[bytes], bytes]:
    """Return a function that answers as a broker with Metadata v4 to v13 does."""

    def responses(data: bytes) -> bytes:
        if data == API_VERSIONS_REQUEST:
            return response(1, api_versions((3, 4, 13)))
        assert data[4:8] == b"\x00\x03\x00\x04"
        return response(1, metadata)

    return responses


async def test_a_cluster_tells_its_brokers() -> None:
    metadata = _metadata(_broker(7, b"kafka-7", 9092, b"R7"), throttle=bytes(4))
    async with stub_broker(_cluster(metadata)) as broker:
        address = Address("127.0.0.1", broker.port)
        dead = Address("127.0.0.1", 1)
        brokers = {7: Address("kafka-7", 9092)}
        cluster = BootstrapResponse(address=address, brokers=brokers, racks={7: "R7"})
        assert await ask_any((dead, address), Resolver()) == cluster


async def test_a_cluster_that_wants_authentication_is_one_all_the_same() -> None:
    def responses(data: bytes) -> bytes:
        if data == API_VERSIONS_REQUEST:
            return response(1, api_versions((3, 0, 13)))
        broker.writers[0].close()
        return b""

    async with stub_broker(responses) as broker:
        address = Address("127.0.0.1", broker.port)
        assert await ask(address, Resolver()) == BootstrapResponse(address=address, brokers=None)


@pytest.mark.parametrize(
    ("responses", "reason"),
    [
        (
            lambda _: b"HTTP/1.1 400 Bad Request\r\n\r\n",
            "does not respond as Kafka does: a response of 1213486160 bytes",
        ),
        (lambda _: b"\xff\xff\xff\xff", "does not respond as Kafka does: a response of -1 bytes"),
        (lambda _: response(1, b"\x00"), "does not respond as Kafka does: int16 at 0 goes on after the end"),
    ],
)
async def test_something_else_than_kafka_is_named_as_such(
    responses: Callable[[bytes], bytes], reason: str
) -> None:
    async with stub_broker(responses) as broker:
        with pytest.raises(BootstrapError) as caught:
            await ask(Address("127.0.0.1", broker.port), Resolver())
        assert str(caught.value) == f"{broker.address}: {reason}"


async def test_one_that_closes_or_hangs_is_named_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    def closing(_data: bytes) -> bytes:
        broker.writers[0].close()
        return b""

    async with stub_broker(closing) as broker:
        with pytest.raises(BootstrapError, match="closed without a response"):
            await ask(Address("127.0.0.1", broker.port), Resolver())
    expire_once_connected(monkeypatch)
    async with stub_broker(lambda _: b"") as broker:
        with pytest.raises(BootstrapError, match="no response in 10 s"):
            await ask(Address("127.0.0.1", broker.port), Resolver())


async def test_one_that_has_spoken_plain_text_is_not_asked_for_tls(monkeypatch: pytest.MonkeyPatch) -> None:
    async def reason_of(responses: Callable[[bytes], bytes], *, known: bool, last: bytes) -> str:
        with monkeypatch.context() as patch:
            async with stub_broker(responses) as broker:
                expire_once_connected(patch, lambda: last in broker.received)
                address = Address("127.0.0.1", broker.port)
                with pytest.raises(BootstrapError) as caught:
                    await ask(address, Resolver(), plain={address} if known else ())
                return str(caught.value).removeprefix(f"{address}: ")

    def silent(_: bytes) -> bytes:
        return b""

    def versions_alone(data: bytes) -> bytes:
        return response(1, api_versions((3, 4, 13))) if data == API_VERSIONS_REQUEST else b""

    hint = " (does it speak TLS? Then give --broker-tls on)"
    asked, metadata_asked = API_VERSIONS_REQUEST, b"\x00\x03\x00\x04"
    assert await reason_of(silent, known=False, last=asked) == f"no response in 10 s{hint}"
    assert await reason_of(silent, known=True, last=asked) == "no response in 10 s"
    assert await reason_of(versions_alone, known=False, last=metadata_asked) == "no response in 10 s"


async def test_a_name_or_a_network_that_hangs_is_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    async def hang(*_: object, **__: object) -> None:
        await asyncio.sleep(60)

    monkeypatch.setattr(bootstrap, "ASK_SECONDS", 0.01)
    monkeypatch.setattr(asyncio, "open_connection", hang)
    with pytest.raises(BootstrapError, match=r"127.0.0.1:9092: not connected in 0 s \(does its name resolve"):
        await ask(Address("127.0.0.1", 9092), Resolver())


def test_when_none_answers_the_reason_names_each() -> None:
    async def scene() -> None:
        with pytest.raises(BootstrapError) as caught:
            await ask_any((Address("127.0.0.1", 1), Address("127.0.0.1", 2)), Resolver())
        assert str(caught.value) == "127.0.0.1:1: Connection refused; 127.0.0.1:2: Connection refused"

    run(scene())
    asyncio.set_event_loop(None)
