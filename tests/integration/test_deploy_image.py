"""The images, built by the lines of the page and run as the manifests say, in all modes.

The base images are made here under their own names, of Debian's packages: no registry is asked.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from tests.integration.fetching import Fetcher
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
from tests.test_deploy import DEPLOY, ROOT, commands, environment_of, pod_of, rendered

__all__ = ["place"]

ABSENT: Final = [program for program in ("podman", "runc", "debootstrap") if shutil.which(program) is None]
pytestmark = [
    pytest.mark.soak,
    pytest.mark.timeout(900),
    pytest.mark.skipif(bool(ABSENT), reason=f"no {' and no '.join(ABSENT)} here"),
    pytest.mark.skipif(os.geteuid() != 0, reason="only root makes base images"),
    pytest.mark.skipif(bool(LACKING), reason=LACKING),
]

SUITE: Final = "bookworm"
BASES: Final = ("docker.io/library/debian:bookworm-slim", "docker.io/library/python:3.13-slim-bookworm")
SETTINGS: Final = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pip.conf", "/etc/apt/apt.conf.d")
"""How this machine reaches packages; so must what is built on it."""
STORAGE: Final = """
[storage]
driver = "overlay"
graphroot = "{folder}/graph"
runroot = "{folder}/run"
"""
ENGINE: Final = """
[containers]
default_ulimits = ["nofile=4096:4096", "nproc=4096:4096"]
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "none"
"""


class Podman:
    """Images and containers in a folder of their own."""

    def __init__(self, folder: Path) -> None:
        (folder / "storage.conf").write_text(STORAGE.format(folder=folder))
        (folder / "containers.conf").write_text(ENGINE)
        self.environment = {
            **os.environ,
            "BUILDAH_ISOLATION": "chroot",
            "CONTAINERS_STORAGE_CONF": str(folder / "storage.conf"),
            "CONTAINERS_CONF": str(folder / "containers.conf"),
        }

    def run(self, *command: str) -> str:
        """Run a program with them, and give what it printed.

        Raises:
            RuntimeError: it failed; with what it wrote.
        """
        done = subprocess.run(
            command, cwd=ROOT, env=self.environment, capture_output=True, text=True, check=False, timeout=600
        )
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}: {done.stderr[-4000:]}")
        return done.stdout


def mirror() -> str:
    """Give where this machine has Debian's packages from."""
    files = [Path("/etc/apt/sources.list"), *Path("/etc/apt/sources.list.d").glob("debian.*")]
    text = "".join(file.read_text() for file in files if file.exists())
    found: list[str] = re.findall(r"^[^#\n]*?(https?://\S+/debian)/?\s", text, re.MULTILINE)
    return found[0] if found else pytest.skip("no Debian mirror is known here")


@pytest.fixture(scope="module")
def podman(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Podman]:
    folder = tmp_path_factory.mktemp("images")
    podman = Podman(folder)
    try:
        make_bases(podman, folder)
        for line in (line for line in commands("Images") if line.startswith("podman build")):
            podman.run(*line.split())
        yield podman
        podman.run("podman", "rm", "--all", "--force")
    finally:
        podman.run("rm", "-rf", "--one-file-system", str(folder))


def make_bases(podman: Podman, folder: Path) -> None:
    """Make the images that the Containerfile begins with, of Debian's packages."""
    base = folder / "base"
    packages = "--include=ca-certificates,python3,python3-venv"
    podman.run("debootstrap", "--variant=minbase", packages, SUITE, str(base), mirror())
    (base / "usr/local/bin/python").symlink_to("/usr/bin/python3")
    for name in filter(os.path.exists, SETTINGS):
        podman.run("cp", "-rT", name, f"{base}{name}")
    podman.run("tar", "--directory", str(base), "--create", "--file", str(folder / "base.tar"), ".")
    for name in BASES:
        podman.run("podman", "import", str(folder / "base.tar"), name)


def confined(container: dict[str, Any]) -> list[str]:
    """Give the options of `podman run` that are a container's security context."""
    context = container["securityContext"]
    assert context["readOnlyRootFilesystem"]
    assert context["allowPrivilegeEscalation"] is False
    options = ["--read-only", "--read-only-tmpfs=false", "--security-opt=no-new-privileges", "--cap-drop=all"]
    options += [f"--cap-add={right}" for right in context["capabilities"].get("add", ())]
    return [*options, f"--user={context['runAsUser']}:{context.get('runAsGroup', 0)}"]


class Container(Sidecar):
    """The gateway's container of a manifest."""

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
    image = "fetchgate:0.1.0"
    assert "--bootstrap" in podman.run("podman", "run", "--rm", "--network=host", "--pull=never", image)
    tried = "import importlib.util as u; print([n for n in ('pyspark', 'pip', 'scapy') if u.find_spec(n)])"
    asked = ("--entrypoint=python", image, "-c", tried)
    assert podman.run("podman", "run", "--rm", "--network=host", "--pull=never", *asked) == "[]\n"
