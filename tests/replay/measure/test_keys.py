"""The counts of `measure --cooperative`, from captures to shares of keys. They contain no key."""

import io
import json
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from rich.console import Console

from proxy.features.cooperative.key_hash import murmur2, offset_hash
from proxy.features.cooperative.plan import cut
from proxy.protocol.api import ApiKey
from replay.measure.keys import KeyLog, Offsets
from replay.measure.rows import RowFilter
from replay.report import anonymize, html, terminal
from replay.report.model import Report
from tests.examples import examples, few
from tests.features.cooperative.batch import Record, batch, crc, member_of
from tests.frames import entry, fetch, fetch_response
from tests.replay.capture.crafting import cut as cut_frames
from tests.replay.capture.crafting import pcap
from tests.replay.measure.consumers import (
    HEADER_BYTES,
    Consumer,
    captured,
    counts,
    group,
    groups,
    keyed,
    measured,
    string,
)
from tests.replay.tables import CAPTURES, table

CODECS = range(5)


def some_keys(number: int, seed: int = 1) -> list[bytes]:
    """Return random keys of records. Some keys are much more frequent than others."""
    chance = Random(seed)
    return [b"customer-%d" % int(40 * chance.random() ** 3) for _ in range(number)]


def batches(keys: Sequence[bytes | None], base: int = 0, codec: int = 0, each: int = 100) -> bytes:
    return b"".join(batch(keyed(keys[at : at + each], base + at), codec) for at in range(0, len(keys), each))


@pytest.mark.parametrize("codec", CODECS)
def test_shares_are_those_of_the_keys(tmp_path: Path, codec: int) -> None:
    keys = some_keys(1000)
    consumer = Consumer(group="billing").fetch({0: batches(keys, codec=codec)})
    told = group(tmp_path, consumer)
    ((_, most),) = Counter(keys).most_common(1)

    expected = Counter(member_of(key, 4) for key in keys)
    assert counts(told) == [expected[member] for member in range(4)]
    assert (told["group"], told["client_id"], told["records"]) == ("billing", None, 1000)
    assert (told["records_without_key"], told["unread_bytes"]) == (0, 0)
    assert (told["partitions"], told["shared_partitions"]) == (1, 1)
    assert told["bytes"] == len(batches(keys)) - 10 * HEADER_BYTES
    assert told["hottest_key"] is not None
    assert told["evenness"] is not None
    assert told["hottest_key"]["exact"]
    assert told["hottest_key"]["records"] == most / 1000
    assert told["bound"] == pytest.approx(1000 / most)
    assert told["evenness"]["records"] == 4 * max(expected.values()) / 1000


def test_the_bytes_are_those_of_each_members_records(tmp_path: Path) -> None:
    large, small = b"large", b"small"
    assert member_of(large, 2) != member_of(small, 2)
    sizes = {
        key: len(batch([Record(0, key, b"v" * count)])) - HEADER_BYTES
        for key, count in ((large, 5000), (small, 3))
    }
    records = batch([Record(0, large, b"v" * 5000)]) + b"".join(
        batch([Record(at, small, b"v" * 3)]) for at in range(1, 10)
    )
    told = group(tmp_path, Consumer(group="billing").fetch({0: records}), members=2)
    whole = sizes[large] + 9 * sizes[small]

    assert told["bytes"] == whole
    assert told["spread"][member_of(large, 2)] == {"records": 0.1, "bytes": sizes[large] / whole}
    assert told["hottest_key"] == {"records": 0.9, "bytes": sizes[large] / whole, "exact": True}


@pytest.mark.parametrize("version", [4, 5, 7, 11, 12, 13, 18])
def test_every_version_of_fetch_is_read(tmp_path: Path, version: int) -> None:
    keys = some_keys(300)
    consumer = Consumer(group="billing", version=version)
    consumer.fetch({0: batches([*keys[:200]]), 7: b"", 3: batches([*keys[200:]])})
    told = group(tmp_path, consumer)

    assert (told["records"], told["partitions"]) == (300, 3)


def test_records_without_a_key_go_by_their_offsets(tmp_path: Path) -> None:
    keys: list[bytes | None] = [None] * 1000
    told = group(tmp_path, Consumer(group="billing").fetch({0: batches(keys, base=70)}))
    lanes = cut(4)

    assert counts(told) == [
        sum(low <= offset_hash(offset) <= high for offset in range(70, 1070)) for low, high in lanes
    ]
    assert told["records_without_key"] == 1000
    assert told["hottest_key"] is None
    assert told["bound"] is None


def test_an_empty_key_is_a_key(tmp_path: Path) -> None:
    told = group(tmp_path, Consumer(group="billing").fetch({0: batches([b"", None, b"", b""])}))

    assert told["records_without_key"] == 1
    assert told["hottest_key"] is not None
    assert told["hottest_key"]["records"] == 0.75


def test_members_share_partitions_as_the_gateway_plans_it(tmp_path: Path) -> None:
    keys = [some_keys(400, seed) for seed in range(3)]
    consumer = Consumer(group="billing").fetch({at: batches(own) for at, own in enumerate(keys)})
    told = group(tmp_path, consumer, members=7)

    # Of seven members three share partition 0, and two each of the others.
    expected: Counter[int] = Counter()
    for at, (own, sharing) in enumerate(zip(keys, (3, 2, 2), strict=True)):
        expected.update(at + 3 * member_of(key, sharing) for key in own)
    assert counts(told) == [expected[member] for member in range(7)]


def test_what_has_a_partition_for_each_member_is_not_shared(tmp_path: Path) -> None:
    consumer = Consumer(group="billing")
    consumer.fetch({at: batches(some_keys(10 * at)) if at else b"" for at in range(5)})
    told = group(tmp_path, consumer, members=3)

    # As RangeAssignor: 0 and 1, 2 and 3, 4.
    assert counts(told) == [10, 50, 40]
    assert (told["partitions"], told["shared_partitions"]) == (5, 0)


def test_what_a_connection_gets_again_counts_once(tmp_path: Path) -> None:
    records = [batches(some_keys(100), base=base) for base in (0, 100, 200, 300)]
    consumer = Consumer(group="billing").fetch({0: records[2] + records[3]})
    for again in (records[3], records[0] + records[1], records[1] + records[2], b"".join(records)):
        consumer.fetch({0: again})

    assert group(tmp_path, consumer)["records"] == 400


def test_what_two_members_get_counts_for_the_group(tmp_path: Path) -> None:
    one = Consumer(group="billing", client_id="one", port=1001).fetch({0: batches(some_keys(100))})
    two = Consumer(group="billing", client_id="two", port=1002).fetch({1: batches(some_keys(50))})
    told = group(tmp_path, one, two)

    assert (told["group"], told["records"], told["partitions"]) == ("billing", 150, 2)


def damaged(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def with_codec(data: bytes, codec: int) -> bytes:
    changed = data[:22] + bytes([codec]) + data[23:]
    return changed[:17] + crc(changed) + changed[21:]


WHOLE = batches(some_keys(20), each=20)
ZEROS = batch([Record(0, b"k", bytes(8 << 20))], 1)


@pytest.mark.parametrize(
    ("records", "counted", "unread"),
    [
        pytest.param(damaged(WHOLE, 70) + batches([b"k"], 20), 1, len(WHOLE), id="CRC"),
        pytest.param(damaged(WHOLE, 16) + batches([b"k"], 20), 0, len(WHOLE) + 70, id="magic"),
        pytest.param(with_codec(WHOLE, 6), 0, len(WHOLE), id="codec"),
        pytest.param(ZEROS, 0, len(ZEROS), id="expands to too much"),
        pytest.param(WHOLE + batches([b"k"], 20)[:-1], 20, 0, id="cut at the end"),
        pytest.param(WHOLE + b"\xff" * 70, 20, 70, id="not a batch"),
        pytest.param(b"\xff" * 3, 0, 0, id="no header"),
    ],
)
def test_what_can_not_be_read_is_told(tmp_path: Path, records: bytes, counted: int, unread: int) -> None:
    consumer = Consumer(group="billing").fetch({0: batches([b"k"] * 5), 1: records})
    told = group(tmp_path, consumer)
    one = len(batches([b"k"], 20))

    assert told["records"] == 5 + counted
    assert told["unread_bytes"] == (unread if unread != len(WHOLE) + 70 else len(WHOLE) + one)


@given(data=st.binary(max_size=300), at=st.integers(0, 400), value=st.integers(0, 255))
@examples(100, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_hostile_batches_raise_nothing(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, at: int, value: int
) -> None:
    harmed = bytearray(WHOLE)
    harmed[at % len(WHOLE)] = value
    consumer = Consumer(group="billing").fetch({0: bytes(harmed), 1: WHOLE + data, 2: data})
    told = group(tmp_path_factory.mktemp("made"), consumer)

    assert told["records"] >= 20


def test_control_batches_and_empty_ones_do_not_count(tmp_path: Path) -> None:
    control = bytearray(batch([Record(0, b"\0\0\0\1", b"marker")]))
    control[22] |= 0x30
    control[17:21] = crc(bytes(control))
    empty = bytearray(batch([Record(1, b"k")])[:HEADER_BYTES])
    empty[8:12], empty[57:61] = (HEADER_BYTES - 12).to_bytes(4), bytes(4)
    empty[17:21] = crc(bytes(empty))
    consumer = Consumer(group="billing").fetch({0: bytes(control) + bytes(empty) + batches([b"k"], 2)})
    told = group(tmp_path, consumer)

    assert (told["records"], told["unread_bytes"]) == (1, 0)


def test_a_response_that_is_cut_by_the_snap_length_is_told(tmp_path: Path) -> None:
    consumer = Consumer(group="billing").fetch({0: batches(some_keys(500))}).fetch({0: b""})
    file = tmp_path / "cut.pcap"
    file.write_bytes(pcap(cut_frames(consumer.frames, 300), link=101))
    (told,) = measured(file, 4)["cooperative"]["groups"]

    assert (told["records"], told["spread"], told["evenness"]) == (0, [], None)
    assert told["unread_bytes"] > 10_000


def test_fetches_that_can_not_be_read_are_told(tmp_path: Path) -> None:
    old = bytes.fromhex("ffffffff000001f4000000010000000100066f72646572730000000100000000") + bytes(12)
    told = group(tmp_path, Consumer(group="billing").fetch({0: WHOLE}).ask(ApiKey.FETCH, 2, old))

    assert (told["records"], told["unread_bytes"]) == (20, 14)


def test_a_replica_is_no_consumer(tmp_path: Path) -> None:
    assert not groups(tmp_path, Consumer().fetch({0: WHOLE}, replica_id=3))


@pytest.mark.parametrize(
    ("api_key", "version", "body"),
    [
        (ApiKey.OFFSET_COMMIT, 2, string("billing") + bytes(20)),
        (ApiKey.OFFSET_COMMIT, 8, b"\0\x08billing" + bytes(20)),
        (ApiKey.OFFSET_FETCH, 5, string("billing") + bytes(4)),
        (ApiKey.OFFSET_FETCH, 7, b"\0\x08billing" + bytes(4)),
        (ApiKey.OFFSET_FETCH, 8, b"\0\x02\x08billing" + bytes(4)),
        (ApiKey.JOIN_GROUP, 5, string("billing") + bytes(4)),
        (ApiKey.JOIN_GROUP, 9, b"\0\x08billing" + bytes(4)),
        (ApiKey.SYNC_GROUP, 3, string("billing") + bytes(4)),
        (ApiKey.HEARTBEAT, 4, b"\0\x08billing" + bytes(4)),
        (ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, b"\0\x08billing" + bytes(4)),
    ],
)
def test_a_group_is_named_by_its_members_requests(
    tmp_path: Path, api_key: int, version: int, body: bytes
) -> None:
    """The group of a client is found by its group requests, which are on another connection than its fetches.

    Most clients use a separate connection for their group.
    """
    other = Consumer(port=1001).ask(api_key, version, body)
    told = group(tmp_path, other, Consumer(port=1002).fetch({0: WHOLE}))

    assert (told["group"], told["client_id"]) == ("billing", None)


def test_without_one_known_group_the_client_id_counts(tmp_path: Path) -> None:
    both = b"\0\x03\x08billing\0\x08archive\0"
    consumers = [
        Consumer(client_id="no group", port=1001).fetch({0: WHOLE}),
        Consumer(client_id="two groups", port=1002, group="a").fetch({0: WHOLE + batches([b"k"], 20)}),
        Consumer(client_id="two groups", port=1003, group="b"),
        Consumer(client_id="asks for two", port=1004).ask(ApiKey.OFFSET_FETCH, 8, both).fetch({0: b""}),
        Consumer(client_id="cut", port=1005)
        .ask(ApiKey.HEARTBEAT, 3, b"\0\x70bil")
        .fetch({0: batches([b"k"])}),
    ]
    told = groups(tmp_path, *consumers)

    assert [(row["group"], row["client_id"]) for row in told] == [
        (None, "two groups"),
        (None, "no group"),
        (None, "cut"),
    ]


def test_chosen_topics_and_clients_alone_are_told(tmp_path: Path) -> None:
    one = Consumer(client_id="one", port=1001, group="billing").fetch({0: WHOLE})
    one.fetch({0: batches([b"k"])}, topic="audit")
    two = Consumer(client_id="two", port=1002, group="archive").fetch({0: WHOLE})

    by_topic = groups(tmp_path, one, two, topics=["audit"])
    assert [(row["group"], row["records"], row["partitions"]) for row in by_topic] == [("billing", 1, 1)]
    by_client = groups(tmp_path, one, two, clients=["two"])
    assert [(row["group"], row["records"]) for row in by_client] == [("archive", 20)]


def test_records_of_a_topic_count_also_if_the_fetch_does_not_list_it(tmp_path: Path) -> None:
    """An incremental fetch lists no partition of the session, and its response has records of some."""
    consumer = Consumer(client_id="one", group="billing").fetch({0: WHOLE})
    consumer.say(fetch(11, session=(7, 1), correlation=9, client="one"), broker=False)
    records = entry(0, 1 << 40, records=batches([b"k"]))
    consumer.say(fetch_response(11, ("audit", [records]), correlation_id=9, session_id=7), broker=True)

    (row,) = groups(tmp_path, consumer, topics=["audit"])
    assert (row["group"], row["records"], row["partitions"]) == ("billing", 1, 1)


def without(report: Report) -> dict[str, Any]:
    left: dict[str, Any] = {**report}
    del left["cooperative"]
    return left


@pytest.mark.parametrize(
    "capture",
    few(sorted(CAPTURES.glob("*.pcap")), *CAPTURES.glob("*-rebalance.pcap")),
    ids=lambda path: path.stem,
)
def test_nothing_else_of_a_report_changes(capture: Path) -> None:
    plain = measured(capture, 0)
    told = measured(capture, 3)

    assert "cooperative" not in plain
    assert without(told) == plain


def test_without_the_option_the_table_has_no_row_for_it() -> None:
    capture = CAPTURES / "librdkafka-100p.pcap"
    kinds = [
        Counter(table(RowFilter(members=members), capture).column("row").to_pylist()) for members in (0, 3)
    ]

    assert kinds[1] == kinds[0] + Counter(keys=kinds[0]["connection"])


def test_a_real_capture() -> None:
    """The records of `java-100p` have no keys, and all are in the same one of its 100 partitions.

    So one of the 64 members gets all records.
    """
    (told,) = measured(CAPTURES / "java-100p.pcap", 128 // 2)["cooperative"]["groups"]

    assert told["group"] is not None
    assert told["group"].startswith("g-")
    assert told["unread_bytes"] == 0
    assert (told["partitions"], told["shared_partitions"]) == (100, 0)
    assert told["records"] == told["records_without_key"] > 100
    assert told["evenness"] == {"records": 64.0, "bytes": 64.0}


KEYS = st.lists(st.binary(max_size=40).map(b"a customer's key: ".__add__), min_size=1, max_size=30)


def shown(report: Report) -> list[bytes]:
    """Return the report in each of its forms."""
    out = io.StringIO()
    Console(file=out, width=200).print(terminal.render(report))
    return [form.encode() for form in (json.dumps(report), html.render(report), out.getvalue())]


@given(keys=KEYS, codec=st.sampled_from(CODECS))
@examples(20)
def test_no_form_of_a_report_has_a_key_or_its_hash(
    tmp_path_factory: pytest.TempPathFactory, keys: list[bytes], codec: int
) -> None:
    consumer = Consumer(group="billing").fetch({0: batches(keys, codec=codec)})
    report = measured(captured(tmp_path_factory.mktemp("made"), consumer), 5)

    assert report["cooperative"]["groups"][0]["records"] == len(keys)
    for form in [*shown(report), *shown(anonymize.anonymize(report))]:
        for key in keys:
            hashed = murmur2(key)
            for text in (key, key.hex().encode(), b"%d" % hashed, b"%08x" % hashed):
                assert text not in form or len(text) < 8, "a short number may be a count"


def test_the_terminal_and_the_page_tell_it(tmp_path: Path) -> None:
    many = [b"%d" % number for number in range(3000)]
    consumers = [
        Consumer(group="<b>billing</b>", port=1).fetch({0: batches([b"k"] * 3 + [b"l"]), 1: b""}),
        Consumer(client_id="unknown", port=2).fetch({0: batches([None] * 4) + b"\xff" * 70}),
        Consumer(group="archive", client_id="many", port=3).fetch({0: batches(many)}),
    ]
    report = measured(captured(tmp_path, *consumers), 3)
    page, text = (form.decode() for form in shown(report)[1:])

    (line,) = (line.split() for line in text.splitlines() if "billing" in line)
    assert line == ["<b>billing</b>", "4", "2", "of", "2", "2.25", "75.0", "%", "1.3", "x"]
    assert "unknown (client id)" in text
    assert "&lt;b&gt;billing&lt;/b&gt;" in page
    assert "<b>billing" not in page
    for form in (page.replace("&lt;", "<").replace("\N{NO-BREAK SPACE}", " "), text):
        assert "Keys over 3 members" in form
        assert "1 client id: no group or several in captured requests" in " ".join(form.split())
        assert "Not read: 70 B of batches" in form
        assert "has <= this share" in " ".join(form.split())
        assert re.search(r"<=0\.\d %", form)


def test_long_lists_of_groups_are_cut(tmp_path: Path) -> None:
    consumers = [
        Consumer(client_id=f"client-{number}", port=number).fetch({0: batches([b"k"])})
        for number in range(1, 54)
    ]
    page, text = (form.decode() for form in shown(measured(captured(tmp_path, *consumers), 3))[1:])

    assert "And 3 more groups; the JSON has all." in page
    assert "And 43 more groups; the JSON has all." in " ".join(text.split())


def test_names_of_groups_become_pseudonyms(tmp_path: Path) -> None:
    consumers = [
        Consumer(group="billing", client_id="zebra", port=1001).fetch({0: WHOLE}),
        Consumer(client_id="ocelot", port=1002).fetch({0: WHOLE}),
    ]
    report = anonymize.anonymize(measured(captured(tmp_path, *consumers), 4))
    named, other = report["cooperative"]["groups"]

    assert not any(name in form for form in shown(report) for name in (b"billing", b"zebra", b"ocelot"))
    assert (named["group"] or "").startswith("group-")
    assert (other["client_id"] or "").startswith("client-")
    assert named["client_id"] is other["group"] is None


@given(pairs=st.lists(st.tuples(st.integers(0, 200), st.integers(1, 9)), max_size=60))
@examples(200)
def test_the_offsets_that_were_added_are_known(pairs: list[tuple[int, int]]) -> None:
    offsets = Offsets()
    added: set[int] = set()
    for first, size in pairs:
        assert offsets.has(first, first + size) == ({*range(first, first + size)} <= added)
        offsets.add(first, first + size)
        added |= {*range(first, first + size)}
    assert repr(offsets).startswith("<Offsets [")


def test_the_offsets_of_a_compacted_log_take_little_memory() -> None:
    offsets = Offsets()
    for at in range(0, 100_000, 10):
        offsets.add(at, at + 1)

    assert len(repr(offsets)) < 10_000
    assert offsets.has(0, 1)
    assert offsets.has(99_990, 99_991)
    assert not offsets.has(99_991, 99_992)


def test_a_key_log_says_what_it_has() -> None:
    assert repr(KeyLog(3)) == "<KeyLog topics=0 groups=[]>"
