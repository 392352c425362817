"""TLS clients that must present a certificate: ``--client-ca`` (docs/users/security.md, review: mTLS)."""

import asyncio
import socket
import ssl
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from proxy.net.tls import MAX_SUBJECT, ClientTls, subject_of
from proxy.server.gateway import Gateway
from proxy.telemetry import state
from proxy.text.options import ConfigError
from tests.shell import (
    BOTH_LOOPS,
    WireGateway,
    client,
    config,
    gateway,
    link_of,
    run,
    stub_broker,
    until,
)
from tests.tls.secured import Keys
from tools.certificates import Pair


def _wanting(keys: Keys, ca: Path | None = None) -> dict[str, str]:
    return keys.to_client() | {"client_ca": str(ca or keys.ca.file)}


def _showing(keys: Keys, pair: Pair | None) -> ssl.SSLContext:
    context = keys.trust()
    if pair is not None:
        context.load_cert_chain(pair.cert, pair.key)
    return context


@BOTH_LOOPS
def test_the_subject_of_a_client_is_in_its_log_lines_and_in_the_state(keys: Keys, plain: bool) -> None:
    alice = keys.ca.sign("alice")

    async def scene() -> None:
        async with (
            stub_broker() as broker,
            gateway(broker.address, WireGateway, **_wanting(keys)) as gate,
            client(gate.listen.port, _showing(keys, alice), "localhost") as (reader, writer),
        ):
            writer.write(b"hello")
            assert await reader.readexactly(5) == b"hello"
            link = link_of(gate)
            assert link.log_fields["subject"] == "CN=alice"
            ((_, described),) = await state.connections(gate.server.links, 1)
            assert '"client_subject": "CN=alice"' in described

    run(scene(), plain=plain)


async def test_without_the_option_no_client_has_a_subject(keys: Keys) -> None:
    async with (
        stub_broker() as broker,
        gateway(broker.address, WireGateway, **keys.to_client()) as gate,
        client(gate.listen.port, _showing(keys, keys.good), "localhost") as (reader, writer),
    ):
        writer.write(b"hello")
        assert await reader.readexactly(5) == b"hello"
        assert "subject" not in link_of(gate).log_fields


async def _hello(port: int, tls: ssl.SSLContext) -> None:
    """Send a line and read it back.

    With TLS 1.3, a client sees only on a read that the server has refused its certificate.
    """
    async with client(port, tls, "localhost") as (reader, writer):
        writer.write(b"hello")
        assert await reader.readexactly(5) == b"hello"


@BOTH_LOOPS
@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("none", "the client shows no certificate: with --client-ca it needs one"),
        ("stranger", "the certificate that the client shows is not accepted (unable to get local issuer"),
        ("expired", "the certificate that the client shows is not accepted (certificate has expired)"),
    ],
)
def test_a_client_without_a_good_certificate_is_refused(
    keys: Keys, wrong: str, said: str, plain: bool
) -> None:
    pair = {
        "none": None,
        "stranger": keys.stranger,
        "expired": keys.ca.sign("expired-client", days=(-0.9, -0.1)),
    }[wrong]

    async def scene() -> None:
        with capture_logs() as lines:
            async with stub_broker() as broker, gateway(broker.address, Gateway, **_wanting(keys)) as gate:
                with pytest.raises((OSError, EOFError)):
                    await _hello(gate.listen.port, _showing(keys, pair))
                await until(lambda: gate.server.faults["client"])
                assert gate.server.account().authentication_failures == {"client": 1, "broker": 0}
                assert not gate.server.links
                assert b"hello" not in broker.received
        (line,) = [line for line in lines if line["event"] == "TLS handshake of a client failed"]
        assert line["reason"].startswith(said)

    run(scene(), plain=plain)


class _Client:
    """A blocking client that can resume its TLS session.

    All its connections use the same TLS context, as in real clients.
    """

    def __init__(self, keys: Keys, pair: Pair, version: ssl.TLSVersion) -> None:
        self._context = _showing(keys, pair)
        self._context.maximum_version = version
        self._session: ssl.SSLSession | None = None

    def asks(self, port: int) -> bool:
        """Send a line on a new connection, read it back, and return whether the TLS session was resumed."""
        with (
            socket.create_connection(("127.0.0.1", port)) as raw,
            self._context.wrap_socket(raw, server_hostname="localhost", session=self._session) as sock,
        ):
            sock.sendall(b"hello")
            if sock.recv(5) != b"hello":
                raise EOFError
            self._session = sock.session
            return bool(sock.session_reused)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_other_cas_apply_also_to_who_resumes_a_session(
    keys: Keys, version: ssl.TLSVersion, tmp_path: Path
) -> None:
    ca = tmp_path / "clients.pem"
    ca.write_bytes(keys.ca.file.read_bytes())
    alice = _Client(keys, keys.ca.sign("alice"), version)

    asks: Any = asyncio.get_running_loop().run_in_executor
    async with (
        stub_broker() as broker,
        gateway(broker.address, WireGateway, **_wanting(keys, ca)) as gate,
    ):
        assert not await asks(None, alice.asks, gate.listen.port)
        assert await asks(None, alice.asks, gate.listen.port)
        ca.write_bytes(keys.other.file.read_bytes())
        gate.follow_files()
        with pytest.raises((OSError, EOFError)):
            await asks(None, alice.asks, gate.listen.port)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_whose_certificate_is_revoked_in_the_file_is_locked_out(
    keys: Keys, version: ssl.TLSVersion, tmp_path: Path
) -> None:
    ca = tmp_path / "clients.pem"
    ca.write_text(keys.ca.file.read_text())
    pair = keys.ca.sign("alice")
    alice, bob = _Client(keys, pair, version), _Client(keys, keys.ca.sign("bob"), version)

    asks: Any = asyncio.get_running_loop().run_in_executor
    with capture_logs() as lines:
        async with (
            stub_broker() as broker,
            gateway(broker.address, WireGateway, **_wanting(keys, ca)) as gate,
        ):
            await asks(None, alice.asks, gate.listen.port)
            ca.write_text(keys.ca.file.read_text() + keys.ca.revoke(pair))
            gate.follow_files()
            with pytest.raises((OSError, EOFError)):
                await asks(None, alice.asks, gate.listen.port)
            await asks(None, bob.asks, gate.listen.port)
            # Nobody can be told from a revoked one by a list that is over.
            ca.write_text(keys.ca.file.read_text() + keys.ca.revoke(pair, days=(-1, -0.5)))
            gate.follow_files()
            with pytest.raises((OSError, EOFError)):
                await asks(None, bob.asks, gate.listen.port)
    revoked, ended = [line["reason"] for line in lines if line["event"] == "TLS handshake of a client failed"]
    assert revoked.endswith("(certificate revoked): a CRL in the file of --client-ca has it")
    assert ended.endswith(
        "(CRL has expired): if the file of --client-ca has a CRL, it needs a current one of each CA"
    )


async def test_a_ca_without_a_crl_beside_one_with_a_crl_is_told(keys: Keys, tmp_path: Path) -> None:
    ca = tmp_path / "clients.pem"
    ca.write_text(keys.ca.file.read_text() + keys.other.file.read_text() + keys.other.revoke())
    with capture_logs() as lines:
        async with (
            stub_broker() as broker,
            gateway(broker.address, WireGateway, **_wanting(keys, ca)) as gate,
        ):
            with pytest.raises((OSError, EOFError)):
                await _hello(gate.listen.port, _showing(keys, keys.ca.sign("alice")))
            await until(lambda: gate.server.faults["client"])
    (line,) = [line for line in lines if line["event"] == "TLS handshake of a client failed"]
    assert "it needs a current one of each CA" in line["reason"]


def test_a_file_without_certificates_is_told(keys: Keys) -> None:
    with pytest.raises(ConfigError, match=r"--client-ca .*good\.key: the file has no certificate in PEM"):
        ClientTls(config(bootstrap="k:1", **_wanting(keys, keys.good.key)))
    with pytest.raises(ConfigError, match="--client-ca /none: No such file or directory"):
        ClientTls(config(bootstrap="k:1", **_wanting(keys, Path("/none"))))


class _Transport:
    def __init__(self, *subject: tuple[tuple[str, str], ...]) -> None:
        self._certificate = {"subject": subject}

    def get_extra_info(self, name: str) -> object:
        assert name == "peercert"
        return self._certificate


@pytest.mark.parametrize(
    ("subject", "text"),
    [
        ([], ""),
        (
            [(("countryName", "DE"),), (("organizationName", "A, B"),), (("commonName", "alice"),)],
            "CN=alice,O=A\\, B,C=DE",
        ),
        ([(("commonName", "a"), ("userId", "1"))], "CN=a+UID=1"),
        ([(("commonName", " #x "),)], "CN=\\ #x\\ "),
        ([(("commonName", "#a=b"),)], "CN=\\#a=b"),
        ([(("commonName", 'q"\\<'),)], 'CN=q\\"\\\\\\<'),
        ([(("commonName", "a\nb\x1b"),)], "CN=a?b?"),
        ([(("emailAddress", "a@b"),)], "emailAddress=a@b"),
        ([(("commonName", "x" * 1000),)], "CN=" + "x" * (MAX_SUBJECT - 3)),
    ],
)
def test_a_subject_is_written_as_kafka_does(subject: list[tuple[tuple[str, str], ...]], text: str) -> None:
    assert subject_of(_Transport(*subject)) == text
