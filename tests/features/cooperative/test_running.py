"""Cooperative groups of a gateway: events and figures."""

import pytest

from proxy.features.cooperative.running import Groups
from proxy.features.cooperative.tally import GroupNotice
from proxy.server.gateway import Gateway
from tests.server.test_imported import imported
from tests.shell import gateway, running, stub_broker, stub_cluster
from tests.telemetry.test_admin import admin_of, get


async def test_a_group_that_shares_nothing_stays_in_the_recent_events_beside_its_rebalance() -> None:
    async with (
        stub_cluster() as cluster,
        gateway(cluster.address, Gateway, cooperative="billing") as gate,
    ):
        running(gate, Groups)._tell(GroupNotice.EXCLUSIVE, "billing", "members differ")
        running(gate, Groups)._tell(GroupNotice.REBALANCED, "billing", "2 members")
        told = [(event.text, event.warning) for event in gate.process.events]
        assert told[-2:] == [
            ("group billing shares no partition: members differ", True),
            ("group billing: 2 members", False),
        ]


async def test_cooperative_groups_are_told_where_there_are_some() -> None:
    async with stub_broker() as broker, gateway(broker.address) as gate, admin_of(gate) as (port, _):
        none = "no group is cooperative: --cooperative names none\n"
        assert await get(port, "/cooperative") == (404, none)
        assert "cooperative" not in (await get(port, "/state"))[1]
        assert "fetchgate_coop" not in (await get(port, "/metrics"))[1]
    async with (
        stub_broker() as broker,
        gateway(broker.address, cooperative="billing,audit") as gate,
        admin_of(gate) as (port, _),
    ):
        status, said = await get(port, "/cooperative")
        assert (status, [group["group"] for group in said["groups"]]) == (200, ["audit", "billing"])
        assert said["records"] == {"kept": 0, "filtered": 0}
        assert (await get(port, "/state"))[1]["cooperative"] == said
        assert 'fetchgate_coop_unowned_ranges{group="billing"} 0.0' in (await get(port, "/metrics"))[1]


@pytest.mark.slow
def test_only_a_gateway_with_cooperative_groups_imports_the_rest_of_the_folder() -> None:
    rest = {f"proxy.features.cooperative.{name}" for name in ("group", "member_stage", "running")}
    assert not imported()[0] & rest
    assert rest <= imported("--cooperative", "billing")[0]
