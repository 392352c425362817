import dataclasses
import gzip
import io
import json
import os
import re
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import replay
from proxy.protocol.api import ApiKey
from replay.capture.files.sources import expand
from replay.capture.kafka import exchanges
from replay.cli import main
from replay.inspect import reading, render
from replay.inspect.counts import name_of
from replay.inspect.reading import inspect
from tests import frames as frames_of
from tests.replay.capture import crafting
from tests.replay.capture.encrypting import begun, encrypted, ends, frames
from tests.replay.capture.files.test_secrets import secrets_block
from tests.replay.capture.packets.test_tunnels import TUNNELS, carried
from tests.replay.capture.packets_of import packets
from tests.replay.measure.consumers import CLIENT, Consumer, captured, captured_twice, string
from tests.replay.truths import truth

CAPTURES = Path(__file__).parents[3] / "captures"


def _inspect(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    code = main(["inspect", "--json", *arguments])
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return code, found


@pytest.mark.parametrize("name", ["librdkafka-100p", "librdkafka-midstream", "java-100p", "many-clients-any"])
def test_counts_are_those_of_the_truth(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    true = truth(name)
    code, found = _inspect(capsys, str(CAPTURES / f"{name}.pcap"))
    assert code == 0
    assert found["packets"] == true["capture"]["packets"]
    assert found["first_time"] == true["capture"]["first_ts_ns"]
    assert found["last_time"] == true["capture"]["last_ts_ns"]
    assert [list(map(int, one["link_types"])) for one in found["files"]] == [true["capture"]["link_types"]]
    assert found["ports"] == {"33192": true["totals"]["connections"]}
    connections = found["connections"]
    assert sum(one["client_bytes"] for one in connections) == true["totals"]["request_stream_bytes"]
    fetches = [one["fetch"] for one in connections if one["fetch"]]
    assert sum(one["partitions"] for one in fetches) == true["fetch"]["partitions_requested"]
    kinds: dict[str, int] = {}
    for one in fetches:
        for kind, count in one["kinds"].items():
            kinds[kind] = kinds.get(kind, 0) + count
    assert kinds == {_KINDS[kind]: count for kind, count in true["fetch"]["kinds"].items()}


_KINDS = {
    "full (epoch 0)": "full",
    "incremental": "incremental",
    "full sessionless (epoch -1)": "sessionless",
    "session close (epoch -1)": "close",
}


def test_a_connection_tells_who_it_is_and_what_it_asks(capsys: pytest.CaptureFixture[str]) -> None:
    _, found = _inspect(capsys, str(CAPTURES / "java-100p.pcap"))
    fetching = next(one for one in found["connections"] if one["fetch"])
    assert fetching["software"] == "apache-kafka-java 4.3.0"
    assert fetching["fetch"]["sessions"] == "yes"
    assert "Heartbeat" in {name for one in found["connections"] for name in one["apis"]}
    assert fetching["reason"] == ""


def test_tables_name_the_clients(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(CAPTURES / "many-clients-any.pcap")]) == 0
    out = capsys.readouterr().out
    for text in ("Linux SLL2", "5,141", "sarama", "v4, v10, v11, v12, v16, v18", "33192: 50 connections"):
        assert text in out


def talked(exchanges: int, client_id: bytes = b"client") -> crafting.Talk:
    """Return a conversation of Metadata requests and responses."""
    talk = crafting.Talk().open()
    for place in range(1, exchanges + 1):
        asked = struct.pack(">hhih", 3, 1, place, len(client_id)) + client_id + bytes(4)
        talk.segment(len(asked).to_bytes(4) + asked)
        talk.segment(struct.pack(">ii", 10, place) + bytes(6), broker=True)
    return talk


def test_names_from_captures_do_not_act_on_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    talk = talked(2, b"\x1b[2J\r\n")
    file = tmp_path / "\x1b[31m.pcap"
    file.write_bytes(crafting.pcap(talk.frames, crafting.RAW) + b"torn")
    assert main(["inspect", "--port", "9092", str(file)]) == 3
    out = capsys.readouterr().out
    assert not any(character < " " for character in out if character != "\n")
    assert r"\x1b[2J\r\n" in out
    assert r"\x1b[31m.pcap: ends within a record" in out


def test_only_the_port_that_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    _, found = _inspect(capsys, "--port", "1", str(CAPTURES / "java-100p.pcap"))
    assert found["connections"] == []
    _, found = _inspect(capsys, "--port", "33192", str(CAPTURES / "java-100p.pcap"))
    assert len(found["connections"]) == 3


def test_connections_without_payload_are_one_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    frames = [
        frame for port in range(1, 301) for frame in crafting.Talk(broker=("10.0.0.2", port)).open().frames
    ]
    file = tmp_path / "scan.pcap"
    file.write_bytes(crafting.pcap(frames, crafting.RAW))
    # Objects of a connection take 8 KB.
    monkeypatch.setattr(exchanges, "CapturedConnection", None)

    code, found = _inspect(capsys, str(file))

    assert (code, found["connections"]) == (3, [])
    assert found["others"] == {"no requests seen": {"connections": 300, "bytes": 0}}


def test_progress_is_shown_while_nothing_was_read_yet(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(reading, "_PROGRESS_AFTER", 0.0)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with reading._Progress(1000) as progress:
        progress._timer.join()
        progress.advance(10)
    assert "reading" in capsys.readouterr().err


@pytest.mark.parametrize("port", ["0", "70000"])
def test_a_port_that_is_none(port: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", "--port", port, str(CAPTURES / "java-100p.pcap")]) == 2
    assert capsys.readouterr().err.startswith(f"fetchgate replay inspect: --port: '{port}' must be")


def test_a_file_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", "nowhere.pcap"]) == 2
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert "nowhere.pcap" in told


def test_a_file_that_is_no_capture_leaves_the_others_results(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = tmp_path / "bad.pcap"
    bad.write_bytes(b"this is no capture at all, is it?")
    code, found = _inspect(capsys, str(bad), str(CAPTURES / "java-100p.pcap"))
    assert code == 3
    assert [one["file"] for one in found["problems"]] == [str(bad)]
    assert len(found["connections"]) == 3


def test_nothing_but_files_that_are_no_captures_is_told_with_code_3(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bad.pcap").write_bytes(b"")
    (tmp_path / "notes.txt").write_bytes(b"Dear diary, \x1b[2J these are no packets")
    assert main(["inspect", str(tmp_path / "bad.pcap"), str(tmp_path / "notes.txt")]) == 3
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err == (
        f"fetchgate replay inspect: {tmp_path}/bad.pcap: the file is empty\n"
        f"fetchgate replay inspect: {tmp_path}/notes.txt: neither pcap nor pcapng\n"
    )


@pytest.mark.parametrize("command", ["inspect", "measure"])
@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "the file is empty"),
        (b"root:x:0:0:root:/root:/bin/sh\n" * 9, "neither pcap nor pcapng"),
        (b"\xd4\xc3\xb2\xa1\2\0", "cut within the file header, after 6 bytes"),
        (
            gzip.compress(b"\xd4\xc3\xb2\xa1" * 99)[:12],
            "cut within its compression; what precedes the cut was read",
        ),
    ],
    ids=["empty", "text", "not whole", "damaged"],
)
def test_a_file_that_is_no_capture_ends_with_code_3(
    command: str, data: bytes, reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """If the only input is no capture file, the exit code is 3, as docs/users/captures.md says."""
    file = tmp_path / "a.pcap"
    file.write_bytes(data)
    assert main([command, str(file)]) == 3
    assert capsys.readouterr() == ("", f"fetchgate replay {command}: {file}: {reason}\n")


@pytest.mark.parametrize("command", ["inspect", "measure"])
def test_a_file_that_the_system_can_not_read_is_a_failure(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, "/proc/self/mem"]) == 1  # nothing is mapped at its first byte
    assert capsys.readouterr() == ("", f"fetchgate replay {command}: /proc/self/mem: Input/output error\n")


def test_an_empty_standard_input_is_told_of(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"")))
    assert main(["inspect", "-"]) == 3
    told = capsys.readouterr()
    assert (told.out, told.err) == ("", "fetchgate replay inspect: -: the file is empty\n")


@pytest.mark.parametrize("command", ["inspect", "drive"])
def test_a_table_is_for_measure(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    part = tmp_path / "day=2026-11-23" / "broker=kafka%3A9092"
    part.mkdir(parents=True)
    (part / "part.parquet").write_bytes(b"PAR1")
    assert main([command, str(tmp_path), *(["--dry-run"] if command == "drive" else [])]) == 2
    told = (
        f"{tmp_path}: this is a table of --parquet, not captures; read it with "
        f"fetchgate replay measure {tmp_path}"
    )
    assert told in capsys.readouterr().err


def test_a_verdict_comes_first_and_the_next_step_last(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(CAPTURES)
    assert main(["inspect", "librdkafka-100p.pcap", "--port", "33192"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == (
        "Kafka: 3 connections, 322 fetch requests. "
        "Connections of consumers that fetch: 1; without sessions of their own: 1."
    )
    assert lines[-1] == "Next: fetchgate replay measure librdkafka-100p.pcap --port=33192"


@pytest.mark.parametrize("version", [0, 1])
@pytest.mark.parametrize("left_out", [False, True])
def test_a_capture_with_passwords_is_not_to_be_passed_on(
    version: int, *, left_out: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Tokens follow a SaslHandshake v0 without a header. `proxy --capture-records no` leaves all out."""
    client, token = Consumer(), frames_of.framed(b"\0alice\0secret")
    client.ask(ApiKey.SASL_HANDSHAKE, version, string("PLAIN"))
    place = len(client.frames)
    if version == 0:
        client.say(token, broker=False)
        client.say(frames_of.framed(b""), broker=True)
    else:
        client.ask(ApiKey.SASL_AUTHENTICATE, 0, token)
    if left_out:
        asked, told = client.frames[place : place + 2]
        client.frames[place] = dataclasses.replace(asked, data=asked.data[: -len(token)])
        client.frames[place + 1] = dataclasses.replace(told, data=told.data[:-4])
    client.fetch({0: b"", 1: b""})

    assert main(["inspect", str(captured(tmp_path, client))]) == 0
    lines = capsys.readouterr().out.splitlines()
    warned = (
        "SASL logins on 1 connection: with PLAIN, the capture has the password; with OAUTHBEARER, a token. "
        "Do not pass it on."
    )
    assert (lines[1] == warned) is not left_out
    assert ("SASL logins" in "".join(lines)) is not left_out


def test_where_no_consumer_fetches_the_verdict_and_the_next_step_say_so(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Fetches of followers and of the controllers' log are of Fetch v18, with and without sessions."""
    assert main(["inspect", str(CAPTURES / "followers.pcap")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == (
        "Kafka: 11 connections, 89 fetch requests. No consumer: all fetches are from brokers and controllers."
    )
    assert lines[-1] == (
        "Next: capture for at least an hour, while consumers are connected, on the port that they use."
    )


@pytest.mark.parametrize("version", [11, 14, 15])
def test_a_replica_is_told_from_a_consumer(version: int, tmp_path: Path) -> None:
    state = {"tags": ((1, bytes(12) + b"\0"),)} if version >= 15 else {"replica_id": 0}
    for fields, replicas in (({}, 0), (state, 1)):
        talk = crafting.Talk().open()
        talk.segment(frames_of.fetch(version, ("a", 0), correlation=1, **fields))
        file = tmp_path / "fetch.pcap"
        file.write_bytes(crafting.pcap(talk.frames, crafting.RAW))
        (counts,) = inspect(expand([str(file)]), frozenset({9092})).connections
        found = counts.fetch.partitions, counts.fetch.replicas, counts.fetch.unread
        assert found == (1, replicas, 0)


def test_a_connection_before_and_after_nat_counts_once_in_the_verdict(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", str(captured_twice(tmp_path / "router.pcap", CLIENT))]) == 0
    out = capsys.readouterr().out
    assert out.startswith(
        "Kafka: 2 connections, 40 fetch requests. Connections of consumers that fetch: 2; without sessions "
        "of their own: 2.\n"
    )
    assert (
        "1 connection was captured twice, before and after NAT, and counts once in the first line and in "
        "measure."
    ) in out


def test_a_capture_whose_fetches_are_cut_is_not_for_measure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    short = tmp_path / "short.pcap"
    frames = crafting.take_apart((CAPTURES / "librdkafka-100p.pcap").read_bytes())
    short.write_bytes(crafting.pcap(crafting.cut(frames, 200), crafting.RAW))
    assert main(["inspect", str(short)]) == 0
    assert "of 322 fetch requests are cut, and measure can't use them." in capsys.readouterr().out


def test_fetches_of_old_versions_are_not_called_cut(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    talk = crafting.Talk().open()
    for place in (1, 2):
        asked = struct.pack(">hhih", 1, 2, place, 1) + b"c" + struct.pack(">iiii", -1, 500, 1, 0)
        talk.segment(len(asked).to_bytes(4) + asked)
        talk.segment(struct.pack(">iiii", 12, place, 0, 0), broker=True)
    old = tmp_path / "old.pcap"
    old.write_bytes(crafting.pcap(talk.frames, crafting.RAW))
    assert main(["inspect", "--port", "9092", str(old)]) == 0
    out = capsys.readouterr().out
    assert "2 fetch requests" in out
    assert "are cut" not in out
    assert "Next: fetchgate replay measure" in out


def test_both_sides_of_a_gateway_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(CAPTURES / "aiokafka-gateway.pcap")]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert (
        "4 connections of 127.0.0.1:23262 and 127.0.0.1:17570 are the two sides of a gateway: their fetches "
        "count twice. Measure one side: --port 23262."
    ) in out
    assert out.endswith(f"Next: fetchgate replay measure {CAPTURES}/aiokafka-gateway.pcap --port=23262")
    assert main(["inspect", "--port", "23262", str(CAPTURES / "aiokafka-gateway.pcap")]) == 0
    assert "two sides" not in capsys.readouterr().out


def test_a_capture_of_tls_alone_says_what_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    talk = crafting.Talk().open()
    for broker in (False, True):
        talk.segment(b"\x16\x03\x03\x00\x04abcd" * 3, broker=broker)
    file = tmp_path / "tls.pcap"
    file.write_bytes(crafting.pcap(talk.frames, crafting.RAW))

    assert main(["inspect", str(file)]) == 3
    assert "fetchgate proxy --capture DIR" in " ".join(capsys.readouterr().out.split())
    code, found = _inspect(capsys, str(file))
    assert (code, found["others"]) == (3, {"TLS": {"connections": 1, "bytes": 54}})
    assert found["next_step"].startswith("Next: open the TLS connections with a key log")


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a folder with plain.pcap, tls.pcap (the same connections in TLS) and keys.log."""
    folder = tmp_path_factory.mktemp("tls")
    both, rows = ends(folder), begun(packets("librdkafka-100p"))
    (folder / "plain.pcap").write_bytes(crafting.pcap(frames(rows), crafting.RAW, nano=True))
    made = frames(encrypted(rows, both))
    (folder / "tls.pcap").write_bytes(crafting.pcap(made, crafting.RAW, nano=True))
    return folder


def test_with_its_key_log_tls_is_read_as_plain_text(tls: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, found = _inspect(capsys, str(tls / "tls.pcap"), "--keylog", str(tls / "keys.log"))
    _, expected = _inspect(capsys, str(tls / "plain.pcap"))
    for counts in (*found["connections"], *expected["connections"]):
        del counts["packets"], counts["tls_bytes"]

    assert code == 0
    assert found["connections"] == expected["connections"]
    assert main(["inspect", str(tls / "tls.pcap"), "--keylog", str(tls / "keys.log")]) == 0
    assert "TLS: 3 connections decrypted" in capsys.readouterr().out


def test_a_key_log_may_be_in_the_capture(tls: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keys = (tls / "keys.log").read_bytes()
    head = crafting.section() + crafting.interface(crafting.RAW) + secrets_block(keys)
    packed = (crafting.enhanced(frame) for frame in crafting.take_apart((tls / "tls.pcap").read_bytes()))
    file = tls / "embedded.pcapng"
    file.write_bytes(head + b"".join(packed))

    code, found = _inspect(capsys, str(file))
    assert (code, len(found["connections"]), found["others"]) == (0, 3, {})


def test_what_a_key_log_does_not_open_is_named(tls: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = (tls / "keys.log").read_text().splitlines()
    first = next(line.split()[1] for line in lines if not line.startswith("#"))
    (tls / "some.log").write_text("\n".join(line for line in lines if first in line) + "\nnonsense\n")

    assert main(["inspect", str(tls / "tls.pcap"), "--keylog", str(tls / "some.log")]) == 0
    told = capsys.readouterr()
    assert "TLS: 1 connection decrypted, 2 not (no secrets in the key log)" in told.out
    assert told.err.endswith("lines are left out: a key log has no such lines; the first is line 6\n")
    assert main(["inspect", str(tls / "tls.pcap"), "--keylog", str(tls / "ca.pem")]) == 2
    assert "ca.pem: no secrets in it" in capsys.readouterr().err


def test_names_of_files_have_no_effect_on_the_terminal(tls: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Escape sequences in the name of a key log are escaped in messages.

    A key log may come from somebody else, together with the captures.
    """
    named = tls / "\x1b[2J\n.log"
    named.write_bytes((tls / "keys.log").read_bytes() + b"nonsense\n")
    assert main(["inspect", str(tls / "tls.pcap"), "--keylog", str(named)]) == 0
    assert main(["inspect", str(tls / "tls.pcap"), "--keylog", str(named) + "x"]) == 2

    told = capsys.readouterr().err.splitlines()
    assert [line.partition(": ")[2][: len("--keylog")] for line in told] == ["--keylog"] * 2
    assert all(r"\x1b[2J\n.log" in line for line in told)


def test_a_wrong_port_is_told_with_that_of_the_capture(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(CAPTURES / "librdkafka-100p.pcap"), "--port", "9092"]) == 3
    told = " ".join(capsys.readouterr().out.split())
    assert "no connection uses port 9092; most packets are on port 33192: --port 33192" in told


LONG = ["[2001:db8:1234:5678:9abc:def0:1234:5678]:51234", "[2001:db8:1234:5678:9abc:def0:8765:4321]:9092"]


@pytest.mark.parametrize("name", ["librdkafka-gateway", "many-clients-any"])
def test_80_columns_show_whole_addresses_and_names(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(CAPTURES)
    found = inspect(expand([f"{name}.pcap"]), frozenset())
    longest = found.kafka()[0].end
    longest.client, longest.broker = LONG
    out = io.StringIO()
    render.show(found, Console(file=out, width=80, highlight=False))
    lines = out.getvalue().splitlines()
    text = " ".join(out.getvalue().split())

    assert max(map(len, lines)) <= 80
    assert "\u2026" not in text
    for counts in found.kafka()[:40]:
        assert f"{counts.end.client} > {counts.end.broker}" in text
        assert {name_of(key) for key in counts.keys} <= set(text.split())
    assert f"{name}.pcap" in text


def test_a_port_is_hinted_at_where_nothing_looks_like_kafka(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    talk = crafting.Talk(broker=("10.0.0.2", 8080)).open()
    for broker in (False, True):
        talk.segment(b"GET / HTTP/1.1\r\nHost: example.com\r\n\r\n" * 20, broker=broker)
    file = tmp_path / "http.pcap"
    file.write_bytes(crafting.pcap(talk.frames, crafting.RAW))

    assert main(["inspect", str(file)]) == 3
    out = " ".join(capsys.readouterr().out.split())
    assert "name it: --port 8080" in out
    assert "Next: name the port on which the brokers listen" in out
    assert "replay inspect" not in out, "it does not send readers to itself"


def test_why_the_rest_of_a_connection_is_not_read_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    talk = (
        crafting.Talk().open().segment(bytes.fromhex("00000013 0011 0000 00000001 0002 6d65 0005") + b"PLAIN")
    )
    talk.segment(bytes.fromhex("0000000a 00000001 0000 00000000"), broker=True).segment(b"?" * 20)
    file = tmp_path / "x.pcap"
    file.write_bytes(crafting.pcap(talk.frames, crafting.RAW))

    assert main(["inspect", str(file)]) == 0
    told = " ".join(capsys.readouterr().out.replace("\u2502", " ").split())
    assert "20 B not read, opaque after a SASL handshake v0" in told


@pytest.mark.parametrize("name", sorted({*TUNNELS, *crafting.DRESSES}))
def test_requests_in_other_headers_are_found(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    frames = talked(20).frames
    made, link = (
        crafting.relink(frames, name) if name in crafting.DRESSES else (carried(frames, TUNNELS[name]), 1)
    )
    file = tmp_path / "x.pcap"
    file.write_bytes(crafting.pcap(made, link))

    code, found = _inspect(capsys, str(file))

    assert (code, len(found["connections"])) == (0, 1)
    assert found["connections"][0]["apis"]["Metadata"]["responses"] == 20


@pytest.mark.parametrize("command", ["inspect", "measure"])
def test_packets_that_are_not_read_are_named(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    frames = talked(2).frames
    packed = [dataclasses.replace(one, data=bytes(12) + b"\x88\xe5" + one.data) for one in frames]
    split = [dataclasses.replace(one, data=one.data[:6] + b"\x20" + one.data[7:]) for one in frames]
    file = tmp_path / "x.pcap"
    file.write_bytes(crafting.pcap([*packed, *crafting.relink(split, "ethernet")[0]]))

    assert main([command, str(file)]) == 3
    out = " ".join(capsys.readouterr().out.split())
    each = len(frames)
    assert (
        "Next: capture on a client's or a broker's host, on all interfaces (tcpdump -i any): "
        f"{2 * each} of {2 * each} packets are not read (IP fragments {each}, MACsec {each})."
    ) in out
    assert "--port" not in out
    if command == "inspect":
        assert f"{each} packets of MACsec, which is not read" in out


@pytest.mark.parametrize("client", [True, False])
def test_fragments_of_one_direction_alone_do_not_lead_to_its_port(
    client: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    frames = []
    for one in talked(20).frames:
        if one.data[40:] and (one.data[20:22] == (40000).to_bytes(2)) is client:
            # Two fragments, and an acknowledgment of each.
            split = dataclasses.replace(one, data=one.data[:6] + b"\x20" + one.data[7:])
            empty = dataclasses.replace(one, data=b"\x45\0\0\x28" + one.data[4:40], length=40)
            frames += [split, split, empty, empty]
        else:
            frames.append(one)
    file = tmp_path / "x.pcap"
    file.write_bytes(crafting.pcap(frames, crafting.RAW))

    main(["inspect", str(file)])
    out = " ".join(capsys.readouterr().out.split())
    assert "40 of 103 packets are not read (IP fragments 40)" in out
    assert "--port" not in out


def test_help_has_the_exit_codes_and_needs_nothing_of_the_extra(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for package in ("capture", "inspect"):  # importing them anew would change these
        monkeypatch.setattr(replay, package, sys.modules[f"replay.{package}"])
    for name in [name for name in sys.modules if name.startswith(("replay.capture", "replay.inspect"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pyarrow", None)

    with pytest.raises(SystemExit, match="0"):
        main(["inspect", "--help"])
    out = capsys.readouterr().out
    assert "Exit codes: 0 done, 1 failed, 2 wrong usage, 3 done, but" in out
    assert main(["inspect", str(CAPTURES / "java-100p.pcap")]) == 2
    assert "pyarrow is not installed" in capsys.readouterr().err


def test_one_of_a_kind_is_told_as_one() -> None:
    """A count of 1 is printed with a singular noun.

    In the captures of this test, kafka-go opens a connection for each partition, and one response of the
    other client has no request.
    """
    out = io.StringIO()
    for name in ("many-clients-any", "librdkafka-midstream"):
        captured = inspect(expand([str(CAPTURES / f"{name}.pcap")]), frozenset())
        render.show(captured, Console(file=out, width=80, highlight=False))
    told = " ".join(out.getvalue().split())

    assert "1 partition a fetch" in told
    assert "not seen: 1 request" in told
    assert not re.search(r"\b1 (partitions|requests|gaps)\b", told)


@pytest.mark.slow
@pytest.mark.parametrize("command", ["inspect", "measure"])
@pytest.mark.parametrize(("encoding", "name"), [("ascii", "b?cher-??"), ("iso-8859-1", "bücher-??")])
def test_letters_that_the_output_can_not_write_are_replaced(
    tmp_path: Path, command: str, encoding: str, name: str
) -> None:
    consumer = Consumer(client_id="bücher-消費")
    for _ in range(20):  # of only a few, measure would say that the saving is not known yet
        consumer.fetch({0: b"", 1: b""}, topic="消")
    file = captured(tmp_path, consumer)
    done = subprocess.run(
        [sys.executable, "-m", "proxy", "replay", command, str(file)],
        check=False,
        capture_output=True,
        encoding=encoding,
        env=os.environ | {"PYTHONIOENCODING": encoding, "PYTHONUTF8": "0"},
    )
    assert (done.returncode, "Traceback" in done.stderr) == (0, False)
    assert name in done.stdout
