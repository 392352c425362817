"""The sentences of the report on zones."""

from typing import Final

from replay.report.model import Report
from replay.report.wording import (
    MODELLED,
    amount,
    duration,
    estimated_amount,
    estimated_from,
    per_gb,
    percent,
    plural,
    shown,
    size,
)
from replay.report.zones_model import ZoneMoves, ZonesReport, any_zone_known

WAYS: Final = (
    "A (client.rack in the client): fetches have the client's rack, and brokers with a replica selector "
    "send the client to a replica in that rack (Fetch v11 and later, clients that go there). "
    "B (fetchgate proxy --rack-clients): Metadata names that replica as the leader (v10 and later). "
    "Replicas are those of the last captured Metadata."
)
"""The two ways of reading in the client's zone."""
LATENCIES: Final = (
    "Records come later from a follower: it may send them only after the leader's next response. The "
    "latencies (p50 / p99, from produce to consumer) were measured with Kafka 4.3 at 2, 10, 100 and "
    "1,000 records a second; each row shows the latencies at the nearest lower rate. Records a second "
    "are computed from the increase of high watermarks, only for topics that were fetched."
)
"""The latencies beside topics."""


def zones_known(found: ZonesReport) -> str:
    """Say what is not known of zones, and which options tell it; else how to read the tables."""
    brokers = sum(row["rack"] is None for row in found["brokers"])
    connections = sum(row["connections"] for row in found["clients"] if row["rack"] is None)
    lines = ["A zone is a rack of Kafka's brokers. Bytes are those of whole requests and responses."]
    if brokers:
        lines.append(
            f"The rack of {plural(brokers, 'broker')} is not known: no captured Metadata has it. "
            "Name it: --broker-rack 1=NAME, or --broker-rack 10.0.1.0/24=NAME."
        )
    if connections:
        lines.append(
            f"The rack of the clients of {plural(connections, 'connection')} is not known. Name it: "
            "--client-rack 10.0.1.0/24=NAME."
        )
    return " ".join(filter(None, [*lines, racks_without_brokers(found)]))


def crossing(report: Report) -> str:
    """Say how much of records crosses zones, and what each way would move; "" if no zone is known."""
    if "zones" not in report:
        return ""
    found = report["zones"]
    records = found["record_bytes"]
    other, known = records["other"], records["same"] + records["other"]
    if not known:
        return ""
    whole = known + records["unknown"]
    share = percent(other / whole)
    text = f"{size(other)} of {size(whole)} of records came from brokers in other zones: {share}."
    if not other:
        return text
    own, named = found["client_rack"], found["rack_clients"]
    text += (
        f" client.rack in the clients would move {size(own['moved_bytes'])} into their zones"
        f"{_saves(own, report)}, without a gateway. --rack-clients would move "
        f"{size(named['moved_bytes'])}{_saves(named, report)}."
    )
    # A rack of clients that no broker has may be misspelt.
    return " ".join(filter(None, [text, racks_without_brokers(found)]))


def _saves(way: ZoneMoves, report: Report) -> str:
    month, money = way["saved_per_month"], report["modelled"]["money"]
    if month is None or money is None:
        return ""
    seconds = report["decision"]["captured_seconds"]
    month_of = estimated_amount(month, money["currency"], seconds)
    return f" (saves {month_of} a month, {estimated_from(seconds)})"


def racks_without_brokers(found: ZonesReport) -> str:
    """Name the racks of clients that no broker has; "" if there are none, or a broker has an unknown rack."""
    known = {row["rack"] for row in found["brokers"]}
    absent = [row["rack"] for row in found["clients"] if row["rack"] and row["rack"] not in known]
    if not absent or None in known:
        return ""
    names = ", ".join(map(shown, absent))
    return (
        f"No broker is in these racks of clients: {names}. All bytes of these clients count as between "
        "zones. Give --client-rack the names that brokers have."
    )


def money(zones: ZonesReport) -> str:
    """Say what bytes between zones cost, by direction, and in 30 days; "" without a price."""
    found = zones["money"]
    if found is None:
        return ""
    if not any_zone_known(zones):
        return (
            f"{MODELLED}: The cost of bytes between zones is not known: no bytes have a known zone at both "
            "ends."
        )
    currency = found["currency"]

    def cost(money: float) -> str:
        return amount(money, currency)

    def of_month(money: float) -> str:
        return estimated_amount(money, currency, found["captured_seconds"])

    to_clients, to_brokers = found["to_clients"], found["to_brokers"]
    span = duration(found["captured_seconds"])
    text = (
        f"{MODELLED}: Between zones: {size(to_clients['bytes'])} to clients for {cost(to_clients['cost'])}, "
        f"and {size(to_brokers['bytes'])} to brokers for {cost(to_brokers['cost'])}, in {span} at "
        f"{per_gb(found['price_per_gb'], currency)} for each direction. Together {cost(found['cost'])}; if "
        f"both ends pay, {cost(found['cost_both_ends'])}."
    )
    whole, month = found["cost"], found["cost_per_month"]
    times, written = 1.0, cost
    if month is not None:
        whole, times, written = month, month / whole if whole else 0.0, of_month
        text += (
            f" In 30 days of the same traffic as in these {span}: {of_month(month)}; if both ends pay, "
            f"{of_month(2 * month)}."
        )
    text += (
        f" Of {written(whole)}, client.rack would save {written(times * found['client_rack_saves'])}, "
        f"--rack-clients {written(times * found['rack_clients_saves'])}."
    )
    return f"{text} ({found['how']})"
