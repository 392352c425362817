"""A proxy that only forwards, and counts what passes: requests by API, and the broker's bytes.

    python -m tools.bench.counted HOST:PORT HOST:PORT

It listens at the first address, and connects to the second. It prints `ready`, and then for each line on
stdin one JSON object: the totals so far. It ends when its stdin is closed.
"""

import asyncio
import json
import struct
import sys
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, Self

import uvloop

from tools.bench.passthrough import FloorSide, address
from tools.bench.processes import Load

_HEAD: Final = struct.Struct(">ih")
"""The begin of a request: the number of bytes that follow the first four, and the API key."""
_AFTER_LENGTH: Final = 4


@dataclass(slots=True)
class Passed:
    """What has passed through the proxy."""

    requests: Counter[int] = field(default_factory=Counter)
    from_broker: int = 0

    def __sub__(self, before: Self) -> "Passed":
        return Passed(self.requests - before.requests, self.from_broker - before.from_broker)


class RequestCounter:
    """Counts the requests in the bytes of one connection."""

    __slots__ = ("_head", "_left", "_requests")

    def __init__(self, requests: Counter[int]) -> None:
        self._requests = requests
        self._head = b""
        """The first bytes of a request, if not yet all bytes of its head have come."""
        self._left = 0

    def feed(self, data: bytes) -> None:
        """Count the requests that begin in the next bytes of the connection."""
        at = 0
        while at < len(data):
            if self._left:
                step = min(self._left, len(data) - at)
                self._left -= step
            else:
                step = min(_HEAD.size - len(self._head), len(data) - at)
                self._head += data[at : at + step]
                if len(self._head) == _HEAD.size:
                    size, key = _HEAD.unpack(self._head)
                    self._requests[key] += 1
                    self._head, self._left = b"", size + _AFTER_LENGTH - _HEAD.size
            at += step


class CountedSide(FloorSide):
    """The client's side of a connection."""

    __slots__ = ("_counter", "_passed")

    def __init__(self, target: tuple[str, int], passed: Passed) -> None:
        super().__init__(target)
        self._passed = passed
        self._counter = RequestCounter(passed.requests)

    def write(self, data: bytes) -> None:
        """Send bytes of the broker to the client."""
        self._passed.from_broker += len(data)
        super().write(data)

    def buffer_updated(self, nbytes: int) -> None:
        """Count the requests in the received bytes, and send the bytes on."""
        self._counter.feed(bytes(self.get_buffer(nbytes)[:nbytes]))
        super().buffer_updated(nbytes)


class CountingProxy(Load):
    """The process of this module."""

    def __init__(self, listen: str, target: str) -> None:
        super().__init__("tools.bench.counted", listen, target)
        self.address = listen

    def passed(self) -> Passed:
        """Return the totals so far."""
        told = self.pause()
        requests = Counter({int(key): count for key, count in told["requests"].items()})
        return Passed(requests, told["from_broker"])


async def _serve(listen: tuple[str, int], target: tuple[str, int]) -> None:
    loop, passed = asyncio.get_running_loop(), Passed()
    server = await loop.create_server(lambda: CountedSide(target, passed), *listen)

    def asked() -> None:
        if not sys.stdin.readline():
            server.close()
            return
        _print({"requests": passed.requests, "from_broker": passed.from_broker})

    loop.add_reader(sys.stdin.fileno(), asked)
    print("ready", flush=True)
    with suppress(asyncio.CancelledError):
        await server.serve_forever()


def _print(document: dict[str, Any]) -> None:
    print(json.dumps(document), flush=True)


if __name__ == "__main__":
    uvloop.run(_serve(address(sys.argv[1]), address(sys.argv[2])))
