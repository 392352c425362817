"""Which requests of producers with a transactional id may be played: whole transactions, or none. Sans-IO.

Half a transaction does harm. One that nobody ends holds up all consumers with read_committed until its
timeout, and records without their transaction are refused.
"""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Final

from proxy.protocol.api import ApiKey
from replay.protocol.names import name_of

WRITES: Final = frozenset(
    {
        ApiKey.PRODUCE,
        ApiKey.INIT_PRODUCER_ID,
        ApiKey.ADD_PARTITIONS_TO_TXN,
        ApiKey.ADD_OFFSETS_TO_TXN,
        ApiKey.TXN_OFFSET_COMMIT,
        ApiKey.END_TXN,
    }
)
"""The APIs whose requests belong to a transaction if they name a transactional id."""
UNBEGUN: Final = "a part of a transaction; the capture does not have its producer's InitProducerId"
UNENDED: Final = "a part of a transaction that does not end in the played part of the capture"
UNWANTED: Final = "a part of a transaction, which is played whole or not at all; --include also {}"


@dataclass(frozen=True, slots=True)
class Part:
    """A request of a producer."""

    transaction: bytes
    """The transactional id. Empty if the request has none."""
    api_key: int
    gives: bool
    """Whether the captured response gave the producer its id."""


def left_out(parts: Sequence[Part], unwanted: Mapping[bytes, AbstractSet[int]]) -> list[str]:
    """Return for each request, in the order of their times, why it can't be played, or "".

    `unwanted` has, by transactional id, the APIs of its other requests, which are not played.
    """
    reasons = [""] * len(parts)
    unended: dict[bytes, list[int]] = {}
    """Transactional id -> the requests of its open transaction, for each producer that has begun."""
    for place, part in enumerate(parts):
        if not part.transaction:
            continue
        if missing := unwanted.get(part.transaction):
            reasons[place] = UNWANTED.format(",".join(sorted(map(name_of, missing))))
        elif part.api_key == ApiKey.INIT_PRODUCER_ID:
            if part.gives:  # the coordinator has aborted an open transaction
                unended[part.transaction] = []
        elif part.transaction not in unended:
            reasons[place] = UNBEGUN
        elif part.api_key == ApiKey.END_TXN:
            unended[part.transaction] = []
        else:
            unended[part.transaction].append(place)
    for places in unended.values():
        for place in places:
            reasons[place] = UNENDED
    return reasons
