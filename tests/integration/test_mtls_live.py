"""mTLS with clients, TLS and a token at the admin endpoint, with two workers before a real broker."""

import http.client
import json
import ssl
import subprocess
import sys
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
    connection = http.client.HTTPSConnection(host, int(port), timeout=10, context=context)
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
    options += ["--metrics", metrics, "--workers", "2"]
    gateway = GatewayProcess(broker.address, *options, "--admin", admin)
    gateway.admin = metrics  # what is asked there needs neither TLS nor a token
    with gateway:
        client = _client(gateway.address, ca, alice)
        assert client.list_topics(timeout=10).brokers
        for wrong in (None, stranger):
            with pytest.raises(KafkaException):
                _client(gateway.address, ca, wrong).list_topics(timeout=1)
        log = gateway.log()
        assert "the client shows no certificate: with --client-ca it needs one" in log
        assert "the certificate that the client shows is not accepted" in log
        assert gateway.metric("fetchgate_connections", side="client") >= 1
        assert _get(admin, "/readyz", ca, "")[0] == 200
        assert [_get(admin, "/state", ca, wrong)[0] for wrong in ("", "x")] == [401, 401]
        status, state = _get(admin, "/state", ca, TOKEN)
        assert (status, {each["client_subject"] for each in state["connections"]}) == (200, {"CN=alice"})
        assert state["config"]["client_ca"] == {"value": str(ca.file), "source": "flag"}
        assert TOKEN not in log + json.dumps(state)
        top = [sys.executable, "-m", "proxy", "top", "--once", "--admin", f"https://{admin}"]
        top += ["--ca", str(ca.file), "--token-file", str(token)]
        shown = subprocess.run(top, capture_output=True, text=True, timeout=30, check=False)
        assert (shown.returncode, shown.stderr) == (0, "")
        assert "mtls" in shown.stdout
        token.write_text("another")
        until(lambda: _get(admin, "/state", ca, "another")[0] == 200, "the new token to count")
        del client
        assert gateway.stop() == 0
