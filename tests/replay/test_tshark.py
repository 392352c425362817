"""Replay finds the same frames as tshark, on the same connections and with the same correlation ids."""

import json
import shutil
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from replay.capture.kafka.exchange import Exchange
from tests.replay.tables import CAPTURES, connections

TSHARK = shutil.which("tshark")
NAMES = sorted(path.stem for path in CAPTURES.glob("*.pcap") if "no-records" not in path.stem)
"""The names of the captures that have all their records. Captures without records are left out, because
tshark does not reassemble an incomplete frame."""
_FIELDS = ("tcp.srcport", "tcp.dstport", "kafka.len", "kafka.correlation_id")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        TSHARK is None, reason="no tshark, the referee of framing: python -m tools.debian fetches it"
    ),
]


def ports(name: str) -> list[int]:
    """Return the ports on which brokers and gateways listen in a capture."""
    manifest = CAPTURES / f"{name}.manifest.json"
    if not manifest.exists():
        return [33192]
    sides: dict[str, list[int]] = json.loads(manifest.read_text())["ports"]
    return sorted({port for listed in sides.values() for port in listed})


def framed_by_tshark(file: Path, kafka: list[int]) -> Counter[tuple[int, int, int, int]]:
    """Count the frames that tshark finds.

    The keys: source port, destination port, correlation id, size with the length field.
    """
    command = [str(TSHARK), "-r", str(file), "-o", "tcp.reassemble_out_of_order:TRUE", "-Y", "kafka"]
    command += [word for port in kafka for word in ("-d", f"tcp.port=={port},kafka")]
    command += ["-T", "fields", *(word for field in _FIELDS for word in ("-e", field))]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: Counter[tuple[int, int, int, int]] = Counter()
    for line in done.stdout.splitlines():
        source, target, sizes, ids = line.split("\t")
        for size, correlation_id in zip(sizes.split(","), ids.split(","), strict=True):
            found[int(source), int(target), int(correlation_id), int(size) + 4] += 1
    return found


def framed(file: Path) -> Counter[tuple[int, int, int, int]]:
    """Count the frames that replay finds in a capture. The keys are those of `framed_by_tshark`."""
    found: Counter[tuple[int, int, int, int]] = Counter()
    exchanges = (event for events in connections(file) for event in events if isinstance(event, Exchange))
    for one in exchanges:
        client, broker = (int(end.rpartition(":")[2]) for end in (one.client, one.broker))
        if one.request_bytes:
            found[client, broker, one.correlation_id, one.request_bytes] += 1
        if one.response_bytes:
            found[broker, client, one.correlation_id, one.response_bytes] += 1
    return found


@pytest.mark.parametrize("name", NAMES)
def test_tshark_finds_the_same_frames(name: str) -> None:
    file = CAPTURES / f"{name}.pcap"
    found = framed(file)

    assert found.total() > (50 if "zones" in name else 100)  # the captures of zones are short
    assert found == framed_by_tshark(file, ports(name))
