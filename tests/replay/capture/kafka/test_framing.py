"""Frames are found even if a header is split between two runs of bytes, or if other bytes follow a frame."""

import pytest

from replay.capture.kafka.exchange import ConnectionEnd
from replay.capture.kafka.pairing import Keep, Pairing
from replay.capture.kafka.request_frames import RequestFraming
from tests.replay.capture.talk import Talk, request, response

ASKED = request(12, 1, 5, b"\0" * 8)
TOLD = response(5)
HEADER = 14
"""The number of bytes in a request before its client id."""


def said(talk: Talk) -> list[tuple[int, int, int]]:
    exchanges, _ = talk.read()
    return [(one.correlation_id, one.request_bytes, one.response_bytes) for one in exchanges]


@pytest.mark.parametrize("cut", range(1, len(ASKED)))
def test_a_request_may_be_spread_over_two_runs_at_any_byte(cut: int) -> None:
    talk = Talk().client(ASKED[:cut]).client(ASKED[cut:]).broker(TOLD)

    assert said(talk) == [(5, len(ASKED), len(TOLD))]


@pytest.mark.parametrize("cut", range(1, len(TOLD)))
def test_a_response_may_be_spread_over_two_runs_at_any_byte(cut: int) -> None:
    talk = Talk().client(ASKED).broker(TOLD[:cut]).broker(TOLD[cut:])

    assert said(talk) == [(5, len(ASKED), len(TOLD))]


def test_frames_may_come_byte_by_byte() -> None:
    talk = Talk()
    for number in range(3):
        for byte in request(12, 1, number, b"\0" * 8):
            talk.client(bytes([byte]))
        for byte in response(number):
            talk.broker(bytes([byte]))

    assert said(talk) == [(number, len(ASKED), len(TOLD)) for number in range(3)]


@pytest.mark.parametrize("cut", range(1, HEADER))
def test_a_header_that_turns_out_to_be_none_is_searched_over_until_the_next_frame(cut: int) -> None:
    """If the bytes after a frame are not a header, the next frame is found by its contents."""
    noise = b"\xff" * HEADER
    talk = Talk().client(ASKED).broker(TOLD).client(noise[:cut]).client(noise[cut:])
    for number in range(6, 12):
        talk.client(request(12, 1, number, b"\0" * 8)).broker(response(number))

    exchanges, end = talk.read()

    assert [one.correlation_id for one in exchanges if one.response_bytes] == [5, *range(6, 12)]
    assert (end.unframed_bytes, end.resyncs) == (len(noise), 1)


@pytest.mark.parametrize("cut", range(1, len(ASKED)))
def test_a_frame_of_which_the_rest_is_lost_costs_itself_alone(cut: int) -> None:
    lost = request(12, 1, 6, b"\0" * 8)
    talk = Talk().client(ASKED).broker(TOLD)
    talk.client(lost[:cut]).client(lost[cut:], lost=True).broker(response(6))
    for number in range(7, 12):
        talk.client(request(12, 1, number, b"\0" * 8)).broker(response(number))

    exchanges, end = talk.read()

    paired = [one.correlation_id for one in exchanges if one.request_bytes and one.response_bytes]
    assert [number for number in paired if number != 6] == [5, *range(7, 12)]
    assert end.gap_bytes == len(lost) - cut


def test_bytes_that_can_not_be_decrypted_end_the_frame_before_them() -> None:
    """What is missing after them is no part of it."""
    end = ConnectionEnd(connection="", client="", broker="")
    framing = RequestFraming(Pairing(end, lambda _: None, Keep()))
    framing.begin()
    framing.data(memoryview(ASKED + ASKED[:20]), 1, 1)

    framing.unread(100, partial=False)
    framing.gap(50, cut=False)
    framing.finish()

    assert (framing.partial_bytes, framing.unframed_bytes, framing.frame_gap_bytes) == (20, 100, 0)
