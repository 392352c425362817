"""Batches get another producer id, and their CRC stays right."""

import google_crc32c
import pytest

from replay.drive.batches import with_producers

TRANSACTIONAL = 0x10


def batch(producer: tuple[int, int, int], *, attributes: int = 0, payload: bytes = b"") -> bytes:
    id_, epoch, sequence = producer
    tail = attributes.to_bytes(2) + bytes(20)
    tail += id_.to_bytes(8, signed=True) + epoch.to_bytes(2, signed=True) + sequence.to_bytes(4, signed=True)
    tail += (1).to_bytes(4) + payload
    head = (7).to_bytes(8) + (9 + len(tail)).to_bytes(4) + (5).to_bytes(4) + b"\x02"
    crc: int = google_crc32c.value(tail)
    return head + crc.to_bytes(4) + tail


@pytest.mark.parametrize("size", [0, 1, 63, 64, 1_000, 100_003])
def test_the_crc_is_that_of_the_batch_with_the_other_id(size: int) -> None:
    payload = bytes(number * 31 % 251 for number in range(size))
    captured = batch((1000, 3, 17), payload=payload)

    assert with_producers(captured, {(1000, 3): (7, 0)}) == batch((7, 0, 17), payload=payload)
    assert with_producers(captured, {}) == batch((-1, -1, -1), payload=payload)


def test_a_wrong_crc_stays_wrong() -> None:
    captured, now = bytearray(batch((1000, 3, 17))), bytearray(batch((7, 0, 17)))
    captured[20] ^= 1
    now[20] ^= 1

    assert with_producers(bytes(captured), {(1000, 3): (7, 0)}) == now


def test_each_batch_has_its_own_producer() -> None:
    plain, other = batch((-1, -1, -1), payload=b"a"), batch((4, 1, 2), payload=b"b")
    transactional = batch((9, 0, 0), attributes=TRANSACTIONAL, payload=b"c")

    found = with_producers(plain + other + transactional, {(4, 1): (5, 6)})

    assert found == plain + batch((5, 6, 2), payload=b"b") + transactional


@pytest.mark.parametrize("cut", [1, 30, 60])
def test_what_is_no_whole_batch_stays_as_it_is(cut: int) -> None:
    captured = batch((1000, 3, 17))
    older = captured[:16] + b"\x01" + captured[17:]

    assert with_producers(captured[:-cut], {}) == captured[:-cut]
    assert with_producers(older, {}) == older
