"""Dashboards and alerts use only metrics that exist."""

import asyncio
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from proxy.core.events import NotFollowed
from proxy.features.cooperative.ranges import FULL
from proxy.features.cooperative.tally import Cooperative, LaneSeen, MemberSeen
from proxy.session.decision import Reason
from proxy.telemetry.metrics import FIGURES, exposition
from proxy.telemetry.status import REPORTS
from tests.shell import gateway, run, stub_broker

ROOT: Final = Path(__file__).parents[2]
ALERTS: Final = ROOT / "tools" / "deploy" / "alerts.yml"
ALERT_TESTS: Final = ROOT / "tools" / "deploy" / "alerts.test.yml"
DASHBOARD: Final = ROOT / "tools" / "deploy" / "grafana.json"
INCIDENTS: Final = ROOT / "docs" / "users" / "incidents.md"

SELECTOR = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)\s*(?:\{([^}]*)\})?")
MATCHER = re.compile(r"(\w+)\s*(?:=~|!~|!=|=)\s*\"([^\"]*)\"")
OF_PROMETHEUS: Final = frozenset({"job", "instance"})
ENDS: Final = {"counter": "_total", "gauge": "", "histogram": "_bucket"}
METRIC = re.compile(r"\b(?:fetchgate|process)_[a-z_]+")


MEMBER: Final = MemberSeen(
    client_id="billing.a",
    host="h",
    state="shares",
    lanes=[LaneSeen(topic="t", partition=0, ranges=FULL, position=1, lag=2)],
)
Series = dict[str, dict[str, set[str]]]


@pytest.fixture(scope="module")
def series() -> Series:
    """Return all metrics of a gateway, by name, each with its labels and their values."""
    found: Series = {"up": {}}

    async def scene() -> None:
        async with (
            stub_broker() as broker,
            gateway(broker.address, cooperative="billing", rack="R1", rack_clients="c") as gate,
        ):
            gate.monitor.totals.closed_tallies.clear()
            (tally := gate.server.account().total()).session_errors[70] = 1
            tally.passthrough[Reason.NO_SLOT] = 1
            tally.leaders_not_followed[NotFollowed.BUSY] = 1
            gate.monitor.totals.closed(1, tally)
            await asyncio.sleep(0)
            account = gate.server.account()
            groups = account.of(Cooperative)
            assert groups is not None
            groups.tally.refused[44] = 1
            groups.groups[0].members.append(MEMBER)
            account.status.certificates["tls_cert"] = 2e9
            text = exposition(account).decode()
            for family in text_string_to_metric_families(text):
                for sample in family.samples:
                    labels = found.setdefault(sample.name, {})
                    for name, value in sample.labels.items():
                        labels.setdefault(name, set()).add(value)

    run(scene())
    return found


@cache
def _rules() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load(ALERTS.read_text(encoding="utf-8"))["groups"]
    rules: list[dict[str, Any]] = group["rules"]
    return rules


@cache
def _panels() -> list[dict[str, Any]]:
    """Return all panels of the dashboard, those in folded rows as well. Rows are panels, too."""
    panels: list[dict[str, Any]] = json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"]
    return [each for panel in panels for each in (panel, *panel.get("panels", ()))]


def _expressions() -> Iterator[tuple[str, str]]:
    for rule in _rules():
        yield rule["alert"], rule["expr"]
    for panel in _panels():
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"]


def _unknown(series: Series, expression: str) -> Iterator[str]:
    """Yield what an expression asks for and no gateway has."""
    asked = [
        (name, matchers)
        for name, matchers in SELECTOR.findall(expression)
        if matchers or METRIC.fullmatch(name) or name == "up"
    ]
    if not asked:
        yield "any metric"
    for name, matchers in asked:
        if name not in series:
            yield name
            continue
        for label, value in MATCHER.findall(matchers):
            if label in OF_PROMETHEUS:
                continue
            if not any(re.fullmatch(value, told) for told in series[name].get(label, ())):
                yield f'{name}{{{label}="{value}"}}'
    labels = {"le", *OF_PROMETHEUS, *(label for of_series in series.values() for label in of_series)}
    for grouped in re.findall(r"(?:by|without)\s*\(([^)]*)\)", expression):
        yield from {label.strip() for label in grouped.split(",")} - labels


def test_every_series_and_label_that_is_asked_for_exists(series: Series) -> None:
    unknown = {where: [*_unknown(series, expression)] for where, expression in _expressions()}
    assert {where: what for where, what in unknown.items() if what} == {}


@pytest.mark.parametrize(
    ("expression", "unknown"),
    [
        ("rate(fetchgate_missing_total[5m])", ["fetchgate_missing_total"]),
        (
            'fetchgate_fetches_total{side="broker", kind="odd", job="a"}',
            ['fetchgate_fetches_total{kind="odd"}'],
        ),
        ('fetchgate_fetches_total{sides="broker"}', ['fetchgate_fetches_total{sides="broker"}']),
        ("sum by (job, brokers) (fetchgate_ready)", ["brokers"]),
        ("1 + 1", ["any metric"]),
    ],
)
def test_what_does_not_exist_would_be_found(series: Series, expression: str, unknown: list[str]) -> None:
    assert [*_unknown(series, expression)] == unknown


def test_what_is_saved_is_less_what_the_gateway_itself_asked() -> None:
    both = [
        (where, expression)
        for where, expression in _expressions()
        if {'"client"', '"broker"'} <= set(re.findall(r'request_bytes_total{[^}]*side=("\w+")', expression))
    ]
    assert len(both) == 3
    for where, expression in both:
        assert "fetchgate_probe_bytes_total" in expression, where


def test_every_alert_tells_who_what_and_how_bad() -> None:
    for rule in _rules():
        assert set(rule) == {"alert", "expr", "for", "labels", "annotations"}, rule["alert"]
        assert rule["labels"]["severity"] in {"info", "warning", "critical"}
        of_all = rule["expr"].startswith("sum by (job, broker)")
        assert ("$labels.broker" if of_all else "$labels.instance") in rule["annotations"]["summary"]
        assert rule["annotations"]["description"].endswith((".", "?"))


def test_every_alert_leads_to_what_to_do() -> None:
    headings = re.findall(r"^### (\w+)$", INCIDENTS.read_text(encoding="utf-8"), re.MULTILINE)
    for rule in _rules():
        path, _, anchor = rule["annotations"]["runbook_url"].partition("#")
        assert (ROOT / path) == INCIDENTS
        assert anchor == rule["alert"].lower()
    assert headings == [rule["alert"] for rule in _rules()]


def test_each_line_of_the_log_that_is_explained_is_written() -> None:
    page = INCIDENTS.read_text(encoding="utf-8").partition("\n## The log\n")[2].partition("\n## ")[0]
    cells = re.findall(r"^\| (`.+?) \|", page, re.MULTILINE)
    lines = [line for cell in cells for line in re.findall("`(.+?)`", cell)]
    code = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "proxy").rglob("*.py"))
    assert len(lines) > len(cells) > 0
    assert [line for line in lines if line not in code] == []


def test_every_alert_is_seen_to_fire() -> None:
    """Each alert has a promtool test in which it fires. Another test runs promtool where it is installed."""
    tests = yaml.safe_load(ALERT_TESTS.read_text(encoding="utf-8"))["tests"]
    fired = {case["alertname"] for each in tests for case in each["alert_rule_test"] if "exp_alerts" in case}
    assert fired == {rule["alert"] for rule in _rules()}


def test_each_value_of_a_label_is_explained_if_one_is(series: Series) -> None:
    figures = [*FIGURES, *(figure for _, reports in REPORTS for figure in reports.figures)]
    explained = [figure for figure in figures if figure.words is not None]
    for figure in explained:
        name = f"fetchgate_{figure.name}{ENDS[figure.kind]}"
        assert series[name][figure.labels[-1]] <= set(figure.words or ()), name
    assert len(explained) > 20


def test_panels_do_not_lie_on_each_other() -> None:
    shown = [panel for panel in _panels() if panel["type"] == "row" or not _is_folded(panel)]
    folded = [panel["panels"] for panel in shown if panel["type"] == "row"]
    for panels in (shown, *folded):
        taken: set[tuple[int, int]] = set()
        for panel in panels:
            at = panel["gridPos"]
            places = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
            assert at["x"] + at["w"] <= 24
            assert not places & taken, panel["title"]
            taken |= places
    assert len({panel["id"] for panel in _panels()}) == len(_panels())


def _is_folded(panel: dict[str, Any]) -> bool:
    """Return whether a panel is shown only if somebody opens its row."""
    return any(panel in row.get("panels", ()) for row in _panels())


PROMTOOL: Final = shutil.which("promtool")


@pytest.mark.slow
@pytest.mark.skipif(PROMTOOL is None, reason="no promtool here: python -m tools.debian fetches it")
@pytest.mark.parametrize(
    "command", [["check", "rules", ALERTS.name], ["test", "rules", ALERT_TESTS.name]], ids=" ".join
)
def test_promtool_finds_nothing(command: list[str]) -> None:
    done = subprocess.run(
        [PROMTOOL or "", *command], cwd=ALERTS.parent, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.skipif(PROMTOOL is None, reason="no promtool here: python -m tools.debian fetches it")
def test_promtool_takes_the_job_of_injected_gateways(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "users" / "kubernetes.md").read_text(encoding="utf-8")
    (job,) = re.findall(r"```yaml\n(scrape_configs:.*?)```", page, re.DOTALL)
    # Debian's promtool was built without the discovery of Kubernetes.
    job, count = re.subn(r"kubernetes_sd_configs:\n +- role: pod\n", "static_configs: []\n", job)
    assert count == 1
    (tmp_path / "prometheus.yml").write_text(job)
    command = [PROMTOOL or "", "check", "config", "prometheus.yml"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.skipif(PROMTOOL is None, reason="no promtool here: python -m tools.debian fetches it")
def test_promtool_takes_every_panel(tmp_path: Path) -> None:
    rules = [
        {"record": f"panel{number}", "expr": expression.replace("$__rate_interval", "5m")}
        for number, (_, expression) in enumerate(_expressions())
    ]
    (tmp_path / "rules.yml").write_text(json.dumps({"groups": [{"name": "panels", "rules": rules}]}))
    done = subprocess.run(
        [PROMTOOL or "", "check", "rules", "rules.yml"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
