import asyncio
import json
import socket
from collections.abc import Coroutine, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import structlog

from proxy.addresses import Address
from proxy.command.config import load
from proxy.server import registry
from proxy.server.acceptor import Acceptor
from proxy.server.process import Process, Tasks
from proxy.server.registry import FORGET_SECONDS, UNNAMED_SECONDS, BrokerRegistry
from tools.kafka.ports import free_ports

KAFKA = Address("kafka-1", 9092)


class Serving(Tasks):
    """Replaces the gateway: it has the listeners, and keeps background tasks until `settle`."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self.loop = loop
        self.tasks: list[Coroutine[Any, Any, None]] = []
        self.acceptor: Acceptor

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self.tasks.append(work)

    def settle(self) -> None:
        """Run the background tasks to their end, including new ones."""

        async def settled() -> None:
            while self.tasks:
                await self.tasks.pop(0)

        self.loop.run_until_complete(settled())

    def brokers(self, base: int, *, rule: str = "", advertise: str = "", **more: str) -> BrokerRegistry:
        asked = {
            "bootstrap": "k:1",
            "listen": f"127.0.0.1:{base}",
            "broker_ports": rule,
            "advertise": advertise,
        }
        given = {name: text for name, text in asked.items() if text} | more
        process = Process.of(load(given, {}, None), self.loop, structlog.get_logger())
        process = replace(process, tasks=self)
        self.acceptor = Acceptor(process)
        brokers = BrokerRegistry(process, self.acceptor)
        brokers.open()
        return brokers


@pytest.fixture
def serving() -> Iterator[Serving]:
    serving = Serving(asyncio.new_event_loop())
    yield serving
    for task in serving.tasks:
        task.close()
    serving.acceptor.close()
    serving.loop.close()


@pytest.fixture
def base() -> int:
    """Return a port. The next five ports are free too."""
    return free_ports(6)


def _connects(port: int) -> bool:
    with closing(socket.socket()) as sock:
        return sock.connect_ex(("127.0.0.1", port)) == 0


def test_a_response_names_a_broker_once_its_listener_is_bound(serving: Serving, base: int) -> None:
    brokers = serving.brokers(base)
    assert not _connects(base + 2)

    assert brokers.resolve("127.0.0.1", 1, "kafka-1", 9092) == ("127.0.0.1", base + 2)

    assert _connects(base + 2)
    assert brokers.known[1].address == KAFKA


def test_the_same_broker_is_told_the_same_and_bound_once(serving: Serving, base: int) -> None:
    brokers = serving.brokers(base, advertise="gate")
    first = brokers.resolve("127.0.0.1", 0, "kafka-0", 9092)
    (sock,) = serving.acceptor.listeners[0]

    assert brokers.resolve("127.0.0.1", 0, "kafka-0", 9092) == first == ("gate", base + 1)
    assert serving.acceptor.listeners[0] == [sock]


def test_a_broker_that_moved_keeps_its_listener(serving: Serving, base: int) -> None:
    brokers = serving.brokers(base)
    before = brokers.resolve("127.0.0.1", 1, "kafka-1", 9092)

    assert brokers.resolve("127.0.0.1", 1, "kafka-one", 9093) == before
    assert brokers.known[1].address == Address("kafka-one", 9093)


@pytest.mark.parametrize(
    ("node_id", "host", "port"), [(-1, "k", 1), (1, "", 1), (1, "k", -1), (1, "k", 65536)]
)
def test_an_address_that_is_none_is_not_learned(
    serving: Serving, base: int, node_id: int, host: str, port: int
) -> None:
    brokers = serving.brokers(base)

    assert brokers.resolve("127.0.0.1", node_id, host, port) is None
    assert brokers.known == {}


def test_a_broker_without_a_port_is_left_out_and_named(serving: Serving, base: int) -> None:
    brokers = serving.brokers(base)

    assert brokers.resolve("127.0.0.1", 65_000, "kafka", 9092) is None
    assert brokers.problems == [
        (
            "broker 65000: its port is outside 1-65535; "
            "give it a port with --broker-ports, or all brokers with --listen-ports"
        )
    ]
    brokers.retry()
    serving.settle()
    assert len(brokers.problems) == 1


def test_a_broker_whose_port_is_taken_is_left_out_until_it_is_free(serving: Serving, base: int) -> None:
    brokers = serving.brokers(base)
    with closing(socket.create_server(("127.0.0.1", base + 2))):
        assert brokers.resolve("127.0.0.1", 1, "kafka-1", 9092) is None
        brokers.retry()
        serving.settle()
        (problem,) = brokers.problems
        assert problem == (
            f"broker 1: 127.0.0.1:{base + 2} can't be bound: Address already in use; "
            "give it another port with --broker-ports"
        )

    brokers.retry()
    serving.settle()

    assert brokers.problems == []
    assert brokers.resolve("127.0.0.1", 1, "kafka-1", 9092) == ("127.0.0.1", base + 2)


def test_two_brokers_never_share_a_port_by_accident(serving: Serving, base: int) -> None:
    """Two brokers never get the same port. With SO_REUSEPORT the system would allow it, and divide the
    clients between both brokers.
    """
    brokers = serving.brokers(base, rule=f"{base},3={base + 1}", reuse_port="on")

    assert brokers.resolve("127.0.0.1", 1, "kafka-1", 9092) == ("127.0.0.1", base + 1)
    assert brokers.resolve("127.0.0.1", 3, "kafka-3", 9092) is None
    (problem,) = brokers.problems
    assert problem == (
        f"broker 3: 127.0.0.1:{base + 1} can't be bound: Address already in use; "
        "give it another port with --broker-ports"
    )

    serving.acceptor.stop(1)
    brokers.retry()
    serving.settle()

    assert brokers.problems == []
    assert _connects(base + 1)


LARGE = 900_000_001


def test_ports_of_a_range_are_given_in_the_order_of_first_sight(serving: Serving, base: int) -> None:
    brokers = serving.brokers(base, listen_ports=f"{base}-{base + 4}", rule=f"7={base + 3}")
    ids = (LARGE, LARGE + 5, 7, LARGE + 1)
    for _ in range(2):
        told = [brokers.resolve("127.0.0.1", node_id, "kafka", 9092) for node_id in ids]
        assert told == [("127.0.0.1", base + more) for more in (1, 2, 3, 4)], "listen and 7 have theirs"
    assert brokers.resolve("127.0.0.1", 1, "kafka", 9092) is None
    assert brokers.problems == ["broker 1: all ports of --listen-ports are used; give more of them"]

    others = dict.fromkeys((LARGE + 5, 7, LARGE + 1, 1), KAFKA)
    brokers.update(others, (), 0.0)
    brokers.update(others, (), FORGET_SECONDS)
    brokers.retry()
    serving.settle()
    assert brokers.problems == [], "the port of the broker that is gone is free"
    assert brokers.resolve("127.0.0.1", 1, "kafka", 9092) == ("127.0.0.1", base + 1)


def test_a_broker_that_no_response_names_for_long_gives_its_port_to_a_new_one(
    serving: Serving, base: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the cluster requires authentication, the gateway does not know which brokers have left it."""
    now = 0.0
    monkeypatch.setattr(registry, "monotonic", lambda: now)
    brokers = serving.brokers(base, listen_ports=f"{base + 1}-{base + 3}", rule=f"4={base + 4}")
    brokers._in_use = lambda: {1}
    for node_id in (4, 1, 2, 3):
        now += 1.0
        brokers.resolve("127.0.0.1", node_id, "kafka", 9092)
    now = UNNAMED_SECONDS + 2.0
    assert brokers.resolve("127.0.0.1", 5, "kafka", 9092) is None, "2 was named an hour ago, 1 is in use"
    now += 1.1
    brokers.retry()
    serving.settle()
    assert brokers.resolve("127.0.0.1", 5, "kafka", 9092) == ("127.0.0.1", base + 2)
    assert set(brokers.known) == {1, 3, 4, 5}


def test_a_port_of_a_range_that_somebody_else_has_is_left_to_them(serving: Serving, base: int) -> None:
    brokers = serving.brokers(base, listen_ports=f"{base + 1}-{base + 2}")
    with closing(socket.create_server(("127.0.0.1", base + 1))):
        assert brokers.resolve("127.0.0.1", 1, "kafka", 9092) == ("127.0.0.1", base + 2)
        assert brokers.resolve("127.0.0.1", 2, "kafka", 9092) is None
        (problem,) = brokers.problems
        assert problem.endswith("Address already in use; give --listen-ports other ports")
    brokers.retry()
    serving.settle()
    assert brokers.resolve("127.0.0.1", 2, "kafka", 9092) == ("127.0.0.1", base + 1)


def test_a_broker_has_the_same_port_of_a_range_after_a_restart(
    serving: Serving, base: int, tmp_path: Path
) -> None:
    options = {"listen_ports": f"{base + 1}-{base + 3}", "state": str(tmp_path / "brokers.json")}
    brokers = serving.brokers(base, **options)
    brokers.restore()
    for node_id in (3, 2, 1):
        brokers.resolve("127.0.0.1", node_id, "kafka", 9092)
    brokers.close()
    serving.acceptor.close()
    kept = json.loads((tmp_path / "brokers.json").read_text())
    kept["brokers"][1].pop("listen_port")
    kept["brokers"].insert(0, kept["brokers"].pop(1))
    (tmp_path / "brokers.json").write_text(json.dumps(kept))

    brokers = serving.brokers(base, **options)
    brokers.restore()
    assert {each.node_id: each.listener for each in brokers.known.values()} == {
        node_id: Address("127.0.0.1", base + 4 - node_id) for node_id in (1, 2, 3)
    }


@pytest.mark.parametrize("first", [1, 2])
def test_a_broker_that_loses_its_port_of_a_range_takes_none_of_another(
    serving: Serving, base: int, tmp_path: Path, first: int
) -> None:
    """Clients know the ports. One that is in use, or no longer in the range, must not move all brokers."""
    options = {"listen_ports": f"{base + first}-{base + 4}", "state": str(tmp_path / "brokers.json")}
    kept = [
        {"id": node_id, "host": "kafka", "port": 9092, "listen_port": base + node_id} for node_id in (1, 2, 3)
    ]
    (tmp_path / "brokers.json").write_text(json.dumps({"brokers": kept}))
    with closing(socket.create_server(("127.0.0.1", base + 1))):
        brokers = serving.brokers(base, **options)
        brokers.restore()
    assert {each.node_id: each.listener and each.listener.port for each in brokers.known.values()} == {
        1: base + 4,
        2: base + 2,
        3: base + 3,
    }


def test_a_host_template_that_leads_nowhere_is_left_out(serving: Serving, base: int) -> None:
    brokers = serving.brokers(base, rule="b-{id}.invalid:9092")

    assert brokers.resolve("127.0.0.1", 1, "kafka-1", 9092) is None
    serving.settle()
    (problem,) = brokers.problems
    assert problem.startswith("broker 1: b-1.invalid:9092 can't be bound: unknown host: ")


def test_a_host_template_binds_and_tells_the_name(serving: Serving, base: int) -> None:
    brokers = serving.brokers(base, rule=f"127.0.0.{{id}}:{base}", advertise="gate")

    assert brokers.resolve("127.0.0.1", 9, "kafka-9", 9092) == ("127.0.0.9", base)
    assert serving.acceptor.listeners[9][0].getsockname() == ("127.0.0.9", base)


def test_a_broker_that_is_gone_for_long_loses_its_listener(serving: Serving, base: int) -> None:
    brokers = serving.brokers(base)
    both = {1: KAFKA, 2: Address("kafka-2", 9092)}
    brokers.update(both, (), 0.0)
    brokers.update({1: KAFKA}, (), 10.0)
    brokers.update({1: KAFKA}, (), 9.9 + FORGET_SECONDS)
    assert _connects(base + 3)

    brokers.update({1: KAFKA}, {2}, 10.0 + FORGET_SECONDS)
    assert _connects(base + 3), "somebody uses it"
    brokers.update({1: KAFKA}, (), 10.0 + FORGET_SECONDS)

    assert not _connects(base + 3)
    assert list(brokers.known) == [1]


def test_a_broker_that_comes_back_in_time_keeps_its_listener(serving: Serving, base: int) -> None:
    brokers = serving.brokers(base)
    brokers.update({1: KAFKA}, (), 0.0)
    brokers.update({}, (), 10.0)
    brokers.update({1: KAFKA}, (), 20.0)
    brokers.update({}, (), 15.0 + FORGET_SECONDS)

    assert list(brokers.known) == [1]
