"""The declaration of a metric: its name, its text, and how its values are read."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import inf
from typing import Any, Final, Generic, NamedTuple, TypeAlias, TypeVar

from proxy.core.histograms import Distribution
from proxy.explained import Explained
from proxy.prometheus.exposition import Kind, Sample, family

_Source = TypeVar("_Source")
COUNTER: Final[Kind] = "counter"
GAUGE: Final[Kind] = "gauge"
HISTOGRAM: Final[Kind] = "histogram"
MAX_REASONS: Final = 50
"""The most values of a label whose values come from clients or brokers. Others are counted as `other`."""
Value: TypeAlias = float | Distribution
Labelled: TypeAlias = Iterable[tuple[tuple[str, ...], Value]]
"""The values of a metric, each with its label values."""


@dataclass(frozen=True, slots=True)
class Figure(Generic[_Source]):
    """A metric for Prometheus, and how its values are read."""

    kind: Kind
    name: str
    """Without the prefix ``fetchgate_``, and without the suffix ``_total`` of a counter."""
    text: str
    """What it is, also on the page of metrics. Empty if a base's metric has this name."""
    read: Callable[[_Source], Value | Labelled | None]
    """None leaves the metric out."""
    labels: tuple[str, ...] = ()
    words: Mapping[str, str] | type[Explained] | None = None
    """The values of the last label, each with its meaning."""

    def bound(self, source: _Source) -> "Told":
        return Told(self, self.read(source))


class Told(NamedTuple):
    """A metric with its present values."""

    figure: Figure[Any]
    values: Value | Labelled | None

    def samples(self) -> Iterator[Sample]:
        found = () if self.values is None else self.values
        listed: Labelled = [((), found)] if isinstance(found, int | float | Distribution) else found
        return (sample for labels, value in listed for sample in _samples(labels, value))


def families(base: Iterable[Told], more: Iterable[Told]) -> Iterator[str]:
    """Yield the lines of all metrics, in Prometheus' format.

    A metric in `more` that has the name of another one adds its values to that one, before its own.
    """
    joined: dict[tuple[Kind, str], list[Told]] = {}
    for each in (*base, *more):
        if each.values is not None:
            joined.setdefault((each.figure.kind, each.figure.name), []).insert(0, each)
    for told in joined.values():
        first = told[-1].figure
        samples = (sample for each in told for sample in each.samples())
        yield from family(first.kind, f"fetchgate_{first.name}", first.text, samples, first.labels)


def _samples(labels: tuple[str, ...], value: Value) -> Iterator[Sample]:
    # A distribution has a sample for each bucket, its count and its sum.
    if not isinstance(value, Distribution):
        yield "", labels, value
        return
    count = 0
    for bound, counted in zip((*value.bounds, inf), value.counts, strict=True):
        count += counted
        yield "_bucket", (*labels, "+Inf" if bound == inf else str(bound)), count
    yield "_count", labels, count
    yield "_sum", labels, value.total


def one_label(values: Mapping[Any, Value] | Iterable[tuple[Any, Value]]) -> Labelled:
    """Return values for a metric with one label."""
    pairs = values.items() if isinstance(values, Mapping) else values
    return (((str(label),), value) for label, value in pairs)


def named(counts: Mapping[Any, int], names: Iterable[str]) -> Labelled:
    """Return the count of each label value in `names`, even if the count is 0."""
    return [((name,), counts.get(name, 0)) for name in names]


def both(client: Value, broker: Value) -> Labelled:
    """Return a value for each side."""
    return [(("client",), client), (("broker",), broker)]


def bounded(counts: Counter[str]) -> list[tuple[str, int]]:
    """Return the `MAX_REASONS` most common label values. The value `other` has the sum of the rest."""
    common = counts.most_common(MAX_REASONS)
    rest = counts.total() - sum(count for _, count in common)
    return [*common, ("other", rest)] if rest else common
