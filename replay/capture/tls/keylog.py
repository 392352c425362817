"""Secrets of TLS connections, as NSS, OpenSSL and others log them (SSLKEYLOGFILE).

Each line has a label, the client random of a connection, and a secret (draft-ietf-tls-keylogfile, 2).
"""

from typing import Final

MASTER: Final = b"CLIENT_RANDOM"
"""The label of the master secret of TLS 1.2 (RFC 5246, 8.1)."""
CLIENT: Final = b"CLIENT_TRAFFIC_SECRET_0"
"""The label of the secret for the client's data in TLS 1.3 (RFC 8446, 7.1)."""
SERVER: Final = b"SERVER_TRAFFIC_SECRET_0"
_SIZES: Final = {MASTER: (48,), CLIENT: (32, 48), SERVER: (32, 48)}
_RANDOM: Final = 32
_MOST_LINE: Final = 1 << 16


class Secrets:
    """The secrets of connections. Its repr shows no secret."""

    __slots__ = ("bad_lines", "by_connection", "first_bad_line", "lines")

    def __init__(self) -> None:
        self.by_connection: dict[bytes, bytes] = {}
        """By label and client random."""
        self.lines = 0
        self.bad_lines = 0
        self.first_bad_line = 0
        """Counted from 1. 0 if there is none."""

    def __len__(self) -> int:
        return len(self.by_connection)

    def __repr__(self) -> str:
        return f"<Secrets secrets={len(self)} lines={self.lines} bad_lines={self.bad_lines}>"

    def has(self, client_random: bytes) -> bool:
        return any(label + client_random in self.by_connection for label in _SIZES)

    def get(self, label: bytes, client_random: bytes) -> bytes | None:
        return self.by_connection.get(label + client_random)

    def merge(self, other: "Secrets") -> None:
        self.by_connection |= other.by_connection

    def add_line(self, line: bytes) -> None:
        """Read a line of a key log. Skip comments and secrets that are not needed."""
        self.lines += 1
        words = line.split()
        if not words or words[0].startswith(b"#"):
            return
        try:
            label, client_random, secret = words[0], *(bytes.fromhex(word.decode()) for word in words[1:])
        except ValueError:  # other than three words, or not hexadecimal
            self._bad()
            return
        if sizes := _SIZES.get(label):
            if len(client_random) != _RANDOM or len(secret) not in sizes:
                self._bad()
                return
            self.by_connection[label + client_random] = secret

    def _bad(self) -> None:
        self.bad_lines += 1
        self.first_bad_line = self.first_bad_line or self.lines


class KeyLogReader:
    """Reads a key log that arrives in pieces, line by line."""

    def __init__(self) -> None:
        self.secrets = Secrets()
        self._rest = b""

    def feed(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self.secrets.add_line(line)
        if len(self._rest) > _MOST_LINE:  # not a key log: what has no lines is not kept in memory
            self.secrets.add_line(self._rest[:_MOST_LINE])
            self._rest = b""

    def finish(self) -> Secrets:
        if self._rest:
            self.secrets.add_line(self._rest)
            self._rest = b""
        return self.secrets
