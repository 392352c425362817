"""Tasks that nobody awaits."""

import asyncio
from collections.abc import Coroutine
from typing import Any


class Tasks:
    """What runs until its owner ends.

    Args:
        loop: the event loop that runs it.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._tasks: set[asyncio.Task[None]] = set()

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a task and keep it alive."""
        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def cancel(self) -> None:
        """End all of them."""
        for task in list(self._tasks):
            task.cancel()
