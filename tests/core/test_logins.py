"""Tests that the gateway logs it if a broker refuses a client's credentials.

SASL itself is forwarded unchanged.
"""

import pytest

from proxy.core.events import LoginRefused
from tests.playbook import Playbook, request, response

SASL_HANDSHAKE, SASL_AUTHENTICATE = 17, 36


@pytest.mark.parametrize(
    ("api_key", "version", "head"),
    [(SASL_HANDSHAKE, 1, b""), (SASL_AUTHENTICATE, 1, b""), (SASL_AUTHENTICATE, 2, b"\0")],
)
def test_what_the_broker_refuses_is_told_each_time(api_key: int, version: int, head: bytes) -> None:
    play = Playbook()
    for correlation, code in enumerate((0, 58, 0, 58), 1):
        play.client(asked := request(api_key, version, correlation, head + b"token")).to_broker(asked)
        told = response(correlation, head + code.to_bytes(2) + b"why")
        play.broker(told, chunk=len(told) - 2).to_client(told)
        assert play.events(LoginRefused) == [LoginRefused(error_code=code)] * (code > 0)


def test_too_little_of_a_response_is_not_told() -> None:
    play = Playbook()
    play.client(asked := request(SASL_AUTHENTICATE, 1, 1)).to_broker(asked)
    play.broker(told := response(1, b"\0")).to_client(told)
    assert play.events() == []
