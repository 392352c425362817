"""Listening sockets: bound here, alone or beside another gateway's, or handed over by systemd."""

import errno
import os
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final
from weakref import WeakSet

from proxy.addresses import Address
from proxy.net.endpoint import keep_alive

BACKLOG: Final = 1024
"""Connections that may wait to be accepted: all clients come back at once when a gateway has left."""
_FIRST_INHERITED: Final = 3
"""sd_listen_fds(3): SD_LISTEN_FDS_START."""
UNUSABLE: Final = frozenset({errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT})
"""Errors of an IP that this machine does not have, or of an IP version; where there is another, it may do."""

Prepare = Callable[[socket.socket], None]


class OwnListenerError(OSError):
    """The gateway itself listens at an address already: EADDRINUSE, and no other gateway's leaving helps."""

    def __init__(self) -> None:
        super().__init__(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))


@dataclass(frozen=True, slots=True)
class Binding:
    """How one gateway comes to its listening sockets."""

    shares: bool = False
    """Others may listen at the same address (SO_REUSEPORT): a new gateway takes over while this drains."""
    inherited: Sequence[socket.socket] = ()
    """Sockets that listen already; they stay open when nobody is served at them any more."""
    _made: "WeakSet[socket.socket]" = field(default_factory=WeakSet)
    """Those that were given. The kernel does not refuse a second one where ports are shared, nor a second
    copy of one that was handed over: clients of both would come to either."""

    def bind(self, address: Address, *, prepare: Prepare | None = None) -> list[socket.socket]:
        """Listen at an address: at every IP that a name leads to and that this machine has.

        Args:
            address: where.
            prepare: takes each socket, before it is bound unless it was handed over.

        Raises:
            OSError: an IP is taken, or none could be bound.
            OwnListenerError: it is taken by a socket that was given before and is not closed yet.
        """
        bound: list[socket.socket] = []
        failure: OSError | None = None
        for family, at in _resolved(address):
            try:
                self._see_that_free(family, at)
                bound.append(self._inherited(family, at, prepare) or self._bound(family, at, prepare))
            except OSError as error:
                failure = error
                if error.errno not in UNUSABLE:
                    break
        if failure is not None and (not bound or failure.errno not in UNUSABLE):
            for sock in bound:
                sock.close()
            raise failure
        self._made.update(bound)
        return bound

    def _see_that_free(self, family: int, at: Any) -> None:
        for sock in self._made:
            if sock.fileno() >= 0 and sock.family == family and sock.getsockname()[:2] == at[:2]:
                raise OwnListenerError

    def _inherited(self, family: int, at: Any, prepare: Prepare | None) -> socket.socket | None:
        """Give a copy of the socket that listens there: closing it ends only ours."""
        for sock in self.inherited:
            if sock.family == family and sock.getsockname()[:2] == at[:2]:
                copy = sock.dup()
                try:
                    if prepare is not None:
                        prepare(copy)
                    keep_alive(copy)
                    copy.setblocking(False)
                except OSError:
                    copy.close()
                    raise
                return copy
        return None

    def _bound(self, family: int, at: Any, prepare: Prepare | None) -> socket.socket:
        sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            if prepare is not None:
                prepare(sock)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if self.shares:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            keep_alive(sock)
            sock.bind(at)
            sock.listen(BACKLOG)
            sock.setblocking(False)
        except OSError:
            sock.close()
            raise
        return sock


def inherited(environ: Mapping[str, str], pid: int) -> list[socket.socket]:
    """Take the sockets that systemd listens at for us (sd_listen_fds(3)).

    Args:
        environ: LISTEN_PID and LISTEN_FDS tell which they are.
        pid: our own number: the variables may be meant for a process that started us.
    """
    if environ.get("LISTEN_PID") != str(pid):
        return []
    count = environ.get("LISTEN_FDS", "")
    if not count.isascii() or not count.isdecimal():
        return []
    return list(_listening(range(_FIRST_INHERITED, _FIRST_INHERITED + int(count))))


def _listening(numbers: range) -> Iterator[socket.socket]:
    for number in numbers:
        with suppress(OSError):  # no socket: systemd hands over other files as well
            sock = socket.socket(fileno=number)
            sock.set_inheritable(False)
            if sock.family in {socket.AF_INET, socket.AF_INET6} and sock.type == socket.SOCK_STREAM:
                yield sock
            else:
                sock.detach()


def _resolved(address: Address) -> list[tuple[int, Any]]:
    """Give family and IP of each place that an address means.

    Raises:
        OSError: the name leads nowhere.
    """
    try:
        found = socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except UnicodeError as error:
        raise OSError(errno.EINVAL, f"{address.host[:64]!r} is no host name") from error
    if address.port == 0:
        found = found[:1]  # a free port is free for one family only
    return list(dict.fromkeys((int(family), at) for family, _, _, _, at in found))
