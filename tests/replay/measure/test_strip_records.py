"""Records are cut out of segments only if the bytes are certainly records. Nothing else changes."""

import struct
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from replay.capture.files.sources import expand, plan
from replay.capture.packets.segments import SEGMENTS, read
from replay.measure.strip_records import STRIPPED, restore_records, strip_records
from tests.replay.capture.encrypting import begun, encrypted, ends
from tests.replay.capture.packets_of import batch as packet_batch
from tests.replay.capture.packets_of import packets

CAPTURES = Path(__file__).parents[3] / "captures"
RECORDS = bytes(range(1, 251)) * 20


def request(version: int = 11, correlation_id: int = 7, api_key: int = 1) -> bytes:
    head = struct.pack(">hhi", api_key, version, correlation_id) + b"\x00\x01c"
    return framed(
        head + struct.pack(">iiiibii", -1, 500, 1, 1 << 20, 1, 0, -1) + bytes(4) + bytes(4) + bytes(2)
    )


def response(*records: bytes, correlation_id: int = 7) -> bytes:
    """Return a v11 fetch response with one topic. The topic has one partition for each item of `records`."""
    entries = b"".join(
        struct.pack(">ihqqqiii", at, 0, 100, 100, 0, 0, -1, len(one)) + one for at, one in enumerate(records)
    )
    head = struct.pack(">iihiih", correlation_id, 0, 0, 0, 1, 1)
    return framed(head + b"t" + struct.pack(">i", len(records)) + entries)


def framed(content: bytes) -> bytes:
    return len(content).to_bytes(4) + content


def batch(*rows: tuple[bool, bytes], connections: Iterable[bytes] = ()) -> pa.RecordBatch:
    """Return rows of a table of segments.

    Args:
        rows: for each row, whether the client sent it, and its payload.
        connections: for each row, its connection. Without it, all rows belong to one connection.
    """
    named = [*connections] or [b"c"] * len(rows)
    sent = {True: 0, False: 0}
    found = []
    for at, (name, (from_low, payload)) in enumerate(zip(named, rows, strict=True)):
        found.append(
            {
                "connection": name,
                "from_low": from_low,
                "time": 1,
                "end_time": 1,
                "order": at,
                "sequence": sent[from_low],
                "ack": sent[not from_low],
                "flags": 0,
                "missing": 0,
                "packets": 1,
                "payload": payload,
            }
        )
        sent[from_low] += len(payload)
    return pa.RecordBatch.from_pylist(found, schema=SEGMENTS)


def payloads(rows: pa.RecordBatch) -> list[bytes]:
    found: list[bytes] = rows.column("payload").to_pylist()
    return found


def test_contents_are_cut_and_become_zeros() -> None:
    whole = response(RECORDS, b"", RECORDS[:3000])
    rows = batch((True, request()), (False, whole))
    thinned = strip_records(rows)

    assert thinned.schema == STRIPPED
    assert payloads(thinned) == [request(), whole.replace(RECORDS, b"").replace(RECORDS[:3000], b"")]
    zeros = whole.replace(RECORDS, bytes(len(RECORDS))).replace(RECORDS[:3000], bytes(3000))
    assert payloads(restore_records(thinned)) == [request(), zeros]
    assert restore_records(thinned).schema == SEGMENTS
    assert restore_records(thinned).drop_columns("payload") == rows.drop_columns("payload")


@pytest.mark.parametrize("at", [1, 50, 61, 62, 63, 64, 500, 5000, 5060, 5061, 5062, 5063, 5064, 5065])
def test_a_response_over_several_rows_is_one(at: int) -> None:
    whole = response(RECORDS, RECORDS)
    rows = batch((True, request()), (False, whole[:at]), (False, whole[at:]))
    thinned = strip_records(rows)

    assert sum(map(len, payloads(thinned)[1:])) == len(whole) - 2 * len(RECORDS)
    joined = b"".join(payloads(restore_records(thinned))[1:])
    assert joined == whole.replace(RECORDS, bytes(len(RECORDS)))
    assert list(map(len, payloads(restore_records(thinned)))) == list(map(len, payloads(rows)))


@pytest.mark.parametrize(
    "rows",
    [
        batch((True, request()), (False, response(RECORDS, correlation_id=8))),
        batch((True, request(api_key=3)), (False, response(RECORDS))),
        batch((True, request(version=19)), (False, response(RECORDS))),
        batch((True, request(version=12)), (False, response(RECORDS))),
        batch((True, request() * 2), (False, response(RECORDS))),
        batch((True, request()[:-1]), (False, response(RECORDS))),
        batch((True, request()), (False, response(RECORDS)[:-1])),
        batch((True, request()), (False, response(RECORDS) + b"\x00")),
        batch((True, request()), (True, response(RECORDS))),
        batch((True, request()), (False, response(RECORDS)), connections=(b"c", b"d")),
        batch((True, request()), (False, response(RECORDS)[:5000]), (True, response(RECORDS)[5000:])),
        batch((True, request()), (False, response(b"few"))),
        batch((False, response(RECORDS)), (True, request())),
        batch((False, response(RECORDS))),
        batch(),
    ],
)
def test_what_is_not_certain_stays(rows: pa.RecordBatch) -> None:
    assert payloads(strip_records(rows)) == payloads(rows)
    assert restore_records(strip_records(rows)) == rows


def captured() -> Iterator[pa.RecordBatch]:
    for share in plan(expand([str(CAPTURES)]), 1 << 30):
        yield from read(share)


def test_of_real_captures_only_bytes_of_records_are_replaced() -> None:
    cut = 0
    for rows in captured():
        again = restore_records(strip_records(rows))
        assert again.drop_columns("payload") == rows.drop_columns("payload")
        for before, after in zip(payloads(rows), payloads(again), strict=True):
            assert len(before) == len(after)
            assert all(new in {old, 0} for old, new in zip(before, after, strict=True))
        cut += sum(pc.binary_length(strip_records(rows).column("cuts")).to_pylist())
    assert cut


def test_a_slice_of_a_batch_is_read_as_what_it_is() -> None:
    rows = batch((False, b"x" * 100), (True, request()), (False, response(RECORDS)), (True, b"y" * 9))

    assert (
        payloads(restore_records(strip_records(rows.slice(1, 2))))
        == payloads(restore_records(strip_records(rows)))[1:3]
    )


def test_what_is_encrypted_stays(tmp_path: Path) -> None:
    rows = packet_batch(encrypted(begun(packets("librdkafka-100p")), ends(tmp_path)))
    stripped = strip_records(rows)

    assert stripped.column("payload").equals(rows.column("payload"))
    assert set(stripped.column("cuts").to_pylist()) == {b""}
    assert restore_records(stripped).equals(rows)
