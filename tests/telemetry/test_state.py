import json
from typing import Any, cast

import pytest

from proxy.core.events import SideTally, Tally
from proxy.server.gateway import Gateway
from proxy.server.registry import BrokerRegistry
from proxy.telemetry import state
from proxy.telemetry.state import document
from proxy.telemetry.totals import NodeId
from tests.shell import Wire, client, gateway, stub_broker, until


async def _state(gate: Gateway, most: int = 2000) -> Any:
    return json.loads(await document(gate, most))


async def test_it_describes_brokers_and_connections() -> None:
    async with (
        stub_broker() as broker,
        gateway(broker.address, sessions_off_for="b,a", max_sessions="9") as gate,
        client(gate.listen.port) as (reader, writer),
    ):
        writer.write(b"hello")
        await reader.readexactly(5)
        (link,) = gate.server.links
        core = cast("Wire", link.core)
        core.session_id, core.session_epoch, core.session_partitions = 77, 3, 100
        core.software_name, core.software_version, core.fetch_version = "librdkafka", "2.16", 16
        core.tally.client = SideTally(bytes_in=5, fetch_request_bytes=100, fetch_response_bytes=50)
        core.tally.broker = SideTally(fetch_request_bytes=10, fetch_response_bytes=5)
        core.tally.broker.fetches = [1, 2, 0, 0]
        core.tally.session_errors[70] = 4
        core.tally.refusals = 2
        link.last_error = "error 70"
        assert isinstance(gate.brokers, BrokerRegistry)
        told = gate.brokers.resolve("127.0.0.1", 1, "kafka-1", 9092)
        assert told is not None

        shown = await _state(gate)

        assert shown["sessions"] == {"on": True, "off_for": ["a", "b"], "held": 0, "max": 9}
        assert shown["totals"]["saved_bytes"] == 135
        nothing = {
            "problem": "",
            "problem_seconds": None,
            "connections": 0,
            "sessions": 0,
            "session_partitions": 0,
            "outstanding_requests": 0,
            "oldest_request_seconds": 0.0,
            "refusals": 0,
            "evictions": 0,
            "session_errors": {},
            "fetches": 0,
            "fetch_bytes": 0,
            "probe_bytes": 0,
            "saved_bytes": 0,
            "answer_seconds": {"fetch": None, "other": None},
        }
        assert shown["brokers"] == [
            nothing | {"id": 1, "address": "kafka-1:9092", "listener": f"127.0.0.1:{told[1]}"}
        ]
        assert shown["bootstrap"].pop("problem_seconds") >= 0
        assert shown["bootstrap"] | {"problem_seconds": None} == nothing | {
            "addresses": [broker.address],
            "listener": str(gate.listen),
            "problem": "the bootstrap has not been asked yet",
            "connections": 1,
            "sessions": 1,
            "session_partitions": 100,
            "refusals": 2,
            "evictions": 4,
            "session_errors": {"70": 4},
            "fetches": 3,
            "fetch_bytes": 15,
            "probe_bytes": 0,
            "saved_bytes": 135,
        }
        (connection,) = shown["connections"]
        assert connection.pop("age_seconds") >= 0
        assert connection["client"]["bytes_in"] == 5
        picked = {key: connection[key] for key in connection if key not in {"client", "broker"}}
        assert picked == {
            "client_address": link.client_address,
            "client_subject": "",
            "broker_address": broker.address,
            "broker_id": None,
            "oldest_request_seconds": 0.0,
            "phase": "open",
            "client_id": "t",
            "software_name": "librdkafka",
            "software_version": "2.16",
            "fetch_version": 16,
            "session_id": 77,
            "session_epoch": 3,
            "session_partitions": 100,
            "held_bytes": 0,
            "not_read": {"client": [], "broker": []},
            "last_event": "",
            "last_error": "error 70",
            "probe_bytes": 0,
            "saved_bytes": 135,
            "session_errors": {"70": 4},
            "session_checks": 0,
            "sessions_lost": {},
            "refusals": 2,
            "passthrough": {},
            "refused": {},
            "leaders_followed": {},
            "leaders_not_followed": {},
        }


async def test_it_tells_the_last_two_minutes_and_what_happened() -> None:
    async with stub_broker() as broker, gateway(broker.address) as gate:
        tally = Tally()
        opened: list[tuple[NodeId, Tally]] = [(None, tally)]
        gate.monitor.totals.measured(None)
        gate.monitor.totals.sample(10.0, opened)
        tally.client = SideTally(fetch_request_bytes=100, fetch_response_bytes=50, fetches=[0, 0, 7, 0])
        tally.broker = SideTally(fetch_request_bytes=10, fetch_response_bytes=5, fetches=[1, 6, 0, 0])
        gate.monitor.totals.measured(None).fetches.extend((0.5, 5, 50, 1, 10, 1.5, 5, 50, 1, 10))
        gate.monitor.totals.sample(12.0, opened)
        gate.process.note("fault", "c was cut off", warning=True)
        gate.monitor.totals.measured(None).requests.extend((0.0002, 0.0004))

        shown = await _state(gate)

        assert shown["recent"] == {
            "seconds": [2.0],
            "client_bytes": [150],
            "broker_bytes": [15],
            "fetches": {
                "client": {"full": [0], "incremental": [0], "sessionless": [7], "close": [0]},
                "broker": {"full": [1], "incremental": [6], "sessionless": [0], "close": [0]},
            },
        }
        assert shown["bootstrap"]["answer_seconds"] == {"fetch": 1.0, "other": None}
        assert shown["added"]["request"] == {
            "count": 2,
            "mean_seconds": pytest.approx(0.0003),
            "p99_below_seconds": 0.0005,
        }
        assert shown["added"]["response"] == {"count": 0, "mean_seconds": 0, "p99_below_seconds": 0}
        (event,) = shown["events"]
        assert 0 <= shown["time"] - event.pop("at") < 60
        assert event == {"kind": "fault", "text": "c was cut off", "count": 1, "warning": True}


async def test_of_many_connections_those_that_moved_most_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "_AT_ONCE", 1)

    async with (
        stub_broker() as broker,
        gateway(broker.address) as gate,
        client(gate.listen.port) as (reader, writer),
        client(gate.listen.port),
        client(gate.listen.port),
    ):
        writer.write(b"hello")
        await reader.readexactly(5)
        await until(lambda: len(gate.server.links) == 3)
        shown = await _state(gate, 2)
        assert shown["connections_open"] == 3
        assert [entry["client"]["bytes_out"] for entry in shown["connections"]] == [5, 0]
        assert (await _state(gate, 0))["connections"] == []
