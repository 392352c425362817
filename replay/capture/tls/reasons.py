"""Reasons why a TLS connection was not decrypted."""

from typing import Final

TLS: Final = "TLS"
"""The connection uses TLS, and no key log was given."""
NO_SECRETS: Final = "TLS, no secrets in the key log"
"""The key log has no secrets for the connection, or its secrets are wrong."""
NO_HANDSHAKE: Final = "TLS, handshake not captured"
UNSUPPORTED: Final = "TLS, version or cipher not supported"
RENEGOTIATED: Final = "TLS, renegotiated"
"""Client and broker negotiated new keys in the connection, so its last part was not decrypted."""
ALL: Final = (TLS, NO_SECRETS, NO_HANDSHAKE, UNSUPPORTED, RENEGOTIATED)
