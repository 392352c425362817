"""The figures of cooperative groups, in `/metrics`, `/state` and `/cooperative`."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any, Final

from proxy.features.cooperative.options import CooperativeOptions
from proxy.features.cooperative.tally import (
    BATCHES,
    COMMITS,
    DETACHED,
    RECORDS,
    STATES,
    Cooperative,
    MemberSeen,
)
from proxy.features.cooperative.words import EXCLUSIVE
from proxy.features.feature import Page, Reports
from proxy.prometheus.figure import COUNTER, GAUGE, Figure, bounded, named, one_label

_GROUP: Final = ("group",)
_REASON: Final = ("reason",)


def _members(found: Cooperative) -> Iterator[tuple[tuple[str, str], int]]:
    for group in found.groups:
        states = Counter(member.state for member in group.members)
        for state in STATES:
            yield (group.name, state), states[state]


FIGURES: Final[tuple[Figure[Cooperative], ...]] = (
    Figure(
        COUNTER,
        "coop_records",
        "Records in responses for members, without partitions of which a member gets all.",
        lambda it: named(it.tally.records, RECORDS),
        ("outcome",),
        RECORDS,
    ),
    Figure(
        COUNTER,
        "coop_batches",
        "Batches in responses for members, without partitions of which a member gets all.",
        lambda it: named(it.tally.batches, BATCHES),
        ("outcome",),
        BATCHES,
    ),
    Figure(
        COUNTER,
        "coop_commits",
        "Commits for key ranges that went to the broker.",
        lambda it: named(it.tally.commits, COMMITS),
        ("result",),
        COMMITS,
    ),
    Figure(
        COUNTER,
        "coop_exclusive",
        "How often a group stopped sharing partitions, by the reasons of fetchgate_coop_exclusive.",
        lambda it: named(it.tally.exclusive, EXCLUSIVE),
        _REASON,
    ),
    Figure(
        COUNTER,
        "coop_bytes",
        "Bytes of records for members.",
        lambda it: [(("upstream",), it.tally.upstream_bytes), (("client",), it.tally.client_bytes)],
        ("stage",),
        {"upstream": "from brokers", "client": "to members"},
    ),
    Figure(
        COUNTER,
        "coop_scan_skipped_offsets",
        "Offsets that were skipped, because none of their records belongs to the lane.",
        lambda it: it.tally.skipped_offsets,
    ),
    Figure(
        COUNTER,
        "coop_reader_fetches",
        "Partitions in fetches to the broker for several members.",
        lambda it: it.reader_fetches,
    ),
    Figure(GAUGE, "coop_buffer_bytes", "Bytes of responses kept for members.", lambda it: it.buffered_bytes),
    Figure(
        COUNTER,
        "coop_detached",
        "How often a member began to fetch alone.",
        lambda it: named(it.detached, DETACHED),
        _REASON,
        DETACHED,
    ),
    Figure(
        COUNTER,
        "coop_refused",
        "Partitions for which members got an error from the gateway, by Kafka's error code.",
        lambda it: one_label(bounded(Counter({str(code): n for code, n in it.tally.refused.items()}))),
        ("code",),
    ),
    Figure(GAUGE, "coop_groups", "Cooperative groups.", lambda it: len(it.groups)),
    Figure(GAUGE, "coop_members", "Members of groups.", _members, ("group", "state"), STATES),
    Figure(
        GAUGE,
        "coop_lanes",
        "Partitions assigned to members, in whole or in part.",
        lambda it: [
            ((group.name,), sum(len(member.lanes) for member in group.members)) for group in it.groups
        ],
        _GROUP,
    ),
    Figure(
        GAUGE,
        "coop_unowned_ranges",
        "Key ranges that no member has: nobody reads their records.",
        lambda it: [((group.name,), group.unowned()) for group in it.groups],
        _GROUP,
    ),
    Figure(
        GAUGE,
        "coop_range_lag",
        "Offsets from the committed position of a lane to the end of its partition.",
        lambda it: [
            ((group.name, quantile), least_or_most(lags))
            for group in it.groups
            if (lags := group.lags())
            for quantile, least_or_most in (("0", min), ("1", max))
        ],
        ("group", "quantile"),
        {"0": "the least", "1": "the most"},
    ),
    Figure(
        GAUGE,
        "coop_exclusive",
        "1 while the group shares no partition. The gateway of the group's leader knows the reason and logs "
        "it; all gateways with members report outsider.",
        lambda it: [
            ((group.name, reason), int(group.exclusive == reason))
            for group in it.groups
            for reason in EXCLUSIVE
        ],
        ("group", "reason"),
        EXCLUSIVE,
    ),
)
"""The additional metrics with ``--cooperative``. The number of their label values is limited, because the
option lists the groups."""


def cooperative(found: Cooperative) -> dict[str, Any]:
    """Return the cooperative groups as a document for `/state` and `/cooperative`."""
    tally = found.tally
    return {
        "records": {outcome: tally.records[outcome] for outcome in RECORDS},
        "batches": {outcome: tally.batches[outcome] for outcome in BATCHES},
        "upstream_bytes": tally.upstream_bytes,
        "client_bytes": tally.client_bytes,
        "skipped_offsets": tally.skipped_offsets,
        "reader_fetches": found.reader_fetches,
        "buffered_bytes": found.buffered_bytes,
        "detached": {reason: found.detached[reason] for reason in DETACHED},
        "commits": {result: tally.commits[result] for result in COMMITS},
        "refused": {str(code): count for code, count in sorted(tally.refused.items())},
        "groups": [
            {
                "group": group.name,
                "exclusive": group.exclusive,
                "unowned_ranges": group.unowned(),
                "members": [_member(member) for member in group.members],
            }
            for group in found.groups
        ],
    }


def _member(member: MemberSeen) -> dict[str, Any]:
    return {
        "client_id": member.client_id,
        "client_host": member.host,
        "state": member.state,
        "lanes": [
            asdict(lane) | {"ranges": [[f"{low:08x}", f"{high:08x}"] for low, high in lane.ranges]}
            for lane in member.lanes
        ],
    }


def _state(_options: CooperativeOptions, found: Cooperative | None) -> dict[str, Any]:
    return {} if found is None else {"cooperative": cooperative(found)}


REPORTS: Final = Reports(
    kind=Cooperative,
    figures=FIGURES,
    state=_state,
    page=Page(cooperative, absent="no group is cooperative: --cooperative names none"),
)
