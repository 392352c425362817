import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.dashboard.snapshot import BOOTSTRAP, NotAGatewayError, Recent, parse
from tests.dashboard.scenes import live

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


def _side(**more: object) -> dict[str, object]:
    nothing = {
        "bytes_in": 0,
        "bytes_out": 0,
        "fetch_request_bytes": 0,
        "fetch_response_bytes": 0,
        "fetch_record_bytes": 0,
        "fetches": {},
        "partitions_requested": 0,
        "partitions_answered": 0,
    }
    return nothing | more


def _first_release() -> dict[str, Any]:
    """What version 0.1.0 told at first."""
    return {
        "version": "0.1.0",
        "uptime_seconds": 5.0,
        "state": "ready",
        "reasons": [],
        "listen": "127.0.0.1:19092",
        "sessions": {"on": True, "off_for": [], "held": 1},
        "inflight_bytes": 0,
        "totals": {"client": _side(fetch_request_bytes=9), "broker": _side(), "saved_bytes": 9},
        "brokers": [{"id": 1, "address": "kafka:9092", "listener": None, "problem": ""}],
        "connections_open": 0,
        "connections_accepted": 0,
        "connections": [],
    }


def test_what_a_gateway_does_not_tell_is_nothing() -> None:
    snapshot = parse(_first_release())
    assert (snapshot.saved, snapshot.slots_held, snapshot.slots) == (9, 1, 0)
    assert (snapshot.recent.seconds, snapshot.happened) == ((), ())
    (broker,) = snapshot.brokers
    assert (broker.name, broker.fetch_seconds, broker.evictions) == ("1", None, 0)


def test_what_a_later_gateway_tells_besides_is_left_alone() -> None:
    assert parse(_first_release() | {"weather": "fine"}) == parse(_first_release())


@pytest.mark.parametrize("missing", ["version", "totals", "sessions", "connections", "state"])
def test_what_is_no_state_is_refused(missing: str) -> None:
    document = _first_release()
    del document[missing]
    with pytest.raises(NotAGatewayError, match="no state of fetchgate"):
        parse(document)


@given(JSON)
def test_any_other_document_is_refused(document: object) -> None:
    with pytest.raises(NotAGatewayError):
        parse(document)


def test_a_live_gateway_is_understood() -> None:
    document = live()
    snapshot = parse(document)
    assert len(snapshot.clients) == len(document["connections"]) == snapshot.connections
    assert [broker.name for broker in snapshot.brokers] == ["1", "2", "3", BOOTSTRAP]
    assert snapshot.saved == document["totals"]["saved_bytes"]
    assert sum(client.saved for client in snapshot.clients) <= snapshot.saved
    in_session = [client for client in snapshot.clients if client.epoch]
    assert len(in_session) == snapshot.slots_held
    for client in in_session:
        assert 0.9 < client.incremental <= 1
        assert client.left_out > 0
        assert client.last_error == ""
    assert json.loads(json.dumps(document)) == document


def test_now_is_the_last_ten_seconds() -> None:
    recent = Recent(
        seconds=(2.0,) * 6,
        client_bytes=(9999, 10, 10, 10, 10, 10),
        broker_bytes=(0, 1, 1, 1, 1, 6),
    )
    assert recent.now(recent.client_bytes) == 5.0
    assert recent.now(recent.broker_bytes) == 1.0
    assert recent.saved == (4999.5, 4.5, 4.5, 4.5, 4.5, 2.0)
    assert Recent().now(()) == 0


def test_what_is_not_printable_is_not_printed() -> None:
    document = _first_release() | {"state": "re\x1b[2Jady\n"}
    assert parse(document).state == "re\ufffd[2Jady\ufffd"


def test_in_transparent_mode_there_is_no_bootstrap_to_show() -> None:
    document = _first_release() | {"bootstrap": {"addresses": [], "listener": "0.0.0.0:9", "problem": ""}}
    assert [broker.name for broker in parse(document).brokers] == ["1"]
