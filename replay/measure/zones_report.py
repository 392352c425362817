"""Makes the report on zones from the collected sums. Sans-IO."""

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Final

from replay.measure.racks import Racks
from replay.measure.zone_moves import PRODUCE, UNKNOWN, Moves, Topics, leader_rates, moves
from replay.measure.zone_places import Places, Zone
from replay.measure.zones import ZoneBytes, ZoneSums
from replay.report.decision import DailyRate
from replay.report.zones_model import (
    ByZone,
    CrossedBytes,
    ZonedBroker,
    ZonedBytes,
    ZonedClient,
    ZonedClients,
    ZonedFetches,
    ZonedTopic,
    ZoneMoney,
    ZoneMoves,
    ZonePair,
    ZonesReport,
    values_of,
)

_GB: Final = 10**9
_HOW: Final = (
    "bytes of requests and responses between known zones, Kafka frames only, times the price given for each "
    "direction"
)
_KINDS: Final = ("record_bytes", "listing_bytes", "produce_bytes", "other_bytes")


def zones_report(
    sums: ZoneSums,
    racks: Racks,
    clients: Collection[str],
    topic_name: Callable[[str, str], str],
    rate: DailyRate,
    price_per_gb: float | None,
) -> ZonesReport | None:
    """Return the report on zones, for all clients or the chosen ones. None if no rack is known.

    `price_per_gb` is that of bytes between zones, in each direction.
    """
    if not racks and not any(node.rack for node in sums.nodes.values()):
        return None
    places = Places(racks, sums.nodes)
    topics = Topics(sums.replicas, places)
    chosen = {key: one for key, one in sums.clients.items() if not clients or key[2] in clients}
    by_client: defaultdict[tuple[str, str], ZonedBytes] = defaultdict(_no_bytes)
    totals = _no_bytes()
    for (zone, broker, *client), one in chosen.items():
        for into in (totals, by_client[client[0], client[1]]):
            _add(into, places.zone(zone, broker), one)
    reads = [read for read in sums.reads if not clients or read.client_id in clients]
    by_rack, by_leader = moves(sums, reads, places, topics, topic_name)
    return ZonesReport(
        brokers=_brokers(places, {broker for _, broker, _, _ in sums.clients}),
        clients=[
            ZonedClients(rack=zone or None, connections=count)
            for zone, count in sorted(sums.connections.items())
            if count
        ],
        **totals,
        by_client=sorted(
            (
                ZonedClient(
                    client_id=client[0],
                    software=client[1],
                    **found,
                    client_rack_bytes=by_rack.by_client[client],
                    rack_clients_bytes=by_leader.by_client[client],
                )
                for client, found in by_client.items()
            ),
            key=lambda row: (-_crossing(row), row["client_id"], row["software"]),
        ),
        by_topic=_by_topic(sums, places, totals, topic_name, by_rack, by_leader),
        pairs=_pairs(chosen, places),
        client_rack=_moves(by_rack, totals, rate),
        rack_clients=_moves(by_leader, totals, rate),
        leaders=leader_rates(sums, places, topics, topic_name, rate.seconds),
        money=_money(
            chosen, places, by_rack.moved, by_leader.moved, replace(rate, price_per_gb=price_per_gb)
        ),
    )


def _no_zones() -> ByZone:
    return ByZone(same=0, other=0, unknown=0)


def _no_fetches() -> ZonedFetches:
    return ZonedFetches(record_bytes=_no_zones(), listing_bytes=_no_zones())


def _no_bytes() -> ZonedBytes:
    return ZonedBytes(**_no_fetches(), produce_bytes=_no_zones(), other_bytes=_no_zones())


def _add(into: ZonedBytes, zone: Zone, one: ZoneBytes) -> None:
    into["record_bytes"][zone] += one.record_bytes
    into["listing_bytes"][zone] += one.fetch_requests + one.fetch_responses - one.record_bytes
    into["produce_bytes"][zone] += one.produce_requests + one.produce_responses
    into["other_bytes"][zone] += one.other_requests + one.other_responses


def _crossing(row: ZonedBytes) -> int:
    return sum(row[kind]["other"] for kind in _KINDS)


def _brokers(places: Places, captured: Collection[str]) -> list[ZonedBroker]:
    return [
        ZonedBroker(broker=address, node_id=places.node_id(address), rack=places.rack(address) or None)
        for address in sorted({*captured, *places.addresses} - {""})
    ]


def _by_topic(
    sums: ZoneSums,
    places: Places,
    totals: ZonedBytes,
    topic_name: Callable[[str, str], str],
    by_rack: Moves,
    by_leader: Moves,
) -> list[ZonedTopic]:
    """Return a row for each topic, and one for the bytes of fetches that belong to no topic."""
    topics: defaultdict[str, ZonedFetches] = defaultdict(_no_fetches)
    rest = ZonedTopic(
        topic=None,
        record_bytes={**totals["record_bytes"]},
        listing_bytes={**totals["listing_bytes"]},
        client_rack_bytes=0,
        rack_clients_bytes=0,
    )
    for (zone, broker, kind, text), one in sums.topics.items():
        where = places.zone(zone, broker)
        row = topics[topic_name(kind, text)]
        for name, count in (("record_bytes", one.record_bytes), ("listing_bytes", one.listing_bytes)):
            row[name][where] += count  # type: ignore[literal-required]  # keys of ZonedFetches
            rest[name][where] -= count  # type: ignore[literal-required]  # the same
    rows = [
        ZonedTopic(
            topic=name,
            **found,
            client_rack_bytes=by_rack.by_topic[name],
            rack_clients_bytes=by_leader.by_topic[name],
        )
        for name, found in topics.items()
    ]
    rows.sort(key=lambda row: (-row["record_bytes"]["other"], row["topic"]))
    return [*rows, rest]


def _pairs(chosen: dict[tuple[str, str, str, str], ZoneBytes], places: Places) -> list[ZonePair]:
    found: defaultdict[tuple[str, str], int] = defaultdict(int)
    for (client, broker, _, _), one in chosen.items():
        rack = places.rack(broker)
        found[client, rack] += one.requests
        found[rack, client] += one.responses
    order = sorted(found.items(), key=lambda pair: (-pair[1], pair[0]))
    return [
        ZonePair({"from": begin or None, "to": end or None, "bytes": count})
        for (begin, end), count in order
        if count
    ]


def _moves(found: Moves, totals: ZonedBytes, rate: DailyRate) -> ZoneMoves:
    """Return what would be moved. Records that were not noted by partition are of clients without a zone."""
    stays = found.stays.copy()
    stays[UNKNOWN] += sum(values_of(totals["record_bytes"])) - found.moved - found.stays.total()
    stays[PRODUCE] += sum(values_of(totals["produce_bytes"]))
    return ZoneMoves(
        moved_bytes=found.moved,
        saved_per_month=rate.month(found.moved),
        stays={reason: count for reason, count in sorted(stays.items()) if count},
    )


def _money(
    chosen: Mapping[tuple[str, str, str, str], ZoneBytes],
    places: Places,
    by_rack: int,
    by_leader: int,
    rate: DailyRate,
) -> ZoneMoney | None:
    price = rate.price_per_gb
    if price is None:
        return None
    known = any(places.zone(zone, broker) != "unknown" for zone, broker, _, _ in chosen)
    crossing = [one for (zone, broker, _, _), one in chosen.items() if places.zone(zone, broker) == "other"]

    def cost(count: int) -> float:
        return count / _GB * price

    to_clients, to_brokers = sum(one.responses for one in crossing), sum(one.requests for one in crossing)
    whole = to_clients + to_brokers
    return ZoneMoney(
        price_per_gb=price,
        currency=rate.currency,
        to_clients=CrossedBytes(bytes=to_clients, cost=cost(to_clients)),
        to_brokers=CrossedBytes(bytes=to_brokers, cost=cost(to_brokers)),
        cost=cost(whole),
        cost_both_ends=2 * cost(whole),
        client_rack_saves=cost(by_rack),
        rack_clients_saves=cost(by_leader),
        captured_seconds=rate.seconds,
        cost_per_month=rate.month(whole) if known else None,
        how=_HOW,
    )
