"""A client that shows how much other clients slow down its gateway.

    python -m tools.bench.bystander ADDRESS [CLIENT_ID]

The client sends a heartbeat, waits for the response, waits `EVERY_SECONDS`, and repeats. If its proxy is busy
with other clients, its responses take longer. The client begins at a line on stdin, and stops at the next
line. Then it prints its figures since it began. This repeats until stdin is closed.
"""

import asyncio
import json
import sys
import time
from typing import Final

import uvloop

from proxy.protocol.api import ApiKey
from tools.bench.passthrough import address
from tools.kafka.raw import frame, string

EVERY_SECONDS: Final = 0.01
CLIENT_ID: Final = "bystander"


def heartbeat(number: int, client_id: str | None = CLIENT_ID) -> bytes:
    """Build a Heartbeat v0. The broker does not know the group member in it, so it responds at once."""
    head = ApiKey.HEARTBEAT.to_bytes(2) + b"\0\0" + number.to_bytes(4) + string(client_id)
    return frame(head + string("group") + (1).to_bytes(4) + string("member"))


async def run(where: tuple[str, int], client_id: str) -> None:
    """Measure windows. Each window begins and ends with a line on stdin."""
    loop = asyncio.get_running_loop()
    reader, writer = await asyncio.open_connection(*where)
    number = 0
    print("ready", flush=True)
    while await loop.run_in_executor(None, sys.stdin.readline):
        ends = loop.run_in_executor(None, sys.stdin.readline)
        took: list[float] = []
        while not ends.done():
            number += 1
            began = time.perf_counter()
            writer.write(heartbeat(number, client_id))
            await reader.readexactly(int.from_bytes(await reader.readexactly(4)))
            took.append(time.perf_counter() - began)
            await asyncio.sleep(EVERY_SECONDS)
        print(json.dumps(figures(took)), flush=True)


def figures(took: list[float]) -> dict[str, float]:
    """Return the figures of a window by name: ``p50``, ``p99`` and ``most`` in ms, and ``count``."""
    ordered = sorted(took)
    at = {"p50": len(ordered) // 2, "p99": len(ordered) * 99 // 100, "most": -1}
    return {name: 1e3 * ordered[place] for name, place in at.items()} | {"count": len(ordered)}


if __name__ == "__main__":
    uvloop.run(run(address(sys.argv[1]), *(sys.argv[2:] or [CLIENT_ID])))
