import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.dashboard.choice import Listed, Selection, press, split_keys
from proxy.dashboard.rows import SORTS

ROWS = Listed(keys=["client a", "client b", "client c", "10.0.0.1:5 x:9092"], lines=30, page=2)


def typed(keys: str, choice: Selection | None = None, listed: Listed = ROWS) -> Selection:
    choice = choice or Selection()
    for key in split_keys(keys):
        choice = press(choice, key, listed)
    return choice


@pytest.mark.parametrize(
    ("keys", "choice"),
    [
        ("s", Selection(sort="saved/s")),
        ("ssss", Selection(sort="client")),
        ("S", Selection(sort="fetch/s")),
        ("1", Selection(sort="client")),
        ("8", Selection(sort="saved")),
        ("9", Selection(sort="why not")),
        ("0", Selection()),
        ("r", Selection(reverse=True)),
        ("rr", Selection()),
        ("rs", Selection(sort="saved/s")),
        ("p", Selection(paused=True)),
        (" ", Selection(paused=True)),
        ("h ", Selection(help=True, first=2)),
        ("h" + " " * 99, Selection(help=True, first=28)),
        ("hp", Selection(help=True)),
        ("php", Selection(paused=True, help=True)),
        ("\r ", Selection(opened="client a", first=2)),
        ("\rp", Selection(opened="client a", paused=True)),
        ("g ", Selection(groups=True, first=2)),
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
        ("y\x1b[Cy", Selection()),
        ("j", Selection(cursor="client b")),
        ("jjk", Selection(cursor="client b")),
        ("k", Selection(cursor="client a")),
        ("\x1b[B\x1bOB\x1b[A", Selection(cursor="client b")),
        ("\x1b[6~", Selection(cursor="client c")),
        ("\x1b[6~\x1b[5~", Selection(cursor="client a")),
        ("\x1b[F", Selection(cursor="10.0.0.1:5 x:9092")),
        ("\x1b[F\x1b[H", Selection(cursor="client a")),
        ("\x1b[<65;10;20M", Selection(cursor="10.0.0.1:5 x:9092")),
        ("\x1b[F\x1b[<64;10;20M", Selection(cursor="client a")),
        ("\r", Selection(opened="client a")),
        ("j\r", Selection(cursor="client b", opened="client b")),
        ("j\r\x1b", Selection(cursor="client b")),
        ("\rjjj", Selection(opened="client a", first=3)),
        ("\r\x1b[F", Selection(opened="client a", first=28)),
        ("\r\x1b[Fh", Selection(opened="client a", help=True)),
        ("\rh\x1b", Selection(opened="client a")),
        ("\rx", Selection(opened="client a")),
        ("\rg", Selection(groups=True)),
        ("\r/", Selection(typing=True)),
        ("x", Selection(expanded=frozenset({"client a"}))),
        ("jx", Selection(cursor="client b", expanded=frozenset({"client b"}))),
        ("xx", Selection()),
        ("\x1b[Fx", Selection(cursor="10.0.0.1:5 x:9092")),
        ("\t", Selection(brokers=True)),
        ("j\t", Selection(brokers=True)),
        ("\t\t", Selection()),
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


@pytest.mark.parametrize(
    "sequence", ["\x1b[C", "\x1b[1;5C", "\x1b[<0;10;20M", "\x1b[<64;10;20m", "\x1b[200~"]
)
def test_other_sequences_mean_nothing(sequence: str) -> None:
    assert split_keys(f"a{sequence}b") == ["a", "b"]
    assert typed(sequence, Selection(filter="kept")) == Selection(filter="kept")


def test_no_arrow_is_typed_into_the_filter() -> None:
    assert typed("/a\x1b[Bb") == Selection(typing=True, filter="ab")


@pytest.mark.parametrize("keys", ["j", "\r", "x", "\x1b[F", "\t\r"])
def test_where_nothing_is_listed_keys_find_nothing(keys: str) -> None:
    choice = typed(keys, listed=Listed())
    assert (choice.cursor, choice.opened, choice.expanded) == ("", "", frozenset())


def test_a_mark_on_a_row_that_is_gone_is_on_the_first_one() -> None:
    assert typed("\r", Selection(cursor="client z")).opened == "client a"
    assert typed("j", Selection(cursor="client z")).cursor == "client b"
