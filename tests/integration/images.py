"""Builds the gateway's images with podman and the commands in the docs.

The base images are made here from Debian's packages, under their own names, without a registry.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.tools.test_deploy import ROOT, commands
from tools.base_images import CONTAINERFILE, without_digests

__all__ = ["podman"]

ABSENT: Final = [program for program in ("podman", "runc", "debootstrap") if shutil.which(program) is None]
SUITE: Final = "bookworm"
BASES: Final = ("docker.io/library/debian:bookworm-slim", "docker.io/library/python:3.13-slim-bookworm")
SETTINGS: Final = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pip.conf", "/etc/apt/apt.conf.d")
"""This machine's settings for package downloads. Builds need the same."""
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
    """Runs podman with its own folder for images and containers."""

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
        """Run a command, and return its output. The environment has the settings of podman.

        Raises:
            RuntimeError: the command failed. The message has its output.
        """
        done = subprocess.run(
            command, cwd=ROOT, env=self.environment, capture_output=True, text=True, check=False, timeout=600
        )
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}: {done.stderr[-4000:]}")
        return done.stdout


def mirror() -> str:
    """Return the package source of Debian that this machine uses."""
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
        # The base images that are made here have the tags of others, not their digests.
        file = folder / "Containerfile"
        file.write_text(without_digests(CONTAINERFILE.read_text()))
        for line in (line for line in commands("kubernetes") if line.startswith("podman build")):
            podman.run(*(str(file) if ROOT / word == CONTAINERFILE else word for word in line.split()))
        yield podman
        podman.run("podman", "rm", "--all", "--force")
    finally:
        podman.run("rm", "-rf", "--one-file-system", str(folder))


def make_bases(podman: Podman, folder: Path) -> None:
    """Make the base images of the Containerfile from Debian's packages."""
    base = folder / "base"
    packages = "--include=ca-certificates,python3,python3-venv"
    podman.run("debootstrap", "--variant=minbase", packages, SUITE, str(base), mirror())
    (base / "usr/local/bin/python").symlink_to("/usr/bin/python3")
    for name in filter(os.path.exists, SETTINGS):
        podman.run("cp", "-rT", name, f"{base}{name}")
    podman.run("tar", "--directory", str(base), "--create", "--file", str(folder / "base.tar"), ".")
    for name in BASES:
        podman.run("podman", "import", str(folder / "base.tar"), name)
