"""Both directions of a TLS connection that was captured from its ClientHello on."""

from collections.abc import Callable

from replay.capture.tls.direction import PlaintextReceiver, TlsDirection
from replay.capture.tls.hello import client_random, server_hello
from replay.capture.tls.keylog import Secrets
from replay.capture.tls.keys import is_known, openers
from replay.capture.tls.reasons import NO_HANDSHAKE, NO_SECRETS, UNSUPPORTED


class TlsConversation:
    """The records of a connection. `client` and `server` get the data that these sent.

    `fail` is called with the reason, at most once, if nothing of the connection can be read.
    """

    def __init__(
        self,
        client: PlaintextReceiver,
        server: PlaintextReceiver,
        secrets: Secrets,
        fail: Callable[[str], None],
    ) -> None:
        self.client = TlsDirection(client, self._from_client, self._lost)
        self.server = TlsDirection(server, self._from_server, self._lost)
        self._secrets = secrets
        self._client_random = b""
        self._fail: Callable[[str], None] | None = fail

    @property
    def opened(self) -> bool:
        """Whether a record was decrypted, which proves that the secrets belong to this connection."""
        return self.client.started or self.server.started

    @property
    def renegotiated(self) -> bool:
        """Whether the last part of the connection can't be decrypted, because TLS negotiated new keys."""
        return self.client.renegotiated or self.server.renegotiated

    def finish(self) -> None:
        for direction in (self.client, self.server):
            direction.finish()
        self._lost()

    def _from_client(self, message: bytes) -> None:
        # After a HelloRetryRequest comes a second ClientHello, with the same random (RFC 8446, 4.1.2).
        random = client_random(message)
        if random is not None and self._secrets.has(random):
            self._client_random = random
        else:
            self._give_up(NO_SECRETS)

    def _from_server(self, message: bytes) -> None:
        hello = server_hello(message)
        if hello is None:
            return
        if not is_known(hello):
            self._give_up(UNSUPPORTED)
        elif found := openers(self._secrets, self._client_random, hello):
            self.client.opener, self.server.opener = found
        else:
            self._give_up(NO_SECRETS)

    def _lost(self) -> None:
        if not self.opened:
            self._give_up(NO_HANDSHAKE if self.client.opener is None else NO_SECRETS)

    def _give_up(self, reason: str) -> None:
        fail, self._fail = self._fail, None
        if fail is not None:
            self.client.lost = self.server.lost = True
            fail(reason)
