"""If a partition has a new leader, the gateway retries the fetch there (`--follow-leader`).

The tests play the connections step by step.
"""

import gc
from collections import Counter
from typing import Final
from unittest.mock import Mock, patch

import pytest

from proxy.core.asking.asker import AGAIN_SECONDS, Hold
from proxy.core.events import FetchKind, NotFollowed
from proxy.features.leaders.fetch_repeat import HOLD_SECONDS, WAIT_MS, FetchRepeat
from proxy.protocol.api import ApiKey
from tests.features.leaders.following import (
    NEW,
    OLD,
    OURS,
    TOPIC,
    Epochs,
    Two,
    epochs_request,
    epochs_response,
    metadata_request,
    metadata_response,
    play,
)
from tests.frames import Want, entry, fetch_response
from tests.playbook import request, response

RECORDS: Final = b"r" * 70


@pytest.mark.parametrize("version", [9, 11, 12, 13, 15])
def test_a_client_without_kip_951_gets_the_records_of_the_new_leader(version: int) -> None:
    two = Two(version)
    two.fails((TOPIC, 0, 40)).asks_leaders().leaders({0: (NEW, 5)})
    two.new.to_broker(two.repeated((TOPIC, 0, 40)))
    data = entry(0, 50, records=RECORDS)
    two.new.broker(fetch_response(version, (TOPIC, [data]), correlation_id=OURS)).nothing()
    two.old.to_client(fetch_response(version, (TOPIC, [data]), correlation_id=5))
    assert two.counted() == ({"fetch": 1}, {})


def test_partitions_of_several_leaders_are_asked_of_each() -> None:
    two = Two()
    third = play(two.siblings, 3)
    wants: list[Want] = [(TOPIC, 0), (TOPIC, 1), (TOPIC, 2)]
    two.fails(*wants, errors=(6, 6, 6)).asks_leaders().leaders({0: (NEW, 5), 1: (3, 5), 2: (NEW, 8)})
    two.new.to_broker(two.repeated(wants[0], wants[2]))
    third.to_broker(two.repeated(wants[1]))
    third.broker(fetch_response(11, (TOPIC, [entry(1, 4)]), correlation_id=OURS))
    two.old.nothing()
    two.new.broker(fetch_response(11, (TOPIC, [entry(0, 3), entry(2, error=1)]), correlation_id=OURS))
    given = [entry(0, 3), entry(1, 4), entry(2, error=6)]
    two.old.to_client(fetch_response(11, (TOPIC, given), correlation_id=5))
    assert two.counted() == ({"fetch": 2}, {NotFollowed.REFUSED: 1})


def test_a_leader_that_was_followed_is_asked_at_once_the_next_time() -> None:
    two = Two(epoch=4)
    two.fails((TOPIC, 0, 40), errors=[74]).asks_leaders().leaders({0: (NEW, 5)})
    two.new.to_broker(epochs_request((0, 5, 4))).broker(epochs_response((0, 0, 4, 40)))
    again = {"values": {"current_leader_epoch": 5}}
    for offset in (40, 50):
        if offset != 40:
            two.fails((TOPIC, 0, offset), errors=[74]).old.nothing()
        two.new.to_broker(two.repeated((TOPIC, 0, offset), **again))
        data = fetch_response(11, (TOPIC, [entry(0, 99, records=RECORDS)]), correlation_id=OURS)
        two.new.broker(data).nothing()
        two.old.to_client(fetch_response(11, (TOPIC, [entry(0, 99, records=RECORDS)]), correlation_id=5))
    # Until that one refuses as well: then the client hears it.
    two.fails((TOPIC, 0, 60), errors=[74]).old.nothing()
    two.new.to_broker(two.repeated((TOPIC, 0, 60), **again)).broker(two.refusal((TOPIC, 0), correlation=OURS))
    two.old.to_client(two.refusal((TOPIC, 0), errors=[74]))
    two.fails((TOPIC, 0, 60), errors=[74]).asks_leaders()


@pytest.mark.parametrize(
    ("end", "offset"),
    [
        ((0, 0, 4, 39), 40),  # records before the client's offset were lost: an unclean election
        ((0, 0, 3, 90), 40),  # no record of the client's epoch: nothing is proven
        ((0, 0, -1, -1), 40),
        ((75, 0, -1, -1), 40),
        ((0, 1, 4, 90), 40),  # another partition
    ],
)
def test_an_epoch_is_replaced_only_if_the_position_is_proven(
    end: tuple[int, int, int, int], offset: int
) -> None:
    """KIP-320: without this rule, the client would not see that records were lost."""
    two = Two(epoch=4)
    two.fails((TOPIC, 0, offset), errors=[74]).asks_leaders().leaders({0: (NEW, 5)})
    two.new.to_broker(epochs_request((0, 5, 4))).broker(epochs_response(end)).nothing()
    two.old.to_client(two.refusal((TOPIC, 0), errors=[74]))
    assert two.counted() == ({}, {NotFollowed.NOT_PROVEN: 1})


@pytest.mark.parametrize("version", [12, 15])
def test_epochs_are_asked_by_name(version: int) -> None:
    two = Two(version, epoch=4)
    two.fails((TOPIC, 0, 40), errors=[74]).asks_leaders().leaders({0: (NEW, 5)})
    two.new.to_broker(epochs_request((0, 5, 4)))


@pytest.mark.parametrize("told", [{0: (-1, 5)}, {1: (NEW, 5)}, {}])
def test_a_broker_that_does_not_know_yet_is_asked_again(told: Epochs) -> None:
    two = Two()
    two.fails((TOPIC, 0)).asks_leaders().leaders(told).old.nothing()
    two.old.connection.asker.tick(AGAIN_SECONDS / 2)
    two.old.nothing()
    two.old.connection.asker.tick(AGAIN_SECONDS)
    two.asks_leaders().leaders({0: (NEW, 5)})
    two.new.to_broker(two.repeated((TOPIC, 0)))


def test_a_broker_that_knows_no_leader_is_asked_less_and_less_often() -> None:
    """Otherwise each waiting response would cause forty requests a second to a cluster in trouble."""
    two, times = Two(), []
    two.fails((TOPIC, 0)).asks_leaders().leaders({})
    for now in (each / 1000 for each in range(5, 700, 5)):
        two.old.now = now
        two.old.connection.asker.tick(now + 1e-9)
        if two.old.takes_broker():
            times.append(now)
            two.leaders({})
    assert times == [0.025, 0.075]


def test_a_broker_that_says_it_leads_is_fetched_from_again() -> None:
    """A new leader knows its Metadata a moment before it can serve, and refuses in between."""
    two = Two()
    for _ in range(2):
        two.fails((TOPIC, 0)).asks_leaders().leaders({0: (OLD, 5)})
        two.old.to_broker(two.repeated((TOPIC, 0)))
        told = fetch_response(11, (TOPIC, [entry(0, 50, records=RECORDS)]), correlation_id=OURS)
        two.old.broker(told).to_client(
            fetch_response(11, (TOPIC, [entry(0, 50, records=RECORDS)]), correlation_id=5)
        )
    assert two.counted() == ({"fetch": 2}, {})


@pytest.mark.parametrize("moved", [True, False])
def test_a_broker_that_says_it_leads_and_refuses_is_asked_who_leads_again(moved: bool) -> None:
    """A former leader may refuse fetches before its Metadata names the new one."""
    two = Two()
    two.fails((TOPIC, 0)).asks_leaders().leaders({0: (OLD, 5)})
    two.old.to_broker(two.repeated((TOPIC, 0))).broker(two.refusal((TOPIC, 0), correlation=OURS)).nothing()
    two.old.connection.asker.tick(AGAIN_SECONDS)
    two.asks_leaders()
    if moved:
        two.leaders({0: (NEW, 6)}).new.to_broker(two.repeated((TOPIC, 0)))
    else:
        two.old.connection.asker.tick(HOLD_SECONDS)
        two.refused(NotFollowed.NO_LEADER)


def test_nobody_is_asked_for_leaders_that_are_all_known() -> None:
    """An earlier question was answered meanwhile. Before the fix, the next one named no topic, and the
    response waited for its answer.
    """
    two = Two()
    two.fails((TOPIC, 0), (TOPIC, 1), errors=[6, 6]).asks_leaders().leaders({0: (OLD, 5)})
    two.old.to_broker(two.repeated((TOPIC, 0))).connection.asker.tick(AGAIN_SECONDS)
    two.asks_leaders().old.broker(two.refusal((TOPIC, 0), correlation=OURS))
    two.leaders({0: (NEW, 6), 1: (NEW, 6)}).new.takes_broker()
    two.old.connection.asker.tick(HOLD_SECONDS - 0.001)
    two.old.nothing()
    data = [entry(0, 50, records=RECORDS), entry(1, 60, records=RECORDS)]
    two.new.broker(fetch_response(11, (TOPIC, data), correlation_id=OURS))
    two.old.to_client(fetch_response(11, (TOPIC, data), correlation_id=5))


def test_broker_0_leads_as_any_other() -> None:
    two = Two()
    two.new = play(two.siblings, 0)
    two.fails((TOPIC, 0)).asks_leaders().leaders({0: (0, 5)})
    two.new.to_broker(two.repeated((TOPIC, 0)))


def test_a_client_may_have_heard_of_the_new_leader_before_its_broker_did() -> None:
    two = Two(epoch=5)
    two.fails((TOPIC, 0)).asks_leaders().leaders({0: (NEW, 5)})
    two.new.to_broker(epochs_request((0, 5, 5)))


@pytest.mark.parametrize("epoch", [4, 0])
def test_a_broker_that_leads_again_is_followed_on_the_same_connection(epoch: int) -> None:
    two, later = Two(epoch=epoch), epoch + 2
    two.fails((TOPIC, 0, 40), errors=[74]).asks_leaders().leaders({0: (OLD, later)})
    two.old.to_broker(epochs_request((0, later, epoch))).broker(epochs_response((0, 0, epoch, 40)))
    two.old.to_broker(two.repeated((TOPIC, 0, 40), values={"current_leader_epoch": later}))
    two.old.broker(fetch_response(11, (TOPIC, [entry(0, 50)]), correlation_id=OURS))
    two.old.to_client(fetch_response(11, (TOPIC, [entry(0, 50)]), correlation_id=5))
    assert two.counted() == ({"fetch": 1}, {})


@pytest.mark.parametrize("max_wait_ms", [0, 500, 30_000])
def test_a_client_that_cannot_be_followed_hears_of_it_a_tenth_of_a_second_later_at_most(
    max_wait_ms: int,
) -> None:
    two, seconds = Two(max_wait_ms=max_wait_ms), 0.1
    assert seconds == HOLD_SECONDS
    alarms: list[float] = []
    two.old.connection.asker.attach(lambda: None, alarms.append)
    two.fails((TOPIC, 0)).asks_leaders().leaders({0: (NEW, 5)})
    two.new.to_broker(two.repeated((TOPIC, 0), max_wait_ms=min(max_wait_ms, WAIT_MS)))
    assert alarms == [seconds]
    two.old.connection.asker.tick(seconds - 0.001)
    two.old.nothing()
    two.old.connection.asker.tick(seconds)
    two.refused(NotFollowed.LATE)
    # What comes then is counted, and is for nobody.
    two.new.broker(fetch_response(11, (TOPIC, [entry(0, 5)]), correlation_id=OURS)).nothing()
    two.old.nothing()


def test_records_that_are_there_do_not_wait_so_long() -> None:
    two = Two()
    asked = two.fetch((TOPIC, 0), (TOPIC, 1))
    two.old.client(asked).to_broker(asked)
    data = [entry(0, 9, records=RECORDS), entry(1, error=6)]
    told = fetch_response(11, (TOPIC, data), correlation_id=5)
    two.old.broker(told).to_broker(metadata_request(False))
    two.old.connection.asker.tick(HOLD_SECONDS)
    two.old.to_client(told)
    two.leaders({1: (NEW, 5)}).new.nothing()  # it has waited no longer


def test_responses_behind_a_held_one_wait_for_it() -> None:
    two = Two()
    two.fails((TOPIC, 0)).asks_leaders()
    asked, told = request(ApiKey.HEARTBEAT, 0, 6), response(6, b"\0\0")
    two.old.client(asked).to_broker(asked)
    two.leaders({0: (NEW, 5)}).old.broker(told).nothing()
    two.new.to_broker(two.repeated((TOPIC, 0)))
    two.new.broker(fetch_response(11, (TOPIC, [entry(0, 5)]), correlation_id=OURS))
    two.old.to_client(fetch_response(11, (TOPIC, [entry(0, 5)]), correlation_id=5), told)


@pytest.mark.parametrize("chunk", [1, 7, 60])
def test_a_response_in_pieces_is_held_as_well(chunk: int) -> None:
    two = Two(12)
    asked = two.fetch((TOPIC, 0), (TOPIC, 1))
    two.old.client(asked).to_broker(asked)
    first = entry(0, 9, records=RECORDS)
    told = fetch_response(12, (TOPIC, [first, entry(1, error=6)]), correlation_id=5)
    two.old.broker(told, chunk=chunk).to_broker(metadata_request(False))
    two.old.connection.asker.tick(HOLD_SECONDS)
    two.old.to_client(told)
    assert two.old.connection.buffered == 0


# The other connection


def test_the_clients_own_requests_there_are_answered_in_their_order() -> None:
    two = Two()
    own = two.fetch((TOPIC, 1), correlation=8)
    two.new.client(own).to_broker(own)
    two.fails((TOPIC, 0)).asks_leaders().leaders({0: (NEW, 5)})
    two.new.to_broker(two.repeated((TOPIC, 0), max_wait_ms=0))
    later = request(ApiKey.HEARTBEAT, 0, 9)
    two.new.client(later).to_broker(later)
    told = fetch_response(11, (TOPIC, [entry(1, 5)]), correlation_id=8)
    two.new.broker(told).to_client(told)
    two.new.broker(fetch_response(11, (TOPIC, [entry(0, 5)]), correlation_id=OURS)).nothing()
    two.old.to_client(fetch_response(11, (TOPIC, [entry(0, 5)]), correlation_id=5))
    two.new.broker(response(9, b"\0\0")).to_client(response(9, b"\0\0"))


def test_an_error_is_sent_at_once_if_the_other_connection_ends() -> None:
    two = Two()
    two.fails((TOPIC, 0)).asks_leaders().leaders({0: (NEW, 5)})
    two.new.to_broker(two.repeated((TOPIC, 0)))
    two.new.connection.broker_ended()
    two.old.to_client(two.refusal((TOPIC, 0)))
    two.new.connection.ended()
    assert two.counted() == ({}, {NotFollowed.CLOSED: 1})


def test_an_error_is_sent_at_once_if_the_own_connection_ends() -> None:
    two = Two()
    two.fails((TOPIC, 0)).asks_leaders()
    two.old.connection.broker_ended()
    two.old.to_client(two.refusal((TOPIC, 0)))


def test_a_connection_that_closes_holds_nothing() -> None:
    two = Two()
    two.fails((TOPIC, 0)).asks_leaders().leaders({0: (NEW, 5)})
    two.new.to_broker(two.repeated((TOPIC, 0)))
    two.old.close().to_client(two.refusal((TOPIC, 0)))
    assert two.old.connection.done
    two.old.connection.ended()
    two.new.broker(fetch_response(11, (TOPIC, [entry(0, 5)]), correlation_id=OURS)).nothing()


def test_a_client_that_leaves_while_its_responses_are_sent_gets_each_once() -> None:
    two = Two()
    for asked in (two.fetch((TOPIC, 0)), two.fetch((TOPIC, 1))):
        two.old.client(asked).to_broker(asked)
    two.old.broker(two.refusal((TOPIC, 0)), two.refusal((TOPIC, 1))).takes_broker()
    two.old.connection.asker.attach(two.old.connection.asker.release, lambda _: None)
    two.old.connection.asker.tick(HOLD_SECONDS)
    two.old.to_client(two.refusal((TOPIC, 0)), two.refusal((TOPIC, 1)))


def test_a_defect_while_an_answer_is_read_costs_only_the_connection_that_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    two, alarms = Two(), list[float]()
    two.old.connection.attach(lambda: None, alarms.append)
    two.fails((TOPIC, 0)).asks_leaders().leaders({0: (NEW, 5)})
    two.new.to_broker(two.repeated((TOPIC, 0)))
    monkeypatch.setattr(FetchRepeat, "read", Mock(side_effect=ZeroDivisionError))
    two.new.broker(fetch_response(11, (TOPIC, [entry(0, 5)]), correlation_id=OURS)).nothing()
    with pytest.raises(ZeroDivisionError):
        two.old.connection.tick(alarms[-1])


def test_a_held_response_is_freed_when_it_is_sent() -> None:
    """It may have 1 MiB. Python's collector of cycles may come much later."""
    gc.collect()
    gc.disable()
    try:
        two = Two()
        two.fails((TOPIC, 0)).asks_leaders().leaders({0: (NEW, 5)}).new.takes_broker()
        assert [each for each in gc.get_objects() if type(each) is Hold]
        two.new.broker(fetch_response(11, (TOPIC, [entry(0, 5)]), correlation_id=OURS))
        two.old.to_client(fetch_response(11, (TOPIC, [entry(0, 5)]), correlation_id=5))
        assert not [each for each in gc.get_objects() if type(each) is Hold]
    finally:
        gc.enable()


def test_what_was_sent_and_received_is_counted_where_it_went() -> None:
    two = Two()
    before = two.new.connection.tally.broker.fetch_request_bytes
    two.fails((TOPIC, 0)).asks_leaders()
    named = metadata_response(False, {0: (NEW, 5)})
    two.old.broker(named)
    repeated = two.repeated((TOPIC, 0))
    two.new.to_broker(repeated)
    data = entry(0, 50, records=RECORDS)
    told = fetch_response(11, (TOPIC, [data]), correlation_id=OURS)
    two.new.broker(told)
    given = fetch_response(11, (TOPIC, [data]), correlation_id=5)
    two.old.to_client(given)
    old, new = two.old.connection.tally, two.new.connection.tally
    assert old.probe_bytes == len(metadata_request(False)) + len(named)
    assert old.client.fetch_response_bytes == len(given)
    assert old.broker.fetch_response_bytes == len(two.refusal((TOPIC, 0)))
    assert old.client.fetch_record_bytes == new.broker.fetch_record_bytes == len(RECORDS)
    assert new.broker.fetch_request_bytes - before == len(repeated)
    assert new.broker.fetch_response_bytes == len(told)
    assert new.broker.fetches[FetchKind.SESSIONLESS] == 1
    assert Counter(new.client.fetches) == Counter([0, 0, 0, 0])
    assert two.old.connection.buffered == two.new.connection.buffered == 0


def test_many_leaders_are_looked_up_in_one_look_at_the_partitions() -> None:
    """A broker may name as many leaders as partitions: a look for each of them would take seconds."""
    looks = []
    for leaders in (1, 50):
        wants = [(TOPIC, at, 40) for at in range(50)]
        two = Two().fails(*wants, errors=[6] * 50).asks_leaders()
        with patch.object(Hold, "_in", autospec=True, side_effect=Hold._in) as look:
            two.leaders({at: (NEW + 1 + at % leaders, 5) for at in range(50)})
        two.old.to_client(two.refusal(*wants, errors=[6] * 50))
        looks.append(look.call_count)
    assert looks[0] == looks[1]
