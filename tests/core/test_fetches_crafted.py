"""Tests with fetches that were made to cost much CPU time or memory.

Some are forwarded unread without a session. For others, memory is limited.
"""

import sys
from collections import Counter
from collections.abc import Callable

import pytest

from proxy.core.plans import FetchTemplate
from proxy.protocol.fetch_request import (
    MAX_AROUND,
    MAX_NAME,
    MAX_PARTITIONS,
    MAX_TAG_BYTES,
    MAX_TOPICS,
    _TopicsWalk,
)
from proxy.session.partitions import MAX_FORGOTTEN
from tests.frames import Want, fetch, fetch_response, framed, parsed
from tests.model import wire
from tests.playbook import Playbook, asks, full


def topics(count: int, each: int = 1) -> list[Want]:
    return [(f"t{name}", number) for name in range(count) for number in range(each)]


def forgetting(count: int) -> bytes:
    return fetch(
        12, *topics(3), forget=[(f"t{name}", 0) for name in range(count)], session=(7, 3), correlation=5
    )


def tagged(size: int) -> bytes:
    tags = tuple((number, bytes(110)) for number in range(size // 100 + 1))
    part = wire.FetchPartition(partition=0, fetch_offset=0, tags=tags)
    element = wire.FetchTopic(topic="t", partitions=(part,))
    return framed(
        wire.encode_request(
            wire.FetchRequest(version=12, correlation_id=5, client_id="c", max_wait_ms=1, topics=(element,))
        )
    )


TOO_MANY: dict[str, Callable[[], bytes]] = {
    "topics": lambda: fetch(12, *topics(MAX_TOPICS + 1), correlation=5),
    "topics of a changing size": lambda: fetch(12, ("a", 0), ("a", 1), *topics(MAX_TOPICS), correlation=5),
    "partitions": lambda: fetch(4, *(("t", number) for number in range(MAX_PARTITIONS + 1)), correlation=5),
    "partitions of many topics": lambda: fetch(4, *topics(MAX_PARTITIONS // 30 + 1, 30), correlation=5),
    "forgotten": lambda: forgetting(MAX_TOPICS + 1),
    "tags": lambda: tagged(MAX_TAG_BYTES),
}


@pytest.mark.parametrize("what", TOO_MANY)
def test_what_costs_too_much_is_not_looked_into(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The gateway stops reading at a limit, and counts the fetch as `not looked into`."""
    visited: Counter[str] = Counter()
    element: Callable[[_TopicsWalk, int], int] = _TopicsWalk.element

    def counted(self: _TopicsWalk, at: int) -> int:
        visited["elements"] += 1
        return element(self, at)

    monkeypatch.setattr(_TopicsWalk, "element", counted)
    asked = TOO_MANY[what]()
    play = Playbook().knows()
    play.exchange(asked, full(int.from_bytes(asked[6:8]), [("t", 0)], correlation_id=5))
    assert visited["elements"] <= MAX_TOPICS
    assert play.connection.tally.passthrough == {"not looked into": 1}


def test_addresses_are_rewritten_all_the_same() -> None:
    """Broker addresses are rewritten even in the response to a fetch that was too large to read."""
    play = Playbook(resolve=lambda *_: ("gw", 1)).knows()
    asked = fetch(16, *topics(MAX_TOPICS + 1), correlation=5)
    play.client(asked).to_broker(asked)
    node = bytes.fromhex("02 00000002 03 6232 00002384 00 00")
    told = fetch_response(16, ("t", []), correlation_id=5, tags=((0, node),))
    play.broker(told).to_client(
        fetch_response(
            16, ("t", []), correlation_id=5, tags=((0, bytes.fromhex("02 00000002 03 6777 00000001 00 00")),)
        )
    )


@pytest.mark.parametrize("wants", [topics(1, 10_000), topics(1_000, 10)], ids=["one topic", "1,000 topics"])
@pytest.mark.parametrize("version", [5, 12])
def test_large_lists_have_a_session(version: int, wants: list[Want]) -> None:
    play = Playbook()
    play.established(version, wants)
    assert play.connection.session_partitions == 10_000


@pytest.mark.parametrize(
    "asked",
    [
        pytest.param(lambda n: fetch(12, ("t" * MAX_NAME + "t", 0), ("u", 0), correlation=n), id="name"),
        pytest.param(lambda n: fetch(12, *topics(2), correlation=n, client="c" * MAX_AROUND), id="client"),
        pytest.param(lambda n: fetch(12, *topics(2), correlation=n, rack_id="r" * MAX_AROUND), id="rack"),
    ],
)
def test_what_would_take_much_memory_has_no_session(asked: Callable[[int], bytes]) -> None:
    """A fetch with a very long topic name, client id or rack gets no session. Kafka allows no topic name of
    this length.
    """
    play = Playbook().knows()
    for number in range(1, 6):
        play.exchange(asked(number), full(12, [("t", 0)], correlation_id=number))
    assert play.connection.tally.passthrough == {"not looked into": 5}
    assert play.connection.session_table is None


def test_names_that_change_with_every_fetch_are_forgotten() -> None:
    """Each fetch has a thousand names of the greatest length."""
    play = Playbook().knows()
    most = 0
    for number in range(12):
        wants: list[Want] = [(f"{number}-{name}".ljust(MAX_NAME, "x"), 0) for name in range(1_000)]
        play.client(fetch(12, *wants, correlation=number + 1)).takes_broker()
        play.broker(full(12, wants, correlation_id=number + 1)).takes_client()  # no slot for a session
        table = play.connection.session_table
        assert table is not None
        most = max(most, sum(map(sys.getsizeof, table.numbers)))
    assert most < (MAX_FORGOTTEN + 1024 + MAX_TOPICS) * (MAX_NAME + 64)


def test_forgotten_topics_of_a_native_client_are_not_kept() -> None:
    asked = parsed(forgetting(MAX_TOPICS - 1))
    assert not asked.unsupported_reason
    assert FetchTemplate.of(asked) is None
    small = parsed(fetch(12, ("t", 0), session=(7, 3), correlation=5))
    template = FetchTemplate.of(small)
    assert template is not None
    assert template.read(small.frame) is not None


def test_the_bound_is_no_closer_than_it_has_to_be() -> None:
    for wants in (topics(MAX_TOPICS), topics(1, 31_000)):
        assert parsed(fetch(12, *wants)).unsupported_reason == ""
    play = Playbook().knows()
    play.client(fetch(12, *topics(MAX_TOPICS), correlation=1))
    play.to_broker(asks(12, topics(MAX_TOPICS), (0, 0), correlation=1))
