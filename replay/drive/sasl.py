"""SASL authentication at a target, in SaslAuthenticate requests. Sans-IO.

The mechanisms are PLAIN (RFC 4616) and SCRAM (RFC 5802, KIP-84).
"""

import hashlib
import hmac
from base64 import b64decode, b64encode
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Final, TypeAlias

HASHES: Final = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
MECHANISMS: Final = ("PLAIN", *HASHES)
_ITERATIONS: Final = range(4096, 1_000_001)
"""The allowed numbers of SCRAM iterations. The minimum is Kafka's (KIP-84). The maximum limits the computing
time."""

Exchange: TypeAlias = Generator[bytes, bytes, None]
"""A generator of SASL messages. It yields each message to send, and then receives the response. It ends when
there is nothing more to send."""


class SaslError(ValueError):
    """The target refuses the login, or a message of it is wrong. The text of the error contains no secret."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SaslCredentials:
    """A user's name and password, and the SASL mechanism that uses them."""

    mechanism: str
    username: str
    password: str = field(repr=False)
    _salted: dict[tuple[bytes, int], bytes] = field(default_factory=dict, repr=False, compare=False)
    """The last one, by salt and iterations. It is stored because its computation takes milliseconds."""

    def exchange(self, nonce: str) -> Exchange:
        """Yield the client's SASL messages. Send each response of the target into the generator.

        For SCRAM, the nonce must be random, printable, without a comma, and different each time.

        Raises:
            SaslError: the generator raises it if a message of the target is wrong.
        """
        if self.mechanism in HASHES:
            yield from self._scram(HASHES[self.mechanism], nonce)
        else:
            yield f"\0{self.username}\0{self.password}".encode()

    def _scram(self, name: str, nonce: str) -> Exchange:
        user = self.username.replace("=", "=3D").replace(",", "=2C")
        first = f"n={user},r={nonce}"
        challenge = yield f"n,,{first}".encode()
        fields = _fields(challenge)
        try:
            salt, iterations = b64decode(fields["s"], validate=True), int(fields["i"])
            both = fields["r"]
        except (KeyError, ValueError):
            raise SaslError("its challenge is not one of SCRAM") from None
        if "m" in fields:
            raise SaslError(
                "it requires an extension of SCRAM that fetchgate does not support"
            )  # RFC 5802, 5.1
        if not both.startswith(nonce) or both == nonce:
            raise SaslError("its nonce does not extend the nonce that was sent")
        if iterations not in _ITERATIONS:
            raise SaslError(f"it requires {iterations} iterations, which is not allowed")
        salted = self._salt(name, salt, iterations)
        last = f"c=biws,r={both}"  # "biws" is "n,,": no channel binding
        signed = b",".join((first.encode(), challenge, last.encode()))
        client_key = hmac.digest(salted, b"Client Key", name)
        signature = hmac.digest(hashlib.new(name, client_key).digest(), signed, name)
        proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        final = yield f"{last},p={b64encode(proof).decode()}".encode()
        expected = hmac.digest(hmac.digest(salted, b"Server Key", name), signed, name)
        if not hmac.compare_digest(_fields(final).get("v", "").encode(), b64encode(expected)):
            raise SaslError("it did not prove that it knows the password")

    def _salt(self, name: str, salt: bytes, iterations: int) -> bytes:
        key = salt, iterations
        if key not in self._salted:
            self._salted.clear()
            # Kafka takes the password's UTF-8 as it is, without SASLprep (ScramFormatter).
            self._salted[key] = hashlib.pbkdf2_hmac(name, self.password.encode(), salt, iterations)
        return self._salted[key]


def _fields(message: bytes) -> dict[str, str]:
    parts = (part.partition("=") for part in message.decode(errors="replace").split(","))
    return {name: value for name, _, value in parts}
