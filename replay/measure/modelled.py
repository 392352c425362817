"""Computes the figures that are estimated by a model, not counted: TCP and IP headers, and money. Sans-IO."""

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from replay.measure.net import AddressSums, net, saved_by_zone
from replay.measure.sums import FetchSums
from replay.measure.zone_places import Zone
from replay.report.decision import DailyRate, by_fetch_min_bytes
from replay.report.model import ClientRow, FetchReport, Modelled, Money, TcpIp, actual_bytes, predicted_bytes

_SEGMENT: Final = 1448
_HEADERS: Final = 52
_GB: Final = 10**9
_TCP_IP: Final = (
    f"each frame begins a TCP segment of at most {_SEGMENT} bytes; {_HEADERS} bytes of headers a segment "
    "(IPv4 20, TCP 20, timestamps 12); no acknowledgements, link layer or TLS"
)
_MONEY: Final = "saved fetch bytes, Kafka frames only, both directions, times the price given"


def modelled(
    fetches: FetchSums,
    rate: DailyRate,
    *,
    saved_between: Mapping[tuple[str, str], int],
    addresses: Mapping[str, AddressSums],
    sidecar_cost: float | None,
    zone: Callable[[str, str], Zone],
    clients: Iterable[ClientRow],
    known: bool,
) -> Modelled:
    """Return the modelled part of the report.

    `saved_between` has the saved bytes by the client's rack and the broker's address. It is needed only with
    a price in `rate`, and `addresses` only with a cost of sidecars. `zone` tells whether a client of this
    rack and the broker at this address are in the same zone. `known` is whether the saving is known. If it is
    not, or without a price in `rate`, there is no money.
    """
    fetch = fetches.fetch()
    actual, sessions = fetch["actual"], fetch["sessions"]
    sent = sessions["full"] + sessions["incremental"] + sessions["sessionless"] + fetches.closes
    frames = actual["requests"] + actual["responses"]
    predicted = frames + 2 * (sent - fetch["eligible"]["exchanges"])
    tcp_ip = TcpIp(
        bytes_actual=_headers(frames, actual_bytes(fetch)),
        bytes_predicted=_headers(predicted, predicted_bytes(fetch)),
        how=_TCP_IP,
    )
    return Modelled(
        tcp_ip=tcp_ip,
        fetch_min_bytes=by_fetch_min_bytes(clients, rate if known else DailyRate(seconds=rate.seconds)),
        money=_money(fetch, rate, saved_between, zone) if known else None,
        net=net(addresses, rate, sidecar_cost, zone) if known and sidecar_cost is not None else None,
    )


def _headers(frames: int, size: int) -> int:
    """Return the size of TCP and IP headers: of a segment for each frame, and for each `_SEGMENT` bytes."""
    return (frames + size // _SEGMENT) * _HEADERS


def _money(
    fetch: FetchReport,
    rate: DailyRate,
    saved_between: Mapping[tuple[str, str], int],
    zone: Callable[[str, str], Zone],
) -> Money | None:
    if rate.price_per_gb is None:
        return None
    saved_bytes, zoned = fetch["saved_bytes"], saved_by_zone(saved_between, zone)
    return Money(
        price_per_gb=rate.price_per_gb,
        currency=rate.currency,
        saved=saved_bytes / _GB * rate.price_per_gb,
        saved_per_month=rate.month(saved_bytes),
        captured_per_month=rate.month(actual_bytes(fetch)),
        saved_between_zones_per_month=rate.month(zoned["other"]) if zoned else None,
        how=_MONEY,
    )
