"""Reasons that `/readyz` gives, beyond those of the bootstrap and the listeners."""

from proxy.account import Health
from proxy.server import Gateway

from .shell import gateway, run, stub_cluster, until


def test_limits_that_are_reached_are_reasons() -> None:
    async def scene() -> None:
        async with (
            stub_cluster((1, "", 0)) as cluster,
            gateway(cluster.address, Gateway, max_sessions="1", max_inflight_bytes="100") as gate,
        ):
            await until(lambda: gate.health().state == "ready")
            assert gate.sessions.take()
            slots = "all 1 session slots are taken, other clients pass as they come; see --max-sessions"
            assert gate.health() == Health(state="degraded", reasons=[slots])
            gate.set_sessions(on=False, off_for=frozenset())
            assert gate.health().state == "ready", "nobody wants one"
            gate.set_sessions(on=True, off_for=frozenset())
            gate.budget.total = 101
            held = "101 bytes of answers are held, brokers wait; see --max-inflight-bytes"
            assert gate.health() == Health(state="degraded", reasons=[slots, held])
            assert gate.health().ready
            gate.budget.total = 0
            gate.sessions.release()
            assert gate.health() == Health(state="ready", reasons=[])

    run(scene())


def test_no_slot_is_wanted_where_none_may_be_taken() -> None:
    async def scene() -> None:
        async with (
            stub_cluster((1, "", 0)) as cluster,
            gateway(cluster.address, Gateway, max_sessions="0") as gate,
        ):
            await until(lambda: gate.health().state == "ready")

    run(scene())


def test_that_no_broker_is_reachable_is_said_first() -> None:
    async def scene() -> None:
        async with stub_cluster((1, "", 0)) as cluster, gateway(cluster.address, Gateway) as gate:
            await until(lambda: gate.health().state == "ready")
            gate.unreachable(None, "down")
            assert gate.health().reasons == ["down"]
            gate.unreachable(1, "and this")
            assert gate.health() == Health(
                state="degraded", reasons=["no broker is reachable", "down", "and this"]
            )
            told = [kept.text for kept in gate.books.happenings]
            assert told[0].startswith("ready: the bootstrap ")
            assert told[1:] == ["broker 1 is unreachable: and this"], "of one kind, told as one"
            gate.connected(1, gate.listen)
            assert gate.health().reasons == ["down"]

    run(scene())
