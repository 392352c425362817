"""Prometheus' text format, and what it tells of this process and of its garbage collector.

The text is the same as that of `prometheus-client`, as a test checks. That library imports an HTTP server and
an HTTP client, which take 4 MB of memory.
"""

import gc
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from math import inf, isinf, isnan
from pathlib import Path
from resource import RLIM_INFINITY, RLIMIT_NOFILE, getrlimit
from typing import Final, Literal, TypeAlias

CONTENT_TYPE: Final = "text/plain; version=1.0.0; charset=utf-8"
Kind: TypeAlias = Literal["counter", "gauge", "histogram"]
Sample: TypeAlias = tuple[str, tuple[str, ...], float]
"""The suffix of the metric's name, the label values, and the value."""

_LABEL_ESCAPES: Final = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})
_HELP_ESCAPES: Final = str.maketrans({"\\": r"\\", "\n": r"\n"})
_LONGEST_PLAIN: Final = 6
"""The most digits before the point that Go writes without an exponent."""


def family(
    kind: Kind, name: str, text: str, samples: Iterable[Sample], labels: Sequence[str] = ()
) -> Iterator[str]:
    """Yield the lines of a metric. Its name is without the suffix of a counter.

    A sample has a value for each label, and a bucket has one more, for ``le``.
    """
    full = f"{name}_total" if kind == "counter" else name
    yield f"# HELP {full} {text.translate(_HELP_ESCAPES)}\n"
    yield f"# TYPE {full} {kind}\n"
    for suffix, values, value in samples:
        pairs = sorted(zip((*labels, "le"), values, strict=False))
        listed = ",".join(f'{label}="{each.translate(_LABEL_ESCAPES)}"' for label, each in pairs)
        yield f"{full}{suffix}{f'{{{listed}}}' if listed else ''} {number(value)}\n"


def number(value: float) -> str:
    """Return a value as Go writes it. Prometheus' own library for Go sets the form."""
    if isnan(value):
        return "NaN"
    if isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    text = repr(float(value))
    digits = text.find(".")
    if value > 0 and digits > _LONGEST_PLAIN:
        mantissa = f"{text[0]}.{text[1:digits]}{text[digits + 1 :]}".rstrip("0.")
        return f"{mantissa}e+{digits - 1:02d}"
    return text


def of_process() -> Iterator[str]:
    """Yield the metrics of this process that every library of Prometheus has. Nothing without /proc."""
    with suppress(OSError):
        stat = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()
        booted = next(
            float(line.split()[1])
            for line in Path("/proc/stat").read_text(encoding="ascii").splitlines()
            if line.startswith("btime ")
        )
        ticks = os.sysconf("SC_CLK_TCK")
        yield from _gauge("virtual_memory_bytes", "Virtual memory size in bytes.", int(stat[20]))
        resident = int(stat[21]) * os.sysconf("SC_PAGE_SIZE")
        yield from _gauge("resident_memory_bytes", "Resident memory size in bytes.", resident)
        text = "Start time of the process since unix epoch in seconds."
        yield from _gauge("start_time_seconds", text, booted + int(stat[19]) / ticks)
        cpu = int(stat[11]) / ticks + int(stat[12]) / ticks
        text = "Total user and system CPU time spent in seconds."
        yield from family("counter", "process_cpu_seconds", text, [("", (), cpu)])
        open_fds = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - only their number counts
        yield from _gauge("open_fds", "Number of open file descriptors.", open_fds)
        limit, _ = getrlimit(RLIMIT_NOFILE)
        text = "Maximum number of open file descriptors."
        yield from _gauge("max_fds", text, inf if limit == RLIM_INFINITY else limit)


def _gauge(name: str, text: str, value: float) -> Iterator[str]:
    return family("gauge", f"process_{name}", text, [("", (), value)])


def of_garbage_collector() -> Iterator[str]:
    """Yield the metrics of Python's garbage collector."""
    generations = gc.get_stats()
    for name, text, key in (
        ("objects_collected", "Objects collected during gc", "collected"),
        ("objects_uncollectable", "Uncollectable objects found during GC", "uncollectable"),
        ("collections", "Number of times this generation was collected", "collections"),
    ):
        samples = [("", (str(each),), stats[key]) for each, stats in enumerate(generations)]
        yield from family("counter", f"python_gc_{name}", text, samples, ("generation",))
