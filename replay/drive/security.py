"""The options for TLS and SASL in connections to targets, named as in Kafka and in `fetchgate proxy`."""

import argparse
import os
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from replay.drive.access import Access
from replay.drive.sasl import MECHANISMS, SaslCredentials

PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
"""The possible values of Kafka's security.protocol."""
PASSWORD_VARIABLE: Final = "FETCHGATE_SASL_PASSWORD"  # noqa: S105 - the name of a variable


class SecurityError(ValueError):
    """An option or a file can't be used. The text is one line, and names the option."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options for TLS and SASL to a parser."""
    parser.add_argument(
        "--security-protocol",
        choices=PROTOCOLS,
        default="PLAINTEXT",
        metavar="PROTOCOL",
        help=f"how --target is reached: {', '.join(PROTOCOLS)} (default: PLAINTEXT)",
    )
    parser.add_argument(
        "--against-security-protocol",
        choices=PROTOCOLS,
        metavar="PROTOCOL",
        help="the same for --against (default: that of --target)",
    )
    parser.add_argument(
        "--sasl-mechanism", choices=MECHANISMS, metavar="MECHANISM", help=f"{', '.join(MECHANISMS)}"
    )
    parser.add_argument("--sasl-username", metavar="NAME", help="the user's name")
    parser.add_argument(
        "--sasl-password-file",
        type=Path,
        metavar="FILE",
        help="the file with the user's password; without this option, the password is in "
        f"{PASSWORD_VARIABLE}",
    )
    parser.add_argument(
        "--broker-tls-ca",
        type=Path,
        metavar="FILE",
        help="the CA certificates (PEM) for checking certificates of targets; by default those of the system",
    )
    parser.add_argument(
        "--broker-tls-server-name",
        metavar="NAME",
        default="",
        help="the host name in targets' certificates; by default the host of each connection",
    )
    parser.add_argument(
        "--broker-tls-cert",
        type=Path,
        metavar="FILE",
        help="a client certificate for targets that require one (ssl.client.auth), in PEM",
    )
    parser.add_argument(
        "--broker-tls-key",
        type=Path,
        metavar="FILE",
        help="the private key of --broker-tls-cert in PEM, without a passphrase; by default it is in the "
        "file of --broker-tls-cert",
    )


def accesses(args: argparse.Namespace, environ: Mapping[str, str]) -> tuple[Access, Access]:
    """Return the settings for connections to --target, and the settings for connections to --against.

    Raises:
        SecurityError: options or files can't be used.
    """
    protocols = args.security_protocol, args.against_security_protocol or args.security_protocol
    if not any(protocol.endswith("SSL") for protocol in protocols):
        _refuse(args, "broker_tls_", "SSL or SASL_SSL")
    if not any(protocol.startswith("SASL") for protocol in protocols):
        _refuse(args, "sasl_", "SASL_PLAINTEXT or SASL_SSL")
    tls = _context(args) if any(protocol.endswith("SSL") for protocol in protocols) else None
    login = _login(args, environ) if any(protocol.startswith("SASL") for protocol in protocols) else None
    target, against = (
        Access(
            timeout=args.timeout,
            tls=tls if protocol.endswith("SSL") else None,
            server_name=args.broker_tls_server_name,
            login=login if protocol.startswith("SASL") else None,
        )
        for protocol in protocols
    )
    return target, against


def warning(args: argparse.Namespace) -> str:
    """Return a warning about insecure options, or "" if there are none."""
    if args.sasl_mechanism == "PLAIN" and "SASL_PLAINTEXT" in {
        args.security_protocol,
        args.against_security_protocol,
    }:
        return "with SASL_PLAINTEXT and PLAIN the password can be read on the network; SASL_SSL encrypts it"
    return ""


def _refuse(args: argparse.Namespace, prefix: str, protocols: str) -> None:
    """Raise an error for options that would have no effect, for the user expects one (encryption)."""
    for name, value in vars(args).items():
        if name.startswith(prefix) and value:
            flag = "--" + name.replace("_", "-")
            raise SecurityError(f"{flag} has no effect alone: give --security-protocol {protocols} as well")


def _login(args: argparse.Namespace, environ: Mapping[str, str]) -> SaslCredentials:
    for name in ("sasl_mechanism", "sasl_username"):
        if not getattr(args, name):
            raise SecurityError(f"SASL needs --{name.replace('_', '-')} as well")
    file = args.sasl_password_file
    if file is None and PASSWORD_VARIABLE not in environ:
        raise SecurityError(f"SASL needs a password: in {PASSWORD_VARIABLE}, or in --sasl-password-file FILE")
    try:
        password = environ[PASSWORD_VARIABLE] if file is None else file.read_text(encoding="utf-8")
        password.encode()  # a variable that is not UTF-8 has lone surrogates
    except OSError as error:
        raise SecurityError(f"--sasl-password-file {file}: {error.strerror}") from None
    except UnicodeError:
        where = PASSWORD_VARIABLE if file is None else f"--sasl-password-file {file}"
        raise SecurityError(f"{where}: not UTF-8") from None
    # An editor or `echo` ends a file with a line end, which is no part of the password.
    password = password if file is None else password.removesuffix("\n").removesuffix("\r")
    return SaslCredentials(mechanism=args.sasl_mechanism, username=args.sasl_username, password=password)


def _context(args: argparse.Namespace) -> ssl.SSLContext:
    ca, cert, key = args.broker_tls_ca, args.broker_tls_cert, args.broker_tls_key
    if key is not None and cert is None:
        raise SecurityError("--broker-tls-key has no effect alone: give --broker-tls-cert FILE as well")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        if ca is None:
            context.load_default_certs()
        else:
            context.load_verify_locations(cafile=ca)
    except OSError as error:
        raise SecurityError(f"--broker-tls-ca {ca}: {_why(error, 'it has no certificate in PEM')}") from None
    if cert is not None:
        try:
            context.load_cert_chain(cert, key, password=_no_passphrase)
        except SecurityError as error:
            raise SecurityError(f"--broker-tls-key {key or cert}: {error}") from None
        except OSError as error:
            why = _why(error, "it and --broker-tls-key are not a certificate and its key in PEM")
            raise SecurityError(f"--broker-tls-cert {cert}: {why}") from None
    return context


def _why(error: OSError, otherwise: str) -> str:
    return otherwise if isinstance(error, ssl.SSLError) or not error.errno else os.strerror(error.errno)


def _no_passphrase() -> str:
    """Raise an error. OpenSSL calls this callback instead of asking for a passphrase at the terminal."""
    raise SecurityError("the key is encrypted; give one without a passphrase")
