"""TLS to a real broker and to clients, and SASL through the gateway with every mechanism.

Fetches through the gateway use sessions.
"""

import asyncio
import base64
import gc
import hashlib
import hmac
import json
import os
import secrets
import socket
import ssl
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import pytest
from aiokafka import AIOKafkaConsumer  # type: ignore[import-untyped] # it has no types
from aiokafka.abc import AbstractTokenProvider  # type: ignore[import-untyped] # as above
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._scram import (
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from proxy.__main__ import main
from replay.capture.kafka.exchange import ConnectionEnd, Exchange
from tests.clients.runner import old_kafka_python
from tests.integration.bystander import PARTITIONS as BYSTANDER_PARTITIONS
from tests.integration.bystander import Bystander, until
from tests.integration.fetching import FETCHES_TO_SESSION, Fetcher, contents, same_content
from tests.replay.events import captured_events
from tools.certificates import Authority, Pair
from tools.gateway import GatewayProcess
from tools.kafka import Broker
from tools.kafka.admin import Admin
from tools.kafka.raw import BodyReader, RawConnection, frame, request, string

T = TypeVar("T")

TOPIC: Final = "secured"
IDLE: Final = "idle"
PARTITIONS: Final = 30
USER: Final = "alice"
PLAIN_PASSWORD: Final = "plain-Wm8Qv3zK1xTn"
SCRAM_PASSWORD: Final = "scram-Jd5Rb7yH2cFp"
OAUTH_USER: Final = "oauth-Zq4Ls9uG6eVk"
REAUTH_MS: Final = 3000
"""The session lifetime of a login in ms. If a busy machine delays a client's re-authentication for longer,
the client is disconnected."""
FETCH, METADATA, SASL_HANDSHAKE, SASL_AUTHENTICATE = 1, 3, 17, 36
EXPIRED, ELSEWHERE = "EXPIRED-SSL", "ELSEWHERE-SSL"
"""The names of two listeners whose certificates are invalid: one expired, one for another host."""
LASTING: Final = "SCRAM-SHA-512"
"""The mechanism whose logins do not end. With the others, librdkafka logs in again 0.3 s before the end: on a
busy machine it is late, and the broker disconnects it."""
MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", LASTING, "OAUTHBEARER")


def _base64(data: dict[str, object]) -> str:
    return base64.urlsafe_b64encode(json.dumps(data).encode()).decode().rstrip("=")


def _token() -> str:
    """Return an OAuth token without a signature (RFC 7515, A.5). The broker's own handler accepts it."""
    now = int(time.time())
    return f"{_base64({'alg': 'none'})}.{_base64({'sub': OAUTH_USER, 'iat': now, 'exp': now + 3600})}."


TOKEN: Final = _token()
_PLAIN_BYTES: Final = b"\0".join([b"", USER.encode(), PLAIN_PASSWORD.encode()])
SECRETS: Final = (
    PLAIN_PASSWORD,
    SCRAM_PASSWORD,
    TOKEN,
    TOKEN.split(".")[1],
    base64.b64encode(_PLAIN_BYTES).decode(),
)
"""Secrets that must not appear anywhere."""


@dataclass(frozen=True)
class Secured:
    """A broker that requires TLS and SASL, and the files for connecting to it."""

    broker: Broker
    ca: Authority
    own: Pair
    """The gateway's certificate toward clients."""
    client: Pair

    def to(self, listener: str) -> str:
        return f"127.0.0.1:{self.broker.port_of(listener)}"

    @property
    def tls_options(self) -> tuple[str, ...]:
        return ("--broker-tls", "on", "--broker-tls-ca", str(self.ca.file), "--log-level", "debug")


def _properties(ca: Authority, folder: Path) -> dict[str, object]:
    own = {
        "broker": ca.sign("kafka"),
        EXPIRED: ca.sign("expired", days=(-0.9, -0.1)),
        ELSEWHERE: ca.sign("elsewhere", "kafka.example"),
    }
    stores = {name: folder / f"{name}.both.pem" for name in own}
    for name, pair in own.items():
        stores[name].write_text(pair.private + pair.chain)
    jaas = "org.apache.kafka.common.security"
    users = f'username="{USER}" password="{PLAIN_PASSWORD}" user_{USER}="{PLAIN_PASSWORD}"'
    login = {
        "plain": f"{jaas}.plain.PlainLoginModule required {users};",
        "scram-sha-256": f"{jaas}.scram.ScramLoginModule required;",
        "scram-sha-512": f"{jaas}.scram.ScramLoginModule required;",
        "oauthbearer": f"{jaas}.oauthbearer.OAuthBearerLoginModule required "
        'unsecuredLoginStringClaim_sub="b";',
    }
    properties: dict[str, object] = {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": stores["broker"],
        f"listener.name.{EXPIRED.lower()}.ssl.keystore.location": stores[EXPIRED],
        f"listener.name.{ELSEWHERE.lower()}.ssl.keystore.location": stores[ELSEWHERE],
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": ca.file,
        "listener.name.ssl.ssl.client.auth": "required",
        "sasl.enabled.mechanisms": ",".join(MECHANISMS),
    }
    for mechanism, module in login.items():
        properties[f"listener.name.sasl_ssl.{mechanism}.sasl.jaas.config"] = module
        if mechanism != LASTING.lower():
            properties[f"listener.name.sasl_ssl.{mechanism}.connections.max.reauth.ms"] = REAUTH_MS
    return properties


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder = tmp_path_factory.mktemp("secured")
    ca = Authority(folder)
    listeners = dict.fromkeys(("SASL_SSL", "SSL", EXPIRED, ELSEWHERE))
    with Broker(listeners=listeners, properties=_properties(ca, folder)) as broker:
        with Admin(broker.address) as admin:
            for topic in (TOPIC, IDLE):
                admin.create_topic(topic, partitions=PARTITIONS)
        client = AdminClient({"bootstrap.servers": broker.address})
        for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
            credential = ScramCredentialInfo(mechanism, 4096)
            wanted = UserScramCredentialUpsertion(USER, credential, SCRAM_PASSWORD.encode())
            client.alter_user_scram_credentials([wanted])[USER].result(20)
        names = ["kafka.local", "127.0.0.1", "localhost", f"broker-{broker.node_id}.kafka.local"]
        yield Secured(broker, ca, ca.sign("gate", *names), ca.sign("client"))


@pytest.fixture(scope="module", params=["plain clients", "TLS clients"])
def gate(secured: Secured, request: pytest.FixtureRequest) -> Iterator[tuple[GatewayProcess, dict[str, Any]]]:
    """A gateway to the listener with TLS and SASL, and librdkafka's settings to reach it."""
    options, reach = list(secured.tls_options), {"security.protocol": "SASL_PLAINTEXT"}
    if request.param == "TLS clients":
        options += ["--tls-cert", str(secured.own.cert), "--tls-key", str(secured.own.key)]
        reach = {"security.protocol": "SASL_SSL", "ssl.ca.location": str(secured.ca.file)}
    with GatewayProcess(secured.to("SASL_SSL"), *options) as gateway:
        yield gateway, reach | {"bootstrap.servers": gateway.address}
        _assert_no_secret(gateway)


def _assert_quiet(gateway: GatewayProcess) -> None:
    """Check that the gateway's output and reports contain no secrets."""
    assert "session made" in gateway.log()
    _assert_no_secret(gateway)


def _assert_no_secret(gateway: GatewayProcess) -> None:
    told = gateway.log() + json.dumps(gateway.state()) + gateway._get("/metrics") + gateway._get("/readyz")
    for secret in SECRETS:
        assert secret not in told


def _login(mechanism: str) -> dict[str, Any]:
    if mechanism == "OAUTHBEARER":
        return {
            "sasl.mechanism": mechanism,
            "oauth_cb": lambda _: (TOKEN, time.time() + 3000, OAUTH_USER, {}),
        }
    password = PLAIN_PASSWORD if mechanism == "PLAIN" else SCRAM_PASSWORD
    return {"sasl.mechanism": mechanism, "sasl.username": USER, "sasl.password": password}


def _produce(config: dict[str, Any], *values: str) -> None:
    producer = Producer(config | {"enable.idempotence": True})  # it may be cut off, and send again
    for number, value in enumerate(values):
        producer.produce(TOPIC, value.encode(), partition=number % PARTITIONS)
    assert producer.flush(30) == 0


def _consumer(config: dict[str, Any], **more: Any) -> Consumer:
    consumer = Consumer(
        {"group.id": "g", "enable.auto.commit": False, "fetch.wait.max.ms": 50, "client.id": "rd"}
        | config
        | more
    )
    consumer.assign([TopicPartition(TOPIC, number, 0) for number in range(PARTITIONS)])
    return consumer


def _read_until(consumer: Consumer, wanted: set[str], *, seconds: float = 120) -> list[str]:
    """Consume until all wanted values were received, or the time in seconds is over. Return the values."""
    seen: list[str] = []
    deadline = time.monotonic() + seconds
    while not wanted <= set(seen) and time.monotonic() < deadline:
        message = consumer.poll(0.2)
        if message is not None and message.error() is None:
            seen.append((message.value() or b"").decode())
    return seen


def _incremental(gateway: GatewayProcess) -> float:
    return gateway.metric("fetchgate_fetches_total", side="broker", kind="incremental")


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_every_mechanism_passes_and_sessions_are_at_work(
    gate: tuple[GatewayProcess, dict[str, Any]], mechanism: str
) -> None:
    gateway, reach = gate
    config = reach | _login(mechanism)
    before = _incremental(gateway)
    values = {f"{mechanism} {gateway.port} {number}" for number in range(40)}
    consumer = _consumer(config)
    try:
        _produce(config, *values)
        seen = _read_until(consumer, values)
        deadline = time.monotonic() + 60
        while _incremental(gateway) <= before + 3 and time.monotonic() < deadline:
            consumer.poll(0.1)
    finally:
        consumer.close()

    assert sorted(value for value in seen if value in values) == sorted(values)
    assert _incremental(gateway) > before + 3
    _assert_quiet(gateway)


def test_librdkafka_authenticates_again_in_mid_stream(
    gate: tuple[GatewayProcess, dict[str, Any]], secured: Secured
) -> None:
    gateway, reach = gate
    config = reach | _login("PLAIN")
    producer = Producer(config | {"enable.idempotence": True})  # it may be cut off, too, and send again
    consumer = _consumer(config, **{"client.id": f"again-{gateway.port}"})
    sent: list[str] = []
    seen: list[str] = []
    ages = [0.0]
    deadline = time.monotonic() + 240
    try:
        # On a busy machine it may be late and be cut off. Then it connects again, and the age begins anew.
        while max(ages) <= 2 * REAUTH_MS / 1000 and time.monotonic() < deadline:
            sent.append(f"again {gateway.port} {len(sent)}")
            producer.produce(TOPIC, sent[-1].encode(), partition=len(sent) % PARTITIONS)
            producer.poll(0)
            seen += _read_until(consumer, {sent[-1]}, seconds=0.05)
            time.sleep(0.02)
            ages += [
                entry["age_seconds"]
                for entry in gateway.state()["connections"]
                if entry["client_id"] == f"again-{gateway.port}"
                and entry["broker_id"] == secured.broker.node_id
            ]
        assert producer.flush(30) == 0
        seen += _read_until(consumer, set(sent) - set(seen))
    finally:
        consumer.close()

    assert sorted(value for value in seen if value.startswith(f"again {gateway.port}")) == sorted(sent)
    assert max(ages) > 2 * REAUTH_MS / 1000  # the very connection that was authenticated again


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "OAUTHBEARER"])
def test_aiokafka_reads_while_its_credentials_run_out(secured: Secured, mechanism: str) -> None:
    values = {f"aio {mechanism} {number}" for number in range(60)}
    with GatewayProcess(secured.to("SASL_SSL"), *secured.tls_options) as gateway:
        reach = {"security.protocol": "SASL_PLAINTEXT", "bootstrap.servers": gateway.address}
        _produce(reach | _login("PLAIN"), *sorted(values)[:30])
        seen = _run_aiokafka(_aiokafka(gateway, reach, mechanism, values))
        assert _incremental(gateway) > 3
        _assert_quiet(gateway)
    assert sorted(value for value in seen if value in values) == sorted(values)


class _Tokens(AbstractTokenProvider):  # type: ignore[misc] # it has no types
    """Provides tokens to aiokafka."""

    async def token(self) -> str:
        return TOKEN

    def extensions(self) -> dict[str, str]:
        return {}


async def _aiokafka(
    gateway: GatewayProcess, reach: dict[str, Any], mechanism: str, values: set[str]
) -> list[str]:
    password = PLAIN_PASSWORD if mechanism == "PLAIN" else SCRAM_PASSWORD
    login: dict[str, Any] = {"sasl_plain_username": USER, "sasl_plain_password": password}
    if mechanism == "OAUTHBEARER":
        login = {"sasl_oauth_token_provider": _Tokens()}
    consumer = AIOKafkaConsumer(
        TOPIC,
        bootstrap_servers=gateway.address,
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism=mechanism,
        auto_offset_reset="earliest",
        fetch_max_wait_ms=50,
        **login,
    )
    seen: list[str] = []
    await consumer.start()
    try:
        produced = False
        began = time.monotonic()
        while not values <= set(seen) and time.monotonic() < began + 120:
            for records in (await consumer.getmany(timeout_ms=200)).values():
                seen += [record.value.decode() for record in records]
            if not produced and time.monotonic() > began + 1.5 * REAUTH_MS / 1000:
                await asyncio.to_thread(_produce, reach | _login("PLAIN"), *sorted(values)[30:])
                produced = True
    finally:
        await _stop(consumer)
    return seen


async def _stop(consumer: AIOKafkaConsumer) -> None:
    """Stop an aiokafka consumer, and close the connections that it would leave open.

    aiokafka does not support KIP-368, so the broker disconnects the consumer repeatedly. If this has just
    happened, the consumer's fetcher raises its own cancellation, and closes nothing. A connection that is
    being opened would also stay open. So this function holds aiokafka's connection lock: it waits for such a
    connection, and prevents new ones.
    """
    async with consumer._client._get_conn_lock:
        with suppress(asyncio.CancelledError):
            await consumer.stop()
        await consumer._client.close()


def _run_aiokafka(story: Coroutine[Any, Any, T]) -> T:
    """Run a test of aiokafka. Unclosed objects fail this test, not a later one."""
    try:
        return asyncio.run(story)
    finally:
        gc.collect()


def test_a_session_goes_on_over_authentication_in_mid_stream(
    gate: tuple[GatewayProcess, dict[str, Any]], secured: Secured
) -> None:
    gateway, reach = gate
    name = f"raw-{gateway.port}"
    # What a broker can do is forgotten with the client that it was told to: this one does not ask itself.
    until(lambda: not gateway.state()["connections"], "earlier clients to leave")
    with Fetcher(gateway.address, IDLE, PARTITIONS, client_id=name) as fetcher:
        _wrap(fetcher.connection, reach, secured)
        lifetime = _authenticate(fetcher.connection)
        assert 0 < lifetime <= REAUTH_MS
        first = fetcher.fetches()[0]
        before = _session_of(gateway, name)
        assert before["session_epoch"] > 0
        for _ in range(3):
            time.sleep(1.1)  # a broker takes offence at who authenticates more than once a second
            _authenticate(fetcher.connection)
            assert contents(fetcher.fetches(2)) == contents([first, first])
        after = _session_of(gateway, name)
    assert after["age_seconds"] > REAUTH_MS / 1000
    assert after["session_id"] == before["session_id"]
    assert after["session_epoch"] == before["session_epoch"] + 6


def _session_of(gateway: GatewayProcess, client_id: str) -> dict[str, Any]:
    (entry,) = (entry for entry in gateway.state()["connections"] if entry["client_id"] == client_id)
    return dict(entry)


def _wrap(connection: RawConnection, reach: dict[str, Any], secured: Secured) -> None:
    if "ssl.ca.location" in reach:
        context = ssl.create_default_context(cafile=secured.ca.file)
        connection.socket = context.wrap_socket(connection.socket, server_hostname="localhost")


def _authenticate(connection: RawConnection) -> int:
    """Send a handshake at v1 and authenticate at v2.

    Return the session lifetime in milliseconds (KIP-368).
    """
    assert BodyReader(connection.call(SASL_HANDSHAKE, 1, string("PLAIN"), "raw")).int16() == 0
    body = bytes([len(_PLAIN_BYTES) + 1]) + _PLAIN_BYTES + b"\0"
    response = connection.call(SASL_AUTHENTICATE, 2, body, "raw")
    assert response[:2] == b"\0\0"
    return int.from_bytes(response[-9:-1])


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_requests_after_a_handshake_v0_are_read(
    gate: tuple[GatewayProcess, dict[str, Any]], secured: Secured, mechanism: str
) -> None:
    """Metadata names the gateway, and a session is used."""
    gateway, reach = gate
    name = f"v0-{mechanism}-{gateway.port}"
    value = f"v0 {mechanism} {gateway.port}"
    _produce({"bootstrap.servers": secured.broker.address}, value)
    with Fetcher(secured.broker.address, TOPIC, PARTITIONS) as fetcher:
        direct = same_content(fetcher.fetch())
    with Fetcher(gateway.address, TOPIC, PARTITIONS, client_id=name) as fetcher:
        connection = fetcher.connection
        _wrap(connection, reach, secured)
        assert BodyReader(connection.call(SASL_HANDSHAKE, 0, string(mechanism), name)).int16() == 0
        _authenticate_bare(connection, mechanism)
        through = same_content(fetcher.fetch())
        brokers = BodyReader(connection.call(METADATA, 1, struct.pack(">i", 0), name))
        assert (brokers.int32(), brokers.int32()) == (1, secured.broker.node_id)
        host, port = brokers.string(), brokers.int32()
        assert f"{host}:{port}" == gateway.address_of(secured.broker.node_id)
        assert contents(fetcher.fetches()) == contents([fetcher.fetch()] * FETCHES_TO_SESSION)
        assert _session_of(gateway, name)["session_epoch"] > 0
        assert connection.versions()[SASL_HANDSHAKE] == (0, 1)
    assert through == direct
    assert value in str(through)
    assert gateway.metric("fetchgate_passthrough_total", reason="SASL handshake v0") == 0


CONSUME_OLD: Final = """
import sys, six
sys.modules |= {"kafka.vendor.six": six, "kafka.vendor.six.moves": six.moves}
from kafka import KafkaConsumer
address, topic, mechanism, user, password = sys.argv[1:]
consumer = KafkaConsumer(
    topic, bootstrap_servers=address, auto_offset_reset="earliest", fetch_max_wait_ms=50,
    consumer_timeout_ms=3000, security_protocol="SASL_PLAINTEXT", sasl_mechanism=mechanism,
    sasl_plain_username=user, sasl_plain_password=password,
)
for record in consumer:
    print(record.value.decode())
"""
"""Consumes with kafka-python 2.0.2, which always sends a handshake v0."""


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_kafka_python_2_has_sessions_after_its_handshake_v0(secured: Secured, mechanism: str) -> None:
    values = {f"old {mechanism} {number}" for number in range(40)}
    _produce({"bootstrap.servers": secured.broker.address}, *values)
    login = _login(mechanism)
    who = (mechanism, login["sasl.username"], login["sasl.password"])
    with GatewayProcess(secured.to("SASL_SSL"), *secured.tls_options) as gateway:
        command = [sys.executable, "-c", CONSUME_OLD, gateway.address, TOPIC, *who]
        environment = os.environ | old_kafka_python().environment
        out = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
        assert values <= set(out.splitlines())
        assert _incremental(gateway) > 3
        assert gateway.metric("fetchgate_passthrough_total", reason="SASL handshake v0") == 0
        _assert_quiet(gateway)


def test_replay_reads_the_requests_after_a_handshake_v0(secured: Secured, tmp_path: Path) -> None:
    fetches = 3
    options = [*secured.tls_options, "--sessions", "off", "--capture", str(tmp_path)]
    with GatewayProcess(secured.to("SASL_SSL"), *options) as gateway:
        for mechanism in MECHANISMS:
            with Fetcher(gateway.address, TOPIC, PARTITIONS) as fetcher:
                connection = fetcher.connection
                assert BodyReader(connection.call(SASL_HANDSHAKE, 0, string(mechanism), "raw")).int16() == 0
                _authenticate_bare(connection, mechanism)
                for _ in range(fetches):
                    fetcher.fetch()
        assert gateway.stop() == 0

    events = [*captured_events(tmp_path)]
    ends = [one for one in events if isinstance(one, ConnectionEnd) and one.headerless_bytes]
    tokens = {"PLAIN": 2, "OAUTHBEARER": 2}
    for side in (gateway.port, secured.broker.port_of("SASL_SSL")):
        of_side = [one for one in ends if one.broker.endswith(f":{side}")]
        counted = sorted(one.headerless_requests + one.headerless_responses for one in of_side)
        assert counted == sorted(tokens.get(mechanism, 4) for mechanism in MECHANISMS)
        assert {one.unframed_bytes + one.partial_bytes for one in of_side} == {0}
        names = {one.connection for one in of_side}
        exchanges = [one for one in events if isinstance(one, Exchange) and one.connection in names]
        read = [one for one in exchanges if one.api_key == FETCH and one.response_bytes]
        assert len(read) == fetches * len(MECHANISMS)


def _authenticate_bare(connection: RawConnection, mechanism: str) -> None:
    """Authenticate after a SaslHandshake v0.

    The SASL tokens have a length field but no Kafka header (KIP-43).
    """

    def say(token: bytes) -> bytes:
        connection.socket.sendall(frame(token))
        return connection.receive()

    if mechanism == "PLAIN":
        assert say(_PLAIN_BYTES) == b""
    elif mechanism == "OAUTHBEARER":
        assert say(f"n,,\1auth=Bearer {TOKEN}\1\1".encode()) == b""
    else:
        _scram(say, mechanism.removeprefix("SCRAM-").replace("-", ""))


def _scram(say: Callable[[bytes], bytes], digest: str) -> None:
    """Prove that the client knows the password, and check the broker's own proof (RFC 5802, 3)."""
    asked = f"n={USER},r={secrets.token_hex(8)}"
    told = say(b"n,," + asked.encode()).decode()
    nonce, salt, rounds = (field[2:] for field in told.split(","))
    final = f"c=biws,r={nonce}"
    signed = f"{asked},{told},{final}".encode()
    salted = hashlib.pbkdf2_hmac(digest, SCRAM_PASSWORD.encode(), base64.b64decode(salt), int(rounds))
    key = hmac.digest(salted, b"Client Key", digest)
    signature = hmac.digest(hashlib.new(digest, key).digest(), signed, digest)
    proof = bytes(one ^ other for one, other in zip(key, signature, strict=True))
    response = say(f"{final},p={base64.b64encode(proof).decode()}".encode())
    assert response == b"v=" + base64.b64encode(
        hmac.digest(hmac.digest(salted, b"Server Key", digest), signed, digest)
    )


def test_a_wrong_password_is_the_clients_to_hear(gate: tuple[GatewayProcess, dict[str, Any]]) -> None:
    gateway, reach = gate
    said: list[str] = []
    wrong = "wrong-Hn3Xc8mB5sDa"
    config = reach | {"sasl.mechanism": "PLAIN", "sasl.username": USER, "sasl.password": wrong}
    consumer = _consumer(config, error_cb=lambda error: said.append(str(error)))
    try:
        deadline = time.monotonic() + 60
        while not (said and _refused(gateway) > 1) and time.monotonic() < deadline:
            consumer.poll(0.1)
    finally:
        consumer.close()

    assert "Authentication failed" in said[0]
    told = gateway.log() + json.dumps(gateway.state()) + gateway._get("/metrics")
    assert wrong not in told
    assert _refused(gateway) > 1
    (line,) = [line for line in gateway.log().splitlines() if "authentication refused by the broker" in line]
    assert "58 SASL_AUTHENTICATION_FAILED, mechanism PLAIN" in line


def _refused(gateway: GatewayProcess) -> float:
    return gateway.metric("fetchgate_authentication_failures_total", side="client")


_BARE: Final = struct.pack(">i", len(_PLAIN_BYTES)) + _PLAIN_BYTES
BROKEN: Final = {
    "a bare token": _BARE,
    "a token of another length": struct.pack(">i", 4000) + _PLAIN_BYTES,
    "a length below 0": struct.pack(">i", -5) + _PLAIN_BYTES,
    "another API": frame(request(0x0A0A, 9, _PLAIN_BYTES, "raw", 2)),
    "a fetch": frame(request(1, 11, _PLAIN_BYTES, "raw", 2)),
    "no such version": frame(request(SASL_AUTHENTICATE, 99, _PLAIN_BYTES, "raw", 2)),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_who_breaks_the_protocol_while_authenticating_has_no_secret_told(
    gate: tuple[GatewayProcess, dict[str, Any]], secured: Secured, kind: str
) -> None:
    """For the review (docs/users/security.md): secrets in the log and in `/state`."""
    gateway, reach = gate
    with RawConnection(gateway.host, gateway.port) as connection:
        _wrap(connection, reach, secured)
        assert BodyReader(connection.call(SASL_HANDSHAKE, 1, string("PLAIN"), "raw")).int16() == 0
        connection.socket.sendall(BROKEN[kind])
        _assert_no_secret(gateway)
        connection.socket.shutdown(socket.SHUT_WR)
        with suppress(ConnectionError):
            while connection.socket.recv(4096):
                pass
    until(lambda: not _told(gateway, "raw"), "the connection stays")
    _assert_no_secret(gateway)


def _told(gateway: GatewayProcess, client_id: str) -> bool:
    return any(link["client_id"] == client_id for link in gateway.state()["connections"])


def test_a_capture_without_records_has_no_credentials(secured: Secured, tmp_path: Path) -> None:
    options = ("--capture", str(tmp_path / "taken"), "--capture-records", "no")
    with GatewayProcess(secured.to("SASL_SSL"), *secured.tls_options, *options) as gateway:
        reach = {"security.protocol": "SASL_PLAINTEXT", "bootstrap.servers": gateway.address}
        for mechanism in MECHANISMS:
            consumer = _consumer(reach | _login(mechanism))
            assert consumer.list_topics(TOPIC, timeout=60).topics[TOPIC].error is None
            consumer.close()
        assert gateway.stop() == 0
    taken = b"".join(path.read_bytes() for path in (tmp_path / "taken").glob("*.pcap"))
    assert b"\x00\x11\x00\x01" in taken  # SaslHandshake v1: what is inside TLS was seen
    for secret in (*SECRETS, _PLAIN_BYTES.decode()):
        assert secret.encode() not in taken


def test_a_client_certificate_opens_a_listener_that_wants_one(secured: Secured) -> None:
    cert = ("--broker-tls-cert", str(secured.client.cert), "--broker-tls-key", str(secured.client.key))
    with GatewayProcess(secured.to("SSL"), *secured.tls_options, *cert) as gateway:
        consumer = _consumer({"bootstrap.servers": gateway.address})
        try:
            _produce({"bootstrap.servers": gateway.address}, "by certificate")
            assert "by certificate" in _read_until(consumer, {"by certificate"})
        finally:
            consumer.close()
    with GatewayProcess(secured.to("SSL"), *secured.tls_options, ready=False) as gateway:
        reason = _reason(gateway)
        assert "does it require a client certificate? Give one that it accepts as --broker-tls-cert" in reason
        assert gateway.log().count(reason) == 1


def _reason(gateway: GatewayProcess) -> str:
    """Wait until the gateway has asked the bootstrap. Return the only reason why it is not ready."""
    deadline = time.monotonic() + 60
    reasons = ["the bootstrap has not been asked yet"]
    while reasons == ["the bootstrap has not been asked yet"] and time.monotonic() < deadline:
        time.sleep(0.05)
        reasons = gateway.state()["reasons"]
    (reason,) = reasons
    return str(reason)


@pytest.mark.parametrize(
    ("listener", "options", "said"),
    [
        (EXPIRED, lambda s: s.tls_options, "its certificate has expired: renew it at the broker"),
        (
            ELSEWHERE,
            lambda s: s.tls_options,
            "its certificate is not for '127.0.0.1': set --broker-tls-server-name",
        ),
        ("SASL_SSL", lambda s: ("--broker-tls", "on"), "give the CA's file as --broker-tls-ca"),
        (
            "SASL_SSL",
            lambda s: (*s.tls_options, "--broker-tls-server-name", "kafka.example"),
            "not for 'kafka.example': set --broker-tls-server-name to one in it",
        ),
        ("SASL_SSL", lambda s: (), "--broker-tls on"),
    ],
    ids=["expired", "wrong host", "unknown CA", "wrong name", "no TLS"],
)
def test_a_broker_that_cant_be_trusted_is_one_clear_line(
    secured: Secured,
    listener: str,
    options: Callable[[Secured], tuple[str, ...]],
    said: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with GatewayProcess(secured.to(listener), *options(secured), ready=False) as gateway:
        reason = _reason(gateway)
        assert said in reason
        assert gateway.log().count(reason) == 1
        assert len(gateway.log().splitlines()) == 2, gateway.log()  # the other one says where it listens
    tried = ("--bootstrap", secured.to(listener), "--listen", "127.0.0.1:0", "--admin", "off")
    assert main(["proxy", "--check", *tried, *options(secured)]) == 1
    checked, complaint = capsys.readouterr()
    assert checked.count(reason) == 1
    assert complaint == "fetchgate proxy: no bootstrap address can be used: a line above says why\n"


def test_tls_at_a_plaintext_port_is_one_clear_line(secured: Secured) -> None:
    with GatewayProcess(secured.broker.address, *secured.tls_options, ready=False) as gateway:
        reason = _reason(gateway)
        assert reason.startswith(f"{secured.broker.address}: ")
        assert "leave out --broker-tls" in reason


def test_a_new_certificate_comes_into_use_under_traffic(secured: Secured, tmp_path: Path) -> None:
    """A new certificate is used while records flow in both directions. Connections stay open."""
    cert, key = tmp_path / "own.pem", tmp_path / "own.key"
    cert.write_text(secured.own.chain)
    key.write_text(secured.own.private)
    with Admin(secured.broker.address) as admin:
        admin.create_topic("traffic", partitions=BYSTANDER_PARTITIONS)
    options = (*secured.tls_options, "--tls-cert", str(cert), "--tls-key", str(key))
    with GatewayProcess(secured.to("SASL_SSL"), *options) as gateway:
        errors: list[str] = []
        reach = {
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": str(secured.ca.file),
            "error_cb": lambda error: errors.append(str(error)),
            **_login(LASTING),
        }
        shown = [_serial(gateway, secured)]
        with Bystander(gateway.address, gateway.address, "traffic", rate=100, settings=reach) as traffic:
            traffic.check()
            before = _bystanders(gateway)
            for number in range(3):
                renewed = secured.ca.sign(f"renewed-{number}")
                key.write_text(renewed.private)
                cert.write_text(renewed.chain)
                gateway.reload()
                until(lambda: _serial(gateway, secured) not in shown, "the new certificate is not shown")
                shown.append(_serial(gateway, secured))
                traffic.check()
            cert.write_text("nothing of use")
            gateway.reload()
            assert "stay in use" in _reason(gateway)
            assert _serial(gateway, secured) == shown[-1]
            traffic.finish()
            assert before <= _bystanders(gateway), "nobody was disconnected"
        assert traffic.errors == errors == []


def _bystanders(gateway: GatewayProcess) -> set[str]:
    """Return the client addresses of the connections on which the client `bystander` fetches."""
    links = gateway.state()["connections"]
    found = {
        link["client_address"]
        for link in links
        if link["client_id"] == "bystander" and link["fetch_version"] >= 0
    }
    assert found
    return found


def _serial(gateway: GatewayProcess, secured: Secured) -> str:
    context = ssl.create_default_context(cafile=secured.ca.file)
    with (
        socket.create_connection((gateway.host, gateway.port), timeout=30) as sock,
        context.wrap_socket(sock, server_hostname="localhost") as shaken,
    ):
        return str((shaken.getpeercert() or {})["serialNumber"])


def test_one_port_serves_bootstrap_and_brokers_by_name(
    secured: Secured, monkeypatch: pytest.MonkeyPatch
) -> None:
    lookup = socket.getaddrinfo

    def local(host: Any, *more: Any, **named: Any) -> Any:
        return lookup("127.0.0.1" if str(host).endswith("kafka.local") else host, *more, **named)

    monkeypatch.setattr(socket, "getaddrinfo", local)
    _produce({"bootstrap.servers": secured.broker.address}, "by name")
    with GatewayProcess(secured.to("SASL_SSL"), ready=False) as free:
        port = free.port
    own = ("--tls-cert", str(secured.own.cert), "--tls-key", str(secured.own.key))
    rule = ("--listen", f"127.0.0.1:{port}", "--broker-ports", f"broker-{{id}}.kafka.local:{port}")
    with GatewayProcess(secured.to("SASL_SSL"), *secured.tls_options, *own, *rule) as gateway:
        seen = _run_aiokafka(_by_name(port, secured))
        (known,) = gateway.state()["brokers"]
        assert known["listener"] == f"broker-{secured.broker.node_id}.kafka.local:{port}"
        assert _incremental(gateway) > 3
    assert seen


async def _by_name(port: int, secured: Secured) -> int:
    consumer = AIOKafkaConsumer(
        bootstrap_servers=f"kafka.local:{port}",
        security_protocol="SASL_SSL",
        ssl_context=ssl.create_default_context(cafile=secured.ca.file),
        sasl_mechanism="PLAIN",
        sasl_plain_username=USER,
        sasl_plain_password=PLAIN_PASSWORD,
        auto_offset_reset="earliest",
        fetch_max_wait_ms=50,
    )
    await consumer.start()
    count = 0
    try:
        consumer.subscribe([TOPIC])
        until = time.monotonic() + 3
        while time.monotonic() < until or not count:
            count += sum(map(len, (await consumer.getmany(timeout_ms=100)).values()))
    finally:
        await _stop(consumer)
    return count
