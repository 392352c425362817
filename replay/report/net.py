"""What the report says about the saving, the cost of sidecars, and what is left. Pure."""

from decimal import ROUND_CEILING, Decimal

from replay.report.model import Net, SidecarNeed
from replay.report.table import COUNT, ReportColumn, ReportLine, ReportTable, Unit
from replay.report.wording import amount, duration, number, per_gb, plural, price, size

_MONEY = Unit(write=price)
_LEFT = Unit(write=price, sign=lambda left: (left > 0) - (left < 0))


def net_in_short(found: Net | None) -> str:
    """Say what is left of the saving, in one sentence; "" if this is not known."""
    if found is None:
        return ""
    if not found["sidecars"]:
        return "Net: sessions save nothing for any client here, so no sidecar is needed."
    one, currency = found["services"][0], found["currency"]
    text = (
        f"Net: {amount(one['saved_per_month'], currency)} saved - {amount(one['cost_per_month'], currency)} "
        f"for {plural(found['sidecars'], 'sidecar')} = {amount(one['net_per_month'], currency)} a month, "
        f"{amount(one['net_per_year'], currency)} a year"
    )
    if one["net_per_month"] >= 0:
        return f"{text}."
    text += ": the cost is higher than the saving."
    if paying := found["sidecars_that_pay"]:
        saves = "saves more than it costs" if paying == 1 else "save more than they cost"
        text += f" {number(paying)} of the {plural(found['sidecars'], 'sidecar')} {saves}."
    even = found["break_even_price_per_gb"]
    return text if even is None else f"{text} Sidecars pay at more than {break_even(even, currency)}."


def break_even(price_per_gb: float, currency: str) -> str:
    """Format a price of 10^9 bytes, rounded up to three digits, or to cents if these are finer."""
    exact = Decimal(f"{price_per_gb:.12g}")
    step = Decimal(1).scaleb(min(exact.adjusted() - 2, -2))
    return per_gb(float(exact.quantize(step, ROUND_CEILING)), currency)


def net_table(found: Net) -> ReportTable:
    """Return the table of the sums for a number of services alike."""
    return ReportTable(
        title=f"Saved, cost and net, in {found['currency']} (modelled)",
        columns=(
            ReportColumn(title="Services", unit=COUNT),
            ReportColumn(title="Sidecars", unit=COUNT),
            ReportColumn(title="Saved a month", unit=_MONEY, short="saved/month"),
            ReportColumn(title="Cost a month", unit=_MONEY, short="cost/month"),
            ReportColumn(title="Net a month", unit=_LEFT, short="net/month"),
            ReportColumn(title="Saved a year", unit=_MONEY, wide=True),
            ReportColumn(title="Cost a year", unit=_MONEY, wide=True),
            ReportColumn(title="Net a year", unit=_LEFT, short="net/year"),
        ),
        lines=[
            ReportLine(
                values=(
                    row["services"],
                    row["sidecars"],
                    row["saved_per_month"],
                    row["cost_per_month"],
                    row["net_per_month"],
                    row["saved_per_year"],
                    row["cost_per_year"],
                    row["net_per_year"],
                )
            )
            for row in found["services"]
        ],
    )


def net_explained(found: Net) -> list[str]:
    """Say how the sums are computed, and what a sidecar needs."""
    cost = amount(found["sidecar_cost_per_month"], found["currency"])
    of = plural(found["sidecars"], "sidecar")
    sums = (
        f"A service is the captured traffic: {of}, one for each client address where sessions save bytes. "
        f"Each costs {cost} a month; sidecars that save more: {number(found['sidecars_that_pay'])}. "
        f"A month is 30 days of the same traffic as in the captured {duration(found['captured_seconds'])}; a "
        "year is 12 such months. Sums are rounded only when shown."
    )
    return [sums, _needs(found["largest"])] if found["largest"] else [sums]


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
