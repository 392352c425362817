"""Topics that do not change, read completely by one client: directly from the brokers and through the
gateway.
"""

import logging
import time
from collections import Counter
from dataclasses import dataclass

from tests.clients.dataset import PARTITIONS, Expected
from tests.clients.runner import Line, Program, Run, Sessions, Ways
from tools.gateway import GatewayProcess

LOOK_ON_SECONDS = 1.0
"""After the last record, wait this long for several fetches without anything new."""
RECONNECTED_SECONDS = 30.0
"""The time in which a client that has closed its connection opens another one."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetches:
    """The fetches of all open connections of one client, by kind (see ``fetchgate_fetches_total``)."""

    version: int
    """The version of the last fetch. The highest one if connections differ."""
    client: Counter[str]
    broker: Counter[str]
    client_bytes: int
    """Requests and responses with the client, whole frames."""
    broker_bytes: int
    """Requests and responses with the brokers, whole frames."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Two finished runs of one client."""

    direct: Run
    gateway: Run
    fetches: Fetches
    """The fetches of the run through the gateway."""
    watermarks: tuple[list[Line], list[Line]]
    """The last output of each run. Empty for programs without commands."""


def read_whole(
    program: Program,
    ways: Ways,
    gateway: GatewayProcess,
    expected: Expected,
    isolation: str,
    *,
    commands: bool,
) -> Pair:
    """Run a client both ways over all topics.

    Args:
        program: The client.
        ways: The addresses of the two runs.
        gateway: The gateway, for its counts.
        expected: The expected records, which show when a run has ended.
        isolation: ``read_uncommitted`` or ``read_committed``.
        commands: Whether the program accepts commands and reports ends. If not, the number of records shows
            its end.
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
    """Return how many records this client finds in all topics together."""
    if program.transactions and isolation == "read_committed":
        return expected.committed + program.aborted
    return expected.uncommitted + (0 if program.markers else expected.markers)


def fetches_of(gateway: GatewayProcess, client_id: str) -> Fetches:
    """Return the fetches of a client's open connections so far."""
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
    """Check that the client sent the expected fetches, and that the gateway converted them as expected.

    Raises:
        AssertionError: it was different.
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
