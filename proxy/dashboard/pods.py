"""Finds the gateways in the Pods of Kubernetes, as ``kubectl get pods -o json`` prints them. Sans-IO.

A gateway is a sidecar: a container called ``fetchgate``, or one with a port called ``gate-metrics``, as in
tools/deploy. Its options say where it can be asked:

- ``FETCHGATE_ADMIN`` or ``--admin``, if it is not at loopback: the admin endpoint.
- ``FETCHGATE_METRICS`` or ``--metrics``, or the port ``gate-metrics``: the metrics alone.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from itertools import pairwise
from shlex import quote
from typing import Any, Final

from proxy.addresses import MAX_PORT, Address, whole_number
from proxy.dashboard.snapshot import shown

_CONTAINER: Final = "fetchgate"
_METRICS_PORT: Final = "gate-metrics"
_HAS_ENDED: Final = frozenset({"Succeeded", "Failed"})
_CLOSED: Final = "its endpoints are open only within the pod; set FETCHGATE_METRICS or FETCHGATE_ADMIN for it"
GIVE: Final = "give the output of kubectl get pods -o json"


@dataclass(frozen=True, slots=True, kw_only=True)
class PodGateway:
    """A gateway in a pod."""

    name: str
    """The name of the pod. If the pods are in several namespaces: ``NAMESPACE/POD``."""
    address: Address | None
    secured: bool = False
    metrics: bool = False
    """Whether only metrics can be read at the address."""
    problem: str = ""
    command: str
    """The command that shows the gateway from within its pod."""


def gateways(document: Any) -> tuple[list[PodGateway], int]:
    """Return the gateways in a list of pods that run, and how many of the pods have none.

    Raises:
        ValueError: the document is no list of pods, or no pod has a gateway. The message says what to give.
    """
    found, without = [], 0
    pods = [pod for pod in _pods(document) if shown(_dict(pod, "status").get("phase")) not in _HAS_ENDED]
    if not pods:
        raise ValueError("it lists no running pod; check the selector and the namespace")
    namespaces = {shown(_dict(pod, "metadata").get("namespace", "")) for pod in pods}
    for pod in pods:
        container = next(filter(_is_gateway, _containers(pod)), None)
        if container is None:
            without += 1
        else:
            found.append(_gateway(pod, container, qualified=len(namespaces) > 1))
    if not found:
        raise ValueError(
            f"none of its {without} pods has a container called {_CONTAINER}; check the selector"
        )
    return found, without


def _pods(document: Any) -> Sequence[Any]:
    # ``kubectl get pods -o json`` prints one pod, or a list.
    kind = document.get("kind") if isinstance(document, dict) else None
    if kind == "Pod":
        return [document]
    items = document.get("items") if kind in ("List", "PodList") else None
    if items is None or not isinstance(items, list):
        raise ValueError(f"it is {f'a {kind},' if kind else 'JSON, but'} not a list of pods; {GIVE}")
    for item in items:  # the items of a PodList, from the API itself, have no kind
        if (other := item.get("kind", "Pod") if isinstance(item, dict) else None) != "Pod":
            raise ValueError(f"it lists a {other or 'value'} that is not a Pod; {GIVE}")
    return items


def _dict(of: Any, name: str) -> Mapping[str, Any]:
    value = of.get(name) if isinstance(of, dict) else None
    return value if isinstance(value, dict) else {}


def _dicts(of: Mapping[str, Any], name: str) -> Iterator[Mapping[str, Any]]:
    value = of.get(name)
    return (one for one in (value if isinstance(value, list) else ()) if isinstance(one, dict))


def _containers(pod: Any) -> Iterator[Mapping[str, Any]]:
    spec = _dict(pod, "spec")
    yield from _dicts(spec, "initContainers")
    yield from _dicts(spec, "containers")


def _is_gateway(container: Mapping[str, Any]) -> bool:
    return container.get("name") == _CONTAINER or _metrics_port(container) is not None


def _metrics_port(container: Mapping[str, Any]) -> int | None:
    ports = (port for port in _dicts(container, "ports") if port.get("name") == _METRICS_PORT)
    return next((number for port in ports if isinstance(number := port.get("containerPort"), int)), None)


def _gateway(pod: Any, container: Mapping[str, Any], *, qualified: bool) -> PodGateway:
    about, status = _dict(pod, "metadata"), _dict(pod, "status")
    name, namespace = shown(about.get("name", "?")), shown(about.get("namespace", ""))
    within = f" --namespace {quote(namespace)}" if namespace else ""
    ip, phase = status.get("podIP"), shown(status.get("phase", "unknown"))
    at = f"{quote(name)} -c {quote(shown(container.get('name', '')))}"
    admin = _open_port(_option(container, "admin"))
    metrics = _open_port(_option(container, "metrics")) or _metrics_port(container)
    port = admin or metrics
    problem = "" if port else _CLOSED
    if not ip:
        problem = f"the pod has no address yet ({phase})"
    return PodGateway(
        name=f"{namespace}/{name}" if qualified else name,
        address=Address(shown(ip), port) if port and not problem else None,
        secured=bool(admin and _option(container, "admin-cert")),
        metrics=not admin,
        problem=problem,
        command=f"kubectl exec -it{within} {at} -- fetchgate top",
    )


def _option(container: Mapping[str, Any], name: str) -> str:
    # A flag in the arguments, or a variable of the environment. The last one counts.
    flag, variable = f"--{name}", f"FETCHGATE_{name.replace('-', '_').upper()}"
    arguments = [
        str(word)
        for of in ("command", "args")
        for word in (container[of] if isinstance(container.get(of), list) else ())
    ]
    values = [str(one.get("value", "")) for one in _dicts(container, "env") if one.get("name") == variable]
    values += [value for word, value in pairwise((*arguments, "")) if word == flag]
    values += [word.partition("=")[2] for word in arguments if word.startswith(f"{flag}=")]
    return values[-1] if values else ""


def _open_port(listen: str) -> int | None:
    # An endpoint at loopback is not open.
    host, _, text = listen.rpartition(":")
    return None if not host or _is_loopback(host.strip("[]")) else whole_number(text, 1, MAX_PORT)


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:  # a name, or a variable such as $(POD_IP)
        return host == "localhost"
