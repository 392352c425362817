"""The session id and the epoch of a fetch determine its kind (`fetch_kind`)."""

import pytest

from proxy.core.events import FetchKind, fetch_kind


@pytest.mark.parametrize(
    ("session_id", "epoch", "kind"),
    [
        (0, 0, FetchKind.FULL),
        (77, 0, FetchKind.FULL),
        (77, 1, FetchKind.INCREMENTAL),
        (77, 2**31 - 1, FetchKind.INCREMENTAL),
        (0, -1, FetchKind.SESSIONLESS),
        (77, -1, FetchKind.CLOSE),
    ],
)
def test_the_kind_of_a_fetch(session_id: int, epoch: int, kind: FetchKind) -> None:
    assert fetch_kind(session_id, epoch) is kind
