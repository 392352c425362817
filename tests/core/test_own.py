"""If the client has not asked for the broker's versions (ApiVersions), the gateway asks the broker itself.

The gateway asks only when the next fetch would request a session.
"""

from typing import Any, Final

import pytest

from proxy.core.eligibility import BrokerVersions, SessionLimits
from proxy.core.events import saved_bytes
from tests.frames import Want, fetch, framed
from tests.playbook import Playbook, T, api_versions, asks, full

PROBE: Final = framed(b"\0\x12\0\0" + b"fgat" + b"\0\1c")
EPOCHS: Final[dict[str, Any]] = {"values": {"current_leader_epoch": 3}}


def said(release: str) -> bytes:
    """Build the response that a broker of a release sends to the gateway's own ApiVersions request."""
    return framed(b"fgat" + api_versions(release)[1][8:])


def passed(play: Playbook, version: int, wants: list[Want], *numbers: int, **fields: Any) -> None:
    """Check that some fetches are forwarded, and that the broker gets no other request."""
    for number in numbers:
        asked = fetch(version, *wants, correlation=number, **fields)
        play.exchange(asked, full(version, wants, correlation_id=number))


def asked_third(play: Playbook, release: str, version: int = 11, **fields: Any) -> Playbook:
    """Check that the gateway asks for the broker's versions together with the third fetch.

    If the gateway did not ask, the third fetch would request a session.
    """
    passed(play, version, T, 1, 2, **fields)
    third = fetch(version, *T, correlation=3, **fields)
    play.client(third).to_broker(PROBE, third)
    told = full(version, T, correlation_id=3)
    return play.broker(said(release), told).to_client(told)


def asks_session(play: Playbook, number: int, version: int = 11, **fields: Any) -> None:
    """Check that the gateway requests a session from the broker with the next fetch."""
    play.client(fetch(version, *T, correlation=number, **fields))
    play.to_broker(asks(version, T, (0, 0), correlation=number, **fields))


def test_connections_of_one_fetch_cost_nothing_more() -> None:
    """On a connection with a single fetch, the gateway sends no additional bytes.

    Before the fix, 20 such connections took 3,200 bytes from the clients, but sent 11,180 bytes to the
    broker.
    """
    for _ in range(20):
        play = Playbook()
        passed(play, 11, T, 1)
        tally = play.connection.tally
        assert tally.broker.bytes_out == tally.client.bytes_in
        assert (tally.probe_bytes, saved_bytes(tally)) == (0, 0)


@pytest.mark.parametrize(
    ("play", "wants", "session"),
    [
        (Playbook(SessionLimits(max_sessions=10, on=False)), T, (0, -1)),
        (Playbook(SessionLimits(max_sessions=10, off_for=frozenset({"c"}))), T, (0, -1)),
        (Playbook(SessionLimits(max_sessions=0)), T, (0, -1)),
        (Playbook(), T[:1], (0, -1)),
        (Playbook(), T, (0, 0)),
    ],
    ids=["off", "off for it", "no slot", "one partition", "native"],
)
def test_a_client_that_gets_no_session_has_nothing_asked_for(
    play: Playbook, wants: list[Want], session: tuple[int, int]
) -> None:
    passed(play, 11, wants, *range(1, 9), session=session)
    assert play.connection.tally.probe_bytes == 0


def test_what_was_asked_is_counted_and_not_saved() -> None:
    """Trap 14: the question has the client's client.id, and the client gets nothing of its answer.

    KafkaJS sends ApiVersions requests. kafka-go's Conn does not always.
    """
    play = asked_third(Playbook(), "4.3")
    tally = play.connection.tally
    assert tally.probe_bytes == len(PROBE) + len(said("4.3"))
    assert saved_bytes(tally) == -tally.probe_bytes
    moved = tally.broker.bytes_in + tally.broker.bytes_out - tally.client.bytes_in - tally.client.bytes_out
    assert moved == tally.probe_bytes
    assert tally.passthrough["broker not known yet"] == 1
    asks_session(play, 4)


def test_it_is_asked_once_even_if_its_answer_is_of_no_use() -> None:
    play = Playbook()
    passed(play, 11, T, 1, 2)
    third = fetch(11, *T, correlation=3)
    play.client(third).to_broker(PROBE, third)
    told = full(11, T, correlation_id=3)
    play.broker(framed(b"fgat" + b"??"), told).to_client(told)
    passed(play, 11, T, 4, 5, 6)


@pytest.mark.parametrize("version", [4, 7, 11, 16])
def test_what_it_said_to_one_client_is_known_for_the_next(version: int) -> None:
    versions = BrokerVersions()
    first = asked_third(Playbook(versions=versions), "4.3", version)
    second = Playbook(versions=versions)
    passed(second, version, T, 1, 2)
    asks_session(second, 3, version)
    assert second.connection.tally.probe_bytes == 0
    first.connection.ended()  # a session goes on, whoever it was that asked
    second.broker(full(max(version, 7), T, correlation_id=3, session_id=9)).takes_client()


def test_a_clients_own_question_is_known_for_the_next() -> None:
    versions = BrokerVersions()
    first = Playbook(versions=versions).knows()
    second = Playbook(versions=versions)
    passed(second, 11, T, 1, 2)
    asks_session(second, 3)
    assert first.connection.tally.probe_bytes == 0


def test_it_is_remembered_as_long_as_the_connection_is_open_on_which_it_said_so() -> None:
    """The broker's versions are remembered while a connection on which the broker sent them is open.

    If the broker is replaced, even by an older release, its connections are closed before.
    """
    versions = BrokerVersions()
    first = asked_third(Playbook(versions=versions), "4.3")
    second = Playbook(versions=versions).knows("4.3")
    second.connection.ended()
    assert repr(versions) != "<BrokerVersions None>"  # said to both; the earlier connection is open
    first.connection.ended()
    assert repr(versions) == "<BrokerVersions None>"
    asked_third(Playbook(versions=versions), "2.4")


def test_it_is_forgotten_when_the_broker_closes_any_connection() -> None:
    """In a rolling upgrade or a downgrade, the broker stops and comes back with another release."""
    versions = BrokerVersions()
    asked_third(Playbook(versions=versions), "4.3")
    other = Playbook(versions=versions)
    other.connection.broker_ended()
    asked_third(Playbook(versions=versions), "4.3")


def test_brokers_of_two_releases_behind_one_address() -> None:
    """If two brokers have the same address, the gateway asks each of them for its versions.

    KAFKA-9338, case 68: otherwise a 2.4 broker would stop checking leader epochs, and no error would show
    this.
    """
    versions = BrokerVersions()
    new = asked_third(Playbook(versions=versions), "4.3")
    old = asked_third(Playbook(versions=versions), "2.4", **EPOCHS)
    passed(old, 11, T, 4, 5, 6, **EPOCHS)
    assert old.connection.tally.passthrough["leader epochs"] == 3
    asks_session(new, 4)


def test_a_fetch_that_an_old_broker_can_not_take_shows_that_it_is_new() -> None:
    """A client's Fetch v12 shows that the broker is 2.7 or later. So its sessions keep leader epochs.

    The gateway then requests a session without asking for the broker's versions (fetch-semantics 1.7).
    """
    versions = BrokerVersions()
    asked_third(Playbook(versions=versions), "4.3")
    second = Playbook(versions=versions)
    passed(second, 12, T, 1, 2, **EPOCHS)
    asks_session(second, 3, 12, **EPOCHS)


def test_leader_epochs_in_a_session_that_was_made_without_them() -> None:
    """A fetch with leader epochs uses a session made without them, if the broker's versions are known.

    Here only the versions of another connection's broker are known. So the gateway asks this connection's
    broker for its versions, and forwards the fetch unchanged.
    """
    versions = BrokerVersions()
    first = Playbook(versions=versions).knows()
    second = Playbook(versions=versions)
    passed(second, 11, T, 1, 2)
    asks_session(second, 3)
    second.broker(full(11, T, correlation_id=3, session_id=9)).takes_client()
    fourth = fetch(11, *T, correlation=4, **EPOCHS)
    second.client(fourth).to_broker(PROBE, fourth)
    assert first.connection.fault is None
