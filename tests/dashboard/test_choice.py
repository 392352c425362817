import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.dashboard.choice import SORTS, Selection, picked, press, split_keys
from proxy.dashboard.snapshot import Client, Snapshot
from tests.dashboard.scenes import seen


def typed(keys: str, choice: Selection | None = None) -> Selection:
    choice = choice or Selection()
    for key in split_keys(keys):
        choice = press(choice, key)
    return choice


def client(client_id: str, **more: object) -> Client:
    nothing: dict[str, object] = {
        "software": "",
        "address": "",
        "broker": "1",
        "version": -1,
        "partitions": 0,
        "epoch": 0,
        "incremental": 0.0,
        "left_out": 0,
        "saved": 0,
        "fetches": 0,
        "last_error": "",
    }
    return Client(client_id=client_id, **nothing | more)  # type: ignore[arg-type] # a test's shorthand


@pytest.mark.parametrize(
    ("keys", "choice"),
    [
        ("s", Selection(sort="error")),
        ("ss", Selection(sort="client")),
        ("S", Selection(sort="left out")),
        ("1", Selection(sort="client")),
        ("8", Selection(sort="saved")),
        ("9", Selection(sort="error")),
        ("0", Selection()),
        ("r", Selection(reverse=True)),
        ("rr", Selection()),
        ("rs", Selection(sort="error")),
        ("p", Selection(paused=True)),
        (" ", Selection(paused=True)),
        ("pp", Selection()),
        ("h", Selection(help=True)),
        ("g", Selection(groups=True)),
        ("gg", Selection()),
        ("g\x1b", Selection()),
        ("?", Selection(help=True)),
        ("hh", Selection()),
        ("h\x1b", Selection()),
        ("q", Selection(quit=True)),
        ("\x03", Selection(quit=True)),
        ("/", Selection(typing=True)),
        ("h/", Selection(typing=True)),
        ("/qp", Selection(typing=True, filter="qp")),
        ("/q\x03", Selection(typing=True, filter="q", quit=True)),
        ("/ab\x7f\r", Selection(filter="a")),
        ("/ab\x15c\n", Selection(filter="c")),
        ("/ab\x1b", Selection()),
        ("/ab\r\x1b", Selection()),
        ("/\t\x7f", Selection(typing=True)),
        ("x\x1b[Ay", Selection()),
    ],
)
def test_what_keys_do(keys: str, choice: Selection) -> None:
    assert typed(keys) == choice


@given(st.text())
def test_no_keys_break_anything(keys: str) -> None:
    choice = typed(keys)
    assert choice.sort in SORTS
    assert len(choice.filter) <= 40
    assert choice.filter.isprintable()


@pytest.mark.parametrize("arrow", ["\x1b[A", "\x1bOB", "\x1b[5~", "\x1b[1;5C", "\x1b[<0;10;20M"])
def test_arrows_and_mice_mean_nothing(arrow: str) -> None:
    assert split_keys(f"a{arrow}b") == ["a", "b"]
    assert typed(arrow, Selection(filter="kept")) == Selection(filter="kept")


def test_clients_are_sorted_by_what_was_chosen() -> None:
    clients = (client("b", saved=5, epoch=1), client("a", saved=7, epoch=9), client("c", saved=5, epoch=3))

    def order(choice: Selection) -> str:
        return "".join(one.client_id for one in picked(clients, choice))

    assert order(Selection()) == "abc", "equal ones by id"
    assert order(Selection(reverse=True)) == "bca"
    assert order(Selection(sort="epoch")) == "acb"
    assert order(Selection(sort="client")) == "abc"
    assert order(Selection(sort="client", reverse=True)) == "cba"


@pytest.mark.parametrize("sort", SORTS)
def test_every_column_sorts_what_was_recorded(sort: str) -> None:
    snapshot = seen("busy")
    assert isinstance(snapshot, Snapshot)
    values = [SORTS[sort](one) for one in picked(snapshot.clients, Selection(sort=sort))]
    assert values == sorted(values, reverse=Selection(sort=sort).descending)


@pytest.mark.parametrize("wanted", ["ORD", "librd", "10.1", "7", ""])
def test_the_filter_looks_at_id_software_address_and_broker(wanted: str) -> None:
    one = client("orders", software="librdkafka 2.16", address="10.1.2.3:40000", broker="7")
    assert picked((one, client("x")), Selection(filter=wanted))[0] == one
    assert len(picked((one, client("x")), Selection(filter=wanted))) == (1 if wanted else 2)
    assert picked((one,), Selection(filter="no such")) == []
