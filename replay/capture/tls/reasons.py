"""Why a TLS connection was not decrypted."""

from typing import Final

TLS: Final = "TLS"
"""There are no secrets for it, or wrong ones."""
NO_HANDSHAKE: Final = "TLS, handshake not captured"
UNSUPPORTED: Final = "TLS, version or cipher not supported"
RENEGOTIATED: Final = "TLS, renegotiated"
"""So its last part was not decrypted."""
ALL: Final = (TLS, NO_HANDSHAKE, UNSUPPORTED, RENEGOTIATED)
