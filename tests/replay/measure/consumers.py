"""Captures of consumers for tests, and the results of `measure --cooperative` for these captures."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from proxy.protocol.api import ApiKey
from replay.capture.files.sources import expand
from replay.capture.packets.tcp import Filter
from replay.measure.here import measure_here
from replay.measure.report import About, report
from replay.measure.rows import RowFilter
from replay.measure.work import Work
from replay.report.model import CooperativeRow, Filters, Report
from tests.features.cooperative.batch import Record
from tests.frames import entry, fetch, fetch_response, framed
from tests.replay.capture.crafting import Frame, Talk, pcap

HEADER_BYTES = 61


class Consumer:
    """A consumer's connection: its requests, and the broker's responses."""

    def __init__(
        self, *, client_id: str = "me", port: int = 40_000, version: int = 11, group: str = ""
    ) -> None:
        self.client_id, self.version = client_id, version
        self._talk = Talk(client=("10.0.0.1", port)).open()
        self._correlation = 0
        if group:
            self.ask(ApiKey.HEARTBEAT, 3, string(group) + bytes(4) + string("member"))

    @property
    def frames(self) -> list[Frame]:
        return self._talk.frames

    def ask(self, api_key: int, version: int, body: bytes) -> "Consumer":
        """Send a request other than a fetch. Its response has no contents."""
        self._correlation += 1
        head = api_key.to_bytes(2) + version.to_bytes(2) + self._correlation.to_bytes(4)
        self._talk.segment(framed(head + string(self.client_id) + body))
        self._talk.segment(framed(self._correlation.to_bytes(4) + bytes(6)), broker=True)
        return self

    def fetch(self, records: Mapping[int, bytes], topic: str = "orders", **fields: Any) -> "Consumer":
        """Fetch partitions of a topic. `records` has the records that each partition returns."""
        self._correlation += 1
        wants = [(topic, partition) for partition in records]
        named: dict[str, Any] = {"correlation": self._correlation, "client": self.client_id}
        self.say(fetch(self.version, *wants, **named, **fields), broker=False)
        entries = [entry(partition, 1 << 40, records=own) for partition, own in records.items()]
        response = fetch_response(self.version, (topic, entries), correlation_id=self._correlation)
        self.say(response, broker=True)
        return self

    def say(self, payload: bytes, *, broker: bool) -> None:
        """Send bytes as they are."""
        for at in range(0, len(payload), 30_000):
            self._talk.segment(payload[at : at + 30_000], broker=broker)


def string(text: str) -> bytes:
    return len(text).to_bytes(2) + text.encode()


def keyed(keys: Sequence[bytes | None], base: int = 0) -> list[Record]:
    """Make a record for each key, at consecutive offsets."""
    return [Record(base + at, key, b"v" * (at % 40)) for at, key in enumerate(keys)]


def captured(folder: Path, *consumers: Consumer) -> Path:
    """Write the capture of some consumers."""
    file = folder / "made.pcap"
    file.write_bytes(pcap([frame for one in consumers for frame in one.frames], link=101))
    return file


def asked(capture: Path, members: int, parquet: str | None = None, **chosen: Any) -> tuple[Work, About]:
    """Return the work for `measure`. `chosen` can have the keys `topics` and `clients`."""
    filters = Filters(ports=[], hosts=[], **{"clients": [], "topics": []} | chosen)  # type: ignore[typeddict-item]  # only these
    work = Work(
        keep=Filter(),
        choice=RowFilter(clients=frozenset(filters["clients"]), members=members),
        topics=frozenset(filters["topics"]),
        sources=tuple(expand([str(capture)])),
        parquet=parquet,
    )
    return work, About(version="0", policy="gateway", filters=filters, members=members)


def measured(capture: Path, members: int, **chosen: Any) -> Report:
    """Return the report of a capture, made in this process."""
    work, about = asked(capture, members, **chosen)
    found = measure_here(work)
    assert found is not None
    return report(found, about)


def groups(folder: Path, *consumers: Consumer, members: int = 4, **chosen: Any) -> list[CooperativeRow]:
    """Return the results for some consumers, group by group."""
    told = measured(captured(folder, *consumers), members, **chosen)["cooperative"]
    assert told["members"] == members
    return told["groups"]


def group(folder: Path, *consumers: Consumer, members: int = 4, **chosen: Any) -> CooperativeRow:
    """Return the result for some consumers that form a single group."""
    (row,) = groups(folder, *consumers, members=members, **chosen)
    return row


def counts(row: CooperativeRow) -> list[int]:
    """Return how many records each member would get."""
    return [round(share["records"] * row["records"]) for share in row["spread"]]


CLIENT, BROKER, OTHER = b"\x0a\0\0\1", b"\x0a\0\0\2", b"\xc0\xa8\0\7"
LAG = 20_000


def after_nat(frames: list[Frame], translated: bytes) -> list[Frame]:
    """Return the packets of a connection after NAT, which gives one end another address."""
    found = []
    for frame in frames:
        asks = frame.data[12:16] == CLIENT
        ends = frame.data[12:20].replace(translated, OTHER)
        found.append(
            Frame(
                frame.time + (LAG if asks else -LAG), frame.data[:12] + ends + frame.data[20:], frame.length
            )
        )
    return found


def captured_twice(to: Path, translated: bytes, *, port: int = 40_000) -> Path:
    """Write a capture of a consumer, before and after NAT, and of another one that was captured once."""
    consumer, alone = Consumer(port=port, group="g"), Consumer(client_id="alone", port=41_000)
    for _ in range(20):
        consumer.fetch({0: b"", 1: b"r" * 30})
        alone.fetch({0: b"", 1: b""})
    frames = consumer.frames + after_nat(consumer.frames, translated) + alone.frames
    to.write_bytes(pcap(sorted(frames, key=lambda frame: frame.time), link=101, nano=True))
    return to
