"""The report is the same, byte for byte, with references to payload and with the payload itself."""

import gzip
import json
import struct
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from replay.capture.packets.tcp import Filter
from replay.measure.here import measure_here
from replay.measure.work import Work
from tests.replay.capture.crafting import (
    RAW,
    Frame,
    capture,
    lose,
    pcap,
    pcapng,
    relink,
    repeat,
    swap,
    take_apart,
)
from tests.replay.capture.encrypting import begun, encrypted, ends, frames
from tests.replay.capture.packets_of import packets
from tests.replay.measure.spark.measuring import CAPTURES, reported, work
from tests.replay.measure.spark.test_jobs import split

MANY = "many-clients-any"
REAL = {name: take_apart(capture(name)) for name in ("librdkafka-midstream", MANY)}


def fragmented(whole: list[Frame]) -> Iterator[Frame]:
    """Cut each fifth IP packet into two fragments."""
    for number, frame in enumerate(whole):
        if number % 5 or len(frame.data) < 100:
            yield frame
            continue
        head, body = frame.data[:20], frame.data[20:]
        for data, flags in ((body[:48], 0x2000), (body[48:], 48 // 8)):
            packed = head[:2] + struct.pack(">HHH", 20 + len(data), number & 0xFFFF, flags) + head[8:] + data
            yield Frame(frame.time, packed, len(packed))


def written(folder: Path, *files: bytes, **more: Any) -> Work:
    for number, data in enumerate(files):
        (folder / f"{number}.pcap").write_bytes(data)
    return work(folder, **more)


def several(folder: Path) -> Work:
    """Return files of which some are compressed, and one is a pcapng."""
    parts = list(split(capture(MANY), 6))
    (folder / "small.pcap").write_bytes(pcapng(*relink(REAL["librdkafka-midstream"], "ethernet")))
    return written(folder, *(gzip.compress(part) if at % 3 == 1 else part for at, part in enumerate(parts)))


def secret(folder: Path) -> Work:
    both = ends(folder / "keys")
    (folder / "tls").mkdir()
    data = pcap(frames(encrypted(begun(packets(MANY)), both)), RAW, nano=True)
    return written(folder / "tls", data, secrets=both.secrets())


def damaged(folder: Path) -> Work:
    found = swap(repeat(lose(REAL[MANY], 0.02, 1), 0.02, 2), 0.02, 3)
    return written(folder, pcap(*relink(found, "ethernet")))


def cooperative(_: Path) -> Work:
    asked = work(CAPTURES / "librdkafka-rebalance.pcap", CAPTURES / "aiokafka-rebalance.pcap")
    return replace(asked, choice=replace(asked.choice, members=6))


INPUTS: dict[str, Callable[[Path], Work]] = {
    "captures": lambda _: work(CAPTURES),
    "always": lambda _: work(CAPTURES / f"{MANY}.pcap", policy="always"),
    "gzip": lambda folder: written(folder, gzip.compress(capture(MANY))),
    "pcapng": lambda folder: written(folder, pcapng(*relink(REAL[MANY], "sll2"))),
    "several": several,
    "fragments": lambda folder: written(folder, pcap([*fragmented(REAL[MANY])], RAW)),
    "damaged": damaged,
    "TLS": secret,
    "cooperative": cooperative,
    "hosts": lambda _: work(CAPTURES, keep=Filter(hosts=frozenset({"127.0.0.0/8"}))),
    "clients": lambda _: work(CAPTURES / f"{MANY}.pcap", clients=frozenset({"kpy"})),
    "topics": lambda _: work(CAPTURES / f"{MANY}.pcap", topics=frozenset({"orders"})),
}


def plain(asked: Work) -> Work:
    return replace(asked, choice=replace(asked.choice, plain=True))


def here(asked: Work) -> str:
    found = measure_here(asked)
    assert found is not None
    return json.dumps(reported(found, asked.choice.policy))


@pytest.mark.parametrize("name", INPUTS)
def test_here_references_change_nothing(tmp_path: Path, name: str) -> None:
    asked = INPUTS[name](tmp_path)
    expected = here(plain(asked))

    assert json.loads(expected)["input"]["packets"]
    assert here(asked) == expected
