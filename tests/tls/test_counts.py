"""Failures of TLS and of authentication are counted, for clients and for brokers.

Failed connections to brokers are counted by broker.
"""

from collections.abc import Callable

import pytest
from cryptography import x509
from structlog.testing import capture_logs

from proxy.core.events import LoginRefused
from proxy.net.tls import ReloadingContext
from proxy.telemetry.metrics import exposition
from proxy.text.error_text import is_tls
from tests.shell import WireGateway, client, gateway, link_of, run, stub_broker, until
from tests.tls.secured import Keys, serving
from tools.certificates import Pair


@pytest.mark.parametrize(
    ("pair", "refused"),
    [(lambda keys: keys.stranger, True), (lambda keys: None, False)],
    ids=["unknown CA", "no TLS"],
)
async def test_a_handshake_with_a_broker(
    keys: Keys, pair: Callable[[Keys], Pair | None], refused: bool
) -> None:
    shown = pair(keys)

    async with (
        stub_broker(tls=serving(shown) if shown else None) as broker,
        gateway(broker.address, WireGateway, **keys.to_broker()) as gate,
        client(gate.listen.port),
    ):
        await until(lambda: gate.monitor.tls_failures["broker"])
        counts = gate.server.account()
        assert counts.tls_failures == {"client": 0, "broker": 1}
        assert counts.authentication_failures == {"client": 0, "broker": int(refused)}
        assert gate.monitor.reach.failures == {None: 1}


def test_a_broker_that_is_not_there_is_no_failure_of_tls(keys: Keys) -> None:
    async def scene() -> None:
        async with stub_broker() as broker:
            address = broker.address
        async with gateway(address, WireGateway, **keys.to_broker()) as gate, client(gate.listen.port):
            await until(lambda: gate.monitor.reach.failures)
            assert gate.server.account().tls_failures == {"client": 0, "broker": 0}

    run(scene())
    assert not is_tls(ConnectionRefusedError(111, "refused"))


async def test_it_is_known_when_certificates_expire(keys: Keys) -> None:
    """The expiry dates of certificates are known: the gateway's own from files, and a broker's from the TLS
    handshake.
    """
    mine, shown = keys.ca.sign("mine", days=(-0.5, 0.5)), keys.ca.sign("shown", days=(-0.5, 2.0))

    options = keys.to_broker(broker_tls_cert=str(mine.cert), broker_tls_key=str(mine.key))
    async with (
        stub_broker(tls=serving(shown)) as broker,
        gateway(broker.address, WireGateway, **options, **keys.to_client()) as gate,
        client(gate.listen.port, keys.trust(), "localhost") as (reader, writer),
    ):
        writer.write(b"hello")
        await reader.readexactly(5)
        gate.monitor.certificates["admin_cert"] = ReloadingContext(shown.cert, [], lambda: serving(shown))
        assert gate.status().certificates["admin_cert"] == _ends(shown)
        del gate.monitor.certificates["admin_cert"]
        status = gate.status()
        assert status.certificates == {"tls_cert": _ends(keys.good), "broker_tls_cert": _ends(mine)}
        assert status.broker_certificates == {None: _ends(shown)}
        text = exposition(gate.server.account()).decode()
        name = "fetchgate_certificate_expiry_timestamp_seconds"
        told = [line for line in text.splitlines() if line.startswith(name)]
        assert {line.split()[0].removeprefix(name): float(line.split()[1]) for line in told} == {
            '{broker="",certificate="tls_cert"}': _ends(keys.good),
            '{broker="",certificate="broker_tls_cert"}': _ends(mine),
            '{broker="bootstrap",certificate="broker"}': _ends(shown),
        }


def _ends(pair: Pair) -> float:
    return x509.load_pem_x509_certificate(pair.chain.encode()).not_valid_after_utc.timestamp()


async def test_a_client_whose_credentials_are_refused_is_named() -> None:
    async with (
        stub_broker() as broker,
        gateway(broker.address) as gate,
        client(gate.listen.port) as (reader, writer),
    ):
        writer.write(b"hello")
        await reader.readexactly(5)
        with capture_logs() as lines:
            for code in (58, 58, 58, 7, 33):
                gate.server.report(LoginRefused(error_code=code, mechanism="PLAIN"), link_of(gate))
        assert gate.server.account().authentication_failures == {"client": 5, "broker": 0}
        told = [event.text for event in gate.process.events if event.kind == "login refused"]
        refused = "the bootstrap refused the authentication of t: "
        assert told == [f"{refused}33 UNSUPPORTED_SASL_MECHANISM, mechanism PLAIN"]
        assert [line["reason"] for line in lines] == [
            "58 SASL_AUTHENTICATION_FAILED, mechanism PLAIN",
            "error 7, mechanism PLAIN",
            "33 UNSUPPORTED_SASL_MECHANISM, mechanism PLAIN",
        ], "the same one is logged once a minute"
        assert dict(lines[0]) | {"client": "", "broker": ""} == {
            "event": "authentication refused by the broker",
            "log_level": "warning",
            "client": "",
            "client_id": "t",
            "broker": "",
            "code": 58,
            "mechanism": "PLAIN",
            "reason": "58 SASL_AUTHENTICATION_FAILED, mechanism PLAIN",
        }
