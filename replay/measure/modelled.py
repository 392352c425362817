"""The figures that are not counted: what headers of TCP and IP add, and what bytes cost. Sans-IO."""

from typing import Final

from replay.measure.sums import FetchSums
from replay.report.model import Modelled, Money, TcpIp, actual_bytes, predicted_bytes

_SEGMENT: Final = 1448
_HEADERS: Final = 52
_GB: Final = 10**9
_MONTH: Final = 30 * 86_400
_TCP_IP: Final = (
    f"each frame begins a TCP segment of at most {_SEGMENT} bytes; {_HEADERS} bytes of headers a segment "
    "(IPv4 20, TCP 20, timestamps 12); no acknowledgements, link layer or TLS"
)
_MONEY: Final = "saved fetch bytes, Kafka frames alone, both directions, times the price given"


def modelled(tally: FetchSums, seconds: float, price_per_gb: float | None) -> Modelled:
    """Return what is modelled.

    Args:
        tally: of all fetches.
        seconds: how long the capture took.
        price_per_gb: of 10^9 bytes; None: nothing is said of money.
    """
    fetch = tally.fetch()
    actual, sessions = fetch["actual"], fetch["sessions"]
    sent = sessions["full"] + sessions["incremental"] + sessions["sessionless"] + tally.closes
    frames = actual["requests"] + actual["responses"]
    then = frames + 2 * (sent - fetch["eligible"]["exchanges"])
    tcp_ip = TcpIp(
        bytes_actual=_headers(frames, actual_bytes(fetch)),
        bytes_predicted=_headers(then, predicted_bytes(fetch)),
        how=_TCP_IP,
    )
    return Modelled(tcp_ip=tcp_ip, money=_money(fetch["saved_bytes"], seconds, price_per_gb))


def _headers(frames: int, size: int) -> int:
    """Return bytes of headers: a frame takes a segment, and one more for each `_SEGMENT` bytes of all."""
    return (frames + size // _SEGMENT) * _HEADERS


def _money(saved_bytes: int, seconds: float, price_per_gb: float | None) -> Money | None:
    if price_per_gb is None:
        return None
    saved = saved_bytes / _GB * price_per_gb
    return Money(
        price_per_gb=price_per_gb,
        saved=saved,
        saved_per_month=saved / seconds * _MONTH if seconds else 0.0,
        how=_MONEY,
    )
