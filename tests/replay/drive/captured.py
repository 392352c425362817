"""Builds captured exchanges for tests. Times are in milliseconds. A model broker makes the responses."""

from collections.abc import Iterator
from itertools import count
from struct import pack

from proxy.protocol.api import request_header
from replay.capture.kafka.exchange import ConnectionEnd, Exchange
from replay.drive.script import Script, ScriptMaker
from tests.frames import framed
from tests.model.broker import ModelBroker
from tools.kafka import raw

CONNECTION = "10.0.0.1:5000 > 10.0.0.2:9092 #0"
MS = 1_000_000
START = 1_700_000_000_000 * MS


def request(api_key: int, version: int, body: bytes = b"", correlation_id: int = 1) -> bytes:
    return raw.frame(raw.request(api_key, version, body, "c", correlation_id))


class Capture:
    """A client's conversation with the model broker, request by request."""

    def __init__(self, broker: ModelBroker | None = None, connection: str = CONNECTION) -> None:
        self.broker = broker or ModelBroker()
        self.connection = connection
        self.exchanges: list[Exchange] = []
        self._numbers: Iterator[int] = count()

    def say(
        self, frame: bytes, at: float, took: float = 1.0, *, answered: bool = True, due: bool = True
    ) -> Exchange:
        api_key, version, correlation_id, client_id, _ = request_header(frame, 4)
        response = framed(self.broker.handle(frame[4:], at)) if answered else b""
        exchange = Exchange(
            connection=self.connection,
            client=self.connection.split(" > ")[0],
            broker=self.connection.split(" > ")[1].split(" #")[0],
            number=next(self._numbers),
            client_id=(client_id or b"").decode(),
            software="",
            api_key=api_key,
            api_version=version,
            correlation_id=correlation_id,
            request_time=START + int(at * MS),
            response_time=START + int((at + took) * MS) if answered else 0,
            request_bytes=len(frame),
            response_bytes=len(response),
            request=frame,
            response=[response[:7], memoryview(response)[7:]] if response else [],
            answer_due=due,
        )
        self.exchanges.append(exchange)
        return exchange

    def end(self) -> ConnectionEnd:
        client, broker = self.connection.split(" #")[0].split(" > ")
        names = {topic.topic_id: name for name, topic in self.broker.topics.items()}
        return ConnectionEnd(connection=self.connection, client=client, broker=broker, topics=names)


def script(
    *captures: Capture,
    include: frozenset[int] = frozenset(),
    longest_wait: float | None = None,
    limit: int | None = None,
    start: float = 0.0,
) -> Script:
    maker = ScriptMaker(include)
    for capture in captures:
        for exchange in capture.exchanges:
            maker.add(exchange)
        maker.add(capture.end())
    return maker.finish(longest_wait=longest_wait, limit=limit, start=start)


def one(*frames: bytes) -> Script:
    """Return a script with these requests on one connection."""
    capture = Capture()
    for number, frame in enumerate(frames):
        capture.say(frame, number)
    return script(capture)


def batch(offset: int, crc: int = 7, size: int = 70, magic: int = 2) -> bytes:
    """Return records: one batch with this base offset."""
    head = pack(">qiibI", offset, size - 12, 0, magic, crc)
    return head + bytes(size - len(head))
