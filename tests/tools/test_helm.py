"""The Helm chart renders the same objects as the overlays of kustomize, and all of them are valid."""

import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final, cast

import pytest
import yaml

from proxy.command.config import load
from proxy.features.limits.options import LimitOptions
from tests.tools.test_deploy import (
    DEPLOY,
    DOCS,
    KUBERNETES,
    MODES,
    assert_options,
    environment_of,
    pod_of,
    rendered,
)
from tests.tools.test_release import VERSION, program
from tools import helm

CHART: Final = DEPLOY / "helm" / "fetchgate"
EVERYTHING: Final = (
    "podMonitor.enabled=true",
    "networkPolicy.enabled=true",
    "podDisruptionBudget.enabled=true",
    "replicas=2",
    'config=sessions = "on"',
)
HELM: Final = helm.program()
needs_helm = pytest.mark.skipif(HELM is None, reason="no helm here, and none for this machine")


def of_the_chart(test: Callable[..., None]) -> Callable[..., None]:
    """Mark a test that renders the chart, which takes long. It is skipped without helm."""
    marked: Callable[..., None] = pytest.mark.nightly(needs_helm(test))
    return marked


def ran(
    command: str, *values: str, bootstrap: str = "kafka:9092", release: Sequence[str] = ("kafka-client",)
) -> subprocess.CompletedProcess[str]:
    arguments = [*release, str(CHART)] if command == "template" else ["--strict", str(CHART)]
    given = (*values, f"bootstrap={bootstrap}") if bootstrap else values
    settings = [word for value in given for word in ("--set", value)]
    return subprocess.run(
        [HELM or "helm", command, *arguments, "--kube-version", "1.31.0", *settings],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def documents(
    *values: str, bootstrap: str = "kafka:9092", release: Sequence[str] = ("kafka-client",)
) -> dict[str, dict[str, Any]]:
    """Render the Helm chart with the given values. Return its documents by kind."""
    done = ran("template", *values, bootstrap=bootstrap, release=release)
    assert done.returncode == 0, done.stderr
    return {document["kind"]: document for document in yaml.safe_load_all(done.stdout) if document}


@of_the_chart
@pytest.mark.parametrize("mode", MODES)
def test_the_chart_is_linted(mode: str) -> None:
    for values in ((), EVERYTHING):
        done = ran("lint", f"mode={mode}", *values)
        assert done.returncode == 0, done.stdout
        assert "WARNING" not in done.stdout


@of_the_chart
@pytest.mark.parametrize("mode", MODES)
def test_without_a_bootstrap_nothing_is_rendered(mode: str) -> None:
    done = ran("template", f"mode={mode}", bootstrap="")
    assert (done.returncode, done.stdout) == (1, "")
    assert "bootstrap is not set: give the brokers' addresses" in done.stderr
    assert ran("lint", f"mode={mode}", bootstrap="").returncode == 0, "the chart itself is well"


@of_the_chart
@pytest.mark.parametrize("mode", MODES)
def test_a_pod_of_the_chart_is_that_of_the_overlay(mode: str) -> None:
    def by_name(container: dict[str, Any]) -> dict[str, Any]:
        return {**container, "env": environment_of(container) if "env" in container else {}}

    chart, overlay = pod_of(documents(f"mode={mode}")["Deployment"]), pod_of(rendered(mode))
    for key in ("initContainers", "containers"):
        assert list(map(by_name, chart.pop(key))) == list(map(by_name, overlay.pop(key)))
    assert chart == overlay


@of_the_chart
@pytest.mark.parametrize("mode", MODES)
def test_all_that_the_chart_makes_is_valid_by_the_schema_of_kubernetes(mode: str) -> None:
    validate = pytest.importorskip("kubernetes_validate", reason="no kubernetes-validate here").validate
    made = documents(f"mode={mode}", *EVERYTHING)
    assert made.keys() == {"Deployment", "ConfigMap", "NetworkPolicy", "PodDisruptionBudget", "PodMonitor"}
    monitor = made.pop("PodMonitor")  # no kind of Kubernetes' own
    for document in made.values():
        for version in ("1.29", "1.31"):
            validate(document, version, strict=True)
    labels = made["Deployment"]["spec"]["template"]["metadata"]["labels"].items()
    selectors = [
        monitor["spec"]["selector"],
        made["Deployment"]["spec"]["selector"],
        made["PodDisruptionBudget"]["spec"]["selector"],
        made["NetworkPolicy"]["spec"]["podSelector"],
    ]
    assert all(selector["matchLabels"].items() <= labels for selector in selectors)
    sidecar = pod_of(made["Deployment"])["initContainers"][0]
    assert_options(environment_of(sidecar))
    (port,) = sidecar["ports"]
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    assert (endpoint["port"], endpoint["path"]) == (port["name"], "/metrics")
    (rule,) = made["NetworkPolicy"]["spec"]["ingress"]
    assert rule["ports"] == [{"port": port["containerPort"], "protocol": "TCP"}]


@of_the_chart
def test_the_alerts_know_the_job_of_the_pod_monitor() -> None:
    """The alerts match the job that the Prometheus operator names after the PodMonitor's namespace and name.

    The pod has no prometheus.io annotations. With them, Prometheus would scrape it twice.
    """
    made = documents(*EVERYTHING)
    job = f"default/{made['PodMonitor']['metadata']['name']}"
    jobs = re.findall(r'job=~"([^"]+)"', (DEPLOY / "alerts.yml").read_text())
    assert jobs
    assert all(re.fullmatch(pattern, job) for pattern in jobs)
    annotations = made["Deployment"]["spec"]["template"]["metadata"]["annotations"]
    assert not any(name.startswith("prometheus.io/") for name in annotations), "it would be scraped twice"


@of_the_chart
def test_the_chart_s_alerts_are_those_of_the_file_and_lead_to_where_the_sources_are() -> None:
    (group,) = yaml.safe_load((DEPLOY / "alerts.yml").read_text())["groups"]
    for docs, before in (("", ""), ("https://git.example/fetchgate/", "https://git.example/fetchgate/")):
        rule = documents("alerts.enabled=true", f"alerts.docs={docs}")["PrometheusRule"]
        (made,) = rule["spec"]["groups"]
        for alert in group["rules"]:
            (same,) = (each for each in made["rules"] if each["alert"] == alert["alert"])
            annotations = same["annotations"]
            assert annotations["runbook_url"] == before + alert["annotations"]["runbook_url"]
            assert {**same, "annotations": alert["annotations"]} == alert


FIXED: Final = ("the process with one client", "sessions that the gateway gives", "the newest leaders")
"""The rows of the documented worst case that no option of a manifest changes."""
UNREAD_BYTES: Final = 900_000
"""What a client that does not read may take, in the process and in the system."""


def costs(column: int) -> dict[str, int]:
    """Return a column of the documented worst case of memory: MB by row. 1 is the default, 2 a sidecar."""
    text = DOCS[DOCS.index("| what | default | sidecar |") : DOCS.index("| memory that is requested |")]
    rows = re.findall(r"^\| (.+?) \| ([\d*-]+) \| ([\d*-]+) \|$", text, re.MULTILINE)
    found = {row[0]: row[column].strip("*") for row in rows if row[0] != "---"}
    return {name: int(told) for name, told in found.items() if told != "-"}


def worst_case(environment: Mapping[str, str]) -> int:
    """Return the worst case of memory with these options in bytes, by the documented sum.

    Connections count where an option says how many there may be.
    """
    given = {} if "FETCHGATE_TRANSPARENT" in environment else {"bootstrap": "kafka:9092"}
    config = load(given, environment, None)
    rows = costs(1)
    fixed = sum(next(rows[row] for row in rows if row.startswith(start)) for start in FIXED)
    response = config.of(LimitOptions).max_fetch_bytes.get("", 0) or 50 << 20
    connections = config.max_connections if "FETCHGATE_MAX_CONNECTIONS" in environment else 0
    return fixed * 1_000_000 + response + config.max_inflight_bytes * 5 // 4 + connections * (32 << 10)


def memory(container: dict[str, Any], kind: str) -> int:
    text = container["resources"][kind]["memory"]
    assert text.endswith("Mi")
    return int(text[:-2]) << 20


@cache
def sidecars() -> list[dict[str, Any]]:
    return [pod_of(rendered(mode))["initContainers"][0] for mode in MODES]


@cache
def far() -> dict[str, Any]:
    (document,) = yaml.safe_load_all((KUBERNETES / "overlays" / "link-far" / "deployment.yaml").read_text())
    (container,) = pod_of(document)["containers"]
    return cast("dict[str, Any]", container)


def test_the_documented_worst_cases_follow_from_the_options() -> None:
    for column, container in ((1, far()), (2, sidecars()[0])):
        rows = costs(column)
        assert sum(rows.values()) == 2 * rows["**sum**"]
        assert rows["**sum**"] == pytest.approx(worst_case(environment_of(container)) / 1e6, abs=1)


def test_the_manifests_request_the_memory_of_the_documented_worst_case() -> None:
    for container in (*sidecars(), far()):
        worst = worst_case(environment_of(container))
        assert worst <= memory(container, "requests") <= worst + (32 << 20)
        assert memory(container, "requests") < memory(container, "limits")


def test_the_limit_of_a_sidecar_is_enough_for_clients_that_do_not_read() -> None:
    kept = sum(told for row, told in costs(2).items() if row.startswith(FIXED)) * 1_000_000
    for container in sidecars():
        connections = int(environment_of(container)["FETCHGATE_MAX_CONNECTIONS"])
        assert kept + connections * UNREAD_BYTES <= memory(container, "limits")


def test_a_sidecar_requests_little() -> None:
    """An idle one takes 40 MB: 96 MiB have room for what the options allow, and no more."""
    assert {memory(container, "requests") for container in sidecars()} == {96 << 20}
    assert {memory(container, "limits") for container in sidecars()} == {192 << 20}


def test_compose_and_systemd_limit_the_memory_to_no_less() -> None:
    service = yaml.safe_load((DEPLOY / "compose" / "compose.yaml").read_text())["services"]["fetchgate"]
    assert worst_case(service["environment"]) <= int(service["mem_limit"].removesuffix("m")) << 20
    unit = (DEPLOY / "systemd" / "fetchgate.service").read_text()
    (limit,) = re.findall(r"^MemoryMax=(\d+)M$", unit, re.MULTILINE)
    assert worst_case({}) <= int(limit) << 20


@of_the_chart
@pytest.mark.parametrize("inflight", [16 << 20, 256 << 20, 1 << 30])
@pytest.mark.parametrize("response", [0, 4 << 20])
@pytest.mark.parametrize("connections", [150, 5000])
def test_the_chart_requests_what_its_options_ask_for(inflight: int, response: int, connections: int) -> None:
    values = (f"maxInflightBytes={inflight}", f"maxFetchBytes={response}", f"maxConnections={connections}")
    sidecar = pod_of(documents(*values)["Deployment"])["initContainers"][0]
    environment = environment_of(sidecar)
    config = load({"bootstrap": "kafka:9092"}, environment, None)
    assert (config.max_inflight_bytes, config.max_connections) == (inflight, connections)
    assert config.of(LimitOptions).max_fetch_bytes.get("", 0) == response
    worst = worst_case(environment)
    assert worst <= memory(sidecar, "requests") <= worst + (33 << 20)
    assert memory(sidecar, "limits") == 2 * memory(sidecar, "requests")


@of_the_chart
@pytest.mark.parametrize(
    ("mesh", "outbound", "inbound"),
    [
        (
            "istio",
            "traffic.sidecar.istio.io/excludeOutboundPorts",
            "traffic.sidecar.istio.io/excludeInboundPorts",
        ),
        ("linkerd", "config.linkerd.io/skip-outbound-ports", "config.linkerd.io/skip-inbound-ports"),
    ],
)
def test_a_mesh_leaves_the_brokers_and_the_metrics_port_alone(mesh: str, outbound: str, inbound: str) -> None:
    made = documents(f"mesh={mesh}", r"brokerPorts=9092\,9094")
    annotations = made["Deployment"]["spec"]["template"]["metadata"]["annotations"]
    assert (annotations[outbound], annotations[inbound]) == ("9092,9094", "9465")
    assert outbound in DOCS
    assert inbound in DOCS


@of_the_chart
@pytest.mark.parametrize(
    ("value", "named"),
    [
        ("mode=nat", ("mode", "explicit", "redirect", "tproxy")),
        ("image.digest=sha256:12", ("digest", "oes not match pattern")),
        ("brokerPorts=kafka", ("brokerPorts", "oes not match pattern")),
        ("podmonitor.enabled=true", ("dditional propert", "podmonitor")),
        # In the injector's ConfigMap no API server checks it, and no pod would get the gateway.
        ("extraEnv[0].name=FETCHGATE_MAX_SESSIONS,extraEnv[0].value=12", ("extraEnv", "string")),
    ],
)
def test_a_wrong_value_is_refused_and_named(value: str, named: tuple[str, ...]) -> None:
    """The Helm chart refuses a wrong value, and the error contains the name of the value.

    The test checks words that all versions of helm use in this error.
    """
    done = ran("template", value)
    assert done.returncode == 1
    assert "values don't meet the specifications" in done.stderr
    assert [word for word in named if word not in done.stderr] == []


@of_the_chart
def test_a_client_with_the_gateway_s_user_is_refused_where_it_would_pass_by() -> None:
    users = "client.securityContext.runAsUser=61092"
    assert "give it another one" in ran("template", "mode=redirect", users).stderr.lower()
    assert ran("template", "mode=explicit", users).returncode == 0


@of_the_chart
@pytest.mark.parametrize("mode", ["redirect", "tproxy"])
def test_rules_that_fail_open_are_watched_beside_the_gateway(mode: str) -> None:
    validate = pytest.importorskip("kubernetes_validate", reason="no kubernetes-validate here").validate
    deployment = documents(f"mode={mode}", "failOpen=true")["Deployment"]
    validate(deployment, "1.31", strict=True)
    _, rules = pod_of(deployment)["initContainers"]
    _, laid = pod_of(rendered(mode))["initContainers"]
    assert (rules["restartPolicy"], rules["args"]) == ("Always", ["watch", *laid["args"][1:]])
    assert rules["startupProbe"]["exec"]["command"] == ["transparent.sh", "show"]


@of_the_chart
def test_a_budget_for_one_replica_is_left_out() -> None:
    """A single replica gets no PodDisruptionBudget, because it would prevent draining the node."""
    assert "PodDisruptionBudget" not in documents("podDisruptionBudget.enabled=true")


@of_the_chart
def test_an_image_is_named_by_digest_if_there_is_one() -> None:
    digest = "sha256:" + "a" * 64
    sidecar, _ = pod_of(documents("mode=redirect", f"image.digest={digest}")["Deployment"])["initContainers"]
    assert sidecar["image"] == f"fetchgate@{digest}"


def test_chart_and_images_have_the_version_of_the_release() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (VERSION, VERSION)


# -- tools.helm


@pytest.mark.nightly
def test_helm_is_downloaded_once_and_found_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FETCHGATE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}/bin")
    assert helm.program() is None
    place = helm.folder() / "bin"
    script = f'mkdir -p {place}; echo "$*" >>{place}/asked; touch {place}/helm; chmod +x {place}/helm'
    program(tmp_path, "python", script)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    for _ in range(2):
        helm.main()
        assert helm.program() == str(place / "helm")
    (asked,) = (place / "asked").read_text().splitlines()
    assert "--require-hashes" in asked


@pytest.mark.nightly
def test_that_helm_can_t_be_downloaded_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FETCHGATE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}/bin")
    program(tmp_path, "python", "echo no route >&2; exit 1")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    helm.main()
    assert "no route" in capsys.readouterr().err
    assert helm.program() is None
