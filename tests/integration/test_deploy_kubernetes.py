"""The overlays and the Helm chart work on Kubernetes with one node.

A pod saves bytes, and ends without errors. The kubelet mounts the ConfigMap that turns sessions off.
"""

import base64
import json
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

from proxy.version import VERSION
from tests.integration import images
from tests.integration.bystander import until
from tests.integration.images import Podman, podman
from tests.integration.namespaces import LACKING, MODES
from tests.integration.node import ABSENT, HOST, KAFKA, PAUSE, Node
from tests.integration.test_injector_kubernetes import TURN_OFF, TURN_ON
from tests.tools.test_deploy import ROOT, commands, rendered
from tests.tools.test_helm import EVERYTHING, HELM, ran
from tools.certificates import Authority
from tools.kafka import Broker
from tools.kafka.admin import Admin
from tools.netns import Namespace

__all__ = ["podman"]

pytestmark = [
    pytest.mark.soak,
    pytest.mark.integration,
    pytest.mark.timeout(900),
    pytest.mark.skipif(bool(LACKING), reason=LACKING),
    pytest.mark.skipif(os.geteuid() != 0, reason="only root runs a node"),
    pytest.mark.skipif(
        bool([*ABSENT, *images.ABSENT]),
        reason=f"no {' and no '.join([*ABSENT, *images.ABSENT])} here",
    ),
]

PORT, CONTROLLER_PORT = 29192, 29193
"""The ports of the broker and its controller on loopback."""
TOPIC, PARTITIONS = "example", 100
"""The topic that the example client of the Kubernetes base reads, and its number of partitions."""
CLIENT: Final = "docker.io/edenhill/kcat:1.7.1"
"""The image of the client. The test builds it from Debian's package."""
GATEWAY: Final = f"docker.io/library/fetchgate:{VERSION}"
RULES: Final = f"docker.io/library/fetchgate-rules:{VERSION}"
INJECTOR: Final = f"docker.io/library/fetchgate-injector:{VERSION}"
CLIENT_FILE: Final = f"""
FROM {images.BASES[0]}
RUN apt-get update && apt-get install --yes --no-install-recommends kcat
ENTRYPOINT ["kcat"]
"""
PAUSE_FILE: Final = f"""
FROM {images.BASES[0]}
ENTRYPOINT ["sleep", "infinity"]
"""
ASK: Final = (
    "import os, urllib.request as r; at = os.environ.get('FETCHGATE_ADMIN', '127.0.0.1:9464'); "
    "print(r.urlopen(f'http://{{at}}/{}').read().decode())"
)
"""A program that prints a page of the gateway in its own container."""


def broker() -> Broker:
    """Return a broker that is reached by the name that the manifests use."""
    return Broker(
        port=PORT,
        voters={1: CONTROLLER_PORT},
        properties={
            "listeners": f"PLAINTEXT://127.0.0.1:{PORT},POD://{HOST}:9092,CONTROLLER://127.0.0.1:{CONTROLLER_PORT}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{PORT},POD://{KAFKA}:9092",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,POD:PLAINTEXT,CONTROLLER:PLAINTEXT",
        },
    )


@pytest.fixture(scope="module")
def node(podman: Podman, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """Start a Kubernetes node with all images, and a broker with the topic."""
    folder = tmp_path_factory.mktemp("node")
    archives = [_archive(podman, folder, name) for name in (GATEWAY, RULES, INJECTOR, CLIENT, PAUSE)]
    with ExitStack() as stack:
        network = stack.enter_context(Namespace())
        node = stack.enter_context(Node(network, folder, archives))
        with network.inside():
            running = stack.enter_context(broker())
            with Admin(running.address) as admin:
                admin.create_topic(TOPIC, partitions=PARTITIONS)
        yield node


def _archive(podman: Podman, folder: Path, name: str) -> Path:
    """Write a container image to a file. Images that the documentation does not build are built here."""
    short = name.rpartition("/")[2]
    file = folder / short.partition(":")[0]
    if text := {CLIENT: CLIENT_FILE, PAUSE: PAUSE_FILE}.get(name):
        file.write_text(text)
        podman.run("podman", "build", "--quiet", "--file", str(file), "--tag", name, str(folder))
    else:
        podman.run("podman", "tag", short, name)
    archive = file.with_suffix(".tar")
    podman.run("podman", "save", "--output", str(archive), name)
    return archive


def _ready(pod: dict[str, Any]) -> bool:
    return any(c["type"] == "Ready" and c["status"] == "True" for c in pod["status"].get("conditions", ()))


def overlay(mode: str) -> tuple[str, Path]:
    """Return kubectl's arguments for the overlay of one mode, as they are in the documentation."""
    (line,) = (line for line in commands("kubernetes") if line.startswith("kubectl apply"))
    _, _, option, folder = line.replace("overlays/redirect", f"overlays/{mode}").split()
    return option, ROOT / folder


def chart(mode: str, folder: Path) -> tuple[str, Path]:
    """Render the chart, and return the arguments with which kubectl applies it.

    Transparent modes set `failOpen`.
    """
    if HELM is None:
        pytest.skip("no helm and no Go here")
    values = (f"mode={mode}", *(value for value in EVERYTHING if "podMonitor" not in value), "replicas=1")
    done = ran("template", *values, *([] if mode == "explicit" else ["failOpen=true"]))
    assert done.returncode == 0, done.stderr
    file = folder / "chart.yaml"
    file.write_text(done.stdout)
    return "--filename", file


def client(folder: Path) -> tuple[str, Path]:
    """Return kubectl's arguments for a client without a gateway, which asks the injector for one."""
    deployment = rendered("explicit")
    template = deployment["spec"]["template"]
    del template["spec"]["initContainers"]
    (app,) = template["spec"]["containers"]
    app["env"] = [{"name": "BOOTSTRAP_SERVERS", "value": f"{KAFKA}:9092"}]
    template["metadata"]["annotations"] = {"fetchgate/bootstrap-env": "BOOTSTRAP_SERVERS"}
    (file := folder / "client.json").write_text(json.dumps(deployment))
    return "--filename", file


@pytest.fixture(scope="module")
def injecting(node: Node, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Run the injector in the cluster, for pods of the namespace default."""
    folder = tmp_path_factory.mktemp("injecting")
    authority = Authority(folder)
    pair = authority.sign("injector", "fetchgate-injector.fetchgate.svc")
    ca = base64.b64encode(authority.file.read_bytes()).decode()
    values = ("injector.enabled=true", "injector.tls.secret=injector", f"injector.tls.caBundle={ca}")
    done = ran("template", *values, bootstrap="", release=("fetchgate", "--namespace=fetchgate"))
    assert done.returncode == 0, done.stderr
    (file := folder / "injector.yaml").write_text(done.stdout)
    where = "--namespace=fetchgate"
    node.kubectl("create", "namespace", "fetchgate")
    node.kubectl("create", "secret", "tls", "injector", where, f"--cert={pair.cert}", f"--key={pair.key}")
    node.kubectl("apply", where, "--filename", str(file))

    def ready() -> bool:
        pods = json.loads(node.kubectl("get", "pods", where, "--output=json"))["items"]
        return [*map(_ready, pods)] == [True, True]

    try:
        until(ready, "the injector is not ready", patience=120)
        node.kubectl("label", "namespace", "default", "fetchgate/injection=enabled")
        yield
    finally:
        node.kubectl("delete", "--wait", where, "--filename", str(file))
        until(lambda: not node.kubectl("get", "pods", where), "the injector stays", patience=90)


@pytest.mark.skipif(HELM is None, reason="no helm here")
def test_a_pod_that_asks_starts_after_its_gateway_and_ends_before_it(
    node: Node, injecting: None, tmp_path: Path
) -> None:
    saves_and_leaves_in_order(node, tmp_path, *client(tmp_path))


@pytest.mark.parametrize("source", ["overlay", "chart"])
@pytest.mark.parametrize("mode", ["explicit", *MODES])
def test_a_pod_saves_and_leaves_in_order(node: Node, tmp_path: Path, mode: str, source: str) -> None:
    saves_and_leaves_in_order(
        node, tmp_path, *(overlay(mode) if source == "overlay" else chart(mode, tmp_path))
    )


@pytest.mark.skipif(HELM is None, reason="no helm here")
def test_a_config_map_turns_the_sessions_of_an_injected_gateway_off_and_on(
    node: Node, injecting: None, tmp_path: Path
) -> None:
    """The commands are those of the page. The kubelet looks at a pod's volumes every 60 to 90 seconds."""
    with applied(node, *client(tmp_path)) as asked:

        def has(expected: tuple[bool, int]) -> bool:
            sessions = asked("state")["sessions"]
            return (sessions["on"], sessions["held"]) == expected

        until(lambda: has((True, 1)), "no session", patience=60)
        try:
            for command, expected in (off := (TURN_OFF, (False, 0)), (TURN_ON, (True, 1)), off):
                node.shell_command(command.replace("shop", "default"))
                until(partial(has, expected), f"not {expected}", patience=180)
                assert asked("readyz") == {"state": "ready", "reasons": []}
        finally:
            node.kubectl("delete", "configmap", "fetchgate", "--ignore-not-found")
        assert [each["restartCount"] for each in _statuses(node)] == [0, 0]


@contextmanager
def applied(node: Node, option: str, manifest: Path) -> Iterator[Callable[[str], dict[str, Any]]]:
    """Run the one pod of a manifest. Yield a function that returns a page of its gateway's admin endpoint."""
    node.kubectl("apply", option, str(manifest))
    try:
        until(lambda: [*map(_ready, node.pods())] == [True], "the pod is not ready", patience=120)
        (pod,) = (pod["metadata"]["name"] for pod in node.pods())

        def asked(page: str) -> dict[str, Any]:
            command = ("exec", pod, "-c=fetchgate", "--", "python", "-c", ASK.format(page))
            told: dict[str, Any] = json.loads(node.kubectl(*command))
            return told

        yield asked
    finally:
        node.kubectl("delete", "--wait", option, str(manifest))
        until(lambda: not node.pods(), "the pod stays", patience=90)


def saves_and_leaves_in_order(node: Node, tmp_path: Path, option: str, manifest: Path) -> None:
    """Check that the client of a manifest starts after its gateway, saves bytes, and ends before it."""
    with applied(node, option, manifest) as asked:
        until(lambda: asked("state")["totals"]["saved_bytes"] > 0, "nothing is saved", patience=60)
        assert asked("readyz") == {"state": "ready", "reasons": []}
        assert asked("state")["sessions"]["held"] == 1
        assert [each["restartCount"] for each in _statuses(node)] == [0] * len(_statuses(node))
        gateway, *_, app = _statuses(node)
        assert (gateway["name"], gateway["started"]) == ("fetchgate", True)
        assert gateway["state"]["running"]["startedAt"] <= app["state"]["running"]["startedAt"]
        log = tmp_path / "log"
        (pod,) = (pod["metadata"]["name"] for pod in node.pods())
        node.follow(pod, "fetchgate", log)
        until(lambda: "ready" in log.read_text(), "no log")
    until(lambda: '"stopped"' in log.read_text().rpartition("\n")[0], "its end was not logged")
    *_, draining, stopped = map(json.loads, log.read_text().splitlines())
    assert (draining["event"], draining["connections"]) == ("draining", 0), "preStop waited for the client"
    assert (stopped["event"], stopped["cut_off"]) == ("stopped", 0)


def _statuses(node: Node) -> list[dict[str, Any]]:
    (pod,) = node.pods()
    return [*pod["status"]["initContainerStatuses"], *pod["status"]["containerStatuses"]]
