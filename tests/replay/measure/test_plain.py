"""With FETCHGATE_REPLAY=plain a report has the same bytes, also from a table. It may only take longer."""

import gzip
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, get_args
from unittest.mock import patch

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, assume, given
from hypothesis import strategies as st

from proxy.__main__ import main
from replay.capture.files.counts import FileCounts
from replay.capture.files.sources import expand
from replay.capture.files.spans import SpanReader
from replay.capture.kafka.exchanges import Event
from replay.capture.packets import segments
from replay.capture.packets.tcp import EVERYTHING, Filter
from replay.measure import command, here, steps
from replay.measure.collected import Collected, collect
from replay.measure.floors import NO_FLOORS, Floors
from replay.measure.here import measure_here
from replay.measure.racks import NO_RACKS, broker_rack, client_rack, racks
from replay.measure.rows import RowFilter, groups, rows
from replay.measure.work import Work
from replay.simulate.captured_response import CapturedResponse
from replay.simulate.engine import Policy
from tests.examples import examples
from tests.replay.capture import crafting, encrypting
from tests.replay.capture.crafting import Frame, relink
from tests.replay.capture.encrypting import Ends, begun, encrypted, ends
from tests.replay.measure.test_order import MS, frames_of, late, two_clocks, written
from tests.replay.measure.traffic import Plan, Step, plans, traffic
from tests.replay.tables import reported, table
from tools.bench.captures import Shape, make

EXAMPLES = int(os.environ.get("LAW_EXAMPLES", "20"))


@cache
def idle(folder: Path) -> list[Frame]:
    """Return the packets of two connections, most of whose fetches only rotate their list."""
    make(folder / "idle.pcap", 500_000, Shape(filled=0, connections=2))
    return crafting.take_apart((folder / "idle.pcap").read_bytes())


@cache
def busy(folder: Path) -> list[Frame]:
    """Return the packets of two connections whose fetches all bring records of two partitions."""
    make(folder / "busy.pcap", 500_000, Shape(connections=2, records=1_000))
    return crafting.take_apart((folder / "busy.pcap").read_bytes())


@cache
def mixed(folder: Path) -> list[Frame]:
    """Return the packets of two connections, whose fetches list three topics and bring some records."""
    make(
        folder / "topics.pcap",
        500_000,
        Shape(connections=2, partitions=30, topics=3, filled=4, records=500),
    )
    return crafting.take_apart((folder / "topics.pcap").read_bytes())


@cache
def tls(folder: Path) -> Ends:
    return ends(folder / "keys")


@dataclass(frozen=True, kw_only=True)
class Form:
    """How packets become files."""

    link: str
    forms: list[str]
    """The form of each file."""
    turns: bool
    """Whether the packets go to the files in turn. Otherwise each file has consecutive packets."""

    def write(self, folder: Path, frames: Sequence[Frame]) -> list[Path]:
        """Write the files into a new folder."""
        own = Path(mkdtemp(dir=folder))
        count = len(self.forms)
        each = -(-len(frames) // count)
        for number, form in enumerate(self.forms):
            part = frames[number::count] if self.turns else frames[number * each : (number + 1) * each]
            (own / f"{number}.pcap").write_bytes(FORMS[form](*relink(part, self.link)))
        return [own]


FORMS: dict[str, Callable[[Sequence[Frame], int], bytes]] = {
    "pcap": crafting.pcap,
    "nano": partial(crafting.pcap, nano=True),
    "pcapng": crafting.pcapng,
    "gzip": lambda *given: gzip.compress(crafting.pcap(*given), 1),
    "zstd": lambda *given: pa.compress(crafting.pcap(*given), "zstd", asbytes=True),
}


def rows_of_all(work: Work) -> pa.Table:
    """Return the table of captures that `--parquet` would write, made without Spark."""
    choice = replace(work.choice, errors=True, members=0)
    found = here.references(work)
    assert found is not None
    with SpanReader(work.sources) as reader:
        batches = segments.with_payload(here.by_connection(found, segments.REFERENCES, "order"), reader)
        files: list[FileCounts] = []
        events = steps.events(work.keep.ports, choice, work.secrets, batches, files)
        # The row of a fetch may come after rows of later places, and tables are read by place.
        made = pa.Table.from_batches(rows(events, choice, files))
    return made.sort_by([("connection", "ascending"), ("place", "ascending")])


def shown(found: Collected | None, choice: RowFilter) -> str:
    assert found is not None
    return json.dumps(reported(found, choice))


def from_table(stored: pa.Table, work: Work) -> str:
    """Return the report of a table, which is measured again with the options of some work."""
    choice, files = replace(work.choice, members=0), list[FileCounts]()

    def events(files: list[FileCounts]) -> Iterator[Event]:
        again = here.by_connection(stored.to_batches(), stored.schema, "place")
        return steps.events_again(EVERYTHING, choice, again, files)

    if work.topics:
        choice = replace(choice, topics=work.topics | steps.topic_ids(work.topics, events([])))
    return shown(collect(groups(events(files), choice, files)), choice)


def plain(work: Work) -> Work:
    return replace(work, choice=replace(work.choice, plain=True))


def assert_same(work: Work) -> None:
    """Check that the fast and the plain way give the same report, from captures and from their table."""
    found = shown(measure_here(work), work.choice)
    stored = rows_of_all(work)
    with patch.object(CapturedResponse, "lists", return_value=False):  # nothing is looked up together
        assert shown(measure_here(plain(work)), work.choice) == found
        assert rows_of_all(plain(work)) == stored
        expected = from_table(stored, plain(work))
    assert from_table(stored, work) == expected
    if not work.choice.members:
        assert expected == found


def disturbed(frames: Sequence[Frame], changes: dict[str, Any], seed: int) -> list[Frame]:
    frames = crafting.wrap(frames, changes["wrapped"])
    frames = crafting.swap(crafting.lose(frames, changes["lost"], seed), changes["swapped"], seed)
    frames = two_clocks(crafting.repeat(frames, changes["again"], seed), changes["apart"] * MS)
    frames = late(frames, changes["late"], seed)
    return crafting.cut(frames, changes["cut"]) if changes["cut"] else frames


CHANGES = {
    "lost": st.sampled_from([0, 0, 0.005]),
    "again": st.sampled_from([0, 0, 0.02]),
    "swapped": st.sampled_from([0, 0, 0.02]),
    "cut": st.sampled_from([0, 0, 1400, 90]),
    "apart": st.sampled_from([0, 0, 3, -40]),
    "late": st.sampled_from([0, 0, 5 * MS]),
    "wrapped": st.sampled_from([0, 0xFFFF_FF00]),
}
BOUNDS = {
    "replay.capture.packets.segments.MAX_BATCH": st.sampled_from([4 << 20, 4 << 20, 3_000]),
    "replay.capture.packets.segments.MAX_RUN": st.sampled_from([1 << 20, 1 << 20, 2_000]),
    "replay.capture.files.reading.SIZE": st.sampled_from([16 << 20, 20_000]),
    "replay.measure.here._ROWS": st.sampled_from([10_000, 10_000, 50, 7]),
    "replay.measure.table.RowWriter._ROWS": st.sampled_from([4096, 4096, 5]),
}
"""The sizes at which batches end, by constant. Runs of fetches continue over these ends."""
OPTIONS = {
    "policy": st.sampled_from(get_args(Policy)),
    "members": st.sampled_from([0, 0, 3]),
    "clients": st.sampled_from([(), (), ("client-0",), ("nobody",)]).map(frozenset),
    "max_fetch_bytes": st.sampled_from([0, 0, 100]),
    "floors": st.sampled_from([NO_FLOORS, Floors(min_bytes=300), Floors(min_bytes=9_000, max_wait_ms=2_000)]),
    "racks": st.sampled_from(
        [
            NO_RACKS,
            racks([], [client_rack("10.0.0.0/8=R1"), client_rack("10.0.0.1=R0")]),
            racks([broker_rack("1=R0"), broker_rack("10.0.0.3=R1")], [client_rack("10.0.0.1=R0")]),
        ]
    ),
}
KEPT = st.sampled_from(
    [
        *[EVERYTHING] * 3,
        Filter(ports=frozenset({9092})),
        Filter(hosts=frozenset({"10.0.0.2"})),
        Filter(hosts=frozenset({"127.0.0.0/8"}), ports=frozenset({9092, 50_000})),
    ]
)
CHOSEN_TOPICS = st.sampled_from([(), (), ("orders",), ("audit", "events"), ("none",)]).map(frozenset)
WRITTEN = st.builds(
    Form,
    link=st.sampled_from(["ethernet", "raw", "sll2", "vlan"]),
    forms=st.lists(st.sampled_from([*FORMS]), min_size=1, max_size=3),
    turns=st.booleans(),
)


@examples(EXAMPLES, suppress_health_check=[*HealthCheck])
@given(
    consumers=plans,
    encrypts=st.sampled_from([False, False, False, True]),
    changes=st.fixed_dictionaries(CHANGES),
    bounds=st.fixed_dictionaries(BOUNDS),
    options=st.fixed_dictionaries(OPTIONS),
    keep=KEPT,
    topics=CHOSEN_TOPICS,
    form=WRITTEN,
    seed=st.integers(0, 1 << 30),
)
def test_any_traffic_gives_the_same_report(
    *,
    consumers: list[Plan],
    encrypts: bool,
    changes: dict[str, Any],
    bounds: dict[str, int],
    options: dict[str, Any],
    keep: Filter,
    topics: frozenset[str],
    form: Form,
    seed: int,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.getbasetemp()
    both = tls(folder) if encrypts else None
    packets = traffic(consumers)
    frames = encrypting.frames(packets if both is None else encrypted(begun(packets), both))
    assume(frames)  # what is encrypted needs the beginning
    with ExitStack() as stack:
        for name, value in bounds.items():
            stack.enter_context(patch(name, value))
        assert_same(
            Work(
                keep=keep,
                choice=RowFilter(**options),
                topics=topics,
                sources=tuple(expand(map(str, form.write(folder, disturbed(frames, changes, seed))))),
                secrets=None if both is None else both.secrets(),
            )
        )


@examples(EXAMPLES // 2, suppress_health_check=[*HealthCheck])
@given(
    name=st.sampled_from(["idle", "busy", "topics", "aiokafka-gateway", "librdkafka-midstream"]),
    policy=st.sampled_from(get_args(Policy)),
    changes=st.fixed_dictionaries(CHANGES),
    seed=st.integers(0, 1 << 30),
)
def test_any_capture_gives_the_same_report(
    *,
    name: str,
    policy: Policy,
    changes: dict[str, Any],
    seed: int,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.getbasetemp()
    made = {"idle": idle, "busy": busy, "topics": mixed}.get(name)
    frames = frames_of(name) if made is None else made(folder)
    path = written(Path(mkdtemp(dir=folder)), disturbed(frames, changes, seed))
    sources = tuple(expand([str(path)]))
    assert_same(Work(keep=EVERYTHING, choice=RowFilter(policy=policy), topics=frozenset(), sources=sources))


@pytest.mark.parametrize("policy", get_args(Policy))
def test_the_gateways_checks_of_an_idle_session_are_predicted(tmp_path: Path, policy: Policy) -> None:
    """The core checks a session every 300 s with a full fetch. No fast way may leave these fetches out."""
    steps = [Step("idle", 1, 0, 1_000 * MS)] * 1_000
    plan = Plan(version=14, topics=1, partitions=12, size=1448, begins=True, steps=steps)
    path = written(tmp_path, encrypting.frames(traffic([plan])))
    sources = tuple(expand([str(path)]))
    work = Work(keep=EVERYTHING, choice=RowFilter(policy=policy), topics=frozenset(), sources=sources)

    assert_same(work)
    saved = json.loads(shown(measure_here(work), work.choice))["policies"]
    # Each check is a fetch of 466 bytes and its response of 483.
    assert saved["always"]["saved_bytes"] - saved["gateway"]["saved_bytes"] == 3 * (466 + 483)


@pytest.mark.parametrize("choice", [RowFilter(), RowFilter(members=3)])
def test_frames_and_records_by_key_are_the_same(
    choice: RowFilter, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.getbasetemp()
    captures = written(folder, idle(folder)), crafting.CAPTURES / "librdkafka-midstream.pcap"
    assert table(choice, *captures) == table(replace(choice, plain=True), *captures)


@pytest.mark.parametrize(("value", "plain"), [("plain", True), ("", False)])
def test_the_environment_chooses_the_plain_way(
    monkeypatch: pytest.MonkeyPatch, value: str, plain: bool
) -> None:
    seen: list[bool] = []

    def stop(work: Work, _: object) -> Collected:
        seen.append(work.choice.plain)
        raise KeyboardInterrupt

    monkeypatch.setenv("FETCHGATE_REPLAY", value)
    monkeypatch.setattr(command, "_here", stop)
    main(["replay", "measure", str(crafting.CAPTURES / "aiokafka-gateway.pcap"), "--json"])
    assert seen == [plain]
