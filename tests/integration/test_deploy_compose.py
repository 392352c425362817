"""The Docker Compose examples of docs/users/kubernetes.md, run with the commands there.

Docker downloads the images.
"""

import subprocess
from collections.abc import Iterator
from contextlib import suppress

import pytest

from tests.integration.bystander import until
from tests.tools.test_deploy import ROOT, commands

pytestmark = [pytest.mark.soak, pytest.mark.integration, pytest.mark.timeout(900)]


@pytest.fixture
def example(request: pytest.FixtureRequest) -> Iterator[list[str]]:
    """Start a compose example with the documented command. Return the first words of this command."""
    page: str = request.param
    if not _works("docker", "compose", "version") or not _works("docker", "info"):
        pytest.skip("no docker compose here, or no daemon that answers it")
    (line,) = (line for line in commands(page) if line.startswith("docker compose"))
    docker, compose, *file, up = line.split()
    example = [docker, compose, "--project-name=fetchgate-tested", *file]
    try:
        _run(*example, up, "--detach")
        yield example
    finally:
        _run(*example, "down", "--volumes")


def _works(*command: str) -> bool:
    with suppress(OSError, subprocess.TimeoutExpired):
        return not subprocess.run(command, capture_output=True, check=False, timeout=60).returncode
    return False


def _run(*command: str) -> str:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


@pytest.mark.parametrize(
    ("example", "gateway"),
    [("kubernetes", "fetchgate"), ("two-gateways", "near")],
    indirect=["example"],
)
def test_the_client_of_the_example_is_saved_for(example: list[str], gateway: str) -> None:
    def seen() -> str:
        return _run(*example, "exec", "-T", gateway, "fetchgate", "top", "--once")

    until(lambda: "session of 100 partitions" in seen(), "no session", patience=180)
    until(lambda: "Reached end of topic example [99]" in _run(*example, "logs", "client"), "not all is read")
