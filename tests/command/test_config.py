import os
import re
from dataclasses import fields
from pathlib import Path

import pytest

from proxy.addresses import Address, BrokerPorts, PortRange
from proxy.command.config import OPTIONS, TOP_OPTIONS, Config, changes, load, misspelt_variables, with_live
from proxy.features.declared import FEATURES
from proxy.text.options import ConfigError, OptionsFile
from tests.command.loading import NEEDED, error_of


def test_the_defaults_are_those_of_the_design() -> None:
    config = load(NEEDED, {}, None)

    assert config == Config(
        bootstrap=(Address("kafka", 9092),),
        transparent="off",
        listen=Address("127.0.0.1", 19092),
        reuse_port=False,
        advertise="",
        broker_ports=BrokerPorts(),
        listen_ports=None,
        tls_cert=None,
        tls_key=None,
        tls_cert_of={},
        client_ca=None,
        broker_tls=False,
        broker_tls_ca=None,
        broker_tls_server_name="",
        broker_tls_cert=None,
        broker_tls_key=None,
        admin=Address("127.0.0.1", 9464),
        admin_names=(),
        admin_token_file=None,
        admin_cert=None,
        admin_key=None,
        metrics=None,
        sessions=True,
        sessions_off_for=frozenset(),
        keep_order=False,
        max_sessions=500,
        max_connections=5000,
        idle_timeout=600.0,
        handshake_timeout=60.0,
        max_inflight_bytes=268_435_456,
        max_request_bytes=104_857_600,
        drain_timeout=30.0,
        state=None,
        capture=None,
        capture_records=True,
        capture_file_bytes=67_108_864,
        capture_files=16,
        log_format="console",
        log_level="info",
        sections=config.sections,
    )


def test_the_table_and_the_fields_agree() -> None:
    own = [option.name for option in Config.declared()]
    of_features = [option.name for each in FEATURES for option in each.options.declared()]
    assert own == [field.name for field in fields(Config)][:-2]
    assert sorted(option.name for option in OPTIONS) == sorted([*own, *of_features])


def test_a_flag_counts_before_the_environment_and_that_before_the_file(tmp_path: Path) -> None:
    file = tmp_path / "gate.toml"
    file.write_text('bootstrap = ["a:1", "b:2"]\nmax_sessions = 3\nlog_level = "debug"\nsessions = false\n')
    environ = {"FETCHGATE_MAX_SESSIONS": "4", "FETCHGATE_LOG_LEVEL": "error"}

    config = load({"log_level": "warning"}, environ, str(file))

    assert config.bootstrap == (Address("a", 1), Address("b", 2))
    assert config.max_sessions == 4
    assert config.log_level == "warning"
    assert config.sessions is False


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tls_key": "k"}, "--tls-key has no effect alone: give --tls-cert FILE as well"),
        ({"client_ca": "ca"}, "--client-ca has no effect alone: give --tls-cert FILE as well"),
        ({"tls_cert_of": "1=c"}, "--tls-cert-of has no effect alone: give --tls-cert FILE as well"),
        ({"broker_tls_ca": "ca"}, "--broker-tls-ca has no effect alone: give --broker-tls on as well"),
        (
            {"broker_tls_server_name": "kafka"},
            "--broker-tls-server-name has no effect alone: give --broker-tls on as well",
        ),
        ({"broker_tls_cert": "c"}, "--broker-tls-cert has no effect alone: give --broker-tls on as well"),
        (
            {"admin": "off", "admin_token_file": "t"},
            "--admin-token-file has no effect alone: give --admin HOST:PORT as well",
        ),
        (
            {"admin": "off", "admin_cert": "c"},
            "--admin-cert has no effect alone: give --admin HOST:PORT as well",
        ),
        ({"admin_key": "k"}, "--admin-key has no effect alone: give --admin-cert FILE as well"),
        (
            {"broker_tls": "on", "broker_tls_key": "k"},
            "--broker-tls-key has no effect alone: give --broker-tls-cert FILE as well",
        ),
    ],
)
def test_options_of_tls_that_need_another_name_it(options: dict[str, str], message: str) -> None:
    assert error_of(NEEDED | options) == message


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("kafka.pem", "'kafka.pem' is not the id of a broker and a file; write ID=FILE, as in 1=kafka-1.pem"),
        ("1=", "'1=' is not the id of a broker and a file; write ID=FILE, as in 1=kafka-1.pem"),
        ("-1=c", "'-1=c' is not the id of a broker and a file; write ID=FILE, as in 1=kafka-1.pem"),
        ("2147483648=a", "'2147483648=a': the id of a broker is at most 2147483647"),
        (
            "9" * 5_000 + "=a",
            f"'{'9' * 299} ... {'9' * 255}=a': the id of a broker is at most 2147483647",
        ),
        ("1=a,01=b", "'01=b': broker 1 has a file already"),
    ],
)
def test_certificates_of_brokers_that_can_not_be_read_are_named(text: str, said: str) -> None:
    assert error_of(NEEDED | {"tls_cert": "c", "tls_cert_of": text}) == f"--tls-cert-of: {said}"


def test_certificates_of_brokers_are_read() -> None:
    options = NEEDED | {"tls_cert": "c", "tls_cert_of": "1=/a/one.pem, 20 = two.pem"}
    assert load(options, {}, None).tls_cert_of == {1: Path("/a/one.pem"), 20: Path("two.pem")}


def test_lists_are_read_from_text_and_from_toml(tmp_path: Path) -> None:
    file = tmp_path / "gate.toml"
    file.write_text('sessions_off_for = ["a", "b"]\n')

    assert load(NEEDED, {}, str(file)).sessions_off_for == {"a", "b"}
    assert load(NEEDED | {"sessions_off_for": "c, d,"}, {}, str(file)).sessions_off_for == {"c", "d"}


def test_an_endpoint_can_be_off() -> None:
    assert load(NEEDED | {"admin": "off"}, {}, None).admin is None


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("bootstrap", "", "--bootstrap: it is empty; name at least one broker, as in kafka:9092"),
        ("bootstrap", "kafka", "--bootstrap: 'kafka' has no port; write HOST:PORT"),
        ("listen", "1:2:3", "--listen: '1:2:3' has two ports; write HOST:PORT"),
        ("listen", "localhost", "--listen: 'localhost' has no port; write HOST:PORT"),
        ("listen", ":", "--listen: ':' has no port; write HOST:PORT"),
        ("listen", ":70000", "--listen: '70000' is not a port; ports are 0 to 65535"),
        ("bootstrap", ":9092", "--bootstrap: ':9092' has no host; write HOST:PORT"),
        ("bootstrap", "9092", "--bootstrap: '9092' has no host; write HOST:PORT"),
        ("sessions", "maybe", "--sessions: 'maybe' is not one of on, off"),
        ("max_sessions", "-1", "--max-sessions: '-1' must be an integer from 0 to 2147483647"),
        ("max_connections", "0", "--max-connections: '0' must be an integer from 1 to 2147483647"),
        ("max_inflight_bytes", "0", "--max-inflight-bytes: '0' must be at least 1 byte"),
        (
            "drain_timeout",
            "soon",
            "--drain-timeout: 'soon' is not a time; give seconds, or a unit as in 500ms, 30s, 5m or 1h",
        ),
        ("log_format", "xml", "--log-format: 'xml' is not one of console, json"),
        (
            "advertise",
            "gate:9092",
            (
                "--advertise: 'gate:9092' is not a host; give a host name or IP without a port; "
                "--broker-ports sets the ports"
            ),
        ),
    ],
)
def test_a_value_that_cant_be_used_names_its_flag(name: str, text: str, message: str) -> None:
    assert error_of(NEEDED | {name: text}) == message


_DIGITS = "9" * 5000
"""More digits than Python's `int` and `str` accept."""


@pytest.mark.parametrize(
    "text",
    [
        _DIGITS,
        "0" * 5000 + "x",
        f"a={_DIGITS}",
        f"{_DIGITS}=a",
        f"{_DIGITS}s",
        f"1.{_DIGITS}m",
        f"kafka:{_DIGITS}",
        f'{{"a": [{_DIGITS}]}}',
        "[" * 5000,
    ],
    ids=range(9),
)
def test_a_value_of_thousands_of_characters_is_refused_in_a_line_of_hundreds(text: str) -> None:
    refused = {}
    for name in {each.name for each in OPTIONS}:
        try:
            load(NEEDED | {name: text}, {}, None)
        except ConfigError as error:
            refused[name] = str(error)
    assert {"max_sessions", "max_inflight_bytes", "listen"} <= refused.keys()
    for name, told in refused.items():
        assert told.startswith(f"--{name.replace('_', '-')}"), told
        assert len(told) < 1000
        assert "sys.set_int_max_str_digits" not in told, "advice of Python's own"


def test_a_value_from_elsewhere_names_where_it_stands(tmp_path: Path) -> None:
    file = tmp_path / "gate.toml"
    file.write_text('max_sessions = "many"\n')

    assert error_of(NEEDED, {"FETCHGATE_SESSIONS": "2"}) == "FETCHGATE_SESSIONS: '2' is not one of on, off"
    assert error_of(NEEDED, {}, str(file)) == (
        f"max_sessions in {file}: 'many' must be an integer from 0 to 2147483647"
    )


SIZES_AND_TIMES = {
    "max_inflight_bytes": ("128MiB", 134_217_728),
    "max_request_bytes": ("50MB", 50_000_000),
    "capture_file_bytes": ("1g", 1_073_741_824),
    "idle_timeout": ("5m", 300.0),
    "handshake_timeout": ("500ms", 0.5),
    "drain_timeout": ("1h", 3600.0),
}


def test_every_size_and_time_may_have_a_unit_wherever_it_is_given(tmp_path: Path) -> None:
    texts = {name: text for name, (text, _) in SIZES_AND_TIMES.items()}
    file = tmp_path / "gate.toml"
    file.write_text("".join(f"{name} = {text!r}\n" for name, text in texts.items()))
    variables = {f"FETCHGATE_{name.upper()}": text for name, text in texts.items()}

    configs = [
        load(NEEDED | texts, {}, None),
        load(NEEDED, variables, None),
        load(NEEDED, {}, str(file)),
    ]

    for name, (_, value) in SIZES_AND_TIMES.items():
        assert [config.value(name) for config in configs] == [value] * 3
    with_units = {
        option.name
        for option in Config.declared()
        if {"SIZE", "TIME"} & set(re.findall("[A-Z]+", option.metavar))
    }
    assert with_units == SIZES_AND_TIMES.keys()


SWITCHED_OFF = {
    "transparent": "off",
    "reuse_port": False,
    "broker_tls": False,
    "admin": None,
    "metrics": None,
    "sessions": False,
    "keep_order": False,
    "capture_records": False,
}


@pytest.mark.parametrize("text", ["off", "false", "no", "0", "False"])
def test_whatever_can_be_off_takes_every_word_for_it(tmp_path: Path, text: str) -> None:
    file = tmp_path / "gate.toml"
    file.write_text("".join(f"{name} = false\n" for name in SWITCHED_OFF))
    variables = {f"FETCHGATE_{name.upper()}": text for name in SWITCHED_OFF}
    for config in (
        load(NEEDED | dict.fromkeys(SWITCHED_OFF, text), {}, None),
        load(NEEDED, variables, None),
        load(NEEDED, {}, str(file)),
    ):
        assert {name: config.value(name) for name in SWITCHED_OFF} == SWITCHED_OFF
    can_be_off = {
        option.name for option in Config.declared() if {"off", "no"} & set(option.metavar.split("|"))
    }
    assert can_be_off == SWITCHED_OFF.keys()


@pytest.mark.parametrize("text", ["on", "true", "yes", "1"])
def test_a_switch_takes_every_word_for_on(text: str) -> None:
    names = ("reuse_port", "broker_tls", "sessions", "keep_order", "capture_records")
    config = load(NEEDED | dict.fromkeys(names, text), {}, None)
    assert all(getattr(config, name) is True for name in names)


@pytest.mark.parametrize("text", [":9000", "9000", " 9000 "])
def test_an_address_to_listen_at_without_a_host_is_at_loopback(text: str) -> None:
    config = load(NEEDED | {"listen": text, "admin": ":9001"}, {}, None)
    assert config.listen == Address("127.0.0.1", 9000)
    assert config.admin == Address("127.0.0.1", 9001)
    (top,) = (option for option in TOP_OPTIONS if option.name == "admin")
    assert top.parse(text) == ((Address("127.0.0.1", 9000), False),)
    assert top.parse("https://gate.example:9464/") == ((Address("gate.example", 9464), True),)
    assert top.parse("a:1, @gates,-") == ((Address("a", 1), False), "@gates", "-")


def test_a_port_of_toml_is_an_address_to_listen_at(tmp_path: Path) -> None:
    file = tmp_path / "gate.toml"
    file.write_text('listen = 9000\nadmin = "127.0.0.1:0"\n')
    config = load(NEEDED, {}, str(file))
    assert (config.listen, config.admin) == (Address("127.0.0.1", 9000), Address("127.0.0.1", 0))


def test_without_a_bootstrap_it_says_the_three_ways_to_give_one() -> None:
    assert error_of({}) == (
        "--bootstrap is missing: give --bootstrap HOST:PORT[,...], FETCHGATE_BOOTSTRAP, "
        "or the key bootstrap in the file of --config"
    )


def test_two_listeners_at_one_address_are_seen_at_once() -> None:
    assert error_of(NEEDED | {"admin": "127.0.0.1:19092"}) == (
        "--admin and --listen are both 127.0.0.1:19092; give one of them another port"
    )
    assert error_of(NEEDED | {"metrics": ":9464"}) == (
        "--metrics and --admin are both 127.0.0.1:9464; give one of them another port"
    )
    assert load(NEEDED | {"admin": ":0", "metrics": ":0"}, {}, None).metrics == Address("127.0.0.1", 0)


def test_ports_by_order_leave_no_room_for_ports_by_id() -> None:
    both = (
        "--listen-ports and --broker-ports both say where all brokers are; with --listen-ports, "
        "--broker-ports may only have single brokers, as in 3=29103"
    )
    ports = NEEDED | {"listen_ports": "19093-19192"}
    assert error_of(ports | {"broker_ports": "29100"}) == both
    assert error_of(ports | {"broker_ports": "b-{id}.gate:9092"}) == both
    assert error_of(ports | {"reuse_port": "on"}) == (
        "--listen-ports can't be used with --reuse-port: the other gateway may give a broker another port"
    )
    for name in ("admin", "metrics"):
        assert error_of(ports | {name: ":19100"}) == (
            f"--listen-ports has the port of --{name}, 19100; give --{name} another"
        )
    config = load(ports | {"broker_ports": "3=29103"}, {}, None)
    assert config.listen_ports == PortRange(19093, 19192)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("listen = \n", "--config {file} is not TOML: Invalid value (at line 1, column 10)"),
        ("max-sesions = 1\n", "max-sesions in {file}: no such option; did you mean max_sessions?"),
        ("zzz = 1\n", "zzz in {file}: no such option"),
        (
            "[proxy]\n",
            "[proxy] in {file}: tables are not allowed; write options without [proxy]",
        ),
        ("listen = { a = 1 }\n", "listen in {file}: give a string, a number, or a list of them"),
        ("bootstrap = [[1]]\n", "bootstrap in {file}: give a string, a number, or a list of them"),
        (f"max_sessions = {_DIGITS}\n", "--config {file}: a number has thousands of digits"),
        (f"max_sessions = 0x{_DIGITS}\n", "--config {file}: a number has thousands of digits"),
        ("a = " + "[" * 5000, "--config {file}: its lists or tables are nested too deeply"),
        ('"a\\u001b\\n" = 1\n', "a\\x1b\\n in {file}: no such option"),
        (f"{'a' * 5000} = 1\n", f"{'a' * 300} ... {'a' * 300} in {{file}}: no such option"),
        ("#" * (128 << 10) + "\n", "--config {file}: it is longer than 128 KiB"),
        (
            f"\nbootstrap = '{'a.' * 501}'\n",
            "--config {file}: line 2 has more than 500 dots; write a long list in several lines",
        ),
        (f"[{'a.' * 500}a]\n", "[a] in {file}: tables are not allowed; write options without [a]"),
    ],
    ids=range(14),
)
def test_a_file_that_cant_be_used_says_where(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "gate.toml"
    file.write_text(text)

    assert error_of(NEEDED, {}, str(file)) == message.format(file=file)


def test_an_option_that_was_removed_is_an_error_that_names_what_to_use(tmp_path: Path) -> None:
    (file := tmp_path / "gate.toml").write_text("workers = 2\n")
    told = "was removed: leave it out, or run several gateways at one port"

    assert error_of(NEEDED, {}, str(file)).startswith(f"workers in {file} {told}")
    assert error_of(NEEDED, {"FETCHGATE_WORKERS": ""}).startswith(f"FETCHGATE_WORKERS {told}")


def test_a_file_that_cant_be_read_says_why(tmp_path: Path) -> None:
    assert error_of(NEEDED, {}, str(tmp_path / "no.toml")) == (
        f"--config {tmp_path / 'no.toml'}: No such file or directory"
    )
    (tmp_path / "latin.toml").write_bytes(b'listen = "\xe9"')
    assert error_of(NEEDED, {}, str(tmp_path / "latin.toml")).startswith(
        f"--config {tmp_path / 'latin.toml'} is not TOML: 'utf-8' codec can't decode"
    )


@pytest.mark.parametrize("name", ["advertise", "admin_names"])
def test_a_name_that_is_not_utf8_is_refused(name: str) -> None:
    """Python reads other bytes of flags and of the environment as characters that can't be encoded."""
    written = "k\udce4fka=5"
    variables = {f"FETCHGATE_{name.upper()}": written}

    assert error_of(NEEDED, variables) == f"FETCHGATE_{name.upper()}: k\\udce4fka=5 is not UTF-8"
    assert str(load(NEEDED, {"FETCHGATE_STATE": written}, None).state) == written, "a file may have any name"


def test_a_file_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    """Editors on Windows write one, and a ConfigMap made from their file has it."""
    (file := tmp_path / "fetchgate.toml").write_text("sessions = false\n", encoding="utf-8-sig")

    assert load(NEEDED, {}, str(file)).sessions is False


def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(pipe := tmp_path / "fetchgate.toml")

    assert error_of(NEEDED, {}, str(pipe)) == (
        f"--config {pipe}: it is a pipe, which can't be read again; give a file"
    )


def test_a_folder_may_have_the_file_and_a_file_that_is_named_must_be_there(tmp_path: Path) -> None:
    file = tmp_path / "fetchgate.toml"
    for name in (str(tmp_path), f"{tmp_path}/"):
        named = OptionsFile.of(None, {"FETCHGATE_CONFIG": name})
        assert (named.is_optional, named.path()) == (True, None)
        file.write_text("")
        assert named.path() == str(file)
        file.unlink()
    assert OptionsFile.of("", {}).path() is None
    absent = OptionsFile.of(str(file), {"FETCHGATE_CONFIG": str(tmp_path)})
    assert (absent.is_optional, absent.path()) == (False, str(file))
    file.symlink_to(file)
    with pytest.raises(ConfigError, match=r"fetchgate\.toml: Too many levels of symbolic links"):
        load(NEEDED, {}, named.path())


def test_variables_that_are_almost_an_option_are_reported_and_others_left_alone() -> None:
    assert misspelt_variables(
        {
            "FETCHGATE_MAX_SESIONS": "5",
            "FETCHGATE_ADMN": "off",
            "FETCHGATE_CONFG": "gate.toml",
            "FETCHGATE_MAX_SESSIONS": "5",
            "FETCHGATE_INTERVAL": "5",
            "FETCHGATE_CONFIG": "gate.toml",
            "FETCHGATE_PORT": "tcp://10.0.0.1:9464",
            "FETCHGATE_PORT_9464_TCP": "tcp://10.0.0.1:9464",
            "FETCHGATE_PORT_9464_TCP_ADDR": "10.0.0.1",
            "FETCHGATE_SERVICE_HOST": "10.0.0.1",
            "FETCHGATE_SERVICE_PORT_ADMIN": "9464",
            "MAX_SESIONS": "5",
        }
    ) == [
        "FETCHGATE_ADMN is not an option and is ignored; did you mean FETCHGATE_ADMIN?",
        "FETCHGATE_CONFG is not an option and is ignored; did you mean FETCHGATE_CONFIG?",
        "FETCHGATE_MAX_SESIONS is not an option and is ignored; did you mean FETCHGATE_MAX_SESSIONS?",
    ]


def test_a_reload_knows_what_applies_and_what_needs_a_restart() -> None:
    before = load(NEEDED, {}, None)
    after = load(
        NEEDED | {"sessions": "off", "max_sessions": "3", "log_level": "debug", "listen": "x:1"}, {}, None
    )

    assert changes(before, after) == (["sessions", "max_sessions", "log_level"], ["listen"])
    assert changes(before, before) == ([], [])
    counts = with_live(before, after)
    assert changes(before, counts) == (["sessions", "max_sessions", "log_level"], [])
    assert changes(counts, after) == ([], ["listen"])
    assert counts.given["sessions"] == after.given["sessions"]
    assert counts.given["listen"] == before.given["listen"]


def test_it_is_known_where_each_option_came_from(tmp_path: Path) -> None:
    file = tmp_path / "gate.toml"
    file.write_text('bootstrap = "a:1"\nmax_sessions = 3\nsessions = false\n')
    environ = {"FETCHGATE_MAX_SESSIONS": "4", "FETCHGATE_LOG_LEVEL": "error"}

    given = load({"log_level": "warning"}, environ, str(file)).given

    assert list(given) == [option.name for option in OPTIONS]
    named = {name: (given[name].text, given[name].source, given[name].place) for name in given}
    assert named["bootstrap"] == ("a:1", "file", str(file))
    assert named["sessions"] == ("off", "file", str(file))
    assert named["max_sessions"] == ("4", "environment", "FETCHGATE_MAX_SESSIONS")
    assert named["log_level"] == ("warning", "flag", "--log-level")
    assert named["max_connections"] == ("5000", "default", "--max-connections")
