"""Compares two runs of one client: one directly, one through the gateway.

In both runs the client reads all records of some topics that do not change.
"""

import logging
import time
from collections import Counter
from dataclasses import dataclass

from tests.clients.dataset import PARTITIONS, Expected
from tests.clients.runner import Line, Program, Run, Sessions, Ways
from tools.gateway import GatewayProcess

LOOK_ON_SECONDS = 1.0
"""The time to wait after the last record, in seconds. In this time the client sends several fetches that find
nothing new."""
RECONNECTED_SECONDS = 30.0
"""The time limit, in seconds, for a client that has closed its connection to open another one."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetches:
    """The counts of fetches on all open connections of one client.

    The kinds of fetches are those of ``fetchgate_fetches_total``.
    """

    version: int
    """The version of the last fetch. If connections use different versions, the highest one."""
    client: Counter[str]
    broker: Counter[str]
    client_bytes: int
    """Bytes of requests and responses between client and gateway, as complete frames."""
    broker_bytes: int
    """Bytes of requests and responses between the gateway and the brokers. Only complete frames are
    counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """The results of one client's direct run and of its run through the gateway."""

    direct: Run
    gateway: Run
    fetches: Fetches
    """The fetches of the run through the gateway."""
    watermarks: tuple[list[Line], list[Line]]
    """The low and high watermarks that the direct run and the gateway's run reported at their end. Empty for
    programs without commands."""


def read_whole(
    program: Program,
    ways: Ways,
    gateway: GatewayProcess,
    expected: Expected,
    isolation: str,
    *,
    commands: bool,
) -> Pair:
    """Run a client directly and through the gateway. Both runs read all topics completely.

    Args:
        program: The client.
        ways: The addresses of the two runs.
        gateway: The gateway, for its counts.
        expected: The expected records, which show when a run has read everything.
        isolation: ``read_uncommitted`` or ``read_committed``.
        commands: Whether the program accepts commands and reports ends of partitions. If not, the run ends
            after the expected number of records.
    """
    count = count_of(program, expected, isolation)
    with (
        Run(program, ways.direct, assign=PARTITIONS, isolation=isolation) as direct,
        Run(program, ways.gateway, assign=PARTITIONS, isolation=isolation) as through,
    ):
        runs = (direct, through)
        for run in runs:
            run.wait_ends(expected.ends) if commands else run.wait_records(count)
        time.sleep(LOOK_ON_SECONDS)
        end = time.monotonic() + RECONNECTED_SECONDS
        while (fetches := fetches_of(gateway, program.client_id)).version < 0 and time.monotonic() < end:
            time.sleep(0.1)  # kafka-go closes a connection whose response is late, and takes another one
        watermarks = tuple(_watermarks(run) if commands else [] for run in runs)
        for run in runs:
            run.stop()
    (started,) = through.of("start")
    log.info("%s %s %s: %s", started["client"], started["version"], isolation, fetches)
    return Pair(direct=direct, gateway=through, fetches=fetches, watermarks=(watermarks[0], watermarks[1]))


def count_of(program: Program, expected: Expected, isolation: str) -> int:
    """Return how many records a client delivers from all topics together.

    This depends on the client, because some deliver aborted records or transaction markers.
    """
    if program.transactions and isolation == "read_committed":
        return expected.committed + program.aborted
    return expected.uncommitted + (0 if program.markers else expected.markers)


def fetches_of(gateway: GatewayProcess, client_id: str) -> Fetches:
    """Return the fetches so far of a client's open connections."""
    links = [link for link in gateway.state()["connections"] if link["client_id"] == client_id]
    kinds: dict[str, Counter[str]] = {"client": Counter(), "broker": Counter()}
    sizes = Counter[str]()
    for link in links:
        for side, counts in kinds.items():
            counts.update(link[side]["fetches"])
            sizes[side] += link[side]["fetch_request_bytes"] + link[side]["fetch_response_bytes"]
    return Fetches(
        version=max((link["fetch_version"] for link in links), default=-1),
        **kinds,
        client_bytes=sizes["client"],
        broker_bytes=sizes["broker"],
    )


def _watermarks(run: Run) -> list[Line]:
    return [
        run.ask("watermarks", topic=topic, partition=partition)
        for topic, partitions in PARTITIONS.items()
        for partition in range(partitions)
    ]


def assert_sessions(sessions: Sessions, fetches: Fetches) -> None:
    """Check that the client and the gateway sent the expected kinds of fetches.

    Raises:
        AssertionError: a kind of fetch is missing or unexpected, or the gateway saved no bytes with sessions
            of its own.
    """
    client, broker = fetches.client, fetches.broker
    match sessions:
        case Sessions.GIVEN:
            assert client["incremental"] == client["full"] == 0 < client["sessionless"], fetches
            assert broker["incremental"] > 0, fetches
            assert fetches.broker_bytes < fetches.client_bytes, fetches
        case Sessions.ASKED:
            assert client["incremental"] == client["sessionless"] == 0 < client["full"], fetches
            assert broker["incremental"] > broker["full"] > 0, fetches
            assert fetches.broker_bytes < fetches.client_bytes, fetches
        case Sessions.OWN:
            assert client["incremental"] > 0, fetches
            assert client == broker, fetches
            assert fetches.broker_bytes == fetches.client_bytes, fetches
        case Sessions.NONE:
            assert client == broker, fetches
            assert broker["incremental"] == 0 < broker["sessionless"], fetches
