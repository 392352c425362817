"""What each extra installs is enough for its commands, and no more than that."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.examples import few
from tests.extras import distributions, with_extras

ROOT: Final = Path(__file__).parents[2]
CAPTURE: Final = ROOT / "captures" / "librdkafka-gateway.pcap"
MAKEFILE: Final = (ROOT / "Makefile").read_text(encoding="utf-8")
TOOLS: Final = {"mypy", "pytest", "ruff", "hypothesis", "pyspark", "pandas", "duckdb", "scapy", "kio"}
DEMOS: Final = {
    "demo": "tools.demo.__main__",
    "demo-link": "tools.demo.link",
    "demo-cooperative": "tools.demo.cooperative",
    "demo-zones": "tools.demo.zones",
}


def extras_of(target: str) -> list[str]:
    """Return the extras that `make TARGET` installs."""
    needs = re.search(rf"^{target}: \$\((\w+)\)", MAKEFILE, re.MULTILINE)
    assert needs
    installed = re.search(rf"^\$\({needs[1]}\): INSTALLED := .*'\.\[(.*)\]'", MAKEFILE, re.MULTILINE)
    assert installed
    return installed[1].split(",")


@pytest.mark.parametrize("target", DEMOS)
def test_a_demo_needs_what_make_installs_for_it(target: str, tmp_path: Path) -> None:
    extras = extras_of(target)
    assert not TOOLS & distributions(*extras)
    code = f"import {DEMOS[target]}, tools.kafka.java, tools.gateway; tools.kafka.java.java()"
    if target == "demo-zones":
        code += "; import tests.clients.python.consume_aiokafka, tests.clients.python.consume_kafka_python"
    if target == "demo-cooperative":
        code += "; import proxy.features.cooperative.codecs, tools.group_member"
    command = [sys.executable, "-c", code]
    done = subprocess.run(
        command, cwd=ROOT, env=with_extras(tmp_path, *extras), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("module", ["tests.golden", "tools.pages"])
def test_a_tool_that_lacks_its_packages_ends_with_the_remedy(module: str) -> None:
    command = [sys.executable, "-S", "-m", module]  # without the packages of the virtual environment
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    remedy = "has no fetchgate: run `make check` once, then `.venv/bin/python -m ...`"
    assert done.stderr.splitlines()[-1] == f"{sys.executable} {remedy}"


def test_a_demo_can_predict_with_what_make_installs_for_it(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "proxy", "replay", "measure", str(CAPTURE), "--json"]
    environment = with_extras(tmp_path, *extras_of("demo"))
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["fetch"]["saved_bytes"] > 0


def test_what_an_extra_does_not_install_is_missing(tmp_path: Path) -> None:
    environment = with_extras(tmp_path, "measure")
    for module, found in (("pyarrow", True), ("pyspark", False), ("pytest", False)):
        done = subprocess.run(
            [sys.executable, "-c", f"import {module}"], env=environment, capture_output=True, check=False
        )
        assert (done.returncode == 0) == found, module


COMMANDS: Final = {
    "inspect": [str(CAPTURE), "--json"],
    "measure": [str(CAPTURE), "--json", "--in-process"],
    "drive": [str(CAPTURE), "--dry-run", "--json"],
}
EXTRAS: Final = ("", "measure", "measure,tls", "replay", "replay,tls", "cooperative")


def runs(python: str, environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [python, "-m", "proxy", *arguments]
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=300
    )


def assert_all_commands_start(python: str, environment: dict[str, str], extras: str) -> None:
    """Run each command with --help, and once. Without an extra that reads captures, each names its remedy."""
    shown = ["proxy", "--show-config", "--bootstrap", "kafka:9092"]
    for arguments in (["proxy", "--help"], ["top", "--help"], shown, ["replay", "--help"]):
        done = runs(python, environment, *arguments)
        assert (done.returncode, done.stderr) == (0, ""), arguments
    for name, given in COMMANDS.items():
        for arguments in (["--help"], given):
            done = runs(python, environment, "replay", name, *arguments)
            if done.returncode == 0:
                assert arguments == ["--help"] or json.loads(done.stdout)
            else:
                assert "measure" not in extras
                assert "replay" not in extras
                assert re.fullmatch(r"fetchgate replay: \w+ is not installed; .* install .*\n", done.stderr)


@pytest.mark.parametrize("extras", few(EXTRAS, "measure"))
def test_each_command_starts_with_what_an_extra_installs(tmp_path: Path, extras: str) -> None:
    environment = with_extras(tmp_path, *filter(None, extras.split(",")))
    assert_all_commands_start(sys.executable, environment, extras)


@pytest.mark.soak
@pytest.mark.parametrize("extras", EXTRAS)
def test_each_command_starts_in_a_fresh_virtual_environment(tmp_path: Path, extras: str) -> None:
    subprocess.run([sys.executable, "-m", "venv", tmp_path], check=True)
    python = str(tmp_path / "bin" / "python")
    source = f"{ROOT}[{extras}]" if extras else str(ROOT)
    subprocess.run([python, "-m", "pip", "install", "--quiet", source], check=True)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    assert_all_commands_start(python, environment, extras)
