"""Measures the filtering of cooperative consuming, in records a second on one processor.

The batches are like those of producers: 1,000 records of 200 bytes with 5,000 keys. A quarter of the hashes
is kept. "8 lanes" splits the same batches for eight members at once.
"""

import math
import random
import time
from collections.abc import Sequence
from typing import Final

from aiokafka.record.default_records import (  # type: ignore[import-untyped]  # it has no types
    DefaultRecordBatchBuilder,
)

from proxy.cooperative.filtered import split_records
from proxy.cooperative.key_hash import SPACE
from proxy.cooperative.ranges import Split
from tools.bench.figures import GATEWAY, FigureRow, FigureTable
from tools.bench.stage import BenchStage

_CODECS: Final = {
    "none": (0, 1.2),
    "gzip": (1, None),
    "snappy": (2, None),
    "lz4": (3, 0.9),
    "zstd": (4, 0.75),
}
"""For each codec: its number in a batch's attributes, and its target, at least this many million records a
second. None if there is no target."""
_RECORDS: Final = 1_000
_KEYS: Final = 5_000
_VALUE: Final = 180
_EIGHT_LANES: Final = 1.3
"""The target for records that are not compressed: eight lanes take at most 1.3 times as long as one lane."""
_QUARTER: Final = SPACE // 4
_EIGHTH: Final = SPACE // 8


def run(stage: BenchStage) -> list[FigureTable]:
    """Measure the filtering with each codec."""
    stage.report("filter: records of a quarter of the hashes ...")
    batches = 10 if stage.quick else 50
    quarter = Split([((0, _QUARTER - 1),)])
    eight = Split([((lane * _EIGHTH, (lane + 1) * _EIGHTH - 1),) for lane in range(8)])
    records = {name: _batches(codec, batches) for name, (codec, _) in _CODECS.items()}
    took = _took(records, (quarter, eight), stage.rounds(quick=5, usual=15, long=30))
    rows = []
    for name, (codec, least) in _CODECS.items():
        once, split = took[name]
        rate = FigureRow(
            name=f"{name}, a quarter is kept",
            unit="million records/s",
            values={GATEWAY: batches * _RECORDS / once / 1e6},
            limit=least,
            least=True,
        )
        times = FigureRow(name=f"{name}, 8 lanes", unit="times one", values={GATEWAY: split / once})
        rows += [rate, times if codec else _limited(times)]
    notes = [
        "One processor; CPU time, the best of all rounds. 1,000 records of 200 bytes a batch, 5,000 keys."
    ]
    return [
        FigureTable(
            part="filter", title="Filtering records by the hash of their keys", rows=rows, notes=notes
        )
    ]


def _limited(row: FigureRow) -> FigureRow:
    return FigureRow(name=row.name, unit=row.unit, values=row.values, limit=_EIGHT_LANES)


def _batches(codec: int, count: int) -> bytes:
    """Make the records of a response. Half of each value repeats, as in texts."""
    chance = random.Random(codec)  # noqa: S311 - the same records each time
    keys = [b"key-%d" % number for number in range(_KEYS)]
    found = []
    for number in range(count):
        builder = DefaultRecordBatchBuilder(2, codec, 0, -1, -1, -1, 1 << 30)
        for place in range(_RECORDS):
            value = chance.randbytes(_VALUE // 2) * 2
            builder.append(place, 1_700_000_000_000 + place, chance.choice(keys), value, [])
        batch = bytearray(builder.build())
        batch[:8] = (number * _RECORDS).to_bytes(8)
        found.append(bytes(batch))
    return b"".join(found)


def _took(records: dict[str, bytes], splits: Sequence[Split], rounds: int) -> dict[str, list[float]]:
    """Return the CPU seconds that each split needs for each codec's records: the minimum of all rounds.

    In each round, all splits and codecs are measured one after the other. So a moment in which the machine is
    busy spoils only one round.
    """
    best = {name: [math.inf] * len(splits) for name in records}
    for _ in range(rounds):
        for name, times in best.items():
            for place, split in enumerate(splits):
                began = time.process_time()
                split_records(records[name], split, [0] * len(split.starts), [0] * len(split.lanes))
                times[place] = min(times[place], time.process_time() - began)
    return best
