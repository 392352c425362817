import json
import math
from collections.abc import Iterator
from contextlib import suppress
from functools import reduce
from operator import getitem
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from proxy.addresses import LOOPED, OTHERS
from proxy.dashboard.choice import Selection
from proxy.dashboard.rows import SORTS
from proxy.dashboard.snapshot import BOOTSTRAP, NotAGatewayError, Recent, parse
from tests.dashboard.drawn import draw
from tests.dashboard.scenes import SCENES, live
from tests.examples import examples

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)
ODD = JSON | st.sampled_from(
    [math.inf, -math.inf, math.nan, 1e308, -1e308, 5e-324, 2**63, -(2**63), 10**400, -(10**400), "\x1b[2J"]
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
    """Return the state of a gateway in the format of version 0.1.0."""
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
    assert (snapshot.saved, snapshot.slots_used, snapshot.slots) == (9, 1, 0)
    assert (snapshot.recent.seconds, snapshot.events) == ((), ())
    (broker,) = snapshot.brokers
    assert (broker.name, broker.fetch_seconds, broker.evictions) == ("1", None, 0)


def test_what_a_gateway_is_to_clients_is_read() -> None:
    """The dashboard reads the figures on sessions of clients, updated leaders and the response limit.

    An older gateway does not report them, so they count as 0.
    """
    older, newer = parse(_first_release()), parse(SCENES["serving"]())
    assert (older.client_sessions, older.client_session_slots, older.leaders_updated) == (0, 0, 0)
    assert (newer.client_sessions, newer.client_session_partitions) == (12, 1200)
    assert (newer.client_session_slots, newer.client_session_evictions) == (1000, 3)
    assert (newer.leaders_updated, newer.max_fetch_bytes) == (41, 10_000_000)


def test_cooperative_groups_are_read() -> None:
    older, newer = parse(_first_release()), parse(SCENES["cooperative"]())
    assert (older.groups, older.records_kept, older.detached) == ((), 0, 0)
    assert (newer.records_kept, newer.records_filtered, newer.detached) == (40_000, 120_000, 3)
    billing, shipping = newer.groups
    assert (billing.unowned, billing.exclusive, shipping.exclusive) == (1, "", "outsider")
    (lane,) = billing.members[0].lanes
    assert (lane.topic, lane.partition, lane.lag) == ("orders", 0, 1234)
    assert lane.ranges == ((1 << 30, (1 << 31) - 1),)


@pytest.mark.parametrize(
    "ranges", [[["100000000", "0"]], [["-1", "0"]], [["0"]], [[0, 1]], "00", [["x", "0"]]]
)
def test_ranges_that_no_gateway_has_are_refused(ranges: object) -> None:
    document = SCENES["cooperative"]()
    document["cooperative"]["groups"][0]["members"][0]["lanes"][0]["ranges"] = ranges
    with pytest.raises(NotAGatewayError):
        parse(document)


def test_what_a_later_gateway_tells_besides_is_left_alone() -> None:
    assert parse(_first_release() | {"weather": "fine"}) == parse(_first_release())


@pytest.mark.parametrize("missing", ["version", "totals", "sessions", "connections", "state"])
def test_what_is_no_state_is_refused(missing: str) -> None:
    document = _first_release()
    del document[missing]
    with pytest.raises(NotAGatewayError, match="not a state of fetchgate"):
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
    assert len(in_session) == snapshot.slots_used
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
    assert BOOTSTRAP not in [broker.name for broker in parse(document).brokers]


@pytest.mark.parametrize(
    ("broker_id", "name"), [(1, "10.0.0.5:9092"), (LOOPED, "nowhere"), (OTHERS, "other"), (7, "7")]
)
def test_in_transparent_mode_a_broker_is_called_by_its_address(broker_id: int, name: str) -> None:
    document = live() | {"bootstrap": {"addresses": [], "listener": "0.0.0.0:9", "problem": ""}}
    document["brokers"] = [document["brokers"][0] | {"id": 1, "address": "10.0.0.5:9092", "problem": ""}]
    document["connections"] = [document["connections"][0] | {"broker_id": broker_id}]
    shown = parse(document)
    assert [broker.name for broker in shown.brokers] == ["10.0.0.5:9092"]
    assert shown.clients[0].broker == name
    assert "\n -         10.0.0.5:9092 " in draw(shown, Selection(), 120, 40)
    opened = draw(shown, Selection(opened="broker 10.0.0.5:9092"), 120, 40).splitlines()
    assert " broker 10.0.0.5:9092" in [line.rstrip() for line in opened]


def _places(document: Any, way: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield every place in a document, as the sequence of keys that leads to it."""
    inner = document.items() if isinstance(document, dict) else enumerate(document)
    for key, value in inner:
        yield (*way, key)
        if isinstance(value, dict | list):
            yield from _places(value, (*way, key))


PLACES = {name: [place for place in _places(live()) if place[0] == name] for name in live()}
A_PLACE = st.sampled_from(list(PLACES)).flatmap(lambda name: st.sampled_from(PLACES[name]))


def _changed(places: list[tuple[tuple[Any, ...], Any]]) -> Any:
    """Return the recorded state with other values at some places.

    A place that no longer exists is skipped.
    """
    document = live()
    for (*way, last), value in places:
        with suppress(LookupError, TypeError):
            reduce(getitem, way, document)[last] = value
    return document


@given(changes=st.lists(st.tuples(A_PLACE, ODD), min_size=1, max_size=3), sort=st.sampled_from(list(SORTS)))
@example(changes=[(("connections", 0, "age_seconds"), 5e-324)], sort="client")
@examples(200)
def test_what_is_not_quite_a_state_is_refused_or_drawn(
    changes: list[tuple[tuple[Any, ...], Any]], sort: str
) -> None:
    document = json.loads(json.dumps(_changed(changes)))
    try:
        snapshot = parse(document)
    except NotAGatewayError:
        return
    for size in ((80, 24), (200, 60)):
        drawn = draw(snapshot, Selection(sort=sort), *size)
        assert all(letter.isprintable() or letter == "\n" for letter in drawn)


LENGTH = len(live()["recent"]["seconds"])


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("uptime_seconds",), math.inf),
        (("uptime_seconds",), math.nan),
        (("uptime_seconds",), "5"),
        (("totals", "client", "fetch_request_bytes"), 10**400),
        (("added", "request", "mean_seconds"), math.nan),
        (("reasons",), "hello"),
        (("recent", "seconds"), [math.nan] * LENGTH),
        (("recent", "client_bytes"), ["a"] * LENGTH),
        (("recent", "client_bytes"), [None] * LENGTH),
        (("recent", "client_bytes"), [math.inf] * LENGTH),
        (("recent", "client_bytes"), [1]),
        (("recent", "client_bytes"), 5),
        (("recent", "fetches", "broker", "full"), [1]),
        (("brokers",), {}),
        *((("brokers", 0, "answer_seconds", "fetch"), value) for value in ("abc", [1], math.inf, 10**400)),
    ],
)
def test_a_figure_that_no_gateway_has_is_refused(place: tuple[Any, ...], value: object) -> None:
    with pytest.raises(NotAGatewayError):
        parse(_changed([(place, value)]))


def test_no_number_of_a_broker_is_printed_that_is_not_printable() -> None:
    document = live()
    document["connections"][0]["broker_id"] = "\x1b[31mX"
    document["brokers"][0]["id"] = "\x1b[31mX"
    snapshot = parse(document)
    assert snapshot.clients[0].broker == snapshot.brokers[0].name == "\ufffd[31mX"
