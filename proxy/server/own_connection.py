"""The gateway's own connections to leaders, for clients that have not authenticated."""

import asyncio
from time import monotonic
from typing import Final

from proxy.addresses import Address
from proxy.core.asking.repeat import ANSWER_SECONDS
from proxy.core.asking.siblings import ClientIdentity, Sibling
from proxy.core.own import TakeReply
from proxy.net.exchange import exchange
from proxy.net.tls import BrokerTls
from proxy.server.process import Process
from proxy.server.registry import BrokerRegistry

MOST: Final = 16
"""The maximum number of these connections at one time."""


class OwnConnections:
    """Opens connections for questions of clients that have no connection to a leader."""

    def __init__(self, process: Process, brokers: BrokerRegistry, tls: BrokerTls) -> None:
        self._process = process
        self._brokers = brokers
        self._tls = tls
        self._open = 0

    def connect(self, who: ClientIdentity, node_id: int) -> Sibling | None:
        """Return a connection for one question. None if the broker is not known, or if too many are open."""
        broker = self._brokers.known.get(node_id)
        return None if broker is None or self._open >= MOST else OwnConnection(self, who, broker.address)

    def ask(self, address: Address, frame: bytes, take: TakeReply) -> None:
        """Send a request. Call `take` with the response and the time; None if there is none."""
        self._open += 1  # the task begins later
        self._process.spawn(self._ask(address, frame, take))

    async def _ask(self, address: Address, frame: bytes, take: TakeReply) -> None:
        response = None
        secured, own = self._tls.connect_args(address.host), self._brokers.listeners
        try:
            response = await exchange(
                address, frame, self._process.resolver, secured, within=ANSWER_SECONDS, listeners=own
            )
        except (OSError, ValueError, asyncio.IncompleteReadError):  # TimeoutError is an OSError
            pass
        finally:
            self._open -= 1
            take(response, monotonic())


class OwnConnection:
    """A connection of the gateway's own, with the methods of `Sibling`.

    It is opened for the question, and closed after the response.
    """

    __slots__ = ("_address", "_connections", "_who")

    def __init__(self, connections: OwnConnections, who: ClientIdentity, address: Address) -> None:
        self._connections = connections
        self._who = who
        self._address = address

    def identity(self) -> ClientIdentity | None:
        return self._who

    def wait_left(self, _now: float) -> float:
        return 0.0  # nothing else is sent there

    def quiet(self, _now: float) -> bool:
        return True  # nothing else is sent there

    def ask(self, frame: bytes, take: TakeReply, _now: float, *, partitions: int = -1) -> None:  # noqa: ARG002
        self._connections.ask(self._address, frame, take)

    def count(self, _partitions: int, _record_bytes: int) -> None:
        """Count nothing: no fetch is sent there."""
