"""Reads what the core needs to know from requests other than fetches. Sans-IO."""

from typing import Final

from proxy.protocol import produce
from proxy.protocol.api import (
    FIRST_FLEXIBLE,
    LENGTH_BYTES,
    REQUEST_START,
    REQUEST_START_BYTES,
    UNUSED_VERSION,
    ApiKey,
    is_flexible,
    request_header,
)
from proxy.protocol.api_versions import ClientSoftware, read_client_software
from proxy.protocol.primitives import read_compact_string, read_int32, read_string

TLS_HANDSHAKE: Final = b"\x16\x03"
_HTTP: Final = (b"GET ", b"HEAD", b"POST", b"PUT ", b"DELE", b"OPTI", b"PATC", b"CONN", b"TRAC", b"PRI ")
"""The start of HTTP requests: of the method (RFC 9110), or of HTTP/2's preface (RFC 9113)."""
_PROXY: Final = {b"PROX": "v1", b"\r\n\r\n": "v2"}
"""The start of the PROXY protocol, which load balancers send before the client's own bytes."""
_HTTP_BYTES: Final = 8
"""How much of an HTTP request is shown in the log. Later bytes may contain a secret."""
_MAX_NAME: Final = 256
GROUP_SECONDS: Final = 300.0
"""How long a group is assumed to wait for its members if the client's own value is unknown: Kafka's
default of max.poll.interval.ms, which clients send as the rebalance timeout."""
MAX_FETCH_REQUEST: Final = 1 << 20
"""The size above which a fetch is forwarded unread. It is enough for some 31,000 partitions."""
_EPOCH_BYTES: Final = 4
"""The size of share_session_epoch in a ShareFetch request."""
_SESSION_TIMEOUT_BYTES: Final = 4
TOKENS: Final = {"PLAIN": 1, "OAUTHBEARER": 1, "SCRAM-SHA-256": 2, "SCRAM-SHA-512": 2}
"""The number of tokens that a client sends to log in, by SASL mechanism. A broker that accepts the client
answers each of them. GSSAPI is not listed, because its tokens can't be counted."""
UNCOUNTED: Final = -1
"""The number of tokens of other mechanisms."""
MAX_TOKEN: Final = 1 << 20
"""The longest SASL token that is expected. Brokers accept half of it (sasl.server.max.receive.size)."""
NAMED_START_BYTES: Final = REQUEST_START_BYTES + 2
"""The size of the start of a request, up to the length of the client id."""


def decisive(frame: bytes) -> bytes:
    """Return the part of a request that decides whether a broker responds to it.

    It is the rest of the header after the correlation id, and in a Produce request all up to the field acks.

    Raises:
        ProtocolError: the request can't be read.
    """
    api_key, version, _, _, at = request_header(frame, LENGTH_BYTES)
    if api_key == ApiKey.PRODUCE:
        _, at = produce.read_acks(frame, version, at)
    return frame[REQUEST_START_BYTES:at]


def is_request_start(data: bytes) -> bool:
    """Return whether bytes look like the start of a request, and not like a SASL token.

    The first bytes of a token are too large for an API key and a version. `data` has `NAMED_START_BYTES` or
    more.
    """
    length, api_key, version, correlation_id = REQUEST_START.unpack_from(data)
    client_id = int.from_bytes(data[REQUEST_START_BYTES:NAMED_START_BYTES], signed=True)
    return (
        api_key in FIRST_FLEXIBLE
        and 0 <= version < UNUSED_VERSION
        and correlation_id >= 0
        and -1 <= client_id <= length + LENGTH_BYTES - NAMED_START_BYTES
    )


def read_wait(frame: bytes) -> float:
    """Return the longest time in seconds for which a broker may delay its response to a request.

    The request is JoinGroup or ShareFetch, and may be incomplete. A broker answers JoinGroup when all members
    have joined, or after the rebalance timeout (KIP-62). In v0 it uses the session timeout instead. A
    ShareFetch has max_wait_ms, like a fetch (KIP-932).

    Raises:
        ProtocolError: the request can't be read.
    """
    api_key, version, _, _, at = request_header(frame, LENGTH_BYTES)
    read_name = read_compact_string if is_flexible(api_key, version) else read_string
    _, at = read_name(frame, at)  # group_id
    if api_key == ApiKey.SHARE_FETCH:
        _, at = read_name(frame, at)  # member_id
        at += _EPOCH_BYTES
    elif version > 0:
        at += _SESSION_TIMEOUT_BYTES
    milliseconds, _ = read_int32(frame, at)
    return max(milliseconds, 0) / 1e3


def describe_length(data: bytes, length: int, most: int) -> str:
    """Describe an invalid request length in words."""
    if data[:2] == TLS_HANDSHAKE:
        return "TLS on a plaintext listener"
    if data.startswith(_HTTP):
        return f'HTTP on a port of Kafka ("{readable(data[:_HTTP_BYTES])}")'
    if version := _PROXY.get(data[:4]):
        return (
            f"the PROXY protocol {version}, which fetchgate does not read: turn it off at the load balancer"
        )
    if length > most:
        return f"a request of {length} bytes; max_request_bytes is {most}"
    return f"a request of {length} bytes"


def read_client_names(frame: bytes, version: int) -> tuple[str, ClientSoftware | None]:
    """Return the client id of an ApiVersions request, and the client's software from v3 on.

    Both have no control characters.

    Raises:
        ProtocolError: the frame does not match the version.
    """
    _, _, _, client_id, body = request_header(frame, LENGTH_BYTES)
    # KIP-511: software name and version, from v3 on.
    if version < 3:
        return readable(client_id), None
    software, _ = read_client_software(frame, body)
    name, of_version = readable(software.name.encode()), readable(software.version.encode())
    return readable(client_id), ClientSoftware(name=name, version=of_version)


def read_mechanism(frame: bytes) -> str:
    """Return the mechanism of a SaslHandshake request, without control characters.

    Raises:
        ProtocolError: the request is incomplete.
    """
    _, _, _, _, body = request_header(frame, LENGTH_BYTES)
    return readable(read_string(frame, body)[0])


def readable(name: bytes | None) -> str:
    """Return a client's name without control characters. A terminal could interpret such characters."""
    text = (name or b"")[:_MAX_NAME].decode(errors="replace")
    return text if text.isprintable() else "".join(c if c.isprintable() else "\ufffd" for c in text)
