"""A stub of a broker with sessions that responds at once.

    python -m tools.bench.stub HOST:PORT BYTES [RACK ...]

It has one topic of `PARTITIONS` partitions. The response to a full fetch has all of them, the response to an
incremental fetch none. If BYTES is not 0, the first partition always has that many bytes of records. It also
responds to a gateway's own requests: ApiVersions and Metadata.

With racks, Metadata names one broker in each rack: the stub and, at the next ports, brokers that are not
there. Metadata v12 has a topic with `MANY` partitions.
"""

import asyncio
import sys
from collections.abc import Sequence
from typing import Final, cast

import uvloop

from proxy.protocol.api import ApiKey
from tools.bench.frames import METADATA_VERSION, Topics, fetch_response, metadata_response
from tools.bench.passthrough import address
from tools.kafka.raw import array, frame, string

PARTITIONS: Final = 100
TOPIC_ID: Final = b"fetchgate's stub"
TOPICS: Final[Topics] = [(TOPIC_ID, range(PARTITIONS))]
MANY: Final = 2_000
NODE_ID: Final = 1
SESSION_ID: Final = 77
_RANGES: Final = ((1, 4, 18), (3, 1, 1), (9, 1, 9), (10, 0, 6), (18, 0, 4))
"""The part of a 4.3 broker's ApiVersions that a gateway needs. Only one version of Metadata is included."""
_CLIENT_ID_AT: Final = 12
_SESSION: Final = 2 + 1 + 13
"""The number of bytes from a fetch's client id to its session id, without the text of the client id: its
length field, the tags, and the limits."""


class SessionStub(asyncio.Protocol):
    """One connection to the stub.

    Args:
        where: the stub's address, as Metadata responses give it.
        size: the bytes of records in each response.
        racks: the racks of the brokers in Metadata responses. The stub is in the first one.
    """

    def __init__(self, where: tuple[str, int], size: int, racks: Sequence[str] = ()) -> None:
        self._transport: asyncio.Transport | None = None
        self._received = b""
        first = (TOPIC_ID, 0)
        records = {first: bytes(size)} if size else {}
        changed: Topics = [(TOPIC_ID, [0])] if size else []
        self._sessionless = _rest(fetch_response(0, TOPICS, records=records))
        self._full = _rest(fetch_response(0, TOPICS, session_id=SESSION_ID, records=records))
        self._incremental = _rest(fetch_response(0, changed, session_id=SESSION_ID, records=records))
        ranges = [b"".join(number.to_bytes(2) for number in each) for each in _RANGES]
        self._others = {
            ApiKey.API_VERSIONS: b"\0\0" + array(ranges),
            ApiKey.METADATA: metadata(*where, racks),
        }
        told = dict(enumerate(racks, NODE_ID))
        host, port = where
        self._many = _rest(metadata_response(0, told, TOPIC_ID, MANY, host=host, port=port)) if racks else b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport of the connection."""
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Respond to each complete request."""
        received = self._received + data
        while len(received) >= 4 and len(received) >= (end := 4 + int.from_bytes(received[:4])):
            if self._transport is not None:
                self._transport.write(self._response(received[:end]))
            received = received[end:]
        self._received = received

    def _response(self, request: bytes) -> bytes:
        correlation_id = request[8:12]
        api_key = int.from_bytes(request[4:6])
        if api_key == ApiKey.METADATA and int.from_bytes(request[6:8]) == METADATA_VERSION:
            return self._many[:4] + correlation_id + self._many[4:]
        if api_key != ApiKey.FETCH:
            return frame(correlation_id + self._others[ApiKey(api_key)])
        at = _CLIENT_ID_AT + _SESSION + int.from_bytes(request[_CLIENT_ID_AT : _CLIENT_ID_AT + 2])
        match int.from_bytes(request[at + 4 : at + 8], signed=True):
            case -1:
                response = self._sessionless
            case 0:
                response = self._full
            case _:
                response = self._incremental
        return response[:4] + correlation_id + response[4:]


def _rest(response: bytes) -> bytes:
    """Remove the correlation id from a response."""
    return response[:4] + response[8:]


def metadata(host: str, port: int, racks: Sequence[str] = ()) -> bytes:
    """Build the body of a Metadata response v1: a broker for each rack, or one without a rack. No topic."""
    brokers = [
        (NODE_ID + number).to_bytes(4) + string(host) + (port + number).to_bytes(4) + string(rack)
        for number, rack in enumerate(racks or (None,))
    ]
    return array(brokers) + NODE_ID.to_bytes(4) + array([])


async def serve(where: tuple[str, int], size: int, racks: Sequence[str]) -> None:
    """Run a stub broker at this address until the process is ended."""
    server = await asyncio.get_running_loop().create_server(lambda: SessionStub(where, size, racks), *where)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve(address(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]))
