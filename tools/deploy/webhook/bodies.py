"""Reads the bodies of reviews: each within a size and a time, and all together within the memory of the pod.

Any pod may connect. A review of an API server has some 10 KB, and comes at once. So peers that are slow or
send much wait for each other, and reviews do not wait for them.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final

from starlette.requests import Request

MAX_BODY_BYTES: Final = 2 << 20
"""The longest AdmissionReview. etcd takes no pod of more than 1.5 MiB."""
BODY_SECONDS: Final = 5
"""How long a body may take. The API server waits no longer for its answer."""
MOST_REVIEWS: Final = 128
"""How many bodies are read at once. Further ones are refused."""
_SHORT_BYTES: Final = 64 << 10
_LONG_AT_ONCE: Final = 1
"""How many bodies of more than `_SHORT_BYTES` are read at once. As objects they take 25 times as much."""


class BusyError(Exception):
    """`MOST_REVIEWS` bodies are being read."""


class Bodies:
    """The bodies that are being read."""

    def __init__(self) -> None:
        self._reviews = 0
        self._long = asyncio.Semaphore(_LONG_AT_ONCE)

    @asynccontextmanager
    async def of(self, request: Request) -> AsyncIterator[bytearray]:
        """Read the body of a request. It counts as being read until the context ends.

        Raises:
            BusyError: too many are being read.
            TimeoutError: its end did not come within `BODY_SECONDS`.
            ValueError: it is longer than `MAX_BODY_BYTES`.
        """
        if self._reviews >= MOST_REVIEWS:
            raise BusyError
        self._reviews += 1
        try:
            async with AsyncExitStack() as room:
                async with asyncio.timeout(BODY_SECONDS):
                    body = await self._read(request, room)
                yield body
        finally:
            self._reviews -= 1

    async def _read(self, request: Request, room: AsyncExitStack) -> bytearray:
        body = bytearray()
        async for chunk in request.stream():
            size = len(body) + len(chunk)
            if size > MAX_BODY_BYTES:
                raise ValueError(f"more than {MAX_BODY_BYTES} bytes")
            if len(body) <= _SHORT_BYTES < size:
                await room.enter_async_context(self._long)
            body += chunk
        return body
