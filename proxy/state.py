"""A gateway as `/state` tells it: one JSON document for scripts and for `fetchgate top` alike."""

import asyncio
import json
from collections import defaultdict
from collections.abc import Iterable
from math import isinf
from time import monotonic, time
from typing import Any, Final

from proxy.books import (
    BROKER_BYTES,
    BROKER_FETCHES,
    CLIENT_BYTES,
    CLIENT_FETCHES,
    Books,
    NodeId,
    add,
    fetch_bytes,
    saved_bytes,
)
from proxy.events import FetchKind, SideTally, Tally
from proxy.measured import Distribution, Measured
from proxy.metrics import VERSION
from proxy.server import Gateway
from proxy.transports import HOLDS, Link

MAX_LISTED: Final = 2000
"""Connections in one document; those that moved most bytes are listed."""
_AT_ONCE: Final = 50
"""Connections that are described before others may have the event loop."""
_EVICTED: Final = 70
"""FETCH_SESSION_ID_NOT_FOUND."""


async def document(gateway: Gateway, most: int = MAX_LISTED) -> bytes:
    """Describe a gateway as JSON; other connections are served while a long list is written.

    Args:
        gateway: whose state it is.
        most: how many connections are listed.
    """
    head = json.dumps(overview(gateway))
    links = sorted(gateway.links, key=lambda link: link.core.tally.client.bytes_out, reverse=True)[:most]
    parts = []
    for at in range(0, len(links), _AT_ONCE):
        parts += [json.dumps(_connection(link)) for link in links[at : at + _AT_ONCE]]
        await asyncio.sleep(0)
    return f'{head[:-1]}, "connections": [{", ".join(parts)}]}}\n'.encode()


def overview(gateway: Gateway) -> dict[str, Any]:
    """Describe a gateway without its connections."""
    health, tallies = gateway.health(), gateway.tallies()
    total = Tally()
    for tally in tallies.values():
        add(total, tally)
    links: defaultdict[NodeId, list[Link]] = defaultdict(list)
    for link in gateway.links:
        links[link.node_id].append(link)

    def with_broker(node_id: NodeId) -> dict[str, Any]:
        return _with_broker(gateway.books, node_id, tallies.get(node_id, Tally()), links[node_id])

    return {
        "version": VERSION,
        "time": round(time(), 3),
        "uptime_seconds": round(monotonic() - gateway.started_at, 3),
        "state": health.state,
        "reasons": health.reasons,
        "listen": str(gateway.listen),
        "sessions": {
            "on": gateway.sessions.on,
            "off_for": sorted(gateway.sessions.off_for),
            "held": gateway.sessions.held,
            "max": gateway.sessions.max_sessions,
        },
        "inflight_bytes": gateway.budget.total,
        "max_inflight_bytes": gateway.budget.limit,
        "totals": _tally(total),
        "added": _added(gateway.books.all_measured()),
        "recent": _recent(gateway.books),
        "events": [
            {
                "at": round(each.at, 3),
                "kind": each.kind,
                "text": each.text,
                "count": each.count,
                "warning": each.warning,
            }
            for each in gateway.books.happenings
        ],
        "bootstrap": {
            "addresses": [str(address) for address in gateway.targets(None)],
            "listener": str(gateway.listen),
            "problem": gateway.trouble_of(None),
            **with_broker(None),
        },
        "brokers": [
            {
                "id": broker.node_id,
                "address": str(broker.address),
                "listener": str(broker.listener) if broker.listener else None,
                "problem": broker.problem or gateway.trouble_of(broker.node_id),
                **with_broker(broker.node_id),
            }
            for broker in gateway.known()
        ],
        "connections_open": len(gateway.links),
        "connections_accepted": gateway.accepted,
        "connections_max": gateway.max_connections,
        "connections_turned_away": gateway.turned_away,
    }


def _tally(tally: Tally) -> dict[str, Any]:
    return {
        "client": _side(tally.client),
        "broker": _side(tally.broker),
        "saved_bytes": saved_bytes(tally),
        "session_errors": {str(code): count for code, count in sorted(tally.session_errors.items())},
        "refusals": tally.refusals,
        "passthrough": dict(sorted(tally.passthrough.items())),
    }


def _side(side: SideTally) -> dict[str, Any]:
    return {
        "bytes_in": side.bytes_in,
        "bytes_out": side.bytes_out,
        "fetch_request_bytes": side.fetch_request_bytes,
        "fetch_response_bytes": side.fetch_response_bytes,
        "fetch_record_bytes": side.fetch_record_bytes,
        "fetches": {kind.name.lower(): side.fetches[kind] for kind in FetchKind},
        "partitions_requested": side.partitions_requested,
        "partitions_answered": side.partitions_answered,
    }


def _added(measured: Measured) -> dict[str, Any]:
    """Tell what the gateway adds to a request and to an answer."""
    return {"request": _seconds(measured.added_request), "response": _seconds(measured.added_response)}


def _seconds(distribution: Distribution) -> dict[str, Any]:
    below = distribution.below(0.99)
    return {
        "count": distribution.count,
        "mean_seconds": distribution.mean,
        "p99_below_seconds": None if isinf(below) else below,
    }


def _recent(books: Books) -> dict[str, Any]:
    """Tell what crossed the gateway in each of the last intervals, the latest last."""
    history = books.history
    return {
        "seconds": [round(seconds, 3) for seconds in history.seconds],
        "client_bytes": history.column(CLIENT_BYTES),
        "broker_bytes": history.column(BROKER_BYTES),
        "fetches": {
            side: {kind.name.lower(): history.column(first + kind) for kind in FetchKind}
            for side, first in (("client", CLIENT_FETCHES), ("broker", BROKER_FETCHES))
        },
    }


def _with_broker(books: Books, node_id: NodeId, tally: Tally, links: list[Link]) -> dict[str, Any]:
    """Tell what goes on with one broker, or with the bootstrap."""
    held = [link.core.session_partitions for link in links if link.core.session_id]
    fetch, other = books.answer_seconds(node_id)
    return {
        "connections": len(links),
        "sessions": len(held),
        "session_partitions": sum(held),
        "refusals": tally.refusals,
        "evictions": tally.session_errors[_EVICTED],
        "session_errors": {str(code): count for code, count in sorted(tally.session_errors.items())},
        "fetches": sum(tally.broker.fetches),
        "fetch_bytes": fetch_bytes(tally.broker),
        "saved_bytes": saved_bytes(tally),
        "answer_seconds": {"fetch": _rounded(fetch), "other": _rounded(other)},
    }


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 6)


def _names(holds: int) -> Iterable[str]:
    return (name for bit, name in HOLDS.items() if holds & bit)


def _connection(link: Link) -> dict[str, Any]:
    core = link.core
    return {
        "client_address": link.client_address,
        "broker_address": str(link.broker_address) if link.broker_address else None,
        "broker_id": link.node_id,
        "age_seconds": round(monotonic() - link.opened_at, 3),
        "phase": link.phase.name.lower(),
        "client_id": core.client_id,
        "software_name": core.software_name,
        "software_version": core.software_version,
        "fetch_version": core.fetch_version,
        "session_id": core.session_id,
        "session_epoch": core.session_epoch,
        "session_partitions": core.session_partitions,
        "held_bytes": core.held,
        "not_read": {"client": list(_names(link.client_holds)), "broker": list(_names(link.broker_holds))},
        "last_event": link.last_event,
        "last_error": link.last_error,
        **_tally(core.tally),
    }
