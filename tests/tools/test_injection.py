"""The admission webhook adds the gateway to pods that ask for it: AdmissionReview in, JSON Patch out."""

import base64
import json
import re
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, suppress
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

from tests.tools.injector import Injector, injector
from tests.tools.test_deploy import DEPLOY
from tools.certificates import Authority
from tools.deploy.webhook.injection import FIXED, review
from tools.deploy.webhook.refusals import AGAIN_SECONDS, MAX_REFUSALS, Refusals
from tools.kafka.ports import free_ports

SIDECAR: Final = {
    "name": "fetchgate",
    "image": "fetchgate:1",
    "restartPolicy": "Always",
    "env": [
        {"name": "FETCHGATE_LISTEN", "value": "127.0.0.1:19092"},
        {"name": "FETCHGATE_METRICS", "value": "0.0.0.0:9465"},
    ],
}
AT_GATEWAY: Final = {"name": "KAFKA", "value": "127.0.0.1:19092"}
LABELS: Final = {"op": "add", "path": "/metadata/labels", "value": {"fetchgate/injected": "true"}}
VOLUME: Final = {"name": "fetchgate-options", "configMap": {"name": "fetchgate", "optional": True}}
VOLUMES: Final = {"op": "add", "path": "/spec/volumes", "value": [VOLUME]}
CONFIG: Final = {"name": "FETCHGATE_CONFIG", "value": "/etc/fetchgate"}
MOUNT: Final = {"name": "fetchgate-options", "mountPath": "/etc/fetchgate", "readOnly": True}
ASKS: Final = {"fetchgate/bootstrap": "kafka:9092"}


def sidecar(*env: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """Return the gateway's container with more variables, and with other fields."""
    return {**SIDECAR, "env": [*SIDECAR["env"], *env], **fields}


def switched(container: dict[str, Any]) -> dict[str, Any]:
    """Return the gateway's container with the folder of its options."""
    return {**container, "env": [*container["env"], CONFIG], "volumeMounts": [MOUNT]}


def added(container: dict[str, Any]) -> dict[str, Any]:
    """Return the operation that adds the gateway to a pod without init containers."""
    return {"op": "add", "path": "/spec/initContainers", "value": [switched(container)]}


def bootstrap(value: str) -> dict[str, Any]:
    return {"name": "FETCHGATE_BOOTSTRAP", "value": value}


def client(*env: dict[str, Any], name: str = "app") -> dict[str, Any]:
    return {"name": name, "image": "app:1", "env": [*env]}


def pod(annotations: dict[str, str], *containers: dict[str, Any], **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"generateName": "app-", "annotations": annotations},
        "spec": {"containers": [*containers] or [client()], **spec},
    }


def asked(pod: dict[str, Any]) -> dict[str, Any]:
    """Return an AdmissionReview as the API server sends it, without fields that the webhook does not read."""
    return {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": "705ab4f5-6393-11e8-b7cc-42010a800002",
            "kind": {"group": "", "version": "v1", "kind": "Pod"},
            "namespace": "shop",
            "operation": "CREATE",
            "object": pod,
        },
    }


def response(pod: dict[str, Any], container: dict[str, Any] = SIDECAR) -> dict[str, Any]:
    """Return the response for a pod. Check the fields that all responses have."""
    question = asked(pod)
    before = deepcopy((question, container))
    answer = review(question, container)
    assert (question, container) == before, "what comes in is not changed"
    assert (answer["apiVersion"], answer["kind"]) == ("admission.k8s.io/v1", "AdmissionReview")
    response: dict[str, Any] = answer["response"]
    assert response.pop("uid") == question["request"]["uid"]
    return response


def patch(pod: dict[str, Any], container: dict[str, Any] = SIDECAR) -> list[dict[str, Any]]:
    """Return the JSON Patch for a pod that is allowed and changed."""
    answer = response(pod, container)
    operations: list[dict[str, Any]] = json.loads(base64.b64decode(answer.pop("patch")))
    assert answer == {"allowed": True, "patchType": "JSONPatch"}
    return operations


def refusal(pod: dict[str, Any]) -> str:
    """Return the message for a pod that is refused."""
    answer = response(pod)
    message: str = answer["status"].pop("message")
    assert answer == {"allowed": False, "status": {"code": 400}}
    assert message.isprintable()
    assert len(message) < 400
    return message


# -- added


def test_the_client_s_variable_leads_to_the_gateway_and_its_value_is_the_bootstrap() -> None:
    app = client({"name": "LEVEL", "value": "info"}, {"name": "KAFKA", "value": "kafka1:9092, kafka2:9092"})
    assert patch(pod({"fetchgate/bootstrap-env": "KAFKA"}, app)) == [
        {"op": "replace", "path": "/spec/containers/0/env/1", "value": AT_GATEWAY},
        LABELS,
        VOLUMES,
        added(sidecar(bootstrap("kafka1:9092, kafka2:9092"))),
    ]


def test_all_containers_with_the_variable_are_led_and_the_gateway_is_the_first() -> None:
    old = {"name": "KAFKA", "value": "kafka:9092"}
    asking = pod(
        {"fetchgate/bootstrap-env": "KAFKA"},
        client(old),
        client(name="proxy"),
        client(old, name="worker"),
        initContainers=[client(name="wait"), client(old, name="migrate")],
    )
    asking["metadata"]["labels"] = {"app": "shop"}
    assert patch(asking) == [
        {"op": "replace", "path": "/spec/initContainers/1/env/0", "value": AT_GATEWAY},
        {"op": "replace", "path": "/spec/containers/0/env/0", "value": AT_GATEWAY},
        {"op": "replace", "path": "/spec/containers/2/env/0", "value": AT_GATEWAY},
        {"op": "add", "path": "/metadata/labels/fetchgate~1injected", "value": "true"},
        VOLUMES,
        {"op": "add", "path": "/spec/initContainers/0", "value": switched(sidecar(bootstrap("kafka:9092")))},
    ]


def test_a_variable_from_a_config_map_is_read_from_there_for_the_gateway() -> None:
    source = {"valueFrom": {"configMapKeyRef": {"name": "kafka", "key": "servers"}}}
    assert patch(pod({"fetchgate/bootstrap-env": "KAFKA"}, client({"name": "KAFKA", **source}))) == [
        {"op": "replace", "path": "/spec/containers/0/env/0", "value": AT_GATEWAY},
        LABELS,
        VOLUMES,
        added(sidecar({"name": "FETCHGATE_BOOTSTRAP", **source})),
    ]


def test_a_variable_that_no_env_has_is_added_to_all_containers_if_the_bootstrap_is_known() -> None:
    """For example, it comes from `envFrom`: `env` has precedence over it."""
    asking = pod(
        {**ASKS, "fetchgate/bootstrap-env": "KAFKA"},
        {**client(), "envFrom": [{"configMapRef": {"name": "kafka"}}]},
        client({"name": "LEVEL", "value": "info"}, name="worker"),
    )
    asking["spec"]["initContainers"] = [client(name="wait")]
    assert patch(asking) == [
        {"op": "add", "path": "/spec/containers/0/env", "value": [AT_GATEWAY]},
        {"op": "add", "path": "/spec/containers/1/env/0", "value": AT_GATEWAY},
        LABELS,
        VOLUMES,
        {"op": "add", "path": "/spec/initContainers/0", "value": switched(sidecar(bootstrap("kafka:9092")))},
    ]


def test_a_bootstrap_that_is_given_counts_and_not_the_variable_s_value() -> None:
    app = client({"name": "KAFKA", "value": "$(HOST):$(PORT)"})
    assert patch(pod({**ASKS, "fetchgate/bootstrap-env": "KAFKA"}, app)) == [
        {"op": "replace", "path": "/spec/containers/0/env/0", "value": AT_GATEWAY},
        LABELS,
        VOLUMES,
        added(sidecar(bootstrap("kafka:9092"))),
    ]


def test_without_a_variable_the_client_is_left_alone() -> None:
    app = client({"name": "KAFKA", "value": "127.0.0.1:19092"})
    assert patch(pod(ASKS, app)) == [LABELS, VOLUMES, added(sidecar(bootstrap("kafka:9092")))]


def test_the_container_may_have_the_bootstrap_for_pods_that_do_not_say_theirs() -> None:
    container = sidecar(bootstrap("all:9092"))
    led = {"op": "add", "path": "/spec/containers/0/env", "value": [AT_GATEWAY]}
    assert patch(pod({"fetchgate/bootstrap-env": "KAFKA"}), container) == [
        led,
        LABELS,
        VOLUMES,
        added(container),
    ]
    assert patch(pod({"fetchgate/image": "fetchgate:1"}), container) == [LABELS, VOLUMES, added(container)]
    app = client({"name": "KAFKA", "value": "own:9092"})
    *_, last = patch(pod({"fetchgate/bootstrap-env": "KAFKA"}, app), container)
    assert last == added(sidecar(bootstrap("own:9092")))


def test_image_resources_and_options_are_the_pod_s() -> None:
    annotations = {
        "fetchgate/image": "registry.example/fetchgate:2",
        "fetchgate/resources": '{"requests": {"memory": "96Mi"}, "limits": {"memory": "128Mi"}}',
        "fetchgate/rack": "eu-west-1a",
        "fetchgate/rack-clients": "billing",
        "fetchgate/max-sessions": "50",
        "fetchgate/bootstrap": "kafka:9092",
        "example.org/other": "stays",
    }
    container = sidecar(
        {"name": "FETCHGATE_MAX_SESSIONS", "value": "200"}, resources={"limits": {"cpu": "1"}}
    )
    assert patch(pod(annotations), container) == [
        LABELS,
        VOLUMES,
        added(
            sidecar(
                {"name": "FETCHGATE_MAX_SESSIONS", "value": "50"},
                {"name": "FETCHGATE_RACK", "value": "eu-west-1a"},
                {"name": "FETCHGATE_RACK_CLIENTS", "value": "billing"},
                bootstrap("kafka:9092"),
                image="registry.example/fetchgate:2",
                resources={"requests": {"memory": "96Mi"}, "limits": {"memory": "128Mi"}},
            )
        ),
    ]


def test_a_rack_that_the_kubelet_reads_later_counts_as_a_rack() -> None:
    label = {"fieldRef": {"fieldPath": "metadata.labels['topology.kubernetes.io/zone']"}}
    rack = {"name": "FETCHGATE_RACK", "valueFrom": label}
    reads = {"name": "FETCHGATE_RACK_CLIENTS", "value": "billing"}
    assert patch(pod(ASKS | {"fetchgate/rack-clients": "billing"}), sidecar(rack)) == [
        LABELS,
        VOLUMES,
        added(sidecar(rack, bootstrap("kafka:9092"), reads)),
    ]


def test_a_config_map_that_may_be_absent_is_mounted_beside_other_volumes() -> None:
    """As a folder without `subPath`, which the kubelet writes again when the ConfigMap changes."""
    asking = pod(ASKS, volumes=[{"name": "data", "emptyDir": {}}])
    mount = {"name": "data", "mountPath": "/data"}
    _, volume, gateway = patch(asking, sidecar(volumeMounts=[mount]))
    assert volume == {"op": "add", "path": "/spec/volumes/-", "value": VOLUME}
    assert gateway["value"][0]["volumeMounts"] == [mount, MOUNT]


def test_a_volume_of_the_pod_s_own_keeps_its_name() -> None:
    """A pod with two volumes of a name is refused by the API server."""
    own = [{"name": "fetchgate-options", "emptyDir": {}}, {"name": "fetchgate-options-2", "emptyDir": {}}]
    _, volume, gateway = patch(pod(ASKS, volumes=own))
    assert volume["value"] == VOLUME | {"name": "fetchgate-options-3"}
    assert gateway["value"][0]["volumeMounts"] == [MOUNT | {"name": "fetchgate-options-3"}]


@pytest.mark.parametrize("source", [{"value": "/own.toml"}, {"valueFrom": {"fieldRef": {"fieldPath": "x"}}}])
def test_a_container_with_an_options_file_of_its_own_gets_no_other(source: dict[str, Any]) -> None:
    container = sidecar({"name": "FETCHGATE_CONFIG", **source}, bootstrap("kafka:9092"))
    _, gateway = patch(pod({"fetchgate/image": "fetchgate:1"}), container)
    assert gateway["value"] == [container]


# -- left as it is


@pytest.mark.parametrize(
    "asking",
    [
        pod({}),
        pod({"example.org/fetchgate": "true"}),
        {"metadata": {"name": "app"}, "spec": {"containers": [client()]}},
        {"metadata": {"name": "app", "annotations": None}, "spec": {"containers": [client()]}},
        pod(ASKS, initContainers=[SIDECAR]),
        pod(ASKS, client(), client(name="fetchgate")),
        pod(ASKS | {f"fetchgate/{'a' * (256 << 10)}": "1"}),
        pod({"fetchgate/bootstrap": "kafka:9092," * (24 << 10)}),
    ],
    ids=[
        "asks for nothing",
        "other",
        "no annotations",
        "null",
        "has one",
        "its own",
        "long name",
        "long text",
    ],
)
def test_a_pod_that_does_not_ask_or_has_a_gateway_stays_as_it_is(asking: dict[str, Any]) -> None:
    assert response(asking) == {"allowed": True}


def test_a_pod_is_changed_once() -> None:
    asking = pod({"fetchgate/bootstrap-env": "KAFKA"}, client({"name": "KAFKA", "value": "kafka:9092"}))
    led, labels, volumes, gateway = patch(asking)
    asking["spec"]["containers"][0]["env"][0] = led["value"]
    asking["metadata"]["labels"] = labels["value"]
    asking["spec"]["volumes"] = volumes["value"]
    asking["spec"]["initContainers"] = gateway["value"]
    assert response(asking) == {"allowed": True}


def test_a_pod_in_the_network_of_its_node_is_left_alone_and_told_why() -> None:
    assert response(pod(ASKS, hostNetwork=True)) == {
        "allowed": True,
        "warnings": [
            "fetchgate is not added: with hostNetwork, the gateway's ports would be open on the node"
        ],
    }


def test_a_gateway_that_could_not_start_anywhere_keeps_no_pod_from_starting() -> None:
    """The pod's annotations are right, and its owner can't mend the container."""
    wrong = {"name": "FETCHGATE_MAX_SESSIONS", "value": "many"}
    answer = response(pod(ASKS), sidecar(wrong))
    assert answer.pop("allowed") is True
    (warning,) = answer.pop("warnings")
    assert warning.startswith("fetchgate is not added, because it could not start: FETCHGATE_MAX_SESSIONS: ")
    assert answer == {}
    assert patch(pod(ASKS | {"fetchgate/max-sessions": "5"}), sidecar(wrong)), "the pod has its own"


# -- refused

WITH_KAFKA: Final = {"fetchgate/bootstrap-env": "KAFKA"}


@pytest.mark.parametrize(
    ("annotations", "env", "said"),
    [
        (
            {"fetchgate/bootstrap-enf": "KAFKA"},
            [],
            "fetchgate/bootstrap-enf: there is no such annotation; did you mean fetchgate/bootstrap-env?",
        ),
        ({"fetchgate/qqq": "1"}, [], "fetchgate/qqq: there is no such annotation"),
        ({"fetchgate/config": "x.toml"}, [], "fetchgate/config: there is no such annotation"),
        ({"fetchgate/bootstrap": ""}, [], "fetchgate/bootstrap: it is empty; give a value, or leave it out"),
        (
            {"fetchgate/max-sessions": "50"},
            [],
            "fetchgate/bootstrap is missing: set it to the brokers' addresses, or set ",
        ),
        (
            WITH_KAFKA,
            [("KAFKA_URL", "kafka:9092")],
            "fetchgate/bootstrap-env: no container has KAFKA in its env; set fetchgate/bootstrap to the",
        ),
        (
            WITH_KAFKA,
            [("KAFKA", "a:9092"), ("KAFKA", "b:9092")],
            "fetchgate/bootstrap-env: KAFKA has more than one value in this pod; set fetchgate/bootstrap to",
        ),
        (
            WITH_KAFKA,
            [("KAFKA", "kafka:9092," * (12 << 10))],
            "fetchgate/bootstrap-env: KAFKA is longer than 128 KiB; set fetchgate/bootstrap to the brokers'",
        ),
        (
            WITH_KAFKA,
            [("KAFKA", "$(HOST):9092")],
            "fetchgate/bootstrap-env: KAFKA is $(HOST):9092, made of other variables; set ",
        ),
        (
            WITH_KAFKA,
            [("KAFKA", "127.0.0.1:19092")],
            "fetchgate/bootstrap-env: KAFKA is 127.0.0.1:19092, the gateway's own address; set",
        ),
        (
            WITH_KAFKA,
            [("KAFKA", "kafka:9092, localhost:19092")],
            "fetchgate/bootstrap-env: KAFKA is kafka:9092, localhost:19092, the gateway's own address; set",
        ),
        (ASKS | {"fetchgate/resources": "96Mi"}, [], "fetchgate/resources: give JSON such as "),
        (ASKS | {"fetchgate/resources": '{"memory": "96Mi"}'}, [], "fetchgate/resources: give JSON such as "),
        *(
            (ASKS | {"fetchgate/resources": text}, [], "fetchgate/resources: give JSON such as ")
            for text in ("9\n6", '{"limits": 1}', '{"limits": {"cpu": NaN}}', "[" * 100_000, "x\x1b[2J")
        ),
        ({"fetchgate/a\nb": "1"}, [], "fetchgate/a\\nb: there is no such annotation"),
        (
            ASKS | {"fetchgate/rack-reads": "client"},
            [],
            "fetchgate/rack-reads was removed: set client.rack in the client",
        ),
        (ASKS | {"fetchgate/max-sessions": "many"}, [], "fetchgate/max-sessions: "),
        (ASKS | {"fetchgate/max-inflight-bytes": "1x"}, [], "fetchgate/max-inflight-bytes: "),
        ({"fetchgate/bootstrap": "kafka:port"}, [], "fetchgate/bootstrap: "),
        (WITH_KAFKA, [("KAFKA", "kafka:port")], "KAFKA: "),
        (WITH_KAFKA, [("KAFKA", "")], "KAFKA: "),
        (ASKS | {"fetchgate/rack-clients": "billing"}, [], "--rack-clients has no effect alone"),
        (
            ASKS | {"fetchgate/state": "/tmp/s"},
            [],
            "fetchgate/state: the gateway's container has no such file",
        ),
        (ASKS | {"fetchgate/capture": "/tmp"}, [], "fetchgate/capture: the gateway's container has no such"),
        (
            ASKS | {"fetchgate/tls-cert-of": "1=a.pem"},
            [],
            "fetchgate/tls-cert-of: the gateway's container has",
        ),
        (
            ASKS | {"fetchgate/rack": f"@{__file__}"},
            [],
            "fetchgate/rack: the gateway's container has no such",
        ),
        (
            ASKS | {"fetchgate/rack": " @/dev/zero"},
            [],
            "fetchgate/rack: the gateway's container has no such",
        ),
        *(
            (ASKS | {f"fetchgate/{name}": "x"}, [], f"fetchgate/{name}: this option is the same for all pods")
            for name in FIXED
        ),
    ],
)
def test_a_wrong_annotation_is_refused_and_named(
    annotations: dict[str, str], env: list[tuple[str, str]], said: str
) -> None:
    app = client(*({"name": name, "value": value} for name, value in env))
    assert refusal(pod(annotations, app)).startswith(said)


def test_what_is_no_review_of_a_pod_is_an_error() -> None:
    for wrong in ({}, {"request": {"uid": "1"}}, {"request": {"uid": "1", "object": {"kind": "Node"}}}):
        with pytest.raises(KeyError):
            review(wrong, SIDECAR)


# -- the server


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def server(tmp_path: Path, authority: Authority) -> Iterator[Injector]:
    pytest.importorskip("starlette", reason="no starlette here")
    pytest.importorskip("uvicorn", reason="no uvicorn here")
    at = ("127.0.0.1", free_ports())
    with injector(tmp_path, SIDECAR, authority.sign("server"), authority.file, at) as running:
        yield running


def test_the_server_answers_over_tls_and_logs_what_became_of_each_pod(
    server: Injector, tmp_path: Path
) -> None:
    wrong = pod(ASKS | {"fetchgate/max-sessions": "many"})
    for asking in (pod(ASKS), pod({}), pod(ASKS, hostNetwork=True), wrong):
        status, text = server.ask("/inject", json.dumps(asked(asking)))
        assert (status, json.loads(text)) == (200, review(asked(asking), SIDECAR))
    added, left, warned, refused = [line.split(" ", 4)[4] for line in server.log().splitlines()[-4:]]
    assert added == "shop/app-: fetchgate is added"
    assert left == "shop/app-: left as it is"
    assert warned.startswith("shop/app-: fetchgate is not added: with hostNetwork")
    assert refused.startswith("shop/app-: refused, fetchgate/max-sessions: ")
    container = sidecar(image="fetchgate:2")
    (tmp_path / "sidecar.json").write_text(json.dumps(container))
    status, text = server.ask("/inject", json.dumps(asked(pod(ASKS))))
    assert (status, json.loads(text)) == (200, review(asked(pod(ASKS)), container)), "the file is read again"


def test_a_refusal_that_a_controller_asks_for_again_is_logged_once(server: Injector) -> None:
    def refused(owner: str | None, value: str) -> None:
        wrong = pod(ASKS | {"fetchgate/max-sessions": value})
        if owner is not None:
            others = {"uid": "of all pods", "controller": False}
            wrong["metadata"]["ownerReferences"] = [others, {"uid": owner, "controller": True}]
        for _ in range(3):
            status, text = server.ask("/inject", json.dumps(asked(wrong)))
            assert (status, json.loads(text)["response"]["allowed"]) == (200, False)

    refused("one", "many")
    refused("one", "few")
    refused("two", "many")
    refused(None, "many")
    lines = [line for line in server.log().splitlines() if "refused" in line]
    assert [line.partition("'")[2].partition("'")[0] for line in lines] == ["many", "few", "many", "many"]


def test_a_refusal_is_logged_again_after_an_hour_and_memory_is_bounded() -> None:
    refusals = Refusals()
    first = ("owner", "wrong")
    assert refusals.is_new(*first, now=0)
    assert not refusals.is_new(*first, now=AGAIN_SECONDS - 1)
    assert refusals.is_new(*first, now=AGAIN_SECONDS)
    assert not refusals.is_new(*first, now=AGAIN_SECONDS + 1)
    for number in range(MAX_REFUSALS):
        assert refusals.is_new(f"{number}", "x" * 10_000, now=AGAIN_SECONDS + 1)
    assert refusals.is_new(*first, now=AGAIN_SECONDS + 1), "the oldest was forgotten"
    assert len(repr(vars(refusals))) < MAX_REFUSALS * 2_000


@pytest.mark.parametrize(
    "body",
    [
        *("", "{", "[]", "{}", '{"request": 1}', '{"request": {"uid": "1"}}'),
        json.dumps(asked({"metadata": {"annotations": {"fetchgate/x": "1"}, "ownerReferences": 1}})),
        '{"request": {"uid": "\\ud800", "object": {"metadata": {}}}}',
        '{"request": {"uid": NaN, "object": {"metadata": {}}}}',
    ],
)
def test_what_is_no_review_is_answered_with_an_error_and_the_server_goes_on(
    server: Injector, body: str
) -> None:
    status, text = server.ask("/inject", body)
    assert (status, text.startswith("this is no AdmissionReview of a pod: ")) == (400, True)
    assert "WARNING fetchgate.injector a review can't be answered: " in server.log()
    assert server.runs()


def test_long_names_and_bytes_that_are_no_text_leave_short_lines_in_the_log(server: Injector) -> None:
    """Anyone in the cluster may connect to the server."""
    long = "x" * 100_000
    for asking in (
        asked(pod(ASKS)),
        asked(pod(ASKS | {f"fetchgate/{long}": "1"})),
        asked(pod(ASKS | {"fetchgate/resources": long})),
        asked(pod({"fetchgate/bootstrap-env": long})),
    ):
        asking["request"]["namespace"] = long
        status, text = server.ask("/inject", json.dumps(asking))
        assert (status, len(text) < 5_000) == (200, True)
    status, text = server.ask("/inject", b"\xff" * 100_000)
    assert (status, len(text) < 1_000) == (400, True)
    assert max(len(line) for line in server.log().splitlines()) < 2_000


def test_a_review_without_end_is_not_read_to_its_end(server: Injector) -> None:
    status, text = server.ask("/inject", json.dumps(asked(pod({"note": "x" * (2 << 20)}))))
    assert (status, text) == (
        400,
        "this is no AdmissionReview of a pod: ValueError('more than 2097152 bytes')",
    )
    assert server.ask("/inject", "[" * 1_000_000)[0] == 400
    assert server.runs()


def test_a_hundred_peers_with_long_or_endless_reviews_leave_it_within_its_memory(server: Injector) -> None:
    """Objects of 2 MiB of empty ones take most. Others of the peers never send their last byte."""
    (limit,) = re.findall(
        r"memory: (\d+)Mi\n +securityContext", (DEPLOY / "kubernetes/injector/injector.yaml").read_text()
    )
    long = b"[" + b"{}," * 699_000 + b"1]"

    def told(number: int) -> int:
        with closing(server.connect()) as connection:
            connection.putrequest("POST", "/inject")
            connection.putheader("Content-Length", str(len(long) + number % 2))
            connection.endheaders()
            with suppress(OSError):  # the server closes the connection of a peer that is too slow
                connection.send(long)
            return connection.getresponse().status

    with ThreadPoolExecutor(100) as peers:
        found = [peers.submit(told, number) for number in range(100)]
        while not all(one.done() for one in found):
            assert server.ask("/inject", json.dumps(asked(pod(ASKS))))[0] == 200
    # On a busy machine all of the hundred may be too slow. One alone is read to its end.
    assert told(0) == 400
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    (peak,) = re.findall(r"VmHWM:\s+(\d+) kB", status)
    assert int(peak) < int(limit) * 1024
    ended = Counter(_status(one) for one in found)
    assert ended.keys() <= {400, 408, None}
    assert ended[408] >= 1


def _status(of: Future[int]) -> int | None:
    return None if of.exception() else of.result()


def test_a_connection_without_a_request_is_closed(server: Injector) -> None:
    with closing(server.connect()) as connection:
        connection.connect()
        assert connection.sock.recv(1) == b""


async def test_only_so_many_reviews_are_read_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    requests = pytest.importorskip("starlette.requests", reason="no starlette here")
    bodies = pytest.importorskip("tools.deploy.webhook.bodies")

    async def short() -> dict[str, object]:
        return {"type": "http.request", "body": b"{}", "more_body": False}

    monkeypatch.setattr(bodies, "MOST_REVIEWS", 2)
    reading = bodies.Bodies()
    request = partial(requests.Request, {"type": "http", "method": "POST"}, short)
    async with reading.of(request()) as body, reading.of(request()):
        assert body == b"{}"
        with pytest.raises(bodies.BusyError):
            async with reading.of(request()):
                pass
    async with reading.of(request()) as body:
        assert body == b"{}"


def test_a_review_that_ends_halfway_is_one_line_in_the_log(server: Injector) -> None:
    connection = server.connect()
    connection.putrequest("POST", "/inject")
    connection.putheader("Content-Length", "1000")
    connection.endheaders(b"{")
    connection.close()
    while "a review" not in server.log():
        assert "Traceback" not in server.log()
    (line,) = (line for line in server.log().splitlines() if "a review" in line)
    assert line.endswith("WARNING fetchgate.injector a review has ended halfway")
    assert server.runs()


def test_without_its_file_the_server_answers_with_an_error_and_goes_on(
    server: Injector, tmp_path: Path
) -> None:
    (tmp_path / "sidecar.json").unlink()
    assert server.ask("/inject", json.dumps(asked(pod(ASKS))))[0] == 500
    assert server.runs()


def test_a_renewed_certificate_is_used_from_the_next_connection_on(
    server: Injector, authority: Authority
) -> None:
    def served() -> bytes:
        connection = server.connect()
        connection.connect()
        found = connection.sock.getpeercert(binary_form=True)
        connection.close()
        return found or b""

    first = served()
    assert served() == first
    pair = authority.sign("server")
    second = served()
    assert second != first
    assert served() == second
    pair.cert.write_text("half a file")
    assert served() == second, "until a whole one is there, the last one counts"
    pair.cert.unlink()
    assert served() == second
    authority.sign("server")
    assert served() not in {first, second}
    assert "the certificate is not renewed: " in server.log()
