"""That there is no room, or no descriptor, is said once until there is again, and not with each wave."""

import structlog
from structlog.testing import capture_logs

from proxy.server.conditions import AGAIN_SECONDS, CALM_SECONDS, NO_DESCRIPTOR, ConnectionLimit, Descriptors


def test_it_is_said_once_until_there_is_room_again_and_not_too_often() -> None:
    noted: list[str] = []

    def note(kind: str, text: str, *, warning: bool = False) -> None:
        assert (kind, warning) == ("limit", True)
        noted.append(text)

    with capture_logs() as lines:
        room = ConnectionLimit(structlog.get_logger(), note)
        now = 100.0
        assert room.for_one_more(9, 10, now)
        assert not room.for_one_more(10, 10, now)
        assert not room.for_one_more(10, 10, now)
        for wave in range(10):  # all leave and come back
            assert room.for_one_more(0, 10, now + wave / 10)
            assert not room.for_one_more(10, 10, now + wave / 10)
        assert len(lines) == len(noted) == 1
        later = now + AGAIN_SECONDS
        assert not room.for_one_more(10, 10, later), "there was none in between"
        assert len(lines) == 1
        assert room.for_one_more(8, 10, later)
        assert not room.for_one_more(10, 10, later)
    assert len(lines) == len(noted) == 2


def test_that_no_descriptor_is_left_is_said_once_until_there_were_some_for_a_while() -> None:
    noted: list[str] = []

    def note(kind: str, text: str, *, warning: bool = False) -> None:
        assert (kind, warning) == ("descriptors", True)
        noted.append(text)

    with capture_logs() as lines:
        descriptors = Descriptors(structlog.get_logger(), note)
        descriptors.seen(left=True, now=1.0)
        assert (descriptors.problem, noted) == ("", [])
        for wave in range(10):
            descriptors.seen(left=False, now=10.0 + wave)
            descriptors.seen(left=True, now=10.5 + wave)
            assert descriptors.problem == NO_DESCRIPTOR
        descriptors.seen(left=True, now=19.0 + CALM_SECONDS)
        assert descriptors.problem == ""
        assert len(lines) == len(noted) == 1
        descriptors.seen(left=False, now=20.0 + CALM_SECONDS)
    assert len(lines) == len(noted) == 2
