"""Limits the record bytes that a fetch requests: ``--max-fetch-bytes`` (KIP-74). Sans-IO."""

from contextlib import suppress
from typing import Final

from proxy.core.connection_state import ConnectionState
from proxy.core.requests import MAX_FETCH_REQUEST, readable
from proxy.core.stage import Stage
from proxy.features.limits.fetch_floors import FetchLimits, of_client
from proxy.protocol.api import LENGTH_BYTES, ApiKey, request_header
from proxy.protocol.fetch_request import FetchRequest
from proxy.protocol.old_fetch import LIMITED, UNLIMITED, limit_old_fetch
from proxy.protocol.primitives import ProtocolError

_FETCH: Final = int(ApiKey.FETCH)


class MaxFetchBytes(Stage):
    """Lowers max_bytes in the fetches of one client."""

    __slots__ = ("_limits", "_state", "_turn")

    def __init__(self, limits: FetchLimits, state: ConnectionState) -> None:
        self._limits = limits
        self._state = state
        self._turn = 0
        """How many fetches of v2 and v3 were passed to `limit_old_fetch`."""

    def on_fetch(self, fetch: FetchRequest) -> FetchRequest:
        limit = of_client(self._limits.max_bytes, self._state.client_id)
        if not limit or fetch.max_bytes <= limit:
            return fetch
        # If min_bytes were above max_bytes, brokers up to 2.4 would always wait for max_wait_ms.
        # Later ones lower min_bytes themselves (fetch-semantics 4).
        return fetch.with_limits(min_bytes=min(fetch.min_bytes, limit), max_bytes=limit)

    def on_request(self, data: bytes, size: int, api_key: int, version: int) -> bytes | None:
        """Limit a fetch of v3. Send a fetch of v2 as v3 with a limit, if the broker supports v3.

        If no client has a limit, or if the fetch can't be buffered, it is forwarded unread.
        """
        old = api_key == _FETCH and UNLIMITED <= version <= LIMITED
        if not old or not any(self._limits.max_bytes.values()):
            return data
        state = self._state
        if len(data) < size:
            whole = size <= MAX_FETCH_REQUEST and state.from_client.reserve(min(size, 2 * len(data)))
            return None if whole else data
        self._state.fetches.version = version
        sent = data
        with suppress(ProtocolError):
            _, _, _, client_id, body = request_header(data, LENGTH_BYTES)
            state.client_id = state.client_id or readable(client_id)
            limit = of_client(self._limits.max_bytes, state.client_id)
            if limit and (version == LIMITED or self._takes_limits(data)):
                sent = limit_old_fetch(data, body, limit, self._turn)
                self._turn += 1
        state.tally.broker.fetch_request_bytes += len(sent) - size
        return sent

    def _takes_limits(self, frame: bytes) -> bool:
        """Return whether the broker is known to support v3 (0.10.1 and later)."""
        features = self._state.fetches.eligibility.known
        if features is None:  # ask the broker
            self._state.fetches.probe(frame)
        return features is not None and features.fetch_max >= LIMITED
