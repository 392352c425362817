"""The JSON document of `/state`, for scripts and for `fetchgate top`."""

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import asdict, fields
from math import isinf
from time import monotonic, time
from typing import Any, Final, Protocol, TypeAlias

from proxy.adding import Figures
from proxy.command.effective_config import as_json
from proxy.core.events import FetchKind, Tally, fetch_bytes, saved_bytes
from proxy.core.histograms import Distribution
from proxy.net.link import HOLDS, Link
from proxy.protocol.api import ErrorCode
from proxy.telemetry.history import History
from proxy.telemetry.status import REPORTS, Account, Status, WithBroker
from proxy.telemetry.totals import BROKER_BYTES, BROKER_FETCHES, CLIENT_BYTES, CLIENT_FETCHES, NodeId
from proxy.version import VERSION

MAX_LISTED: Final = 2000
"""The maximum number of connections that the document lists: those that have sent their clients most."""
_AT_ONCE: Final = 50
"""How many connections are described until other tasks of the event loop run."""


Described: TypeAlias = tuple[int, str]
"""The bytes that a connection has sent to its client, and its description as JSON."""


class Describable(Protocol):
    """The part of the gateway that the admin endpoint uses."""

    def status(self) -> Status:
        """Return the present status of the gateway."""

    def account(self) -> Account:
        """Return the status, and the sums over all connections without a list of them."""

    async def connections(self, limit: int) -> list[Described]:
        """Return the `limit` connections that have sent their clients the most bytes, the largest first."""


async def document(gateway: Describable, limit: int = MAX_LISTED) -> bytes:
    """Return the state of a gateway as JSON, with at most `limit` connections."""
    head = json.dumps(overview(gateway.account()))
    listed = await gateway.connections(limit)
    texts = ", ".join(text for _, text in listed)
    return f'{head[:-1]}, "connections": [{texts}]}}\n'.encode()


async def connections(
    links: Collection[Link], limit: int, more: Callable[[Link], Mapping[str, object]] = lambda _: {}
) -> list[Described]:
    """Return descriptions of the `limit` connections that have sent their clients the most bytes, in order.

    If the list is long, other tasks run in between. `more` returns the fields that features add.
    """
    described: list[Described] = []
    listed = sorted(links, key=lambda link: link.core.tally.client.bytes_out, reverse=True)[:limit]
    for at in range(0, len(listed), _AT_ONCE):
        described += [
            (link.core.tally.client.bytes_out, json.dumps({**_connection(link), **more(link)}))
            for link in listed[at : at + _AT_ONCE]
        ]
        await asyncio.sleep(0)
    return described


def overview(account: Account) -> dict[str, Any]:
    """Return the state of a gateway as a document, without the list of connections."""
    status, health, config = account.status, account.health, account.status.config
    measured = account.all_measured()
    return {
        "version": VERSION,
        "time": round(time(), 3),
        "uptime_seconds": round(account.uptime_seconds, 3),
        "state": health.state,
        "reasons": health.reasons,
        "listen": str(status.listen),
        "process": account.process,
        "sessions": {
            "on": config.sessions,
            "off_for": sorted(config.sessions_off_for),
            "held": status.slots_used,
            "max": config.max_sessions,
        },
        "capture_stopped": status.capture_stopped,
        "reloaded_at": round(status.reloaded_at, 3),
        "needs_restart": status.needs_restart,
        "inflight_bytes": status.buffered_bytes,
        "max_inflight_bytes": config.max_inflight_bytes,
        "totals": _tally(account.total()),
        "added": {
            "request": _seconds(measured.added_request),
            "response": _seconds(measured.added_response),
        },
        "recent": _recent(account.history),
        "events": [asdict(event) | {"at": round(event.at, 3)} for event in account.recent_events],
        "bootstrap": {
            "addresses": [str(address) for address in status.reach.bootstrap],
            "listener": str(status.listen),
            **_problem(status, None),
            **_with_broker(account, None),
        },
        "brokers": [
            {
                "id": node_id,
                "address": str(broker.address),
                "listener": str(broker.listener) if broker.listener else None,
                **_problem(status, node_id),
                **_with_broker(account, node_id),
                **_of_features(
                    each.state_of_broker(counted, node_id) for each, counted in account.by_feature()
                ),
            }
            for node_id, broker in sorted(status.brokers.items())
        ],
        "connections_open": status.connections,
        "connections_accepted": account.accepted,
        "connections_max": config.max_connections,
        "connections_turned_away": account.turned_away,
        "config": as_json(config),
        "leaders_updated": account.leaders_updated,
        **_of_features(
            reports.state(config.of(each.options), account.of(reports.kind)) for each, reports in REPORTS
        ),
    }


def _of_features(fields: Iterable[Mapping[str, object]]) -> dict[str, object]:
    return {name: value for each in fields for name, value in each.items()}


def _tally(tally: Tally) -> dict[str, Any]:
    figures = _figures(tally)
    del figures["produce_bytes"]  # a feature shows it by zone
    return {"saved_bytes": saved_bytes(tally)} | figures


def _figures(counted: Figures) -> dict[str, Any]:
    # The key of each count is the name of its field.
    return {field.name: _figure(getattr(counted, field.name)) for field in fields(counted)}  # type: ignore[arg-type] # all are dataclasses


def _figure(value: Any) -> Any:
    if isinstance(value, Figures):
        return _figures(value)
    if isinstance(value, Counter):
        return {str(name): count for name, count in sorted(value.items())}
    if isinstance(value, list):
        return {kind.name.lower(): value[kind] for kind in FetchKind}
    return value


def _seconds(distribution: Distribution) -> dict[str, Any]:
    below = distribution.below(0.99)
    return {
        "count": distribution.count,
        "mean_seconds": distribution.mean,
        "p99_below_seconds": None if isinf(below) else below,
    }


def _recent(history: History) -> dict[str, Any]:
    return {
        "seconds": [round(seconds, 3) for seconds in history.seconds],
        "client_bytes": history.column(CLIENT_BYTES),
        "broker_bytes": history.column(BROKER_BYTES),
        "fetches": {
            side: {kind.name.lower(): history.column(first + kind) for kind in FetchKind}
            for side, first in (("client", CLIENT_FETCHES), ("broker", BROKER_FETCHES))
        },
    }


def _problem(status: Status, node_id: NodeId) -> dict[str, Any]:
    problem, seconds = status.trouble_with(node_id)
    return {"problem": problem, "problem_seconds": None if seconds is None else round(seconds, 3)}


def _with_broker(account: Account, node_id: NodeId) -> dict[str, Any]:
    links = account.links.get(node_id, WithBroker())
    tally = account.tallies.get(node_id, Tally())
    fetch, other = account.response_seconds.get(node_id, (None, None))
    return {
        "connections": links.connections,
        "sessions": links.sessions,
        "session_partitions": links.session_partitions,
        "outstanding_requests": links.outstanding,
        "oldest_request_seconds": round(links.oldest_seconds, 3),
        "refusals": tally.refusals,
        "evictions": tally.session_errors[ErrorCode.FETCH_SESSION_ID_NOT_FOUND],
        "session_errors": {str(code): count for code, count in sorted(tally.session_errors.items())},
        "fetches": sum(tally.broker.fetches),
        "fetch_bytes": fetch_bytes(tally.broker),
        "probe_bytes": tally.probe_bytes,
        "saved_bytes": saved_bytes(tally),
        "answer_seconds": {"fetch": _rounded(fetch), "other": _rounded(other)},
    }


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 6)


def _names(holds: int) -> Iterable[str]:
    return (name for bit, name in HOLDS.items() if holds & bit)


def _connection(link: Link) -> dict[str, Any]:
    core, state, now = link.core, link.core.state, monotonic()
    late_since = link.late_since(now)
    return {
        "client_address": link.client_address,
        "client_subject": link.client_subject,
        "broker_address": str(link.broker_address) if link.broker_address else None,
        "broker_id": link.node_id,
        "age_seconds": round(now - link.opened_at, 3),
        "oldest_request_seconds": 0.0 if late_since is None else round(now - late_since, 3),
        "phase": link.phase.name.lower(),
        "client_id": state.client_id,
        "software_name": state.software_name,
        "software_version": state.software_version,
        "fetch_version": state.fetch_version,
        "session_id": state.session_id,
        "session_epoch": state.session_epoch,
        "session_partitions": state.session_partitions,
        "held_bytes": state.buffered,
        "not_read": {"client": list(_names(link.client.holds)), "broker": list(_names(link.broker.holds))},
        "last_event": link.last_event,
        "last_error": link.last_error,
        **_tally(core.tally),
    }
