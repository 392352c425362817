"""Texts for errors: what has failed, and what to do about it. Python's own texts are the last resort."""

import ssl
from os import strerror
from socket import gaierror
from typing import Final

CLOSED: Final = "closed in the TLS handshake: is this its TLS port? If it is not, leave out --broker-tls"
"""A broker closes the connection at its port for plain text: it takes the first bytes of TLS for a length."""
_HTTP: Final = "HTTP_REQUEST"
_NO_TLS: Final = frozenset({_HTTP, "WRONG_VERSION_NUMBER", "BAD_RECORD_TYPE"})
_NOT_ASCII: Final = "CALLBACK_FAILED"
"""OpenSSL's reason if Python could not read the server name from the client."""
_NO_CERTIFICATE: Final = "PEER_DID_NOT_RETURN_A_CERTIFICATE"
_ALERT: Final = "ALERT"
_REVOKED: Final = 23
_NO_CURRENT_CRL: Final = frozenset({3, 11, 12})
"""OpenSSL's codes (x509_vfy.h) of a CRL that is missing, not valid yet, or expired."""
_EXPIRED: Final = "certificate expired"
"""What `_alert` returns for the TLS alert of an expired certificate."""


def reason_of(error: Exception) -> str:
    """Return a short text that says why something failed."""
    if isinstance(error, ssl.SSLError):
        return of_broker(error)
    if isinstance(error, ConnectionResetError) and not error.args:
        return CLOSED  # this is all that event loops report
    if isinstance(error, gaierror):
        return f"unknown host: {error.strerror}"
    if isinstance(error, OSError) and error.errno:
        return strerror(error.errno)
    return str(error) or "timed out"


def is_tls(error: Exception) -> bool:
    """Return whether the error is a failed TLS handshake with a broker."""
    return isinstance(error, ssl.SSLError) or (isinstance(error, ConnectionResetError) and not error.args)


def refuses_certificate(error: Exception) -> bool:
    """Return whether a handshake failed because one side rejected the other's certificate, or got none."""
    if not isinstance(error, ssl.SSLError):
        return False
    reason = error.reason or ""
    refused = any(word in reason for word in ("CERTIFICATE", "UNKNOWN_CA", "ACCESS_DENIED"))
    return isinstance(error, ssl.SSLCertVerificationError) or (_ALERT in reason and refused)


def is_client_refused(error: ssl.SSLError) -> bool:
    """Return whether a client's handshake failed because the client's certificate is invalid or missing."""
    return isinstance(error, ssl.SSLCertVerificationError) or error.reason == _NO_CERTIFICATE


def of_client(error: ssl.SSLError) -> str:
    """Return why the TLS handshake of a client failed, and what the operator can do."""
    reason = error.reason or ""
    if reason == _HTTP:
        return "the client sends HTTP: this is a port of Kafka, with TLS"
    if reason in _NO_TLS:
        return (
            "the client does not speak TLS: with --tls-cert its security.protocol must be SSL or SASL_SSL "
            "(or a load balancer sends the PROXY protocol, which fetchgate does not read)"
        )
    if isinstance(error, ssl.SSLCertVerificationError):
        shown = f"the certificate that the client shows is not accepted ({error.verify_message})"
        if error.verify_code == _REVOKED:
            return f"{shown}: a CRL in the file of --client-ca has it"
        if error.verify_code in _NO_CURRENT_CRL:
            return f"{shown}: if the file of --client-ca has a CRL, it needs a current one of each CA"
        return f"{shown}: it must be valid now, and --client-ca must have its CA"
    if reason == _NO_CERTIFICATE:
        return "the client shows no certificate: with --client-ca it needs one (ssl.keystore.location)"
    if reason == _NOT_ASCII:
        return "the server name that the client sends (SNI) is not ASCII: the client must use an ASCII name"
    if _ALERT in reason:
        alert = _alert(reason)
        trust = "the client must trust its CA, and connect to a name in the certificate"
        remedy = "renew it" if alert == _EXPIRED else trust
        return f"the client refuses the certificate of --tls-cert ({alert}): {remedy}"
    return short(error)


def of_broker(error: ssl.SSLError) -> str:
    """Return why a TLS handshake with a broker failed, and what the operator can do."""
    reason = error.reason or ""
    if isinstance(error, ssl.SSLCertVerificationError):
        return _refused(error)
    if reason in _NO_TLS:
        return "it does not speak TLS there: name its TLS port, or leave out --broker-tls"
    if _ALERT in reason:
        return (
            f"it refuses the gateway in the TLS handshake ({_alert(reason)}): "
            "does it require a client certificate? "
            "Give one that it accepts as --broker-tls-cert and --broker-tls-key"
        )
    return f"TLS failed: {short(error)}"


def _refused(error: ssl.SSLCertVerificationError) -> str:
    # OpenSSL's codes are in x509_vfy.h.
    message = error.verify_message.rstrip(".")
    match error.verify_code:
        case 9:
            return "its certificate is not valid yet: replace it at the broker, or set this machine's clock"
        case 10:
            return "its certificate has expired: renew it at the broker, or set this machine's clock"
        case _ if error.verify_code == _REVOKED:
            return "its CA has revoked its certificate: a CRL in the file of --broker-tls-ca has it"
        case _ if error.verify_code in _NO_CURRENT_CRL:
            return f"if the file of --broker-tls-ca has a CRL, it needs a current one of each CA ({message})"
        case 62 | 64:
            name = message.partition("valid for ")[2] or "the requested name"
            return f"its certificate is not for {name}: set --broker-tls-server-name to one in it"
        case _:
            reason = f"its certificate is not from a CA known here ({message})"
            return f"{reason}: give the CA's file as --broker-tls-ca"


def _alert(reason: str) -> str:
    return reason.partition(_ALERT)[2].strip("_").replace("_", " ").lower()


def short(error: ssl.SSLError) -> str:
    """Return OpenSSL's own text for the error, in lower case."""
    return (error.reason or str(error.args[-1])).replace("_", " ").lower()
