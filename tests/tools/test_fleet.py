"""The table and the commands of docs/users/fleet.md. The commands run as they are written there."""

import asyncio
import json
import os
import re
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from proxy.__main__ import main
from proxy.command.config import LIVE, load
from proxy.server.slots_check import DEFAULT_SLOTS, Demand, slots_for, usable
from tests.dashboard.test_pods import listed, pod, sidecar
from tests.dashboard.test_top import StubGateway
from tests.server.test_preflight import tells_slots
from tests.shell import run, stub_cluster
from tools.fleet import BROKERS, PAGE, RENEW, ROOT, SERVICES, page, plans, table
from tools.kafka.ports import free_ports

TEXT: Final = PAGE.read_text(encoding="utf-8")
SHARE, CHECK, CHECK_IN_POD, TOP, TURN_OFF = re.findall(r"```sh\n([^`]+)\n```", TEXT)
KUBECTL: Final = """\
import json, pathlib, sys

match sys.argv[1:]:
    case ["get", "pods", "-A", "-l", "wave=1", "-o", "json"]:
        print(pathlib.Path("pods.json").read_text())
    case ["get", "namespaces", "--selector", "fetchgate/injection=enabled", "--output", path]:
        assert path == "jsonpath={.items[*].metadata.name}"
        print("shop billing", end="")
    case ["create", "configmap", "fetchgate", "--namespace", ns, literal, "--dry-run=client", "-o", "yaml"]:
        name, text = literal.removeprefix("--from-literal=").split("=", 1)
        print(json.dumps({"namespace": ns, "name": name, "text": text}))
    case ["apply", "-f", "-"]:
        made = json.load(sys.stdin)
        (folder := pathlib.Path(made["namespace"])).mkdir()
        (folder / made["name"]).write_text(made["text"])
    case _:
        sys.exit(f"not expected: {sys.argv}")
"""
"""A kubectl that lists two namespaces, and the pods of a file.

It writes a key of a ConfigMap as a file, in the folder of the namespace.
"""


def _run(command: str, folder: Path) -> str:
    """Run a command in a folder, with a kubectl that is a stub. Return what it prints."""
    (folder / "stub.py").write_text(KUBECTL)
    programs = {"kubectl": "stub.py", "fetchgate": "-m proxy"}
    for name, program in programs.items():
        (folder / name).write_text(f'#!/bin/sh\nexec {sys.executable} {program} "$@"\n')
        (folder / name).chmod(0o755)
    here = {"PATH": f"{folder}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        ["sh", "-c", command],
        check=True,
        capture_output=True,
        text=True,
        cwd=folder,
        env=os.environ | here,
        timeout=60,
    )
    return done.stdout


def test_the_table_is_that_of_the_documented_costs() -> None:
    assert page(TEXT) == TEXT, f"a cost has changed: run {RENEW}"
    assert table().count("\n") == 2 + 3 * len(SERVICES)


@pytest.mark.parametrize("services", SERVICES)
def test_the_slots_of_the_table_pass_the_check(services: int) -> None:
    slots = slots_for(services) if services > usable(DEFAULT_SLOTS) else DEFAULT_SLOTS
    for plan in plans(services):
        sessions = plan.services * BROKERS
        demand = Demand(
            gateways=plan.count,
            max_sessions=sessions,
            max_connections=5_000,
            brokers=BROKERS,
            slots=slots,
        )
        assert demand.enough


def test_gateways_at_one_port_have_an_admin_endpoint_and_a_state_of_their_own() -> None:
    """tests/integration/test_shared_port.py runs two like them."""
    *gateways, top = [shlex.split(line) for line in SHARE.splitlines()]
    given = [
        load(
            dict(zip((flag[2:].replace("-", "_") for flag in words[2::2]), words[3::2], strict=True)),
            {},
            None,
        )
        for words in gateways
    ]
    one, two = given
    assert replace(one, admin=two.admin, state=two.state, given=two.given) == two
    assert one.admin != two.admin
    assert one.state != two.state
    assert top == ["fetchgate", "top", "--admin", str(one.admin), "--admin", str(two.admin)]


def test_check_says_for_200_gateways_what_the_page_says(capsys: pytest.CaptureFixture[str]) -> None:
    """Only the address of the brokers is another one. No default port is needed."""
    program, *arguments = shlex.split(CHECK)
    assert program == "fetchgate"
    (told,) = re.findall(r"(?:\n    200 gateways.+)(?:\n    .+)+", TEXT)

    async def scene() -> None:
        async with stub_cluster((1, "", 0), (2, "", 0), (3, "", 0)) as cluster:
            cluster.others = tells_slots(b"1000")
            own = ["--listen", f"127.0.0.1:{free_ports(5)}", "--admin", "off"]
            run_as = [cluster.address if word == "kafka:9092" else word for word in arguments] + own
            assert await asyncio.to_thread(main, run_as) == 1
        assert " ".join(told.split()) in capsys.readouterr().out

    run(scene())


def test_the_pod_of_a_running_gateway_can_check_for_the_next_wave(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the port is another one. The pod's own options stay: their ports are in use."""
    _, arguments = CHECK_IN_POD.split(" -- fetchgate ")
    port = free_ports(5)

    async def scene() -> None:
        async with stub_cluster((1, "", 0), (2, "", 0), (3, "", 0)) as cluster:
            cluster.others = tells_slots(b"1000")
            for name in ("LISTEN", "ADMIN", "METRICS"):
                monkeypatch.setenv(f"FETCHGATE_{name}", cluster.address)
            monkeypatch.setenv("FETCHGATE_BOOTSTRAP", cluster.address)
            monkeypatch.setenv("FETCHGATE_MAX_SESSIONS", "12")
            words = shlex.split(arguments.replace("29092", str(port)))
            assert await asyncio.to_thread(main, words) == 0
        assert (
            "200 gateways with --max-sessions 12 use at most 2,400 session slots" in capsys.readouterr().out
        )

    run(scene())


def test_top_shows_the_gateways_of_a_wave(tmp_path: Path) -> None:
    stub = StubGateway()
    stub.start()
    try:
        one = pod("orders-0", "127.0.0.1")
        sidecar(one)["env"].append({"name": "FETCHGATE_ADMIN", "value": f"0.0.0.0:{stub.port}"})
        (tmp_path / "pods.json").write_text(json.dumps(listed(one)))
        assert "orders-0" in _run(TOP, tmp_path)
    finally:
        stub.stop()


def test_one_loop_turns_the_sessions_of_all_namespaces_off(tmp_path: Path) -> None:
    _run(TURN_OFF, tmp_path)
    for namespace in ("shop", "billing"):
        file = str(tmp_path / namespace / "fetchgate.toml")
        assert not load({"bootstrap": "kafka:9092"}, {}, file).sessions
    assert "sessions" in LIVE
