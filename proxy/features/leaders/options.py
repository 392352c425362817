"""The option ``--follow-leader``."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from proxy.text.options import Section, option
from proxy.text.units import switch
from proxy.text.values import left_out


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderOptions(Section):
    """The option of this feature."""

    removed: ClassVar[Mapping[str, str]] = {
        "follow_leader fetch": "use on",
        "follow_leader idempotent": "use on, which retries fetches; a producer finds the new leader itself",
    }

    follow_leader: bool = option(
        metavar="on|off",
        parse=switch,
        parse_transparent=left_out(False, "the gateway can only distinguish brokers in explicit mode"),
        default="off",
        help="on: after a leader has moved, the gateway retries the fetch at the new leader, on the client's "
        "own connection there; for clients whose responses do not name the new leader (Fetch below v16, "
        "KIP-951); off: the client gets the error and finds the new leader itself; not with --transparent",
    )
