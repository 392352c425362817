from collections import Counter
from typing import cast

from prometheus_client.parser import text_string_to_metric_families

from proxy.events import FetchKind, Tally
from proxy.metrics import MAX_REASONS, VERSION, bounded, exposition, registry
from proxy.server import Gateway
from proxy.transports import BUDGET, PEER_FULL

from .shell import Wire, client, gateway, run, stub_broker, until

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def _scrape(gate: Gateway) -> Samples:
    text = exposition(registry(gate)).decode()
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


def test_every_figure_is_the_tallys() -> None:
    async def scene() -> None:
        async with stub_broker() as broker, gateway(broker.address) as gate:
            _fill(gate.books.gone.setdefault(None, Tally()))
            gate.faults["broker"] = 12
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

    run(scene())


def test_live_connections_are_counted_while_they_live() -> None:
    async def scene() -> None:
        async with stub_broker() as broker, gateway(broker.address) as gate:
            async with client(gate.listen.port) as (reader, writer):
                writer.write(b"hello")
                await reader.readexactly(5)
                (link,) = gate.links
                core = cast("Wire", link.core)
                core.session_id, core.session_partitions = 77, 100
                link.client_holds, link.broker_holds = PEER_FULL, PEER_FULL | BUDGET
                gate.budget.total = 4096
                samples = _scrape(gate)
                assert _value(samples, "fetchgate_connections", side="client") == 1
                assert _value(samples, "fetchgate_connections", side="broker") == 1
                assert _value(samples, "fetchgate_fetch_sessions", side="broker") == 1
                assert _value(samples, "fetchgate_fetch_sessions", side="client") == 0
                assert _value(samples, "fetchgate_fetch_session_partitions", side="broker") == 100
                assert _value(samples, "fetchgate_bytes_total", side="client", direction="in") == 5
                assert _value(samples, "fetchgate_inflight_bytes") == 4096
                name = "fetchgate_paused_connections"
                assert _value(samples, name, side="client", reason="broker_full") == 1
                assert _value(samples, name, side="broker", reason="client_full") == 1
                assert _value(samples, name, side="broker", reason="budget") == 1
                link.client_holds = link.broker_holds = 0
                gate.budget.total = 0
            await until(lambda: not gate.links)
            samples = _scrape(gate)
            assert _value(samples, "fetchgate_connections", side="client") == 0
            assert _value(samples, "fetchgate_connections_accepted_total") == 1
            assert _value(samples, "fetchgate_fetch_sessions", side="broker") == 0
            assert _value(samples, "fetchgate_bytes_total", side="client", direction="in") == 5

    run(scene())


def test_the_process_and_the_switch_show() -> None:
    async def scene() -> None:
        async with stub_broker() as broker, gateway(broker.address, sessions="off") as gate:
            samples = _scrape(gate)
            assert _value(samples, "fetchgate_build_info", version=VERSION) == 1
            assert _value(samples, "fetchgate_sessions_enabled") == 0
            assert _value(samples, "fetchgate_ready") == 0
            assert _value(samples, "process_open_fds") > 0
            assert _value(samples, "fetchgate_num_incremental_fetch_sessions") == 0
            assert _value(samples, "fetchgate_num_incremental_fetch_partitions_cached") == 0
            name = "fetchgate_incremental_fetch_session_evictions_total"
            assert _value(samples, name, privileged="true") == 0

    run(scene())


def test_labels_from_the_wire_are_bounded() -> None:
    counts = Counter({f"reason {number}": 1000 - number for number in range(MAX_REASONS + 3)})

    shown = bounded(counts)

    assert len(shown) == MAX_REASONS + 1
    assert shown[0] == ("reason 0", 1000)
    assert shown[-1] == ("other", 950 + 949 + 948)
    assert sum(count for _, count in shown) == counts.total()
    assert bounded(Counter({"a": 1})) == [("a", 1)]
