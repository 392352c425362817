"""States of a gateway as `/state` shows them. Each scene is a changed copy of a recorded state."""

import copy
import json
from pathlib import Path
from typing import Any, Final

from proxy.dashboard.choice import Selection
from proxy.dashboard.snapshot import Snapshot, parse
from proxy.dashboard.view import GatewayUnreachable

_LIVE: Final = Path(__file__).parent / "state.json"
"""The state of a gateway that had run for two minutes, with three 4.3.0 brokers, librdkafka and aiokafka."""


def live() -> Any:
    """Return the recorded state of a real gateway."""
    return json.loads(_LIVE.read_text(encoding="utf-8"))


def _idle() -> Any:
    document = live()
    for side in ("client", "broker"):
        document["recent"][f"{side}_bytes"] = [0] * len(document["recent"]["seconds"])
        for column in document["recent"]["fetches"][side].values():
            column[:] = [0] * len(column)
    document["connections"], document["connections_open"] = [], 0
    document["sessions"]["held"] = 0
    document["events"] = document["events"][:1]
    for broker in (*document["brokers"], document["bootstrap"]):
        broker.update(connections=0, sessions=0, session_partitions=0)
        broker["answer_seconds"] = {"fetch": None, "other": None}
    return document


def _starting() -> Any:
    document = _idle()
    nothing = {key: 0 for key in document["totals"]["client"] if key != "fetches"}
    kinds = dict.fromkeys(document["totals"]["client"]["fetches"], 0)
    for side in ("client", "broker"):
        document["totals"][side] = nothing | {"fetches": kinds}
    reason = "kafka:9092: Connection refused"
    document |= {"state": "starting", "reasons": [reason], "uptime_seconds": 3.2, "brokers": []}
    document |= {"recent": {}, "events": [], "connections_accepted": 0}
    document["bootstrap"] |= {"problem": reason, "refusals": 0, "evictions": 0, "saved_bytes": 0}
    return document


def _degraded() -> Any:
    document = live()
    trouble = "127.0.0.1:9093: Connection refused"
    document |= {"state": "degraded", "reasons": [trouble, "all 500 session slots are taken", "and a third"]}
    document["sessions"] |= {"held": 500, "max": 500}
    document["brokers"][1] |= {"problem": trouble, "refusals": 12, "evictions": 3}
    document["connections"][0]["last_error"] = "error 70"
    lost = {
        "kind": "session lost",
        "text": "broker 1 evicted orders-1's session (70); the fetch was resent",
    }
    document["events"].append(lost | {"at": document["time"] - 2, "count": 3, "warning": True})
    return document


def _hung() -> Any:
    document = live()
    told = {"problem": "no response for 13 s", "problem_seconds": 3.2}
    document["brokers"][0] |= told | {"outstanding_requests": 194, "oldest_request_seconds": 12.6}
    document["brokers"][1] |= {"outstanding_requests": 3, "oldest_request_seconds": 0}
    for one in document["connections"][:2]:  # those of billing and orders-1 with broker 1
        one["oldest_request_seconds"] = 12.6
    document["bootstrap"] |= {"problem": "kafka:9092: Connection refused", "problem_seconds": 93.0}
    document |= {"state": "degraded", "reasons": ["broker 1: no response for 13 s"]}
    document["capture_stopped"] = True
    return document


def _draining() -> Any:
    document = live()
    document |= {"state": "draining"}
    said = {
        "kind": "draining",
        "text": "draining: 9 connections finish their requests in flight",
        "warning": False,
    }
    document["events"].append(said | {"at": document["time"] - 1, "count": 1})
    return document


def _off() -> Any:
    document = live()
    document["sessions"] |= {"on": False, "held": 0}
    return document


def _serving() -> Any:
    document = live()
    document["client_sessions"] = {"held": 12, "partitions": 1200, "max": 1000, "evictions": 3}
    document |= {"leaders_updated": 41, "max_fetch_bytes": {"": 10_000_000, "billing": 50_000_000}}
    return document


def _crowded() -> Any:
    document = live()
    one = document["connections"][0]
    document["connections"] = [
        copy.deepcopy(one) | {"client_id": f"client-{number}", "saved_bytes": 1000 * number}
        for number in range(500)
    ]
    document["connections_open"] = 2000
    document["brokers"] = [document["brokers"][0] | {"id": number} for number in range(30)]
    return document


def _cooperative() -> Any:
    document = live()

    def member(name: str, *lanes: tuple[str, int, int, int, int | None], state: str = "shares") -> Any:
        told = [
            {
                "topic": topic,
                "partition": partition,
                "ranges": [[f"{low:08x}", f"{high - 1:08x}"]],
                "position": 5,
                "lag": lag,
            }
            for topic, partition, low, high, lag in lanes
        ]
        return {"client_id": name, "client_host": "10.0.0.7", "state": state, "lanes": told}

    space, long = 1 << 32, "orders.of.a.shop.with.a.long.name"
    document["cooperative"] = {
        "records": {"kept": 40_000, "filtered": 120_000},
        "detached": {"full": 1, "wait": 2},
        "groups": [
            {
                "group": "billing",
                "exclusive": "",
                "unowned_ranges": 1,
                "members": [
                    member("billing.host-2", ("orders", 0, space // 4, space // 2, 1234)),
                    member(
                        "billing.host-1",
                        ("orders", 0, 0, space // 4, 7),
                        (long, 11, space // 3, space, None),
                    ),
                    member("billing.host-3", state="frozen"),
                ],
            },
            {
                "group": "shipping",
                "exclusive": "outsider",
                "unowned_ranges": 0,
                "members": [member("shipping.host-1", state="plain")],
            },
        ],
    }
    return document


def _zoned() -> Any:
    document = live()
    document["rack"] = "eu-west-1a"
    for broker, rack in zip(document["brokers"], ("eu-west-1a", "eu-west-1b", None), strict=True):
        broker["rack"] = rack
    for number, one in enumerate(document["connections"]):
        other = number % 3 == 1
        one["zone"] = "other" if other else "same"
        one["record_bytes_other_zone"] = one["broker"]["fetch_record_bytes"] if other else 0
    return document


SCENES: Final = {
    "starting": _starting,
    "idle": _idle,
    "busy": live,
    "degraded": _degraded,
    "hung": _hung,
    "draining": _draining,
    "off": _off,
    "crowded": _crowded,
    "serving": _serving,
    "cooperative": _cooperative,
    "zones": _zoned,
}


def seen(name: str) -> Snapshot | GatewayUnreachable:
    """Return a scene as the object that the dashboard draws."""
    if name == "unreachable":
        reason = "Connection refused"
        return GatewayUnreachable(address="127.0.0.1:9464", reason=reason, seconds=12.3, last=parse(live()))
    return parse(SCENES[name]())


CHOICES: Final = {
    "paused": Selection(paused=True),
    "typing": Selection(typing=True, filter="orders"),
    "filtered": Selection(filter="aiokafka"),
    "by-client": Selection(sort="client"),
    "expanded": Selection(expanded=frozenset({"client orders-1"}), cursor="client orders-1"),
    "brokers": Selection(brokers=True, cursor="broker 2"),
    "client": Selection(opened="client orders-1"),
    "broker": Selection(opened="broker 2"),
    "broker-1": Selection(opened="broker 1"),
    "left": Selection(opened="client gone"),
    "help-below": Selection(help=True, first=99),
    "help": Selection(help=True),
    "groups": Selection(groups=True),
}
