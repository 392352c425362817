"""Decides what becomes of a pod: the gateway is added, the pod stays as it is, or it is refused.

A pod asks with annotations: `fetchgate/bootstrap-env`, `fetchgate/image`, `fetchgate/resources`, and options
of ``fetchgate proxy`` by their names (`fetchgate/bootstrap`, `fetchgate/max-sessions`). A pod without any of
them stays as it is.
"""

import base64
import difflib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, count
from typing import Any, Final

from proxy.command.config import OPTIONS, REMOVED, load
from proxy.text.options import ConfigError, Option, told_removed
from proxy.text.printable import brief, printable

NAME: Final = "fetchgate"
"""The name of the gateway's container."""
PREFIX: Final = "fetchgate/"
INJECTED: Final = f"{PREFIX}injected"
"""The label of pods to which the gateway was added. Its value is ``true``."""
OPTION_OF: Final = {option.flag.removeprefix("--"): option for option in OPTIONS}
"""The options of the gateway by their names in annotations."""
BOOTSTRAP_ENV, IMAGE, RESOURCES = "bootstrap-env", "image", "resources"
"""The annotations that are not options of the gateway."""
FIXED: Final = ("listen", "admin", "metrics", "transparent")
"""The options on which probes, hooks and clients depend. Only the container sets them."""
BOOTSTRAP: Final = OPTION_OF["bootstrap"].variable
UNKNOWN_YET: Final = {BOOTSTRAP: "kafka:9092", OPTION_OF["rack"].variable: "rack"}
"""Values to check options with whose own values only the kubelet knows (`valueFrom`)."""
CONFIG: Final = "FETCHGATE_CONFIG"
"""The gateway's variable for the folder of its options."""
FOLDER: Final = "/etc/fetchgate"
"""Where the gateway finds the ConfigMap `NAME` of the pod's namespace."""
_MOST_ANNOTATIONS: Final = 256 << 10
"""How long annotations may be, in bytes. The API server refuses a pod with longer ones, but later."""
_MOST_VALUE: Final = 128 << 10
"""How long a variable may be, in bytes: Linux starts no process with a longer one (MAX_ARG_STRLEN)."""
_VOLUME: Final = "fetchgate-options"
_SELF: Final = frozenset({"localhost", "127.0.0.1", "[::1]"})
"""What a pod calls itself."""
_SHOWN: Final = 100
"""How many characters of a wrong value are shown."""

Json = dict[str, Any]
"""A JSON object: an object of Kubernetes, or an operation of a JSON Patch (RFC 6902)."""


class WrongAnnotationError(ValueError):
    """An annotation can't be used. The message is one line and names the annotation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What becomes of a pod that is not refused."""

    patch: tuple[Json, ...] = ()
    """The operations that add the gateway (RFC 6902). Empty if the pod stays as it is."""
    warning: str = ""
    """Why a pod that asks for the gateway does not get it. Empty if there is nothing to say."""


def review(asked: Json, sidecar: Json) -> Json:
    """Answer an AdmissionReview (admission.k8s.io/v1) for a pod.

    Args:
        asked: the AdmissionReview with the request.
        sidecar: the gateway's container.

    Raises:
        KeyError: `asked` is not such an AdmissionReview.
    """
    request = asked["request"]
    response: Json = {"uid": request["uid"], "allowed": True}
    try:
        decision = decide(request["object"], sidecar)
    except WrongAnnotationError as error:
        response |= {"allowed": False, "status": {"code": 400, "message": brief(printable(str(error)))}}
    else:
        if decision.patch:
            patch = base64.b64encode(json.dumps(decision.patch).encode()).decode()
            response |= {"patchType": "JSONPatch", "patch": patch}
        if decision.warning:
            response["warnings"] = [decision.warning]
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}


def decide(pod: Json, sidecar: Json) -> Decision:
    """Return what becomes of a pod.

    Args:
        pod: the pod. It is not changed.
        sidecar: the gateway's container. It is not changed.

    Raises:
        WrongAnnotationError: an annotation can't be used.
    """
    annotations = pod["metadata"].get("annotations") or {}
    asked = {name.removeprefix(PREFIX): text for name, text in annotations.items() if name.startswith(PREFIX)}
    if not asked or any(container["name"] == NAME for _, container in _containers(pod)):
        return Decision()
    if sum(len(name) + len(text) for name, text in asked.items()) > _MOST_ANNOTATIONS:
        return Decision()
    if pod["spec"].get("hostNetwork"):
        return Decision(
            warning="fetchgate is not added: with hostNetwork, the gateway's ports would be open on the node"
        )
    _check_names(asked)
    own = {entry["name"]: entry for entry in sidecar["env"]}
    options = {
        OPTION_OF[name].variable: {"name": OPTION_OF[name].variable, "value": text}
        for name, text in asked.items()
        if name in OPTION_OF
    }
    env = own | options
    variable = asked.get(BOOTSTRAP_ENV)
    listen = env[OPTION_OF["listen"].variable]["value"]
    if variable is not None and BOOTSTRAP not in options:
        env |= _brokers_of(pod, variable, listen)
    if BOOTSTRAP not in env:
        raise WrongAnnotationError(_no_brokers(variable))
    if problem := _problem(env):
        if problem_of_all := _problem({BOOTSTRAP: {}} | own):  # no annotation of this pod is to blame
            return Decision(warning=f"fetchgate is not added, because it could not start: {problem_of_all}")
        raise WrongAnnotationError(_blamed(problem, asked))
    container = {**sidecar, "env": [*env.values()]}
    if IMAGE in asked:
        container["image"] = asked[IMAGE]
    if RESOURCES in asked:
        container["resources"] = _resources(asked[RESOURCES])
    led = [] if variable is None else _led(pod, {"name": variable, "value": listen})
    volumes: list[Json] = []
    if CONFIG not in env:
        volumes, container = _with_options(pod, container)
    return Decision(patch=(*led, _labelled(pod), *volumes, _added(pod, container)))


def _containers(pod: Json) -> Iterator[tuple[str, Json]]:
    """Yield each container with its JSON pointer (RFC 6901)."""
    for kind in ("initContainers", "containers"):
        for index, container in enumerate(pod["spec"].get(kind) or ()):
            yield f"/spec/{kind}/{index}", container


def _entries(pod: Json, variable: str) -> Iterator[tuple[str, Json]]:
    """Yield each entry of `env` that sets a variable, with its JSON pointer."""
    for pointer, container in _containers(pod):
        for index, entry in enumerate(container.get("env") or ()):
            if entry["name"] == variable:
                yield f"{pointer}/env/{index}", entry


def _check_names(asked: Mapping[str, str]) -> None:
    """Check that all annotations are known, none is empty, and none names a file.

    Raises:
        WrongAnnotationError: one is not.
    """
    known = [BOOTSTRAP_ENV, IMAGE, RESOURCES, *(name for name in OPTION_OF if name not in FIXED)]
    for name, text in asked.items():
        if name in FIXED:
            raise WrongAnnotationError(f"{PREFIX}{name}: this option is the same for all pods; leave it out")
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            meant = f"; did you mean {PREFIX}{close[0]}?" if close else ""
            raise WrongAnnotationError(
                told_removed(REMOVED, name.replace("-", "_"), f"{PREFIX}{name}")
                or f"{PREFIX}{name}: there is no such annotation{meant}"
            )
        if not text:
            raise WrongAnnotationError(f"{PREFIX}{name}: it is empty; give a value, or leave it out")
        if name in OPTION_OF and _is_file(OPTION_OF[name], text):
            raise WrongAnnotationError(
                f"{PREFIX}{name}: the gateway's container has no such file; leave it out"
            )


def _is_file(option: Option, text: str) -> bool:
    """Return whether a value names a file or a folder. Annotations can't bring one into the container."""
    return text.lstrip().startswith("@") or re.search(r"(?<!@)FILE|DIR", option.metavar) is not None


def _brokers_of(pod: Json, variable: str, listen: str) -> dict[str, Json]:
    """Return the gateway's bootstrap, as the pod's own variable has it. Empty if no container sets it.

    A `valueFrom` is copied: the kubelet reads it for the gateway as it would for the client.

    Raises:
        WrongAnnotationError: the variable does not have one value that the gateway can use.
    """
    found = [{**entry, "name": BOOTSTRAP} for _, entry in _entries(pod, variable)]
    if not found:
        return {}
    first, *others = found
    value = first.get("value", "")
    problem = ""
    if any(other != first for other in others):
        problem = "has more than one value in this pod"
    elif len(value) > _MOST_VALUE:
        problem = f"is longer than {_MOST_VALUE >> 10} KiB"
    elif "$(" in value:
        problem = f"is {value}, made of other variables"
    elif any(_leads_to(address, listen) for address in value.split(",")):
        problem = f"is {value}, the gateway's own address"
    if problem:
        raise WrongAnnotationError(
            f"{PREFIX}{BOOTSTRAP_ENV}: {variable} {problem}; set {PREFIX}bootstrap to the brokers' addresses"
        )
    return {BOOTSTRAP: first}


def _leads_to(address: str, listen: str) -> bool:
    """Return whether an address within the pod is the gateway's."""
    host, _, port = address.strip().rpartition(":")
    own, _, own_port = listen.rpartition(":")
    return port == own_port and host in {own, *_SELF}


def _no_brokers(variable: str | None) -> str:
    if variable is None:
        return (
            f"{PREFIX}bootstrap is missing: set it to the brokers' addresses, or set "
            f"{PREFIX}{BOOTSTRAP_ENV} to the name of the client's variable that has them"
        )
    return (
        f"{PREFIX}{BOOTSTRAP_ENV}: no container has {variable} in its env; set {PREFIX}bootstrap to the "
        "brokers' addresses as well, then all containers get the variable"
    )


def _problem(env: Mapping[str, Json]) -> str:
    """Return why a gateway with these variables would not start. Empty if it would."""
    values = {name: entry.get("value", UNKNOWN_YET.get(name)) for name, entry in env.items()}
    try:
        load({}, {name: value for name, value in values.items() if value is not None}, None)
    except ConfigError as error:
        return str(error)
    return ""


def _blamed(problem: str, asked: Mapping[str, str]) -> str:
    """Return a problem in which annotations are named instead of the gateway's variables."""
    for name in sorted(asked.keys() & OPTION_OF.keys(), key=len, reverse=True):  # rack-clients before rack
        problem = problem.replace(OPTION_OF[name].variable, f"{PREFIX}{name}")
    return problem.replace(BOOTSTRAP, asked.get(BOOTSTRAP_ENV, BOOTSTRAP))


def _resources(text: str) -> Json:
    """Read the resources of the gateway's container. The API server checks the quantities.

    Raises:
        WrongAnnotationError: the text is not the JSON of requests, limits or both.
    """
    try:
        resources = json.loads(text)
        json.dumps(resources, allow_nan=False)  # Python reads NaN, which is no JSON
    except (ValueError, RecursionError):
        resources = None
    if (
        not isinstance(resources, dict)
        or not resources.keys() <= {"requests", "limits"}
        or not all(isinstance(quantities, dict) for quantities in resources.values())
    ):
        example = '{"requests": {"memory": "128Mi"}}'
        raise WrongAnnotationError(f"{PREFIX}{RESOURCES}: give JSON such as {example}, not {text[:_SHOWN]}")
    return resources


def _led(pod: Json, entry: Json) -> list[Json]:
    """Return the operations that lead clients to the gateway.

    The new entry replaces each entry that sets the variable. If there is none (the variable comes from
    `envFrom` or from the image), all containers get it, as their first one: later entries can refer to it.
    """
    if there := [pointer for pointer, _ in _entries(pod, entry["name"])]:
        return [{"op": "replace", "path": pointer, "value": entry} for pointer in there]
    return [
        {"op": "add", "path": f"{pointer}/env/0", "value": entry}
        if container.get("env")
        else {"op": "add", "path": f"{pointer}/env", "value": [entry]}
        for pointer, container in _containers(pod)
        if pointer.startswith("/spec/containers/")
    ]


def _with_options(pod: Json, container: Json) -> tuple[list[Json], Json]:
    """Return the operation that adds the volume of the gateway's options, and the container that reads them.

    The volume is a ConfigMap that operators create to change live options of running pods. It may be absent.
    It is mounted without `subPath`: the kubelet would not write such a file again.
    """
    taken = {each["name"] for each in pod["spec"].get("volumes") or ()}
    names = chain([_VOLUME], (f"{_VOLUME}-{number}" for number in count(2)))
    name = next(each for each in names if each not in taken)
    volume = {"name": name, "configMap": {"name": NAME, "optional": True}}
    mount = {"name": name, "mountPath": FOLDER, "readOnly": True}
    container = {
        **container,
        "env": [*container["env"], {"name": CONFIG, "value": FOLDER}],
        "volumeMounts": [*container.get("volumeMounts", ()), mount],
    }
    if pod["spec"].get("volumes"):
        return [{"op": "add", "path": "/spec/volumes/-", "value": volume}], container
    return [{"op": "add", "path": "/spec/volumes", "value": [volume]}], container


def _labelled(pod: Json) -> Json:
    """Return the operation that adds the label `INJECTED`."""
    if pod["metadata"].get("labels"):
        return {"op": "add", "path": f"/metadata/labels/{INJECTED.replace('/', '~1')}", "value": "true"}
    return {"op": "add", "path": "/metadata/labels", "value": {INJECTED: "true"}}


def _added(pod: Json, container: Json) -> Json:
    """Return the operation that adds the container.

    The gateway is the first of the init containers: the others may be clients, too. It must be patched last,
    because it moves the others.
    """
    if pod["spec"].get("initContainers"):
        return {"op": "add", "path": "/spec/initContainers/0", "value": container}
    return {"op": "add", "path": "/spec/initContainers", "value": [container]}
