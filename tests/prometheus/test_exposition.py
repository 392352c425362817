"""The text for Prometheus is that of `prometheus-client`."""

from typing import Any, Final

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    GCCollector,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from proxy.prometheus import exposition
from proxy.prometheus.exposition import Kind, family, of_garbage_collector, of_process

KINDS: Final[dict[Kind, Any]] = {"counter": CounterMetricFamily, "gauge": GaugeMetricFamily}
LABELS: Final = ("side", "broker", "zone")
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
values = st.one_of(st.integers(-(2**63), 2**63), st.floats())


class One(Collector):
    def __init__(self, metric: Metric) -> None:
        self.metric = metric

    def collect(self) -> list[Metric]:
        return [self.metric]


@given(
    kind=st.sampled_from(sorted(KINDS)),
    text=texts,
    count=st.integers(0, len(LABELS)),
    told=st.lists(st.tuples(st.tuples(texts, texts, texts), values), max_size=4),
)
def test_a_metric(kind: Kind, text: str, count: int, told: list[tuple[tuple[str, str, str], float]]) -> None:
    metric = KINDS[kind]("fetchgate_it", text, labels=LABELS[:count])
    for labels, value in told:
        metric.add_metric(labels[:count], value)
    samples = [("", labels[:count], value) for labels, value in told]
    written = "".join(family(kind, "fetchgate_it", text, samples, LABELS[:count]))
    assert written.encode() == generate_latest(One(metric))


@given(text=texts, label=texts, buckets=st.tuples(values, values), total=values)
def test_a_histogram(text: str, label: str, buckets: tuple[float, float], total: float) -> None:
    metric = HistogramMetricFamily("fetchgate_it", text, labels=("part",))
    metric.add_metric((label,), [("0.5", buckets[0]), ("+Inf", buckets[1])], total)
    samples = [
        ("_bucket", (label, "0.5"), buckets[0]),
        ("_bucket", (label, "+Inf"), buckets[1]),
        ("_count", (label,), buckets[1]),
        ("_sum", (label,), total),
    ]
    written = "".join(family("histogram", "fetchgate_it", text, samples, ("part",)))
    assert written.encode() == generate_latest(One(metric))


def heads(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("#")]


def test_the_process_and_its_garbage_collector() -> None:
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    GCCollector(registry=registry)
    theirs = generate_latest(registry).decode()
    ours = "".join((*of_process(), *of_garbage_collector()))
    assert heads(ours) == heads(theirs)
    mine, other = (
        {
            (sample.name, *sample.labels.values()): sample.value
            for each in text_string_to_metric_families(text)
            for sample in each.samples
        }
        for text in (ours, theirs)
    )
    assert mine.keys() == other.keys()
    for name in ("process_start_time_seconds", "process_open_fds", "process_max_fds"):
        assert mine[name,] == other[name,]
    for name in (
        "process_cpu_seconds_total",
        "process_resident_memory_bytes",
        "process_virtual_memory_bytes",
    ):
        assert 0 < mine[name,] < 2 * other[name,]


def test_the_type_of_the_content_is_that_of_the_library() -> None:
    assert exposition.CONTENT_TYPE == CONTENT_TYPE_LATEST
