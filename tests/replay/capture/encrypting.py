"""Encrypts plain-text conversations with TLS, by OpenSSL in memory, into rows of captured packets."""

import ssl
import struct
from collections.abc import Container, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from replay.capture.packets.tcp import SYN
from replay.capture.tls.keylog import KeyLogReader, Secrets
from tests.replay.capture.crafting import Frame
from tests.replay.capture.packets_of import Row, resized
from tools.certificates import Authority

TLS_1_2 = (
    "ECDHE-ECDSA-AES128-GCM-SHA256",
    "ECDHE-ECDSA-AES256-GCM-SHA384",
    "ECDHE-ECDSA-CHACHA20-POLY1305",
)


@dataclass(frozen=True)
class Ends:
    """The TLS configuration of both ends of connections, and the key log that they write."""

    client: ssl.SSLContext
    server: ssl.SSLContext
    keylog: Path

    def secrets(self) -> Secrets:
        reader = KeyLogReader()
        reader.feed(self.keylog.read_bytes())
        return reader.finish()


def ends(folder: Path, ciphers: str | None = None, *, most: ssl.TLSVersion | None = None) -> Ends:
    """Make the TLS settings of client and server.

    With `ciphers`, TLS 1.2 and these ciphers are used, else TLS 1.3. `most` is the highest TLS version of the
    client, if given.
    """
    folder.mkdir(exist_ok=True)
    ca = Authority(folder)
    pair = ca.sign("kafka")
    client = ssl.create_default_context(cafile=ca.file)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(pair.cert, pair.key)
    if ciphers:
        client.maximum_version = ssl.TLSVersion.TLSv1_2
        client.set_ciphers(ciphers)
    if most:
        client.maximum_version = most
    keylog = folder / "keys.log"
    client.keylog_filename = str(keylog)
    return Ends(client, server, keylog)


class Pipe:
    """A TLS connection in memory. Bytes that one end sends are passed to the other end at once."""

    def __init__(self, both: Ends, session: ssl.SSLSession | None = None) -> None:
        self._in = {True: ssl.MemoryBIO(), False: ssl.MemoryBIO()}
        """The buffers for received bytes: of the client (True) and of the server (False)."""
        self._out = {True: ssl.MemoryBIO(), False: ssl.MemoryBIO()}
        self.client = both.client.wrap_bio(
            self._in[True], self._out[True], server_hostname="127.0.0.1", session=session
        )
        self.server = both.server.wrap_bio(self._in[False], self._out[False], server_side=True)

    def handshake(self) -> list[tuple[bool, bytes]]:
        """Return the bytes of the TLS handshake, each piece with its sender: True for the client."""
        sent, done = [], {True: False, False: False}
        while not all(done.values()):
            for client in (True, False):
                try:
                    self._end(client=client).do_handshake()
                    done[client] = True
                except ssl.SSLWantReadError:
                    pass
                if data := self._pass(client=client):
                    sent.append((client, data))
        return sent

    def send(self, data: bytes, *, client: bool) -> bytes:
        """Send application data through the TLS connection. Return the TLS records."""
        end, other = self._end(client=client), self._end(client=not client)
        at = 0
        while at < len(data):
            at += end.write(data[at:])
        records = self._pass(client=client)
        while True:
            try:
                other.read(1 << 20)
            except ssl.SSLWantReadError:
                return records

    def _end(self, *, client: bool) -> ssl.SSLObject:
        return self.client if client else self.server

    def _pass(self, *, client: bool) -> bytes:
        data = self._out[client].read()
        self._in[not client].write(data)
        return data


@dataclass(slots=True)
class _Connection:
    pipe: Pipe
    next: dict[bool, int]
    """The next sequence number within TLS, for the client (True) and for the broker (False)."""
    places: dict[tuple[bool, int], int]
    """For a sender and a TCP sequence number of the plain text, the sequence number within TLS."""
    sent: dict[bool, int]
    """The next sequence number in plain text, for the client (True) and for the broker (False)."""


def begun(rows: Iterable[Row]) -> list[Row]:
    """Return the rows of the connections that begin with a SYN, with each byte once and in order."""
    found, sent = [], dict[tuple[bytes, bool], int]()
    for one in rows:
        side = one.connection, one.from_low
        if one.flags & SYN:
            if side not in sent:
                sent[side] = one.sequence + 1 & 0xFFFF_FFFF
                found.append(one)
        elif side in sent and one.sequence == sent[side]:
            sent[side] = one.sequence + len(one.payload) & 0xFFFF_FFFF
            found.append(one)
    return found


def from_higher_port(one: Row) -> bool:
    """Return whether the sender of a packet (IPv4) has the higher port. The sender is then the client."""
    low, high = int.from_bytes(one.connection[5:7]), int.from_bytes(one.connection[11:13])
    return one.from_low == (low > high)


def encrypted(
    rows: Iterable[Row],
    both: Ends,
    *,
    lost: Container[int] = (),
    session: ssl.SSLSession | None = None,
) -> list[Row]:
    """Return the rows with their payload encrypted by TLS. The rows in `lost` are left out.

    Args:
        rows: the rows of one or several connections, as `begun` returns them. Clients have the higher ports.
        both: the TLS settings of client and server.
        lost: indexes in `rows`.
        session: a TLS session that clients resume.
    """
    made: list[Row] = []
    opened: dict[bytes, _Connection] = {}
    for place, one in enumerate(rows):
        client = from_higher_port(one)
        if one.flags & SYN:
            if one.connection not in opened:
                opened[one.connection] = _Connection(Pipe(both, session), {}, {}, {})
            talk = opened[one.connection]
            first = one.sequence + 1 & 0xFFFF_FFFF
            talk.next[client], talk.sent[client] = first, first
            talk.places[client, first] = first
            made.append(one)
            continue
        talk = opened[one.connection]
        if one.payload and len(talk.places) == 2:
            low = one.from_low
            flights = talk.pipe.handshake()
            for number, (sender, data) in enumerate(flights):
                hello = replace(one, from_low=low is (sender is client), payload=data)
                time = one.time - 1000 * (len(flights) - number)
                made.append(replace(hello, sequence=talk.next[sender], ack=talk.next[not sender], time=time))
                talk.next[sender] = talk.next[sender] + len(data) & 0xFFFF_FFFF
            talk.places |= {(sender, sent): talk.next[sender] for sender, sent in talk.sent.items()}
        payload = talk.pipe.send(one.payload, client=client) if one.payload else b""
        ack = talk.places.get((not client, one.ack), talk.next[not client]) if one.ack >= 0 else -1
        if place not in lost:
            made.append(replace(one, payload=payload, sequence=talk.next[client], ack=ack))
        talk.next[client] = talk.next[client] + len(payload) & 0xFFFF_FFFF
        talk.sent[client] = talk.sent[client] + len(one.payload) & 0xFFFF_FFFF
        talk.places[client, talk.sent[client]] = talk.next[client]
    return made


def frames(rows: Iterable[Row]) -> list[Frame]:
    """Return rows as IP packets, in the form that `crafting.pcap` and `crafting.pcapng` need."""
    found = []
    for one in resized(rows, 60_000):
        ends = one.connection[1:7], one.connection[7:13]
        source, other = ends if one.from_low else ends[::-1]
        flags = one.flags | (0x10 if one.ack >= 0 else 0)
        tcp = struct.pack(
            ">4sIIBBHHH",
            source[4:] + other[4:],
            one.sequence,
            max(one.ack, 0),
            5 << 4,
            flags,
            0xFFFF,
            0,
            0,
        )
        size = 40 + len(one.payload)
        head = struct.pack(">BBHHHBBH4s4s", 0x45, 0, size, 0, 0, 64, 6, 0, source[:4], other[:4])
        found.append(Frame(one.time, head + tcp + one.payload, size))
    return found
