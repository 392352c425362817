"""A topic of the target. Sans-IO."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from proxy.protocol.primitives import UUID_BYTES
from replay.drive.asked import Offsets


@dataclass(slots=True, kw_only=True, eq=False)
class Topic:
    """A topic of the target. Arrays have an item for each partition, from 0 on."""

    topic_id: bytes = bytes(UUID_BYTES)
    """The topic id at the target. Zeros if the target gives no ids (below Metadata v10)."""
    leaders: npt.NDArray[np.int32]
    """Node ids of the leaders. -1 for no leader."""
    leader_epochs: npt.NDArray[np.int32]
    """-1 if the target does not give it."""
    earliest: Offsets
    """-1 if unknown."""
    latest: Offsets
    """-1 if unknown."""

    @property
    def partitions(self) -> int:
        return len(self.leaders)
