"""Certificates for the listeners of single brokers (``--tls-cert-of``)."""

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from proxy.net.tls import ClientTls
from proxy.server.gateway import Gateway
from proxy.text.options import ConfigError
from tests.shell import BOTH_LOOPS, client, config, gateway, run, stub_cluster, until
from tests.tls.secured import Keys
from tools.certificates import Pair
from tools.kafka.ports import free_ports


def combined(pair: Pair, file: Path) -> Path:
    """Write a certificate and its key into one file. Return the file."""
    file.write_text(pair.private + pair.chain)
    return file


def options(keys: Keys, of: dict[int, Path], **more: str) -> dict[str, str]:
    listed = ",".join(f"{node_id}={file}" for node_id, file in of.items())
    return keys.to_client() | {"tls_cert_of": listed} | more


async def shown(keys: Keys, port: int, name: str) -> str:
    """Connect with a server name (SNI). Return the common name of the certificate that the gateway
    presents.
    """
    trust = keys.trust()
    trust.check_hostname = False
    async with client(port, trust, name) as (_, writer):
        certificate = writer.get_extra_info("ssl_object").getpeercert()
        return str(dict(field[0] for field in certificate["subject"])["commonName"])


@BOTH_LOOPS
def test_a_listener_shows_the_certificate_of_its_broker(keys: Keys, tmp_path: Path, plain: bool) -> None:
    own = combined(keys.ca.sign("of-one"), tmp_path / "one.pem")

    async def scene() -> None:
        async with stub_cluster() as two, stub_cluster((1, "", 0)) as one:
            one.brokers = (*one.brokers, (2, "127.0.0.1", two.port))
            async with gateway(one.address, Gateway, **options(keys, {1: own, 7: own})) as gate:
                await until(lambda: gate.health().state == "ready")
                port = gate.listen.port
                for name in ("localhost", "of-one"):  # whatever it asks for
                    names = [await shown(keys, port + at, name) for at in (0, 2, 3)]
                    assert names == ["good", "of-one", "good"]

    run(scene(), plain=plain)


@BOTH_LOOPS
def test_a_server_name_selects_the_certificate_where_brokers_share_a_port(
    keys: Keys, tmp_path: Path, plain: bool
) -> None:
    of = {number: combined(keys.ca.sign(f"of-{number}"), tmp_path / f"{number}.pem") for number in (1, 2)}
    first = free_ports(1)
    one_port = {"listen": f"127.0.0.1:{first}", "broker_ports": f"broker-{{id}}.kafka.local:{first}"}

    async def scene() -> None:
        async with (
            stub_cluster((1, "", 0)) as cluster,
            gateway(cluster.address, Gateway, **options(keys, of, **one_port)) as gate,
        ):
            await until(lambda: gate.health().state == "ready")
            assert await shown(keys, first, "broker-1.kafka.local") == "of-1"
            assert await shown(keys, first, "broker-2.kafka.local") == "of-2"
            assert await shown(keys, first, "broker-3.kafka.local") == "good"
            assert await shown(keys, first, "kafka.local") == "good"

    run(scene(), plain=plain)


async def test_its_file_is_read_again_and_its_end_is_told(keys: Keys, tmp_path: Path) -> None:
    own = combined(keys.ca.sign("first"), tmp_path / "own.pem")

    async with (
        stub_cluster((1, "", 0)) as cluster,
        gateway(cluster.address, Gateway, **options(keys, {1: own})) as gate,
    ):
        await until(lambda: gate.health().state == "ready")
        port = gate.listen.port + 2
        assert await shown(keys, port, "localhost") == "first"
        combined(keys.ca.sign("second"), own)
        gate.follow_files()
        assert await shown(keys, port, "localhost") == "second"
        own.write_text("")
        gate.follow_files()
        (reason,) = gate.health().reasons
        assert reason.startswith(f"--tls-cert-of 1={own}: ")
        assert reason.endswith("; the earlier certificates stay in use")
        combined(keys.ca.sign("old", days=(-0.9, -0.1)), own)
        with capture_logs() as lines:
            gate.follow_files()
            gate.follow_files()
        (reason,) = gate.health().reasons
        assert reason.startswith(f"--tls-cert-of 1={own}: the certificate expired at ")
        assert [line["reason"] for line in lines if "reason" in line] == [reason]


async def test_one_wrong_file_of_clients_cas_is_told_once(keys: Keys, tmp_path: Path) -> None:
    own = combined(keys.ca.sign("first"), tmp_path / "own.pem")
    ca = tmp_path / "clients.pem"
    ca.write_text(keys.good.chain)

    of = {1: own, 2: own, 3: own}
    async with (
        stub_cluster((1, "", 0)) as cluster,
        gateway(cluster.address, Gateway, **options(keys, of, client_ca=str(ca))) as gate,
    ):
        await until(lambda: gate.health().state == "ready")
        ca.write_text("half a file")
        with capture_logs() as lines:
            gate.follow_files()
        (reason,) = gate.health().reasons
        assert reason.startswith(f"--client-ca {ca}: ")
        assert reason.endswith("; the earlier certificates stay in use")
        assert [line["reason"] for line in lines] == [reason]


def test_what_can_not_be_used_is_named(keys: Keys, tmp_path: Path) -> None:
    for file, said in (
        (tmp_path / "none.pem", "none.pem: No such file or directory"),
        (keys.good.cert, "give a certificate and its key in PEM"),
    ):
        with pytest.raises(ConfigError, match=said) as error:
            ClientTls(config(bootstrap="k:1", **options(keys, {3: file})))
        assert str(error.value).startswith(f"--tls-cert-of 3={file}: ")
