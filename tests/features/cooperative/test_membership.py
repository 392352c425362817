"""The data that each member sends to the leader of its group, in its subscription."""

import pytest
from kio.schema.errors import ErrorCode

from proxy.features.cooperative.assignment import Assignment
from proxy.features.cooperative.membership import (
    LAYOUT,
    MARKER,
    Offer,
    assignment,
    read_given,
    read_offer,
    rejoin,
    write_given,
)
from proxy.features.cooperative.ranges import FULL
from proxy.features.cooperative.slots import MAX_SLOTS, Seat
from proxy.protocol.primitives import Malformed, ProtocolError
from tests.protocol.kio_messages import kio_decode, message_class

SUBSCRIPTION = b"\0\0" + b"\0\0\0\1\0\1t" + b"\xff\xff\xff\xff"
"""A consumer's subscription to topic t: version 0, without user data."""


def test_what_a_member_offers_is_read_as_it_was() -> None:
    """When a member's offer is written and read again, all values are the same.

    All numbers in the offer differ, so that a mix-up of two fields would be found.
    """
    planned = {(b"t", 1): 0, (b"t", 2): 0x8000_0000, (b"u", 0): 7}
    held = {(b"t", 3): FULL}
    offer = Offer(b"gateway", b"host", planned, held, True, False, False, 2**23 - 1, SUBSCRIPTION)
    assert read_offer(offer.encoded()) == offer


SEAT = Seat(2**63 - 1, MAX_SLOTS, MAX_SLOTS - 1, frozenset([(b"t", 1)]))
GIVEN = Assignment(
    lanes={(b"t", 1): ((3, 9),)}, planned={(b"t", 2): FULL}, seat=SEAT, begins=frozenset([(b"u", 7)])
)


def test_what_the_leader_gives_is_read_as_it_was() -> None:
    assert read_given(write_given(GIVEN)) == GIVEN


def test_the_layout_of_what_the_leader_gives() -> None:
    """If these bytes change, other than by fields at their end, `LAYOUT` and `PROTOCOL` have to, too."""
    places = "0000 00000001 000174 00000001 00000001"
    lanes = "00000001 000174 00000001 00000001 00000003 00000009"
    planned = "00000001 000174 00000002 00000001 00000000 ffffffff"
    seat = "7fffffffffffffff 00000400 000003ff 00 00000001 000174 00000001 00000001"
    begins = "00000001 000175 00000001 00000007"
    data = bytes.fromhex(f"66676b 31 {lanes} {planned} {seat} {begins}")
    assert write_given(GIVEN) == bytes.fromhex(places) + len(data).to_bytes(4) + data
    later = data + b"more"
    assert read_given(bytes.fromhex(places) + len(later).to_bytes(4) + later) == GIVEN


@pytest.mark.parametrize("data", [assignment([(b"t", 1)]), assignment([(b"t", 1)], b"other"), b"?"])
def test_what_no_gateway_gives_is_a_plain_assignment(data: bytes) -> None:
    assert read_given(data) is None


@pytest.mark.parametrize("user_data", [MARKER, MARKER + b"2", MARKER + b"2" + bytes(40), MARKER + LAYOUT])
def test_what_a_gateway_gives_in_another_layout_is_no_plain_assignment(user_data: bytes) -> None:
    with pytest.raises(ProtocolError):
        read_given(assignment([(b"t", 1)], user_data))


@pytest.mark.parametrize(
    "seat",
    [
        SEAT._replace(slots=2**31 - 1),
        SEAT._replace(slots=-1),
        SEAT._replace(number=MAX_SLOTS),
        SEAT._replace(number=-1),
        SEAT._replace(plan=-1),
    ],
)
def test_a_leader_gives_no_seat_that_costs_any_amount_of_memory(seat: Seat) -> None:
    """A client without a gateway may lead the group, and write any assignment."""
    with pytest.raises(Malformed):
        read_given(write_given(Assignment(seat=seat)))


@pytest.mark.parametrize("version", range(6))
def test_who_syncs_may_be_told_to_join_again(version: int) -> None:
    name, flexible = b"\0\1c", version >= 4
    request = (14).to_bytes(2) + version.to_bytes(2) + (7).to_bytes(4) + name + bytes(flexible)
    response = rejoin(len(request).to_bytes(4) + request)
    head = 4 + 4 + flexible
    assert int.from_bytes(response[:4]) == len(response) - 4
    said = kio_decode(message_class(14, version), response[head:])
    assert (said.error_code, said.assignment) == (ErrorCode.rebalance_in_progress, b"")
