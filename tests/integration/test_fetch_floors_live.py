"""`--fetch-min-bytes` and `--fetch-max-wait` with real clients: each record once, in the predicted fetches.

A round is as many batches as `--fetch-min-bytes` asks for, to the byte. The next round is written when the
client has read this one. So the number of fetches does not depend on the speed of the machine.
"""

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from proxy.__main__ import main
from proxy.features.limits.fetch_floors import MAX_WAIT_MS
from tests.clients.runner import AIOKAFKA, CONFLUENT, Program, Run
from tests.integration.mirror import Live
from tests.integration.producing import record_batch
from tools.gateway import GatewayProcess
from tools.kafka import Broker

pytestmark = pytest.mark.integration

VALUE: Final = bytes(1000)
BATCH: Final = len(record_batch([VALUE]))
EACH: Final = 16
"""The number of batches of a round."""
ROUNDS: Final = 12
FLOORS: Final = EACH * BATCH, f"{MAX_WAIT_MS}ms"


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    with Broker("4.3.0") as broker, Live(broker) as live:
        yield live


def fetches(gateway: GatewayProcess) -> int:
    """Return how many fetches the client has sent."""
    return sum(gateway.state()["totals"]["client"]["fetches"].values())


def read(live: Live, run: Run, topic: str, at_once: int) -> list[int]:
    """Write all rounds, and wait after every `at_once` batches until the client has read them.

    Return the offsets that the client has read.
    """
    for number in range(1, ROUNDS * EACH + 1):
        live.producer.produce(topic, 0, [VALUE])
        if number % at_once == 0:
            run.wait_records(number)
    return [line["offset"] for line in run.records()[topic, 0]]


def predicted(folder: Path, port: int, told: Callable[[], str]) -> dict[str, Any]:
    """Return what `measure` says of the fetches with floors, from a capture without them."""
    least, longest = FLOORS
    options = ["--fetch-min-bytes", str(least), "--fetch-max-wait", longest, "--port", str(port), "--json"]
    assert main(["replay", "measure", str(folder), *options]) == 0
    found: dict[str, Any] = json.loads(told())["floors"]
    return found


@pytest.mark.parametrize("program", [CONFLUENT, AIOKAFKA], ids=lambda program: program.name)
def test_a_client_needs_as_few_fetches_as_predicted(
    live: Live, program: Program, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each round takes one fetch, and `measure` predicts one for each round from a run without floors.

    A fetch that has waited for `MAX_WAIT_MS` ends without enough records. There is at most one of these for
    each such time that a run takes, and one that still waits in the end: this is the tolerance. The model
    counts neither, unless the captured run takes longer than all rounds may wait.
    """
    wants = list(range(ROUNDS * EACH))
    topics = [f"{program.name}-{name}" for name in ("before", "after")]
    for topic in topics:
        live.create_topic(topic, 2)

    began = time.monotonic()
    with GatewayProcess(live.broker.address, "--capture", str(tmp_path)) as gateway:
        with Run(program, gateway.address, assign={topics[0]: 2}) as run:
            assert read(live, run, topics[0], 1) == wants
        port = int(gateway.address_of(1).rpartition(":")[2])
        assert gateway.stop() == 0
    expiring = (time.monotonic() - began) * 1e3 / MAX_WAIT_MS
    told = predicted(tmp_path, port, lambda: capsys.readouterr().out)
    assert told["requests"] >= ROUNDS * EACH
    left = told["requests"] - told["fewer_requests"]
    assert ROUNDS <= left <= max(ROUNDS, expiring) + 1

    least, longest = FLOORS
    began = time.monotonic()
    options = ("--fetch-min-bytes", str(least), "--fetch-max-wait", f"{program.client_id}={longest}")
    with GatewayProcess(live.broker.address, *options) as gateway:
        with Run(program, gateway.address, assign={topics[1]: 2}) as run:
            assert read(live, run, topics[1], EACH) == wants
            counted = fetches(gateway)
        expiring += (time.monotonic() - began) * 1e3 / MAX_WAIT_MS
    assert counted >= ROUNDS
    assert abs(counted - left) <= expiring + 2
