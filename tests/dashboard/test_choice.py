import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.dashboard.choice import SORTS, Choice, picked, press, split_keys
from proxy.dashboard.snapshot import Client, Snapshot
from tests.dashboard.scenes import seen


def typed(keys: str, choice: Choice | None = None) -> Choice:
    choice = choice or Choice()
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
        ("s", Choice(sort="error")),
        ("ss", Choice(sort="client")),
        ("S", Choice(sort="left out")),
        ("1", Choice(sort="client")),
        ("8", Choice(sort="saved")),
        ("9", Choice(sort="error")),
        ("0", Choice()),
        ("r", Choice(reverse=True)),
        ("rr", Choice()),
        ("rs", Choice(sort="error")),
        ("p", Choice(paused=True)),
        (" ", Choice(paused=True)),
        ("pp", Choice()),
        ("h", Choice(help=True)),
        ("?", Choice(help=True)),
        ("hh", Choice()),
        ("h\x1b", Choice()),
        ("q", Choice(quit=True)),
        ("\x03", Choice(quit=True)),
        ("/", Choice(typing=True)),
        ("h/", Choice(typing=True)),
        ("/qp", Choice(typing=True, filter="qp")),
        ("/q\x03", Choice(typing=True, filter="q", quit=True)),
        ("/ab\x7f\r", Choice(filter="a")),
        ("/ab\x15c\n", Choice(filter="c")),
        ("/ab\x1b", Choice()),
        ("/ab\r\x1b", Choice()),
        ("/\t\x7f", Choice(typing=True)),
        ("x\x1b[Ay", Choice()),
    ],
)
def test_what_keys_do(keys: str, choice: Choice) -> None:
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
    assert typed(arrow, Choice(filter="kept")) == Choice(filter="kept")


def test_clients_are_sorted_by_what_was_chosen() -> None:
    clients = (client("b", saved=5, epoch=1), client("a", saved=7, epoch=9), client("c", saved=5, epoch=3))

    def order(choice: Choice) -> str:
        return "".join(one.client_id for one in picked(clients, choice))

    assert order(Choice()) == "abc", "equal ones by id"
    assert order(Choice(reverse=True)) == "bca"
    assert order(Choice(sort="epoch")) == "acb"
    assert order(Choice(sort="client")) == "abc"
    assert order(Choice(sort="client", reverse=True)) == "cba"


@pytest.mark.parametrize("sort", SORTS)
def test_every_column_sorts_what_was_recorded(sort: str) -> None:
    snapshot = seen("busy")
    assert isinstance(snapshot, Snapshot)
    values = [SORTS[sort](one) for one in picked(snapshot.clients, Choice(sort=sort))]
    assert values == sorted(values, reverse=Choice(sort=sort).descending)


@pytest.mark.parametrize("wanted", ["ORD", "librd", "10.1", "7", ""])
def test_the_filter_looks_at_id_software_address_and_broker(wanted: str) -> None:
    one = client("orders", software="librdkafka 2.16", address="10.1.2.3:40000", broker="7")
    assert picked((one, client("x")), Choice(filter=wanted))[0] == one
    assert len(picked((one, client("x")), Choice(filter=wanted))) == (1 if wanted else 2)
    assert picked((one,), Choice(filter="no such")) == []
