"""Tests that the soak test finds lost, repeated and wrong records among the received records."""

import hashlib
import random
from typing import Any, cast

from tools.soak.chaos import begins_late, reads_on
from tools.soak.disturbances import Disturbances
from tools.soak.producers import SoakTopics
from tools.soak.records import (
    ProducedRecords,
    ReceivedRecords,
    RecordLog,
    RecordPlace,
    SoakRecord,
    Written,
    digest_of,
    generation_of,
)

STEADY = RecordPlace("steady", 0, 3)
HEADERS = [("generation", b"0"), ("empty", b""), ("null", None)]


def _record(number: int, **other: Any) -> SoakRecord:
    fields: dict[str, Any] = {
        "timestamp": 1000 + number,
        "key": b"k",
        "value": b"v%d" % number,
        "headers": HEADERS,
    } | other
    return SoakRecord(**fields)


def _line(record: SoakRecord, offset: int, partition: int = 3) -> dict[str, Any]:
    """Return the line that a consumer program prints for a record."""
    value = f"{len(record.value)}:{hashlib.sha256(record.value).hexdigest()}"
    return {
        "topic": "steady",
        "partition": partition,
        "offset": offset,
        "timestamp": record.timestamp,
        "key": record.key.hex() if record.key is not None else None,
        "value": value,
        "headers": [[name, None if content is None else content.hex()] for name, content in record.headers],
    }


def test_a_record_and_its_line_have_one_digest_and_each_field_counts() -> None:
    record = _record(1)
    assert digest_of(_line(record, 0)) == record.digest()
    assert generation_of(_line(record, 0)) == 0
    others = [
        _record(1, timestamp=5),
        _record(1, key=None),
        _record(1, key=b""),
        _record(1, value=b"v"),
        _record(1, headers=HEADERS[:2]),
        _record(1, headers=[*HEADERS[:2], ("null", b"")]),
    ]
    assert len({record.digest(), *(other.digest() for other in others)}) == 7


def test_what_was_lost_twice_in_the_log_or_invented_is_a_problem() -> None:
    produced, log = ProducedRecords(), RecordLog()
    digests = [_record(number).digest() for number in range(4)]
    produced.sent.update(digests)
    for offset, digest in enumerate(digests[:3]):
        produced.delivered(STEADY, offset, digest)
        log.put(STEADY, offset, digest)
    produced.delivered(STEADY, None, digests[3])
    assert produced.problems(log, {}, {}) == [
        "1 records that were acknowledged without an offset are not in the log"
    ]
    log.put(STEADY, 3, digests[3])
    assert produced.problems(log, {}, {}) == []
    log.put(STEADY, 4, digests[3])
    log.put(STEADY, 5, 99)
    log.put(STEADY, 1, digests[0])
    assert produced.problems(log, {}, {}) == [
        "1 acknowledged records are not in the log: steady-3 at 1",
        "2 records are in the log more than once: steady-3 at 0, steady-3 at 1",
        "1 records are in the log that nobody sent",
    ]


def test_only_a_record_that_its_producer_wrote_under_another_epoch_may_be_twice() -> None:
    produced, log = ProducedRecords(), RecordLog()
    digest = _record(1).digest()
    produced.sent.add(digest)
    for offset in (3, 7):
        log.put(STEADY, offset, digest)
    twice = ["1 records are in the log more than once: steady-3 at 3, steady-3 at 7"]
    first, again = (STEADY, 3), (STEADY, 7)
    newer = {first: Written(5, 0, 9), again: Written(5, 1, 0)}
    assert produced.problems(log, {}, newer) == []
    assert produced.problems(log, {}, newer | {again: Written(5, 0, 10)}) == twice, "of the same epoch"
    assert produced.problems(log, {}, newer | {again: Written(6, 1, 0)}) == twice, "of another producer"
    assert produced.problems(log, {}, {first: Written(5, 0, 9)}) == twice, "it is not known"
    without = {first: Written(-1, -1, -1), again: Written(-1, -2, -1)}
    assert produced.problems(log, {}, without) == twice, "it was not idempotent"
    assert produced.problems(log, {}, newer | {again: Written(-1, -1, -1)}) == twice, "one was not"
    elsewhere = RecordLog()
    other = RecordPlace(STEADY.topic, 0, 4)
    elsewhere.put(STEADY, 3, digest)
    elsewhere.put(other, 7, digest)
    assert produced.problems(elsewhere, {}, {first: Written(5, 0, 9), (other, 7): Written(5, 1, 0)}) != []
    log.put(STEADY, 8, digest)
    third = {(STEADY, 8): Written(5, 1, 1)}
    assert produced.problems(log, {}, newer | third) != [], "a third one, in an epoch that has it"
    assert produced.problems(log, {}, newer | {(STEADY, 8): Written(5, 2, 0)}) == []


def test_records_of_a_deleted_generation_need_not_be_in_the_log() -> None:
    produced, log = ProducedRecords(), RecordLog()
    digest = _record(1).digest()
    produced.sent.add(digest)
    produced.delivered(RecordPlace("churn", 0, 1), 0, digest)
    assert produced.problems(log, {"churn": 1}, {}) == [], "nothing was produced to it since"
    later = _record(2).digest()
    produced.sent.add(later)
    log.put(RecordPlace("churn", 1, 1), 0, later)
    assert produced.problems(log, {"churn": 1}, {}) == []
    assert produced.problems(log, {"churn": 0}, {}) == [
        "1 acknowledged records are not in the log: churn-1 at 0"
    ]


def test_a_record_may_come_again_after_a_rebalance_only() -> None:
    sent = {_record(number).digest() for number in range(3)}
    received = ReceivedRecords(sent)
    for offset in range(3):
        received.record(0, _line(_record(offset), offset))
    received.rebalanced(0)
    received.record(0, _line(_record(1), 1))
    assert (received.repeated, received.again) == (1, 0)
    received.record(0, _line(_record(1), 1))
    assert (received.repeated, received.again) == (2, 1)


def test_changed_and_invented_records_are_told_with_their_place() -> None:
    received = ReceivedRecords({_record(number).digest() for number in range(2)})
    received.record(0, _line(_record(0), 0))
    received.record(0, _line(_record(1), 0))
    received.record(0, _line(_record(7), 1))
    assert received.changed == [(STEADY, 0)]
    assert received.invented == [(STEADY, 1)]
    assert received.log.count == 1


def test_only_beginnings_of_what_was_made_again_count_as_such() -> None:
    first, again = RecordPlace("churn", 0, 1), RecordPlace("churn", 1, 1)
    log = RecordLog()
    for offset in (5, 6, 9):
        log.put(again, offset, 1)
    assert begins_late([(again, 0), (again, 4)], log)
    assert begins_late([(RecordPlace("churn", 2, 1), 0)], log), "nothing came of it"
    assert not begins_late([(again, 0), (again, 7)], log)
    assert not begins_late([(first, 0)], log)


def test_a_consumer_that_reads_on_where_it_was_in_the_topic_before_is_known() -> None:
    before, again = RecordPlace("churn", 1, 0), RecordPlace("churn", 2, 0)
    log = RecordLog()
    for place, offset in ((before, 3), (before, 4), (again, 5), (again, 6)):
        log.put(place, offset, 1)
    assert reads_on([(again, 0), (again, 4)], log)
    assert not reads_on([(again, 0), (again, 7)], log), "it lacks what comes later, too"
    log.put(before, 5, 1)
    assert not reads_on([(again, 0)], log), "it was elsewhere before"
    assert not reads_on([(before, 0)], log)


class _Never:
    """A stand-in for an object that a disturbance must not use: each use fails the test."""

    def __getattr__(self, name: str) -> object:
        raise AssertionError(f"{name} was used")


def test_a_topic_is_not_deleted_at_the_end_of_a_run_while_somebody_is_behind() -> None:
    topics, never = SoakTopics("steady", "churn"), cast("Any", _Never())
    disturbances = Disturbances(never, never, never, topics, 0, 5.0, lambda: ["slow"], frozenset())
    disturbances.end()
    disturbances.broker_kinds["topic made again"](random.Random(0))
    assert (topics.generation, disturbances.late) == (0, set())
    assert topics.churn_open
