"""The data that each member sends to the leader of its group, in its subscription."""

import pytest
from kio.schema.errors import ErrorCode

from proxy.cooperative.membership import Offer, read_offer, rejoin
from proxy.cooperative.ranges import FULL
from tests.protocol.kio_messages import kio_decode, response_class

SUBSCRIPTION = b"\0\0" + b"\0\0\0\1\0\1t" + b"\xff\xff\xff\xff"
"""A consumer's subscription to topic t: version 0, without user data."""


def test_what_a_member_offers_is_read_as_it_was() -> None:
    """When a member's offer is written and read again, all values are the same.

    All numbers in the offer differ, so that a mix-up of two fields would be found.
    """
    planned = {(b"t", 1): 0, (b"t", 2): 0x8000_0000, (b"u", 0): 7}
    held = {(b"t", 3): FULL}
    offer = Offer(b"gateway", b"host", planned, held, True, False, True, False, SUBSCRIPTION)
    assert read_offer(offer.encoded()) == offer


@pytest.mark.parametrize("version", range(6))
def test_who_syncs_may_be_told_to_join_again(version: int) -> None:
    name, flexible = b"\0\1c", version >= 4
    request = (14).to_bytes(2) + version.to_bytes(2) + (7).to_bytes(4) + name + bytes(flexible)
    response = rejoin(len(request).to_bytes(4) + request)
    head = 4 + 4 + flexible
    assert int.from_bytes(response[:4]) == len(response) - 4
    said = kio_decode(response_class(14, version), response[head:])
    assert (said.error_code, said.assignment) == (ErrorCode.rebalance_in_progress, b"")
