"""The page of metrics, alerts and the dashboard, from their declarations."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Any, Final

import yaml

from proxy.explained import Explained
from proxy.features.declared import FEATURES, NAMES
from proxy.prometheus.figure import COUNTER, Figure
from proxy.telemetry.metrics import FIGURES
from proxy.telemetry.status import REPORTS
from tools.pages.markdown import ROOT, anchor, item, marked, unit_of

ALERTS: Final = ROOT / "tools" / "deploy" / "alerts.yml"
DASHBOARD: Final = ROOT / "tools" / "deploy" / "grafana.json"
_METRIC: Final = re.compile(r"\bfetchgate_[a-z_]+?(?=_bucket\b|_count\b|_sum\b|[^a-z_])")
_INTRODUCTION: Final = """\
# Metrics

`make pages` writes this page from the declarations of metrics, alerts and the dashboard.
[Incidents](../users/incidents.md) says what to do.

## The admin endpoint

`--admin` (127.0.0.1:9464 by default) accepts GET and HEAD, one request for each connection.
[security.md](../users/security.md#the-admin-endpoint) says how to protect it, and which host names get 421.
OpenTelemetry's Prometheus exporter has the same default port.

| path | what it says |
|---|---|
| `/livez` | 200 while the event loop runs; for a liveness probe |
| `/readyz` | 200 for `ready` and `degraded`, 503 for `starting` and `draining`; JSON with the reasons |
| `/metrics` | metrics in Prometheus' text format; at most four new texts a second |
| `/state` | everything as JSON, by broker and by connection; `?connections=N` lists at most N of them |
| `/cooperative` | cooperative groups as JSON; 404 without `--cooperative` |

A `degraded` gateway still serves its clients, so it stays ready:
[what fails, and how](../users/incidents.md#what-fails-and-how).

## Metrics

`side` is `client` or `broker`. `broker` is the broker's id, or `bootstrap`; in transparent mode its
address, or `nowhere` for connections that were not redirected, or that came from the gateway itself. At
most 100 brokers have a label value: those with the lowest ids, or the first addresses since the start.
Labels of reasons have at most 50 values. The rest is `other`. No client id is a label.

All figures are exact counts; only the delay of the event loop is sampled. `process_...` and
`python_gc_...` are the standard metrics of Prometheus' client libraries.
"""


def page() -> str:
    """Return the text of the page."""
    return "\n".join([_INTRODUCTION, *_metrics(), *_explained(), *_alerts(), *_dashboard()])


def _metrics() -> Iterator[str]:
    yield from _items(FIGURES)
    for feature, reports in REPORTS:
        if added := [figure for figure in reports.figures if figure.text]:
            folder = NAMES[FEATURES.index(feature)].replace("_", " ")
            yield f"\n### {(feature.group or folder).capitalize()}\n\nFigures of `{feature.flag}`.\n"
            yield from _items(added)


def _items(figures: Iterable[Figure[Any]]) -> Iterator[str]:
    for figure in sorted(figures, key=_name):
        name, labels = _name(figure), ",".join(figure.labels)
        facts = ", ".join(filter(None, (figure.kind, unit_of(figure.name))))
        used = "".join(f" {kind}: {', '.join(where)}." for kind, where in _uses(name) if where)
        words = figure.words
        below = f" [The values](#{anchor(_title(words))})." if isinstance(words, type) else ""
        yield item(f"`{name}{f'{{{labels}}}' if labels else ''}`", facts, f"{figure.text}{below}{used}")
        if isinstance(words, Mapping):
            yield from (item(f"`{word}`", "", meaning, level=1) for word, meaning in words.items())


def _name(figure: Figure[Any]) -> str:
    return f"fetchgate_{figure.name}{'_total' if figure.kind == COUNTER else ''}"


def _title(words: type[Explained]) -> str:
    return (words.__doc__ or "").partition(":")[0]


def _explained() -> Iterator[str]:
    """Yield a section for each label whose values have remedies."""
    for words in (figure.words for figure in FIGURES if isinstance(figure.words, type)):
        yield f"\n## {_title(words)}\n"
        for word in words:
            remedy = f" *What to do*: {word.remedy}." if word.remedy else ""
            yield item(f"`{word}`", "", f"{word.meaning}.{remedy}")


@cache
def _rules() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load(ALERTS.read_text(encoding="utf-8"))["groups"]
    rules: list[dict[str, Any]] = group["rules"]
    return rules


@cache
def _rows() -> list[tuple[str, list[dict[str, Any]]]]:
    """Return the rows of the dashboard, each with its panels."""
    found: list[tuple[str, list[dict[str, Any]]]] = []
    for panel in json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"]:
        if panel["type"] == "row":
            found.append((panel["title"], panel["panels"]))
        else:
            found[-1][1].append(panel)
    return found


def _uses(name: str) -> Iterator[tuple[str, list[str]]]:
    """Yield which alerts and which rows of the dashboard use a metric."""
    yield "Alerts", [_link(rule) for rule in _rules() if name in _METRIC.findall(rule["expr"])]
    yield "Dashboard", [row for row, panels in _rows() if any(name in _asked(panel) for panel in panels)]


def _asked(panel: Mapping[str, Any]) -> list[str]:
    return _METRIC.findall(" ".join(target["expr"] for target in panel["targets"]))


def _alerts() -> Iterator[str]:
    yield "\n## Alerts\n"
    yield marked(
        "`tools/deploy/alerts.yml` has the rules; `promtool test rules tools/deploy/alerts.test.yml` runs "
        "their tests. `runbook_url` leads to docs/users/incidents.md: put the address where you browse these "
        "sources in front of it, with the command at the top of the file, or with `alerts.docs` of the chart."
    )
    yield ""
    for rule in _rules():
        notes = rule["annotations"]
        text = f"{notes['summary']}. {notes['description']}".replace(" at {{ $labels.instance }}", "")
        told = re.sub(r"\{\{ \$(?:labels\.)?(\w+) \}\}", lambda label: label[1].upper(), text)
        yield item(_link(rule), f"{rule['labels']['severity']}, after {rule['for']}", told)


def _link(rule: Mapping[str, Any]) -> str:
    return f"[{rule['alert']}](../{rule['annotations']['runbook_url'].removeprefix('docs/')})"


def _dashboard() -> Iterator[str]:
    yield "\n## Grafana\n"
    yield marked(
        "Import `tools/deploy/grafana.json`. The last rows are folded: they are empty for most gateways."
    )
    for row, panels in _rows():
        yield f"\n### {row}\n"
        yield from (item(panel["title"], "", panel["description"]) for panel in panels)
    yield ""
