"""Which connection of a client is used to ask a new leader, and who waits for it.

Many clients have the same host and client id, and their leader moves. A request waits for at most one fetch
that is retried for another client.
"""

import struct
from typing import Final

import pytest

from proxy.core.asking.siblings import Siblings
from proxy.core.events import NotFollowed
from proxy.features.leaders.fetch_repeat import WAIT_MS
from proxy.protocol.api import ApiKey
from tests.features.leaders.following import (
    NEW,
    OLD,
    OURS,
    TOPIC,
    Two,
    fresh,
    metadata_response,
    play,
)
from tests.frames import entry, fetch, fetch_response, framed
from tests.playbook import Playbook, request, response, split

PACE_SECONDS: Final = WAIT_MS / 1e3
MOST_SECONDS: Final = 0.1
"""The longest delay, in seconds, that a retried fetch may cause for a request after it."""
CLIENTS: Final = 100


def fails(old: Playbook, partition: int = 0, correlation: int = 5) -> None:
    """Let a client fetch from the old leader. The old leader refuses, and names the new leader when asked."""
    asked = fetch(
        11, (TOPIC, partition), correlation=correlation, max_wait_ms=500, values={"current_leader_epoch": -1}
    )
    old.client(asked).to_broker(asked)
    refusal = fetch_response(11, (TOPIC, [entry(partition, error=6)]), correlation_id=correlation)
    old.broker(refusal)
    if old.takes_broker():
        old.broker(metadata_response(False, {partition: (NEW, 5)}))


def pile_up(siblings: Siblings) -> list[Playbook]:
    olds = [play(siblings, OLD) for _ in range(CLIENTS)]
    for old in olds:
        fails(old)
    return olds


def test_repeats_of_clients_with_one_name_are_spread_over_their_connections() -> None:
    siblings = Siblings()
    news = [play(siblings, NEW) for _ in range(CLIENTS)]
    pile_up(siblings)
    assert [len(split(new.takes_broker())) for new in news] == [1] * CLIENTS


def test_a_bystander_waits_for_one_repeat_at_most() -> None:
    """A client's request waits for at most one retried fetch. The broker handles the requests of a connection
    one by one, so several waits would add up.
    """
    siblings = Siblings()
    bystander = play(siblings, NEW)
    olds = pile_up(siblings)
    own = request(ApiKey.HEARTBEAT, 0, 9)
    bystander.connection.receive_client(own, 0.0)
    *before, last = split(bystander.takes_broker())
    assert last == own
    waits = [struct.unpack_from(">i", each, 4 + 8 + 2 + 1 + 4)[0] for each in before]
    assert len(waits) == 1
    assert sum(waits) / 1e3 <= MOST_SECONDS
    # The others get their errors at once.
    assert sum(bool(old.takes_client()) for old in olds) == CLIENTS - 1
    assert sum(old.connection.tally.leaders_not_followed[NotFollowed.BUSY] for old in olds) == CLIENTS - 1


def test_clients_that_never_refresh_do_not_fill_the_queue() -> None:
    siblings = Siblings()
    bystander = play(siblings, NEW)
    olds = pile_up(siblings)
    for again in range(5):
        for old in olds:
            old.connection.asker.tick(MOST_SECONDS)
            old.takes_client()
            fails(old, correlation=10 + again)
    assert len(split(bystander.takes_broker())) == 1


def test_a_repeat_is_sent_behind_requests_that_do_not_wait() -> None:
    two = Two()
    for correlation in (8, 9):
        beat = request(ApiKey.HEARTBEAT, 0, correlation)
        two.new.client(beat).to_broker(beat)
    two.fails((TOPIC, 0)).asks_leaders().leaders({0: (NEW, 5)})
    two.new.to_broker(two.repeated((TOPIC, 0), max_wait_ms=0))


def beside_a_heartbeat() -> Two:
    """Return a client whose fetch was retried on another client's connection.

    That other client has the same client id, and has just sent a heartbeat.
    """
    two = Two()
    two.new.exchange(request(ApiKey.HEARTBEAT, 0, 9), response(9, b"\0\0"))
    two.fails((TOPIC, 0)).asks_leaders().leaders({0: (NEW, 5)})
    two.new.to_broker(two.repeated((TOPIC, 0), max_wait_ms=0))
    return two


def test_a_repeat_does_not_wait_at_the_broker_before_requests_of_an_active_client() -> None:
    """A retried fetch does not wait at the broker if the connection belongs to an active client. The gateway
    delays the empty response instead.
    """
    two, alarms = beside_a_heartbeat(), list[float]()
    two.old.connection.asker.attach(lambda: None, alarms.append)
    empty = [entry(0, 5)]
    two.new.broker(fetch_response(11, (TOPIC, empty), correlation_id=OURS))
    assert alarms == [PACE_SECONDS]
    two.old.connection.asker.tick(PACE_SECONDS - 0.001)
    two.old.nothing()
    two.old.connection.asker.tick(PACE_SECONDS)
    two.old.to_client(fetch_response(11, (TOPIC, empty), correlation_id=5))
    assert two.counted() == ({"fetch": 1}, {})


def test_a_response_that_is_kept_to_pace_a_client_has_one_timer() -> None:
    """One timer is started for each delayed response. Before the fix, each timer of a connection started all
    others again.
    """
    two, alarms = beside_a_heartbeat(), list[float]()
    two.old.connection.asker.attach(lambda: None, alarms.append)
    two.new.broker(fetch_response(11, (TOPIC, [entry(0, 5)]), correlation_id=OURS))
    for _ in range(9):
        two.old.connection.asker.tick(PACE_SECONDS / 2)
    assert alarms == [PACE_SECONDS]
    two.old.connection.asker.tick(PACE_SECONDS)
    two.old.to_client(fetch_response(11, (TOPIC, [entry(0, 5)]), correlation_id=5))


def test_records_and_errors_are_not_kept_to_pace_a_client() -> None:
    records = fetch_response(11, (TOPIC, [entry(0, 5, records=b"r" * 70)]), correlation_id=OURS)
    two = beside_a_heartbeat()
    two.new.broker(records)
    two.old.to_client(fetch_response(11, (TOPIC, [entry(0, 5, records=b"r" * 70)]), correlation_id=5))
    two = beside_a_heartbeat()
    two.new.broker(fetch_response(11, (TOPIC, [entry(0, error=6)]), correlation_id=OURS))
    two.refused(NotFollowed.REFUSED)
    two = beside_a_heartbeat()
    two.new.connection.ended()
    two.refused(NotFollowed.CLOSED)


def test_a_client_may_have_been_active_on_the_fast_path() -> None:
    two = Two()
    for number in range(3):
        two.new.exchange(request(ApiKey.HEARTBEAT, 0, 9 + number), response(9 + number, b"\0\0"))
    asked = request(ApiKey.HEARTBEAT, 0, 20)
    two.new.now = two.old.now = 10.0
    assert two.new.connection.fast_path.request(asked, 10.0) == (len(asked), asked)
    told = response(20, b"\0\0")
    assert two.new.connection.fast_path.response(told, 10.0, 10.0) == (len(told), told)
    two.fails((TOPIC, 0)).asks_leaders().leaders({0: (NEW, 5)})
    two.new.to_broker(two.repeated((TOPIC, 0), max_wait_ms=0))


def test_a_connection_that_has_ended_is_found_no_more() -> None:
    siblings = Siblings()
    ended = play(siblings, NEW)
    assert repr(siblings) == "<Siblings 1>"
    ended.connection.ended()
    assert repr(siblings) == "<Siblings 0>"


def test_a_repeat_behind_an_idle_fetch_does_not_wait_for_records() -> None:
    """A fetch retried behind an idle fetch does not wait for records. The retried fetch may reach the broker
    too late, and the next request of the connection's own client must not wait for it.
    """
    two = Two()
    own = two.fetch((TOPIC, 1), correlation=8)
    two.new.client(own).to_broker(own)
    two.fails((TOPIC, 0)).asks_leaders().leaders({0: (NEW, 5)})
    two.new.to_broker(two.repeated((TOPIC, 0), max_wait_ms=0))
    two.old.connection.asker.tick(MOST_SECONDS)
    two.old.to_client(two.refusal((TOPIC, 0)))


def test_pipelined_fetches_wait_one_after_the_other() -> None:
    two = Two()
    for correlation in (8, 9, 10):
        own = two.fetch((TOPIC, 1), correlation=correlation)
        two.new.client(own).to_broker(own)
    two.fails((TOPIC, 0)).asks_leaders().leaders({0: (NEW, 5)})
    two.new.nothing()
    two.refused(NotFollowed.BUSY)


def test_what_one_response_needs_of_a_leader_is_asked_one_after_the_other() -> None:
    """Two partitions of a response move to the same leader. They are fetched there one after the other: the
    second one when its leader is known, and the first response has come.
    """
    two = Two()
    two.fails((TOPIC, 0)).asks_leaders().leaders({0: (NEW, 5)})
    two.new.to_broker(two.repeated((TOPIC, 0)))
    two.new.broker(fetch_response(11, (TOPIC, [entry(0, 5)]), correlation_id=OURS))
    two.old.to_client(fetch_response(11, (TOPIC, [entry(0, 5)]), correlation_id=5))
    two.fails((TOPIC, 0), (TOPIC, 1), errors=(6, 6)).asks_leaders()
    two.new.to_broker(two.repeated((TOPIC, 0)))
    two.leaders({1: (NEW, 5)}).new.nothing()
    two.new.broker(fetch_response(11, (TOPIC, [entry(0, 6)]), correlation_id=OURS))
    two.new.to_broker(two.repeated((TOPIC, 1)))
    two.new.broker(fetch_response(11, (TOPIC, [entry(1, 7)]), correlation_id=OURS))
    two.old.to_client(fetch_response(11, (TOPIC, [entry(0, 6), entry(1, 7)]), correlation_id=5))
    assert two.counted() == ({"fetch": 3}, {})


@pytest.mark.parametrize(
    ("node_id", "host", "client"), [(3, "10.0.0.7", b"c"), (NEW, "10.0.0.8", b"c"), (NEW, "10.0.0.7", b"d")]
)
def test_only_the_clients_own_connection_to_the_new_leader_is_used(
    node_id: int, host: str, client: bytes
) -> None:
    two = Two()
    two.new.connection.ended()
    other = play(two.siblings, node_id, host, client)
    two.fails((TOPIC, 0)).asks_leaders().leaders({0: (NEW, 5)})
    other.nothing()
    two.refused(NotFollowed.NO_CONNECTION)


def test_a_connection_on_which_nothing_was_answered_is_not_used() -> None:
    two = Two()
    two.new.connection.ended()
    new = fresh(two.siblings, NEW)
    new.exchange(request(18, 0, 1), response(1, bytes(6)))
    two.fails((TOPIC, 0)).asks_leaders().leaders({0: (NEW, 5)})
    new.nothing()
    two.old.to_client(two.refusal((TOPIC, 0)))


def test_a_client_need_not_ask_for_versions() -> None:
    two = Two()
    two.new.connection.ended()
    other = fresh(two.siblings, NEW)
    other.exchange(request(ApiKey.HEARTBEAT, 0, 1), response(1, b"\0\0"))
    two.fails((TOPIC, 0)).asks_leaders().leaders({0: (NEW, 5)})
    other.to_broker(two.repeated((TOPIC, 0), max_wait_ms=0))


def sasl(played: Playbook, mechanism: bytes, *tokens: bytes, version: int = 1) -> None:
    """Log in after a SaslHandshake. At v0, tokens have no header."""
    asked = request(17, version, 2, len(mechanism).to_bytes(2) + mechanism)
    played.exchange(asked, response(2, bytes(6)))
    for token in tokens:
        if version == 0:
            played.exchange(framed(token), framed(b""))
            continue
        asked = request(36, 1, 2, len(token).to_bytes(4) + token)
        played.exchange(asked, response(2, b"\0\0\xff\xff" + bytes(12)))
    played.exchange(request(ApiKey.HEARTBEAT, 0, 1), response(1, b"\0\0"))


@pytest.mark.parametrize(
    ("mechanism", "first", "second", "same"),
    [
        (b"PLAIN", [b"\0anna\0x"], [b"\0anna\0x"], True),
        (b"PLAIN", [b"\0anna\0x"], [b"\0otto\0x"], False),
        (b"SCRAM-SHA-256", [b"n,,n=anna,r=a1", b"c=x"], [b"n,,n=anna,r=b2", b"c=y"], True),
        (b"SCRAM-SHA-256", [b"n,,n=anna,r=a1", b"c=x"], [b"n,,n=otto,r=b2", b"c=y"], False),
        (b"OAUTHBEARER", [b"n,,\1auth=Bearer t\1\1"], [b"n,,\1auth=Bearer t\1\1"], True),
        (b"OAUTHBEARER", [b"n,,\1auth=Bearer t\1\1"], [b"n,,\1auth=Bearer u\1\1"], False),
    ],
)
@pytest.mark.parametrize("version", [0, 1])
def test_connections_belong_together_if_the_same_user_authenticated(
    mechanism: bytes, first: list[bytes], second: list[bytes], same: bool, version: int
) -> None:
    two = Two()
    sasl(two.old, mechanism, *first, version=version)
    sasl(two.new, mechanism, *second, version=version)
    two.fails((TOPIC, 0))
    two.asks_leaders().leaders({0: (NEW, 5)})
    if same:
        two.new.to_broker(two.repeated((TOPIC, 0), max_wait_ms=0))
    else:
        two.new.nothing()
        two.old.to_client(two.refusal((TOPIC, 0)))


def test_tokens_of_gssapi_do_not_tell_who_the_client_is() -> None:
    two = Two()
    for played in (two.old, two.new):
        sasl(played, b"GSSAPI", b"`x")
    two.fails((TOPIC, 0))
    two.old.to_client(two.refusal((TOPIC, 0)))


def test_a_token_that_is_too_large_does_not_tell_who_the_client_is() -> None:
    two, token = Two(), framed(bytes(1 << 17))
    for played in (two.old, two.new):
        played.exchange(request(17, 0, 2, b"\0\x0bOAUTHBEARER"), response(2, bytes(6)))
        played.client(token, chunk=50_000).to_broker(token)
        played.broker(framed(b"")).to_client(framed(b""))
        played.exchange(request(ApiKey.HEARTBEAT, 0, 1), response(1, b"\0\0"))
    two.fails((TOPIC, 0))
    two.old.to_client(two.refusal((TOPIC, 0)))


def test_a_connection_that_authenticates_anew_is_not_used_meanwhile() -> None:
    """KIP-368: during authentication its broker accepts only SASL requests."""
    two = Two()
    for played in (two.old, two.new):
        sasl(played, b"PLAIN", b"\0anna\0x")
    asked = request(17, 1, 2, b"\0\5PLAIN")
    two.new.client(asked).to_broker(asked)
    two.fails((TOPIC, 0)).asks_leaders().leaders({0: (NEW, 5)})
    two.new.nothing()
    two.old.to_client(two.refusal((TOPIC, 0)))


def test_a_connection_whose_broker_may_wait_too_long_is_not_used() -> None:
    """A broker handles one request of a connection at a time (fetch-semantics, trap 16)."""
    two = Two()
    asked = two.fetch((TOPIC, 1), max_wait_ms=2000)
    two.new.client(asked).to_broker(asked)
    two.fails((TOPIC, 0)).asks_leaders().leaders({0: (NEW, 5)})
    two.new.nothing()
    two.refused(NotFollowed.BUSY)


def test_a_connection_whose_broker_has_gone_is_not_used() -> None:
    """A connection that the broker has closed is not used for a retry.

    Its client may not have closed it yet. The connection then has no outstanding requests, so it would be
    preferred to a working connection.
    """
    two = Two()
    two.new.connection.broker_ended()
    live = play(two.siblings, NEW)
    two.fails((TOPIC, 0, 40)).asks_leaders().leaders({0: (NEW, 5)})
    two.new.nothing()
    live.to_broker(two.repeated((TOPIC, 0, 40)))
