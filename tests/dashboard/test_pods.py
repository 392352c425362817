"""Where the gateways of pods can be asked, from what ``kubectl get pods -o json`` prints."""

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml

from proxy.addresses import Address
from proxy.dashboard.pods import PodGateway, gateways

MANIFEST = Path(__file__).parents[2] / "tools" / "deploy" / "kubernetes" / "base" / "deployment.yaml"
TEMPLATE = yaml.safe_load(MANIFEST.read_text(encoding="utf-8"))["spec"]["template"]


def pod(name: str, ip: str | None = "10.0.0.7", namespace: str = "shop", phase: str = "Running") -> Any:
    """Return a pod of the manifest in tools/deploy, as the API shows it."""
    made = copy.deepcopy(TEMPLATE)
    made["metadata"] |= {"name": name, "namespace": namespace}
    status = {"phase": phase} | ({"podIP": ip} if ip else {})
    return made | {"apiVersion": "v1", "kind": "Pod", "status": status}


def sidecar(of: Any) -> Any:
    """Return the gateway's container of a pod."""
    return of["spec"]["initContainers"][0]


def one(of: Any) -> PodGateway:
    """Return the only gateway of a pod."""
    (found,), without = gateways(of)
    assert without == 0
    return found


def listed(*pods: Any, kind: str = "List") -> Any:
    """Return pods as kubectl lists them."""
    return {"apiVersion": "v1", "kind": kind, "items": list(pods)}


def test_a_pod_of_the_manifests_is_asked_for_its_metrics() -> None:
    command = "kubectl exec -it --namespace shop orders-0 -c fetchgate -- fetchgate top"
    assert one(pod("orders-0")) == PodGateway(
        name="orders-0", address=Address("10.0.0.7", 9465), metrics=True, command=command
    )


@pytest.mark.parametrize(
    "value", ["0.0.0.0:9464", "$(POD_IP):9464", "[::]:9464", "10.0.0.7:9464", "::1f:9464"]
)
def test_an_open_admin_endpoint_is_asked_for_all(value: str) -> None:
    of = pod("orders-0")
    sidecar(of)["env"].append({"name": "FETCHGATE_ADMIN", "value": value})
    found = one(of)
    assert (found.address, found.metrics, found.secured) == (Address("10.0.0.7", 9464), False, False)
    sidecar(of)["env"].append({"name": "FETCHGATE_ADMIN_CERT", "value": "/tls/tls.crt"})
    assert one(of).secured


@pytest.mark.parametrize(
    "arguments",
    [
        ["proxy", "--admin", "0.0.0.0:9000", "--admin", ":9464"],
        ["proxy", "--admin=0.0.0.0:9464"],
        ["proxy", "--admin"],
    ],
)
def test_options_may_be_arguments(arguments: list[str]) -> None:
    of = pod("orders-0")
    sidecar(of)["args"] = arguments
    assert one(of).metrics is (arguments[1] != "--admin=0.0.0.0:9464"), "the host of :9000 is loopback"


@pytest.mark.parametrize(
    "value",
    [
        *("127.0.0.1:9464", "localhost:9464", "[::1]:9464", ":9464", "off", ""),
        *("0.0.0.0:http", "0.0.0.0:0", "0.0.0.0:٣", f"0.0.0.0:{'9' * 5_000}"),
    ],
)
def test_what_is_open_within_the_pod_alone_is_not_asked(value: str) -> None:
    of = pod("orders-0")
    container = sidecar(of)
    container["env"] = [{"name": name, "value": value} for name in ("FETCHGATE_ADMIN", "FETCHGATE_METRICS")]
    assert one(of).address == Address("10.0.0.7", 9465), "the port that the container names"
    container["ports"] = []
    found = one(of)
    assert found.address is None
    assert "set FETCHGATE_METRICS or FETCHGATE_ADMIN" in found.problem


def test_a_pod_without_an_address_is_listed_with_its_phase() -> None:
    found = one(pod("orders-0", ip=None, phase="Pending"))
    assert (found.address, found.problem) == (None, "the pod has no address yet (Pending)")


def test_an_address_may_be_ipv6() -> None:
    assert str(one(pod("orders-0", ip="fd00::7")).address) == "[fd00::7]:9465"


def test_pods_are_named_with_their_namespaces_if_these_differ() -> None:
    found, _ = gateways(listed(pod("orders-0"), pod("orders-0", namespace="test"), kind="PodList"))
    assert [each.name for each in found] == ["shop/orders-0", "test/orders-0"]
    assert "--namespace test orders-0 " in found[1].command


def test_pods_without_a_gateway_are_counted_and_ended_ones_left_out() -> None:
    plain = pod("web-0")
    plain["spec"]["initContainers"] = []
    named = pod("renamed-0")
    sidecar(named)["name"] = "gate"
    bare = {"metadata": {"name": "bare"}, "status": {"podIP": "10.0.0.9"}}
    found, without = gateways(listed(plain, pod("job-1", phase="Succeeded"), pod("orders-0"), named, bare))
    assert ([each.name for each in found], without) == (["shop/orders-0", "shop/renamed-0"], 2)
    assert "-c gate -- " in found[1].command


def test_what_a_terminal_would_obey_is_not_shown() -> None:
    found = one(pod("a\x1b[2J"))
    assert found.name == "a\ufffd[2J"
    assert " 'a\ufffd[2J' -c fetchgate " in found.command, "nor would a shell obey it"
    assert " 'a; reboot' " in one(pod("a; reboot")).command


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ([], "it is JSON, but not a list of pods; give the output of kubectl get pods -o json"),
        ({}, "it is JSON, but not a list of pods; give"),
        ({"kind": "Deployment"}, "it is a Deployment, not a list of pods; give"),
        ({"kind": "List"}, "it is a List, not a list of pods; give"),
        (
            listed(pod("a"), {"kind": "Service"}),
            "it lists a Service that is not a Pod; give the output of kubectl",
        ),
        ({"kind": ["List"]}, "it is a ['List'], not a list of pods; give"),
        (listed({"metadata": {"namespace": []}, "status": {"phase": []}}), "none of its 1 pods has a"),
        (listed(1), "it lists a value that is not a Pod; give the output of kubectl"),
        (listed(), "it lists no running pod; check the selector and the namespace"),
        (listed(pod("a", phase="Failed")), "it lists no running pod; check"),
        (listed({"kind": "Pod"}), "none of its 1 pods has a container called fetchgate; check the selector"),
    ],
)
def test_what_is_no_list_of_pods_with_a_gateway_is_an_error(document: Any, said: str) -> None:
    with pytest.raises(ValueError, match=r"; \w+") as caught:
        gateways(document)
    assert said in str(caught.value)
