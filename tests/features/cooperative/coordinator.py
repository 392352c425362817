"""A coordinator of one group, and clients that join the group through connections of a gateway. Sans-IO."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from proxy.core.connection import Connection
from proxy.features.cooperative.membership import (
    PROTOCOL,
    assignment,
    heartbeat_error,
    read_assignment,
    read_join,
    read_joined,
    read_sync,
    read_synced,
)
from proxy.features.cooperative.positions import TopicPartition
from tests.features.cooperative.fields import Reader, Writer
from tests.model.gate import framed, unframed

GROUP, OWN = b"billing", b"range"
OFFSET_FETCH, JOIN_GROUP, HEARTBEAT, LEAVE_GROUP, SYNC_GROUP = 9, 11, 12, 13, 14
REBALANCE_IN_PROGRESS = 27


def sent(connection: Connection) -> list[bytes]:
    """Return the complete frames that the gateway sends to the broker."""
    return list(map(framed, unframed(b"".join(connection.drain_broker()))))


def got(connection: Connection) -> list[bytes]:
    """Return the complete frames that the gateway sends to the client."""
    return list(map(framed, unframed(b"".join(connection.drain_client()))))


def request(key: int, version: int, client_id: str, body: bytes | bytearray) -> bytes:
    """Build a complete request."""
    name = client_id.encode()
    head = key.to_bytes(2) + version.to_bytes(2) + (7).to_bytes(4) + len(name).to_bytes(2) + name
    return framed(head + body)


def subscription(topic: bytes, owned: Sequence[TopicPartition] = ()) -> bytes:
    """Build a subscription (ConsumerProtocolSubscription v1)."""
    writer = Writer(JOIN_GROUP, 0)
    writer.content += (1).to_bytes(2)
    writer.count(1)
    writer.string(topic)
    writer.data(None)
    return bytes(writer.content) + assignment(owned)[2:-4]


@dataclass(eq=False)
class Client:
    """A client that joins the group."""

    connection: Connection
    client_id: str
    member_id: bytes
    topic: bytes = b"orders"
    owned: Sequence[TopicPartition] = ()
    """The partitions that the client's subscription lists as owned."""
    session_ms: int = 6_000
    instance: bytes | None = None
    """The client's group_instance_id, if it is a static member."""
    keeps: bool = False
    """Whether the client keeps its position, or its application sets one. Such a client does not ask for the
    committed offsets of its partitions.
    """
    joined: bool = False
    """Whether the client has received its member id."""
    protocol: bytes = b""
    """The protocol that the group has chosen."""
    leads: list[bytes] = field(default_factory=list)
    """The metadata of all members, if the client is the leader."""
    places: list[TopicPartition] = field(default_factory=list)
    """The partitions assigned to the client."""
    synced: bool = False
    """Whether the client has received an assignment."""

    def ask(self, key: int, version: int, body: bytes | bytearray, now: float = 1.0) -> list[bytes]:
        """Send a request. Return the frames that the gateway sends to the broker."""
        self.connection.receive_client(request(key, version, self.client_id, body), now)
        return sent(self.connection)

    def answered(self, frame: bytes, now: float = 1.0) -> bytes:
        """Give the gateway a response of the broker. Return the frame that the client then gets."""
        self.connection.receive_broker(frame, now)
        (found,) = got(self.connection)
        return found


class Coordinator:
    """The coordinator of the group."""

    def __init__(self) -> None:
        self.generation = 0

    def rebalance(
        self, clients: Sequence[Client], partitions: int = 1, now: float = 1.0, outsider: bool = False
    ) -> None:
        """Let all clients join and sync. The first client leads, and assigns the partitions in turn.

        A client that is already a member learns of the rebalance by a heartbeat.

        Args:
            clients: all members.
            partitions: the number of partitions of the topic.
            now: the time in seconds.
            outsider: whether the group has one more member, which does not use the gateway.
        """
        for each in clients:
            if each.synced:
                self.beat(each, REBALANCE_IN_PROGRESS, now)
        self.join(clients, now, outsider)
        places = [(clients[0].topic, number) for number in range(partitions)]
        dealt = {each.member_id: places[at :: len(clients)] for at, each in enumerate(clients)}
        self.sync(clients, dealt, now)

    def join(self, clients: Sequence[Client], now: float = 1.0, outsider: bool = False) -> None:
        """Let all clients join."""
        self.generation += 1
        offers: list[tuple[bytes, dict[bytes, bytes]]] = []
        for each in clients:
            (frame,) = each.ask(JOIN_GROUP, 5, self.join_body(each), now)
            each.joined = True
            offers.append((each.member_id, dict(read_join(frame).protocols)))
        protocol = OWN if outsider or not all(PROTOCOL in offer for _, offer in offers) else PROTOCOL
        for each in clients:
            leads = each is clients[0]
            said = Writer(JOIN_GROUP, 5)
            said.content += (7).to_bytes(4) + bytes(4) + bytes(2) + self.generation.to_bytes(4)
            said.string(protocol)
            said.string(clients[0].member_id)
            said.string(each.member_id)
            said.count(len(offers) if leads else 0)
            for member_id, offer in offers if leads else ():
                said.string(member_id)
                said.string(None)
                said.data(offer[protocol])
            joined = read_joined(each.answered(framed(bytes(said.content)), now), 5)
            each.protocol, each.leads = joined.protocol, [metadata for _, _, metadata in joined.members]

    @staticmethod
    def join_body(client: Client) -> bytearray:
        """Build a JoinGroup request."""
        body = Writer(JOIN_GROUP, 5)
        body.string(GROUP)
        body.number(client.session_ms)
        body.number(60_000)
        body.string(client.member_id if client.joined else b"")
        body.string(client.instance)
        body.string(b"consumer")
        body.count(1)
        body.string(OWN)
        body.data(subscription(client.topic, client.owned))
        return body.content

    @staticmethod
    def removed(client: Client, now: float = 1.0) -> None:
        """Refuse a client's JoinGroup request with UNKNOWN_MEMBER_ID. It joins as a new member next."""
        client.ask(JOIN_GROUP, 5, Coordinator.join_body(client), now)
        said = (7).to_bytes(4) + bytes(4) + (25).to_bytes(2) + (-1).to_bytes(4, signed=True) + bytes(10)
        client.answered(framed(said), now)
        client.joined = False

    def sync(
        self, clients: Sequence[Client], dealt: dict[bytes, list[TopicPartition]], now: float = 1.0
    ) -> dict[bytes, bytes]:
        """Let all clients sync. Return the assignments that the gateway sends to the broker, by member id."""
        made: dict[bytes, bytes] = {}
        for each in clients:
            body = self.sync_body(each)
            mine = dealt if each is clients[0] else {}
            body.count(len(mine))
            for member_id, places in mine.items():
                body.string(member_id)
                body.data(assignment(places))
            (frame,) = each.ask(SYNC_GROUP, 3, body.content, now)
            made |= dict(read_sync(frame).assignments)
            self.synced(each, made.get(each.member_id, b""), now)
        return made

    def sync_body(self, client: Client) -> Writer:
        """Build the first fields of a SyncGroup request."""
        body = Writer(SYNC_GROUP, 3)
        body.string(GROUP)
        body.number(self.generation)
        body.string(client.member_id)
        body.string(client.instance)
        return body

    @staticmethod
    def synced(client: Client, given: bytes, now: float = 1.0) -> None:
        """Let the broker respond to a client's SyncGroup request."""
        said = Writer(SYNC_GROUP, 3)
        said.content += (7).to_bytes(4) + bytes(4) + bytes(2)
        said.data(given)
        found = read_synced(client.answered(framed(bytes(said.content)), now), 3)
        client.places, client.synced = read_assignment(found.assignment)[0], True
        if client.places and not client.keeps:
            Coordinator.offsets(client, now)

    @staticmethod
    def offsets(client: Client, now: float = 1.0) -> None:
        """Let a client ask for the committed offsets of its partitions. The broker has none."""
        body, said = Writer(OFFSET_FETCH, 2), Writer(OFFSET_FETCH, 2)
        body.string(GROUP)
        said.content += (7).to_bytes(4)
        for writer in body, said:
            writer.count(len(client.places))
        for topic, partition in client.places:
            for writer in body, said:
                writer.string(topic)
                writer.count(1)
                writer.number(partition)
            said.content += (-1).to_bytes(8, signed=True)
            said.string(b"")
            said.content += bytes(2)
        said.content += bytes(2)
        client.ask(OFFSET_FETCH, 2, body.content, now)
        client.answered(framed(bytes(said.content)), now)

    def beat(self, client: Client, error: int = 0, now: float = 1.0) -> int:
        """Let a client send a heartbeat. Return the error code in its response."""
        body = Writer(HEARTBEAT, 3)
        body.string(GROUP)
        body.number(self.generation)
        body.string(client.member_id)
        body.string(None)
        if client.ask(HEARTBEAT, 3, body.content, now):
            said = client.answered(framed((7).to_bytes(4) + bytes(4) + error.to_bytes(2)), now)
        else:
            (said,) = got(client.connection)
        return heartbeat_error(said, 3)


def owned_of(metadata: Iterable[bytes]) -> list[list[TopicPartition]]:
    """Return the owned partitions in each member's subscription."""
    found = []
    for data in metadata:
        reader = Reader(data, 2, JOIN_GROUP, 0)
        for _ in range(reader.count() or 0):
            reader.string()
        reader.data()
        found.append(read_assignment(bytes(2) + data[reader.at :] + bytes(4))[0])
    return found
