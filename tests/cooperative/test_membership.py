"""What members tell the leader of their group, in their subscription."""

from proxy.cooperative.membership import Offer, read_offer
from proxy.cooperative.ranges import FULL

SUBSCRIPTION = b"\0\0" + b"\0\0\0\1\0\1t" + b"\xff\xff\xff\xff"
"""Version 0 of a consumer's, to topic t, without user data."""


def test_what_a_member_offers_is_read_as_it_was() -> None:
    """Each number is another one: a partition is not a hash."""
    planned = {(b"t", 1): 0, (b"t", 2): 0x8000_0000, (b"u", 0): 7}
    offer = Offer(b"gateway", b"host", planned, {(b"t", 3): FULL}, True, False, SUBSCRIPTION)
    assert read_offer(offer.encoded()) == offer
