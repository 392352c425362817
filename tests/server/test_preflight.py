"""Tests of `fetchgate proxy --check`: what it tries, what it prints, and its exit code."""

import asyncio
import json
import re
import socket
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from proxy.__main__ import main
from proxy.protocol.api import ApiKey
from proxy.protocol.messages import body
from proxy.protocol.schemas import DESCRIBE_CONFIGS
from proxy.server import preflight, registry
from tests.names import Names
from tests.shell import (
    expire_once_connected,
    run,
    stub_cluster,
    until,
)
from tools.kafka.ports import free_ports

pytestmark = pytest.mark.usefixtures("log_defaults", "alone")


WELL = "All is well: a gateway with these options can serve clients."
DOUBT = re.compile(r"A gateway with these options can serve clients, but .*: a line above says what to do\.")
NO_BOOTSTRAP = "fetchgate proxy: no bootstrap address can be used: a line above says why\n"
NOT_WELL = "Not all is well: a line above says what to do."


def _check(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, list[str], str]:
    """Run `--check`. Return the exit code, the printed messages and stderr.

    The messages leave out the line about the options and the last line, which is the result.
    """
    code = main(["proxy", "--check", *arguments])
    out, err = capsys.readouterr()
    said = out.splitlines()
    options = [line for line in said if line.startswith("The options can be used: ")]
    assert len(options) == 1
    said.remove(options[0])
    if not err:
        last = said.pop()
        assert last == (NOT_WELL if code else WELL) or DOUBT.fullmatch(last)
    return code, said, err


def _unusable(reason: str) -> str:
    return f"--bootstrap can't be used: {reason}"


def _responded(address: str, brokers: int) -> str:
    return f"The bootstrap {address} responded and named {brokers} broker{'s' * (brokers != 1)}."


def _reached(node_id: int, address: str, at: str) -> str:
    return f"Clients reach broker {node_id} ({address}) at {at}, which was bound and released."


def _bound(flag: str, at: str) -> str:
    return f"{flag} {at} was bound and released."


def _checked(
    capsys: pytest.CaptureFixture[str], bootstrap: str, *arguments: str
) -> asyncio.Future[tuple[int, list[str], str]]:
    """Run `--check` in a thread, because the test's stub cluster must respond in the meantime."""
    return asyncio.get_running_loop().run_in_executor(
        None, lambda: _check(capsys, "--bootstrap", bootstrap, *arguments)
    )


async def test_check_says_what_is_reached_and_where_listeners_would_be(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async with stub_cluster((1, "kafka-1", 9092), (60_000, "kafka-2", 9092)) as cluster:
        bootstrap = f"127.0.0.1:1,{cluster.address}"
        first = free_ports(4)
        listen = f"127.0.0.1:{first}"
        reached = [
            _unusable("127.0.0.1:1: Connection refused"),
            _responded(cluster.address, 2),
            _bound("--listen", listen),
        ]
        addresses = ("--listen", listen, "--admin", "off")
        assert await _checked(capsys, bootstrap, *addresses) == (
            1,
            [
                *reached,
                _reached(1, "kafka-1:9092", f"127.0.0.1:{first + 2}"),
                (
                    "broker 60000: its port is outside 1-65535; "
                    "give it a port with --broker-ports, or all brokers with --listen-ports"
                ),
            ],
            "",
        )
        rule = f"{first},60000={first + 3}"
        assert await _checked(capsys, bootstrap, *addresses, "--broker-ports", rule) == (
            0,
            [
                *reached,
                _reached(1, "kafka-1:9092", f"127.0.0.1:{first + 1}"),
                _reached(60_000, "kafka-2:9092", f"127.0.0.1:{first + 3}"),
            ],
            "",
        )


async def test_check_says_which_address_is_taken_and_keeps_none(capsys: pytest.CaptureFixture[str]) -> None:
    first = free_ports(4)
    listen, broker, admin = (f"127.0.0.1:{first + each}" for each in (0, 2, 3))
    addresses = ("--listen", listen, "--admin", admin)
    async with stub_cluster((1, "kafka-1", 9092)) as cluster:
        found = [
            _responded(cluster.address, 1),
            _bound("--listen", listen),
            _reached(1, "kafka-1:9092", broker),
            _bound("--admin", admin),
        ]
        assert await _checked(capsys, cluster.address, *addresses) == (0, found, "")
        with ExitStack() as taken:
            for port in (first, first + 2, first + 3):
                taken.enter_context(socket.create_server(("127.0.0.1", port)))
            code, said, _ = await _checked(capsys, cluster.address, *addresses)
        taken_already = "can't be bound: Address already in use; give"
        assert (code, said) == (
            1,
            [
                found[0],
                f"--listen {listen} {taken_already} --listen another HOST:PORT",
                f"broker 1: {broker} {taken_already} it another port with --broker-ports",
                f"--admin {admin} {taken_already} --admin another HOST:PORT",
            ],
        )
        assert await _checked(capsys, cluster.address, *addresses) == (0, found, "")


async def test_check_tells_the_ports_of_a_range_that_brokers_had_before(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    first, large = free_ports(4), 900_000_000
    kept = [{"id": large + 1, "host": "kafka-1", "port": 9092, "listen_port": first + 2}]
    (tmp_path / "state").write_text(json.dumps({"brokers": kept}))
    options = ["--listen", f"127.0.0.1:{first}", "--listen-ports", f"{first}-{first + 3}", "--admin", "off"]
    options += ["--state", str(tmp_path / "state")]
    async with stub_cluster((large, "kafka-0", 9092), (large + 1, "kafka-1", 9092)) as cluster:
        code, said, _ = await _checked(capsys, cluster.address, *options)
    assert code == 0
    assert said[-2:] == [
        _reached(large + 1, "kafka-1:9092", f"127.0.0.1:{first + 2}"),
        _reached(large, "kafka-0:9092", f"127.0.0.1:{first + 1}"),
    ]


def test_check_says_what_it_waits_for(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preflight, "PATIENCE_SECONDS", 0.01)
    expire_once_connected(monkeypatch)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        at = f"127.0.0.1:{silent.getsockname()[1]}"
        code, said, complaint = _check(capsys, "--bootstrap", at, "--listen", "127.0.0.1:0", "--admin", "off")
    assert code == 1
    assert said == [
        f"bootstrap {at}: waiting for a response, 10 s at most",
        _unusable(f"{at}: no response in 10 s (does it speak TLS? Then give --broker-tls on)"),
        said[-1],
    ]
    assert complaint == NO_BOOTSTRAP


def test_misspelt_variables_are_reported(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FETCHGATE_LISTN", "127.0.0.1:1")
    options = ["--transparent", "redirect", "--listen", "127.0.0.1:0", "--admin", "off"]
    told = "FETCHGATE_LISTN is not an option and is ignored; did you mean FETCHGATE_LISTEN?"
    assert _check(capsys, *options)[1][0] == told


async def test_check_sees_that_two_listeners_want_one_address(capsys: pytest.CaptureFixture[str]) -> None:
    first = free_ports(3)
    addresses = ("--listen", f"127.0.0.1:{first}", "--admin", f"127.0.0.1:{first + 2}")
    async with stub_cluster((1, "kafka-1", 9092)) as cluster:
        code, found, _ = await _checked(capsys, cluster.address, *addresses)
        assert code == 1
        assert found[-1].startswith(f"--admin 127.0.0.1:{first + 2} can't be bound: Address already in use")


def test_check_tries_where_it_would_write(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    def kept(state: Path | str, capture: Path | str) -> list[str]:
        return ["--state", str(state), "--capture", str(capture)]

    async def scene() -> None:
        options = ["--listen", f"127.0.0.1:{free_ports(2)}", "--admin", "off"]
        async with stub_cluster() as cluster:
            reached = _responded(cluster.address, 0)
            bound = _bound("--listen", options[1])
            good = kept(tmp_path / "state.json", tmp_path / "new" / "captures")
            written = [
                f"--state: a file was written to {tmp_path} and removed.",
                f"--capture: a file was written to {tmp_path} and removed.",
            ]
            told = (0, [*written, reached, bound], "")
            assert await _checked(capsys, cluster.address, *options, *good) == told
            bad = kept("/proc/state", "/proc/nope/captures")
            code, said, _ = await _checked(capsys, cluster.address, *options, *bad)
        assert (code, said.pop(), said.pop()) == (1, bound, reached)
        assert [line.partition(":")[0] for line in said] == ["--state", "--capture"]
        assert all("can't write to /proc: " in line for line in said)

    run(scene())
    assert list(tmp_path.iterdir()) == []


def tells_slots(slots: bytes | None, error: int = 0) -> Callable[[bytes], bytes]:
    """Return what a broker does with DescribeConfigs: it has this number of session slots. Other requests get
    no response.
    """
    setting: dict[str, Any] = {"name": b"max.incremental.fetch.session.cache.slots", "value": slots}
    setting |= {"read_only": True, "config_source": 4, "is_sensitive": False, "synonyms": []}
    result: dict[str, Any] = {"error_code": error, "error_message": None, "resource_type": 4}
    result |= {"resource_name": b"1", "configs": [] if error else [setting]}
    told = body(DESCRIBE_CONFIGS, ApiKey.DESCRIBE_CONFIGS, 1, throttle_time_ms=0, results=[result])
    return lambda message: told if message[1] == ApiKey.DESCRIBE_CONFIGS else b""


OF_1000 = "Of the 1,000 slots of a broker, gateways should use at most 800"
AT_EACH = "at each of 2 brokers if clients are spread evenly"
SETTING = "max.incremental.fetch.session.cache.slots"
UNKNOWN = "the number of session slots is not known, 1,000 are assumed"


@pytest.mark.parametrize(
    ("options", "slots", "code", "told"),
    [
        (
            "--gateways 20 --max-sessions 60",
            tells_slots(b"1000"),
            0,
            [
                f"20 gateways with --max-sessions 60 use at most 1,200 session slots, 600 {AT_EACH}.",
                f"{OF_1000}: enough.",
            ],
        ),
        (
            "--gateways 200",
            tells_slots(b"2007"),  # eight shards of 250
            1,
            [
                f"200 gateways with --max-sessions 500 use at most 100,000 session slots, 50,000 {AT_EACH}.",
                "Of the 2,007 slots of a broker, gateways should use at most 1,600:",
                f"give the gateways --max-sessions 16, or the brokers {SETTING}=62504",
            ],
        ),
        (
            "--gateways 2000 --max-sessions 1",
            tells_slots(b"1000"),
            1,
            [
                f"2,000 gateways with --max-sessions 1 use at most 2,000 session slots, 1,000 {AT_EACH}.",
                f"{OF_1000}: give the brokers {SETTING}=2504, and the gateways --max-sessions 2",
            ],
        ),
        (
            "--gateways 200 --max-connections 150",  # as in the manifests of sidecars
            tells_slots(b"1000"),
            1,
            [
                "200 gateways with --max-connections 150 (a connection has one session at most) use at most",
                f"30,000 session slots, 15,000 {AT_EACH}.",
                f"{OF_1000}: give the gateways --max-sessions 8, or the brokers {SETTING}=18752",
            ],
        ),
        (
            "--gateways 20 --max-connections 60 --max-sessions 60",
            tells_slots(b"1000"),
            0,
            [
                f"20 gateways with --max-sessions 60 use at most 1,200 session slots, 600 {AT_EACH}.",
                f"{OF_1000}: enough.",
            ],
        ),
        (
            "--gateways 1 --max-sessions 1",
            tells_slots(b"1000"),
            0,
            [
                f"1 gateway with --max-sessions 1 uses at most 1 session slot, 1 {AT_EACH}.",
                f"{OF_1000}: enough.",
            ],
        ),
        (
            "--gateways 2 --max-sessions 0",
            tells_slots(b"1000"),
            0,
            [
                f"2 gateways with --max-sessions 0 use at most 0 session slots, 0 {AT_EACH}.",
                f"{OF_1000}: enough.",
            ],
        ),
        (
            "--gateways 2 --sessions off",
            tells_slots(b"0"),
            0,
            ["With --sessions off, gateways use no session slots of brokers."],
        ),
        (
            "--gateways 1",
            tells_slots(None, 31),
            0,
            [
                f"2 brokers: {UNKNOWN}: DescribeConfigs of the cluster is not allowed here",
                f"1 gateway with --max-sessions 500 uses at most 500 session slots, 250 {AT_EACH}.",
                f"{OF_1000}: enough.",
            ],
        ),
    ],
)
async def test_check_compares_the_session_slots_of_brokers_with_those_of_all_gateways(
    capsys: pytest.CaptureFixture[str],
    options: str,
    slots: Callable[[bytes], bytes],
    code: int,
    told: list[str],
) -> None:
    async with stub_cluster((1, "", 0), (2, "", 0)) as cluster:
        cluster.others = slots
        at = ("--listen", f"127.0.0.1:{free_ports(5)}", "--admin", "off")
        got, said, _ = await _checked(capsys, cluster.address, *at, *options.split())
    assert (got, " ".join(said[4:])) == (code, " ".join(told))


@pytest.mark.parametrize(
    ("slots", "reason"),
    [
        (tells_slots(b"9" * 5_000), f"'{'9' * 20}' is not a number of slots"),
        (tells_slots(b"2147483648"), "'2147483648' is not a number of slots"),
        (tells_slots(b"-5"), "'-5' is not a number of slots"),
        (tells_slots(b""), "'' is not a number of slots"),
        (tells_slots("\u0661".encode()), r"'\xd9\xa1' is not a number of slots"),
        (tells_slots(None), "the broker does not tell the setting's value"),
        (lambda _: bytes(4) + b"\xff" * 4, "the broker has no such setting"),
        (lambda _: bytes(4) + b"\x7f" + b"\xff" * 3, "the response to DescribeConfigs is not understood: "),
        (lambda message: tells_slots(b"1000")(message)[:-1], "the response to DescribeConfigs is not "),
        (lambda _: b"\0", "the response to DescribeConfigs is not understood: "),
    ],
    ids=["long", "above int32", "negative", "empty", "not ASCII", "null", "nothing", "count", "cut", "short"],
)
async def test_slots_that_can_not_be_read_are_one_line_and_the_default_is_assumed(
    capsys: pytest.CaptureFixture[str], slots: Callable[[bytes], bytes], reason: str
) -> None:
    async with stub_cluster((1, "", 0)) as cluster:
        cluster.others = slots
        at = ("--listen", f"127.0.0.1:{free_ports(5)}", "--admin", "off", "--gateways", "1")
        code, said, _ = await _checked(capsys, cluster.address, *at)
    assert code == 0
    assert said[3].startswith(f"broker 1: {UNKNOWN}: {reason}")
    assert len(said[3]) < 300
    assert "Of the 1,000 slots of a broker" in said[4]


async def test_check_prints_what_brokers_name_without_control_characters(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async with stub_cluster((1, "kafka\x1b[2J", 9092)) as cluster:
        at = ("--listen", f"127.0.0.1:{free_ports(5)}", "--admin", "off")
        code, said, _ = await _checked(capsys, cluster.address, *at)
    assert (code, r"broker 1 (kafka\x1b[2J:9092)" in said[2]) == (0, True)


def test_check_assumes_the_default_of_brokers_that_it_can_not_ask(
    capsys: pytest.CaptureFixture[str],
) -> None:
    options = ["--transparent", "redirect", "--listen", f"127.0.0.1:{free_ports()}", "--admin", "off"]
    code, said, _ = _check(capsys, *options, "--gateways", "2", "--max-sessions", "400")
    assumed = "No broker was asked for its session slots: one broker with 1,000 (Kafka's default) is assumed."
    told = f"2 gateways with --max-sessions 400 use at most 800 session slots. {OF_1000}: enough."
    assert (code, said[2:]) == (0, [assumed, told])


def test_check_lets_a_gateway_that_shares_its_ports_have_them(capsys: pytest.CaptureFixture[str]) -> None:
    first = free_ports(2)
    options = ["--transparent", "redirect", "--listen", f"127.0.0.1:{first}"]
    options += ["--admin", f"127.0.0.1:{first + 1}", "--reuse-port", "on"]
    with (
        socket.create_server(("127.0.0.1", first), reuse_port=True),
        socket.create_server(("127.0.0.1", first + 1)),
    ):
        code, said, _ = _check(capsys, *options)
        in_use = f"--admin {options[5]} is in use: it is bound when the other gateway has stopped."
        assert (code, said[:2]) == (0, [_bound("--listen", options[3]), in_use])
        assert _check(capsys, *options[:-2])[0] == 1


async def test_check_sees_that_ports_are_shared_with_other_gateways_alone(
    capsys: pytest.CaptureFixture[str],
) -> None:
    first = free_ports(3)
    options = ["--listen", f"127.0.0.1:{first}", "--reuse-port", "on"]
    options += ["--broker-ports", f"1={first},2={first + 1}", "--admin", f"127.0.0.1:{first + 1}"]
    async with stub_cluster((1, "kafka-1", 9092), (2, "kafka-2", 9092)) as cluster:
        taken = "can't be bound: Address already in use; give"
        assert await _checked(capsys, cluster.address, *options) == (
            1,
            [
                _responded(cluster.address, 2),
                _bound("--listen", f"127.0.0.1:{first}"),
                f"broker 1: 127.0.0.1:{first} {taken} it another port with --broker-ports",
                _reached(2, "kafka-2:9092", f"127.0.0.1:{first + 1}"),
                f"--admin 127.0.0.1:{first + 1} {taken} --admin another HOST:PORT",
            ],
            "",
        )


def test_a_port_that_is_taken_in_one_ip_version_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    if not socket.has_dualstack_ipv6():
        pytest.skip("no IPv6 here")
    first = free_ports()
    options = ["--transparent", "redirect", "--listen", f"127.0.0.1:{first}", "--admin", "off"]
    reason = f"Address already in use at [::1]:{first}; give --listen another HOST:PORT"
    with socket.create_server(("::1", first), family=socket.AF_INET6):
        code, said, _ = _check(capsys, *options)
        assert (code, said[0]) == (1, f"--listen 127.0.0.1:{first} can't be bound: {reason}")


async def test_check_sees_that_a_broker_leads_back_to_the_gateway(capsys: pytest.CaptureFixture[str]) -> None:
    first = free_ports(3)
    options = ["--listen", f"127.0.0.1:{first}", "--admin", "off"]
    leads_back = "it leads back to this gateway; make sure that --bootstrap"
    async with stub_cluster((1, "127.0.0.1", first + 2)) as cluster:
        bootstrap = f"127.0.0.1:{first},{cluster.address}"
        code, said, _ = await _checked(capsys, bootstrap, *options)
    assert code == 1
    assert said[0].startswith(_unusable(f"127.0.0.1:{first}: {leads_back}"))
    assert said[1:4] == [
        _responded(cluster.address, 1),
        _bound("--listen", f"127.0.0.1:{first}"),
        _reached(1, f"127.0.0.1:{first + 2}", f"127.0.0.1:{first + 2}"),
    ]
    assert said[4].startswith(f"broker 1 127.0.0.1:{first + 2}: {leads_back}")
    assert len(said) == 5


async def test_check_waits_for_the_names_of_listeners(
    capsys: pytest.CaptureFixture[str], fake_names: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`--check` waits for the DNS lookup of listeners, and longer than a running gateway does.

    A running gateway would delay a client's response for this time.
    """
    monkeypatch.setattr(registry, "OPEN_SECONDS", 0.0)

    first = free_ports(2)
    options = ["--listen", f"127.0.0.1:{first}", "--admin", "off"]
    options += ["--broker-ports", f"b-{{id}}.silent.example:{first + 1}"]
    async with stub_cluster((1, "127.0.0.1", 9092), (2, "127.0.0.1", 9092)) as cluster:
        checked = _checked(capsys, cluster.address, *options)
        await until(lambda: len(fake_names.lookups) == 2)
        fake_names.speak({"b-1.silent.example": "127.0.0.1"})
        code, said, _ = await checked
    assert code == 1
    unknown = f"b-2.silent.example:{first + 1} can't be bound: unknown host: Name or service not known"
    assert said[-1] == f"broker 2: {unknown}; see --broker-ports"
    assert not any("broker 1:" in line for line in said)


def test_check_fails_when_no_bootstrap_answers(capsys: pytest.CaptureFixture[str]) -> None:
    listen = f"127.0.0.1:{free_ports()}"
    assert _check(capsys, "--bootstrap", "127.0.0.1:1", "--listen", listen, "--admin", "off") == (
        1,
        [_unusable("127.0.0.1:1: Connection refused"), _bound("--listen", listen)],
        NO_BOOTSTRAP,
    )


def test_check_says_what_it_did_in_transparent_mode(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "gate.toml"
    file.write_text('idle_timeout = "5m"\n')
    monkeypatch.setenv("FETCHGATE_TRANSPARENT", "redirect")
    listen = f"127.0.0.1:{free_ports(2)}"
    arguments = ["--listen", listen, "--admin", "off", "--config", str(file), "--check"]
    assert main(["proxy", *arguments]) == 0
    first, *said = capsys.readouterr().out.splitlines()
    assert first.startswith(f"The options can be used: 2 from flags, 1 from the environment, 1 from {file}, ")
    assert said == [
        _bound("--listen", listen),
        (
            "Transparent mode (redirect): no broker was asked, since each client is connected to its "
            "original destination. The rules of netfilter were not checked: transparent.sh show prints "
            "them."
        ),
        WELL,
    ]
