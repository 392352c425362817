"""The figures of clients' sessions."""

from proxy.features.client_sessions.figures import ClientSessionFigures
from proxy.features.client_sessions.running import RunningClientSessions
from proxy.telemetry.metrics import exposition
from tests.shell import gateway, running, stub_broker


async def test_sessions_of_clients_show() -> None:
    async with stub_broker() as broker, gateway(broker.address) as gate:
        running(gate, RunningClientSessions).manager.cache.evictions = 7
        account = gate.server.account()
        figures = account.of(ClientSessionFigures)
        assert figures is not None
        figures.sessions, figures.partitions = 3, 50
        text = exposition(account)
        assert b'\nfetchgate_fetch_sessions{side="client"} 3.0\n' in text
        assert b'\nfetchgate_fetch_session_partitions{side="client"} 50.0\n' in text
        assert b"\nfetchgate_num_incremental_fetch_sessions 3.0\n" in text
        assert b"\nfetchgate_num_incremental_fetch_partitions_cached 50.0\n" in text
        name = b"\nfetchgate_incremental_fetch_session_evictions_total"
        assert name + b'{privileged="false"} 7.0\n' in text
        assert name + b'{privileged="true"} 0.0\n' in text


async def test_without_sessions_all_are_0() -> None:
    async with stub_broker() as broker, gateway(broker.address, client_sessions="off") as gate:
        text = exposition(gate.server.account())
        assert b"\nfetchgate_num_incremental_fetch_sessions 0.0\n" in text
        assert b"\nfetchgate_num_incremental_fetch_partitions_cached 0.0\n" in text
        assert b'\nfetchgate_incremental_fetch_session_evictions_total{privileged="true"} 0.0\n' in text
