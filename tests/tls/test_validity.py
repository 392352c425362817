"""The expiry dates of certificates are the same as with the library `cryptography`."""

from base64 import b64encode
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from hypothesis import given
from hypothesis import strategies as st

from proxy.net.tls import valid_until
from tools.certificates import Authority


def test_the_first_certificate_of_a_file_counts(tmp_path: Path) -> None:
    ca = Authority(tmp_path)
    pair = ca.sign("own", days=(-1, 40))
    ends = x509.load_pem_x509_certificate(pair.cert.read_bytes()).not_valid_after_utc
    assert valid_until(pair.private + "subject=Å\n" + pair.chain + ca.file.read_text()) == ends
    assert timedelta(days=39) < ends - datetime.now(UTC) < timedelta(days=41)


@pytest.mark.parametrize("days", [8000, 10_000])
def test_a_year_has_two_digits_until_2049_and_four_from_then_on(tmp_path: Path, days: int) -> None:
    pair = Authority(tmp_path).sign("own", days=(-20_000, days))
    assert valid_until(pair.chain) == x509.load_pem_x509_certificate(pair.chain.encode()).not_valid_after_utc


def test_a_certificate_of_the_last_century(tmp_path: Path) -> None:
    pair = Authority(tmp_path).sign("own", days=(-20_000, -15_000))
    ends = valid_until(pair.chain)
    assert ends == x509.load_pem_x509_certificate(pair.chain.encode()).not_valid_after_utc
    assert ends.year < 2000


def _in_pem(text: str) -> str:
    return f"-----BEGIN CERTIFICATE-----\n{text}\n-----END CERTIFICATE-----\n"


@pytest.mark.parametrize("text", ["", "no PEM", _in_pem(""), _in_pem("MA=="), _in_pem("MIIF"), _in_pem("!")])
def test_what_is_no_certificate_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        valid_until(text)


@pytest.fixture(scope="module")
def der(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    pem = Authority(tmp_path_factory.mktemp("ca")).file.read_bytes()
    return x509.load_pem_x509_certificate(pem).public_bytes(Encoding.DER)


@given(at=st.integers(0, 500), damage=st.binary(min_size=1, max_size=8))
def test_a_certificate_that_is_damaged_is_read_or_refused(der: bytes, at: int, damage: bytes) -> None:
    damaged = der[:at] + damage + der[at + len(damage) :]
    with suppress(ValueError):
        valid_until(_in_pem(b64encode(damaged).decode()))
