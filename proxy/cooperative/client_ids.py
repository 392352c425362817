"""For applications: the client.id of a consumer with declared key ranges.

    from confluent_kafka import Consumer
    from proxy.cooperative.client_ids import client_id

    consumer = Consumer({"client.id": client_id("billing.host-7", member=0, members=4), ...})
    consumer.assign([...])

The gateway must run with ``--cooperative billing``. Without ``--cooperative``, or without a gateway, the id
is only a name: each consumer gets all records.

This module needs only the standard library.
"""

import re
from typing import Final

from proxy.cooperative.murmur2 import SPACE, murmur2

_OWN_ID: Final = re.compile(r"[A-Za-z0-9._-]+")


def client_id(own_id: str, member: int, members: int) -> str:
    """Return the client.id with which one of several consumers gets an equal part of all keys.

    Args:
        own_id: the application's id. It must be the name of the group, or begin with the name and a dot.
        member: the number of this consumer, from 0 on.
        members: the number of consumers.

    Raises:
        ValueError: `member` or `members` is out of range (see `range_of`), or the id is empty or has
            characters that client libraries refuse.
    """
    if not _OWN_ID.fullmatch(own_id):
        raise ValueError(f"{own_id!r}: a client.id may only have the characters A-Z a-z 0-9 . _ -")
    low, high = range_of(member, members)
    return f"{own_id}.kr-{low:08x}-{high:08x}"


def range_of(member: int, members: int) -> tuple[int, int]:
    """Return the lowest and the highest hash of a member's key range.

    Raises:
        ValueError: `member` is not between 0 and `members` - 1, or `members` exceeds 2^32.
    """
    if not 0 <= member < members <= SPACE:
        raise ValueError(f"member {member} of {members}: members are numbered from 0 on")
    return member * SPACE // members, (member + 1) * SPACE // members - 1


def member_of(key: bytes, members: int) -> int:
    """Return the number of the member that gets the records with a key.

    Raises:
        ValueError: `members` is not between 1 and 2^32.
    """
    if not 0 < members <= SPACE:
        raise ValueError(f"{members} members")
    return ((murmur2(key) + 1) * members - 1) // SPACE
