from collections import Counter
from time import monotonic
from typing import cast

import pytest
from prometheus_client.parser import text_string_to_metric_families

from proxy.addresses import LOOPED, OTHERS, Address
from proxy.core.events import FetchKind, Tally
from proxy.net.link import BUDGET, PEER_FULL
from proxy.net.transparent import Destinations
from proxy.prometheus.figure import MAX_REASONS, bounded
from proxy.server.gateway import Gateway
from proxy.telemetry.metrics import MAX_BROKERS, exposition
from proxy.telemetry.status import STATES
from proxy.version import VERSION
from tests.shell import Wire, client, gateway, stub_broker, until

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def _scrape(gate: Gateway) -> Samples:
    text = exposition(gate.server.account()).decode()
    families = text_string_to_metric_families(text)
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in families
        for sample in family.samples
    }


def _value(samples: Samples, name: str, **labels: str) -> float:
    return samples[name, frozenset(labels.items())]


def _fill(tally: Tally) -> None:
    for factor, side in ((1, tally.client), (1000, tally.broker)):
        side.bytes_in, side.bytes_out = 1 * factor, 2 * factor
        side.fetch_request_bytes, side.fetch_response_bytes, side.fetch_record_bytes = (
            3 * factor,
            4 * factor,
            5 * factor,
        )
        side.fetches = [6 * factor, 7 * factor, 8 * factor, 9 * factor]
        side.partitions_requested, side.partitions_answered = 10 * factor, 11 * factor
    tally.session_errors.update({70: 2, 71: 1})
    tally.passthrough.update({"one partition": 3})


async def test_every_figure_is_the_tallys() -> None:
    async with stub_broker() as broker, gateway(broker.address) as gate:
        _fill(gate.monitor.totals.closed_tallies.setdefault(None, Tally()))
        gate.server.faults["broker"] = 12
        samples = _scrape(gate)

        for factor, side in ((1, "client"), (1000, "broker")):
            assert _value(samples, "fetchgate_bytes_total", side=side, direction="in") == 1 * factor
            assert _value(samples, "fetchgate_bytes_total", side=side, direction="out") == 2 * factor
            assert _value(samples, "fetchgate_fetch_request_bytes_total", side=side) == 3 * factor
            assert _value(samples, "fetchgate_fetch_response_bytes_total", side=side) == 4 * factor
            assert _value(samples, "fetchgate_fetch_record_bytes_total", side=side) == 5 * factor
            for kind in FetchKind:
                counted = _value(samples, "fetchgate_fetches_total", side=side, kind=kind.name.lower())
                assert counted == (6 + kind) * factor
            name = "fetchgate_fetch_partitions_total"
            assert _value(samples, name, side=side, direction="request") == 10 * factor
            assert _value(samples, name, side=side, direction="response") == 11 * factor
        assert _value(samples, "fetchgate_fetch_session_errors_total", code="70") == 2
        assert _value(samples, "fetchgate_fetch_session_errors_total", code="71") == 1
        assert _value(samples, "fetchgate_passthrough_total", reason="one partition") == 3
        assert _value(samples, "fetchgate_faults_total", side="broker") == 12


async def test_live_connections_are_counted_while_they_live() -> None:
    async with stub_broker() as broker, gateway(broker.address) as gate:
        async with client(gate.listen.port) as (reader, writer):
            writer.write(b"hello")
            await reader.readexactly(5)
            (link,) = gate.server.links
            core = cast("Wire", link.core)
            core.session_id, core.session_partitions = 77, 100
            link.client.holds, link.broker.holds = PEER_FULL, PEER_FULL | BUDGET
            gate.server.budget.total = 4096
            core.outstanding, core.due_at = 3, monotonic() - 60.0
            samples = _scrape(gate)
            assert _value(samples, "fetchgate_broker_outstanding_requests", broker="bootstrap") == 3
            name = "fetchgate_broker_oldest_request_seconds"
            assert _value(samples, name, broker="bootstrap") == 0, "the gateway does not read the broker"
            link.broker.holds = 0
            assert _value(_scrape(gate), name, broker="bootstrap") >= 60.0
            link.broker.holds = PEER_FULL | BUDGET
            assert _value(samples, "fetchgate_connections", side="client") == 1
            assert _value(samples, "fetchgate_connections", side="broker") == 1
            assert _value(samples, "fetchgate_fetch_sessions", side="broker") == 1
            assert _value(samples, "fetchgate_fetch_session_partitions", side="broker") == 100
            assert _value(samples, "fetchgate_bytes_total", side="client", direction="in") == 5
            assert _value(samples, "fetchgate_inflight_bytes") == 4096
            name = "fetchgate_paused_connections"
            assert _value(samples, name, side="client", reason="broker_full") == 1
            assert _value(samples, name, side="broker", reason="client_full") == 1
            assert _value(samples, name, side="broker", reason="budget") == 1
            link.client.holds = link.broker.holds = 0
            gate.server.budget.total = 0
        await until(lambda: not gate.server.links)
        samples = _scrape(gate)
        assert _value(samples, "fetchgate_connections", side="client") == 0
        assert _value(samples, "fetchgate_connections_accepted_total") == 1
        assert _value(samples, "fetchgate_fetch_sessions", side="broker") == 0
        assert _value(samples, "fetchgate_bytes_total", side="client", direction="in") == 5


async def test_a_capture_that_stopped_shows() -> None:
    async with stub_broker() as broker, gateway(broker.address) as gate:
        account = gate.server.account()
        assert b"\nfetchgate_capture_stopped 0.0\n" in exposition(account)
        account.status.capture_stopped = True
        assert b"\nfetchgate_capture_stopped 1.0\n" in exposition(account)


async def test_the_process_and_the_switch_show() -> None:
    async with stub_broker() as broker, gateway(broker.address, sessions="off") as gate:
        samples = _scrape(gate)
        assert _value(samples, "fetchgate_build_info", version=VERSION) == 1
        assert _value(samples, "fetchgate_sessions_enabled") == 0
        assert _value(samples, "fetchgate_ready") == 0
        assert _value(samples, "process_open_fds") > 0


def test_labels_from_the_wire_are_bounded() -> None:
    counts = Counter({f"reason {number}": 1000 - number for number in range(MAX_REASONS + 3)})

    shown = bounded(counts)

    assert len(shown) == MAX_REASONS + 1
    assert shown[0] == ("reason 0", 1000)
    assert shown[-1] == ("other", 950 + 949 + 948)
    assert sum(count for _, count in shown) == counts.total()
    assert bounded(Counter({"a": 1})) == [("a", 1)]


async def test_histograms_are_cumulative_and_add_brokers_up() -> None:
    async with stub_broker() as broker, gateway(broker.address) as gate:
        for node_id in (1, None):
            measured = gate.monitor.totals.measured(node_id)
            measured.fetches.extend((0.3, 77, 3740, 0, 100, 0.02, 4000, -1, 100, -1))
            measured.requests.extend((0.00004, 3.0))
            measured.others.append(0.002)
        gate.monitor.totals.loop_lag.note([0.02])
        samples = _scrape(gate)

        def buckets(name: str, **labels: str) -> list[float]:
            return [_value(samples, f"{name}_bucket", le=le, **labels) for le in edges]

        edges = ["0.01", "0.025", "0.25", "0.5", "+Inf"]
        assert buckets("fetchgate_broker_seconds", api="fetch") == [0, 2, 2, 4, 4]
        assert _value(samples, "fetchgate_broker_seconds_count", api="fetch") == 4
        assert _value(samples, "fetchgate_broker_seconds_sum", api="fetch") == pytest.approx(0.64)
        assert _value(samples, "fetchgate_broker_seconds_count", api="other") == 2
        edges = ["2.5e-05", "5e-05", "2.5", "+Inf"]
        assert buckets("fetchgate_added_seconds", part="request") == [0, 2, 2, 4]
        assert _value(samples, "fetchgate_added_seconds_count", part="response") == 0
        assert _value(samples, "fetchgate_added_seconds_count", part="repeat") == 0
        edges = ["64", "128", "4096"]
        assert buckets("fetchgate_fetch_answer_bytes", side="broker") == [0, 2, 4]
        assert buckets("fetchgate_fetch_answer_bytes", side="client") == [0, 0, 2]
        edges = ["0", "50", "100"]
        assert buckets("fetchgate_fetch_request_partitions", side="broker") == [2, 2, 4]
        assert buckets("fetchgate_fetch_request_partitions", side="client") == [0, 0, 2]
        assert _value(samples, "fetchgate_loop_lag_seconds_bucket", le="0.025") == 1


async def test_brokers_are_told_apart_up_to_a_bound() -> None:
    async with stub_broker() as broker, gateway(broker.address) as gate:
        for node_id in range(MAX_BROKERS + 5):
            tally = Tally(refusals=2)
            tally.session_errors[70] = 3
            tally.client.fetch_request_bytes = 10
            gate.monitor.totals.closed(node_id, tally)
        samples = _scrape(gate)
        name = "fetchgate_broker_session_refusals_total"
        assert _value(samples, name, broker="0") == 2
        assert _value(samples, name, broker="other") == 10
        assert _value(samples, "fetchgate_broker_session_evictions_total", broker="99") == 3
        assert _value(samples, "fetchgate_broker_saved_bytes", broker="other") == 50
        assert _value(samples, "fetchgate_broker_saved_bytes_total", broker="other") == 50
        assert sum(found == name for found, _ in samples) == MAX_BROKERS + 2


async def test_state_and_limits_show() -> None:
    async with stub_broker() as broker, gateway(broker.address, max_sessions="7") as gate:
        assert all(gate.server.sessions.reserve() for _ in range(3))
        samples = _scrape(gate)
        states = {name: _value(samples, "fetchgate_state", state=name) for name in STATES}
        assert states == {"starting": 1, "ready": 0, "degraded": 0, "draining": 0}
        assert _value(samples, "fetchgate_session_slots_held") == 3
        assert _value(samples, "fetchgate_session_slots_limit") == 7
        assert _value(samples, "fetchgate_inflight_limit_bytes") == gate.server.budget.limit
        assert _value(samples, "fetchgate_broker_unreachable", broker="bootstrap") == 1


async def test_a_scrape_has_no_more_series_than_there_are_things_to_tell() -> None:
    async with stub_broker() as broker, gateway(broker.address) as gate:
        before = len(_scrape(gate))
        async with client(gate.listen.port) as (reader, writer):
            writer.write(b"hello")
            await reader.readexactly(5)
            assert len(_scrape(gate)) == before, "none for a connection"
        assert before < 290


async def test_destinations_are_told_by_their_address() -> None:
    async with gateway("", transparent="redirect") as gate:
        assert isinstance(gate.brokers, Destinations)
        number = gate.brokers.number(Address("10.0.0.7", 9092))
        gate.monitor.totals.closed(number, Tally(refusals=1))
        gate.monitor.totals.closed(LOOPED, Tally(refusals=2))
        gate.monitor.totals.closed(OTHERS, Tally(refusals=4))
        gate.server.unreachable(number, "down")
        assert gate.health().reasons == ["no broker is reachable", "down"]
        samples = _scrape(gate)
        name = "fetchgate_broker_session_refusals_total"
        told = {dict(labels)["broker"]: count for (found, labels), count in samples.items() if found == name}
        assert told == {"10.0.0.7:9092": 1, "nowhere": 2, "other": 4, "bootstrap": 0}
