import pytest

from proxy.core.events import (
    ClientNamed,
    Event,
    Fault,
    Passthrough,
    SessionClosed,
    SessionLost,
    SessionMade,
    SessionRefused,
)
from proxy.telemetry.history import (
    INTERVALS,
    MAX_EVENTS,
    TOGETHER_SECONDS,
    History,
    RecentEvent,
    RecentEvents,
    describe,
)


def test_a_history_forgets_what_is_long_ago() -> None:
    history = History()
    for number in range(INTERVALS + 5):
        history.note(float(number), (number * number, 1))
    assert history.seconds == [1.0] * INTERVALS
    assert history.column(0)[-1] == 2 * (INTERVALS + 4) - 1
    assert history.column(1) == [0] * INTERVALS


def test_what_happens_often_is_reported_once_with_its_number() -> None:
    recent_events = RecentEvents()
    recent_events.note(100.0, "fault", "a was cut off", warning=True)
    recent_events.note(101.0, "ready", "ready")
    for number in range(1000):
        recent_events.note(102.0, "fault", f"b{number} was cut off", warning=True)
    assert list(recent_events) == [
        RecentEvent(at=101.0, kind="ready", text="ready", warning=False),
        RecentEvent(at=102.0, kind="fault", text="b999 was cut off", warning=True, count=1001),
    ]
    recent_events.note(102.0 + TOGETHER_SECONDS, "fault", "c was cut off", warning=True)
    assert [kept.count for kept in recent_events] == [1, 1001, 1]


def test_what_is_kept_is_bounded() -> None:
    recent_events = RecentEvents()
    for number in range(MAX_EVENTS + 10):
        recent_events.note(0.0, f"kind {number}", "x" * 1000)
    kept = list(recent_events)
    assert len(kept) == MAX_EVENTS
    assert kept[0].kind == "kind 10"
    assert len(kept[0].text) == 300


@pytest.mark.parametrize(
    ("event", "told"),
    [
        (ClientNamed(client_id="c", software_name="s", software_version="1"), None),
        (
            SessionMade(session_id=7, partitions=1000),
            ("session made", "broker 1 gave c a session of 1,000 partitions", False),
        ),
        (
            SessionRefused(),
            (
                "session refused",
                "broker 1 has no free session slot for c; fetches are forwarded unchanged",
                True,
            ),
        ),
        (
            SessionLost(session_id=7, error_code=70, reason="error 70"),
            ("session lost", "broker 1 evicted c's session (70); the fetch was resent", True),
        ),
        (
            SessionLost(session_id=7, error_code=71, reason="error 71"),
            (
                "session lost",
                "c lost its session at broker 1: invalid fetch session epoch (71); the fetch was resent",
                True,
            ),
        ),
        (
            SessionLost(session_id=7, error_code=0, reason="a response was not understood"),
            (
                "session lost",
                "c lost its session at broker 1: a response was not understood; the fetch was resent",
                True,
            ),
        ),
        (
            SessionClosed(session_id=7, reason="the connection ends"),
            ("session closed", "c's session at broker 1 was closed: the connection ends", False),
        ),
        (
            Passthrough(reason="SASL handshake v0"),
            ("passed through", "c is forwarded unchanged: SASL handshake v0", False),
        ),
        (
            Fault(side="client", reason="a request of 3 bytes"),
            (
                "fault",
                "the connection of c to broker 1 was closed, fault of the client: a request of 3 bytes",
                True,
            ),
        ),
    ],
)
def test_events_in_words(event: Event, told: tuple[str, str, bool] | None) -> None:
    assert describe(event, "c", "broker 1") == told
