"""What the report says about the saving, the cost of sidecars, and what is left. Pure."""

from dataclasses import replace
from decimal import ROUND_CEILING, Decimal
from functools import partial

from replay.report.model import Net, NetBetweenZones, NetPaying, NetRow, Report, SidecarNeed
from replay.report.table import COUNT, ReportColumn, ReportTable, Unit, of_rows
from replay.report.wording import (
    HOUR,
    amount,
    duration,
    estimated_amount,
    estimated_from,
    estimated_price,
    first_of,
    number,
    per_gb,
    plural,
    price,
    size,
    untold,
)
from replay.report.zone_wording import racks_without_brokers


def _sum(money: float, seconds: float = HOUR) -> str:
    """Format a sum in a table. Large sums have no cents, so that they fit into 80 columns."""
    large = abs(money) >= 100_000 and seconds >= HOUR
    return f"{money:,.0f}" if large else estimated_price(money, seconds)


_COST = Unit(write=_sum)
_EACH_BYTE = (
    "The price applies to each saved byte. If you pay only for bytes between zones, name the zones of"
)
_BETWEEN_ZONES = (
    "In the table the price applies to each saved byte. The sum of bytes between zones has only the "
    "connections whose client and broker are known to be in different zones, with the same price and the "
    "same sidecars. The advice for each client is decided by this sum."
)
_LISTED = 3


def net_lines(report: Report) -> list[str]:
    """Say what is left of the saving. If zones are known, the sum of bytes between them is first."""
    hosts = report["decision"]["different_hosts"]
    if hosts and report["modelled"]["money"]:
        priced = hosts["sidecars_priced"]
        return ["Net: measure each capture alone; together they can't show it."] if priced else []
    found = report["modelled"]["net"]
    unknown = any(row["action"] == "capture again" for row in report["decision"]["to_do"])
    if untold(report) or (unknown and found and not found["sidecars"]):
        return []
    between, each = net_between_zones(found), net_in_short(found)
    # Clients whose rack is misspelt seem to fetch all of their bytes from other zones.
    misspelt = racks_without_brokers(report["zones"]) if between and "zones" in report else ""
    return [line for line in (f"{between} {misspelt}".strip(), each) if line]


def net_in_short(found: Net | None) -> str:
    """Say what is left of the saving, in one sentence; "" if this is not known."""
    if found is None:
        return ""
    if not found["sidecars"]:
        return "Net: sessions save nothing for any client here, so no sidecar is needed."
    one = found["services"][0]
    which = "Net if each saved byte costs money" if found["between_zones"] else "Net"
    text = f"{which}: {_left(found, one)}{_paying(found, found['paying'])}"
    if one["net_per_month"] >= 0:
        return text
    even = found["break_even_price_per_gb"]
    return (
        text if even is None else f"{text} Sidecars pay at more than {break_even(even, found['currency'])}."
    )


def net_between_zones(found: Net | None) -> str:
    """Say what is left if only bytes between zones have the price; "" if no zone is known."""
    one = found["between_zones"] if found else None
    if found is None or one is None:
        return ""
    saved = one["saved_bytes"]
    whole = saved["same"] + saved["other"] + saved["unknown"]
    unknown = f", the zones of {size(saved['unknown'])} are not known" if saved["unknown"] else ""
    return (
        f"Net if only bytes between zones cost money ({size(saved['other'])} of {size(whole)} "
        f"saved{unknown}): {_left(found, one)}{_paying(found, one['paying'])}"
    )


def _left(found: Net, one: NetRow | NetBetweenZones) -> str:
    left, cost = one["net_per_month"], found["services"][0]["cost_per_month"]
    sidecars = f" for {plural(found['sidecars'], 'sidecar')} (one per client address)"
    text = _sums(found, one["saved_per_month"], cost, sidecars, one["net_per_year"])
    return f"{text}." if left >= 0 else f"{text}: the cost is higher than the saving."


def _sums(found: Net, saved: float, cost: float, sidecars: str, year: float) -> str:
    currency, seconds = found["currency"], found["captured_seconds"]
    before, after = _that_add_up(saved, cost, seconds)
    return (
        f"{before} {currency}".rstrip()
        + f" saved - {amount(cost, currency)}{sidecars} = "
        + f"{after} {currency}".rstrip()
        + f" a month, {estimated_amount(year, currency, seconds)} a year"
    )


def _that_add_up(saved: float, cost: float, seconds: float) -> tuple[str, str]:
    """Format a saving and what is left of it, so that the line adds up as shown.

    If less than an hour was captured, both have two digits, or as many more as this needs.
    """
    cents, cost_cents = round(100 * saved), round(100 * cost)
    left = cents - cost_cents
    rounded = 0 if seconds >= HOUR else max(min(len(str(abs(one))) for one in (cents, left)) - 2, 0)
    while rounded and round(cents, -rounded) - cost_cents != round(left, -rounded):
        rounded -= 1
    if not rounded:
        return price(saved), price(left / 100)
    whole, rest = (f"{round(one, -rounded) / 100:,.{max(2 - rounded, 0)}f}" for one in (cents, left))
    return whole, rest


def _paying(found: Net, paying: NetPaying) -> str:
    """Say which sidecars pay, and the net for these alone; "" if all pay, or none."""
    addresses = paying["addresses"]
    count = len(addresses)
    if count in {0, found["sidecars"]}:
        return ""
    saves = "saves more than it costs" if count == 1 else "save more than they cost"
    sums = _sums(found, paying["saved_per_month"], paying["cost_per_month"], "", paying["net_per_year"])
    return (
        f" {number(count)} of the {plural(found['sidecars'], 'sidecar')} {saves}. With sidecars only at "
        f"{first_of(addresses, _LISTED)}: {sums}."
    )


def break_even(price_per_gb: float, currency: str) -> str:
    """Format a price of 10^9 bytes, rounded up to three digits, or to cents if these are finer."""
    exact = Decimal(f"{price_per_gb:.12g}")
    step = Decimal(1).scaleb(min(exact.adjusted() - 2, -2))
    return per_gb(float(exact.quantize(step, ROUND_CEILING)), currency)


def net_table(found: Net) -> ReportTable:
    """Return the table of the sums for a number of services alike."""
    seconds = found["captured_seconds"]
    estimated = Unit(write=partial(_sum, seconds=seconds))
    left = replace(estimated, sign=lambda left: (left > 0) - (left < 0))
    return of_rows(
        f"Saved, cost and net, in {found['currency']} ({estimated_from(seconds)})",
        found["services"],
        ReportColumn(title="Services", key="services", unit=COUNT),
        ReportColumn(title="Sidecars", key="sidecars", unit=COUNT),
        ReportColumn(title="Saved a month", key="saved_per_month", unit=estimated, short="saved/month"),
        ReportColumn(title="Cost a month", key="cost_per_month", unit=_COST, short="cost/month"),
        ReportColumn(title="Net a month", key="net_per_month", unit=left, short="net/month"),
        ReportColumn(title="Saved a year", key="saved_per_year", unit=estimated, wide=True),
        ReportColumn(title="Cost a year", key="cost_per_year", unit=_COST, wide=True),
        ReportColumn(title="Net a year", key="net_per_year", unit=left, short="net/year"),
    )


def net_explained(report: Report) -> list[str]:
    """Say how the sums are computed, and what a sidecar needs."""
    found = report["modelled"]["net"]
    if found is None:
        return []
    cost = amount(found["sidecar_cost_per_month"], found["currency"])
    of = plural(found["sidecars"], "sidecar")
    zoned = found["between_zones"]
    between = f" (by bytes between zones: {number(len(zoned['paying']['addresses']))})" if zoned else ""
    sums = (
        f"One service is all clients of this capture. It needs {of}: one for each client address where "
        "sessions save bytes; all clients at one address count as one. "
        f"Each costs {cost} a month; sidecars that save more than that: "
        f"{number(found['sidecars_that_pay'])}{between}. "
        f"A month is 30 days of the same traffic as in the captured {duration(found['captured_seconds'])}; a "
        "year is 12 such months. Sums are rounded only when shown, to two digits if less than an hour was "
        "captured."
    )
    if not found["largest"]:
        return [sums]
    priced = (
        _BETWEEN_ZONES
        if zoned
        else f"{_EACH_BYTE} {_missing(report)}: the report then has a sum of only these bytes."
    )
    return [sums, priced, _needs(found["largest"])]


def _missing(report: Report) -> str:
    if "zones" not in report:
        return "clients with --client-rack (and those of brokers with --broker-rack, if Metadata has none)"
    zones = report["zones"]
    clients, brokers = (any(row["rack"] for row in zones[rows]) for rows in ("clients", "brokers"))
    if clients and not brokers:
        return "brokers with --broker-rack (those of clients are known)"
    if brokers and not clients:
        return "clients, by the networks of this capture, with --client-rack (those of brokers are known)"
    return "all clients with --client-rack, and of all brokers with --broker-rack"


def _needs(one: SidecarNeed) -> str:
    return (
        f"--sidecar-cost is the price of the resources reserved for a sidecar. For fetches, the busiest one "
        f"needs {size(one['memory_bytes'])} of memory, without responses in flight, and "
        f"{one['cpu_millicores']:,.1f} millicores (thousandths of a core). This is computed from its "
        f"{plural(one['connections'], 'connection')} with {plural(one['partitions'], 'partition')}, "
        f"{one['fetches_per_second']:,.1f} fetches a second, {one['partitions_per_second']:,.1f} listed "
        f"partitions a second and {size(round(one['record_bytes_per_second']))} of records a second, times "
        "the costs in BENCHMARKS.md."
    )
