"""Fetch responses that go on to the client while they are walked. Sans-IO.

Nothing of them is held but what is still to be understood: the top-level fields, and at v16 and later the
body's tags, in which brokers' addresses stand.
"""

from collections.abc import Sequence
from typing import Final

from proxy.exchange import Buffer, Exchange
from proxy.protocol.addresses import Resolve, rewrite_endpoints
from proxy.protocol.fetch_response import NODE_ENDPOINTS_TAG, FetchResponseWalk, slices
from proxy.protocol.primitives import ProtocolError, TagSpan, encode_uvarint

_ENDPOINTS_VERSION: Final = 16
_UNSEEN_TAG: Final = b"\x7f"
"""A tag that no schema has; readers skip it."""


class Passing:
    """How walked answers pass.

    Args:
        resolve: where brokers are told to be; None leaves addresses as they are.
    """

    __slots__ = ("_resolve",)

    def __init__(self, resolve: Resolve | None) -> None:
        self._resolve = resolve

    def receive(
        self, exchange: Exchange, walk: FetchResponseWalk, chunk: bytes, *, last: bool
    ) -> list[Buffer]:
        """Walk over the next bytes of an answer; return what of it can go to the client now.

        An answer that says that the session failed is not for the client. One that is not understood goes on
        as it came.
        """
        if exchange.understood:
            try:
                walk.feed(chunk)
            except ProtocolError:
                exchange.understood = False
        if not exchange.understood or (last and not walk.done):
            return self._up_to(exchange, walk, chunk, exchange.received)
        if exchange.asks_session and walk.error_code:
            exchange.let_go()
            return []
        tagged = self._resolve is not None and exchange.version >= _ENDPOINTS_VERSION
        if last:
            if not (walk.tags or exchange.passed_on or exchange.chunks or exchange.asks_session):
                exchange.passed_on = exchange.received
                return [chunk]  # as nearly all of them: whole, and as it is
            return self._end(exchange, walk, chunk, tagged=tagged)
        if not walk.head_known:
            safe = 0
        elif tagged:
            safe = walk.tags_at if walk.tags_at >= 0 else walk.offset
        else:
            safe = exchange.received
        return self._up_to(exchange, walk, chunk, safe)

    def _all(self, exchange: Exchange, chunk: bytes) -> list[Buffer]:
        pieces: list[Buffer] = [*exchange.chunks, chunk]
        exchange.passed_on = exchange.received
        exchange.let_go()
        return pieces

    def _up_to(self, exchange: Exchange, walk: FetchResponseWalk, chunk: bytes, safe: int) -> list[Buffer]:
        """Pass on what lies before the offset `safe` of the frame, keep the rest."""
        start = exchange.passed_on
        if safe >= exchange.received:
            pieces = self._all(exchange, chunk)
        else:
            exchange.chunks.append(chunk)
            pieces = list[Buffer](slices(exchange.chunks, 0, safe - start)) if safe > start else []
            rest = b"".join(slices(exchange.chunks, max(safe - start, 0), exchange.received - start))
            exchange.chunks = [rest]
            exchange.held = len(rest)
            exchange.passed_on = max(safe, start)
        return self._without_session(exchange, walk, pieces) if start == 0 and pieces else pieces

    def _without_session(
        self, exchange: Exchange, walk: FetchResponseWalk, pieces: list[Buffer]
    ) -> list[Buffer]:
        """Take the session's id, which is the gateway's own, out of the first bytes of an answer."""
        if not exchange.asks_session or not walk.session_id or not walk.session_id_at:
            return pieces
        at = walk.session_id_at
        first = memoryview(pieces[0])
        if len(first) < at + 4:
            first = memoryview(b"".join(pieces))
            pieces = [first]
        return [first[:at], bytes(4), first[at + 4 :], *pieces[1:]]

    def _end(
        self, exchange: Exchange, walk: FetchResponseWalk, chunk: bytes, *, tagged: bool
    ) -> list[Buffer]:
        """Pass on the last bytes, their addresses rewritten."""
        start = exchange.passed_on
        if not tagged or not walk.tags or walk.tags[0][0] != NODE_ENDPOINTS_TAG:
            return self._up_to(exchange, walk, chunk, exchange.received)
        pieces = self._up_to(exchange, walk, chunk, walk.tags_at)
        old = exchange.chunks[0]
        new = rewritten_tags(old, walk.tags, exchange.version, self._resolve)
        if start and len(new) != len(old):
            # The frame's length has gone to the client already. A hint without an address is an ordinary
            # reason to ask for Metadata.
            new = _hidden_endpoints(old, walk.tags)
        elif not start:
            size = exchange.received - 4 + len(new) - len(old)
            if len(pieces[0]) < 4:
                pieces = [b"".join(pieces)]
            pieces[:1] = [size.to_bytes(4), memoryview(pieces[0])[4:]]
        exchange.let_go()
        return [*pieces, new]


def rewritten_tags(tags: bytes, spans: Sequence[TagSpan], version: int, resolve: Resolve | None) -> bytes:
    """Return a response's body tags with its node endpoints (KIP-951) where the client is to find them.

    Args:
        tags: the tag buffer as received.
        spans: where the payloads lie in it.
        version: that of the response.
        resolve: where brokers are told to be; None leaves all as it is.
    """
    if resolve is None or version < _ENDPOINTS_VERSION or not spans or spans[0][0] != NODE_ENDPOINTS_TAG:
        return tags
    _, start, end = spans[0]
    try:
        payload = rewrite_endpoints(tags[start:end], resolve)
    except ProtocolError:
        return _hidden_endpoints(tags, spans)
    parts = [encode_uvarint(len(spans)), encode_uvarint(NODE_ENDPOINTS_TAG), encode_uvarint(len(payload))]
    return b"".join([*parts, payload, tags[end:]])


def _hidden_endpoints(tags: bytes, spans: Sequence[TagSpan]) -> bytes:
    """Return body tags of the same size in which the first one is none that a client knows."""
    count = len(encode_uvarint(len(spans)))
    return tags[:count] + _UNSEEN_TAG + tags[count + 1 :]
