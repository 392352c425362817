"""Key logs are parsed, and no message shows their secrets."""

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replay.capture.tls.keylog import CLIENT, MASTER, SERVER, KeyLogReader, Secrets

RANDOM = bytes(range(32))


def read(text: bytes, step: int = 1 << 20) -> Secrets:
    reader = KeyLogReader()
    for at in range(0, len(text), step):
        reader.feed(text[at : at + step])
    return reader.finish()


def line(label: bytes, random: bytes = RANDOM, secret: bytes = bytes(48)) -> bytes:
    return b"%s %s %s\n" % (label, random.hex().encode(), secret.hex().encode())


@pytest.mark.parametrize("step", [1, 7, 1000])
@pytest.mark.parametrize("end", [b"\n", b"\r\n", b""])
def test_each_secret_is_found_by_label_and_client_random(step: int, end: bytes) -> None:
    text = b"# SSL/TLS secrets log file\n\n" + line(MASTER) + line(CLIENT, secret=bytes(32))
    found = read(text + line(SERVER, RANDOM[::-1], bytes(48)).strip() + end, step)

    assert (len(found), found.lines, found.bad_lines) == (3, 5, 0)
    assert found.get(MASTER, RANDOM) == bytes(48)
    assert found.get(CLIENT, RANDOM) == bytes(32)
    assert found.get(SERVER, RANDOM) is None
    assert (found.has(RANDOM), found.has(RANDOM[::-1]), found.has(bytes(32))) == (True, True, False)


def test_secrets_that_are_not_needed_are_left_out() -> None:
    found = read(line(b"EXPORTER_SECRET") + line(b"SERVER_HANDSHAKE_TRAFFIC_SECRET") + b"RSA 0011 2233\n")

    assert (len(found), found.lines, found.bad_lines) == (0, 3, 0)


@pytest.mark.parametrize(
    "bad",
    [
        b"CLIENT_RANDOM",
        b"CLIENT_RANDOM 00 11 22",
        b"CLIENT_RANDOM zz 11",
        b"CLIENT_RANDOM \xff\xfe 11",
        line(MASTER, RANDOM[1:]),
        line(MASTER, secret=bytes(47)),
        line(CLIENT, secret=b""),
        b"\x0a\x0d\x0d\x0a\0\0",
    ],
)
def test_a_line_that_is_none_is_counted(bad: bytes) -> None:
    found = read(line(MASTER) + bad.strip() + b"\n" + line(CLIENT))

    assert (len(found), found.first_bad_line) == (2, 2)
    assert found.bad_lines == 1


def test_what_has_no_lines_is_not_kept_in_memory() -> None:
    reader = KeyLogReader()
    for _ in range(50):
        reader.feed(bytes(1 << 16))

    assert reader.finish().bad_lines == 25


def test_its_repr_shows_no_secret_and_it_can_be_pickled() -> None:
    found = read(line(MASTER, secret=b"\xab" * 48))

    assert repr(found) == "<Secrets secrets=1 lines=1 bad_lines=0>"
    assert pickle.loads(pickle.dumps(found)).get(MASTER, RANDOM) == b"\xab" * 48


@given(st.binary())
def test_any_bytes_may_be_read(text: bytes) -> None:
    assert read(text, 5).lines <= text.count(b"\n") + 1
