"""The supervisor's view of a worker process: messages to and from it, its clients, its end."""

import asyncio
import os
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from itertools import count
from time import monotonic
from typing import Any, Final

from proxy.server.ipc import Channel, HandedOver, receive_connection, respond, send_connection
from proxy.server.process import Process
from proxy.telemetry.history import INTERVAL_SECONDS
from proxy.telemetry.status import Counts
from proxy.telemetry.totals import NodeId

ASK_SECONDS: Final = 0.8
"""How long a worker may take to respond before it counts as silent, in seconds. A Kubernetes probe waits one
second."""
LEAVE_SECONDS: Final = 2.0
"""How much longer than the time for draining a worker may take to report that it has drained, in seconds."""
FULL_SECONDS: Final = 1.0
"""How long a worker without free file descriptors gets no clients, in seconds."""
EXIT_SECONDS: Final = 5.0
"""How long the supervisor waits for a worker's exit after the worker closed its channel, in seconds. Mostly
the exit takes a millisecond."""
_EXIT_POLL_SECONDS: Final = 0.01
_BUSY_STEPS: Final = 20
"""How many steps `WorkerHandle.busy` has for one core. Smaller differences between workers do not matter."""


class WorkerHandle:
    """A worker process, and the sockets to it.

    Args:
        process: the supervisor's process.
        number: the number of the worker, from 1 on.
        memory: the descriptor of the memory that all workers share.
        received: called for each message to the supervisor: ``up``; ``learned`` (the brokers); ``replicas``
            (what the other workers have to know of them); ``hand over`` (a stream, the broker, the client);
            ``ended`` (the exit code). A negative exit code is a signal. None means that the worker has closed
            its channel and did not exit.
        respond: returns the response to a blocking question.

    Raises:
        OSError: the process can't be started.
    """

    def __init__(
        self,
        process: Process,
        number: int,
        memory: int,
        received: Callable[..., None],
        respond: Callable[..., object],
    ) -> None:
        self.number = number
        self.up = False
        """Whether the worker is ready to serve."""
        self.silent = False
        """Whether the worker has not responded to the last question of the supervisor."""
        self.full_until = 0.0
        """Until this time, in seconds, the worker gets no clients, because it had no free file descriptor."""
        self.open: Counter[NodeId] = Counter()
        """The number of the worker's connections, by listener."""
        self.counts = Counts()
        """The counts that the worker has reported last."""
        self.busy = 0
        """How much of a core the worker has used recently, in twentieths."""
        self.started_at = monotonic()
        self._measured_at = (self.started_at, 0.0)
        self._loop = process.loop
        self._tell = received
        self._find = respond
        self._questions: dict[int, asyncio.Future[Any]] = {}
        self._numbers = count(1)  # never reused: a late response must not match a later question
        self._drained: asyncio.Future[int] | None = None
        self._channel = Channel(self._received, self._lost)
        pairs = [
            socket.socketpair(socket.AF_UNIX, kind)
            for kind in (socket.SOCK_STREAM, socket.SOCK_SEQPACKET, socket.SOCK_SEQPACKET)
        ]
        self._messages, self._clients, self._asks = (ours for ours, _ in pairs)
        descriptors = [*(theirs.fileno() for _, theirs in pairs), memory]
        arguments = (*descriptors, number, process.config.workers)
        try:  # -P and the path: the worker imports the same modules, and nothing from the working directory
            self._process = subprocess.Popen(  # noqa: S603 - our own interpreter
                [sys.executable, "-P", "-m", "proxy.server.worker", *map(str, arguments)],
                env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                pass_fds=descriptors,
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # the supervisor alone handles a terminal's signals
            )
        except OSError:
            for ours, _ in pairs:
                ours.close()
            raise
        finally:
            for _, theirs in pairs:
                theirs.close()
        for ours, _ in pairs:
            ours.setblocking(False)

    def __repr__(self) -> str:
        return f"<WorkerHandle {self.number} pid={self._process.pid} up={self.up} open={self.open.total()}>"

    async def begin(self, *arguments: object) -> None:
        """Begin to read the worker's messages, and send it the arguments of its start."""
        self._loop.add_reader(self._asks.fileno(), self._respond)
        self._loop.add_reader(self._clients.fileno(), self._hand_over)
        await self._channel.connect(self._loop, self._messages)
        self.send("begin", *arguments)

    def send(self, name: str, *what: object) -> None:
        """Send a message to the worker."""
        self._channel.send(name, *what)

    async def ask(self, what: str, *more: object, within: float = ASK_SECONDS) -> Any:
        """Ask the worker, and return the response.

        Return None if the worker has ended, or does not respond within `within` seconds.
        """
        number = next(self._numbers)
        response = self._questions[number] = self._loop.create_future()
        self.send("ask", number, what, *more)
        try:
            async with asyncio.timeout(within):
                result = await response
        except TimeoutError:
            self.silent = True
            return None
        else:
            self.silent = False
            return result
        finally:
            del self._questions[number]

    def send_client(self, client: socket.socket, node_id: NodeId) -> bool:
        """Send a client's connection to the worker. Return whether it could be sent."""
        try:
            send_connection(self._clients, client, node_id)
        except OSError:
            return False
        self.open[node_id] += 1
        return True

    def send_handed_over(self, stream: socket.socket, node_id: NodeId, handed: HandedOver) -> bool:
        """Send this worker a client that another worker has accepted. Return whether it could be sent."""
        try:
            send_connection(self._clients, stream, node_id, handed)
        except OSError:
            return False
        return True

    async def drain(self, within: float) -> int:
        """Let the worker drain, and return how many connections it has cut off."""
        if not self.up:
            return 0
        self._drained = self._loop.create_future()
        self.send("drain", within)
        try:
            async with asyncio.timeout(within + LEAVE_SECONDS):
                return await self._drained
        except TimeoutError:
            return self.open.total()

    def end(self) -> None:
        """Kill the worker if it is still running."""
        self.up = False
        if self._asks.fileno() < 0:
            return
        self._loop.remove_reader(self._asks.fileno())
        self._loop.remove_reader(self._clients.fileno())
        self._channel.close()
        for sock in (self._clients, self._asks):
            sock.close()
        self._process.kill()
        self._process.wait()

    def update_counts(self, counts: Counts) -> None:
        """Keep the counts that the worker has reported. From time to time, measure how busy it is."""
        self.counts = counts
        now, used = monotonic(), sum(each.cpu_seconds for each in counts.processes)
        then, before = self._measured_at
        if now - then >= INTERVAL_SECONDS:
            self.busy = round(_BUSY_STEPS * (used - before) / (now - then))
            self._measured_at = (now, used)

    def _received(self, name: str, *what: Any) -> None:
        if name == "left":
            self.open[what[0]] -= 1
        elif name == "full":
            self.open[what[0]] -= 1
            self.full_until = monotonic() + FULL_SECONDS
        elif name == "response":
            number, result = what
            response = self._questions.get(number)
            if response is not None and not response.done():
                response.set_result(result)
        elif name == "drained":
            cut_off, self.counts = what
            if self._drained is not None and not self._drained.done():
                self._drained.set_result(cut_off)
        else:
            self.up |= name == "up"
            self._tell(self, name, *what)

    def _respond(self) -> None:
        try:
            respond(self._asks, self._find)
        except BlockingIOError:
            return
        except OSError:
            self._loop.remove_reader(self._asks.fileno())

    def _hand_over(self) -> None:
        """Receive a client that this worker hands over. The supervisor passes it to another worker."""
        try:
            received = receive_connection(self._clients)
        except BlockingIOError:
            return
        except OSError:
            received = None
        if received is None:
            self._loop.remove_reader(self._clients.fileno())
        elif received.client is not None and received.handed is not None:
            self._tell(self, "hand over", received.client, received.node_id, received.handed)

    def _lost(self) -> None:
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(self.open.total())
        for response in self._questions.values():
            if not response.done():
                response.set_result(None)
        self.up = False  # the worker gets no more clients and questions, even while it exits
        self._report_exit(self._loop.time() + EXIT_SECONDS)

    def _report_exit(self, end: float) -> None:
        """Report the exit code when the process has exited.

        Report None if it is still running at the time `end`.
        """
        code = self._process.poll()
        if code is None and self._loop.time() < end:
            self._loop.call_later(_EXIT_POLL_SECONDS, self._report_exit, end)
        else:
            self._tell(self, "ended", code)
