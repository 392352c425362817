"""The injector on the real API server: what is stored of pods.

The commands are those of docs/users/kubernetes.md.
"""

import json
import re
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from proxy.command.config import load
from tests.integration.bystander import until
from tests.integration.namespaces import LACKING
from tests.integration.node import ABSENT_API, HOST, ApiServer
from tests.tools.injector import Injector, injector
from tests.tools.test_deploy import INJECTION, ROOT, USERS
from tests.tools.test_helm import HELM
from tools.certificates import Authority, Pair
from tools.netns import Namespace

pytestmark = [
    pytest.mark.soak,
    pytest.mark.integration,
    pytest.mark.skipif(bool(LACKING), reason=LACKING),
    pytest.mark.skipif(bool(ABSENT_API), reason=f"no {' and no '.join(ABSENT_API)} here"),
    pytest.mark.skipif(HELM is None, reason="no helm here"),
]

BLOCKS: Final = re.findall(r"```(sh|yaml)\n(.*?)```", INJECTION, re.DOTALL)
(
    BY_CERT_MANAGER,
    BY_KUSTOMIZE,
    BY_SECRET,
    ASK,
    SHOW,
    SHOW_OTHERS,
    CANARY,
    END_CANARY,
    RESTART,
    BACK,
    SHOW_IMAGES,
    SET_FOR_ALL,
    SET_SESSIONS,
    TURN_OFF,
    TURN_ON,
    SHOW_OFF,
    TAKE_OUT,
    UNINSTALL,
    DELETE,
) = [text for kind, text in BLOCKS if kind == "sh"]
*_, TURN_ALL_OFF = re.findall(r"```sh\n(.*?)```", (USERS / "fleet.md").read_text(), re.DOTALL)
ANNOTATION, DIFFERENCES, _ = [text for kind, text in BLOCKS if kind == "yaml"]
(RACK,) = re.findall(r"```yaml\n(extraEnv:.*?)```", (USERS / "zones.md").read_text(), re.DOTALL)
SERVICE, PORT = "fetchgate-injector", 9443
VARIABLE: Final = "KAFKA_BOOTSTRAP_SERVERS"
GATEWAY: Final = {"name": VARIABLE, "value": "127.0.0.1:19092"}
OPTIONS: Final = {"name": "fetchgate", "optional": True, "defaultMode": 0o644}
CERT_MANAGER: Final = ("Issuer", "Certificate")
"""The kinds of cert-manager that the manifests use. Here they are stored, and nobody acts on them."""

Json = dict[str, Any]


class Cluster(ApiServer):
    """An API server, and a folder in which the commands of the page run."""

    def __init__(self, network: Namespace, folder: Path) -> None:
        super().__init__(network, folder)
        self.network = network
        self.work = folder / "work"
        self.work.mkdir()
        (self.work / "tools").symlink_to(ROOT / "tools")

    def shell(self, text: str, *, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run commands of the page."""
        environment = self.environment()
        environment["PATH"] = f"{Path(HELM or '').parent}:{environment['PATH']}"
        with self.network.inside():
            done = subprocess.run(
                ["sh", "-ec", text],
                cwd=self.work,
                env=environment,
                capture_output=True,
                text=True,
                check=False,
            )
        assert not check or done.returncode == 0, done.stderr
        return done

    def make(self, *objects: Json, options: str = "", check: bool = True) -> subprocess.CompletedProcess[str]:
        """Create objects."""
        (self.work / "objects.json").write_text(
            json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
        )
        return self.shell(f"kubectl create --filename objects.json {options}", check=check)

    def pods(self, namespace: str) -> dict[str, Json]:
        """Return the pods of a namespace by name, as they are stored."""
        items = json.loads(self.kubectl("get", "pods", f"--namespace={namespace}", "--output=json"))["items"]
        return {item["metadata"]["name"]: item for item in items}


def definition(kind: str) -> Json:
    plural = f"{kind.lower()}s"
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.cert-manager.io"},
        "spec": {
            "group": "cert-manager.io",
            "names": {"kind": kind, "plural": plural},
            "scope": "Namespaced",
            "versions": [
                {
                    "name": "v1",
                    "served": True,
                    "storage": True,
                    "schema": {
                        "openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
                    },
                }
            ],
        },
    }


def endpoints() -> list[Json]:
    """Return what the controllers would write: where the injector's service is served."""
    metadata = {"name": SERVICE, "namespace": "fetchgate", "labels": {"kubernetes.io/service-name": SERVICE}}
    return [
        {
            "apiVersion": "v1",
            "kind": "Endpoints",
            "metadata": metadata,
            "subsets": [{"addresses": [{"ip": HOST}], "ports": [{"port": PORT}]}],
        },
        {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": metadata,
            "addressType": "IPv4",
            "endpoints": [{"addresses": [HOST], "conditions": {"ready": True}}],
            "ports": [{"name": "", "port": PORT, "protocol": "TCP"}],
        },
    ]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Start an API server with the injector, installed as the page says with a secret."""
    folder = tmp_path_factory.mktemp("cluster")
    with ExitStack() as stack:
        network = stack.enter_context(Namespace())
        cluster = stack.enter_context(Cluster(network, folder))
        authority = Authority(folder)
        pair = authority.sign("injector", f"{SERVICE}.fetchgate.svc", HOST)
        for name, file in (("tls.crt", pair.cert), ("tls.key", pair.key), ("ca.crt", authority.file)):
            (cluster.work / name).symlink_to(file)
        (cluster.work / "annotation.yaml").write_text(ANNOTATION)
        cluster.shell(BY_SECRET)
        cluster.make(*endpoints())
        for name, level in (("shop", "restricted"), ("plain", "restricted"), ("hosts", "privileged")):
            labels = {"pod-security.kubernetes.io/enforce": level}
            cluster.make(
                {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}
            )
        cluster.make(deployment())
        cluster.shell(ASK)
        cluster.shell(ASK.splitlines()[0].replace("shop", "hosts"))
        yield cluster


@contextmanager
def serving(cluster: Cluster, folder: Path, sidecar: Json) -> Iterator[Injector]:
    """Run the injector where the cluster's service says."""
    ca = (cluster.work / "ca.crt").resolve()
    pair = Pair(ca.parent / "injector.pem", ca.parent / "injector.key")
    with cluster.network.inside(), injector(folder, sidecar, pair, ca, (HOST, PORT)) as each:
        yield each


def stored_sidecar(cluster: Cluster) -> Json:
    """Return the gateway's container that is stored in the cluster."""
    stored = cluster.kubectl("get", "configmap", SERVICE, "--namespace=fetchgate", "--output=json")
    sidecar: Json = json.loads(json.loads(stored)["data"]["sidecar.json"])
    return sidecar


@pytest.fixture
def running(cluster: Cluster, tmp_path: Path) -> Iterator[Injector]:
    with serving(cluster, tmp_path, stored_sidecar(cluster)) as each:
        yield each


def container(name: str, *env: Json, **fields: Any) -> Json:
    return {
        "name": name,
        "image": "app:1",
        "env": [*env],
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": 1000,
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        **fields,
    }


def pod(name: str, annotations: Json, *containers: Json, namespace: str = "shop", **spec: Any) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "annotations": annotations},
        "spec": {"containers": [*containers] or [container("app")], **spec},
    }


def deployment() -> Json:
    app = container("app", {"name": VARIABLE, "value": "kafka:9092"})
    labels = {"app": "orders"}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "orders", "namespace": "shop", "labels": {"wave": "1"}},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [app]}},
        },
    }


def twenty(template: Json) -> dict[str, tuple[Json, list[str], str]]:
    """Return twenty pods by name: each with the containers that are led to the gateway, and its bootstrap.

    A pod without a gateway has an empty bootstrap.
    """
    pods: dict[str, tuple[Json, list[str], str]] = {}
    for number in range(8):
        made = pod(f"orders-{number}", template["metadata"]["annotations"], *template["spec"]["containers"])
        made["metadata"]["labels"] = template["metadata"]["labels"]
        pods[made["metadata"]["name"]] = (made, ["app"], "kafka:9092")
    asks = {"fetchgate/bootstrap-env": VARIABLE}
    source = {"valueFrom": {"configMapKeyRef": {"name": "kafka", "key": "servers"}}}
    old = {"name": VARIABLE, "value": "kafka1:9092,kafka2:9092"}
    for number in range(4):
        app = container("app", {"name": "LEVEL", "value": "info"}, old)
        init = [container("migrate", old), container("wait")]
        pods[f"jobs-{number}"] = (
            pod(f"jobs-{number}", asks, app, container("logs"), initContainers=init),
            ["migrate", "app"],
            "kafka1:9092,kafka2:9092",
        )
    for number in range(3):
        app = container("app", {"name": VARIABLE, **source})
        pods[f"mapped-{number}"] = (pod(f"mapped-{number}", asks, app), ["app"], "from kafka")
    for number in range(2):
        both = asks | {"fetchgate/bootstrap": "kafka:9092", "fetchgate/max-sessions": "50"}
        app = container("app", envFrom=[{"configMapRef": {"name": "kafka"}}])
        pods[f"from-{number}"] = (pod(f"from-{number}", both, app), ["app"], "kafka:9092")
    pods["own"] = (pod("own", {"fetchgate/bootstrap": "kafka:9092"}), [], "kafka:9092")
    for number in range(2):
        pods[f"other-{number}"] = (pod(f"other-{number}", {"example.org/any": "1"}), [], "")
    return pods


def is_injected(stored: Json) -> bool:
    return "fetchgate/injected" in stored["metadata"].get("labels", {})


def parts(text: str) -> Iterator[Json]:
    """Yield the JSON objects of a text that has one after another."""
    while text := text.lstrip():
        found, end = json.JSONDecoder().raw_decode(text)
        yield found
        text = text[end:]


def check(stored: Json, plain: Json, led: list[str], bootstrap: str, sidecar: Json) -> None:
    """Check that a stored pod differs from the one of a namespace without label by the gateway alone."""
    given, expected = deepcopy(stored), deepcopy(plain)
    for each in (given, expected):
        for field in ("uid", "resourceVersion", "creationTimestamp", "namespace", "managedFields"):
            each["metadata"].pop(field, None)
        del each["status"]["qosClass"]  # Burstable with the gateway, as the page says
    if bootstrap:
        assert given["metadata"]["labels"].pop("fetchgate/injected") == "true"
        if not given["metadata"]["labels"]:
            del given["metadata"]["labels"]
        gateway, *rest = given["spec"].pop("initContainers")
        if rest:
            given["spec"]["initContainers"] = rest
        assert (
            gateway.items()
            >= {key: sidecar[key] for key in ("name", "image", "args", "restartPolicy")}.items()
        )
        env = {entry["name"]: entry.get("value", entry.get("valueFrom")) for entry in gateway["env"]}
        brokers = env.pop("FETCHGATE_BOOTSTRAP")
        assert brokers == (
            {"configMapKeyRef": {"name": "kafka", "key": "servers"}} if " " in bootstrap else bootstrap
        )
        env.pop("FETCHGATE_MAX_SESSIONS", None)
        (mount,) = gateway["volumeMounts"]
        assert env.pop("FETCHGATE_CONFIG") == mount["mountPath"]
        (volume,) = given["spec"].pop("volumes")
        assert volume == {"name": mount["name"], "configMap": OPTIONS}
        assert env == {entry["name"]: entry["value"] for entry in sidecar["env"]}
    for each in (*expected["spec"].get("initContainers", ()), *expected["spec"]["containers"]):
        if each["name"] in led:
            others = [entry for entry in each.get("env", ()) if entry["name"] != VARIABLE]
            each["env"] = [*others, GATEWAY]
    assert given == expected


def test_twenty_pods_are_stored_with_the_gateway_and_a_dry_run_shows_the_same(
    cluster: Cluster, running: Injector
) -> None:
    orders = json.loads(cluster.kubectl("get", "deployment", "orders", "--namespace=shop", "--output=json"))[
        "spec"
    ]["template"]
    pods = twenty(orders)
    assert len(pods) == 20
    for made, _, _ in deepcopy([*pods.values()]):
        made["metadata"]["namespace"] = "plain"
        cluster.make(made)
    objects = [made for made, _, _ in pods.values()]
    dry = [*parts(cluster.make(*objects, options="--dry-run=server --output=json").stdout)]
    assert len(dry) == 20
    assert cluster.pods("shop") == {}
    cluster.make(*objects)
    stored, plain = cluster.pods("shop"), cluster.pods("plain")
    sidecar = stored_sidecar(cluster)
    for each in dry:
        name = each["metadata"]["name"]
        _, led, bootstrap = pods[name]
        check(stored[name], plain[name], led, bootstrap, sidecar)
        check(each, plain[name], led, bootstrap, sidecar)
    log = running.log()
    assert log.count("fetchgate is added") == 2 * 18
    assert "left as it is" not in log, "others are not even asked about"
    shown = cluster.shell(SHOW).stdout
    assert len(shown.splitlines()) == 1 + 18
    images = [line.split()[-1] for line in cluster.shell(SHOW_IMAGES).stdout.splitlines()]
    assert images == ["IMAGE", *[sidecar["image"]] * 18]
    rows = [line.split()[:2] for line in cluster.shell(SHOW_OTHERS).stdout.splitlines()]
    assert rows == [["plain", name] for name, (_, _, bootstrap) in sorted(pods.items()) if bootstrap]


def test_a_wrong_annotation_is_refused_with_its_name(cluster: Cluster, running: Injector) -> None:
    wrong = pod("wrong", {"fetchgate/bootstrap": "kafka:9092", "fetchgate/max-sesions": "50"})
    done = cluster.make(wrong, check=False)
    assert done.returncode == 1
    assert (
        'admission webhook "pods.injector.fetchgate" denied the request: fetchgate/max-sesions: there is no '
        "such annotation; did you mean fetchgate/max-sessions?" in done.stderr
    )


def test_the_deployments_of_a_wave_are_restarted_and_go_back(cluster: Cluster) -> None:
    assert cluster.shell(RESTART).stdout == "deployment.apps/orders restarted\n"
    text = "jsonpath={.spec.template.metadata.annotations}"
    show = ("get", "deployment", "orders", "--namespace=shop", f"--output={text}")
    assert "fetchgate/bootstrap-env" in cluster.kubectl(*show)
    cluster.shell(BACK)
    assert "fetchgate" not in cluster.kubectl(*show)
    cluster.shell(ASK.splitlines()[-1])


def test_a_canary_is_a_copy_of_a_deployment_with_the_gateway_alone(
    cluster: Cluster, running: Injector
) -> None:
    """The pods are what the controllers would make of the templates."""

    def stored() -> dict[str, Json]:
        text = cluster.kubectl("get", "deployments", "--namespace=shop", "--output=json")
        return {each["metadata"]["name"]: each for each in json.loads(text)["items"]}

    (cluster.work / "canary.yaml").write_text(DIFFERENCES)
    cluster.shell(BACK)
    before = stored()
    cluster.shell(CANARY)
    canary = (after := stored()).pop("orders-canary")["spec"]
    assert after == before
    orders = before["orders"]["spec"]
    changed = {"replicas", "selector", "template"}
    assert {**canary, **dict.fromkeys(changed)} == {**orders, **dict.fromkeys(changed)}
    assert canary["replicas"] == 1
    assert canary["selector"]["matchLabels"] == orders["selector"]["matchLabels"] | {"track": "canary"}
    assert canary["template"]["spec"] == orders["template"]["spec"]
    for name, template, injected in (
        ("canary", canary["template"], True),
        ("stable", orders["template"], False),
    ):
        made = pod(name, template["metadata"].get("annotations", {}), *template["spec"]["containers"])
        made["metadata"]["labels"] = template["metadata"]["labels"]
        cluster.make(made)
        assert is_injected(cluster.pods("shop")[name]) is injected
    cluster.shell(END_CANARY)
    assert stored() == before
    cluster.shell(ASK.splitlines()[-1])


def test_a_pod_in_the_network_of_its_node_is_stored_as_it_is_with_a_warning(
    cluster: Cluster, running: Injector
) -> None:
    done = cluster.make(
        pod("host", {"fetchgate/bootstrap": "kafka:9092"}, namespace="hosts", hostNetwork=True)
    )
    assert "Warning: fetchgate is not added: with hostNetwork" in done.stderr
    assert "initContainers" not in cluster.pods("hosts")["host"]["spec"]


def test_a_stored_pod_that_is_made_again_is_not_changed_again(cluster: Cluster, running: Injector) -> None:
    asking = pod(
        "first", {"fetchgate/bootstrap-env": VARIABLE}, container("app", GATEWAY | {"value": "kafka:9092"})
    )
    asking["metadata"]["namespace"] = "hosts"
    cluster.make(asking)
    again = cluster.pods("hosts")["first"]
    again["metadata"] |= {"name": "second"}
    for field in ("uid", "resourceVersion", "creationTimestamp"):
        del again["metadata"][field]
    cluster.make(again)
    stored = cluster.pods("hosts")
    assert stored["second"]["spec"] == stored["first"]["spec"]
    assert len(stored["second"]["spec"]["initContainers"]) == 1


@pytest.mark.parametrize("namespace", ["kube-system", "fetchgate"])
def test_the_namespaces_of_the_system_and_of_the_webhook_are_never_asked_about(
    cluster: Cluster, running: Injector, namespace: str
) -> None:
    cluster.kubectl("label", "namespace", namespace, "fetchgate/injection=enabled")
    wrong = pod("spared", {"fetchgate/nonsense": "1"}, namespace=namespace)
    cluster.make(wrong)
    assert "initContainers" not in cluster.pods(namespace)["spared"]["spec"]


def test_while_no_webhook_answers_pods_start_as_they_are_or_not_at_all(cluster: Cluster) -> None:
    asking = {"fetchgate/bootstrap-env": VARIABLE}
    app = container("app", {"name": VARIABLE, "value": "kafka:9092"})
    cluster.make(pod("alone", asking, app))
    stored = cluster.pods("shop")["alone"]
    assert stored["spec"]["containers"][0]["env"] == [{"name": VARIABLE, "value": "kafka:9092"}]
    assert "initContainers" not in stored["spec"]
    cluster.shell(
        "helm upgrade fetchgate tools/deploy/helm/fetchgate --namespace fetchgate --reuse-values "
        "--set injector.failurePolicy=Fail"
    )

    def refused() -> bool:
        done = cluster.make(pod("never", asking, app), options="--dry-run=server", check=False)
        return done.returncode == 1 and "pods.injector.fetchgate" in done.stderr

    until(refused, "the API server knows the change")
    cluster.make(pod("other", {}, app))


def test_the_page_s_rack_comes_from_the_pod_s_label(cluster: Cluster, tmp_path: Path) -> None:
    """The kubelet reads the label. Here the API server takes the container with the field."""
    (cluster.work / "values.yaml").write_text(RACK)
    made = cluster.shell(
        "helm template fetchgate tools/deploy/helm/fetchgate --set injector.enabled=true --values values.yaml"
    ).stdout
    (text,) = [
        each["data"]["sidecar.json"] for each in yaml.safe_load_all(made) if each["kind"] == "ConfigMap"
    ]
    with serving(cluster, tmp_path, json.loads(text)):
        cluster.make(
            pod("racked", {"fetchgate/bootstrap": "kafka:9092", "fetchgate/rack-clients": "billing"})
        )
    (gateway,) = cluster.pods("shop")["racked"]["spec"]["initContainers"]
    (rack,) = [entry["valueFrom"] for entry in gateway["env"] if entry["name"] == "FETCHGATE_RACK"]
    assert rack["fieldRef"]["fieldPath"] == "metadata.labels['topology.kubernetes.io/zone']"


def test_sessions_are_limited_and_turned_off_and_on_in_one_namespace_and_off_in_all(
    cluster: Cluster, tmp_path: Path
) -> None:
    """Each command may be repeated."""

    def options(namespace: str) -> str:
        text = "jsonpath={.items[?(@.metadata.name=='fetchgate')].data.fetchgate\\.toml}"
        return cluster.kubectl("get", "configmaps", f"--namespace={namespace}", f"--output={text}")

    cluster.shell(SET_SESSIONS)
    (file := tmp_path / "fetchgate.toml").write_text(options("shop"))
    assert load({}, {"FETCHGATE_BOOTSTRAP": "kafka:9092"}, str(file)).max_sessions == 3
    for _ in range(2):
        cluster.shell(TURN_OFF)
        assert (options("shop"), options("hosts")) == ('sessions = "off"', "")
    for _ in range(2):
        cluster.shell(TURN_ON)
        assert options("shop") == ""
    for _ in range(2):
        cluster.shell(TURN_ALL_OFF)
        assert (options("shop"), options("hosts"), options("plain")) == (*['sessions = "off"'] * 2, "")
    cluster.shell(TURN_ON)
    selected = json.loads(cluster.shell(SHOW_OFF.partition("|")[0]).stdout)["items"]
    assert len(selected) == len([*filter(is_injected, cluster.pods("shop").values())]) > 0


def test_an_option_of_the_chart_is_stored_for_all_gateways(cluster: Cluster) -> None:
    cluster.shell(SET_FOR_ALL)
    env = {entry["name"]: entry.get("value") for entry in stored_sidecar(cluster)["env"]}
    assert env["FETCHGATE_IDLE_TIMEOUT"] == "300"


def test_it_is_taken_out_and_installed_in_the_other_ways_of_the_page(cluster: Cluster) -> None:
    """The last test of the file: it removes the injector."""
    hooks = ("get", "mutatingwebhookconfigurations", "--output=name")
    cluster.shell(TURN_OFF)
    cluster.shell(TAKE_OUT)
    maps = json.loads(cluster.kubectl("get", "configmaps", "--namespace=shop", "--output=json"))["items"]
    assert "fetchgate" not in {each["metadata"]["name"] for each in maps}, "sessions are on the next time"
    cluster.make(pod("after", {"fetchgate/nonsense": "1"}))
    cluster.shell(UNINSTALL)
    cluster.make(*map(definition, CERT_MANAGER))
    kinds = ",".join(CERT_MANAGER)
    until(lambda: not cluster.shell(f"kubectl get {kinds}", check=False).returncode, f"no {kinds}")
    cluster.shell(BY_CERT_MANAGER)
    cluster.shell(UNINSTALL)
    cluster.shell(BY_KUSTOMIZE)
    assert cluster.kubectl(*hooks) != "", "the webhook is asked"
    cluster.shell(f"{DELETE.strip()} --wait=false")  # no controller here removes the objects of the namespace
    assert cluster.kubectl(*hooks) == ""
