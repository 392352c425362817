"""The TLS and SASL options of `fetchgate replay drive`: their effect, and the messages if they are wrong."""

import asyncio
import ssl
from pathlib import Path

import pytest

from proxy.addresses import Address
from proxy.text.error_text import short
from proxy.text.options import ConfigError
from replay.cli import read
from replay.drive.access import Access
from replay.drive.options import PASSWORD_VARIABLE, DriveOptions
from replay.drive.security import accesses, warning
from replay.drive.wire import TargetError
from tools.certificates import Authority

USER = ("--sasl-mechanism", "SCRAM-SHA-256", "--sasl-username", "alice")
ALONE = "has no effect alone: give --security-protocol"
PASSWORD = {PASSWORD_VARIABLE: "from the environment"}
with pytest.raises(ssl.SSLError) as _refused:
    ssl.create_default_context().load_cert_chain(__file__)
NOT_PEM = short(_refused.value)
"""OpenSSL's words for a file that is not PEM."""


def options(*arguments: str) -> DriveOptions:
    found = read("drive", ["x.pcap", "--dry-run", *arguments], {})
    assert isinstance(found, DriveOptions)
    return found


def both(*arguments: str, environ: dict[str, str] | None = None) -> tuple[Access, Access]:
    return accesses(options(*arguments), environ or {})


@pytest.mark.parametrize(
    ("protocols", "mechanism", "warned"),
    [
        (("--security-protocol", "SASL_PLAINTEXT"), "PLAIN", True),
        (("--security-protocol", "SASL_SSL", "--against-security-protocol", "SASL_PLAINTEXT"), "PLAIN", True),
        (("--security-protocol", "SASL_SSL"), "PLAIN", False),
        (("--security-protocol", "SASL_PLAINTEXT"), "SCRAM-SHA-256", False),
    ],
)
def test_a_password_in_plain_text_is_warned_of(
    protocols: tuple[str, ...], mechanism: str, warned: bool
) -> None:
    asked = options(*protocols, "--sasl-mechanism", mechanism)

    assert ("can be read on the network" in warning(asked)) == warned


def test_without_options_it_is_plain_text() -> None:
    target, against = both("--timeout", "7")

    assert (target.tls, target.login, target.timeout) == (None, None, 7.0)
    assert target == against


@pytest.mark.parametrize(
    ("protocol", "tls", "login"),
    [("SSL", True, False), ("SASL_PLAINTEXT", False, True), ("SASL_SSL", True, True)],
)
def test_a_protocol_is_that_of_both_unless_told_otherwise(protocol: str, tls: bool, login: bool) -> None:
    user = USER if login else ()
    target, against = both("--security-protocol", protocol, *user, environ=PASSWORD)

    assert (target.tls is not None, target.login is not None) == (tls, login)
    assert against == target


def test_a_gateway_can_be_plain_text_and_its_broker_not() -> None:
    target, against = both("--against-security-protocol", "SASL_SSL", *USER, environ=PASSWORD)

    assert (target.tls, target.login) == (None, None)
    assert against.tls is not None
    assert against.login is not None
    assert against.login.password == "from the environment"


def test_a_variable_that_is_not_utf_8_is_refused() -> None:
    with pytest.raises(ConfigError, match=f"^{PASSWORD_VARIABLE}: not UTF-8$"):
        both("--security-protocol", "SASL_SSL", *USER, environ={PASSWORD_VARIABLE: "\udcff"})


@pytest.mark.parametrize("address", [Address("127.0.0.1", 99_999), Address("a" * 70, 9092)])
def test_an_address_that_can_not_be_is_told(address: Address) -> None:
    """An address that can't exist gives a clear error. A broker's Metadata may contain any address."""
    with pytest.raises(TargetError, match="it is not a valid address"):
        asyncio.run(Access().connect(address))


@pytest.mark.parametrize("end", ["", "\n", "\r\n"])
def test_a_password_comes_from_a_file_without_its_line_end(tmp_path: Path, end: str) -> None:
    file = tmp_path / "password"
    file.write_bytes(b" from a file \xc3\xbc" + end.encode())
    given = (*USER, "--sasl-password-file", str(file))

    login = both("--security-protocol", "SASL_SSL", *given, environ=PASSWORD)[0].login

    assert login is not None
    assert login.password == " from a file ü"


def test_certificates_are_loaded(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    client = authority.sign("client")
    pair = ("--broker-tls-cert", str(client.cert), "--broker-tls-key", str(client.key))
    given = ("--broker-tls-ca", str(authority.file), "--broker-tls-server-name", "kafka.example", *pair)

    target, _ = both("--security-protocol", "SSL", *given)

    assert target.server_name == "kafka.example"
    assert target.tls is not None
    assert [each["subject"] for each in target.tls.get_ca_certs()]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("--security-protocol", "SASL_SSL"), "SASL needs --sasl-mechanism as well"),
        (
            ("--security-protocol", "SASL_SSL", "--sasl-mechanism", "PLAIN"),
            "SASL needs --sasl-username as well",
        ),
        (
            ("--security-protocol", "SASL_SSL", *USER),
            "SASL needs a password: in FETCHGATE_SASL_PASSWORD, or in --sasl-password-file FILE",
        ),
        (
            ("--security-protocol", "SASL_SSL", *USER, "--sasl-password-file", "/no/file"),
            "--sasl-password-file /no/file: No such file or directory",
        ),
        (
            USER,
            f"--sasl-mechanism {ALONE} SASL_PLAINTEXT or SASL_SSL as well",
        ),
        (
            ("--broker-tls-ca", "ca.pem"),
            "--broker-tls-ca has no effect alone: give --security-protocol SSL or SASL_SSL as well",
        ),
        (
            ("--security-protocol", "SSL", "--broker-tls-ca", "/no/ca.pem"),
            "--broker-tls-ca /no/ca.pem: No such file or directory",
        ),
        (
            ("--security-protocol", "SSL", "--broker-tls-ca", __file__),
            f"--broker-tls-ca {__file__}: the file has no certificate in PEM (no certificate or crl found)",
        ),
        (
            ("--security-protocol", "SSL", "--broker-tls-cert", __file__),
            f"--broker-tls-cert {__file__}: give a certificate and its key in PEM ({NOT_PEM})",
        ),
        (
            ("--security-protocol", "SSL", "--broker-tls-key", __file__),
            "--broker-tls-key has no effect alone: give --broker-tls-cert FILE as well",
        ),
    ],
)
def test_what_is_wrong_is_one_line(arguments: tuple[str, ...], error: str) -> None:
    with pytest.raises(ConfigError) as raised:
        both(*arguments)

    assert str(raised.value) == error


def test_a_key_with_a_passphrase_is_refused(tmp_path: Path) -> None:
    pair = Authority(tmp_path).sign("client", passphrase="open sesame")

    with pytest.raises(ConfigError, match=r"the key is encrypted; give one without a passphrase$"):
        both(
            "--security-protocol",
            "SSL",
            "--broker-tls-cert",
            str(pair.cert),
            "--broker-tls-key",
            str(pair.key),
        )
