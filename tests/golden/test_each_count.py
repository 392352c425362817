"""Each count of the account has a metric."""

from typing import Any, Final

from proxy.core.events import SideTally, Tally
from proxy.telemetry.status import Account
from tests.golden.made import account, metrics

NOT_SHOWN: Final = {
    "produce_bytes": "a feature shows it",
    "process": "the metrics that each process has, and `/state`",
}
"""The counts that have no metric, each with the reason."""


def _add_one(figures: Any, name: str) -> bool:
    """Add one to a count, or to each of several counts. Return False if the field has something else."""
    value = getattr(figures, name)
    if isinstance(value, int):
        setattr(figures, name, value + 1)
        return True
    keys = range(len(value)) if isinstance(value, list) else value if isinstance(value, dict) else ()
    counts = [key for key in keys if isinstance(value[key], int)]
    for key in counts:
        value[key] += 1
    return bool(counts)


def test_each_count_has_a_metric() -> None:
    """CONTRIBUTING, "Add a metric": each field that counts is a row of `FIGURES`, too."""
    usual = metrics(account())
    counted, shown = set(), set()
    for kind in (Tally, SideTally, Account):
        for name in kind.__slots__:
            changed = account()
            tally = changed.tallies[1]
            figures: Any = {Tally: tally, SideTally: tally.broker, Account: changed}[kind]
            if _add_one(figures, name):
                counted.add(name)
                if metrics(changed) != usual:
                    shown.add(name)
    assert len(counted) > 25
    assert counted - shown == NOT_SHOWN.keys()
