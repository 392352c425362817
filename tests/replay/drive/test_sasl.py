"""PLAIN and SCRAM give the messages of the examples in their RFCs, and refuse wrong targets."""

import hashlib
import hmac
from base64 import b64encode

import pytest

from replay.drive.sasl import SaslCredentials, SaslError

NONCE = "rOprNGfwEbeRWgbNEkqO"
CHALLENGE = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
FINAL = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def scram(mechanism: str = "SCRAM-SHA-256", username: str = "user") -> SaslCredentials:
    return SaslCredentials(mechanism=mechanism, username=username, password="pencil")


def test_plain_is_one_message() -> None:
    exchange = SaslCredentials(mechanism="PLAIN", username="alice", password="geheim ü").exchange(NONCE)

    assert next(exchange) == b"\0alice\0geheim \xc3\xbc"
    with pytest.raises(StopIteration):
        exchange.send(b"")


def test_scram_is_as_in_its_rfc() -> None:
    """SCRAM-SHA-256 gives the messages of the example in RFC 7677, section 3."""
    exchange = scram().exchange(NONCE)

    assert next(exchange) == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    assert exchange.send(CHALLENGE) == (
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
        b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    with pytest.raises(StopIteration):
        exchange.send(FINAL)


def test_scram_with_sha_512_is_the_same_with_another_hash() -> None:
    exchange = scram("SCRAM-SHA-512").exchange(NONCE)
    first = next(exchange)[3:]
    final = exchange.send(CHALLENGE)

    salted = hashlib.pbkdf2_hmac("sha512", b"pencil", bytes.fromhex("5b6d99689d12358eeca04b141236fa81"), 4096)
    last, _, proof = final.partition(b",p=")
    signed = b",".join((first, CHALLENGE, last))
    key = hmac.digest(salted, b"Client Key", "sha512")
    signature = hmac.digest(hashlib.sha512(key).digest(), signed, "sha512")
    assert proof == b64encode(bytes(a ^ b for a, b in zip(key, signature, strict=True)))
    answer = hmac.digest(hmac.digest(salted, b"Server Key", "sha512"), signed, "sha512")
    with pytest.raises(StopIteration):
        exchange.send(b"v=" + b64encode(answer))


def test_signs_in_names_are_escaped() -> None:
    """The signs "=" and "," in user names are escaped (RFC 5802, section 5.1)."""
    assert next(scram(username="a=b,c").exchange(NONCE)) == b"n,,n=a=3Db=2Cc,r=rOprNGfwEbeRWgbNEkqO"


@pytest.mark.parametrize(
    ("challenge", "error"),
    [
        (b"", "its challenge is not one of SCRAM"),
        (b"\xff\xfe", "its challenge is not one of SCRAM"),
        (CHALLENGE.replace(b"W22", b"***"), "its challenge is not one of SCRAM"),
        (CHALLENGE.replace(b"4096", b"many"), "its challenge is not one of SCRAM"),
        (CHALLENGE.replace(b"r=rOpr", b"r=xOpr"), "its nonce does not extend the nonce that was sent"),
        (CHALLENGE.replace(b"%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0", b""), "its nonce does not extend"),
        (CHALLENGE + b",m=more", "it requires an extension of SCRAM"),
        (CHALLENGE.replace(b"4096", b"1"), "it requires 1 iterations"),
        (CHALLENGE.replace(b"4096", b"99999999"), "it requires 99999999 iterations"),
    ],
)
def test_a_wrong_challenge_is_refused(challenge: bytes, error: str) -> None:
    exchange = scram().exchange(NONCE)
    next(exchange)

    with pytest.raises(SaslError, match=error):
        exchange.send(challenge)


@pytest.mark.parametrize("final", [b"", b"e=other-error", FINAL[:-3] + b"A4=", b"v=\xff"])
def test_a_target_that_does_not_know_the_password_is_refused(final: bytes) -> None:
    exchange = scram().exchange(NONCE)
    next(exchange)
    exchange.send(CHALLENGE)

    with pytest.raises(SaslError, match="it did not prove that it knows the password"):
        exchange.send(final)


def test_a_password_is_in_no_representation() -> None:
    login = scram()
    exchange = login.exchange(NONCE)
    next(exchange)
    exchange.send(CHALLENGE)

    assert "pencil" not in repr(login)
    assert repr(login) == "SaslCredentials(mechanism='SCRAM-SHA-256', username='user')"


def test_a_password_is_salted_once_for_all_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    salted: list[str] = []
    real = hashlib.pbkdf2_hmac

    def counting(name: str, password: bytes, salt: bytes, iterations: int) -> bytes:
        salted.append(name)
        return real(name, password, salt, iterations)

    monkeypatch.setattr(hashlib, "pbkdf2_hmac", counting)
    login = scram()
    for _ in range(3):
        exchange = login.exchange(NONCE)
        next(exchange)
        exchange.send(CHALLENGE)

    assert len(salted) == 1
