"""Computes the table of docs/users/fleet.md from the documented costs: `python -m tools.fleet` writes it.

What a gateway uses follows from the costs of `replay measure --sidecar-cost` (`replay.measure.net`), which
`make bench` measures. What a sidecar reserves is in its manifest.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Final

import yaml

from proxy.command.config import load
from proxy.server.slots_check import DEFAULT_SLOTS, slots_for, usable
from replay.measure.net import AddressSums, need

ROOT: Final = Path(__file__).parent.parent
PAGE: Final = ROOT / "docs" / "users" / "fleet.md"
RENEW: Final = ".venv/bin/python -m tools.fleet"
MANIFEST: Final = ROOT / "tools" / "deploy" / "kubernetes" / "base" / "deployment.yaml"
SERVICES: Final = (200, 2_000)
BROKERS: Final = 3
SERVICE: Final = AddressSums(
    connections=5, requests=30, partitions=100, partitions_requested=1_000, record_bytes=100_000
)
"""What one service does in a second. Its one consumer of 100 partitions is connected to each broker, to its
coordinator and to the bootstrap. At each broker it fetches 33 partitions ten times."""
ON_A_NODE: Final = 20
CENTRAL: Final = 3
HEADER: Final = (
    "services",
    "gateways",
    "memory reserved (used)",
    "cores reserved (used)",
    "`--max-sessions`",
    "slots used at each broker",
)
_RESPONSES: Final = 5 / 4
"""The memory of responses and requests in flight, in `--max-inflight-bytes`: docs/users/run.md."""
_OTHER: Final = 76_000_000
"""The response completed at the limit, clients' sessions, and the leaders of partitions."""
_STEP: Final = 32 << 20
"""Reserved memory is rounded up to a multiple of this."""
_SPARE: Final = 2
"""Reserved CPU is this many times what is used on average, but at least what a sidecar reserves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gateways:
    """Some gateways alike, for all services."""

    where: str
    count: int
    services: int
    reserved_bytes: int
    reserved_millicores: float

    @property
    def used(self) -> tuple[int, float]:
        """The bytes of memory and the millicores that one of them uses, without responses in flight."""
        return used_bytes(self.services), _millicores(self.services)


def plans(services: int) -> list[Gateways]:
    """Return the three ways to run gateways for a number of services."""
    memory, millicores = sidecar()
    nodes = -(-services // ON_A_NODE)
    central = max(CENTRAL, ceil(_SPARE * _millicores(services) / 1_000))  # a gateway uses one core
    shares = {
        "sidecars": (services, 1),
        "one a node": (nodes, ON_A_NODE),
        "a few for all": (central, -(-services // central)),
    }
    return [
        Gateways(
            where=f"{where}: {count:,}",
            count=count,
            services=each,
            reserved_bytes=memory if each == 1 else shared_bytes(each),
            reserved_millicores=max(millicores, _SPARE * _millicores(each)),
        )
        for where, (count, each) in shares.items()
    ]


def _times(services: int) -> AddressSums:
    found = AddressSums()
    for _ in range(services):
        found.add(SERVICE)
    return found


def _millicores(services: int) -> float:
    return need(_times(services), 1)["cpu_millicores"]


def used_bytes(services: int) -> int:
    """Return a gateway's memory without responses in flight."""
    return need(_times(services), 1)["memory_bytes"]


def sidecar() -> tuple[int, int]:
    """Return the bytes of memory and the millicores that the manifest reserves for a sidecar."""
    pod = yaml.safe_load(MANIFEST.read_text(encoding="utf-8"))["spec"]["template"]["spec"]
    (found,) = [each for each in pod["initContainers"] if each["name"] == "fetchgate"]
    requests = found["resources"]["requests"]
    return int(requests["memory"].removesuffix("Mi")) << 20, int(requests["cpu"].removesuffix("m"))


def shared_bytes(services: int) -> int:
    """Return the memory to reserve for a gateway with default options and this number of services."""
    inflight = load({"bootstrap": "kafka:9092"}, {}, None).max_inflight_bytes
    worst = used_bytes(services) + round(_RESPONSES * inflight) + _OTHER
    return -(-worst // _STEP) * _STEP


def table() -> str:
    """Return the table in Markdown."""
    rows = [HEADER, ("---",) * len(HEADER), *_rows()]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _rows() -> Iterator[tuple[str, ...]]:
    for services in SERVICES:
        slots = slots_for(services) if services > usable(DEFAULT_SLOTS) else DEFAULT_SLOTS
        for plan in plans(services):
            memory, millicores = plan.used
            yield (
                f"{services:,}",
                plan.where,
                f"{_size(plan.count * plan.reserved_bytes)} ({_size(plan.count * memory)})",
                f"{_cores(plan.count * plan.reserved_millicores)} ({_cores(plan.count * millicores)})",
                f"{BROKERS * plan.services:,}",
                f"{services:,} of {slots:,}",
            )


def _size(count: float) -> str:
    gib = count / (1 << 30)
    if gib < 1:
        return f"{count / (1 << 20):.0f} MiB"
    return f"{gib:,.0f} GiB" if gib >= 10 else f"{gib:.1f} GiB"


def _cores(millicores: float) -> str:
    cores = millicores / 1_000
    return f"{cores:,.0f}" if cores >= 10 else f"{cores:.2g}"


def page(text: str) -> str:
    """Return the text of the page with the present table."""
    begin = re.escape(f"| {HEADER[0]} | {HEADER[1]} |")
    renewed, count = re.subn(f"^{begin}.*\n(?:\\|.*\n)+", lambda _: table(), text, flags=re.MULTILINE)
    if count != 1:
        raise ValueError(f"{PAGE} has {count} tables that begin with {HEADER[0]}")
    return renewed


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
