"""Responses with bytes missing: whether what is missing are contents of records alone, which nobody reads."""

from collections.abc import Iterator, Sequence
from itertools import takewhile

from proxy.protocol.fetch_layout import LAYOUTS
from proxy.protocol.fetch_response import FetchResponseWalk
from proxy.protocol.primitives import Buffer, ProtocolError
from replay.capture.exchange import CUT, is_cut


def cut(size: int) -> Iterator[memoryview]:
    """Give `CUT` for as many bytes."""
    for start in range(0, size, len(CUT)):
        yield CUT[: min(len(CUT), size - start)]


def records_alone_are_cut(response: Sequence[Buffer], version: int) -> bool:
    """Tell whether a fetch response, in pieces, can be read as if nothing were missing."""
    layout = LAYOUTS.get(version)
    if layout is None:
        return False
    walk = FetchResponseWalk(layout, 0, keep=False)
    try:
        for piece in response:
            if not is_cut(piece):
                walk.feed(bytes(piece))
            elif walk.hop(len(piece) - 1):
                walk.feed(b"\x00")
            else:
                return False
    except ProtocolError:
        return False
    return walk.done


def before_cut(response: Sequence[Buffer]) -> list[Buffer]:
    """Return what was captured of a response up to the first byte that was not."""
    return list(takewhile(lambda piece: not is_cut(piece), response))
