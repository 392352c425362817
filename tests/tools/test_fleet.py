"""The commands of docs/users/fleet.md, run as they are written there."""

import asyncio
import re
import shlex
from pathlib import Path

import pytest

from proxy.cli import main
from tests.shell import run, stub_cluster
from tests.test_cli import tells_slots
from tools.kafka.ports import free_ports

PAGE = Path(__file__).parents[2] / "docs" / "users" / "fleet.md"


def _block(begin: str) -> str:
    """Return the block of code that begins so."""
    text = PAGE.read_text(encoding="utf-8")
    blocks = re.findall(r"```sh\n([^`]+)```", text) + re.findall(r"(?:\n    .+)+", text)
    (found,) = (block for block in blocks if block.strip().startswith(begin))
    return " ".join(found.split())


def test_check_says_for_200_gateways_what_the_page_says(capsys: pytest.CaptureFixture[str]) -> None:
    """Only the address of the brokers is another one. Nobody listens at the default ports meanwhile."""
    program, *arguments = shlex.split(_block("fetchgate proxy"))
    assert program == "fetchgate"

    async def scene() -> None:
        async with stub_cluster((1, "", 0), (2, "", 0), (3, "", 0)) as cluster:
            cluster.others = tells_slots(b"1000")
            own = ["--listen", f"127.0.0.1:{free_ports(5)}", "--admin", "off"]
            run_as = [cluster.address if word == "kafka:9092" else word for word in arguments] + own
            assert await asyncio.to_thread(main, run_as) == 1
        assert _block("200 gateways") in capsys.readouterr().out

    run(scene())
