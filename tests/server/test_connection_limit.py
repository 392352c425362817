"""Problems that affect many clients are logged once per episode, not for each client.

The problems are a reached connection limit, and missing file descriptors.
"""

import structlog
from structlog.testing import capture_logs

from proxy.server.conditions import (
    CALM_SECONDS,
    NO_DESCRIPTOR,
    WARN_AGAIN_SECONDS,
    ConnectionLimit,
    Descriptors,
)


def test_the_connection_limit_is_logged_once_per_episode_and_not_too_often() -> None:
    noted: list[str] = []

    def note(kind: str, text: str, *, warning: bool = False) -> None:
        assert (kind, warning) == ("limit", True)
        noted.append(text)

    with capture_logs() as lines:
        limit = ConnectionLimit(structlog.get_logger(), note)
        now = 100.0
        assert limit.admits(9, 10, now)
        assert not limit.admits(10, 10, now)
        assert not limit.admits(10, 10, now)
        for wave in range(10):  # all leave and come back
            assert limit.admits(0, 10, now + wave / 10)
            assert not limit.admits(10, 10, now + wave / 10)
        assert len(lines) == len(noted) == 1
        later = now + WARN_AGAIN_SECONDS
        assert not limit.admits(10, 10, later), "there was none in between"
        assert len(lines) == 1
        assert limit.admits(8, 10, later)
        assert not limit.admits(10, 10, later)
    assert len(lines) == len(noted) == 2


def test_missing_descriptors_are_logged_once_until_there_were_enough_for_a_while() -> None:
    noted: list[str] = []

    def note(kind: str, text: str, *, warning: bool = False) -> None:
        assert (kind, warning) == ("descriptors", True)
        noted.append(text)

    with capture_logs() as lines:
        descriptors = Descriptors(structlog.get_logger(), note)
        descriptors.update(left=True, now=1.0)
        assert (descriptors.problem, noted) == ("", [])
        for wave in range(10):
            descriptors.update(left=False, now=10.0 + wave)
            descriptors.update(left=True, now=10.5 + wave)
            assert descriptors.problem == NO_DESCRIPTOR
        descriptors.update(left=True, now=19.0 + CALM_SECONDS)
        assert descriptors.problem == ""
        assert len(lines) == len(noted) == 1
        descriptors.update(left=False, now=20.0 + CALM_SECONDS)
    assert len(lines) == len(noted) == 2
