"""Errors in words: what failed, and what to do about it. Nothing of Python shows."""

import ssl
from os import strerror
from socket import gaierror
from typing import Final

CLOSED: Final = "closed in the TLS handshake: is this its TLS port? If it is not, leave out --broker-tls"
"""What a broker's plaintext port does, which takes the first bytes for a length."""
_NO_TLS: Final = frozenset({"HTTP_REQUEST", "WRONG_VERSION_NUMBER", "BAD_RECORD_TYPE"})
_NOT_ASCII: Final = "CALLBACK_FAILED"
"""What OpenSSL says when Python could not read the name that a client asks for."""
_ALERT: Final = "ALERT"
_EXPIRED: Final = "certificate expired"
"""An alert, as `_alert` words it."""


def reason_of(error: Exception) -> str:
    """Say in a few words why something failed, without Python's."""
    if isinstance(error, ssl.SSLError):
        return of_broker(error)
    if isinstance(error, ConnectionResetError) and not error.args:
        return CLOSED  # all that event loops say of it
    if isinstance(error, gaierror):
        return f"unknown host: {error.strerror}"
    if isinstance(error, OSError) and error.errno:
        return strerror(error.errno)
    return str(error) or "timed out"


def of_client(error: ssl.SSLError) -> str:
    """Say why a client's handshake failed, and what to do."""
    reason = error.reason or ""
    if reason in _NO_TLS:
        return "the client does not speak TLS: with --tls-cert its security.protocol is SSL or SASL_SSL"
    if reason == _NOT_ASCII:
        return "the server name that the client asks for (SNI) is not ASCII"
    if _ALERT in reason:
        alert = _alert(reason)
        remedy = "renew it" if alert == _EXPIRED else "give it the CA and a name"
        return f"the client refuses the certificate of --tls-cert ({alert}): {remedy}"
    return short(error)


def of_broker(error: ssl.SSLError) -> str:
    """Say why TLS toward a broker failed, and what to do."""
    reason = error.reason or ""
    if isinstance(error, ssl.SSLCertVerificationError):
        return _refused(error)
    if reason in _NO_TLS:
        return "it does not speak TLS there: name its TLS port, or leave out --broker-tls"
    if _ALERT in reason:
        return (
            f"it refuses us in the TLS handshake ({_alert(reason)}): does it want a client certificate? Give "
            "one that it accepts as --broker-tls-cert and --broker-tls-key"
        )
    return f"TLS failed: {short(error)}"


def _refused(error: ssl.SSLCertVerificationError) -> str:
    """Say what is wrong with a broker's certificate; the codes are OpenSSL's (x509_vfy.h)."""
    told = error.verify_message.rstrip(".")
    match error.verify_code:
        case 9:
            return "its certificate is not valid yet: see to it at the broker, or set this machine's clock"
        case 10:
            return "its certificate has expired: renew it at the broker, or set this machine's clock"
        case 62 | 64:
            name = told.partition("valid for ")[2] or "the name asked for"
            return (
                f"its certificate is not for {name}: give a name that it is for as --broker-tls-server-name"
            )
        case _:
            return f"its certificate is of no CA known here ({told}): give the CA's file as --broker-tls-ca"


def _alert(reason: str) -> str:
    return reason.partition(_ALERT)[2].strip("_").replace("_", " ").lower()


def short(error: ssl.SSLError) -> str:
    """Give OpenSSL's own reason, in small letters."""
    return (error.reason or str(error.args[-1])).replace("_", " ").lower()
