"""Connects to the admin endpoint of a gateway, for `fetchgate top`: address, TLS, and token."""

import asyncio
import ssl
from dataclasses import dataclass
from pathlib import Path

from proxy.addresses import LOOPBACK_OF, Address
from proxy.text.error_text import reason_of, short
from proxy.text.options import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminReader:
    """The admin endpoint of a gateway, and how to connect to it."""

    address: Address
    tls: ssl.SSLContext | None = None
    token: str = ""

    def __str__(self) -> str:
        return f"https://{self.address}" if self.tls else str(self.address)

    @property
    def authorization(self) -> str:
        return f"Authorization: Bearer {self.token}\r\n" if self.token else ""

    async def connect(self, limit: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect to the endpoint. If its address is a wildcard, connect to loopback.

        Raises:
            OSError: nobody listens at the address, or TLS fails.
        """
        host = LOOPBACK_OF.get(self.address.host, self.address.host)
        return await asyncio.open_connection(host, self.address.port, limit=limit, ssl=self.tls)

    def why_no_response(self, error: OSError | EOFError) -> str:
        if isinstance(error, ssl.SSLCertVerificationError):
            return f"its certificate is not accepted ({error.verify_message}); give its CA as --ca FILE"
        if isinstance(error, ssl.SSLError):
            return f"TLS failed ({short(error)}); if it has no --admin-cert, leave out https://"
        if isinstance(error, (EOFError, ConnectionResetError)) and not self.tls:
            return f"it closed the connection; if it has --admin-cert, give --admin https://{self.address}"
        return reason_of(error)

    def why_refused(self) -> str:
        return (
            "it refuses the token of --token-file"
            if self.token
            else "it requires a token; give --token-file FILE"
        )


def tls_context(ca: Path | None) -> ssl.SSLContext:
    """Return the TLS context for endpoints with a certificate. None for the CAs of the system.

    Raises:
        ConfigError: the file with the CAs can't be used.
    """
    try:
        return ssl.create_default_context(cafile=ca)
    except (OSError, ValueError) as error:
        reason = short(error) if isinstance(error, ssl.SSLError) else reason_of(error)
        raise ConfigError(f"--ca {ca}: give CA certificates in PEM ({reason})") from None
