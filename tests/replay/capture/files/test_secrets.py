"""TLS secrets are read from key logs, and from captures that contain secrets."""

import gzip
import struct
import sys
from pathlib import Path

import pytest

from replay.capture.files.secrets import load
from replay.capture.files.sources import InputError, expand
from replay.capture.tls.keylog import CLIENT, MASTER
from tests.replay.capture.crafting import RAW, Talk, block, enhanced, interface, pcap, section

LINE = b"CLIENT_RANDOM " + b"0a" * 32 + b" " + b"0b" * 48
OTHER = b"CLIENT_TRAFFIC_SECRET_0 " + b"0c" * 32 + b" " + b"0d" * 32
FRAMES = Talk().open().segment(b"x" * 1000).frames


def secrets_block(text: bytes, order: str = "<", kind: int = 0x544C534B) -> bytes:
    head = struct.pack(f"{order}II", kind, len(text))
    return block(10, head + text + bytes(-len(text) % 4), order)


def packets(order: str = "<", times: int = 1) -> bytes:
    return b"".join(enhanced(frame, order=order) for frame in FRAMES * times)


def test_without_any_there_are_none(tmp_path: Path) -> None:
    file = tmp_path / "a.pcapng"
    file.write_bytes(section() + interface(RAW) + packets())

    assert load([], expand([str(file)])) == (None, [])


@pytest.mark.parametrize("order", ["<", ">"])
def test_those_in_a_capture_are_read_to_its_end(tmp_path: Path, order: str) -> None:
    head = section(order) + interface(RAW, order) + secrets_block(LINE + b"\n", order)
    file = tmp_path / "a.pcapng"
    file.write_bytes(head + packets(order, 200) + secrets_block(OTHER, order) + packets(order))
    (source,) = expand([str(file)])
    found, problems = load([], [source])

    assert problems == []
    assert source.first_time == FRAMES[0].time // 1000 * 1000
    assert found is not None
    assert (found.get(MASTER, b"\x0a" * 32), found.get(CLIENT, b"\x0c" * 32)) == (b"\x0b" * 48, b"\x0d" * 32)


def test_many_may_come_before_the_first_packet(tmp_path: Path) -> None:
    file = tmp_path / "a.pcapng.gz"
    text = (LINE + b"\n") * 2000
    file.write_bytes(gzip.compress(section() + interface(RAW) + secrets_block(text) + packets()))
    (source,) = expand([str(file)])
    found, _ = load([], [source])

    assert (source.secrets, source.first_time) == (True, FRAMES[0].time // 1000 * 1000)
    assert found is not None
    assert len(found) == 1


def test_a_capture_that_has_them_late_can_be_named_as_the_key_log(tmp_path: Path) -> None:
    file = tmp_path / "a.pcapng"
    file.write_bytes(section() + interface(RAW) + packets(times=100) + secrets_block(LINE) + packets())
    (source,) = expand([str(file)])

    assert not source.secrets
    assert load([], [source]) == (None, [])
    found, _ = load([str(file)], [source])
    assert found is not None
    assert found.has(b"\x0a" * 32)


def test_lines_in_a_capture_that_are_none_are_told(tmp_path: Path) -> None:
    file = tmp_path / "a.pcapng"
    file.write_bytes(section() + interface(RAW) + secrets_block(b"nonsense\n" + LINE) + packets())

    found, problems = load([], expand([str(file)]))
    assert found is not None
    assert len(found) == 1
    (problem,) = problems
    assert problem.startswith(
        f"{file}: 1 of 2 lines of its TLS secrets are left out: a key log has no such lines;"
    )
    assert problem.endswith("the first is line 1")


def test_secrets_of_other_kinds_are_skipped(tmp_path: Path) -> None:
    file = tmp_path / "a.pcapng"
    file.write_bytes(section() + interface(RAW) + secrets_block(LINE, kind=0x57474B4C) + packets())

    assert not expand([str(file)])[0].secrets


def test_a_block_that_claims_more_than_it_has(tmp_path: Path) -> None:
    file = tmp_path / "a.pcapng"
    wrong = block(10, struct.pack("<II", 0x544C534B, 1 << 20) + LINE + b"\n")
    file.write_bytes(section() + interface(RAW) + wrong + block(10, b"") + packets())
    found, _ = load([], expand([str(file)]))

    assert found is not None
    assert len(found) == 1


@pytest.mark.parametrize("compressed", [False, True])
def test_a_key_log_is_read_with_what_is_wrong_in_it(tmp_path: Path, compressed: bool) -> None:
    file = tmp_path / "keys.log"
    text = b"# comment\n" + LINE + b"\nnonsense\n" + OTHER + b"\n" + LINE[:50]
    file.write_bytes(gzip.compress(text) if compressed else text)
    found, problems = load([str(file)], [])

    assert found is not None
    assert len(found) == 2
    assert problems == [
        f"--keylog {file}: 2 of 5 lines are left out: a key log has no such lines; the first is line 3"
    ]


def test_secrets_before_a_cut_in_the_compression_are_read(tmp_path: Path) -> None:
    keys, file = tmp_path / "keys.log.gz", tmp_path / "a.pcapng.gz"
    keys.write_bytes(gzip.compress(LINE + b"\n")[:-4])
    file.write_bytes(gzip.compress(section() + interface(RAW) + secrets_block(LINE) + packets())[:-4])
    told = "cut within its compression; what precedes the cut was read"

    for (found, problems), lines in (
        (load([str(keys)], []), [f"--keylog {keys}: {told}"]),
        (load([], expand([str(file)])), []),  # the report of the capture has the line
    ):
        assert found is not None
        assert (len(found), problems) == (1, lines)
    keys.write_bytes(keys.read_bytes()[:12])
    with pytest.raises(InputError, match=rf"keys.log.gz: {told}$"):
        load([str(keys)], [])


@pytest.mark.parametrize("content", [b"", b"# nothing\n", b"\0" * 100_000, pcap(FRAMES)])
def test_what_has_no_secrets_is_no_key_log(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "keys.log"
    file.write_bytes(content)

    with pytest.raises(InputError, match=r"keys.log: no secrets in it; a key log has lines such as CLIENT"):
        load([str(file)], [])
    with pytest.raises(InputError, match=r"^--keylog nowhere.log: No such file or directory$"):
        load(["nowhere.log"], [])


def test_without_the_package_it_fails_before_captures_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "replay.capture.tls.keys", raising=False)
    monkeypatch.setitem(sys.modules, "cryptography.exceptions", None)
    file = tmp_path / "keys.log"
    file.write_bytes(LINE)

    with pytest.raises(ModuleNotFoundError, match="cryptography"):
        load([str(file)], [])
