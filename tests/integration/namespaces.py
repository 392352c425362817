"""Network namespaces to test transparent mode. Client and gateway are in one, brokers in another.

nftables counts the bytes between the two namespaces, independently of the gateway's counts.
"""

from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from typing import Final

import pytest

from tests.clients.runner import CONFLUENT, Program, Run
from tests.integration.bystander import until
from tests.integration.fetching import Fetcher
from tests.integration.producing import Producer
from tests.integration.sidecar import USER, Sidecar
from tools.kafka import Broker
from tools.kafka.admin import Admin
from tools.netns import Namespace, missing, veth
from tools.netns.counters import Counters, Crossed
from tools.netns.rules import rules

LACKING: Final = missing("nft", "setpriv")
"""The requirements of these tests that this machine does not have, or ""."""
MODES: Final = ("redirect", "tproxy")
PORT, LAST_PORT = 9092, 9094
"""Connections to these ports are redirected to the gateway."""
LISTEN_PORT: Final = 19092
HOSTS: Final = {"IPv4": "10.79.0.2", "IPv6": "fd79::2"}
SLOW_HOST, SLOW_PORT = "10.80.0.2", 9093
"""The address of the same broker on a second link. Only some tests create this link."""
BROKER_PORT, CONTROLLER_PORT = 19192, 19193
"""Ports that the broker uses on its own loopback interface."""
TOPIC, PARTITIONS, BUSY = "transparent", 60, 3
FETCHES: Final = 15
ONE_ANSWER: Final = 50 * PARTITIONS
"""This many bytes are more than one full response of idle partitions."""
ROUNDS: Final = 5
"""How many rounds are tried until one has no retransmission."""


@dataclass(slots=True)
class Round:
    """The bytes to and from the broker in one round."""

    crossed: tuple[int, int] = (0, 0)
    """The bytes to and from the broker, as the packet counters count them, without headers."""
    counted: tuple[int, int] = (0, 0)
    """The bytes to and from the broker, as the gateway counts them."""
    last: int = 0
    """How many bytes may still arrive on connections that have ended."""


@dataclass(frozen=True, slots=True)
class Place:
    """The namespaces and counters of the tests."""

    near: Namespace
    """The namespace of client and gateway."""
    far: Namespace
    """The namespace of the brokers."""
    wire: Counters
    """The counters of the traffic between the two namespaces."""
    inner: Counters
    """Counts the traffic between client and gateway."""

    @classmethod
    def joined(cls, near: Namespace, far: Namespace) -> "Place":
        """Count the traffic between two namespaces that are joined by a device named wire."""
        ports = range(PORT, LAST_PORT + 1)
        return cls(near, far, Counters(near, "wire", ports), Counters(near, "lo", [*ports, LISTEN_PORT]))

    @contextmanager
    def rules(self, mode: str, *, user: int = USER) -> Iterator[None]:
        with rules(self.near, mode, ports=f"{PORT}-{LAST_PORT}", to=LISTEN_PORT, user=user):
            yield

    @contextmanager
    def sidecar(self, mode: str, *options: str, user: int = USER) -> Iterator[Sidecar]:
        rights = ("net_raw",) if mode == "tproxy" else ()
        listen = () if "--listen" in options else ("--listen", f"127.0.0.1:{LISTEN_PORT}")
        with Sidecar(
            self.near, "--transparent", mode, *listen, *options, rights=rights, user=user
        ) as sidecar:
            yield sidecar

    def consumer(self, address: str, program: Program = CONFLUENT, *, at: Namespace | None = None) -> Run:
        """Read the complete topic, from the gateway's namespace or from another one."""
        with (at or self.near).inside():
            return Run(program, address, assign={TOPIC: PARTITIONS})

    def retransmitted(self) -> int:
        """Return the retransmitted segments on both ends, as counted by the kernel."""
        total = 0
        for namespace in (self.near, self.far):
            told = namespace.run("cat", "/proc/net/snmp").stdout
            names, values = (line.split() for line in told.splitlines() if line.startswith("Tcp:"))
            total += int(values[names.index("RetransSegs")])
        return total

    def rounds(self) -> Iterator[Round]:
        """Run rounds, each with counters at zero, until the packet count and the gateway's count are equal.

        The packet count is higher if a segment is retransmitted, or if a response arrives after its client
        has left. Tests compare other figures only in the last round.
        """
        for _ in range(ROUNDS):
            again = self.retransmitted()
            self.wire.reset()
            self.inner.reset()
            yield (round_ := Round())
            if self.retransmitted() == again:
                (asked, told), (sent, had) = round_.crossed, round_.counted
                assert asked == sent
                assert 0 <= told - had <= round_.last
                if told == had:
                    return
        pytest.fail(f"in none of {ROUNDS} rounds what crossed was what was counted")

    @contextmanager
    def plain_tcp(self) -> Iterator[None]:
        """Make the headers of all packets equally long, and avoid early retransmissions.

        For this, SACK and tail loss probes are switched off.
        """
        for namespace in (self.near, self.far):
            namespace.run("sysctl", "-qw", "net.ipv4.tcp_sack=0", "net.ipv4.tcp_early_retrans=0")
        yield
        for namespace in (self.near, self.far):
            namespace.run("sysctl", "-qw", "net.ipv4.tcp_sack=1", "net.ipv4.tcp_early_retrans=3")


def counted(sidecar: Sidecar, side: str) -> tuple[int, int]:
    """Return the bytes to and from the broker, on a side of the gateway."""
    towards = {"client": ("in", "out"), "broker": ("out", "in")}[side]
    out, back = (
        int(sidecar.metric("fetchgate_bytes_total", side=side, direction=direction)) for direction in towards
    )
    return out, back


def payloads(crossed: tuple[Crossed, Crossed]) -> tuple[int, int]:
    return crossed[0].payload, crossed[1].payload


def fetches(sidecar: Sidecar) -> float:
    return sum(
        sidecar.metric("fetchgate_fetches_total", side="client", kind=kind)
        for kind in ("sessionless", "full", "incremental")
    )


def quiet(sidecar: Sidecar) -> None:
    until(lambda: not sidecar.state()["connections_open"], "connections stay open")


def far_broker() -> Broker:
    """Return a broker that is not started yet. It can be reached from the other namespace and on loopback."""
    names = {
        "PLAINTEXT": f"127.0.0.1:{BROKER_PORT}",
        "V4": f"{HOSTS['IPv4']}:{PORT}",
        "V6": f"[{HOSTS['IPv6']}]:{PORT}",
        "SLOW": f"{SLOW_HOST}:{SLOW_PORT}",
    }
    told = ",".join(f"{name}://{address}" for name, address in names.items())
    bound = told.replace(SLOW_HOST, "0.0.0.0") + f",CONTROLLER://127.0.0.1:{CONTROLLER_PORT}"
    return Broker(
        port=BROKER_PORT,
        voters={1: CONTROLLER_PORT},
        properties={
            "listeners": bound,
            "advertised.listeners": told,
            "listener.security.protocol.map": ",".join(
                f"{name}:PLAINTEXT" for name in (*names, "CONTROLLER")
            ),
        },
    )


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    """Run one broker in the far namespace. Its topic has records in few partitions."""
    with ExitStack() as stack:
        near, far = stack.enter_context(Namespace()), stack.enter_context(Namespace())
        veth(near, far, "wire", [("10.79.0.1/24", "10.79.0.2/24"), ("fd79::1/64", "fd79::2/64")])
        broker = far_broker()
        with far.inside():
            stack.enter_context(broker)
            with Admin(broker.address) as admin:
                admin.create_topic(TOPIC, partitions=PARTITIONS)
        place = Place.joined(near, far)
        produce(place, [b"%d" % number for number in range(100)])
        yield place


def produce(place: Place, values: list[bytes]) -> None:
    with place.far.inside(), closing(Producer("127.0.0.1", BROKER_PORT)) as producer:
        for partition in range(BUSY):
            producer.produce(TOPIC, partition, values)


def fetching(place: Namespace, family: str) -> Fetcher:
    with place.inside():
        return Fetcher(f"{HOSTS[family]}:{PORT}", TOPIC, PARTITIONS)


def address_of(family: str, port: int = PORT) -> str:
    return f"[{HOSTS[family]}]:{port}" if family == "IPv6" else f"{HOSTS[family]}:{port}"
