"""Why a TLS connection was not decrypted."""

from typing import Final

TLS: Final = "TLS"
"""There is no key log."""
NO_SECRETS: Final = "TLS, no secrets in the key log"
"""Or they do not open it."""
NO_HANDSHAKE: Final = "TLS, handshake not captured"
UNSUPPORTED: Final = "TLS, version or cipher not supported"
RENEGOTIATED: Final = "TLS, renegotiated"
"""So its last part was not decrypted."""
ALL: Final = (TLS, NO_SECRETS, NO_HANDSHAKE, UNSUPPORTED, RENEGOTIATED)
