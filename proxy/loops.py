"""The event loop: uvloop's where there is a wheel of it for this platform, else asyncio's own."""

import asyncio
from collections.abc import Callable

__all__ = ["new_event_loop"]

new_event_loop: Callable[[], asyncio.AbstractEventLoop]
try:
    from uvloop import new_event_loop
except ImportError:  # no wheel for this platform: the same gateway, slower
    from asyncio import new_event_loop
