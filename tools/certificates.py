"""Certificates for tests and benchmarks: a CA, and valid and invalid certificates that it signs."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
)
from cryptography.x509.oid import NameOID

LOOPBACK: Final = ("localhost", "127.0.0.1")
_DAY: Final = timedelta(days=1)


@dataclass(frozen=True)
class Pair:
    """A certificate and its key: the files and the text."""

    cert: Path
    key: Path

    @property
    def chain(self) -> str:
        """The certificate in PEM."""
        return self.cert.read_text()

    @property
    def private(self) -> str:
        """The key in PEM (PKCS 8, for Kafka)."""
        return self.key.read_text()


class Authority:
    """A CA for tests. Without `usage` it has no keyUsage, as many do in spite of RFC 5280, 4.2.1.3."""

    def __init__(self, folder: Path, name: str = "ca", *, usage: bool = True) -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _named(f"fetchgate test {name}")
        now = datetime.now(UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(self._name)
            .issuer_name(self._name)
            .public_key(self._key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _DAY)
            .not_valid_after(now + _DAY)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), critical=False)
        )
        if usage:
            builder = builder.add_extension(_ca_usage(), critical=True)
        self._certificate = builder.sign(self._key, hashes.SHA256())
        self.file = folder / f"{name}.pem"
        self.file.write_bytes(self._certificate.public_bytes(Encoding.PEM))

    def sign(self, name: str, *hosts: str, days: tuple[float, float] = (-1, 1), passphrase: str = "") -> Pair:
        """Make a key, encrypted by `passphrase`, and a certificate that is valid for `days` from now."""
        key = ec.generate_private_key(ec.SECP256R1())
        now = datetime.now(UTC)
        certificate = (
            x509.CertificateBuilder()
            .subject_name(_named(name))
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now + days[0] * _DAY)
            .not_valid_after(now + days[1] * _DAY)
            .add_extension(
                x509.SubjectAlternativeName([_host(host) for host in hosts or LOOPBACK]), critical=False
            )
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False
            )
            .sign(self._key, hashes.SHA256())
        )
        pair = Pair(self._folder / f"{name}.pem", self._folder / f"{name}.key")
        pair.cert.write_bytes(certificate.public_bytes(Encoding.PEM))
        hidden = BestAvailableEncryption(passphrase.encode()) if passphrase else NoEncryption()
        pair.key.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, hidden))
        return pair

    def revoke(self, *pairs: Pair, days: tuple[float, float] = (-1, 1)) -> str:
        """Return a CRL in PEM that revokes certificates, and is valid for `days` from now."""
        now = datetime.now(UTC)
        builder = (
            x509.CertificateRevocationListBuilder()
            .issuer_name(self._name)
            .last_update(now + days[0] * _DAY)
            .next_update(now + days[1] * _DAY)
        )
        for pair in pairs:
            number = x509.load_pem_x509_certificate(pair.cert.read_bytes()).serial_number
            revoked = x509.RevokedCertificateBuilder().serial_number(number).revocation_date(now)
            builder = builder.add_revoked_certificate(revoked.build())
        return builder.sign(self._key, hashes.SHA256()).public_bytes(Encoding.PEM).decode()


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _ca_usage() -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=True,
        crl_sign=True,
        encipher_only=False,
        decipher_only=False,
    )
