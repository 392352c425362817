"""Rows that refer to places in files get the same payload as rows that contain it, in any batches."""

import gzip
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from replay.capture.files import window
from replay.capture.files.sources import expand, plan
from replay.capture.files.spans import SpanReader
from replay.capture.packets import segments
from replay.capture.packets.segments import REFERENCES, SEGMENTS, read, read_references, with_payload
from replay.capture.packets.tcp import EVERYTHING, Filter
from tests.examples import examples
from tests.replay.capture.crafting import (
    NAMES,
    Frame,
    as_ipv6,
    capture,
    cut,
    lose,
    pcap,
    pcapng,
    relink,
    repeat,
    swap,
    take_apart,
)

Change = Callable[[list[Frame], float, int], list[Frame]]
REAL = {name: take_apart(capture(name)) for name in NAMES}
SMALL = relink(REAL["librdkafka-midstream"][:400], "ethernet")
FORMS: dict[str, Callable[[], bytes]] = {
    "pcap": lambda: pcap(*SMALL),
    "pcapng": lambda: pcapng(*SMALL),
    "gzip": lambda: zipped(*SMALL),
    "sll2": lambda: pcap(*relink(REAL["librdkafka-midstream"][:400], "sll2")),
    "IPv6": lambda: pcap(*relink(as_ipv6(REAL["librdkafka-midstream"][:400]), "ethernet")),
    "cut": lambda: pcap(*relink(cut(REAL["librdkafka-midstream"][:400], 90), "ethernet")),
    "damaged": lambda: pcap(SMALL[0])[:20_000] + b"x" * 100 + pcap(SMALL[0])[20_000:],
    "many": lambda: pcap(*relink(REAL["many-clients-any"], "ethernet")),
}


def zipped(frames: list[Frame], link: int) -> bytes:
    return gzip.compress(pcap(frames, link))


WRITERS: list[Callable[[list[Frame], int], bytes]] = [pcap, pcapng, zipped]


def sorted_table(batches: list[pa.RecordBatch], schema: pa.Schema) -> pa.Table:
    keys = [("connection", "ascending"), ("order", "ascending")]
    return pa.Table.from_batches(batches, schema).sort_by(keys).combine_chunks()


def both(
    *files: bytes, folder: Path, share: int = 1 << 30, keep: Filter = EVERYTHING, rows: int = 10_000
) -> tuple[pa.Table, pa.Table]:
    """Return the rows of some files twice, sorted by connection: by `read`, and filled from references."""
    for number, data in enumerate(files):
        (folder / f"{number}.pcap").write_bytes(data)
    sources = expand([str(folder)])
    shares = plan(sources, share)
    expected = [batch for part in shares for batch in read(part, keep)]
    found = [batch for part in shares for batch in read_references(part, keep)]
    carried = [batch for part in shares for batch in read_references(part, keep, plain=True)]
    with SpanReader(sources) as reader:
        again = sorted_table(found, REFERENCES).to_batches(max_chunksize=rows)
        filled = list(with_payload(again, reader))
        plain = list(with_payload(carried, reader))
    assert sorted_table(plain, SEGMENTS).equals(sorted_table(expected, SEGMENTS))
    return sorted_table(expected, SEGMENTS), pa.Table.from_batches(filled, SEGMENTS).combine_chunks()


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_capture(tmp_path: Path, form: str) -> None:
    expected, found = both(FORMS[form](), folder=tmp_path)

    assert expected.num_rows > 10
    assert found.equals(expected)


@examples(20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_damage_files_and_bounds(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    draw = data.draw
    frames = REAL[draw(st.sampled_from(NAMES))][: draw(st.integers(0, 600))]
    changes: list[Change] = draw(st.lists(st.sampled_from([lose, repeat, swap]), max_size=2))
    for change in changes:
        frames = change(frames, 0.1, draw(st.integers(0, 9)))
    parts = draw(st.integers(1, 4))
    files = [
        draw(st.sampled_from(WRITERS))(*relink(frames[number::parts], "ethernet")) for number in range(parts)
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segments, "MAX_BATCH", draw(st.sampled_from([1, 5_000, 4 << 20])))
        patch.setattr(segments, "MAX_RUN", draw(st.sampled_from([3_000, 1 << 20])))
        size = draw(st.sampled_from([1 << 18, 16 << 20]))
        patch.setattr(window, "SIZE", size)
        patch.setattr("replay.capture.files.reading.SIZE", size)
        expected, found = both(
            *files,
            folder=tmp_path_factory.mktemp("references"),
            share=draw(st.sampled_from([70_000, 1 << 30])),
            keep=draw(st.sampled_from([EVERYTHING, Filter(ports=frozenset({9092}))])),
            rows=draw(st.sampled_from([1, 7, 10_000])),
        )

    assert found.equals(expected)


def test_references_are_small_and_batches_of_payload_are_bounded(tmp_path: Path) -> None:
    (tmp_path / "x.pcap").write_bytes(capture("librdkafka-100p"))
    sources = expand([str(tmp_path)])
    found = [batch for share in plan(sources, 1 << 30) for batch in read_references(share)]
    with SpanReader(sources) as reader, pytest.MonkeyPatch.context() as patch:
        patch.setattr(segments, "MAX_BATCH", 100_000)
        filled = list(with_payload(found, reader))

    assert sum(batch.nbytes for batch in found) < sources[0].size / 8
    assert all(not any(batch.column("payload").to_pylist()) for batch in found[:-1])
    payload = [sum(map(len, batch.column("payload").to_pylist())) for batch in filled]
    assert all(size <= 100_000 or batch.num_rows == 1 for size, batch in zip(payload, filled, strict=True))
