"""Bytes of Produce are counted apart, on the broker's side, however they are forwarded."""

import pytest

from tests.playbook import Playbook, request, response

PRODUCE, HEARTBEAT = 0, 12


def produce(correlation: int, records: int, acks: int = 1) -> bytes:
    body = acks.to_bytes(2, signed=True) + (30_000).to_bytes(4) + bytes(records)
    return request(PRODUCE, 2, correlation, body)


@pytest.mark.parametrize("chunk", [1, 50, 1 << 20])
def test_requests_and_responses_of_any_kind_of_client_are_counted(chunk: int) -> None:
    """Whole ones and pieces, with and without a response, on the fast path and before it."""
    play, sent = Playbook().knows(), 0
    for number in range(1, 9):
        asked, told = produce(number, 100), response(number, bytes(60))
        play.client(asked, chunk=chunk).to_broker(asked)
        play.broker(told, chunk=chunk).to_client(told)
        sent += len(asked) + len(told)
        play.exchange(request(HEARTBEAT, 0, 50 + number), response(50 + number, b"\0\0"))
    asked = produce(30, 40, acks=0)
    play.client(asked).to_broker(asked)
    assert play.connection.tally.produce_bytes == sent + len(asked)
    if chunk > 1000:
        assert play.connection.passed > 5
