"""Sends scripts of fetches to two servers, whose responses must have the same bytes.

Some values always differ. Session ids are compared by the order of their creation. Of throttle times, only
whether they are 0 is compared.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, Self

from tests.features.client_sessions.serving import Finish
from tests.model.asker import Requests, Want
from tests.model.wire import FetchRequest, FetchResponse, decode_response, encode_request


class World(Protocol):
    """The topics and brokers behind both servers. Scripts use short topic names."""

    def create(self, name: str, partitions: int) -> bytes:
        """Create a topic and return its id."""

    def delete(self, name: str) -> None:
        """Delete a topic."""

    def full(self, name: str) -> str:
        """Return the real name of a topic. The short name is the part before its first dash."""

    def produce(self, name: str, partition: int, size: int = 10) -> None:
        """Append a batch with one record of `size` bytes."""

    def hold(self, name: str, partition: int) -> AbstractContextManager[None]:
        """Append a record in an open transaction, and commit it at the end of the context."""

    def delete_records(self, name: str, partition: int, before: int) -> None:
        """Delete the records before an offset, so that the log starts there."""

    def parked(self) -> None:
        """Wait until the servers have received the requests."""

    def throttled(self, name: str, partition: int) -> AbstractContextManager[None]:
        """Return a context in which every fetch of this partition's records exceeds the client's quota."""


@dataclass
class Server:
    """One of the two servers."""

    begin: Callable[[bytes], Finish]
    client_id: str
    ids: list[int] = field(default_factory=list)
    """The server's session ids in the order of creation."""

    def session_id(self, session: "Session | int") -> int:
        """Return the id of a session on this server. If `session` is an integer, return the integer."""
        return session if isinstance(session, int) else self.ids[session.number - 1]


class DifferenceError(AssertionError):
    """The two servers responded differently."""


@dataclass
class Script(Requests):
    """Sends fetches to both servers, and compares the responses.

    Args:
        world: the topics behind both servers.
        expected: the reference server.
        ours: the tested server.
    """

    world: World = field(kw_only=True)
    expected: Server = field(kw_only=True)
    ours: Server = field(kw_only=True)
    isolation_level: int = 0
    """The isolation level of fetches that do not set one."""

    def at(self, version: int) -> Self:
        """Use another Fetch version from now on."""
        self.version = version
        return self

    def create(self, name: str, partitions: int) -> None:
        """Create a topic."""
        self.ids[name] = self.world.create(name, partitions)

    def with_topics(self) -> Self:
        """Create the topics that the cases expect."""
        self.create("foo", 3)
        self.create("bar", 2)
        return self

    def key(self, name: str) -> dict[str, Any]:
        return {"topic": self.world.full(name)} if self.version <= 12 else {"topic_id": self.ids[name]}

    def fetch(self, *wants: Want, **options: Any) -> FetchResponse:
        """Send a fetch to both servers and return the response.

        In it, the session id is replaced by the session's number: 1, 2 and so on.
        """
        return self.begin(*wants, **options)()

    def begin(
        self, *wants: Want, session: "tuple[Session | int, int]" = (0, -1), **options: Any
    ) -> Callable[[], FetchResponse]:
        """Send a fetch to both servers without waiting for the responses."""
        options = {"isolation_level": self.isolation_level} | options
        request = self.request(*wants, session=(0, session[1]), **options)
        waiting = [
            server.begin(
                encode_request(
                    replace(request, session_id=server.session_id(session[0]), client_id=server.client_id)
                )
            )
            for server in (self.expected, self.ours)
        ]
        return lambda: self._compared(request, [finish() for finish in waiting])

    def session(self, *wants: Want, **options: Any) -> "Session":
        """Create a session on both servers."""
        return Session(self, *wants, **options)

    def names(self, response: FetchResponse) -> list[tuple[str, int]]:
        """Return the partitions of a response in order, by short topic names."""
        return [
            (topic.topic.split("-")[0] or self._name(topic.topic_id), data.partition_index)
            for topic in response.topics
            for data in topic.partitions
        ]

    def _name(self, topic_id: bytes) -> str:
        return next((name for name, known in self.ids.items() if known == topic_id), "?")

    def _compared(self, request: FetchRequest, responses: list[bytes]) -> FetchResponse:
        alike = [
            self._alike(request, server, response)
            for server, response in zip((self.expected, self.ours), responses, strict=True)
        ]
        if alike[0] != alike[1]:
            first, second = (decode_response(each, self.version) for each in alike)
            raise DifferenceError(f"\n{request}\n{first}\n{second}")
        return decode_response(alike[1], request.version)

    @staticmethod
    def _alike(request: FetchRequest, server: Server, response: bytes) -> bytes:
        """Replace the values that always differ between two servers.

        The session id is replaced by its number (1 for the server's first session), the throttle time by 0 or
        1.
        """
        at = 5 if request.version >= 12 else 4
        throttle = int.from_bytes(response[at : at + 4], "big")
        session_id = int.from_bytes(response[at + 6 : at + 10], "big", signed=True)
        if session_id and session_id not in server.ids and request.session_epoch == 0:
            server.ids.append(session_id)
        number = server.ids.index(session_id) + 1 if session_id in server.ids else session_id
        return b"".join(
            (
                response[:at],
                min(throttle, 1).to_bytes(4, "big"),
                response[at + 4 : at + 6],
                number.to_bytes(4, "big", signed=True),
                response[at + 10 :],
            )
        )


class Session:
    """A session that exists on both servers. Each call of a method sends the next incremental fetch."""

    def __init__(self, script: Script, *wants: Want, of: "Session | int" = 0, **options: Any) -> None:
        self.script = script
        self.options = options
        self.first = script.fetch(*wants, session=(of, 0), **options)
        self.number = self.first.session_id
        self.epoch = 0
        assert self.number > 0

    def fetch(self, *wants: Want, **options: Any) -> FetchResponse:
        self.epoch += 1
        return self.script.fetch(*wants, session=(self, self.epoch), **(self.options | options))

    def names(self, *wants: Want, **options: Any) -> list[tuple[str, int]]:
        """Send the next fetch, and return the partitions in its response."""
        return self.script.names(self.fetch(*wants, **options))


def summary(response: FetchResponse) -> tuple[int, int, int]:
    """Return the response's (error code, session id, number of entries)."""
    return response.error_code, response.session_id, sum(len(topic.partitions) for topic in response.topics)
