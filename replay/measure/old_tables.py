"""Tables of 0.2.0 and earlier.

They have JSON in a column `detail` instead of today's typed columns. Sans-IO.
"""

import json
from collections.abc import Iterable, Iterator
from typing import Any, Final

import pyarrow as pa

from replay.capture.files.counts import FileCounts
from replay.capture.kafka.both_sides import SampledExchange
from replay.capture.kafka.exchange import ConnectionEnd
from replay.measure.digest import BytesOfPeriod, Summary, TopicTotals
from replay.measure.limits import Starved, VersionFigures
from replay.measure.table import CODECS, DETAILS, EXCHANGES_RAW
from replay.simulate.session_cache import CacheEvent

DETAIL: Final = "detail"
_ADDED: Final = frozenset({*CODECS, "errors"})
OLD: Final = pa.schema([*(one for one in EXCHANGES_RAW if one.name not in _ADDED), (DETAIL, pa.string())])
"""The columns of a table of version 0.2.0 or earlier."""


def typed(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of an old table in today's form."""
    for batch in batches:
        rows, details = (batch.column(name).to_pylist() for name in ("row", DETAIL))
        found: dict[str, list[Any]] = {"delivered": [None] * len(rows)}
        for kind, read in (("connection", _summary), ("file", FileCounts.from_json)):
            found[DETAILS[kind]] = [
                read(detail) if row == kind else None for row, detail in zip(rows, details, strict=True)
            ]
        added = {name: CODECS[name].write(values) for name, values in found.items()}
        added["errors"] = pa.nulls(len(rows), EXCHANGES_RAW.field("errors").type)
        yield pa.record_batch(
            [added[name] if name in added else batch.column(name) for name in EXCHANGES_RAW.names],
            schema=EXCHANGES_RAW,
        )


def _summary(detail: str) -> Summary:
    found = json.loads(detail)
    end = found["end"]
    topics = {bytes.fromhex(topic_id): name for topic_id, name in end["topics"].items()}
    limits = found["limits"]
    return Summary(
        end=ConnectionEnd(**{**end, "topics": topics}),
        topics=[TopicTotals(**_named(totals)) for totals in found["topics"]],
        bucket_ns=found["width"],
        over_time=[BytesOfPeriod(number * found["width"], *sizes) for number, *sizes in found["over_time"]],
        sessions=[CacheEvent(*event) for event in found["sessions"]],
        limits={one.pop("fetch_version"): VersionFigures(**one) for one in limits["by_version"]},
        starved=[Starved(**_named(starved)) for starved in limits["starved"]],
        differing=found["differing"],
        saved_by_other=found["saved_by_other"],
        exchanges=found["exchanges"],
        sample=[SampledExchange(*kept) for kept in found["sample"]],
    )


def _named(values: dict[str, Any]) -> dict[str, Any]:
    """Return values with the topic's name or id in today's form."""
    topic_id = values.pop("id", None)
    return {"topic": None, **values, "topic_id": topic_id and bytes.fromhex(topic_id)}
