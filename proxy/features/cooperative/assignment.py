"""What a member has from its last SyncGroup."""

from dataclasses import dataclass, field
from math import inf
from typing import Final

from proxy.features.cooperative.plan import Lanes
from proxy.features.cooperative.positions import TopicPartition
from proxy.features.cooperative.slots import Seat

ANY: Final = (1 << 63) - 1
"""The highest offset: all offsets are below it."""
NOTHING: Final = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """What the group gave to a member. The next SyncGroup replaces it as a whole."""

    # What the leader's gateway has written (`membership.read_given`)
    lanes: Lanes = field(default_factory=dict)
    """Also the lanes of a named lane that a client.id declares."""
    planned: Lanes = field(default_factory=dict)
    """The lanes that the group plans for the member. If `lanes` has other partitions, the member has to join
    again (`plan.at_once`)."""
    seat: Seat | None = None
    begins: frozenset[TopicPartition] = frozenset()
    """The partitions without a committed offset. When the member's first offset of these is committed, it
    joins again, so that the group can share them across gateways."""
    # What this process adds
    plain: bool = False
    """Whether the group shares no partition: the member has whole partitions."""
    number: int = 0
    """How many assignments this process has given to the member. 0: it has none yet."""
    released: Lanes = field(default_factory=dict)
    """Lanes that the member had before and for which it may still commit. Its client releases them only after
    the rebalance."""
    has_shared: bool = False
    """Whether the group has given lanes to the member, now or before. If not, all hashes of a partition have
    the same committed offset."""
    untold: int = NOTHING
    """The offset up to which a partition counts as sent if the client was not told its committed offset."""
    gave_up_all: bool = False
    """Whether it is empty because the client kept an earlier position (`Member.keeps_position`). The member
    joins again after it has received it. If it still requests no offsets after joining again, its application
    sets the positions."""
    anew_at: float = -inf
    """If the assignment before this one was empty for that reason, when this one was requested, in seconds:
    the client certainly had no position then. Otherwise -inf."""
    waits_until: float = -inf
    """The time before which the member does not join again, in seconds. If this process did not know the
    member when it joined, another one may still serve its earlier lanes until then."""
