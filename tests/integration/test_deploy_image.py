"""Tests of the container images, in all modes.

They are built as in docs/users/kubernetes.md and run as in the manifests.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from proxy.version import VERSION
from tests.integration.fetching import Fetcher
from tests.integration.images import ABSENT, Podman, podman
from tests.integration.namespaces import (
    LACKING,
    MODES,
    PARTITIONS,
    TOPIC,
    Place,
    address_of,
    place,
)
from tests.integration.sidecar import USER, Sidecar
from tests.tools.test_deploy import DEPLOY, ROOT, environment_of, pod_of, rendered

__all__ = ["place", "podman"]

pytestmark = [
    pytest.mark.soak,
    pytest.mark.timeout(900),
    pytest.mark.skipif(bool(ABSENT), reason=f"no {' and no '.join(ABSENT)} here"),
    pytest.mark.skipif(os.geteuid() != 0, reason="only root makes base images"),
    pytest.mark.skipif(bool(LACKING), reason=LACKING),
]


def confined(container: dict[str, Any]) -> list[str]:
    """Return `podman run` options that have the same effect as a container's security context."""
    context = container["securityContext"]
    assert context["readOnlyRootFilesystem"]
    assert context["allowPrivilegeEscalation"] is False
    options = ["--read-only", "--read-only-tmpfs=false", "--security-opt=no-new-privileges", "--cap-drop=all"]
    options += [f"--cap-add={right}" for right in context["capabilities"].get("add", ())]
    return [*options, f"--user={context['runAsUser']}:{context.get('runAsGroup', 0)}"]


class Container(Sidecar):
    """The container of the gateway in a manifest, run by podman."""

    def __init__(
        self, place: Place, podman: Podman, container: dict[str, Any], variables: Sequence[str]
    ) -> None:
        super().__init__(place.near)
        self._podman = podman
        self._environment = podman.environment
        self._command = ["podman", "run", "--name=gateway", "--network=host", "--pull=never"]
        self._command += [*confined(container), *(f"--env={variable}" for variable in variables)]
        if "command" in container:
            program, *before = container["command"]
            self._command += [f"--entrypoint={program}", container["image"], *before, *container["args"]]
        else:
            self._command += [container["image"], *container["args"]]

    def close(self) -> None:
        super().close()
        self._podman.run("podman", "rm", "--force", "gateway")

    def execute(self, *command: str) -> None:
        """Run a program in the container."""
        with self._place.inside():
            self._podman.run("podman", "exec", "gateway", *command)


@pytest.mark.parametrize("mode", ["explicit", *MODES])
def test_the_images_are_the_sidecar_of_the_manifests(place: Place, podman: Podman, mode: str) -> None:
    container, *rules = pod_of(rendered(mode))["initContainers"]
    environment = environment_of(container)
    if mode == "explicit":
        environment["FETCHGATE_BOOTSTRAP"] = address_of("IPv4")
    variables = [f"{name}={value}" for name, value in environment.items()]
    with Container(place, podman, container, variables) as gate:
        try:
            for init in rules:
                with place.near.inside():
                    podman.run(
                        *("podman", "run", "--rm", "--network=host", "--pull=never", *confined(init)),
                        *(init["image"], *init["args"]),
                    )
            to = "127.0.0.1:19094" if mode == "explicit" else address_of("IPv4")
            with place.near.inside():
                client = Fetcher(to, TOPIC, PARTITIONS)
            with client:
                client.hello().fetches()
                (link,) = gate.state()["connections"]
                assert link["session_id"] > 0
            compose = yaml.safe_load((DEPLOY / "compose" / "compose.yaml").read_text())
            gate.execute(*compose["services"]["fetchgate"]["healthcheck"]["test"][1:])
            gate.execute(*container["lifecycle"]["preStop"]["exec"]["command"])
            number = podman.run("podman", "inspect", "--format={{.State.Pid}}", "gateway").strip()
            status = Path(f"/proc/{number}/status").read_text()
            facts = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
            assert facts["Uid"].split() == [str(USER)] * 4
            assert int(facts["CapEff"], 16) == (1 << 13 if mode == "tproxy" else 0)  # CAP_NET_RAW
            assert gate.stop() == 0
            assert '"cut_off": 0' in gate.log()
        finally:
            place.near.run(str(ROOT / "tools/deploy/transparent.sh"), "down")


def test_the_image_has_no_spark_and_tells_its_options(podman: Podman) -> None:
    image = f"fetchgate:{VERSION}"
    assert "--bootstrap" in podman.run("podman", "run", "--rm", "--network=host", "--pull=never", image)
    tried = "import importlib.util as u; print([n for n in ('pyspark', 'pip', 'scapy') if u.find_spec(n)])"
    asked = ("--entrypoint=python", image, "-c", tried)
    assert podman.run("podman", "run", "--rm", "--network=host", "--pull=never", *asked) == "[]\n"
