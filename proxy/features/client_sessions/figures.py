"""The figures of clients' sessions: KIP-227's own metrics."""

from dataclasses import dataclass
from typing import Any, Final

from proxy.features.client_sessions.options import ClientSessionOptions
from proxy.features.feature import Reports
from proxy.prometheus.figure import COUNTER, GAUGE, Figure

_SIDE: Final = ("side",)


@dataclass(slots=True, kw_only=True)
class ClientSessionFigures:
    """The sessions that the gateway keeps for clients."""

    sessions: int = 0
    partitions: int = 0
    """Each session counts with its partitions at its last fetch."""
    evictions: int = 0


FIGURES: Final[tuple[Figure[ClientSessionFigures], ...]] = (
    # The gateway's own sessions at brokers have these two as well.
    Figure(GAUGE, "fetch_sessions", "", lambda it: [(("client",), it.sessions)], _SIDE),
    Figure(GAUGE, "fetch_session_partitions", "", lambda it: [(("client",), it.partitions)], _SIDE),
    Figure(
        GAUGE,
        "num_incremental_fetch_sessions",
        "Sessions that the gateway keeps for clients (--client-sessions). The metric of KIP-227.",
        lambda it: it.sessions,
    ),
    Figure(
        GAUGE,
        "num_incremental_fetch_partitions_cached",
        "Partitions in sessions that the gateway keeps for clients. The metric of KIP-227.",
        lambda it: it.partitions,
    ),
    Figure(
        COUNTER,
        "incremental_fetch_session_evictions",
        "Sessions kept for clients that the gateway evicted for others. The metric of KIP-227.",
        # Kafka's privileged sessions are those of followers. The gateway gives them none.
        lambda it: [(("false",), it.evictions), (("true",), 0)],
        ("privileged",),
    ),
)


def _state(options: ClientSessionOptions, figures: ClientSessionFigures | None) -> dict[str, Any]:
    found = figures or ClientSessionFigures()
    return {
        "client_sessions": {
            "mode": options.client_sessions,
            "held": found.sessions,
            "partitions": found.partitions,
            "max": options.max_incremental_fetch_session_cache_slots,
            "evictions": found.evictions,
        }
    }


REPORTS: Final = Reports(kind=ClientSessionFigures, figures=FIGURES, state=_state)
