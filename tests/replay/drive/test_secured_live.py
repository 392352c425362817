"""Replay plays captures with a real broker that requires TLS, a login, or both."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._scram import (
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from replay.cli import main
from replay.drive.options import PASSWORD_VARIABLE
from tools.certificates import Authority
from tools.gateway import GatewayProcess
from tools.kafka import Broker

pytestmark = pytest.mark.integration

CAPTURE = Path(__file__).parents[3] / "captures" / "librdkafka-100p.pcap"
USER, PASSWORD = "alice", "geheim-Wm8Qv3zK1xTn"
REAUTH_MS = 6000
"""The time after which a broker requires a new login, in milliseconds.

If a busy machine delays the new login for longer than this, the broker closes the connection.
"""


@dataclass(frozen=True)
class Secured:
    broker: Broker
    ca: Authority

    def to(self, listener: str) -> str:
        return f"127.0.0.1:{self.broker.port_of(listener)}"


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder = tmp_path_factory.mktemp("secured")
    ca = Authority(folder)
    own = ca.sign("kafka")
    store = folder / "both.pem"
    store.write_text(own.private + own.chain)
    jaas = "org.apache.kafka.common.security"
    properties: dict[str, object] = {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": store,
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": ca.file,
        "listener.name.ssl.ssl.client.auth": "required",
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
    }
    for listener in ("sasl_ssl", "sasl_plaintext"):
        for mechanism, module in (
            ("plain", f'plain.PlainLoginModule required user_{USER}="{PASSWORD}"'),
            ("scram-sha-256", "scram.ScramLoginModule required"),
            ("scram-sha-512", "scram.ScramLoginModule required"),
        ):
            name = f"listener.name.{listener}.{mechanism}"
            properties[f"{name}.sasl.jaas.config"] = f"{jaas}.{module};"
    # With it on all, a busy machine would end logins whose end is not tested.
    properties["listener.name.sasl_plaintext.plain.connections.max.reauth.ms"] = REAUTH_MS
    listeners = dict.fromkeys(("SASL_SSL", "SASL_PLAINTEXT", "SSL"))
    with Broker(listeners=listeners, properties=properties) as broker:
        client = AdminClient({"bootstrap.servers": broker.address})
        for each in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
            wanted = UserScramCredentialUpsertion(USER, ScramCredentialInfo(each, 4096), PASSWORD.encode())
            client.alter_user_scram_credentials([wanted])[USER].result(20)
        yield Secured(broker, ca)


Drive = Callable[..., tuple[int, str, str]]


@pytest.fixture
def drive(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Drive:
    """Return a function that replays the capture. It returns the exit code, the output and the error output.

    The function checks that neither output contains the password.
    """
    monkeypatch.setenv(PASSWORD_VARIABLE, PASSWORD)

    def driving(*arguments: str) -> tuple[int, str, str]:
        code = main(["drive", str(CAPTURE), "--max-wait", "0", "--create-topics", *arguments])
        told = capsys.readouterr()
        assert PASSWORD not in told.out + told.err
        return code, told.out, told.err

    return driving


def played(out: str) -> dict[str, Any]:
    report: dict[str, Any] = json.loads(out)
    (found,) = [row for row in report["figures"] if (row["side"], row["api"]) == ("target", "Fetch")]
    assert report["connection_errors"] == {}
    assert (found["sent"], found["answered"], found["failed"]) == (322, 322, 0)
    return report


WARNING = (
    "fetchgate replay drive: with SASL_PLAINTEXT and PLAIN the password can be read on the network; "
    "SASL_SSL encrypts it\n"
)


@pytest.mark.parametrize(
    ("protocol", "mechanism"),
    [
        ("SASL_SSL", "SCRAM-SHA-512"),
        *(
            pytest.param(*case, marks=pytest.mark.nightly)
            for case in product(["SASL_SSL", "SASL_PLAINTEXT"], ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
            if case != ("SASL_SSL", "SCRAM-SHA-512")
        ),
    ],
)
def test_every_mechanism_with_and_without_tls(
    drive: Drive, secured: Secured, protocol: str, mechanism: str
) -> None:
    options = ["--security-protocol", protocol, "--sasl-mechanism", mechanism, "--sasl-username", USER]
    if protocol == "SASL_SSL":
        options += ["--broker-tls-ca", str(secured.ca.file)]
    code, out, err = drive("--target", secured.to(protocol), "--speed", "max", "--json", *options)

    warned = WARNING if (protocol, mechanism) == ("SASL_PLAINTEXT", "PLAIN") else ""
    assert (code, err) == (0, warned)
    played(out)


@pytest.mark.nightly
def test_a_client_certificate(drive: Drive, secured: Secured) -> None:
    pair = secured.ca.sign("client")
    options = ["--security-protocol", "SSL", "--broker-tls-ca", str(secured.ca.file)]
    own = ["--broker-tls-cert", str(pair.cert), "--broker-tls-key", str(pair.key)]
    code, out, err = drive("--target", secured.to("SSL"), "--speed", "max", "--json", *options, *own)

    assert (code, err) == (0, "")
    played(out)

    code, _, err = drive("--target", secured.to("SSL"), "--speed", "max", "--json", *options)
    assert code == 1
    assert f"--target {secured.to('SSL')}: TLS: " in err


def test_a_login_that_ends_is_made_again_in_time(drive: Drive, secured: Secured) -> None:
    """Before the login of a connection expires, replay opens a new connection and logs in.

    This takes 14 s. A login is valid for 6 s, then the broker closes the connection (KIP-368).
    """
    options = ["--security-protocol", "SASL_PLAINTEXT", "--sasl-mechanism", "PLAIN", "--sasl-username", USER]
    target = secured.to("SASL_PLAINTEXT")
    code, out, err = drive("--target", target, "--speed", "0.7", "--json", *options)

    assert (code, err) == (0, WARNING)
    assert played(out)["lost"] == {"target": 0}


@pytest.mark.nightly
def test_a_gateway_in_plain_text_beside_its_broker_with_tls(drive: Drive, secured: Secured) -> None:
    tls = ("--broker-tls", "on", "--broker-tls-ca", str(secured.ca.file))
    login = ["--sasl-mechanism", "SCRAM-SHA-512", "--sasl-username", USER]
    protocols = ["--security-protocol", "SASL_PLAINTEXT", "--against-security-protocol", "SASL_SSL"]
    with GatewayProcess(secured.to("SASL_SSL"), *tls) as gateway:
        sides = ["--target", gateway.address, "--against", secured.to("SASL_SSL"), "--admin", gateway.admin]
        ca = ["--broker-tls-ca", str(secured.ca.file)]
        code, out, err = drive(*sides, "--speed", "max", "--json", *protocols, *login, *ca)

    assert (code, err) == (0, ""), out
    assert played(out)["saving"]["saved_ratio"] > 0.9


def test_what_is_refused_is_one_line(drive: Drive, secured: Secured, monkeypatch: pytest.MonkeyPatch) -> None:
    login = ["--sasl-mechanism", "SCRAM-SHA-256", "--sasl-username", USER]
    ca = ["--broker-tls-ca", str(secured.ca.file)]
    plain, over_tls = secured.to("SASL_PLAINTEXT"), secured.to("SASL_SSL")
    say, see = "fetchgate replay drive: --target", "see --security-protocol"

    assert drive("--target", over_tls, "--security-protocol", "SASL_SSL", *login) == (
        1,
        "",
        f"{say} {over_tls}: its certificate is not valid: unable to get local issuer certificate\n",
    )
    assert drive("--target", plain, "--security-protocol", "SASL_SSL", *login, *ca) == (
        1,
        "",
        f"{say} {plain}: Connection reset by peer (does it speak plain text?)\n",
    )
    assert drive("--target", over_tls, "--security-protocol", "SASL_PLAINTEXT", *login) == (
        1,
        "",
        f"{say} {over_tls}: closed by the peer when asked for ApiVersions (does it require TLS? {see})\n",
    )
    assert drive("--target", plain) == (
        1,
        "",
        f"{say} {plain}: closed by the peer when asked for Metadata (does it require SASL? {see})\n",
    )
    monkeypatch.setenv(PASSWORD_VARIABLE, "wrong-" + PASSWORD[::-1])
    code, _, err = drive("--target", plain, "--security-protocol", "SASL_PLAINTEXT", *login)
    assert code == 1
    assert err.startswith(f"{say} {plain}: SASL SCRAM-SHA-256: error 58 SASL_AUTHENTICATION_FAILED: ")
    assert err.count("\n") == 1
