"""Each failure of TLS is logged in one line."""

import asyncio
import socket
import ssl
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Thread

import pytest
from cryptography import x509
from structlog.testing import capture_logs

from proxy.__main__ import main
from proxy.addresses import Address
from proxy.net import turns
from proxy.net.bootstrap import BootstrapError, ask
from proxy.net.endpoint import is_gone, unacknowledged, unread
from proxy.net.resolve import Resolver
from proxy.net.tls import BrokerTls
from proxy.protocol.api import ApiKey
from proxy.server import main as running
from proxy.server.gateway import Gateway
from proxy.telemetry import logs
from tests.shell import (
    BOTH_LOOPS,
    WireGateway,
    client,
    config,
    gateway,
    link_of,
    request,
    run,
    stub_broker,
    stub_cluster,
    until,
)
from tests.tls.secured import Keys, serving
from tools.certificates import Authority, Pair

WRONG: dict[str, tuple[Callable[[Keys], Pair], dict[str, str], str]] = {
    "expired": (
        lambda keys: keys.ca.sign("expired", days=(-0.9, -0.1)),
        {},
        "its certificate has expired: renew it at the broker, or set this machine's clock",
    ),
    "future": (
        lambda keys: keys.ca.sign("future", days=(0.1, 0.9)),
        {},
        "its certificate is not valid yet: replace it at the broker, or set this machine's clock",
    ),
    "wrong host": (
        lambda keys: keys.ca.sign("elsewhere", "kafka.example"),
        {},
        "its certificate is not for '127.0.0.1': set --broker-tls-server-name to one in it",
    ),
    "wrong name": (
        lambda keys: keys.good,
        {"broker_tls_server_name": "kafka.example"},
        "its certificate is not for 'kafka.example': set --broker-tls-server-name to one in it",
    ),
    "unknown CA": (
        lambda keys: keys.stranger,
        {},
        (
            "its certificate is not from a CA known here (unable to get local issuer certificate): "
            "give the CA's file as --broker-tls-ca"
        ),
    ),
}


@pytest.mark.usefixtures("_quick")
@pytest.mark.parametrize("case", WRONG)
async def test_a_certificate_that_is_not_in_order_is_one_line(keys: Keys, case: str) -> None:
    pair, options, line = WRONG[case]

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


@pytest.mark.parametrize("case", WRONG)
async def test_check_says_the_same(keys: Keys, case: str, capsys: pytest.CaptureFixture[str]) -> None:
    pair, options, line = WRONG[case]

    async with stub_cluster((1, "", 0), tls=serving(pair(keys))) as cluster:
        checked = config(bootstrap=cluster.address, **keys.to_broker(**options))
        assert await running._check(checked) == 1
    assert f"--bootstrap can't be used: {cluster.address}: {line}\n" in capsys.readouterr().out


async def test_check_asks_inside_tls(keys: Keys, capsys: pytest.CaptureFixture[str]) -> None:
    async with stub_cluster((1, "", 0), tls=serving(keys.good)) as cluster:
        assert await running._check(config(bootstrap=cluster.address, **keys.to_broker())) == 0
    assert f"The bootstrap {cluster.address} responded and named 1 broker.\n" in capsys.readouterr().out


@pytest.mark.parametrize("side", ["tls", "admin"])
@pytest.mark.parametrize(("days", "code"), [((-0.9, -0.1), 1), ((-0.9, 0.1), 0)])
async def test_check_says_until_when_the_own_certificate_is_valid(
    keys: Keys, days: tuple[float, float], code: int, side: str, capsys: pytest.CaptureFixture[str]
) -> None:
    own = keys.ca.sign("dated", days=days)
    ends = x509.load_pem_x509_certificate(own.cert.read_bytes()).not_valid_after_utc
    said = "the certificate expired at" if code else "the certificate is valid until"

    async with stub_cluster((1, "", 0)) as cluster:
        options = {f"{side}_cert": str(own.cert), f"{side}_key": str(own.key), "admin": "127.0.0.1:0"}
        assert await running._check(config(bootstrap=cluster.address, **options)) == code
    assert f"--{side}-cert {own.cert}: {said} {ends:%Y-%m-%d %H:%M} UTC" in capsys.readouterr().out


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


async def test_a_broker_without_tls_is_named_as_such(keys: Keys) -> None:
    def closing(_data: bytes) -> bytes:
        broker.writers[0].close()
        return b""

    tls = BrokerTls(config(bootstrap="k:1", **keys.to_broker()))
    async with stub_broker(closing) as broker:
        with pytest.raises(BootstrapError) as caught:
            await ask(Address("127.0.0.1", broker.port), Resolver(), tls)
    assert str(caught.value) == (
        f"{broker.address}: closed in the TLS handshake: is this its TLS port? If it is not, leave out "
        "--broker-tls"
    )
    async with stub_broker(lambda _: b"HTTP/1.1 400 Bad Request\r\n\r\n") as broker:
        with pytest.raises(BootstrapError, match="it does not speak TLS there: name its TLS port, or "):
            await ask(Address("127.0.0.1", broker.port), Resolver(), tls)


async def test_a_broker_with_tls_is_named_as_such() -> None:
    async with stub_broker(lambda _: bytes.fromhex("15030300020246")) as broker:
        with pytest.raises(BootstrapError) as caught:
            await ask(Address("127.0.0.1", broker.port), Resolver())
    assert str(caught.value) == (
        f"{broker.address}: does not respond as Kafka does: it speaks TLS: give --broker-tls on"
    )


@contextmanager
def _wants_certificates(keys: Keys) -> Iterator[int]:
    """Run a server that refuses clients without a certificate by a TLS alert, as brokers do.

    Yields:
        The server's port.
    """
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
                    # To close a socket with bytes unread sends a reset: a client that writes then never sees
                    # the alert. TLS reads nothing once it failed, so the bytes are read below it, to the end.
                    socket.socket.shutdown(secured, socket.SHUT_WR)
                    with suppress(OSError):
                        while socket.socket.recv(secured, 4096):
                            pass

    with socket.create_server(("127.0.0.1", 0)) as listener:
        Thread(target=refuse, daemon=True).start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize("turn_seconds", [turns.TURN_SECONDS, 1e-9], ids=["", "busy loop"])
def test_a_broker_that_wants_a_client_certificate_says_so(
    keys: Keys, turn_seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "TURN_SECONDS", turn_seconds)
    monkeypatch.setattr(turns, "SHARE_SECONDS", turn_seconds / 4)
    line = (
        "it refuses the gateway in the TLS handshake (certificate required): "
        "does it require a client certificate? "
        "Give one that it accepts as --broker-tls-cert and --broker-tls-key"
    )

    async def scene(port: int) -> None:
        with pytest.raises(BootstrapError) as caught:
            await ask(
                Address("127.0.0.1", port), Resolver(), BrokerTls(config(bootstrap="k:1", **keys.to_broker()))
            )
        assert str(caught.value) == f"127.0.0.1:{port}: {line}"
        async with gateway(f"127.0.0.1:{port}", WireGateway, **keys.to_broker()) as gate:
            gate.monitor.reach.reached(None)
            async with client(gate.listen.port) as (reader, writer):
                writer.write(b"x")
                assert await reader.read() == b""
            await until(lambda: gate.monitor.reach.of(None) == f"127.0.0.1:{port}: {line}")

    with _wants_certificates(keys) as port:
        run(scene(port))


def test_a_broker_that_refuses_us_after_the_handshake_stays_unreachable(keys: Keys) -> None:
    """A broker that refuses the gateway after the TLS handshake still counts as unreachable.

    With TLS 1.3, a connection exists before the broker refuses it. So a connection alone proves nothing.
    """

    async def scene(port: int) -> None:
        async with gateway(f"127.0.0.1:{port}", WireGateway, **keys.to_broker()) as gate:
            gate.monitor.reach.answered = True
            with capture_logs() as lines:
                for _ in range(3):
                    async with client(gate.listen.port) as (reader, writer):
                        writer.write(b"x")
                        assert await reader.read() == b""
                    await until(lambda: not gate.server.links)
            assert [line["event"] for line in lines] == ["bootstrap unreachable, trying again"]
            assert gate.health().reasons[0] == "no broker is reachable"

    with _wants_certificates(keys) as port:
        run(scene(port))


async def test_a_client_that_leaves_amid_a_response_is_no_trouble_of_the_broker(keys: Keys) -> None:
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
                await until(lambda: not gate.server.links and not broker.open)
    assert lines == []


async def test_a_client_certificate_is_shown_to_the_broker(keys: Keys) -> None:
    mine = keys.ca.sign("mine")

    context = serving(keys.good)
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(keys.ca.file)
    options = keys.to_broker(broker_tls_cert=str(mine.cert), broker_tls_key=str(mine.key))
    async with (
        stub_cluster((1, "", 0), tls=context) as cluster,
        gateway(cluster.address, Gateway, **options) as gate,
    ):
        await until(lambda: gate.health().state == "ready")


async def test_a_client_in_plain_text_is_reported_and_costs_no_other(keys: Keys) -> None:
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
                (
                    "the client does not speak TLS: "
                    "with --tls-cert its security.protocol must be SSL or SASL_SSL "
                    "(or a load balancer sends the PROXY protocol, which fetchgate does not read)"
                ),
            )
        ]
        (line,) = lines
        assert line["client"].startswith("127.0.0.1:")
        assert gate.server.faults["client"] == gate.monitor.tls_failures["client"] == 1
        writer.write(b"on")
        assert await reader.readexactly(2) == b"on"


def _greeting_with_a_name_that_is_not_ascii() -> bytes:
    """Build a ClientHello with a server name that is not ASCII.

    The name is put into a finished ClientHello, which TLS does not protect against changes.
    """
    outgoing = ssl.MemoryBIO()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    half = context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="broker-1.kafka")
    with suppress(ssl.SSLWantReadError):
        half.do_handshake()
    return outgoing.read().replace(b"broker-1", b"\xff\xfe\x1b[2J.\n")


@BOTH_LOOPS
def test_a_name_that_is_not_ascii_is_reported_in_one_line(
    keys: Keys, monkeypatch: pytest.MonkeyPatch, *, plain: bool
) -> None:
    reason = "the server name that the client sends (SNI) is not ASCII: the client must use an ASCII name"

    async def scene() -> None:
        async with (
            stub_broker() as broker,
            gateway(broker.address, WireGateway, **keys.to_client()) as gate,
        ):
            with capture_logs() as lines:
                async with client(gate.listen.port) as (reader, writer):
                    writer.write(_greeting_with_a_name_that_is_not_ascii())
                    with suppress(ConnectionError):
                        while await reader.read(4096):
                            pass
            assert [(line["event"], line["reason"]) for line in lines] == [
                ("TLS handshake of a client failed", reason)
            ]
            async with client(gate.listen.port, keys.trust(), "localhost") as (reader, writer):
                writer.write(b"on")
                assert await reader.readexactly(2) == b"on"

    monkeypatch.setattr(sys, "unraisablehook", logs.ignored)
    run(scene(), plain=plain)


REFUSED: dict[str, tuple[Callable[[Keys], Pair], Callable[[Keys], Authority], str]] = {
    "unknown CA": (
        lambda keys: keys.good,
        lambda keys: keys.other,
        "(unknown ca): the client must trust its CA, and connect to a name in the certificate",
    ),
    "wrong host": (
        lambda keys: keys.ca.sign("far", "kafka.example"),
        lambda keys: keys.ca,
        "(bad certificate): the client must trust its CA, and connect to a name in the certificate",
    ),
    "expired": (
        lambda keys: keys.ca.sign("old", days=(-0.9, -0.1)),
        lambda keys: keys.ca,
        "(certificate expired): renew it",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
async def test_a_client_that_refuses_our_certificate_is_reported(keys: Keys, case: str) -> None:
    own, trusted, remedy = REFUSED[case]
    pair = own(keys)

    def refuse(port: int) -> None:
        trust = ssl.create_default_context(cafile=trusted(keys).file)
        with socket.create_connection(("127.0.0.1", port)) as sock, pytest.raises(ssl.SSLError):
            trust.wrap_socket(sock, server_hostname="localhost")

    options = {"tls_cert": str(pair.cert), "tls_key": str(pair.key)}
    async with stub_broker() as broker, gateway(broker.address, WireGateway, **options) as gate:
        with capture_logs() as lines:
            await asyncio.to_thread(refuse, gate.listen.port)
            await until(lambda: lines)
        assert [line["reason"] for line in lines] == [
            f"the client refuses the certificate of --tls-cert {remedy}"
        ]


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
            f"--tls-cert {good.cert} and --tls-key {other}: the key does not belong to the certificate",
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
            f"--broker-tls-ca {text}: the file has no certificate in PEM (no certificate or crl found)",
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


@BOTH_LOOPS
def test_a_socket_that_is_closed_before_this_is_reported_has_nothing_unread(keys: Keys, plain: bool) -> None:
    """After a TLS connection is closed, its socket counts as having no unread bytes.

    asyncio reports the close a little later. In this time the TLS transport has no socket any more. Before
    the fix, the link was closed as a "defect".
    """

    async def scene() -> None:
        async with (
            stub_broker() as broker,
            gateway(broker.address, WireGateway, **keys.to_client()) as gate,
            client(gate.listen.port, keys.trust(), "localhost"),
        ):
            await until(lambda: gate.server.links and link_of(gate).has_broker)
            transport = link_of(gate).client.transport
            assert transport is not None
            transport.abort()
            while gate.server.links:
                last = unacknowledged(transport), unread(transport), is_gone(transport)
                await asyncio.sleep(0)
            assert last == (0, 0, False)

    run(scene(), plain=plain)
