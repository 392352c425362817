"""The options for TLS and SASL in connections to targets, named as in Kafka and in `fetchgate proxy`."""

from collections.abc import Mapping

from proxy.net.tls import broker_context
from proxy.text.options import ConfigError
from replay.drive.access import Access
from replay.drive.options import PASSWORD_VARIABLE, DriveOptions
from replay.drive.sasl import SaslCredentials


def accesses(options: DriveOptions, environ: Mapping[str, str]) -> tuple[Access, Access]:
    """Return the settings for connections to --target, and the settings for connections to --against.

    Raises:
        ConfigError: options or files can't be used.
    """
    protocols = options.protocols
    files = options.broker_tls_ca, options.broker_tls_cert, options.broker_tls_key
    tls = broker_context(*files) if any(protocol.endswith("SSL") for protocol in protocols) else None
    login = _login(options, environ) if any(protocol.startswith("SASL") for protocol in protocols) else None
    target, against = (
        Access(
            timeout=options.timeout,
            tls=tls if protocol.endswith("SSL") else None,
            server_name=options.broker_tls_server_name,
            login=login if protocol.startswith("SASL") else None,
        )
        for protocol in protocols
    )
    return target, against


def warning(options: DriveOptions) -> str:
    """Return a warning about insecure options, or "" if there are none."""
    if options.sasl_mechanism == "PLAIN" and "SASL_PLAINTEXT" in options.protocols:
        return "with SASL_PLAINTEXT and PLAIN the password can be read on the network; SASL_SSL encrypts it"
    return ""


def _login(options: DriveOptions, environ: Mapping[str, str]) -> SaslCredentials:
    if not options.sasl_mechanism:
        raise ConfigError("SASL needs --sasl-mechanism as well")
    if not options.sasl_username:
        raise ConfigError("SASL needs --sasl-username as well")
    file = options.sasl_password_file
    if file is None and PASSWORD_VARIABLE not in environ:
        raise ConfigError(f"SASL needs a password: in {PASSWORD_VARIABLE}, or in --sasl-password-file FILE")
    try:
        password = environ[PASSWORD_VARIABLE] if file is None else file.read_text(encoding="utf-8")
        password.encode()  # a variable that is not UTF-8 has lone surrogates
    except OSError as error:
        raise ConfigError(f"--sasl-password-file {file}: {error.strerror}") from None
    except UnicodeError:
        where = PASSWORD_VARIABLE if file is None else f"--sasl-password-file {file}"
        raise ConfigError(f"{where}: not UTF-8") from None
    # An editor or `echo` ends a file with a line end, which is no part of the password.
    password = password if file is None else password.removesuffix("\n").removesuffix("\r")
    return SaslCredentials(
        mechanism=options.sasl_mechanism, username=options.sasl_username, password=password
    )
