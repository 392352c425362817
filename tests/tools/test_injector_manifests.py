"""The Helm chart and kustomize install the same injector, and what it adds to pods is valid."""

import base64
import json
import re
from typing import Any, Final

import pytest
import yaml

from tests.tools.test_deploy import KUBERNETES, assert_options, environment_of, kustomized, pod_of, rendered
from tests.tools.test_helm import EVERYTHING, documents, needs_helm, ran
from tests.tools.test_injection import asked, client, pod
from tools.deploy.webhook.injection import INJECTED, PREFIX, Json, review

INJECTOR: Final = KUBERNETES / "injector"
SECRET: Final = ("injector.tls.secret=given", "injector.tls.caBundle=Y2E=")
API_SERVERS: Final = "networkPolicy.injectorFrom[0].ipBlock.cidr=10.0.0.0/28"
RELEASE: Final = ("fetchgate", "--namespace=fetchgate")
"""The name and the namespace of the release with which the chart makes the same names as kustomize."""
ADMIN: Final = "127.0.0.1:19091"
"""The admin endpoint of injected gateways. 9464 may be the application's: OpenTelemetry's default."""
KINDS: Final = {
    *("Issuer", "Certificate", "ConfigMap", "Service", "PodDisruptionBudget", "Deployment"),
    "MutatingWebhookConfiguration",
}


def charted(*values: str) -> dict[str, Json]:
    """Render the injector of the chart. Return its documents by kind."""
    return documents("injector.enabled=true", *values, bootstrap="", release=RELEASE)


def of_kustomize() -> dict[str, Json]:
    """Render the injector with kustomize. Return its documents by kind."""
    return {document["kind"]: document for document in kustomized(INJECTOR)}


def without_labels(value: Any, renamed: str) -> Any:
    """Return an object without labels and namespace, and with one name for the ConfigMap in both."""
    if isinstance(value, dict):
        left_out = {"labels", "matchLabels", "selector", "labelSelector"}
        rest = {key: without_labels(each, renamed) for key, each in value.items() if key not in left_out}
        if isinstance(rest.get("metadata"), dict):
            rest["metadata"].pop("namespace", None)
        return rest
    if isinstance(value, list):
        return [without_labels(each, renamed) for each in value]
    return "fetchgate-injector" if value == renamed else value


def sidecar_of(documents: dict[str, Json]) -> Json:
    container: Json = json.loads(documents["ConfigMap"]["data"]["sidecar.json"])
    return container


@needs_helm
def test_chart_and_kustomize_install_the_same() -> None:
    chart, plain = charted(), of_kustomize()
    plain.pop("Namespace")
    assert chart.keys() == plain.keys() == KINDS
    assert sidecar_of(chart) == sidecar_of(plain)
    name = plain["ConfigMap"]["metadata"]["name"]
    for document in (chart["ConfigMap"], plain["ConfigMap"]):
        document["data"] = {}
    for kind in KINDS:
        assert without_labels(chart[kind], name) == without_labels(plain[kind], name), kind
    webhooks = [each["MutatingWebhookConfiguration"]["webhooks"][0] for each in (chart, plain)]
    assert webhooks[0]["namespaceSelector"] == webhooks[1]["namespaceSelector"]


def test_the_container_is_that_of_the_overlay_for_any_pod() -> None:
    """The injector takes the bootstrap from the pod, and the pod may have no security context of its own."""
    overlay = pod_of(rendered("explicit"))
    container = overlay["initContainers"][0]
    container["env"] = [entry for entry in container["env"] if entry["name"] != "FETCHGATE_BOOTSTRAP"]
    container["securityContext"] |= overlay["securityContext"]
    container["env"].insert(1, {"name": "FETCHGATE_ADMIN", "value": ADMIN})
    container["lifecycle"]["preStop"]["exec"]["command"][1] = ADMIN
    assert sidecar_of(of_kustomize()) == container


@needs_helm
def test_both_are_valid_by_the_schema_of_kubernetes() -> None:
    validate = pytest.importorskip("kubernetes_validate", reason="no kubernetes-validate here").validate
    for made in (charted(), charted(*SECRET), of_kustomize()):
        for document in made.values():
            if document["apiVersion"].startswith("cert-manager.io/"):
                continue  # no kind of Kubernetes' own
            for version in ("1.29", "1.31"):
                validate(document, version, strict=True)


@pytest.mark.parametrize("containers", [[client({"name": "KAFKA", "value": "kafka:9092"})]])
def test_a_pod_with_the_gateway_is_valid_and_its_options_are_the_gateway_s(containers: list[Json]) -> None:
    validate = pytest.importorskip("kubernetes_validate", reason="no kubernetes-validate here").validate
    jsonpatch = json.loads(
        base64.b64decode(
            review(asked(pod({f"{PREFIX}bootstrap-env": "KAFKA"}, *containers)), sidecar_of(of_kustomize()))[
                "response"
            ]["patch"]
        )
    )
    container = jsonpatch[-1]["value"][0]
    assert environment_of(container)["FETCHGATE_BOOTSTRAP"] == "kafka:9092"
    assert_options(environment_of(container))
    changed = pod({}, *containers, initContainers=[container])
    for version in ("1.29", "1.31"):
        validate(changed, version, strict=True)


@needs_helm
def test_selectors_ports_and_files_of_the_injector_fit() -> None:
    for made in (charted(), charted(*SECRET), of_kustomize()):
        template = made["Deployment"]["spec"]["template"]
        labels = template["metadata"]["labels"].items()
        (spread,) = template["spec"]["topologySpreadConstraints"]
        for selector in (
            made["Service"]["spec"]["selector"],
            made["Deployment"]["spec"]["selector"]["matchLabels"],
            made["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"],
            spread["labelSelector"]["matchLabels"],
        ):
            assert selector.items() <= labels
        (container,) = template["spec"]["containers"]
        (port,) = container["ports"]
        assert {container[probe]["httpGet"]["port"] for probe in ("readinessProbe", "livenessProbe")} == {
            port["name"]
        }
        (entry,) = made["Service"]["spec"]["ports"]
        assert (entry["port"], entry["targetPort"]) == (443, port["name"])
        listen, *files = [argument.partition("=")[2] for argument in container["args"]]
        assert listen == f"$(POD_IP):{port['containerPort']}"
        volumes = {volume["name"]: volume for volume in template["spec"]["volumes"]}
        assert volumes["sidecar"]["configMap"]["name"] == made["ConfigMap"]["metadata"]["name"]
        mounts = [mount["mountPath"] for mount in container["volumeMounts"]]
        assert mounts[0] == files[0].removesuffix("/sidecar.json")
        assert mounts[1] == files[1].removesuffix("/tls.crt") == files[2].removesuffix("/tls.key")
        if "Certificate" in made:
            spec = made["Certificate"]["spec"]
            assert spec["secretName"] == volumes["tls"]["secret"]["secretName"]
            assert spec["issuerRef"]["name"] == made["Issuer"]["metadata"]["name"]
        else:
            assert volumes["tls"]["secret"]["secretName"] == "given"


@needs_helm
def test_the_webhook_is_called_for_pods_that_ask_in_labelled_namespaces_alone() -> None:
    (webhook,) = charted()["MutatingWebhookConfiguration"]["webhooks"]
    assert (webhook["failurePolicy"], webhook["sideEffects"]) == ("Ignore", "None")
    assert webhook["namespaceSelector"]["matchLabels"] == {f"{PREFIX}injection": "enabled"}
    (never,) = webhook["namespaceSelector"]["matchExpressions"]
    assert never["operator"] == "NotIn"
    assert {"kube-system", "fetchgate"} <= {*never["values"]}
    (condition,) = webhook["matchConditions"]
    assert f'"{PREFIX}"' in condition["expression"]
    (chosen,) = charted("injector.failurePolicy=Fail")["MutatingWebhookConfiguration"]["webhooks"]
    assert chosen["failurePolicy"] == "Fail"


@needs_helm
def test_only_api_servers_reach_the_injector_with_a_network_policy() -> None:
    chart = charted("networkPolicy.enabled=true", API_SERVERS)
    plain: Json = yaml.safe_load((INJECTOR / "networkpolicy.yaml").read_text())
    assert without_labels(chart["NetworkPolicy"], "") == without_labels(plain, "")
    labels = chart["Deployment"]["spec"]["template"]["metadata"]["labels"]
    assert chart["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"] == labels
    labels = of_kustomize()["Deployment"]["spec"]["template"]["metadata"]["labels"]
    assert plain["spec"]["podSelector"]["matchLabels"] == labels
    (rule,) = plain["spec"]["ingress"]
    (container,) = chart["Deployment"]["spec"]["template"]["spec"]["containers"]
    assert [port["port"] for port in rule["ports"]] == [port["containerPort"] for port in container["ports"]]


@needs_helm
def test_a_given_secret_takes_the_place_of_cert_manager() -> None:
    made = charted(*SECRET)
    assert made.keys() == KINDS - {"Issuer", "Certificate"}
    configuration = made["MutatingWebhookConfiguration"]
    assert "annotations" not in configuration["metadata"]
    assert configuration["webhooks"][0]["clientConfig"]["caBundle"] == "Y2E="


@needs_helm
def test_values_for_the_gateway_are_in_the_container() -> None:
    container = sidecar_of(
        charted(
            "resources.requests.memory=96Mi",
            "image.repository=registry.example/fetchgate",
            "extraEnv[0].name=FETCHGATE_MAX_SESSIONS",
            "extraEnv[0].value='50'",
            "bootstrap=kafka:9092",
        )
    )
    assert container["resources"] == {"requests": {"memory": "96Mi"}}
    assert container["image"].startswith("registry.example/fetchgate:")
    environment = environment_of(container)
    assert environment["FETCHGATE_MAX_SESSIONS"] == "'50'"
    assert environment["FETCHGATE_BOOTSTRAP"] == "kafka:9092"


@needs_helm
def test_a_pod_monitor_finds_the_pods_by_the_injector_s_label() -> None:
    values = [value for value in EVERYTHING if not value.startswith("config=")]
    made = charted(*values, API_SERVERS)
    assert made.keys() == KINDS | {"PodMonitor", "NetworkPolicy"}, "nothing for a client that is not there"
    assert made["PodMonitor"]["spec"]["selector"] == {"matchLabels": {INJECTED: "true"}}
    assert made["PodMonitor"]["spec"]["namespaceSelector"] == {"any": True}


@needs_helm
@pytest.mark.parametrize(
    ("values", "said"),
    [
        (["mode=redirect"], "mode is redirect: the injector adds gateways of the mode explicit only"),
        (["config=x"], "give options with extraEnv"),
        (["extraVolumes[0].name=x"], "give options with extraEnv"),
        ([SECRET[0]], "injector.tls.caBundle is not set"),
        (["injector.failurepolicy=Fail"], "failurepolicy"),
        (["injector.replicas=0"], "replicas"),
        (["networkPolicy.enabled=true"], "networkPolicy.injectorFrom is not set"),
    ],
)
def test_values_that_do_not_fit_the_injector_are_refused(values: list[str], said: str) -> None:
    done = ran("template", "injector.enabled=true", *values, bootstrap="")
    assert (done.returncode, done.stdout) == (1, "")
    assert said in done.stderr


@needs_helm
def test_the_chart_with_the_injector_is_linted() -> None:
    for values in ((), SECRET, ("injector.replicas=1",)):
        done = ran("lint", "injector.enabled=true", *values, bootstrap="")
        assert done.returncode == 0, done.stdout
        assert "WARNING" not in done.stdout


def test_the_injector_s_pods_have_no_more_rights_than_they_need() -> None:
    made = of_kustomize()
    template = pod_of(made["Deployment"])
    assert template["automountServiceAccountToken"] is False
    (container,) = template["containers"]
    assert container["securityContext"] == {
        "runAsUser": 61092,
        "runAsGroup": 61092,
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert re.fullmatch(r"fetchgate-injector:\d\S+", container["image"])
