"""What `fetchgate proxy --check` says of `--rack`."""

import asyncio
from pathlib import Path

import pytest

from proxy.__main__ import main
from tests.shell import stub_cluster
from tools.kafka.ports import free_ports

pytestmark = pytest.mark.usefixtures("log_defaults", "alone")


def test_check_says_which_rack_was_read(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (file := tmp_path / "zone").write_text("eu-west-1a\n")
    addresses = ["--listen", f"127.0.0.1:{free_ports(2)}", "--admin", "off"]
    arguments = ["proxy", "--transparent", "redirect", *addresses, "--check", "--rack"]
    assert main([*arguments, f"@{file}"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[1] == "The gateway is in the rack eu-west-1a; bytes with brokers are counted by zone."
    assert main([*arguments, ""]) == 2
    assert "--rack: it is empty; give a rack's name" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("racks", "said"),
    [
        ({1: "R1", 2: "R2", 3: "R3"}, "1 of 3 brokers is in the rack R2."),
        ({1: "R2", 3: "R2"}, "2 of 3 brokers are in the rack R2."),
        (
            {1: "R3", 2: "R1", 3: "R3"},
            (
                "--rack R2: no broker is in this rack; the racks are R1, R3; "
                "set --rack to the broker.rack of brokers in the gateway's zone"
            ),
        ),
        (
            {},
            "--rack R2: no broker has a rack, so no zone is known; set broker.rack at the brokers",
        ),
    ],
)
async def test_check_says_whether_a_broker_is_in_the_rack(
    capsys: pytest.CaptureFixture[str], racks: dict[int, str], said: str
) -> None:
    async with stub_cluster(*((node_id, f"kafka-{node_id}", 9092) for node_id in (1, 2, 3))) as cluster:
        cluster.racks = racks
        options = ("--listen", f"127.0.0.1:{free_ports(5)}", "--admin", "off", "--rack", "R2")
        command = ["proxy", "--check", "--bootstrap", cluster.address, *options]
        code = await asyncio.get_running_loop().run_in_executor(None, main, command)

    found = capsys.readouterr().out.splitlines()
    assert code == 0
    assert said in found
    assert found[-1] == (
        "All is well: a gateway with these options can serve clients."
        if said.endswith("in the rack R2.")
        else "A gateway with these options can serve clients, but no broker is in its rack: "
        "a line above says what to do."
    )
