"""Fleets of gateways as `fetchgate top` shows them, and their drawing as text."""

import io
from dataclasses import replace
from pathlib import Path
from typing import Final

from rich.console import Console

from proxy.dashboard.choice import Selection
from proxy.dashboard.fleet import WORST_FIRST, Fleet, GatewayRow
from proxy.dashboard.fleet_view import frame
from proxy.dashboard.reports import Report, of_metrics, of_state
from proxy.dashboard.screen import Size
from proxy.dashboard.snapshot import parse
from tests.dashboard.scenes import SCENES

METRICS: Final = (Path(__file__).parents[1] / "golden" / "metrics.txt").read_text(encoding="utf-8") + (
    "process_cpu_seconds_total 12.5\nprocess_resident_memory_bytes 5.6e+07\n"
)
"""The metrics of a gateway in which each figure has a number of its own."""
COMMAND: Final = "kubectl exec -it --namespace shop {} -c fetchgate -- fetchgate top"


def report(scene: str, *, cpu: float = 10.0, memory: int = 54_000_000) -> Report:
    """Return the report of a gateway in a scene."""
    document = SCENES[scene]()
    document["connections"] = []
    document["process"] = {"cpu_seconds": cpu, "resident_bytes": memory}
    return of_state(parse(document))


def mixed() -> list[GatewayRow]:
    """Return a fleet in which something is wrong with most gateways."""
    pods = {
        "orders-7f9c6d5b8-x2x4z": "busy",
        "orders-7f9c6d5b8-q8r7w": "degraded",
        "billing-5d8f7c9b4-aaaaa": "idle",
        "audit-0": "off",
        "shipping-of-the-west-and-of-the-east-6c5f9d8b7-kkkkk": "draining",
        "search-6b7c8d9f5-zzzzz": "starting",
    }
    others = ("metrics-0", "silent-0", "pending-0", "new-0")
    fleet = Fleet(
        (name, "" if name == "pending-0" else f"10.0.{at}.7:9464", COMMAND.format(name))
        for at, name in enumerate((*pods, *others))
    )
    for name, scene in pods.items():
        fleet.add(name, report(scene), 100.0)
        fleet.add(name, report(scene, cpu=10.123 if scene == "off" else 10.8), 105.0)
    fleet.add("metrics-0", replace(of_metrics(METRICS), wrong=("all 500 session slots are taken",)), 105.0)
    fleet.fail("silent-0", "no response within 3 s", 40.0)
    fleet.fail("silent-0", "no response within 3 s", 103.0)
    fleet.fail("pending-0", "the pod has no address yet (Pending)", 105.0)
    return fleet.every(105.0)


def large() -> list[GatewayRow]:
    """Return a fleet of two hundred gateways, of which some have a problem."""
    fleet = Fleet((f"10.1.{at // 100}.{at % 100}:9464",) * 2 + ("",) for at in range(200))
    for at, row in enumerate(fleet.every(0.0)):
        if at % 40 == 11:
            fleet.fail(row.name, "Connection refused", 1.0)
        else:
            fleet.add(row.name, report("degraded" if at % 25 == 7 else "busy", memory=54_000_000 + at), 2.0)
    return fleet.every(75.0)


FLEETS: Final = {"mixed": mixed, "large": large}
CHOICES: Final = {
    "": WORST_FIRST,
    "by-memory": replace(WORST_FIRST, sort="memory"),
    "cursor": replace(WORST_FIRST, cursor="10.1.1.99:9464"),
    "filter": replace(WORST_FIRST, filter="ORDERS", typing=True),
    "paused": replace(WORST_FIRST, paused=True),
    "help": replace(WORST_FIRST, help=True),
    "pending": replace(WORST_FIRST, opened="pending-0"),
    "metrics": replace(WORST_FIRST, opened="metrics-0"),
    "left": replace(WORST_FIRST, opened="gone"),
}
NAMED: Final[dict[str, tuple[str, str, int, int | None]]] = {
    **{f"fleet-mixed-{w}x{h}": ("mixed", "", w, h) for w, h in ((80, 24), (120, 40), (200, 60))},
    "fleet-mixed-once": ("mixed", "", 80, None),
    "fleet-large-80x24": ("large", "", 80, 24),
    "fleet-large-80x12": ("large", "", 80, 12),
    "fleet-large-cursor-120x40": ("large", "cursor", 120, 40),
    **{
        f"fleet-mixed-{choice}-80x24": ("mixed", choice, 80, 24)
        for choice in CHOICES
        if choice not in {"", "cursor"}
    },
}
"""The stored frames by name: fleet, selection, width and height."""


def draw(
    rows: list[GatewayRow],
    choice: Selection,
    width: int,
    height: int | None,
    *,
    plain: bool = False,
    colours: str | None = None,
    without: int = 0,
) -> str:
    """Draw a fleet as text. Without a height, draw it as ``--once`` does."""
    file = io.StringIO()
    console = Console(
        file=file,
        width=width,
        height=height or 1000,
        force_terminal=bool(colours),
        color_system=colours,  # type: ignore[arg-type] # one of rich's names
        highlight=False,
        legacy_windows=False,
        _environ={},
    )
    size = Size(width=width, height=height, plain=plain)
    drawn = frame(rows, choice, size, without=without, keys=height is not None)
    console.print(drawn, soft_wrap=height is None, end="" if height else "\n")
    return file.getvalue()


def kept(name: str) -> str:
    """Draw a fleet as for the stored frame `name`."""
    fleet, choice, width, height = NAMED[name]
    without = 3 if fleet == "mixed" else 0
    text = draw(FLEETS[fleet](), CHOICES[choice], width, height, without=without)
    return "".join(f"{line.rstrip()}\n" for line in text.splitlines())
