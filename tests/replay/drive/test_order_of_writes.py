"""Requests wait for the writes that were done before them in the capture."""

import asyncio

from proxy.protocol.api import ApiKey
from proxy.protocol.primitives import Buffer
from replay.capture.kafka.exchange import Exchange
from replay.drive.script import ScriptMaker
from tests.frames import entry, fetch, fetch_response, framed
from tests.model.broker import ModelBroker
from tests.replay.drive.captured import Capture, batch, request, script
from tests.replay.drive.serving import serving
from tests.replay.drive.test_player import play
from tools.kafka import raw

OTHER = "10.0.0.3:5000 > 10.0.0.2:9092 #0"
PRODUCE = request(ApiKey.PRODUCE, 3, raw.string(None) + bytes(6) + raw.array([]))
INCLUDED = frozenset({ApiKey.PRODUCE, ApiKey.HEARTBEAT})


def written(offset: int) -> list[Buffer]:
    """Return the response to a Produce (v3) whose records got this offset in t-0."""
    place = bytes(4 + 2) + offset.to_bytes(8) + bytes(8)
    return [framed(bytes(4) + raw.array([raw.string("t") + raw.array([place])]) + bytes(4))]


def order(exchanges: list[Exchange], *, compared: bool) -> list[tuple[int, int]]:
    """Return for each request its place among the writes, and how many of them it waits for."""
    maker = ScriptMaker(INCLUDED, keep=(lambda *_: None) if compared else None)
    for exchange in exchanges:
        maker.add(exchange)
    steps = sorted(maker.finish().steps(), key=lambda step: step.at)
    return [(step.write, step.after_writes) for step in steps]


def conversation() -> tuple[Capture, Capture]:
    broker = ModelBroker()
    broker.create_topic("t", 1)
    return Capture(broker), Capture(broker, OTHER)


def test_a_request_waits_for_the_writes_that_had_a_response_when_it_was_sent() -> None:
    writer, reader = conversation()
    writer.say(request(ApiKey.HEARTBEAT, 0), 0, took=2)
    writer.say(request(ApiKey.HEARTBEAT, 0), 3, took=5)
    reader.say(fetch(12, ("t", 0)), 1)
    reader.say(fetch(12, ("t", 0)), 4)
    reader.say(fetch(12, ("t", 0)), 9)
    exchanges = [*writer.exchanges, *reader.exchanges]

    assert order(exchanges, compared=False) == [(0, 0), (-1, 0), (1, 1), (-1, 1), (-1, 2)]


def test_a_fetch_that_is_compared_waits_for_the_records_in_its_response() -> None:
    """The consumer had them before the producer had its response."""
    writer, reader = conversation()
    reader.say(fetch(12, ("t", 0)), 0, took=10)
    reader.exchanges[0].response = [fetch_response(12, ("t", [entry(0, 1, records=batch(0))]))]
    writer.say(PRODUCE, 5, took=10).response = written(0)
    writer.say(PRODUCE, 6, took=11).response = written(1)

    exchanges = [*writer.exchanges, *reader.exchanges]
    assert order(exchanges, compared=True) == [(-1, 1), (0, 0), (1, 1)]
    assert order(exchanges, compared=False) == [(-1, 0), (0, 0), (1, 0)]


def test_records_are_written_in_the_captured_order_if_they_are_compared() -> None:
    writer, other = conversation()
    writer.say(PRODUCE, 0, took=9).response = written(0)
    other.say(PRODUCE, 1, took=2).response = written(1)

    assert order([*writer.exchanges, *other.exchanges], compared=True) == [(0, 0), (1, 1)]


async def test_a_write_without_a_response_holds_nothing_up() -> None:
    writer, reader = conversation()
    writer.say(request(ApiKey.HEARTBEAT, 0), 0, took=1)
    reader.say(fetch(12, ("t", 0)), 5)
    there = ModelBroker()
    there.create_topic("t", 1)
    async with asyncio.timeout(20), serving(there) as served:
        served.versions[ApiKey.HEARTBEAT] = (0, 0)
        served.hang_up = lambda frame: frame[1] == ApiKey.HEARTBEAT
        report = await play(served, script(writer, reader, include=INCLUDED))

    assert len(served.of(ApiKey.FETCH)) == 1
    assert report["lost"] == {"target": 1}
