"""Replaces the name server in tests. Some domains are answered, others are not."""

import socket
from collections import Counter
from threading import Event
from typing import Any, Final

SILENT: Final = "silent.example"
"""The domain of a name server that does not respond."""
DEAD: Final = "dead.example"
"""The domain of a name server that answers at once: this name does not exist."""
WAIT_SECONDS: Final = 20.0
"""The longest time that a silent name server waits. It is reached only if a test fails."""


class Names:
    """Replaces ``getaddrinfo`` in tests, with names, IPs and delays that the test sets."""

    def __init__(self) -> None:
        self.ips = {"broker.example": "127.0.0.1"}
        self.lookups: Counter[str] = Counter()
        """Number of look-ups for each name, with any result."""
        self._silent = SILENT
        self._spoken = Event()
        self._real = socket.getaddrinfo

    @property
    def ended(self) -> bool:
        """Return whether a look-up of a silent name has ended."""
        return self._spoken.is_set()

    def be_silent(self, domain: str) -> None:
        """Let look-ups in this domain hang until `end` or `speak` is called. Answer other domains at once."""
        self._silent = domain

    def speak(self, ips: dict[str, str]) -> None:
        """Answer the look-ups that hang, with these IPs by name."""
        self.ips |= ips
        self.end()

    def end(self) -> None:
        """End the look-ups that hang. Names without an IP fail."""
        self._spoken.set()

    def getaddrinfo(self, host: Any, *more: Any, **named: Any) -> Any:
        name = host.decode() if isinstance(host, bytes) else str(host)
        if not name.endswith((".example", self._silent)):
            return self._real(host, *more, **named)
        self.lookups[name] += 1
        if name.endswith(self._silent) and not self._spoken.wait(WAIT_SECONDS):
            self.end()
        if name not in self.ips:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return self._real(self.ips[name], *more, **named)
