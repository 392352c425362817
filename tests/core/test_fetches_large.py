"""Tests that the last byte of a large response causes little work, whatever the size of the reads."""

import random
from collections import Counter
from typing import Any

import pytest

from proxy.core.fetch_responses import FetchResponses
from proxy.core.in_flight import FetchHandler, Walked
from proxy.protocol.fetch_response import Received
from proxy.protocol.primitives import Buffer
from proxy.session.partitions import PartitionTable
from tests.frames import Want, entry, fetch, fetch_response
from tests.playbook import SESSION_ID, Playbook

COUNT = 300
SIZE = 5_000


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count two kinds of steps: pieces of the frame that are visited, and look-ups in the session's table."""
    counted: Counter[str] = Counter()
    span, row = Received.span, PartitionTable.row

    def spanned(self: Received, start: int, end: int) -> list[memoryview]:
        found = span(self, start, end)
        counted["pieces"] += len(found)
        return found

    def looked_up(self: PartitionTable, key: bytes, partition: int) -> int:
        counted["entries"] += 1
        return row(self, key, partition)

    monkeypatch.setattr(Received, "span", spanned)
    monkeypatch.setattr(PartitionTable, "row", looked_up)
    return counted


@pytest.mark.parametrize("read", [1_448, 20_000, 1 << 18])
@pytest.mark.parametrize("topics", [1, 20])
@pytest.mark.parametrize("version", [11, 12])
def test_the_last_byte_has_little_to_do(version: int, topics: int, read: int, steps: Counter[str]) -> None:
    """When the last byte of a response arrives, the gateway has little work left.

    In this test every partition has changes, in the broker's own order.
    """
    wants: list[Want] = [(f"t{number % topics}", number // topics) for number in range(COUNT)]
    wants.sort()
    play = Playbook().established(version, wants)
    play.client(fetch(version, *wants, correlation=4)).takes_broker()
    shuffled = random.Random(1).sample(wants, COUNT)
    news = {
        (name, index): entry(index, 9, records=index.to_bytes(2) * (SIZE // 2)) for name, index, *_ in wants
    }
    told = fetch_response(
        version,
        *((name, [news[name, index]]) for name, index, *_ in shuffled),
        session_id=SESSION_ID,
        correlation_id=4,
    )
    steps.clear()
    play.broker(told[:-1], chunk=read)
    assert steps["entries"] >= COUNT - 1
    steps.clear()
    play.broker(told[-1:])
    assert steps["entries"] <= 1
    assert steps["pieces"] <= 2 * (1 + max(read, 1 << 16) // SIZE)
    topics_in_order: dict[str, list[int]] = {}
    for name, index, *_ in wants:
        topics_in_order.setdefault(name, []).append(index)
    elements = [(name, [news[name, index] for index in each]) for name, each in topics_in_order.items()]
    pieces = play.connection.to_client
    assert len(pieces) <= COUNT + len(told) // (1 << 14) + topics + 2
    play.to_client(fetch_response(version, *elements, correlation_id=4))


@pytest.mark.parametrize("read", [100, 1_448])
def test_long_tags_that_drip_in_are_copied_a_few_times(read: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Long tags that arrive in small reads are not copied again with each read.

    Bytes that can't be sent yet are kept, and joined once.
    """
    kept: list[int] = []
    up_to = FetchResponses._up_to

    def counted(self: FetchResponses, fetching: FetchHandler, response: Walked, *rest: Any) -> list[Buffer]:
        pieces = up_to(self, fetching, response, *rest)
        kept.append(len(response.chunks))
        return pieces

    monkeypatch.setattr(FetchResponses, "_up_to", counted)
    play = Playbook(resolve=lambda *_: ("gw", 1)).knows()
    asked = fetch(16, ("t", 0), correlation=4)
    play.client(asked).to_broker(asked)
    told = fetch_response(16, ("t", [entry(0, 5)]), correlation_id=4, tags=((9, bytes(100_000)),))
    play.broker(told[:-1], chunk=read)
    assert kept[-1] >= 100_000 // read - 1
    first = play.takes_client()
    play.broker(told[-1:])
    assert first + play.takes_client() == told
