"""TLS ciphers, and the keys that are derived from the secrets of a connection."""

import hmac
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM, ChaCha20Poly1305

from replay.capture.tls.hello import HEADER, TLS_1_2, TLS_1_3, ServerHello
from replay.capture.tls.keylog import CLIENT, MASTER, SERVER, Secrets

_TAG: Final = 16
_NONCE: Final = 12
_SALT: Final = 4
"""For AES-GCM in TLS 1.2: the size in bytes of the nonce's fixed part. The rest of the nonce is in the record
(RFC 5288, 3)."""


@dataclass(frozen=True, slots=True)
class Cipher:
    """A cipher suite: how records are encrypted, and the hash for deriving keys."""

    aead: type[AESGCM | ChaCha20Poly1305]
    key_bytes: int
    digest: str

    @property
    def salt_bytes(self) -> int:
        """The number of nonce bytes that TLS 1.2 derives together with the keys."""
        return _SALT if self.aead is AESGCM else _NONCE


_AES_128: Final = Cipher(AESGCM, 16, "sha256")
_AES_256: Final = Cipher(AESGCM, 32, "sha384")
_CHACHA: Final = Cipher(ChaCha20Poly1305, 32, "sha256")
_CIPHERS: Final = {
    # RFC 8446, B.4
    TLS_1_3: {0x1301: _AES_128, 0x1302: _AES_256, 0x1303: _CHACHA},
    # RFC 5288, 5289 and 7905: keys by RSA, DHE, ECDHE and ECDH
    TLS_1_2: {
        **dict.fromkeys((0x009C, 0x009E, 0x00A2, 0xC02B, 0xC02D, 0xC02F, 0xC031), _AES_128),
        **dict.fromkeys((0x009D, 0x009F, 0x00A3, 0xC02C, 0xC02E, 0xC030, 0xC032), _AES_256),
        **dict.fromkeys((0xCCA8, 0xCCA9, 0xCCAA), _CHACHA),
    },
}


class Opener(ABC):
    """Decrypts the records of one direction. Records are numbered from 0 (RFC 8446, 5.3)."""

    overhead: int
    """The number of bytes by which an encrypted record is longer than its contents."""

    @abstractmethod
    def open(self, number: int, record: memoryview) -> tuple[int, memoryview, int] | None:
        """Return the type of a record, its contents, and the number of its padding bytes.

        Return None if the record can't be decrypted: its number is not `number`, or its keys are others.
        """

    @abstractmethod
    def updated(self) -> "Opener | None":
        """Return the opener with the new keys after a KeyUpdate, which TLS 1.2 does not have."""


class _Opener13(Opener):
    overhead = HEADER + _TAG + 1

    def __init__(self, cipher: Cipher, secret: bytes) -> None:
        self._cipher = cipher
        self._secret = secret
        self._aead = cipher.aead(self._expand(b"key", cipher.key_bytes))
        self._iv = int.from_bytes(self._expand(b"iv", _NONCE))

    def open(self, number: int, record: memoryview) -> tuple[int, memoryview, int] | None:
        plain = _opened(self._aead, (self._iv ^ number).to_bytes(_NONCE), record, HEADER, record[:HEADER])
        if plain is None:
            return None
        content = plain.rstrip(b"\0")  # zeros may follow the type (RFC 8446, 5.4)
        if not content:
            return None
        return content[-1], memoryview(content)[:-1], len(plain) - len(content)

    def updated(self) -> Opener:
        return _Opener13(self._cipher, self._expand(b"traffic upd", len(self._secret)))

    def _expand(self, label: bytes, size: int) -> bytes:
        """Derive a key with HKDF-Expand-Label (RFC 8446, 7.1). No key is longer than one hash."""
        label = b"tls13 " + label
        info = size.to_bytes(2) + bytes([len(label)]) + label + b"\0"
        return hmac.digest(self._secret, info + b"\1", self._cipher.digest)[:size]


class _Opener12(Opener):
    def __init__(self, cipher: Cipher, key: bytes, salt: bytes) -> None:
        self._aead = cipher.aead(key)
        self._salt = salt
        self._explicit = _NONCE - len(salt)
        self.overhead = HEADER + self._explicit + _TAG

    def open(self, number: int, record: memoryview) -> tuple[int, memoryview, int] | None:
        begin = HEADER + self._explicit
        size = len(record) - self.overhead
        if size < 0:
            return None
        if self._explicit:
            nonce = self._salt + record[HEADER:begin]
        else:
            nonce = (int.from_bytes(self._salt) ^ number).to_bytes(_NONCE)
        # RFC 5246, 6.2.3.3: number, type, version, length of the contents
        covered = number.to_bytes(8) + record[:3] + size.to_bytes(2)
        plain = _opened(self._aead, nonce, record, begin, covered)
        return None if plain is None else (record[0], memoryview(plain), 0)

    def updated(self) -> None:
        return None


def _opened(
    aead: AESGCM | ChaCha20Poly1305, nonce: bytes, record: memoryview, begin: int, covered: bytes | memoryview
) -> bytes | None:
    if len(record) < begin + _TAG:
        return None
    try:
        return aead.decrypt(nonce, record[begin:], covered)
    except InvalidTag:
        return None


def is_known(hello: ServerHello) -> bool:
    """Return whether fetchgate supports the TLS version and the cipher that the server has chosen."""
    return hello.cipher in _CIPHERS.get(hello.version, {})


def openers(secrets: Secrets, client_random: bytes, hello: ServerHello) -> tuple[Opener, Opener] | None:
    """Return the openers for the client's and the server's records. None if their secrets are unknown."""
    cipher = _CIPHERS[hello.version][hello.cipher]
    if hello.version == TLS_1_3:
        client, server = (secrets.get(label, client_random) for label in (CLIENT, SERVER))
        return (_Opener13(cipher, client), _Opener13(cipher, server)) if client and server else None
    master = secrets.get(MASTER, client_random)
    if master is None:
        return None
    keys, salts = cipher.key_bytes, cipher.salt_bytes
    seed = b"key expansion" + hello.random + client_random
    block = _prf(master, seed, 2 * (keys + salts), cipher.digest)
    salt = 2 * keys
    return (
        _Opener12(cipher, block[:keys], block[salt : salt + salts]),
        _Opener12(cipher, block[keys:salt], block[salt + salts :]),
    )


def _prf(secret: bytes, seed: bytes, size: int, digest: str) -> bytes:
    """The pseudorandom function of TLS 1.2 (RFC 5246, 5)."""
    found, last = b"", seed
    while len(found) < size:
        last = hmac.digest(secret, last, digest)
        found += hmac.digest(secret, last + seed, digest)
    return found[:size]
