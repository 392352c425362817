"""Builds conversations for tests: turns frames into rows of captured packets."""

import struct

from proxy.protocol.primitives import encode_string
from replay.capture.kafka.exchange import ConnectionEnd, Exchange
from replay.capture.packets.tcp import SYN
from tests.replay.capture.packets_of import Row, read, row

ID = encode_string(b"me")


def framed(body: bytes) -> bytes:
    return len(body).to_bytes(4) + body


def request(key: int, version: int, correlation_id: int, body: bytes = b"", client_id: bytes = ID) -> bytes:
    return framed(struct.pack(">hhi", key, version, correlation_id) + client_id + body)


def response(correlation_id: int, body: bytes = b"\0" * 6) -> bytes:
    return framed(correlation_id.to_bytes(4, signed=True) + body)


class Talk:
    """Builds the captured rows of one connection, with the right sequence and ACK numbers."""

    def __init__(self, *, syn: bool = True) -> None:
        self.rows: list[Row] = []
        self.next = {True: 1000, False: 2000}
        self.time = 1
        if syn:
            self.rows += [
                row(client=True, sequence=999, flags=SYN),
                row(client=False, sequence=1999, flags=SYN, ack=1000),
            ]

    def say(self, payload: bytes, *, client: bool, lost: bool = False, cut_to: int | None = None) -> "Talk":
        self.time += 1_000_000
        kept = payload if cut_to is None else payload[:cut_to]
        if not lost:
            self.rows.append(
                row(
                    client=client,
                    sequence=self.next[client],
                    payload=kept,
                    missing=len(payload) - len(kept),
                    time=self.time,
                    ack=self.next[not client],
                )
            )
        self.next[client] += len(payload)
        return self

    def client(self, payload: bytes, *, lost: bool = False, cut_to: int | None = None) -> "Talk":
        return self.say(payload, client=True, lost=lost, cut_to=cut_to)

    def broker(self, payload: bytes, *, lost: bool = False, cut_to: int | None = None) -> "Talk":
        return self.say(payload, client=False, lost=lost, cut_to=cut_to)

    def read(self, *, ports: frozenset[int] = frozenset()) -> tuple[list[Exchange], ConnectionEnd]:
        *exchanges, end = read(self.rows, ports=ports)
        assert isinstance(end, ConnectionEnd)
        return [one for one in exchanges if isinstance(one, Exchange)], end
