"""Limits of fetches apply to open connections as well."""

from proxy.features.limits.running import Limits
from proxy.server.gateway import Gateway
from tests.shell import gateway, running, stub_cluster


async def test_a_ceiling_of_fetches_applies_to_all_connections_at_once() -> None:
    async with (
        stub_cluster() as cluster,
        gateway(cluster.address, Gateway, max_fetch_bytes="900,a=5") as gate,
    ):
        limits = running(gate, Limits).limits
        assert limits.max_bytes == {"": 900, "a": 5}
        gate.reconfigure(gate.process.config.having(max_fetch_bytes={"a": 7}))
        assert limits.max_bytes == {"a": 7}


async def test_floors_of_fetches_apply_to_all_connections_at_once() -> None:
    """The plans of the fast path recognise new floors by a new `SessionLimits.generation`."""
    async with (
        stub_cluster() as cluster,
        gateway(cluster.address, Gateway, fetch_min_bytes="900,a=5", fetch_max_wait="a=1500ms") as gate,
    ):
        floors, before = running(gate, Limits).limits, gate.server.sessions.generation
        assert (floors.min_bytes, floors.max_wait_ms) == ({"": 900, "a": 5}, {"a": 1500})
        gate.reconfigure(gate.process.config.having(fetch_min_bytes={"a": 7}, fetch_max_wait={}))
        assert (floors.min_bytes, floors.max_wait_ms) == ({"a": 7}, {})
        assert gate.server.sessions.generation > before
