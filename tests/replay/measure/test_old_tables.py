"""Tables of 0.2.0 are read like tables that are measured now."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from replay.measure.old_tables import OLD, typed
from replay.measure.report import About
from replay.measure.table import EXCHANGES_RAW
from tests.replay.tables import CAPTURES, NO_FILTERS, measured, report_of, rows_of, single

OLD_TABLE = Path(__file__).parent / "old_table"


def test_the_report_of_an_old_table_is_that_of_its_capture() -> None:
    old = pq.read_table(OLD_TABLE).select(OLD.names)
    now = pa.Table.from_batches(typed(old.to_batches()), EXCHANGES_RAW)
    about = About(version="0", policy="gateway", filters=NO_FILTERS)

    assert report_of(single(rows_of(now)), about) == measured("gateway", CAPTURES / "aiokafka-gateway.pcap")
