"""The command, run as users run it: with this repository's captures, a model of a broker, and exit codes."""

import asyncio
import csv
import json
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from proxy.protocol.api import ApiKey
from replay.cli import main
from replay.drive import compare, running, target
from replay.drive.options import PASSWORD_VARIABLE
from replay.protocol.names import NAMES
from tests.model.broker import ModelBroker
from tests.replay.drive.serving import Served, serving
from tools.kafka.ports import free_ports

CAPTURES = Path(__file__).parents[3] / "captures"
LIBRDKAFKA = str(CAPTURES / "librdkafka-100p.pcap")
TRUTH = json.loads((CAPTURES / "librdkafka-100p.truth.json").read_text())
FETCHES = 322
"""The number of fetches in the capture that these tests play."""


def drive(*arguments: str) -> int:
    return main(["drive", *arguments])


def play(to: Served, *options: str) -> int:
    """Play the requests of the capture as fast as this target responds."""
    return drive(LIBRDKAFKA, "--target", str(to.address), "--speed", "max", *options)


@contextmanager
def served(partitions: int = 100) -> Iterator[Served]:
    """Serve a model of a broker with the capture's topic, in its own thread."""
    broker = ModelBroker(seed=9)
    broker.create_topic("events", partitions)
    up, done = threading.Event(), asyncio.Event()
    found: list[tuple[Served, asyncio.AbstractEventLoop]] = []

    async def main() -> None:
        async with serving(broker) as each:
            found.append((each, asyncio.get_running_loop()))
            up.set()
            await done.wait()

    thread = threading.Thread(target=asyncio.run, args=(main(),))
    thread.start()
    assert up.wait(10)
    try:
        yield found[0][0]
    finally:
        found[0][1].call_soon_threadsafe(done.set)
        thread.join(10)


@contextmanager
def admin_endpoint() -> Iterator[str]:
    """Serve a gateway's admin endpoint whose counters stay 0. Yield its address."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = "".join(
                f"# TYPE fetchgate_fetch_{what}_bytes counter\n"
                f'fetchgate_fetch_{what}_bytes_total{{side="{side}"}} 0.0\n'
                for what in ("request", "response", "record")
                for side in ("client", "broker")
            ).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join(10)


def test_a_capture_is_played_and_told_as_json_and_as_a_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "run.csv"
    with served() as target:
        code = play(target, "--json", "--csv", str(table))

    report = json.loads(capsys.readouterr().out)
    by_side = {(row["side"], row["api"]): row for row in report["figures"]}
    fetched = by_side["target", "Fetch"]
    assert code == 0
    assert (fetched["sent"], fetched["answered"], fetched["errors"]) == (FETCHES, FETCHES, {})
    assert fetched["partition_errors"] == {}
    assert fetched["partitions_answered"] > 32_000
    assert fetched["request_bytes"] == by_side["capture", "Fetch"]["request_bytes"]
    assert len(target.of(ApiKey.FETCH)) == FETCHES
    assert not target.of(ApiKey.JOIN_GROUP)
    assert {row["api"] for row in report["left_out"]} == {
        *("OffsetCommit", "JoinGroup", "Heartbeat", "LeaveGroup", "SyncGroup")
    }
    rows = list(csv.DictReader(table.read_text().splitlines()))
    assert [row["sent"] for row in rows if row["api"] == "Fetch"] == [str(FETCHES)] * 2


def test_it_is_told_to_a_reader(capsys: pytest.CaptureFixture[str]) -> None:
    with served() as target:
        code = play(target, "--limit", "60")

    assert code == 0
    assert "60 of 60 requests played" in capsys.readouterr().out


def test_a_dry_run_needs_no_target(capsys: pytest.CaptureFixture[str]) -> None:
    assert drive(LIBRDKAFKA, "--dry-run") == 0

    told = " ".join(capsys.readouterr().out.split())
    assert told.startswith("Would send 435 requests: 3 connections, captured in 10.2 s")
    assert f"Fetch 16 {FETCHES}" in told


def test_a_password_that_can_be_read_on_the_network_is_warned_of(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PASSWORD_VARIABLE, "secret")
    login = ("--security-protocol", "SASL_PLAINTEXT", "--sasl-mechanism", "PLAIN", "--sasl-username", "alice")

    assert drive(LIBRDKAFKA, "--dry-run", *login) == 0

    assert "SASL_PLAINTEXT and PLAIN the password can be read" in capsys.readouterr().err


def test_writes_are_played_when_they_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert drive(LIBRDKAFKA, "--dry-run", "--include", "heartbeat,JoinGroup") == 0

    told = " ".join(capsys.readouterr().out.split())
    assert "Heartbeat" in told.split("Left out:")[0]
    assert "OffsetCommit: a write" in told


def test_a_client_that_no_request_is_of_is_told_with_those_that_are_there(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code = drive(LIBRDKAFKA, "--dry-run", "--client", "nobody")

    assert code == 3
    assert capsys.readouterr().err == (
        "fetchgate replay drive: no request is of --client nobody; the capture has the client ids: rdk\n"
        "fetchgate replay drive: nothing to play: no request is of a chosen client\n"
    )


def test_no_escape_sequence_reaches_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """Escape sequences are escaped in messages on the terminal.

    Other people may choose the name of a file, and brokers the text of their SASL errors.
    """
    assert drive(LIBRDKAFKA, "--dry-run", "--csv", "/no/such/\x1b[2J.csv") == 2

    told = capsys.readouterr().err
    assert told.startswith("fetchgate replay drive: --csv /no/such/\\x1b[2J.csv: there is no such directory")
    assert "\x1b" not in told


def test_a_wrong_client_beside_a_right_one_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    code = drive(LIBRDKAFKA, "--dry-run", "--client", "nobody", "--client", "rdk")

    told = capsys.readouterr()
    assert code == 0
    assert told.err == (
        "fetchgate replay drive: no request is of --client nobody; the capture has the client ids: rdk\n"
    )
    assert "Would send 435 requests" in told.out


def test_a_capture_without_kafka_is_no_success(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    empty = tmp_path / "empty.pcap"
    empty.write_bytes(Path(LIBRDKAFKA).read_bytes()[:24])

    assert drive(str(empty), "--dry-run") == 3
    assert capsys.readouterr().err == (
        "fetchgate replay drive: nothing to play: no Kafka requests in the input; `fetchgate replay inspect` "
        "says what to do\n"
    )


def test_a_port_on_which_there_is_nothing_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert drive(LIBRDKAFKA, "--dry-run", "--port", "7", "--port", "9") == 3
    assert capsys.readouterr().err == (
        "fetchgate replay drive: nothing to play: no Kafka requests on --port 7 or 9 in the input; without "
        "--port, Kafka is recognised by its bytes, on any port\n"
    )


def test_a_file_that_is_no_capture_is_named_and_nothing_leads_in_a_circle(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """If a file is no capture, the error message has the file's name.

    The message does not advise to run `inspect`, because `inspect` would not help.
    """
    text = tmp_path / "notes.txt"
    text.write_text("no capture\n")

    assert drive(str(text), "--dry-run") == 3
    told = capsys.readouterr().err.splitlines()
    assert str(text) in told[0]
    assert told[-1] == "fetchgate replay drive: nothing to play: no Kafka requests in the input"


def test_without_a_target_nothing_is_done(capsys: pytest.CaptureFixture[str]) -> None:
    assert drive(LIBRDKAFKA) == 2
    assert capsys.readouterr().err == (
        "fetchgate replay drive: --target HOST:PORT is missing; "
        "or give --dry-run, to see what would be sent; see fetchgate replay drive --help\n"
    )


def test_a_target_that_refuses_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    port = free_ports(1)

    assert drive(LIBRDKAFKA, "--target", f"127.0.0.1:{port}") == 1
    assert capsys.readouterr().err == (
        f"fetchgate replay drive: --target 127.0.0.1:{port}: Connection refused\n"
    )


@pytest.mark.parametrize("api", ["ApiVersions", "Metadata", "ListOffsets", "Fetch"])
def test_a_target_that_never_responds_is_told_with_what_it_was_asked(
    api: str, capsys: pytest.CaptureFixture[str]
) -> None:
    key = {name: key for key, name in NAMES.items()}[api]
    with served() as target:
        target.mute = lambda frame: frame[1] == key
        arguments = ("--speed", "max", "--timeout", "0.5", "--max-wait", "0")
        code = drive(LIBRDKAFKA, "--target", str(target.address), *arguments)

    told = capsys.readouterr()
    assert code == 4
    assert f"{target.address}: no response to {api} v" in " ".join((told.out + told.err).split())


def test_a_target_that_is_no_kafka_listener_is_told_of_soon(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(target, "_FIRST_SECONDS", 0.2)
    with admin_endpoint() as address:  # HTTP waits for the end of a line
        assert drive(LIBRDKAFKA, "--target", address) == 4

    assert capsys.readouterr().err == (
        f"fetchgate replay drive: --target {address}: no response to ApiVersions v0 in 0.2 s "
        "(is it a Kafka listener?)\n"
    )


def test_a_target_without_the_topics_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    with served() as target:
        target.broker.delete_topic("events")
        target.versions = {key: target.versions[key] for key in (ApiKey.FETCH, ApiKey.METADATA)}
        target.versions[ApiKey.METADATA] = (12, 12)
        code = play(target)

    told = capsys.readouterr()
    assert code == 3
    assert "322 Fetch: this broker of the target leads none of its partitions" in told.out
    assert told.err == NONE_LEFT


NONE_LEFT = (
    "fetchgate replay drive: nothing to play: none of the requests can be sent (Fetch: this broker of the "
    "target leads none of its partitions); the report lists what was left out; --create-topics creates "
    "missing topics\n"
)


def test_topics_that_are_missing_are_created_with_the_captures_partitions(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with served() as target:
        target.broker.delete_topic("events")
        target.versions[ApiKey.CREATE_TOPICS] = (2, 7)
        code = play(target, "--create-topics", "--limit", "200")

    told = capsys.readouterr()
    assert code == 0, told.err
    assert "Topics created: events (100 partitions)" in told.out
    assert len(target.broker.topics["events"].partitions) == 100
    assert target.of(ApiKey.FETCH)


def test_a_topic_that_cannot_be_created_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with served() as target:
        target.broker.delete_topic("events")
        target.versions[ApiKey.CREATE_TOPICS] = (2, 7)
        target.create_error = 29
        code = play(target, "--create-topics")

    assert code == 1
    assert capsys.readouterr().err == (
        f"fetchgate replay drive: --target {target.address}: topic events can't be created: "
        "error 29 TOPIC_AUTHORIZATION_FAILED\n"
    )


def test_what_leads_to_fetches_is_not_played_without_them(capsys: pytest.CaptureFixture[str]) -> None:
    """If no fetch can be sent, requests that prepare fetches (such as Metadata) are not sent either.

    They would succeed, so the run would look successful, with no saving.
    """
    with served() as target, served() as gate, admin_endpoint() as admin:
        gate.broker.delete_topic("events")
        code = play(gate, "--against", str(target.address), "--admin", admin)
        asked = len(gate.of(ApiKey.METADATA))

    told = capsys.readouterr()
    assert code == 3
    assert told.err == NONE_LEFT
    assert "Metadata: not needed: no fetch can be sent" in told.out
    assert "0 of 0 requests played" in told.out
    assert "saved" not in told.out
    assert asked == 1, "by the look at what it has"
    assert not gate.of(ApiKey.FETCH)


def test_writes_that_are_named_are_played_without_fetches(capsys: pytest.CaptureFixture[str]) -> None:
    with served() as target:
        target.broker.delete_topic("events")
        target.versions[ApiKey.HEARTBEAT] = (0, 4)
        play(target, "--include", "Heartbeat")

    assert target.of(ApiKey.HEARTBEAT)
    assert "nothing to play" not in capsys.readouterr().err


def test_a_run_without_fetches_tells_no_saving(capsys: pytest.CaptureFixture[str]) -> None:
    with served() as target, served() as gate, admin_endpoint() as admin:
        code = play(gate, "--against", str(target.address), "--admin", admin, "--limit", "2")

    out = capsys.readouterr().out
    assert code == 0
    assert "2 of 2 requests played" in out
    assert "No fetch was played, so there is no saving to report." in out
    assert "% of fetch bytes saved" not in out


def test_a_run_in_which_every_response_has_an_error_is_no_success(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with served() as target:
        target.canned[ApiKey.HEARTBEAT] = bytes(4) + b"\0\x19"
        target.versions = {ApiKey.METADATA: (12, 12), ApiKey.LIST_OFFSETS: (1, 1), ApiKey.HEARTBEAT: (0, 4)}
        code = play(target, "--include", "Heartbeat")

    told = capsys.readouterr()
    assert code == 3
    assert "every response has an error" in told.err
    assert "Heartbeat" in told.out


def test_fetches_without_a_response_have_no_saving(capsys: pytest.CaptureFixture[str]) -> None:
    with served() as target, served() as gate, admin_endpoint() as admin:
        for each in (target, gate):
            each.hang_up = lambda frame: frame[1] == ApiKey.FETCH
        code = play(gate, "--against", str(target.address), "--admin", admin)

    out = capsys.readouterr().out
    assert code == 1
    assert "% of fetch bytes saved" not in out
    assert "No fetch was played, so there is no saving to report." in out


@pytest.mark.parametrize(("against", "read_to"), [(True, "end"), (False, "captured")])
def test_beside_a_gateway_reads_end_where_the_target_has_no_more(
    capsys: pytest.CaptureFixture[str], against: bool, read_to: str
) -> None:
    """Limits that change with each fetch would be changes in the gateway's sessions, and cost it savings."""
    with served() as target, served() as gate, admin_endpoint() as admin:
        options = ("--against", str(target.address), "--admin", admin) if against else ()
        play(gate, "--json", *options)
    assert json.loads(capsys.readouterr().out)["settings"]["read_to"] == read_to


def test_against_without_the_gateways_admin_endpoint_is_one_line_with_the_remedy(
    capsys: pytest.CaptureFixture[str],
) -> None:
    admin = f"127.0.0.1:{free_ports(1)}"
    with served() as target, served() as gate:
        code = play(gate, "--against", str(target.address), "--admin", admin)

    assert code == 1
    assert capsys.readouterr().err == (
        f"fetchgate replay drive: --admin {admin}: Connection refused; --against reads the counters "
        "of the gateway's admin endpoint: give its address with --admin\n"
    )


def test_a_table_that_cannot_be_written_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert drive(LIBRDKAFKA, "--dry-run", "--csv", "/dev/full") == 1
    told = capsys.readouterr()
    assert "435 requests" in told.out
    assert told.err == "fetchgate replay drive: --csv /dev/full: No space left on device\n"


def test_a_table_that_may_not_be_written_is_told_before_anything_is_played(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    absent, capture = tmp_path / "no such folder" / "run.csv", tmp_path / "a.pcap"
    capture.write_bytes(Path(LIBRDKAFKA).read_bytes())
    for table, why in (
        (absent, "there is no such directory to write to"),
        (capture, "it is a capture, and would be overwritten; name a new file before the captures"),
    ):
        assert drive(LIBRDKAFKA, "--dry-run", "--csv", str(table)) == 2
        told = f"fetchgate replay drive: --csv {table}: {why}; see fetchgate replay drive --help\n"
        assert capsys.readouterr() == ("", told)
    assert capture.read_bytes() == Path(LIBRDKAFKA).read_bytes()


def test_options_come_from_the_environment_too(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FETCHGATE_LIMIT", "7")
    monkeypatch.setenv("FETCHGATE_DRY_RUN", "true")

    assert main(["drive", LIBRDKAFKA]) == 0
    assert "Would send 7 requests" in capsys.readouterr().out


def test_a_file_that_is_not_there_is_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert drive(str(tmp_path / "none.pcap"), "--dry-run") == 2

    told = capsys.readouterr().err
    assert told.startswith("fetchgate replay drive: ")
    assert told.count("\n") == 1
    assert "none.pcap" in told


def test_a_file_that_is_no_capture_is_reported_and_the_others_are_played(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    bad = tmp_path / "bad.pcap"
    bad.write_bytes(b"this is not a capture, whatever its name says" * 10)
    alone = drive(str(bad), "--dry-run")
    told = capsys.readouterr().err
    beside = drive(str(bad), LIBRDKAFKA, "--dry-run")

    assert (alone, beside) == (3, 3)
    assert "bad.pcap" in told
    out = capsys.readouterr().out
    assert "435 requests" in out
    assert "bad.pcap" in out.replace("\n", "")


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["--target", "nowhere"], "--target: 'nowhere' has no port; write HOST:PORT"),
        (["--speed", "0"], "--speed: '0' must be above 0"),
        (["--rate", "-1"], "--rate: '-1' must be above 0"),
        (["--loop", "1.5"], "--loop: '1.5' must be an integer from 1 to 2147483647"),
        (["--connections", "0"], "--connections: '0' must be an integer from 1 to 2147483647"),
        (["--max-wait", "-5"], "--max-wait: '-5' is not a time; give milliseconds"),
        (["--topic-id", "events"], "--topic-id: 'events' is not ID=NAME"),
        (["--include", "Fetsch"], "--include: 'Fetsch' is not an API of Kafka; did you mean Fetch?"),
        (["--offsets", "newest"], "--offsets: 'newest' is not one of keep, clamp, earliest, latest"),
        (["--port", "70000"], "--port: '70000' must be an integer from 1 to 65535"),
    ],
)
def test_a_wrong_value_is_named(arguments: list[str], error: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert drive(LIBRDKAFKA, *arguments) == 2
    assert error in capsys.readouterr().err


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_it_with_its_code_and_the_report(
    capsys: pytest.CaptureFixture[str], number: signal.Signals, code: int
) -> None:
    with served() as target:

        def stop(frame: bytes) -> bool:
            if len(target.of(ApiKey.FETCH)) == 3:
                os.kill(os.getpid(), number)
            return False

        target.hang_up = stop
        assert play(target, "--rate", "50") == code

    lines = capsys.readouterr().out.splitlines()
    assert "Interrupted." in lines
    assert any(line.startswith("Stopped ") and " --from " in line for line in lines)


def test_a_run_that_left_out_much_is_no_success(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "left_out_ratio", lambda *_: 0.051)
    with served() as target:
        assert play(target, "--limit", "20") == 3

    assert "5.1 % of the captured requests were left out" in capsys.readouterr().err


def test_a_comparison_ends_with_5_if_something_differs_that_may_not(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """If the target's responses have differences that are not allowed, the exit code is 5.

    The model has no records, so the captured offsets are out of range.
    """
    with served() as target:
        code = play(target, "--limit", "150", "--json", "--compare")

    report = json.loads(capsys.readouterr().out)
    assert code == 5
    assert report["settings"]["offsets"] == "keep"
    (fetches,) = [row for row in report["compare"]["apis"] if row["api"] == "Fetch"]
    assert fetches == {"api": "Fetch", "compared": 38, "same": 0, "allowed": 0, "not_allowed": 38}
    (error,) = [row for row in report["compare"]["differences"] if row["api"] == "Fetch"]
    assert (error["difference"], error["allowed"], error["count"]) == ("another error", False, 3_701)
    assert len(error["examples"]) == error["count"]
    assert error["examples"][0] == {
        "connection": "127.0.0.1:44080 > 127.0.0.1:33192 #0",
        "correlation_id": 108,
        "version": 16,
        "client": "rdk",
        "broker": "127.0.0.1:33192",
        "api": "Fetch",
        "topic": "events",
        "entry": "events-0",
        "captured": "no error",
        "now": "error 1 OFFSET_OUT_OF_RANGE",
    }


def test_a_comparison_ends_with_5_if_the_target_lacks_all_topics(capsys: pytest.CaptureFixture[str]) -> None:
    with served(0) as target:
        target.broker.topics.clear()
        code = play(target, "--json", "--compare")

    out = capsys.readouterr()
    rows = [row for row in json.loads(out.out)["compare"]["differences"] if row["api"] == "Fetch"]
    assert code == 5
    assert [(row["difference"], row["examples"][1]["entry"]) for row in rows] == [("missing", "events-0")]
    assert "nothing to play" in out.err
    assert "--compare counts what the target lacks as a difference" in out.err


def test_both_sides_of_a_gateway_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    capture = str(CAPTURES / "aiokafka-gateway.pcap")
    assert drive(capture, "--dry-run") == 0
    assert capsys.readouterr().err == (
        "fetchgate replay drive: 4 connections of 127.0.0.1:23262 and 127.0.0.1:17570 are the two sides of a "
        "gateway: their requests are played twice.\n"
        "fetchgate replay drive: Play one side: --port 23262.\n"
    )
    assert drive(capture, "--dry-run", "--port", "23262") == 0
    assert capsys.readouterr().err == ""


def test_a_comparison_of_nothing_is_no_success(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compare.Keeper, "keep", lambda *_: compare.Kept(1, None, compare.NO_RESPONSE))
    with served() as target:
        code = play(target, "--limit", "1", "--compare")

    assert code == 3
    assert "nothing was compared; the report lists why" in capsys.readouterr().err


def test_differences_are_allowed_only_in_a_comparison(capsys: pytest.CaptureFixture[str]) -> None:
    code = drive(LIBRDKAFKA, "--target", "127.0.0.1:1", "--allow", "missing")

    assert code == 2
    assert "--allow has no effect alone: give --compare as well" in capsys.readouterr().err


def test_after_the_end_of_the_capture_nothing_can_be_played(capsys: pytest.CaptureFixture[str]) -> None:
    code = drive(LIBRDKAFKA, "--dry-run", "--from", "1h")

    assert code == 3
    assert "nothing to play: no request comes after --from 3600 that can be played" in capsys.readouterr().err


@pytest.mark.parametrize("other", [("--against", "127.0.0.1:1"), ("--dry-run",)])
def test_a_comparison_needs_the_responses_of_one_target(
    other: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    code = drive(LIBRDKAFKA, "--target", "127.0.0.1:1", "--compare", *other)

    assert code == 2
    assert f"--compare can't be used with {other[0]}" in capsys.readouterr().err
