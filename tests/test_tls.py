"""TLS toward brokers and clients: bytes, back-pressure, ends, failures in words, files that change, names."""

import asyncio
import logging
import socket
import ssl
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from time import monotonic
from typing import cast

import pytest
import structlog
from structlog.testing import capture_logs

from proxy import running
from proxy import serving as shell
from proxy.bootstrap import BootstrapError, ask
from proxy.captures import Capture, Files
from proxy.cli import main
from proxy.protocol.api import ApiKey
from proxy.routing import Address, BrokerPorts
from proxy.server import Gateway
from proxy.sockets import RECEIVE_BYTES, WRITE_HIGH_WATER
from proxy.tls import BrokerTls
from proxy.transports import PEER_FULL, Link
from tools.certificates import Authority, Pair
from tools.kafka.ports import free_ports

from .captured import read_directory, streams
from .shell import (
    Wire,
    WireGateway,
    answer,
    client,
    config,
    frame,
    gateway,
    metadata,
    request,
    run,
    stub_broker,
    stub_cluster,
    until,
)

BOTH_LOOPS = pytest.mark.parametrize("plain", [False, True], ids=["uvloop", "asyncio"])


class ClosingGateway(WireGateway):
    """A gateway whose cores close a session."""

    closing = b"<close>"


@dataclass(frozen=True)
class Keys:
    """What the tests of this file share; nothing changes it."""

    ca: Authority
    other: Authority
    good: Pair
    stranger: Pair

    def to_broker(self, **more: str) -> dict[str, str]:
        return {"broker_tls": "on", "broker_tls_ca": str(self.ca.file)} | more

    def to_client(self) -> dict[str, str]:
        return {"tls_cert": str(self.good.cert), "tls_key": str(self.good.key)}

    def trust(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=self.ca.file)


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Keys:
    folder = tmp_path_factory.mktemp("keys")
    ca, other = Authority(folder), Authority(folder, "other")
    return Keys(ca, other, ca.sign("good"), other.sign("stranger"))


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Event loops complain of misused TLS in the log of asyncio."""
    yield
    structlog.reset_defaults()
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def serving(pair: Pair) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.cert, pair.key)
    return context


def _link(gate: Gateway) -> Link:
    (link,) = gate.links
    return link


def _socket(writer: asyncio.StreamWriter) -> asyncio.Transport:
    return cast("asyncio.Transport", writer.transport)  # typeshed knows its writing half only


# -- bytes, back-pressure, ends


@BOTH_LOOPS
def test_bytes_pass_both_ways_inside_tls_on_both_sides(keys: Keys, plain: bool) -> None:
    async def scene() -> None:
        sent = bytes(range(256)) * 40_000
        async with (
            stub_broker(tls=serving(keys.good)) as broker,
            gateway(broker.address, WireGateway, **keys.to_broker(), **keys.to_client()) as gate,
        ):
            async with client(gate.listen.port, keys.trust(), "localhost") as (reader, writer):
                writer.write(sent)
                assert await reader.readexactly(len(sent)) == sent
            await until(lambda: not gate.links and not broker.open)
            assert gate.tally().client.bytes_in == len(sent)

    run(scene(), plain=plain)


@BOTH_LOOPS
def test_a_client_that_does_not_read_holds_back_its_broker(keys: Keys, plain: bool) -> None:
    flood = bytes(range(250)) * 100_000

    async def scene() -> None:
        async with (
            stub_broker(lambda _: flood, tls=serving(keys.good)) as broker,
            gateway(broker.address, WireGateway, **keys.to_broker(), **keys.to_client()) as gate,
            client(gate.listen.port, keys.trust(), "localhost") as (reader, writer),
        ):
            _socket(writer).pause_reading()
            writer.write(b"flood")
            await until(lambda: gate.links and _link(gate).broker_holds == PEER_FULL)
            link = _link(gate)
            assert link.client.transport is not None
            # TLS adds 22 bytes to a record of 16 KiB.
            assert link.client.transport.get_write_buffer_size() <= 1.01 * (WRITE_HIGH_WATER + RECEIVE_BYTES)
            _socket(writer).resume_reading()
            assert await reader.readexactly(len(flood)) == flood
            assert link.broker_holds == 0

    run(scene(), plain=plain)


@BOTH_LOOPS
def test_a_broker_that_does_not_read_holds_back_its_client(keys: Keys, plain: bool) -> None:
    async def scene() -> None:
        async with (
            stub_broker(lambda _: b"", tls=serving(keys.good)) as broker,
            gateway(broker.address, WireGateway, **keys.to_broker(), **keys.to_client()) as gate,
            client(gate.listen.port, keys.trust(), "localhost") as (_, writer),
        ):
            await until(lambda: broker.open and _link(gate).has_broker)
            _socket(broker.writers[0]).pause_reading()
            writer.write(bytes(25_000_000))
            await until(lambda: _link(gate).client_holds == PEER_FULL)
            link = _link(gate)
            assert link.broker.transport is not None
            assert link.broker.transport.get_write_buffer_size() <= 1.01 * (WRITE_HIGH_WATER + RECEIVE_BYTES)
            _socket(broker.writers[0]).resume_reading()
            await until(lambda: len(broker.received) == 25_000_000)
            await until(lambda: link.client_holds == 0)

    run(scene(), plain=plain)


@BOTH_LOOPS
def test_when_the_broker_closes_the_client_gets_what_is_due_and_is_closed(keys: Keys, plain: bool) -> None:
    async def scene() -> None:
        async with (
            stub_broker(lambda _: b"", tls=serving(keys.good)) as broker,
            gateway(broker.address, WireGateway, **keys.to_broker(), **keys.to_client()) as gate,
            client(gate.listen.port, keys.trust(), "localhost") as (reader, writer),
        ):
            writer.write(b"x")
            await until(lambda: broker.received.endswith(b"x"))
            broker.writers[0].write(b"y" * 3_000_000)
            broker.writers[0].close()
            assert await reader.read() == b"y" * 3_000_000
            writer.close()
            await until(lambda: not gate.links)

    run(scene(), plain=plain)


@BOTH_LOOPS
@pytest.mark.parametrize("orderly", [True, False])
def test_a_session_is_closed_when_its_client_leaves(keys: Keys, plain: bool, orderly: bool) -> None:
    async def scene() -> None:
        async with (
            stub_broker(tls=serving(keys.good)) as broker,
            gateway(broker.address, ClosingGateway, **keys.to_broker(), **keys.to_client()) as gate,
        ):
            async with client(gate.listen.port, keys.trust(), "localhost") as (reader, writer):
                writer.write(b"x")
                await reader.readexactly(1)
                if orderly:
                    writer.close()
                    await writer.wait_closed()
            await until(lambda: broker.received.endswith(b"x<close>"))
            await until(lambda: not gate.links and not broker.open)

    run(scene(), plain=plain)


@BOTH_LOOPS
def test_a_drain_lets_answers_in_flight_arrive(keys: Keys, plain: bool) -> None:
    async def scene() -> None:
        async with (
            stub_broker(lambda _: b"", tls=serving(keys.good)) as broker,
            gateway(broker.address, ClosingGateway, **keys.to_broker(), **keys.to_client()) as gate,
            client(gate.listen.port, keys.trust(), "localhost") as (reader, writer),
        ):
            writer.write(b"x")
            await until(lambda: broker.received.endswith(b"x"))
            drained = asyncio.create_task(gate.drain(20))
            await until(lambda: broker.received.endswith(b"<close>"))
            broker.writers[0].write(b"y" * 3_000_000)
            assert await reader.readexactly(3_000_000) == b"y" * 3_000_000
            broker.writers[0].write(b"<close>")
            assert await reader.read() == b""
            writer.close()
            assert await drained == 0

    run(scene(), plain=plain)


def test_answers_to_a_client_that_has_said_the_end_go_nowhere(keys: Keys) -> None:
    async def scene() -> None:
        async with (
            stub_broker(lambda _: b"", tls=serving(keys.good)) as broker,
            gateway(broker.address, ClosingGateway, **keys.to_broker(), **keys.to_client()) as gate,
            client(gate.listen.port, keys.trust(), "localhost") as (_, writer),
        ):
            writer.write(b"x")
            await until(lambda: broker.received.endswith(b"x"))
            writer.close()
            await until(lambda: broker.received.endswith(b"<close>"))
            for _ in range(10):  # five are the loop's patience with who writes after the end
                broker.writers[0].write(b"late")
                await asyncio.sleep(0.002)
            broker.writers[0].write(b"<close>")
            await until(lambda: not gate.links)

    run(scene())


def test_an_answer_of_many_pieces_is_one_record(keys: Keys) -> None:
    async def scene() -> None:
        async with (
            stub_broker(tls=serving(keys.good)) as broker,
            gateway(broker.address, WireGateway, **keys.to_broker(), **keys.to_client()) as gate,
        ):
            sock = await asyncio.to_thread(socket.create_connection, ("127.0.0.1", gate.listen.port))
            incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
            shaken = keys.trust().wrap_bio(incoming, outgoing, server_hostname="localhost")
            await asyncio.to_thread(_shake, sock, shaken, incoming, outgoing)
            await until(lambda: _link(gate).has_broker)
            wire = cast("Wire", _link(gate).core)
            wire.to_client += [b"a", b"b", b"c"] * 30
            _link(gate).pump()
            with sock:
                while not (record := await asyncio.to_thread(sock.recv, 5)):
                    pass
                assert record[:1] == b"\x17"
                size = int.from_bytes(record[3:])
                incoming.write(record + await asyncio.to_thread(sock.recv, size))
            assert shaken.read(1000) == b"abc" * 30

    run(scene())


def _shake(
    sock: socket.socket, shaken: ssl.SSLObject, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO
) -> None:
    """Shake hands, and read the session tickets that a server sends of itself (RFC 8446, 4.6.1)."""
    while True:
        try:
            shaken.do_handshake()
        except ssl.SSLWantReadError:
            sock.sendall(outgoing.read())
            incoming.write(sock.recv(65_536))
        else:
            break
    sock.sendall(outgoing.read())
    tickets = 0
    while tickets < 2:
        head = sock.recv(5, socket.MSG_WAITALL)
        incoming.write(head + sock.recv(int.from_bytes(head[3:]), socket.MSG_WAITALL))
        tickets += 1
    with pytest.raises(ssl.SSLWantReadError):
        shaken.read(1)


def test_a_capture_sees_what_is_inside(keys: Keys, tmp_path: Path) -> None:
    async def scene() -> None:
        async with (
            stub_broker(tls=serving(keys.good)) as broker,
            gateway(broker.address, WireGateway, **keys.to_broker(), **keys.to_client()) as gate,
        ):
            files = Files(tmp_path, most_bytes=1 << 20, most_files=4)
            gate.tap = capture = Capture(files, records=True, loop=gate.loop, log=structlog.get_logger())
            async with client(gate.listen.port, keys.trust(), "localhost") as (reader, writer):
                writer.write(request(ApiKey.LIST_GROUPS, 0, 7))
                await reader.readexactly(15)
                await until(lambda: gate.links)
            await until(lambda: not gate.links)
            capture.close()

    run(scene())

    seen = streams(read_directory(tmp_path))
    assert len(seen) == 4
    assert set(seen.values()) == {request(ApiKey.LIST_GROUPS, 0, 7)}


# -- failures in words


WRONG: dict[str, tuple[Callable[[Keys], Pair], dict[str, str], str]] = {
    "expired": (
        lambda keys: keys.ca.sign("expired", days=(-0.9, -0.1)),
        {},
        "its certificate has expired: renew it at the broker, or set this machine's clock",
    ),
    "future": (
        lambda keys: keys.ca.sign("future", days=(0.1, 0.9)),
        {},
        "its certificate is not valid yet: see to it at the broker, or set this machine's clock",
    ),
    "wrong host": (
        lambda keys: keys.ca.sign("elsewhere", "kafka.example"),
        {},
        "its certificate is not for '127.0.0.1': give a name that it is for as --broker-tls-server-name",
    ),
    "wrong name": (
        lambda keys: keys.good,
        {"broker_tls_server_name": "kafka.example"},
        "its certificate is not for 'kafka.example': give a name that it is for as --broker-tls-server-name",
    ),
    "unknown CA": (
        lambda keys: keys.stranger,
        {},
        (
            "its certificate is of no CA known here (unable to get local issuer certificate): give the CA's "
            "file as --broker-tls-ca"
        ),
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_certificate_that_is_not_in_order_is_one_line(keys: Keys, case: str) -> None:
    pair, options, line = WRONG[case]

    async def scene() -> None:
        with capture_logs() as lines:
            async with (
                stub_cluster((1, "", 0), tls=serving(pair(keys))) as cluster,
                gateway(cluster.address, Gateway, **keys.to_broker(**options)) as gate,
            ):
                reason = f"{cluster.address}: {line}"
                await until(lambda: gate.health().reasons == [reason])
                async with client(gate.listen.port) as (reader, _):
                    assert await reader.read() == b""  # what clients bring makes no other line of it
                assert gate.health().state == "starting"
        assert [(line["event"], line["reason"]) for line in lines] == [
            ("bootstrap unreachable, trying again", reason)
        ]

    run(scene())


@pytest.mark.parametrize("case", WRONG)
def test_check_says_the_same(keys: Keys, case: str, capsys: pytest.CaptureFixture[str]) -> None:
    pair, options, line = WRONG[case]

    async def scene() -> None:
        async with stub_cluster((1, "", 0), tls=serving(pair(keys))) as cluster:
            checked = config(bootstrap=cluster.address, **keys.to_broker(**options))
            assert await running._check(checked) == 1
        assert capsys.readouterr().out == f"bootstrap {cluster.address}: {line}\n"

    run(scene())


def test_check_asks_inside_tls(keys: Keys, capsys: pytest.CaptureFixture[str]) -> None:
    async def scene() -> None:
        async with stub_cluster((1, "", 0), tls=serving(keys.good)) as cluster:
            assert await running._check(config(bootstrap=cluster.address, **keys.to_broker())) == 0
        assert capsys.readouterr().out.startswith(f"bootstrap {cluster.address}: ok\n")

    run(scene())


def test_a_name_of_its_own_is_asked_for_and_checked(keys: Keys) -> None:
    pair = keys.ca.sign("elsewhere", "kafka.example")
    asked: list[str | None] = []

    async def scene() -> None:
        context = serving(pair)
        context.sni_callback = lambda _, name, __: asked.append(name)
        options = keys.to_broker(broker_tls_server_name="kafka.example")
        async with (
            stub_cluster((1, "", 0), tls=context) as cluster,
            gateway(cluster.address, Gateway, **options) as gate,
        ):
            await until(lambda: gate.health().state == "ready")

    run(scene())
    assert asked == ["kafka.example"]


def test_a_broker_without_tls_is_named_as_such(keys: Keys) -> None:
    async def scene() -> None:
        def closing(_data: bytes) -> bytes:
            broker.writers[0].close()
            return b""

        tls = BrokerTls(config(bootstrap="k:1", **keys.to_broker()))
        async with stub_broker(closing) as broker:
            with pytest.raises(BootstrapError) as caught:
                await ask(Address("127.0.0.1", broker.port), tls)
        assert str(caught.value) == (
            f"{broker.address}: closed in the TLS handshake: is this its TLS port? If it is not, leave out "
            "--broker-tls"
        )
        async with stub_broker(lambda _: b"HTTP/1.1 400 Bad Request\r\n\r\n") as broker:
            with pytest.raises(BootstrapError, match="it does not speak TLS there: name its TLS port, or "):
                await ask(Address("127.0.0.1", broker.port), tls)

    run(scene())


def test_a_broker_with_tls_is_named_as_such() -> None:
    async def scene() -> None:
        async with stub_broker(lambda _: bytes.fromhex("15030300020246")) as broker:
            with pytest.raises(BootstrapError) as caught:
                await ask(Address("127.0.0.1", broker.port))
        assert str(caught.value) == (
            f"{broker.address}: does not answer as Kafka does: it speaks TLS: give --broker-tls on"
        )

    run(scene())


@contextmanager
def _wants_certificates(keys: Keys) -> Iterator[int]:
    """A server that refuses clients without a certificate as brokers do: with an alert."""
    context = serving(keys.good)
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(keys.ca.file)

    def refuse() -> None:
        while True:
            try:
                sock, _ = listener.accept()
            except OSError:
                return
            with context.wrap_socket(sock, server_side=True, do_handshake_on_connect=False) as secured:
                try:
                    secured.do_handshake()
                except ssl.SSLError:
                    socket.socket.shutdown(secured, socket.SHUT_WR)  # a reset would overtake the alert
                    secured.settimeout(0.1)
                    with suppress(OSError):
                        while secured.recv(4096):
                            pass

    with socket.create_server(("127.0.0.1", 0)) as listener:
        Thread(target=refuse, daemon=True).start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)


def test_a_broker_that_wants_a_client_certificate_says_so(keys: Keys) -> None:
    line = (
        "it refuses us in the TLS handshake (certificate required): does it want a client certificate? Give "
        "one that it accepts as --broker-tls-cert and --broker-tls-key"
    )

    async def scene(port: int) -> None:
        with pytest.raises(BootstrapError) as caught:
            await ask(Address("127.0.0.1", port), BrokerTls(config(bootstrap="k:1", **keys.to_broker())))
        assert str(caught.value) == f"127.0.0.1:{port}: {line}"
        async with gateway(f"127.0.0.1:{port}", WireGateway, **keys.to_broker()) as gate:
            gate.reach.troubles.reached(None, monotonic())
            async with client(gate.listen.port) as (reader, writer):
                writer.write(b"x")
                assert await reader.read() == b""
            await until(lambda: gate.reach.troubles.of(None) == f"127.0.0.1:{port}: {line}")

    with _wants_certificates(keys) as port:
        run(scene(port))


def test_a_broker_that_refuses_us_after_the_handshake_stays_unreachable(keys: Keys) -> None:
    """In TLS 1.3 each connection stands before it is refused: that is no sign of being reachable."""

    async def scene(port: int) -> None:
        async with gateway(f"127.0.0.1:{port}", WireGateway, **keys.to_broker()) as gate:
            gate.reach.answered = True
            with capture_logs() as lines:
                for _ in range(3):
                    async with client(gate.listen.port) as (reader, writer):
                        writer.write(b"x")
                        assert await reader.read() == b""
                    await until(lambda: not gate.links)
            assert [line["event"] for line in lines] == ["bootstrap unreachable, trying again"]
            assert gate.health().reasons[0] == "no broker is reachable"

    with _wants_certificates(keys) as port:
        run(scene(port))


def test_a_client_that_leaves_amid_an_answer_is_no_trouble_of_the_broker(keys: Keys) -> None:
    async def scene() -> None:
        with capture_logs() as lines:
            async with (
                stub_broker(lambda _: bytes(20_000_000), tls=serving(keys.good)) as broker,
                gateway(broker.address, WireGateway, **keys.to_broker(), **keys.to_client()) as gate,
            ):
                for orderly in (True, False):
                    async with client(gate.listen.port, keys.trust(), "localhost") as (reader, writer):
                        writer.write(b"x")
                        await reader.readexactly(100_000)
                        if orderly:
                            writer.close()
                    await until(lambda: not gate.links and not broker.open)
        assert lines == []

    run(scene())


def test_a_client_certificate_is_shown_to_the_broker(keys: Keys) -> None:
    mine = keys.ca.sign("mine")

    async def scene() -> None:
        context = serving(keys.good)
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(keys.ca.file)
        options = keys.to_broker(broker_tls_cert=str(mine.cert), broker_tls_key=str(mine.key))
        async with (
            stub_cluster((1, "", 0), tls=context) as cluster,
            gateway(cluster.address, Gateway, **options) as gate,
        ):
            await until(lambda: gate.health().state == "ready")

    run(scene())


def test_a_client_in_plain_text_is_told_of_and_costs_no_other(keys: Keys) -> None:
    async def scene() -> None:
        async with (
            stub_broker() as broker,
            gateway(broker.address, WireGateway, **keys.to_client()) as gate,
            client(gate.listen.port, keys.trust(), "localhost") as (reader, writer),
        ):
            with capture_logs() as lines:
                async with client(gate.listen.port) as (plain_reader, plain_writer):
                    plain_writer.write(request(ApiKey.API_VERSIONS, 0, 1))
                    with pytest.raises(ConnectionError):
                        raise ConnectionResetError if await plain_reader.read() == b"" else AssertionError
            assert [(line["event"], line["reason"]) for line in lines] == [
                (
                    "TLS handshake of a client failed",
                    "the client does not speak TLS: with --tls-cert its security.protocol is SSL or SASL_SSL",
                )
            ]
            assert gate.faults["client"] == 1
            writer.write(b"on")
            assert await reader.readexactly(2) == b"on"

    run(scene())


def test_a_client_that_refuses_our_certificate_is_told_of(keys: Keys) -> None:
    def refuse(port: int) -> None:
        strange = ssl.create_default_context(cafile=keys.other.file)
        with socket.create_connection(("127.0.0.1", port)) as sock, pytest.raises(ssl.SSLError):
            strange.wrap_socket(sock, server_hostname="localhost")

    async def scene() -> None:
        async with stub_broker() as broker, gateway(broker.address, WireGateway, **keys.to_client()) as gate:
            with capture_logs() as lines:
                await asyncio.to_thread(refuse, gate.listen.port)
                await until(lambda: lines)
            assert lines[0]["reason"] == (
                "the client refuses the certificate of --tls-cert (unknown ca): give it the CA and a name"
            )

    run(scene())


def test_files_that_cant_be_used_are_one_line_and_code_2(
    keys: Keys, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    secret = keys.ca.sign("secret", passphrase="hunter2")
    text = tmp_path / "text"
    text.write_text("no PEM")
    good, nowhere, other = keys.good, tmp_path / "nowhere", keys.stranger.key
    cases = [
        (["--tls-cert", nowhere], f"--tls-cert {nowhere}: No such file or directory"),
        (
            ["--tls-cert", good.cert, "--tls-key", nowhere],
            f"--tls-key {nowhere}: No such file or directory",
        ),
        (
            ["--tls-cert", good.cert, "--tls-key", other],
            f"--tls-cert {good.cert} and --tls-key {other}: the key is not that of the certificate",
        ),
        (
            ["--tls-cert", secret.cert, "--tls-key", secret.key],
            (
                f"--tls-cert {secret.cert} and --tls-key {secret.key}: the key is encrypted; give one "
                "without a passphrase"
            ),
        ),
        (
            ["--broker-tls", "on", "--broker-tls-ca", nowhere],
            f"--broker-tls-ca {nowhere}: No such file or directory",
        ),
        (
            ["--broker-tls", "on", "--broker-tls-ca", text],
            f"--broker-tls-ca {text}: no certificate in PEM there (no certificate or crl found)",
        ),
    ]
    for options, line in cases:
        for check in ([], ["--check"]):
            written = [str(option) for option in options]
            assert main(["proxy", "--bootstrap", "127.0.0.1:1", "--admin", "off", *written, *check]) == 2
            assert capsys.readouterr().err == f"fetchgate proxy: {line}\n"


def test_a_file_that_is_no_certificate_names_both_options(
    keys: Keys, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = tmp_path / "text"
    text.write_text("no PEM")

    assert (
        main(["proxy", "--bootstrap", "k:1", "--tls-cert", str(text), "--tls-key", str(keys.good.key)]) == 2
    )

    said = capsys.readouterr().err
    named = f"--tls-cert {text} and --tls-key {keys.good.key}"
    assert said.startswith(f"fetchgate proxy: {named}: give a certificate and its key in PEM")
    assert said.count("\n") == 1


# -- files that change


@pytest.fixture
def own(keys: Keys, tmp_path: Path) -> Pair:
    """A certificate in files that a test may change."""
    pair = Pair(tmp_path / "own.pem", tmp_path / "own.key")
    _put(keys.ca.sign("first"), pair)
    return pair


def _put(new: Pair, into: Pair) -> None:
    for source, target in ((new.key, into.key), (new.cert, into.cert)):
        aside = target.with_suffix(".new")
        aside.write_text(source.read_text())
        aside.replace(target)


def _shown(writer: asyncio.StreamWriter) -> str:
    """The common name of the certificate that a client was shown."""
    certificate = writer.get_extra_info("ssl_object").getpeercert()
    return str(dict(field[0] for field in certificate["subject"])["commonName"])


@BOTH_LOOPS
def test_a_new_certificate_is_for_new_connections(
    keys: Keys, own: Pair, plain: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shell, "TICK_SECONDS", 0.02)
    options = {"tls_cert": str(own.cert), "tls_key": str(own.key)}

    async def scene() -> None:
        with capture_logs() as lines:
            async with stub_broker() as broker, gateway(broker.address, WireGateway, **options) as gate:
                port = gate.listen.port
                async with client(port, keys.trust(), "localhost") as (reader, writer):
                    assert _shown(writer) == "first"
                    _put(keys.ca.sign("second"), own)
                    await until(lambda: lines)
                    async with client(port, keys.trust(), "localhost") as (_, other):
                        assert _shown(other) == "second"
                    writer.write(b"still here")
                    assert await reader.readexactly(10) == b"still here"
        assert [(line["event"], line["side"]) for line in lines] == [("certificates reloaded", "client")]

    run(scene(), plain=plain)


def test_a_bad_new_file_changes_nothing_and_is_told_of(keys: Keys, own: Pair) -> None:
    options = {"tls_cert": str(own.cert), "tls_key": str(own.key)}

    async def scene() -> None:
        async with (
            stub_cluster((1, "", 0)) as cluster,
            gateway(cluster.address, Gateway, **options) as gate,
        ):
            await until(lambda: gate.health().state == "ready")
            own.cert.write_text(keys.ca.sign("second").chain)  # its key has not come yet
            with capture_logs() as lines:
                gate.follow_files()
                gate.follow_files()
            reason = (
                f"--tls-cert {own.cert} and --tls-key {own.key}: the key is not that of the certificate; "
                "what was read before stays in use"
            )
            assert [(line["event"], line["reason"]) for line in lines] == [
                ("certificates not reloaded", reason)
            ]
            assert (gate.health().state, gate.health().reasons) == ("degraded", [reason])
            async with client(gate.listen.port, keys.trust(), "localhost") as (_, writer):
                assert _shown(writer) == "first"

            own.cert.unlink()
            gate.follow_files()
            assert gate.health().reasons == [
                f"--tls-cert {own.cert}: No such file or directory; what was read before stays in use"
            ]
            _put(keys.ca.sign("third"), own)
            gate.follow_files()
            assert gate.health().state == "ready"
            async with client(gate.listen.port, keys.trust(), "localhost") as (_, writer):
                assert _shown(writer) == "third"

    run(scene())


def test_a_new_ca_is_for_new_connections_to_brokers(keys: Keys, tmp_path: Path) -> None:
    trusted = tmp_path / "trusted.pem"
    trusted.write_text(keys.other.file.read_text())

    async def scene() -> None:
        async with (
            stub_broker(tls=serving(keys.good)) as broker,
            gateway(broker.address, WireGateway, **keys.to_broker(broker_tls_ca=str(trusted))) as gate,
        ):
            async with client(gate.listen.port) as (reader, _):
                assert await reader.read() == b""
            trusted.write_text(keys.ca.file.read_text())
            gate.follow_files()
            async with client(gate.listen.port) as (reader, writer):
                writer.write(b"x")
                assert await reader.readexactly(1) == b"x"

    run(scene())


# -- brokers told apart by name


@pytest.mark.parametrize(
    ("template", "name", "node_id"),
    [
        ("broker-{id}.kafka.local:9", "broker-3.kafka.local", 3),
        ("broker-{id}.kafka.local:9", "BROKER-0.Kafka.Local.", 0),
        ("broker-{id}.kafka.local:9", "broker-03.kafka.local", None),
        ("broker-{id}.kafka.local:9", "broker-.kafka.local", None),
        ("broker-{id}.kafka.local:9", "broker-3xkafka.local", None),
        ("broker-{id}.kafka.local:9", "kafka.local", None),
        ("b{id}.az{id}.kafka:9", "b12.az12.kafka", 12),
        ("b{id}.az{id}.kafka:9", "b12.az1.kafka", None),
        ("{id}:9", "77", 77),
        ("29100", "broker-3.kafka.local", None),
    ],
)
def test_a_name_tells_the_broker(template: str, name: str, node_id: int | None) -> None:
    assert BrokerPorts.parse(template).called(name) == node_id


@pytest.mark.parametrize("one_port", [True, False])
def test_brokers_share_a_port_and_are_told_apart_by_name(keys: Keys, tmp_path: Path, one_port: bool) -> None:
    names = ["kafka.local", *(f"broker-{number}.kafka.local" for number in (1, 2, 9))]
    pair = Authority(tmp_path).sign("wide", *names)
    trust = ssl.create_default_context(cafile=tmp_path / "ca.pem")
    first = free_ports(2)
    shared = first if one_port else first + 1
    options = {
        "listen": f"127.0.0.1:{first}",
        "broker_ports": f"broker-{{id}}.kafka.local:{shared}",
        "tls_cert": str(pair.cert),
        "tls_key": str(pair.key),
    }

    async def called(name: str, port: int) -> bytes:
        async with client(port, trust, name) as (reader, writer):
            writer.write(request(ApiKey.LIST_GROUPS, 0, 9))
            return await frame(reader)

    async def scene() -> None:
        async with stub_cluster() as two, stub_cluster((1, "", 0)) as one:
            one.brokers = (*one.brokers, (2, "127.0.0.1", two.port))
            one.others, two.others = lambda _: b"one", lambda _: b"two"
            async with gateway(one.address, Gateway, **options) as gate:
                await until(lambda: gate.health().state == "ready")
                async with client(first, trust, "kafka.local") as (reader, writer):
                    writer.write(request(ApiKey.METADATA, 1, 5, struct.pack(">i", 0)))
                    assert await frame(reader) == struct.pack(">i", 5) + metadata(
                        (1, "broker-1.kafka.local", shared), (2, "broker-2.kafka.local", shared)
                    )
                assert await called("broker-1.kafka.local", shared) == answer(9, b"one")[4:]
                assert await called("broker-2.kafka.local", shared) == answer(9, b"two")[4:]
                assert await called("kafka.local", first) == answer(9, b"one")[4:]
                with capture_logs() as lines, pytest.raises(asyncio.IncompleteReadError):
                    await called("broker-9.kafka.local", shared)
                assert next(line["reason"] for line in lines if "reason" in line) == (
                    "a client asked for broker-9.kafka.local: no such broker is known (yet)"
                )
                assert gate.health().state == "ready"

    run(scene())


def test_a_shared_port_that_is_taken_degrades(keys: Keys) -> None:
    first = free_ports(2)
    options = keys.to_client() | {
        "listen": f"127.0.0.1:{first}",
        "broker_ports": f"broker-{{id}}.kafka.local:{first + 1}",
    }

    async def scene() -> None:
        async with stub_cluster((1, "", 0), (2, "", 0)) as cluster:
            with socket.create_server(("127.0.0.1", first + 1)):
                async with gateway(cluster.address, Gateway, **options) as gate:
                    taken = f"127.0.0.1:{first + 1} can't be bound: Address already in use"
                    reasons = [f"broker 1: {taken}", f"broker 2: {taken}"]
                    await until(lambda: gate.health().reasons == reasons)

    run(scene())


@pytest.mark.parametrize(
    ("options", "asked_for", "name"),
    [
        ({}, "", "10.0.0.1"),
        ({}, "kafka.example", "kafka.example"),
        ({"broker_tls_server_name": "other.example"}, "kafka.example", "other.example"),
    ],
)
def test_in_transparent_mode_the_name_that_a_client_asked_for_is_asked_of_the_broker(
    keys: Keys, options: dict[str, str], asked_for: str, name: str
) -> None:
    async def scene() -> None:
        configured = config(transparent="redirect", **keys.to_broker(**options))
        gate = Gateway(configured, asyncio.get_running_loop(), structlog.get_logger())
        link = Link(gate, None)
        link.asked_for = asked_for
        assert gate.tls_to(link, Address("10.0.0.1", 9093))["server_hostname"] == name

    run(scene())


def test_in_explicit_mode_each_broker_is_asked_for_by_its_own_host(keys: Keys) -> None:
    async def scene() -> None:
        configured = config(bootstrap="kafka:9093", **keys.to_broker())
        gate = Gateway(configured, asyncio.get_running_loop(), structlog.get_logger())
        link = Link(gate, 1)
        link.asked_for = "gate.example"
        assert gate.tls_to(link, Address("kafka1", 9093))["server_hostname"] == "kafka1"

    run(scene())
