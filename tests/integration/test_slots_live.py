"""Cases 1 to 13 on live brokers, in real minutes: Kafka 2.8 has one cache, 4.3 has shards.

The same scripts run against our cache with a given clock (`tests/features/client_sessions/test_slots.py`).
"""

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import pytest

from tests.features.client_sessions.slot_cases import (
    CASES,
    PARTITIONS,
    TOPIC,
    Case,
    FetchSlots,
    a_consumer_never_evicts_a_follower_in_use,
    anyone_evicts_a_stale_follower,
)
from tests.integration.mirror import Live
from tests.model.sessions import SHARDS
from tools.kafka import LATEST, Broker
from tools.kafka.jars import fetch

pytestmark = [pytest.mark.integration, pytest.mark.soak, pytest.mark.timeout(1200)]

MARGIN_MS: Final = 3000
"""The longest time that a busy broker may need for a step, and the largest difference of the clocks, in
ms."""
LAST: Final = (a_consumer_never_evicts_a_follower_in_use, anyone_evicts_a_stale_follower)
"""The cases that take three times two minutes. They run on a broker of their own, because all other cases
with one slot already take four times two minutes."""
ROWS: Final[list[list[Case]]] = [
    *(
        [case for case in CASES if CASES[case] == slots and case not in LAST]
        for slots in (0, 1, 2, 3, 10_000)
    ),
    list(LAST),
]
"""The cases of each row run one after the other on the same broker."""


def run(release: str, cases: Sequence[Case]) -> None:
    """Start a broker of a release, and run these cases on it."""
    shards = SHARDS if release == LATEST else 1
    slots = {"max.incremental.fetch.session.cache.slots": shards * CASES[cases[0]]}
    with Broker(release, properties=slots) as broker, Live(broker) as live:
        live.create_topic(TOPIC, PARTITIONS)
        asked = FetchSlots(shards, live.fetch, lambda ms: time.sleep(ms / 1000), MARGIN_MS)
        for case in cases:
            case(asked)


@pytest.mark.parametrize("release", [LATEST, "2.8.2"])
def test_slots_are_given_and_taken_as_in_the_scripts(release: str) -> None:
    """Cases 1 to 13: real brokers give and take away session slots as the cases expect."""
    try:
        fetch(release)
    except RuntimeError as error:
        pytest.skip(f"no Kafka {release} here: {error}")
    with ThreadPoolExecutor(len(ROWS)) as threads:
        for done in [threads.submit(run, release, cases) for cases in ROWS]:
            done.result()
