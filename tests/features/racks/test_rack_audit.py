"""Bytes with brokers are counted by zone (`--rack`; proxy/features/racks/README.md)."""

import asyncio
import json
import struct
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import cast

import pytest
import structlog
from structlog.testing import capture_logs

from proxy.addresses import Address
from proxy.core.connection import Connection
from proxy.features.racks.figures import WHAT, Zones
from proxy.features.racks.options import RackOptions
from proxy.features.racks.racks import Zone
from proxy.features.racks.running import RackAudit
from proxy.net.link import Link
from proxy.protocol.brokers import Broker
from proxy.protocol.metadata import read_replicas
from proxy.server.gateway import Gateway
from proxy.server.process import Process
from proxy.telemetry.metrics import exposition
from proxy.telemetry.state import document
from tests.features.host import host_of
from tests.features.racks.racks import METADATA, brokers, told
from tests.frames import entry, fetch, fetch_response
from tests.playbook import HOT, Playbook, T, request, response
from tests.protocol.replicas import Part, body
from tests.shell import StubCluster, client, config, frame, gateway, run, until
from tests.shell import request as asked_by_t

PRODUCE, HEARTBEAT = 0, 12
RECORDS = b"R" * 300
HEARTBEATS = request(HEARTBEAT, 0, 9), response(9, b"\0\0")


@dataclass(eq=False)
class _Link:
    """What the audit uses of a link."""

    core: Connection | None
    node_id: int | None
    broker_address: Address | None = None


class Played:
    """Connections of one audit that are played. The gateway is in the rack R2."""

    def __init__(self, **options: str) -> None:
        options = {"rack": "R2", "bootstrap": "kafka-1:9092"} | options
        self.process = Process.of(config(**options), asyncio.get_running_loop(), structlog.get_logger())
        self.audit = RackAudit(host_of(self.process), self.process.config.of(RackOptions))
        self.links: list[Link] = []

    def link(self, node_id: int | None, address: Address | None = None) -> Playbook:
        link = _Link(None, node_id, address)  # its stages are made before its core, as in the server
        play = Playbook(stages=self.audit.stages(cast("Link", link)), core=Connection)
        link.core = play.connection
        self.links.append(cast("Link", link))
        return play

    def learn(self, racks: dict[int, str | None]) -> int:
        """Let a Metadata response pass. Return the bytes that this has added: of an unknown broker."""
        asked, answer = request(METADATA, 5, 1), told(METADATA, 5, brokers(5, racks), 1)
        self.link(99).exchange(asked, answer)
        return len(asked) + len(answer)

    def counts(self) -> dict[tuple[str, str], int]:
        found = self.audit.counted(self.links).byte_counts
        return {(str(zone), what): count for (zone, what), count in found.items() if count}


def played(scene: Callable[[], None]) -> None:
    async def within() -> None:
        scene()

    run(within())


def fetched(play: Playbook, *, chunk: int = 1 << 30) -> int:
    """Fetch one batch. Return the bytes without the records."""
    asked, answer = (
        fetch(11, *HOT, correlation=3),
        fetch_response(11, ("t", [entry(1, 20, records=RECORDS)]), correlation_id=3),
    )
    play.client(asked).to_broker(asked)
    play.broker(answer, chunk=chunk).to_client(answer)
    return len(asked) + len(answer) - len(RECORDS)


@pytest.mark.parametrize("chunk", [7, 1 << 30])
def test_rule_2_a_byte_crosses_if_the_rack_is_known_and_is_another(chunk: int) -> None:
    """Without a known rack, the zone is `unknown`."""

    def scene() -> None:
        one = Played()
        learned = one.learn({1: "R1", 2: "R2", 3: None})
        listing = [fetched(one.link(node_id), chunk=chunk) for node_id in (1, 2, 3, 4)]
        assert one.counts() == {
            ("other", "records"): len(RECORDS),
            ("other", "listing"): listing[0],
            ("same", "records"): len(RECORDS),
            ("same", "listing"): listing[1],
            ("unknown", "records"): 2 * len(RECORDS),
            ("unknown", "listing"): listing[2] + listing[3],
            ("unknown", "other"): learned,
        }

    played(scene)


def test_rule_3_records_and_the_rest_of_fetches_are_counted_apart_on_the_brokers_side() -> None:
    """In a session, the broker's side has fewer bytes than the client's."""

    def scene() -> None:
        one = Played()
        learned = one.learn({1: "R1"})
        play = one.link(1).established(11, T)
        found, total = one.counts(), play.connection.tally.broker
        fetches = total.fetch_request_bytes + total.fetch_response_bytes
        assert found["other", "listing"] == fetches - total.fetch_record_bytes
        assert sum(found.values()) - learned == total.bytes_in + total.bytes_out

    played(scene)


def test_rule_4_produce_bytes_are_counted_as_well() -> None:
    def scene() -> None:
        one = Played()
        one.learn({1: "R1", 2: "R2"})
        for node_id, count in ((1, 3), (2, 8)):
            play = one.link(node_id)
            play.exchange(*HEARTBEATS)
            for number in range(count):
                asked = request(PRODUCE, 2, number, b"\0\1" + bytes(104))
                play.exchange(asked, response(number, bytes(60)))
        both = len(asked) + len(response(0, bytes(60)))
        found = one.counts()
        assert found["other", "produce"] == 3 * both
        assert found["same", "produce"] == 8 * both
        assert found["same", "other"] == sum(map(len, HEARTBEATS))

    played(scene)


def test_a_produce_request_that_is_broken_off_is_counted_as_far_as_it_came() -> None:
    def scene() -> None:
        one = Played()
        learned = one.learn({1: "R1"})
        play = one.link(1)
        asked = request(PRODUCE, 2, 5, b"\0\1" + bytes(5000))
        play.client(asked[:2000]).to_broker(asked[:2000])
        assert one.counts() == {("other", "produce"): 2000, ("unknown", "other"): learned}
        play.client(asked[2000:3000]).to_broker(asked[2000:3000])
        play.close()
        one.audit.closed(one.links.pop())
        assert one.counts()["other", "produce"] == 3000

    played(scene)


def test_a_fetch_response_is_counted_when_it_is_complete() -> None:
    """Before, it is not known how many of its bytes are records. So no count has to fall."""

    def scene() -> None:
        one = Played()
        one.learn({1: "R1"})
        play = one.link(1)
        asked = fetch(11, *HOT, correlation=3)
        answer = fetch_response(11, ("t", [entry(1, 20, records=RECORDS)]), correlation_id=3)
        play.client(asked).to_broker(asked)
        before: dict[tuple[str, str], int] = {}
        for at in range(0, len(answer), 50):
            play.broker(answer[at : at + 50])
            play.connection.drain_client()
            found = one.counts()
            assert all(found[key] >= count for key, count in before.items())
            before = found
        rest = len(asked) + len(answer) - len(RECORDS)
        assert (found["other", "records"], found["other", "listing"]) == (len(RECORDS), rest)

    played(scene)


def test_rule_5_a_rack_that_no_broker_has_is_told_once() -> None:
    def scene() -> None:
        one = Played(rack="R9")
        with capture_logs() as lines:
            one.counts()
            one.learn({1: None})
            one.counts()
            assert lines == []
            one.learn({1: "R1", 2: "R2"})
            for _ in range(3):
                one.counts()
        (line,) = lines
        assert line["log_level"] == "warning"
        assert (line["rack"], line["racks"]) == ("R9", "R1, R2")
        assert "--rack" in line["remedy"]
        assert set(one.counts()) == {("unknown", "other")}

    played(scene)


def test_rule_6_without_a_known_rack_all_is_unknown() -> None:
    def scene() -> None:
        one = Played()
        learned = one.learn({1: None, 2: ""})
        listing = fetched(one.link(1)) + fetched(one.link(2))
        assert one.counts() == {
            ("unknown", "records"): 2 * len(RECORDS),
            ("unknown", "listing"): listing,
            ("unknown", "other"): learned,
        }
        assert one.audit.counted(one.links).brokers() == {"same": 0, "other": 0, "unknown": 2}

    played(scene)


def test_bytes_before_the_rack_is_known_stay_unknown() -> None:
    def scene() -> None:
        one = Played()
        play = one.link(1)
        listing = fetched(play)
        assert one.counts() == {("unknown", "records"): 300, ("unknown", "listing"): listing}
        one.learn({1: "R1"})
        assert fetched(play) == listing
        found = one.counts()
        assert found["unknown", "records"] == found["other", "records"] == 300
        assert one.audit.described(one.links[0]) == {"zone": Zone.OTHER, "record_bytes_other_zone": 300}

    played(scene)


def test_a_closed_link_keeps_its_zone() -> None:
    def scene() -> None:
        one = Played()
        one.learn({1: "R1"})
        fetched(one.link(1))
        one.audit.closed(one.links.pop())
        one.learn({1: "R2"})
        assert one.counts()["other", "records"] == 300
        assert ("same", "records") not in one.counts()

    played(scene)


def test_the_address_tells_the_broker_of_a_link_to_the_bootstrap_or_in_transparent_mode() -> None:
    def scene() -> None:
        for options in ({"rack": "R2"}, {"rack": "R2", "transparent": "redirect", "bootstrap": ""}):
            one = Played(**options)
            one.learn({1: "R1", 2: "R2"})
            number = None if "transparent" not in options else 2
            fetched(one.link(number, Address("kafka-1", 9092)))
            fetched(one.link(number, Address("10.0.0.7", 9092)))
            found = one.counts()
            assert (found["other", "records"], found["unknown", "records"]) == (300, 300)
            one.audit.racks.found_at("10.0.0.7", Broker(2, "kafka-2", 9092, "R2"))
            assert one.audit.described(one.links[-1])["zone"] == "same"

    played(scene)


def test_two_clusters_behind_a_transparent_gateway_are_told_apart() -> None:
    """Their brokers have the same node ids."""

    def scene() -> None:
        one = Played(transparent="redirect", bootstrap="")
        one.audit.racks.learn([Broker(1, "10.0.0.1", 9092, "R1")])
        one.audit.racks.learn([Broker(1, "10.1.0.1", 9092, "R2")])
        fetched(one.link(7, Address("10.0.0.1", 9092)))
        fetched(one.link(8, Address("10.1.0.1", 9092)))
        found = one.counts()
        assert (found["other", "records"], found["same", "records"]) == (300, 300)
        assert one.audit.counted(one.links).brokers() == {"same": 1, "other": 1, "unknown": 0}

    played(scene)


async def test_host_names_of_brokers_are_looked_up_until_they_have_an_ip(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one = Played(transparent="redirect", bootstrap="")
    results: list[Sequence[str] | OSError] = [OSError("no name server"), ("10.0.0.7", "fd00::7")]

    async def ips(_host: str) -> Sequence[str]:
        found = results.pop(0)
        if isinstance(found, OSError):
            raise found
        return found

    monkeypatch.setattr(one.process.resolver, "ips", ips)
    one.learn({1: "R1"})
    await until(lambda: len(results) == 1)
    await asyncio.sleep(0)
    one.counts()
    await until(lambda: one.audit.racks.at("fd00::7", 9092))
    assert one.audit.racks.zone_at("10.0.0.7", 9092) is Zone.OTHER


async def test_plans_of_fetches_last_until_something_is_learned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures are read every few seconds, and each scrape reads them, too."""
    one, changed = Played(), list[None]()
    monkeypatch.setattr(one.audit._leaders, "changed", lambda: changed.append(None))
    one.learn({1: "R1"})
    for _ in range(3):
        one.counts()
    assert len(changed) == 1


RACKS = {0: "R1", 1: "R2"}


class RackedCluster(StubCluster):
    """A stub cluster with two brokers at its address, whose Metadata responses have racks."""

    def _response(self, data: bytes) -> bytes:
        if data[4:6] != METADATA.to_bytes(2):
            return super()._response(data)
        host = b"127.0.0.1"
        entries = [
            struct.pack(">ih", node_id, len(host)) + host + struct.pack(">ih", self.port, 2) + rack.encode()
            for node_id, rack in RACKS.items()
        ]
        body = struct.pack(">i", len(entries)) + b"".join(entries) + struct.pack(">ii", 1, 0)
        return response(int.from_bytes(data[8:12]), body)


@asynccontextmanager
async def cluster() -> AsyncIterator[RackedCluster]:
    stub = RackedCluster()
    await stub.start()
    try:
        yield stub
    finally:
        await stub.stop()


async def ask(port: int) -> None:
    """Request metadata at a listener of the gateway, and leave."""
    async with client(port) as (reader, writer):
        writer.write(asked_by_t(METADATA, 1, 5, b"\0\0\0\0"))
        await frame(reader)


def parsed(text: str) -> dict[str, int]:
    lines = (line.rpartition(" ") for line in text.splitlines() if line.startswith("fetchgate_zone_"))
    return {name.removeprefix("fetchgate_zone_"): int(float(value)) for name, _, value in lines}


async def test_metrics_and_state_have_the_zones() -> None:
    async with cluster() as stub, gateway(stub.address, Gateway, rack="R2") as gate:
        await until(lambda: gate.health().state == "ready")
        for node_id in RACKS:
            await ask(gate.listen.port + 1 + node_id)
        await until(lambda: not gate.server.links)
        found = parsed(exposition(gate.account()).decode())
        total = gate.server.account().total().broker
        each = (total.bytes_in + total.bytes_out) // 2
        assert found['bytes_total{what="other",zone="other"}'] == each
        assert found['bytes_total{what="other",zone="same"}'] == each
        assert sum(found.values()) == 2 * each + 2
        assert len(found) == len(Zone) * (len(WHAT) + 1)
        assert {name: count for name, count in found.items() if name.startswith("brokers")} == {
            'brokers{zone="same"}': 1,
            'brokers{zone="other"}': 1,
            'brokers{zone="unknown"}': 0,
        }
        async with client(gate.listen.port + 1) as (reader, writer):
            writer.write(asked_by_t(METADATA, 1, 5, b"\0\0\0\0"))
            await frame(reader)
            shown = json.loads(await document(gate))
        assert shown["rack"] == "R2"
        assert [broker["rack"] for broker in shown["brokers"]] == ["R1", "R2"]
        assert shown["zones"]["brokers"] == {"same": 1, "other": 1, "unknown": 0}
        assert shown["zones"]["bytes"]["other"]["other"] == 2 * each
        (connection,) = shown["connections"]
        assert (connection["zone"], connection["record_bytes_other_zone"]) == ("other", 0)
        assert gate.health().state == "ready"


async def test_without_a_rack_nothing_is_different() -> None:
    async with cluster() as stub, gateway(stub.address, Gateway) as gate:
        await until(lambda: gate.health().state == "ready")
        async with client(gate.listen.port + 1) as (reader, writer):
            writer.write(asked_by_t(METADATA, 1, 5, b"\0\0\0\0"))
            await frame(reader)
            account, shown = gate.account(), json.loads(await document(gate))
        text = json.dumps(shown | {"config": {}})
        assert "zone" not in exposition(account).decode() + text
        assert "rack" not in text
        assert "produce_bytes" not in text


async def test_rule_5_a_gateway_whose_rack_no_broker_has_is_ready() -> None:
    async with cluster() as stub, gateway(stub.address, Gateway, rack="R9") as gate:
        await until(lambda: gate.health().state == "ready")
        with capture_logs() as lines:
            await ask(gate.listen.port + 1)
            await until(lambda: gate.server.account().of(Zones) and lines)
            gate.server.account()
        assert [line["event"] for line in lines] == ["no broker is in the gateway's rack"]
        assert gate.health().state == "ready"
        assert gate.health().reasons == []
        (event,) = [each for each in gate.process.events if each.kind == "rack"]
        assert event.warning
        assert event.count == 1


def test_a_reload_of_rack_clients_applies_to_open_connections_as_well() -> None:
    """A client that is named, and then reads from a replica on an old connection, is kept from harm there.

    So is a client that is not named any more, and has not asked for Metadata yet.
    """

    def scene() -> None:
        one = Played()
        here = one.link(2)
        before, asked = one.process.config.of(RackOptions), request(METADATA, 7, 1)

        def leader() -> int:
            play = one.link(1).client(asked).to_broker(asked)
            play.broker(response(1, body(7, {"t": [Part()]})))
            return int(read_replicas(play.takes_client()[8:], 7).leader[0])

        def fetches(correlation: int) -> None:
            wants = fetch(12, ("t", 0), correlation=correlation)
            here.client(wants).to_broker(wants)

        def out_of_range(correlation: int, error: int) -> bytes:
            return fetch_response(12, ("t", [entry(0, error=error)]), correlation_id=correlation)

        assert leader() == 1
        one.audit.reloaded(replace(before, rack_clients=frozenset({"c"})))
        assert leader() == 2
        fetches(2)
        here.broker(out_of_range(2, 1)).to_client(out_of_range(2, 6))
        one.audit.reloaded(before)
        fetches(3)
        here.broker(out_of_range(3, 1)).to_client(out_of_range(3, 6))
        assert leader() == 1

    played(scene)
