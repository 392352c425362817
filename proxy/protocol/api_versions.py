"""ApiVersions: limits the version ranges of a broker to versions that the gateway understands."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, TypeAlias

from proxy.protocol import messages
from proxy.protocol.api import ApiKey, ErrorCode
from proxy.protocol.fetch_layout import MAX_VERSION, SESSION_VERSION
from proxy.protocol.messages import Edit, Struct, read, splice
from proxy.protocol.primitives import (
    Buffer,
    ProtocolError,
    UnknownVersion,
    read_compact_string,
    skip_tags,
)
from proxy.protocol.schemas import API_VERSIONS, API_VERSIONS_REQUEST, CONFINED

_LAST_VERSION: Final = 4
UNDERSTOOD: Final[dict[int, tuple[int, int]]] = {
    int(ApiKey.PRODUCE): CONFINED[ApiKey.PRODUCE],
    int(ApiKey.FETCH): (0, MAX_VERSION),
    int(ApiKey.API_VERSIONS): (0, _LAST_VERSION),
}
"""By API key: the lowest and highest version that clients are offered, for the API keys that the gateway
reads in any mode (for acks and sessions). All other API keys are forwarded unread, at any version. Client and
broker must not agree on a higher version (fetch-semantics, trap 5). Fetch v0 to v3 are forwarded unread,
too."""
REWRITABLE: Final[dict[int, tuple[int, int]]] = UNDERSTOOD | CONFINED
"""Like `UNDERSTOOD`, for clients in whose responses addresses are rewritten. The gateway must find all
addresses."""
Ranges: TypeAlias = frozenset[tuple[int, tuple[int, int]]]
"""API keys, each with a lowest and a highest version."""
NO_RANGES: Final[Ranges] = frozenset()
_RAISED_FROM: Final = 5
_ABSENT: Final = -1
_UNSUPPORTED_VERSION: Final = ErrorCode.UNSUPPORTED_VERSION.to_bytes(2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Features:
    """The features of a broker, from its version ranges. A version is -1 if the API is not supported."""

    fetch_max: int
    offset_fetch_max: int
    find_coordinator_max: int

    @property
    def has_sessions(self) -> bool:
        """Whether the broker gives fetch sessions (KIP-227): Kafka 1.1 and later (fetch-semantics 1.7)."""
        return self.fetch_max >= SESSION_VERSION

    @property
    def is_raised(self) -> bool:
        """Whether the gateway offers Fetch v7 although the broker supports only v5 or v6.

        It does so only for clients that may have sessions with the gateway. v7 adds only session fields to v5
        and v6 (fetch-semantics, trap 4). No release stops at v4.
        """
        return _RAISED_FROM <= self.fetch_max < SESSION_VERSION

    @property
    def throttles_by_emptying(self) -> bool:
        """Whether the broker answers a throttled fetch at once with an empty response (KIP-219).

        Kafka 2.0 and later do so. Kafka 1.1 delays the full response instead (fetch-semantics 2.8).
        """
        return self.fetch_max >= 8

    @property
    def keeps_leader_epoch(self) -> bool:
        """Whether a session uses the current_leader_epoch of each fetch: Kafka 2.5 and later.

        Older brokers do not check leader epochs after a session's first fetch (KAFKA-9338; fetch-semantics
        6.3, case 68).
        """
        return self.offset_fetch_max >= 7

    @property
    def moves_records_only(self) -> bool:
        """Whether a session moves only partitions with records to the end of its list: Kafka 3.0 and later.

        Earlier releases move each partition that they send (KAFKA-12330; fetch-semantics 2.5, case 32).
        """
        return self.find_coordinator_max >= 4


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSoftware:
    """The name and version of a client's software, as the client sends them (KIP-511)."""

    name: str
    version: str


@lru_cache(maxsize=16)  # all responses of one broker are equal
def clamp(
    body: bytes,
    version: int,
    *,
    rewrites: bool = True,
    serves: bool = False,
    narrowed: Ranges = NO_RANGES,
) -> tuple[bytes, Features | None]:
    """Limit the offered version ranges to `REWRITABLE` if `rewrites`, otherwise to `UNDERSTOOD`.

    An API key is removed if the gateway understands none of its offered versions. All other bytes stay
    unchanged: the order, tags, and API keys that the gateway forwards unread.

    Args:
        body: a complete ApiVersions response without its header.
        version: the version of the request. A broker that does not support it responds in the form of v0,
            with error 35.
        rewrites: whether addresses are rewritten in responses to this client.
        serves: whether this client may have sessions with the gateway. If so, Fetch v7 is offered even if the
            broker supports only v5 or v6 (but not with `narrowed`). No other maximum is raised.
        narrowed: the versions of further APIs that the gateway reads, or fewer versions of these.

    Returns:
        The new body (`body` itself if nothing changes), and the broker's features. The features are None if
        the response is an error.

    Raises:
        ProtocolError: the body has neither the form of `version` nor the form of v0.
    """
    response = _read_response(body, version)
    features = _features(response) if response["error_code"] == ErrorCode.NONE else None
    raises = serves and features is not None and features.is_raised
    limits = (REWRITABLE if rewrites else UNDERSTOOD) | dict(narrowed)
    return splice(body, _cuts(response, limits, raises=raises and not narrowed)), features


def _read_response(body: bytes, version: int) -> Struct:
    try:
        return _read_form(body, version)
    except ProtocolError:
        # KIP-511: a broker that lacks the version responds in v0 form (fetch-semantics, trap 31; case 85).
        if not body.startswith(_UNSUPPORTED_VERSION):
            raise
    return _read_form(body, 0)


def _read_form(body: bytes, version: int) -> Struct:
    if not 0 <= version <= _LAST_VERSION:
        raise UnknownVersion(ApiKey.API_VERSIONS, version)
    return read(API_VERSIONS, ApiKey.API_VERSIONS, version, body, 0)


def _features(response: Struct) -> Features:
    highest = {offer["api_key"]: offer["max_version"] for offer in response["api_keys"] or ()}
    return Features(
        fetch_max=highest.get(ApiKey.FETCH, _ABSENT),
        offset_fetch_max=highest.get(ApiKey.OFFSET_FETCH, _ABSENT),
        find_coordinator_max=highest.get(ApiKey.FIND_COORDINATOR, _ABSENT),
    )


def _cuts(response: Struct, limits: dict[int, tuple[int, int]], *, raises: bool) -> Iterator[Edit]:
    """Yield the edits that limit the offered versions (fetch-semantics, trap 5)."""
    left_out: list[Struct] = []
    for offer in response["api_keys"] or ():
        offered = offer["min_version"], offer["max_version"]
        lowest, highest = limits.get(offer["api_key"], offered)
        kept = max(offered[0], lowest), min(offered[1], highest)
        if raises and offer["api_key"] == ApiKey.FETCH:
            kept = kept[0], SESSION_VERSION
        if kept == offered:
            continue
        if kept[0] > kept[1]:
            left_out.append(offer)
        else:
            yield from offer.edits(min_version=kept[0], max_version=kept[1])
    yield from response.without("api_keys", left_out)


def read_client_software(frame: Buffer, offset: int) -> tuple[ClientSoftware, int]:
    """Read the body of an ApiVersions request of v3 or v4. Earlier versions have an empty body.

    Raises:
        ProtocolError: the body does not match these versions.
    """
    name, at = read_compact_string(frame, offset)
    version, at = read_compact_string(frame, at)
    _, at = skip_tags(frame, at)
    return ClientSoftware(name=_text(name), version=_text(version)), at


def _text(value: bytes | None) -> str:
    # For display only, so invalid UTF-8 is replaced.
    return (value or b"").decode(errors="replace")


def refusal(correlation_id: bytes) -> bytes:
    """Return the frame of a broker that does not support the requested version of ApiVersions.

    It has the form of v0, error 35, and only the API key of ApiVersions.
    """
    # One element, for this key, as brokers from 2.4 on send it (KIP-511; fetch-semantics, trap 31).
    code, own = ErrorCode.UNSUPPORTED_VERSION, ApiKey.API_VERSIONS
    offered = [{"api_key": own, "min_version": 0, "max_version": _LAST_VERSION}]
    body = messages.body(API_VERSIONS, own, 0, error_code=code, api_keys=offered)
    return (len(correlation_id) + len(body)).to_bytes(4) + correlation_id + body


def request(correlation_id: int, client_id: bytes) -> bytes:
    """Return the frame of an ApiVersions request v0, which brokers from 0.10 on understand."""
    return messages.request(API_VERSIONS_REQUEST, ApiKey.API_VERSIONS, 0, correlation_id, client_id)
