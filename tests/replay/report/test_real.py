"""Reports of the real captures, made without Spark: they add up, and every form of them renders."""

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from replay.capture import segments, sources
from replay.capture.exchanges import read_exchanges
from replay.report import csv, html
from replay.report.anonymize import anonymize
from replay.report.model import Report
from replay.rows import Choice, file_rows, rows
from replay.totals import About, Group, report
from tests.replay.report import sample
from tests.replay.report.test_terminal import printed

CAPTURES = Path(__file__).parents[3] / "captures"


def groups_of(capture: Path, choice: Choice) -> Iterator[Group]:
    """Give each row of the table as a group of its own."""
    connections: dict[bytes, list[pa.RecordBatch]] = defaultdict(list)
    for share in sources.plan(sources.expand([str(capture)]), 1 << 30):
        for batch in segments.read(share):
            for key in batch.column("connection").unique().to_pylist():
                connections[key].append(batch.filter(pc.equal(batch.column("connection"), key)))
    for key, batches in connections.items():
        if key:
            tables = rows(read_exchanges(iter(batches)), choice)
        else:
            details = [line.decode() for batch in batches for line in batch.column("payload").to_pylist()]
            tables = iter([file_rows(details, choice)])
        for table in tables:
            for row in table.to_pylist():
                yield {**row, "count": 1, "details": [row["detail"]] if row["detail"] else []}


@pytest.fixture(scope="module", params=sorted(CAPTURES.glob("*.pcap")), ids=lambda path: path.stem)
def real(request: pytest.FixtureRequest) -> Report:
    about = About(version="0", policy="gateway", filters=sample.empty()["filters"], price_per_gb=0.02)
    return report(groups_of(request.param, Choice(policy="gateway")), about)


def test_it_adds_up(real: Report) -> None:
    sample.assert_adds_up(real)
    assert real.keys() == Report.__annotations__.keys()
    assert real["fetch"]["actual"]["requests"] > 0


def test_every_form_of_it_renders(real: Report) -> None:
    hidden = anonymize(real)
    broker, pseudonym = (told["by_broker"][0]["broker"] for told in (real, hidden))
    assert broker.startswith("127.0.0.1:")
    for told, there, absent in ((real, broker, pseudonym), (hidden, pseudonym, broker)):
        for text in (html.render(told), csv.render(told), printed(told)):
            assert there in text
            assert absent not in text
