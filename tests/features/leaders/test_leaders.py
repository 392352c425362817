"""The option ``--follow-leader``. `test_stage.py` has what it does."""

from pathlib import Path

import pytest

from proxy.command.config import load
from proxy.features.leaders.options import LeaderOptions
from proxy.features.leaders.running import Leaders
from tests.command.loading import NEEDED, error_of
from tests.server.test_imported import imported
from tests.shell import gateway, running, stub_broker


async def test_fetches_follow_leaders_only_where_the_option_asks_for_it() -> None:
    async with stub_broker() as broker, gateway(broker.address, follow_leader="on") as gate:
        assert running(gate, Leaders).asks_brokers
        assert gate.server._siblings is not None
    async with stub_broker() as broker, gateway(broker.address) as gate:
        assert gate.server._siblings is None


def test_leaders_can_only_be_followed_where_brokers_have_listeners() -> None:
    transparent = {"transparent": "redirect", "listen": "127.0.0.1:1"}

    told = error_of(transparent | {"follow_leader": "on"})

    assert told.startswith("--follow-leader: leave it out with --transparent")
    assert not load(transparent, {}, None).of(LeaderOptions).follow_leader
    assert load(NEEDED | {"follow_leader": "1"}, {}, None).of(LeaderOptions).follow_leader


def test_former_values_name_the_one_to_use(tmp_path: Path) -> None:
    (file := tmp_path / "gate.toml").write_text('follow_leader = "fetch"\n')

    assert error_of(NEEDED, {}, str(file)) == f"follow_leader in {file}: fetch was removed: use on"
    assert error_of(NEEDED, {"FETCHGATE_FOLLOW_LEADER": "fetch"}) == (
        "FETCHGATE_FOLLOW_LEADER: fetch was removed: use on"
    )
    assert error_of(NEEDED | {"follow_leader": "idempotent"}) == (
        "--follow-leader: idempotent was removed: use on, which retries fetches; "
        "a producer finds the new leader itself"
    )


@pytest.mark.slow
def test_a_gateway_that_follows_leaders_imports_what_asks_brokers() -> None:
    assert {"proxy.core.asking.asker", "proxy.core.asking.siblings"} <= imported("--follow-leader", "on")[0]
