"""Real bytes as seeds for fuzzing: the sample captures, and test vectors from live brokers."""

import json
from collections import defaultdict
from functools import cache
from pathlib import Path
from typing import Final

from replay.capture.files.counts import FileCounts
from replay.capture.files.reading import windows
from replay.capture.files.sources import FilePiece, expand
from replay.capture.packets.segments import runs
from replay.capture.packets.tcp import EVERYTHING, decode

_ROOT: Final = Path(__file__).parents[2]
CAPTURES: Final = _ROOT / "captures"
_VECTORS: Final = _ROOT / "tests" / "data" / "fetch-live.json"
_NAMES: Final = ("librdkafka-gateway", "librdkafka-rebalance", "aiokafka-rebalance", "java-100p")
_OF_EACH: Final = 3
_MOST_BYTES: Final = 3000


@cache
def frames() -> tuple[tuple[bytes, ...], tuple[bytes, ...]]:
    """Return a few requests of each API and version, and responses of all sizes, without lengths."""
    requests: defaultdict[bytes, set[bytes]] = defaultdict(set)
    responses: defaultdict[int, set[bytes]] = defaultdict(set)
    for name in _NAMES:
        for frame, broker in _of_capture(CAPTURES / f"{name}.pcap"):
            if not 8 <= len(frame) <= _MOST_BYTES:
                continue
            if broker:
                kinds, key = responses, len(frame) // 100
                if len(kinds[key]) < 2 * _OF_EACH:
                    kinds[key].add(frame)
            elif len(requests[frame[:4]]) < _OF_EACH:
                requests[frame[:4]].add(frame)
    for vector in json.loads(_VECTORS.read_text()):
        asked, response = bytes.fromhex(vector["request_hex"]), bytes.fromhex(vector["response_hex"])
        if 8 <= len(asked) <= _MOST_BYTES and len(requests[asked[:4]]) < 3 * _OF_EACH:
            requests[asked[:4]].add(asked)
            if 8 <= len(response) <= _MOST_BYTES:
                responses[-1].add(response)
    return (
        tuple(sorted({frame for kind in requests.values() for frame in kind})),
        tuple(sorted({frame for kind in responses.values() for frame in kind})),
    )


def _of_capture(path: Path) -> list[tuple[bytes, bool]]:
    """Return the frames of a capture up to gaps, each with whether a broker sent it."""
    streams: defaultdict[tuple[bytes, bool], bytearray] = defaultdict(bytearray)
    counts = FileCounts(file=path.name)
    (source,) = expand([str(path)])
    for window, records in windows(FilePiece(source=source), counts):
        batch = runs(window, decode(window, records, EVERYTHING, counts), 0)
        for row in batch.select(["connection", "from_low", "payload"]).to_pylist():
            streams[row["connection"], row["from_low"]] += row["payload"]
    found = []
    for key, stream in streams.items():
        other = streams.get((key[0], not key[1]), b"")
        broker = not _is_client(stream) and _is_client(other)
        at = 0
        while at + 4 <= len(stream):
            size = int.from_bytes(stream[at : at + 4], signed=True)
            if not 0 < size <= 1 << 20:
                break
            found.append((bytes(stream[at + 4 : at + 4 + size]), broker))
            at += 4 + size
    return found


def _is_client(stream: bytes | bytearray) -> bool:
    """Return whether a stream begins with a request: a known API key, a small version, and a client id."""
    size = int.from_bytes(stream[12:14])
    name = bytes(stream[14 : 14 + size])
    known = len(stream) > 14 and stream[4] == 0 and stream[5] < 80 and stream[6] == 0 and stream[7] < 20
    return known and 0 < size == len(name) < 64 and name.isascii() and name.decode().isprintable()


@cache
def capture_head(name: str, most: int) -> bytes:
    """Return the first `most` bytes of a sample capture."""
    return (CAPTURES / name).read_bytes()[:most]
