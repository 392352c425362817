"""Latency from produce to consume at a constant rate with linger 0: what a proxy adds.

The producer always connects directly. There is a consumer for each route, connected all the time, with its
own topic. Short windows alternate between the routes. Each is compared with the direct window of the same
round.
"""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from statistics import median
from typing import Any, Final

from tools.bench.figures import GATEWAY, Row, Table
from tools.bench.load import WARM_UP as NOT_COUNTED
from tools.bench.processes import Load
from tools.bench.stage import Stage

ROUNDS: Final = 4
QUICK_ROUNDS: Final = 2
SHARE: Final = 5
"""Windows are so many times shorter than in other parts: four seconds."""
WARM_UP: Final = 0.5
"""Seconds at the start of a window that are not counted."""
LIMITS: Final = ((500, 0.10), (2000, 0.12))
"""Records a second, and the most milliseconds that the gateway may add at the median."""
BYTES: Final = 200

Windows = Mapping[str, Mapping[str, Any]]
"""p50, p99 (ms) and count of each window of one route, by its number."""


def run(stage: Stage) -> list[Table]:
    """Measure both rates."""
    return [_table(rate, limit, _measured(stage, rate)) for rate, limit in LIMITS]


def _measured(stage: Stage, rate: int) -> dict[str, Windows]:
    rounds = QUICK_ROUNDS if stage.quick else ROUNDS
    stage.report(f"latency: {rounds} rounds of all routes at {rate:,} records/s ...")
    with ExitStack() as stack:
        routes = {"direct": stage.broker.address, "floor": stack.enter_context(stage.floor()).address}
        if (haproxy := stage.haproxy()) is not None:
            routes["haproxy"] = stack.enter_context(haproxy).address
        routes[GATEWAY] = stack.enter_context(stage.gateway()).address
        topics = {name: stack.enter_context(stage.topic(1)) for name in routes}
        consumers = {
            name: stack.enter_context(Load("tools.bench.load", "consume", address, topics[name])).ready()
            for name, address in routes.items()
        }
        for topic in topics.values():
            _produce(stage, topic, rate, NOT_COUNTED)
        for number in range(rounds):
            for name in turned(list(routes), number):
                _produce(stage, topics[name], rate, number)
        return {name: load.finish()["windows"] for name, load in consumers.items()}


def turned(names: Sequence[str], by: int) -> list[str]:
    """Return the order of routes in a round: each begins with another one, every second is reversed."""
    by %= len(names)
    order = [*names[by:], *names[:by]]
    return order[::-1] if by % 2 else order


def _produce(stage: Stage, topic: str, rate: int, window: int) -> None:
    command = ["tools.bench.load", "produce", stage.broker.address, topic, f"--rate={rate}"]
    command += [f"--bytes={BYTES}", f"--window={window}", f"--warm-up={WARM_UP}"]
    with Load(*command, f"--seconds={WARM_UP + stage.seconds / SHARE}") as load:
        load.ready().result()


def _table(rate: int, limit: float, measured: Mapping[str, Windows]) -> Table:
    p50 = {name: median(each["p50"] for each in windows.values()) for name, windows in measured.items()}
    p99 = {name: median(each["p99"] for each in windows.values()) for name, windows in measured.items()}
    added = {
        name: median(beside(windows, measured["direct"], "p50", difference=True))
        for name, windows in measured.items()
        if name != "direct"
    }
    against = {
        name: median(beside(windows, measured["floor"], "p99", difference=False))
        for name, windows in measured.items()
        if name != "floor"
    }
    rows = [
        Row(name="p50", unit="ms", values=p50),
        Row(name="added to p50", unit="ms", values=added, limit=limit),
        Row(name="p99", unit="ms", values=p99),
        Row(name="p99 in the floor's", unit="times", values=against, limit=1.0),
    ]
    notes = ["Medians of windows; differences and ratios are those of windows of the same round."]
    if "haproxy" not in measured:
        notes.append("haproxy is not installed here.")
    title = f"Latency: {rate:,} records/s of {BYTES} bytes, produce to consume"
    return Table(part="latency", title=title, rows=rows, notes=notes)


def beside(windows: Windows, others: Windows, what: str, *, difference: bool) -> list[float]:
    """Compare each window with that of another route in the same round: difference or ratio."""
    pairs = [(windows[each][what], others[each][what]) for each in windows if each in others]
    return [own - other if difference else own / other for own, other in pairs]
