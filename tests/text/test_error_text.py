"""Errors are shown with the message of the operating system, without Python's additions."""

import socket

import pytest

from proxy.text.error_text import reason_of


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ConnectionRefusedError(111, "Connect call failed ('127.0.0.1', 1)"), "Connection refused"),
        (socket.gaierror(-2, "Name or service not known"), "unknown host: Name or service not known"),
        (TimeoutError(), "timed out"),
        (UnicodeError("label too long"), "label too long"),
    ],
)
def test_reasons_are_the_systems_words(error: Exception, words: str) -> None:
    assert reason_of(error) == words
