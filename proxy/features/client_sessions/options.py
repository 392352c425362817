"""The options ``--client-sessions`` and those of the cache, which have the names of the broker's."""

from dataclasses import dataclass

from proxy.text.options import Section, option
from proxy.text.units import milliseconds
from proxy.text.values import one_of, whole


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSessionOptions(Section):
    """The options of this feature."""

    client_sessions: str = option(
        metavar="auto|on|off",
        parse=one_of("auto", "on", "off"),
        default="auto",
        help="who gives a session to clients that ask for one (Java, franz-go, kafka-python); auto: the "
        "broker, or the gateway if the broker gives none (Kafka before 1.1, no slot left, services without "
        "sessions); on: always the gateway; off: only the broker",
    )
    max_incremental_fetch_session_cache_slots: int = option(
        metavar="N",
        parse=whole(0),
        default="1000",
        help="how many sessions the gateway keeps for clients, like the broker's option of this name",
    )
    min_incremental_fetch_session_eviction_ms: int = option(
        metavar="TIME",
        parse=milliseconds,
        default="120000",
        help="a larger session can evict a session kept for a client only after this time since its start; "
        "any session can evict it after this time without a fetch; a number without a unit is in "
        "milliseconds; in brokers it is always 120000",
    )
