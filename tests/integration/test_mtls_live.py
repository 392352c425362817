"""A gateway with mTLS for clients, TLS and a token for the admin endpoint, and a real broker."""

import http.client
import json
import socket
import ssl
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from tests.integration.bystander import until
from tools.certificates import Authority, Pair
from tools.gateway import GatewayProcess
from tools.kafka import Broker
from tools.kafka.ports import free_ports

TOKEN = "s3cret"


@pytest.fixture
def ca(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def _client(address: str, ca: Authority, pair: Pair | None) -> AdminClient:
    own = {"ssl.certificate.location": str(pair.cert), "ssl.key.location": str(pair.key)} if pair else {}
    options: dict[str, str | int | float | bool] = {
        "bootstrap.servers": address,
        "security.protocol": "SSL",
        "ssl.ca.location": str(ca.file),
    }
    return AdminClient(options | own | {"log_level": 0, "client.id": "mtls"})


def _get(address: str, path: str, ca: Authority, token: str) -> tuple[int, Any]:
    host, port = address.split(":")
    context = ssl.create_default_context(cafile=ca.file)
    connection = http.client.HTTPSConnection(host, int(port), timeout=60, context=context)
    connection.request("GET", path, headers={"Authorization": f"Bearer {token}"} if token else {})
    response = connection.getresponse()
    body = response.read()
    connection.close()
    return response.status, json.loads(body) if response.status == 200 and path == "/state" else None


def test_clients_show_certificates_and_who_watches_a_token(
    broker: Broker, ca: Authority, tmp_path: Path
) -> None:
    own, alice, stranger = ca.sign("gate"), ca.sign("alice"), Authority(tmp_path, "other").sign("stranger")
    token = tmp_path / "token"
    token.write_text(TOKEN)
    admin, metrics = (f"127.0.0.1:{port}" for port in (free_ports(), free_ports()))
    options = ["--tls-cert", str(own.cert), "--tls-key", str(own.key), "--client-ca", str(ca.file)]
    options += ["--admin-cert", str(own.cert), "--admin-key", str(own.key), "--admin-token-file", str(token)]
    options += ["--metrics", metrics]
    gateway = GatewayProcess(broker.address, *options, "--admin", admin)
    gateway.admin = metrics  # what is asked there needs neither TLS nor a token
    with gateway:
        client = _client(gateway.address, ca, alice)
        assert client.list_topics(timeout=60).brokers
        for wrong, said in (
            (None, "the client shows no certificate: with --client-ca it needs one"),
            (stranger, "the certificate that the client shows is not accepted"),
        ):
            refused = _client(gateway.address, ca, wrong)  # it connects again and again
            with pytest.raises(KafkaException):
                refused.list_topics(timeout=1)
            until(lambda said=said: said in gateway.log(), said)  # type: ignore[misc]  # bound here
            del refused
        assert gateway.metric("fetchgate_connections", side="client") >= 1
        assert _get(admin, "/readyz", ca, "")[0] == 200
        assert [_get(admin, "/state", ca, wrong)[0] for wrong in ("", "x")] == [401, 401]
        status, state = _get(admin, "/state", ca, TOKEN)
        assert (status, {each["client_subject"] for each in state["connections"]}) == (200, {"CN=alice"})
        assert state["config"]["client_ca"] == {"value": str(ca.file), "source": "flag"}
        assert TOKEN not in gateway.log() + json.dumps(state)
        top = [sys.executable, "-m", "proxy", "top", "--once", "--admin", f"https://{admin}"]
        top += ["--ca", str(ca.file), "--token-file", str(token)]
        shown = subprocess.run(top, capture_output=True, text=True, timeout=30, check=False)
        assert (shown.returncode, shown.stderr) == (0, "")
        assert "mtls" in shown.stdout
        token.write_text("another")
        until(lambda: _get(admin, "/state", ca, "another")[0] == 200, "the new token to count")
        del client
        assert gateway.stop() == 0


def _shown(port: int, ca: Authority) -> str:
    """Return the common name of a listener's certificate, for a client without a server name."""
    context = ssl.create_default_context(cafile=ca.file)
    context.check_hostname = False
    with socket.create_connection(("127.0.0.1", port), timeout=60) as sock, context.wrap_socket(sock) as tls:
        certificate: Any = tls.getpeercert()
        return str(dict(field[0] for field in certificate["subject"])["commonName"])


def test_a_broker_s_listener_shows_a_certificate_of_its_own(
    broker: Broker, ca: Authority, tmp_path: Path
) -> None:
    own, single = ca.sign("gate", "127.0.0.1"), tmp_path / "broker.pem"
    single.write_text((pair := ca.sign("of-the-broker", "127.0.0.1")).private + pair.chain)
    options = [
        "--tls-cert",
        str(own.cert),
        "--tls-key",
        str(own.key),
        "--tls-cert-of",
        f"1={single},9={single}",
    ]
    with GatewayProcess(broker.address, *options) as gateway:
        client = _client(gateway.address, ca, None)
        (listener,) = client.list_topics(timeout=60).brokers.values()
        client.describe_cluster(request_timeout=60).result()
        port = int(gateway.address.rpartition(":")[2])
        assert (_shown(port, ca), _shown(listener.port, ca)) == ("gate", "of-the-broker")
        single.write_text((pair := ca.sign("renewed", "127.0.0.1")).private + pair.chain)
        until(lambda: _shown(listener.port, ca) == "renewed", "the new certificate to be shown")
        expiry = {"certificate": "tls_cert_of", "broker": str(listener.id)}
        assert gateway.metric("fetchgate_certificate_expiry_timestamp_seconds", **expiry) > time.time()
        assert _client(f"127.0.0.1:{listener.port}", ca, None).list_topics(timeout=60).brokers
        del client
        assert gateway.stop() == 0
    checked = subprocess.run(
        [sys.executable, "-m", "proxy", "proxy", "--check", "--bootstrap", broker.address, *options],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert f"--tls-cert-of 9={single}: the certificate is valid until " in checked.stdout
