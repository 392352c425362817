"""If a partition has a new leader, the gateway retries the fetch there (`--follow-leader`).

The tests play the connections step by step.
"""

import struct
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Final, Self
from uuid import UUID

import pytest

from proxy.core.connection import Connection
from proxy.core.events import FetchKind, NotFollowed, Tally
from proxy.core.leader_retry import AGAIN_SECONDS, QUIET_SECONDS
from proxy.core.repeat import MAX_BYTES
from proxy.core.repeat_fetch import HOLD_SECONDS, WAIT_MS
from proxy.core.siblings import Siblings
from proxy.protocol.api import ApiKey
from tests.core.metadata import body, message, partition, topic
from tests.frames import Want, entry, fetch, fetch_response, framed, topic_id
from tests.playbook import Playbook, request, response
from tests.protocol.kio_messages import encode

OURS: Final = 0x6667_666C
TOPIC: Final = "orders"
OLD: Final = 1
NEW: Final = 2
RECORDS: Final = b"r" * 70
NONE: Final[dict[str, int]] = {"current_leader_epoch": -1}
Epochs = Mapping[int, tuple[int, int]]


def gateway(node_id: int, _host: str, _port: int) -> tuple[str, int]:
    """Map broker N to the address broker-N:9092."""
    return f"broker-{node_id}", 9092


def play(
    siblings: Siblings, node_id: int | None, host: str = "10.0.0.7", client: bytes = b"c", **more: Any
) -> Playbook:
    """Return a connection of an authenticated client. Its last response came some time ago."""
    played = Playbook(resolve=gateway, core=Connection, siblings=siblings, host=host, node_id=node_id, **more)
    played.now = -QUIET_SECONDS
    asked = request(18, 0, 1, client=client)
    played.client(asked).to_broker(asked).broker(told := response(1, bytes(6))).to_client(told)
    played.exchange(request(ApiKey.HEARTBEAT, 0, 1, client=client), response(1, b"\0\0"))
    played.now = 0.0
    return played


class Two:
    """A client with two connections: one to the old leader, one to the new leader."""

    def __init__(self, version: int = 11, *, epoch: int = -1, max_wait_ms: int = 500) -> None:
        self.siblings = Siblings()
        self.old, self.new = play(self.siblings, OLD), play(self.siblings, NEW)
        self.version, self.epoch, self.max_wait_ms = version, epoch, max_wait_ms

    def fetch(self, *wants: Want, **fields: Any) -> bytes:
        values = {"current_leader_epoch": self.epoch} if self.version >= 9 else {}
        fields = {"max_wait_ms": self.max_wait_ms, "correlation": 5, "values": values, **fields}
        return fetch(self.version, *wants, **fields)

    def fails(self, *wants: Want, errors: Iterable[int] = (6,), **fields: Any) -> Self:
        """Let the client fetch from the old leader, and let the old leader refuse the fetch with `errors`."""
        asked = self.fetch(*wants, **fields)
        self.old.client(asked).to_broker(asked)
        self.old.broker(self.refusal(*wants, errors=errors))
        return self

    def refusal(self, *wants: Want, errors: Iterable[int] = (6,), correlation: int = 5) -> bytes:
        data = [entry(want[1], error=error) for want, error in zip(wants, errors, strict=True)]
        return fetch_response(self.version, (TOPIC, data), correlation_id=correlation)

    def asks_leaders(self) -> Self:
        self.old.to_broker(metadata_request(self.version >= 13))
        return self

    def leaders(self, told: Epochs) -> Self:
        self.old.broker(metadata_response(self.version >= 13, told))
        return self

    def repeated(self, *wants: Want, **fields: Any) -> bytes:
        asked = {"correlation": OURS, "max_wait_ms": WAIT_MS, "min_bytes": 1, "max_bytes": MAX_BYTES}
        return self.fetch(*wants, **asked | fields)

    def counted(self) -> tuple[dict[str, int], dict[str, int]]:
        tally: Tally = self.old.connection.tally
        return dict(+tally.leaders_followed), dict(+tally.leaders_not_followed)


def metadata_request(by_id: bool) -> bytes:
    if by_id:
        return request(3, 12, OURS, b"\0\2" + topic_id(TOPIC) + b"\0\0" + b"\0\0\0")
    return request(3, 7, OURS, b"\0\0\0\1" + b"\0\6orders" + b"\0")


def metadata_response(by_id: bool, told: Epochs) -> bytes:
    if by_id:
        return response(OURS, b"\0" + body(12, told, topic_id=UUID(bytes=topic_id(TOPIC))))
    entries = [partition(7, index, *leader) for index, leader in told.items()]
    return response(OURS, encode(message(7, topic(7, None, entries))))


def epochs_request(*entries: tuple[int, int, int]) -> bytes:
    said = b"".join(struct.pack(">iii", *each) for each in entries)
    return request(23, 2, OURS, b"\0\0\0\1\0\6orders" + len(entries).to_bytes(4) + said)


def epochs_response(*entries: tuple[int, int, int, int]) -> bytes:
    said = b"".join(struct.pack(">hiiq", *each) for each in entries)
    return response(OURS, bytes(4) + b"\0\0\0\1\0\6orders" + len(entries).to_bytes(4) + said)


@pytest.mark.parametrize("version", range(9, 16))
def test_a_client_without_kip_951_gets_the_records_of_the_new_leader(version: int) -> None:
    two = Two(version)
    two.fails((TOPIC, 0, 40)).asks_leaders().leaders({0: (NEW, 5)})
    two.new.to_broker(two.repeated((TOPIC, 0, 40)))
    data = entry(0, 50, records=RECORDS)
    two.new.broker(fetch_response(version, (TOPIC, [data]), correlation_id=OURS)).nothing()
    two.old.to_client(fetch_response(version, (TOPIC, [data]), correlation_id=5))
    assert two.counted() == ({"fetch": 1}, {})


@pytest.mark.parametrize("version", [16, 18])
def test_a_client_with_kip_951_gets_the_error_as_it_came(version: int) -> None:
    two = Two(version)
    two.fails((TOPIC, 0, 40)).old.to_client(two.refusal((TOPIC, 0)))
    assert two.counted() == ({}, {})


@pytest.mark.parametrize("version", range(4, 9))
def test_an_older_broker_may_not_know_the_question(version: int) -> None:
    two = Two(version)
    two.fails((TOPIC, 0)).old.to_client(two.refusal((TOPIC, 0)))
    assert two.counted() == ({}, {NotFollowed.VERSION: 1})


def test_other_entries_of_the_response_stay_as_they_are() -> None:
    two = Two(12)
    asked = two.fetch((TOPIC, 0), (TOPIC, 1), (TOPIC, 2))
    two.old.client(asked).to_broker(asked)
    first, last = entry(0, 9, records=RECORDS), entry(2, error=3)
    two.old.broker(fetch_response(12, (TOPIC, [first, entry(1, error=6), last]), correlation_id=5))
    two.asks_leaders().leaders({1: (NEW, 5)})
    # What the client has got does not wait.
    two.new.to_broker(two.repeated((TOPIC, 1), max_wait_ms=0))
    data = entry(1, 77, records=b"s" * 300)
    two.new.broker(fetch_response(12, (TOPIC, [data]), correlation_id=OURS))
    two.old.to_client(fetch_response(12, (TOPIC, [first, data, last]), correlation_id=5))
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
    """KIP-320: the gateway replaces the leader epoch in a fetch only if the client's offset is proven.

    Without this rule, the client would not see that records were lost.
    """
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


@pytest.mark.parametrize("error", [1, 3, 6, 9, 74, 75, 76, 78, 100])
def test_no_error_of_the_new_leader_reaches_the_client(error: int) -> None:
    """If the new leader answers with an error, the client gets the old leader's error instead.

    The client would react to an error of the new leader: after OFFSET_OUT_OF_RANGE it would reset its offset.
    """
    two = Two()
    two.fails((TOPIC, 0)).asks_leaders().leaders({0: (NEW, 5)})
    two.new.to_broker(two.repeated((TOPIC, 0)))
    told = fetch_response(11, (TOPIC, [entry(0, error=error)]), correlation_id=OURS)
    two.new.broker(told).nothing()
    two.old.to_client(two.refusal((TOPIC, 0)))
    assert two.counted() == ({}, {NotFollowed.REFUSED: 1})


@pytest.mark.parametrize(
    "told",
    [
        fetch_response(11, (TOPIC, [entry(0, 5, preferred_read_replica=3)]), correlation_id=OURS),
        fetch_response(11, (TOPIC, [entry(1, 5)]), correlation_id=OURS),
        fetch_response(11, correlation_id=OURS, error_code=70),
        framed(OURS.to_bytes(4) + b"\0" * 3),
    ],
)
def test_what_else_the_new_leader_says_does_not_reach_it_either(told: bytes) -> None:
    two = Two()
    two.fails((TOPIC, 0)).asks_leaders().leaders({0: (NEW, 5)})
    two.new.to_broker(two.repeated((TOPIC, 0))).broker(told).nothing()
    two.old.to_client(two.refusal((TOPIC, 0)))
    assert two.counted() == ({}, {NotFollowed.REFUSED: 1})


@pytest.mark.parametrize("told", [{0: (OLD, 5)}, {0: (-1, 5)}, {1: (NEW, 5)}, {}])
def test_a_broker_that_does_not_know_yet_is_asked_again(told: Epochs) -> None:
    two = Two()
    two.fails((TOPIC, 0)).asks_leaders().leaders(told).old.nothing()
    two.old.connection.retry.tick(AGAIN_SECONDS / 2)
    two.old.nothing()
    two.old.connection.retry.tick(AGAIN_SECONDS)
    two.asks_leaders().leaders({0: (NEW, 5)})
    two.new.to_broker(two.repeated((TOPIC, 0)))


def test_a_broker_that_knows_no_leader_is_asked_less_and_less_often() -> None:
    """The gateway asks a broker that knows no new leader less and less often.

    Otherwise each waiting response would cause forty requests a second to a cluster in trouble.
    """
    two, times = Two(), []
    two.fails((TOPIC, 0)).asks_leaders().leaders({})
    for now in (each / 1000 for each in range(5, 700, 5)):
        two.old.now = now
        two.old.connection.retry.tick(now + 1e-9)
        if two.old.takes_broker():
            times.append(now)
            two.leaders({})
    assert times == [0.025, 0.075]


def test_a_broker_that_leads_again_is_followed_on_the_same_connection() -> None:
    two = Two(epoch=4)
    two.fails((TOPIC, 0, 40), errors=[74]).asks_leaders().leaders({0: (OLD, 6)})
    two.old.to_broker(epochs_request((0, 6, 4))).broker(epochs_response((0, 0, 4, 40)))
    two.old.to_broker(two.repeated((TOPIC, 0, 40), values={"current_leader_epoch": 6}))
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
    two.old.connection.retry.attach(lambda: None, alarms.append)
    two.fails((TOPIC, 0)).asks_leaders().leaders({0: (NEW, 5)})
    two.new.to_broker(two.repeated((TOPIC, 0), max_wait_ms=min(max_wait_ms, WAIT_MS)))
    assert alarms == [seconds]
    two.old.connection.retry.tick(seconds - 0.001)
    two.old.nothing()
    two.old.connection.retry.tick(seconds)
    two.old.to_client(two.refusal((TOPIC, 0)))
    assert two.counted() == ({}, {NotFollowed.LATE: 1})
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
    two.old.connection.retry.tick(HOLD_SECONDS)
    two.old.to_client(told)


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
    two.old.connection.retry.tick(HOLD_SECONDS)
    two.old.to_client(told)
    assert two.old.connection.buffered == 0


@pytest.mark.parametrize("chunk", [5000, 1 << 30])
def test_a_large_response_is_not_held(chunk: int) -> None:
    two = Two()
    asked = two.fetch((TOPIC, 0), (TOPIC, 1))
    two.old.client(asked).to_broker(asked)
    data = [entry(0, 9, records=bytes(MAX_BYTES)), entry(1, error=6)]
    told = fetch_response(11, (TOPIC, data), correlation_id=5)
    two.old.broker(told, chunk=chunk).to_client(told)
    assert two.counted() == ({}, {NotFollowed.TOO_LARGE: 1})


def test_a_response_gets_no_larger_than_the_client_allows() -> None:
    """KIP-74: records from the new leader never make a response longer than the fetch's max_bytes.

    The only exception is a response whose first batch alone is longer.
    """
    two = Two()
    asked = two.fetch((TOPIC, 0), (TOPIC, 1), max_bytes=100)
    two.old.client(asked).to_broker(asked)
    told = fetch_response(11, (TOPIC, [entry(0, 9, records=RECORDS), entry(1, error=6)]), correlation_id=5)
    two.old.broker(told)
    two.asks_leaders().leaders({1: (NEW, 5)})
    two.new.to_broker(two.repeated((TOPIC, 1), max_wait_ms=0, max_bytes=30))
    two.new.broker(fetch_response(11, (TOPIC, [entry(1, 9, records=RECORDS)]), correlation_id=OURS))
    two.old.to_client(told)
    assert two.counted() == ({}, {NotFollowed.NO_ROOM: 1})


def test_a_fetch_that_went_through_the_session_is_followed() -> None:
    two = Two(11)
    wants: list[Want] = [(TOPIC, index) for index in range(20)]
    two.old = Playbook(resolve=gateway, core=Connection, siblings=two.siblings, host="10.0.0.7", node_id=OLD)
    two.old.established(11, wants)
    asked = fetch(11, *wants, correlation=5, values=NONE)
    two.old.client(asked).takes_broker()
    two.old.broker(fetch_response(11, (TOPIC, [entry(3, error=6)]), correlation_id=5, session_id=77))
    two.asks_leaders().leaders({3: (NEW, 5)})
    two.new.to_broker(two.repeated((TOPIC, 3)))
    two.new.broker(fetch_response(11, (TOPIC, [entry(3, 8)]), correlation_id=OURS))
    given = [entry(index, 8 if index == 3 else 5) for index in range(20)]
    two.old.to_client(fetch_response(11, (TOPIC, given), correlation_id=5))
    # The broker repeats an error in each response of the session: the client's fetch is repeated each time.
    asked = fetch(11, *wants, correlation=5, values=NONE)
    two.old.client(asked).takes_broker()
    two.old.broker(fetch_response(11, (TOPIC, [entry(3, error=6)]), correlation_id=5, session_id=77))
    two.new.to_broker(two.repeated((TOPIC, 3)))


def test_an_incremental_fetch_of_the_clients_own_session_is_not_followed() -> None:
    two = Two()
    asked = two.fetch(session=(77, 3))
    two.old.client(asked).to_broker(asked)
    told = fetch_response(11, (TOPIC, [entry(0, error=6)]), correlation_id=5, session_id=77)
    two.old.broker(told).to_client(told)
    assert two.counted() == ({}, {NotFollowed.NOT_LISTED: 1})


# Whose connection it is


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
    two.old.to_client(two.refusal((TOPIC, 0)))
    assert two.counted() == ({}, {NotFollowed.NO_CONNECTION: 1})


def test_a_connection_on_which_nothing_was_answered_is_not_used() -> None:
    two = Two()
    two.new.connection.ended()
    fresh = Playbook(resolve=gateway, core=Connection, siblings=two.siblings, host="10.0.0.7", node_id=NEW)
    fresh.exchange(request(18, 0, 1), response(1, bytes(6)))
    two.fails((TOPIC, 0)).asks_leaders().leaders({0: (NEW, 5)})
    fresh.nothing()
    two.old.to_client(two.refusal((TOPIC, 0)))


def test_a_client_need_not_ask_for_versions() -> None:
    two = Two()
    two.new.connection.ended()
    other = Playbook(resolve=gateway, core=Connection, siblings=two.siblings, host="10.0.0.7", node_id=NEW)
    other.exchange(request(ApiKey.HEARTBEAT, 0, 1), response(1, b"\0\0"))
    two.fails((TOPIC, 0)).asks_leaders().leaders({0: (NEW, 5)})
    other.to_broker(two.repeated((TOPIC, 0), max_wait_ms=0))


def sasl(played: Playbook, mechanism: bytes, *tokens: bytes) -> None:
    asked = request(17, 1, 2, len(mechanism).to_bytes(2) + mechanism)
    played.exchange(asked, response(2, bytes(6)))
    for token in tokens:
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
        (b"GSSAPI", [b"`x"], [b"`x"], False),
    ],
)
def test_connections_belong_together_if_the_same_user_authenticated(
    mechanism: bytes, first: list[bytes], second: list[bytes], same: bool
) -> None:
    two = Two()
    sasl(two.old, mechanism, *first)
    sasl(two.new, mechanism, *second)
    two.fails((TOPIC, 0))
    if mechanism == b"GSSAPI":
        two.old.to_client(two.refusal((TOPIC, 0)))
        return
    two.asks_leaders().leaders({0: (NEW, 5)})
    if same:
        two.new.to_broker(two.repeated((TOPIC, 0), max_wait_ms=0))
    else:
        two.new.nothing()
        two.old.to_client(two.refusal((TOPIC, 0)))


def test_a_connection_that_authenticates_anew_is_not_used_meanwhile() -> None:
    """KIP-368: a connection that authenticates again is not used for retries in the meantime.

    During authentication its broker accepts only SASL requests.
    """
    two = Two()
    for played in (two.old, two.new):
        sasl(played, b"PLAIN", b"\0anna\0x")
    asked = request(17, 1, 2, b"\0\5PLAIN")
    two.new.client(asked).to_broker(asked)
    two.fails((TOPIC, 0)).asks_leaders().leaders({0: (NEW, 5)})
    two.new.nothing()
    two.old.to_client(two.refusal((TOPIC, 0)))


# The other connection


def test_a_connection_whose_broker_may_wait_too_long_is_not_used() -> None:
    """The gateway does not retry a fetch on a connection where the broker may hold another fetch too long.

    A broker handles one request of a connection at a time (fetch-semantics, trap 16).
    """
    two = Two()
    asked = two.fetch((TOPIC, 1), max_wait_ms=2000)
    two.new.client(asked).to_broker(asked)
    two.fails((TOPIC, 0)).asks_leaders().leaders({0: (NEW, 5)})
    two.new.nothing()
    two.old.to_client(two.refusal((TOPIC, 0)))
    assert two.counted() == ({}, {NotFollowed.BUSY: 1})


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


def test_a_partition_that_a_broker_names_twice_does_not_tear_the_response() -> None:
    two = Two()
    asked = two.fetch((TOPIC, 0), (TOPIC, 1))
    two.old.client(asked).to_broker(asked)
    data = [entry(0, error=6), entry(1, error=6), entry(0, error=6)]
    two.old.broker(fetch_response(11, (TOPIC, data), correlation_id=5))
    two.asks_leaders().leaders({0: (NEW, 5), 1: (NEW, 5)})
    two.new.to_broker(two.repeated((TOPIC, 0), (TOPIC, 1)))
    first, second = entry(0, 3, records=RECORDS), entry(1, 4)
    two.new.broker(fetch_response(11, (TOPIC, [first, second]), correlation_id=OURS))
    two.old.to_client(fetch_response(11, (TOPIC, [data[0], second, first]), correlation_id=5))
