"""Creates handlers of sessions in the state in which a test begins, and shows their contents."""

from dataclasses import dataclass
from typing import Any

from proxy.protocol.fetch_layout import LAYOUTS
from proxy.protocol.fetch_request import FetchRequest, Listing
from proxy.session.decision import Delta, Incremental
from proxy.session.handler import FetchSessionHandler, SessionResult
from proxy.session.state import Action
from tests.frames import Want, entry, fetch, fetch_response, parsed, walked, wire_key

T = [("t", 0), ("t", 1), ("u", 0)]
"""The partitions of most sessions in these tests."""


def listing(version: int, *wants: Want) -> Listing:
    found = parsed(fetch(version, *wants)).listing
    assert found is not None
    return found


def asked(version: int = 16, *wants: Want) -> FetchSessionHandler:
    """Return a handler that waits for the response to its full fetch."""
    handler = FetchSessionHandler()
    assert handler.learn_listing(listing(version, *(wants or T)), 0)
    assert handler.ask_full() == (0, 0)
    return handler


def give(handler: FetchSessionHandler, version: int, *elements: Any, **fields: Any) -> SessionResult:
    """Give the handler a response to the outstanding fetch."""
    return handler.handle(walked(fetch_response(version, *elements, **fields), version))


def established(version: int = 16, *wants: Want, session_id: int = 77) -> FetchSessionHandler:
    """Return a handler that has a session. Every partition has high watermark 5."""
    handler = asked(version, *wants)
    elements = [(name, [entry(index, 5)]) for name, index, *_ in wants or T]
    result = give(handler, version, *elements, session_id=session_id)
    assert result.action is Action.COMPLETE
    return handler


def again(handler: FetchSessionHandler, version: int = 16, *wants: Want) -> Delta:
    """Send the next incremental fetch. Its response stays outstanding."""
    return send(handler, parsed(fetch(version, *(wants or T))))


def send(handler: FetchSessionHandler, request: FetchRequest) -> Delta:
    """Send a fetch as an incremental fetch. Its response stays outstanding."""
    what = request.listing
    assert what is not None
    delta = handler.compare(what)
    assert delta is not None
    assert handler.ask(request, Incremental(b"", what, delta))
    return delta


@dataclass(frozen=True)
class Kept:
    """The contents of a handler's table, to compare them before and after a step."""

    requests: bytes
    cached_entries: bytes
    known: tuple[bool, ...]
    refused: tuple[int, ...]
    size: int

    @classmethod
    def of(cls, handler: FetchSessionHandler) -> "Kept":
        table = handler.table
        assert table is not None
        return cls(
            table.requests.tobytes(),
            table.cached_entries.tobytes(),
            tuple(table.known.tolist()),
            tuple(table.refused.tolist()),
            table.size,
        )


def high_watermark(handler: FetchSessionHandler, name: str, index: int, version: int = 16) -> int:
    assert handler.table is not None
    row = handler.table.row(wire_key(version, name), index)
    return int(handler.table.cached_entries.view(LAYOUTS[version].response_fields)["high_watermark"][row])


def state(handler: FetchSessionHandler) -> tuple[int, int]:
    return handler.session_id, handler.epoch


NEWS = [("t", [entry(0, 99, records=b"news"), entry(1, 99)])]
