"""The option ``--max-connection-age``."""

from dataclasses import dataclass

from proxy.text.options import Section, option
from proxy.text.units import seconds


def _age(text: str) -> float:
    if 0 < (found := seconds(text)) < 1:
        raise ValueError(f"{text!r} is too short: give at least 1s, or 0 for no limit")
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class AgeOptions(Section):
    """The option of this feature."""

    max_connection_age: float = option(
        metavar="TIME",
        parse=_age,
        default="0",
        help="end each connection after about this time (up to 10 percent more or less, by chance): the "
        "gateway reads no further request, finishes those in flight and closes the session; clients connect "
        "again, so they spread over gateways after a scale-out, and see new certificates; connections that "
        "are forwarded because they are not plain Kafka stay open; not for cooperative groups whose gateways "
        "share an address; 0: never",
        live=True,
    )
    """The age in seconds. 0 means no limit."""
