"""The command line of replay: for a wrong option, it prints one line that says where the option was set."""

import dataclasses
import gzip
import json
import os
import sys
import tempfile
import types
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import replay
from proxy.text.options import ConfigError
from replay import cli
from replay.capture.files.sources import Source
from replay.inspect.options import InspectOptions
from replay.measure import command, here
from replay.measure.collected import collect
from replay.measure.options import MOST, MeasureOptions
from replay.measure.report import About, report
from replay.measure.rows import RowFilter
from replay.measure.work import Work
from replay.report.model import Filters, Report
from tests.replay.measure.shown import shown, shown_as_json
from tests.replay.report import sample
from tests.replay.tables import CAPTURES, NO_FILTERS, rows_of, single, table

CAPTURE = str(CAPTURES / "java-100p.pcap")


def parsed(argv: Sequence[str], **environment: str) -> MeasureOptions:
    options = cli.read("measure", argv, environment)
    assert isinstance(options, MeasureOptions)
    return options


def error_of(argv: Sequence[str], **environment: str) -> str:
    with pytest.raises(ConfigError) as raised:
        parsed(argv, **environment)
    return str(raised.value)


def make_table(folder: Path) -> None:
    """Make a folder that counts as a table, from the names in it."""
    (rows := folder / "day=2026-11-23" / "broker=kafka").mkdir(parents=True)
    (rows / "part.parquet").touch()


def test_the_directory_of_a_gateway_s_options_is_not_read(tmp_path: Path) -> None:
    """FETCHGATE_CONFIG names it in the container of an injected gateway."""
    (tmp_path / "fetchgate.toml").write_text("wrong")
    assert parsed(["x.pcap"], FETCHGATE_CONFIG=str(tmp_path)) == parsed(["x.pcap"], FETCHGATE_CONFIG="")
    assert error_of(["x.pcap", "--config", str(tmp_path)]) == f"--config {tmp_path}: Is a directory"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("top = " + "9" * 5000, "--config {file}: a number has thousands of digits"),
        ("port = 0x" + "f" * 5000, "--config {file}: a number has thousands of digits"),
        ("top = " + "[" * 5000, "--config {file}: its lists or tables are nested too deeply"),
        ("top", "--config {file} is not TOML: Expected '='"),
    ],
    ids=range(4),
)
def test_a_file_that_cant_be_read_is_told_in_a_line(text: str, told: str, tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text(text)
    assert error_of(["x.pcap", "--config", str(file)]).startswith(told.format(file=file))


def test_a_file_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    (file := tmp_path / "c.toml").write_text('policy = "always"\n', encoding="utf-8-sig")
    assert parsed(["x.pcap", "--config", str(file)]).policy == "always"


def test_a_flag_counts_before_the_environment_and_that_before_the_file(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text(
        'policy = "always"\nclient = ["a", "b"]\nmaster = "file"\njson = true\n'
        'price_per_gb = 2\ncurrency = "USD"\n'
    )
    found = parsed(
        ["x.pcap", "--client", "c"],
        FETCHGATE_CONFIG=str(file),
        FETCHGATE_MASTER="env",
        FETCHGATE_TOPIC="t, u",
        FETCHGATE_ANONYMIZE="no",
        FETCHGATE_MAX_FETCH_BYTES="10m",
    )

    assert found.client == ("c",)
    assert (found.policy, found.master, found.json) == ("always", "env", "-")
    assert (found.price_per_gb, found.topic, found.anonymize) == (2.0, ("t", "u"), False)
    assert found.max_fetch_bytes == 10_485_760


@pytest.mark.parametrize("command", ["inspect", "measure", "drive"])
def test_a_key_that_no_command_has_is_told(command: str, tmp_path: Path) -> None:
    """A file may have options of the gateway and of all commands. A misspelt one has no effect."""
    (file := tmp_path / "c.toml").write_text('sessions = "off"\ntarget = "k:1"\npolcy = "always"\n')
    with pytest.raises(ConfigError, match=f"^polcy in {file}: no such option; did you mean policy\\?$"):
        cli.read(command, ["x.pcap", "--config", str(file)], {})
    file.write_text('sessions = "off"\nport = [9092]\nclient = "a,b"\ntarget = "k:1"\npolicy = "always"\n')
    found = dataclasses.asdict(cli.read(command, ["x.pcap", "--config", str(file)], {}))
    assert (found["port"], found.get("client", ("a", "b"))) == ((9092,), ("a", "b"))


def test_a_value_of_a_list_may_have_commas(tmp_path: Path) -> None:
    (file := tmp_path / "c.toml").write_text('conf = ["spark.a=b,c"]\nclient = ["a,b", "c"]\n')
    found = parsed(["x.pcap", "--config", str(file), "--topic", "t,u"])
    assert (found.conf, found.client, found.topic) == ((("spark.a", "b,c"),), ("a,b", "c"), ("t,u",))


def test_a_key_may_have_any_bytes_and_names_may_not() -> None:
    assert parsed(["x.pcap", "--anonymize-key", "\udcff"]).anonymize_key == b"\xff"
    assert error_of(["x.pcap", "--client", "\udcff"]) == r"--client: \udcff is not UTF-8"


def test_a_file_may_be_a_pipe(tmp_path: Path) -> None:
    """As of a shell: ``--config <(...)``."""
    os.mkfifo(pipe := tmp_path / "pipe")
    with ThreadPoolExecutor(1) as threads:
        threads.submit(pipe.write_text, 'policy = "always"\n')
        assert parsed(["x.pcap", "--config", str(pipe)]).policy == "always"


def test_a_switch_that_is_neither_on_nor_off_is_named() -> None:
    told = "FETCHGATE_JSON: 'maybe' is not one of on, off, or a name that ends in .json"
    assert error_of(["x.pcap"], FETCHGATE_JSON="maybe") == told
    assert error_of(["x.pcap"], FETCHGATE_IN_PROCESS="2") == "FETCHGATE_IN_PROCESS: '2' is not one of on, off"


def assert_one_line(argv: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Check that a command ends with code 2 and one line on stderr, with this text in it."""
    try:
        code = cli.main(argv)
    except SystemExit as left:
        code = int(str(left.code))
    err = capsys.readouterr().err

    assert code == 2
    assert err.count("\n") == 1
    assert told in err


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--port", "70000"], "--port: '70000' must be an integer from 1 to 65535"),
        (["--max-fetch-bytes", "10x"], "--max-fetch-bytes: '10x' is not a size; give bytes"),
        (["--max-fetch-bytes", "0"], "--max-fetch-bytes: '0' must be at least 1 byte"),
        (["--fetch-min-bytes", "0"], "--fetch-min-bytes: '0' must be at least 1 byte"),
        (["--fetch-min-bytes", "2GiB"], "--fetch-min-bytes: '2GiB' is too large: min_bytes"),
        (["--fetch-max-wait", "soon"], "--fetch-max-wait: 'soon' is not a time"),
        (["--fetch-max-wait", "0"], "--fetch-max-wait: '0' must be above 0, and at most 5 s"),
        (
            ["--fetch-max-wait", "500"],
            "--fetch-max-wait: '500' must be above 0, and at most 5 s; a number without a unit is in seconds",
        ),
        (["--host", "kafka"], "--host: kafka is not an address"),
        (["--price-per-gb", "nan"], "--price-per-gb: nan is not a price"),
        (
            ["--price-per-gb", "1e308"],
            "--price-per-gb: 1e308 is not a price such as 0.02 (0, or 1e-12 to 1e15)",
        ),
        (["--price-per-gb", "1e-300"], "--price-per-gb: 1e-300 is not a price"),
        (["--price-per-gb", ""], "--price-per-gb: an empty text is not a price"),
        (["--price-per-gb", "1\n2"], "--price-per-gb: 1\\n2 is not a price"),
        (["--currency", " "], "--currency: an empty text is not a currency"),
        (["--currency", "\u202eUSD"], "--currency: \\u202eUSD is not a currency"),
        (["--broker-rack", "1"], "--broker-rack: 1 is not ID=NAME, such as 1=us-east-1a;"),
        (
            ["--currency", "USD"],
            "--currency needs a price: --price-per-gb, --zone-price-per-gb or --sidecar-cost",
        ),
        (["--sidecar-cost", "-3"], "--sidecar-cost: -3 is not a price such as 0.02 (0, or"),
        (["--sidecar-cost", "cheap"], "--sidecar-cost: cheap is not a price such as 0.02"),
        (["--sidecar-cost", "3"], "--sidecar-cost needs --price-per-gb X: the price of"),
        (
            ["--sidecar-cost", "3", "--price-per-gb", "0.02"],
            "--sidecar-cost needs --currency NAME, such as USD: the currency of all prices",
        ),
        (["--price-per-gb", "0.02"], "--price-per-gb needs --currency NAME, such as USD: the currency of"),
        (["--zone-price-per-gb", "0.01"], "--zone-price-per-gb needs --currency NAME, such as USD"),
        (["--json=/no/such/r.json"], "--json /no/such/r.json: "),
        (
            ["--zone-price-per-gb", "1", "--currency", "1 EUR"],
            "--currency: 1 EUR is not a currency such as USD",
        ),
        (["--zone-price-per-gb", "-1"], "--zone-price-per-gb: -1 is not a price such as"),
        (["--broker-rack", "kafka-1=a"], "--broker-rack: kafka-1=a is not ID=NAME"),
        (["--client-rack", "10.0.0.0/33=a"], "10.0.0.0/33=a is not CIDR=NAME, such as"),
        (["--client-rack", "10.0.0.0/8="], "--client-rack: 10.0.0.0/8= is not CIDR=NAME"),
        (
            ["--client-rack", "10.0.0.0/8=\udcff"],
            r"--client-rack: 10.0.0.0/8=\udcff is not UTF-8",
        ),
        (["--broker-rack", "1=\udcff"], r"1=\udcff is not UTF-8"),
        (["--conf", "spark.ui.enabled"], "--conf: spark.ui.enabled is not KEY=VALUE"),
        (["--keylog", "none.log"], "--keylog none.log: No such file or directory"),
        (["--keylog", str(CAPTURES)], "captures: it is a directory; name a file"),
        (["--keylog", __file__], "test_command.py: no secrets in it; a key log has"),
        (["--conf", "x=y"], "--conf: x=y is not KEY=VALUE, such as spark."),
        (["--html", "/nowhere/at/all.html"], "--html /nowhere/at/all.html: there is no"),
        (["--html", str(CAPTURES)], "it is a directory; name a file"),
        (["--parquet", str(CAPTURES)], "the directory is not empty"),
        (["--parquet", CAPTURE], "it is a file; name a directory"),
        (["--parquet", "x", "--anonymize"], "--parquet writes the names"),
        (["--cooperative", "1"], "--cooperative: 1 is not a number of members (2 to 64)"),
        (["--cooperative", "9" * 5000], "9 is not a number of members (2 to 64)"),
        (["--port", "9" * 5000], "9' must be an integer from 1 to 65535"),
        (["--port", "\u0663"], "--port: '\u0663' must be an integer from 1 to 65535"),
        (["--broker-rack", "9" * 5000 + "=a"], "9=a is not ID=NAME, such as"),
        (["--cooperative", "65"], "--cooperative: 65 is not a number of members"),
        (["--cooperative", "billing"], "--cooperative: billing is not a number"),
        (["--anonymize-key", "x" * 65], "--anonymize-key: a key has 1 to 64 bytes"),
        (["--anonymize-key", ""], "--anonymize-key: a key has 1 to 64 bytes"),
        (["--config", "/nowhere.toml"], "--config /nowhere.toml: No such file"),
        (["--polic=always"], "arguments: --polic=always; did you mean --policy? See fetch"),
        (["--price", "0.02"], "--price 0.02; did you mean --price-per-gb? See"),
        (["--sidecar=3"], "--sidecar=3; did you mean --sidecar-cost? See"),
        (["--nonsense", "1"], "arguments: --nonsense 1; see fetchgate replay measure"),
    ],
)
def test_a_mistake_is_one_line(options: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert_one_line(["measure", CAPTURE, *options], told, capsys)


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (["measure"], "the following arguments are required: FILE|GLOB|DIR|-"),
        (["measure", "none.pcap"], "none.pcap: no such file"),
        (["inspect", CAPTURE, "--jsn"], "--jsn; did you mean --json? See fetchgate replay inspect --help"),
        (["drive", CAPTURE, "--targt", "a:1", "--target", "b:2"], "--targt a:1; did you mean --target? See"),
        (["mesure"], "did you mean measure? See fetchgate replay --help"),
        (["nonsense"], "invalid choice: 'nonsense'"),
        ([], "the following arguments are required: COMMAND"),
    ],
)
def test_a_mistake_of_any_command_is_one_line(
    argv: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert_one_line(argv, told, capsys)


@pytest.mark.parametrize("option", ["--csv", "--html", "--parquet", "--keylog"])
def test_a_path_that_the_system_refuses_is_told_with_its_option(
    option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    long = "x" * 300

    assert_one_line(["measure", CAPTURE, option, long], f"{option} {long}: File name too", capsys)


def test_a_table_with_a_name_that_is_not_utf_8_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    name = os.fsdecode(b"table\xff")

    assert_one_line(
        ["measure", CAPTURE, "--parquet", name], "the name is not UTF-8; name another directory", capsys
    )


def test_a_report_that_may_not_be_written_fails_before_spark_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may write anywhere
    assert cli.main(["measure", CAPTURE, "--csv", str(tmp_path / "x.csv")]) == 2
    assert "x.csv: no permission to write there; name another file" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--csv", "--html"])
@pytest.mark.parametrize(
    "content",
    [Path(CAPTURE).read_bytes(), gzip.compress(b"any"), b"\x28\xb5\x2f\xfd"],
    ids=["pcap", "gzip", "zstandard"],  # gzip has the time in it, and each process of a run has its own
)
def test_no_capture_is_overwritten_by_a_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], option: str, content: bytes
) -> None:
    """A report does not overwrite a capture.

    In `--html *.pcap`, the shell makes the first capture the value of the option.
    """
    first = tmp_path / "a.pcap"
    first.write_bytes(content)
    assert cli.main(["measure", option, str(first), CAPTURE]) == 2
    assert "it is a capture, and would be overwritten; name a new file" in capsys.readouterr().err
    assert first.read_bytes() == content


def test_inputs_of_which_none_can_be_read_fail_before_spark_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    (tmp_path / "a.pcap").touch()
    (tmp_path / "b.pcap").write_bytes(b"\x1b[2J, that is no capture")

    assert cli.main(["measure", f"{tmp_path}/a.pcap", f"{tmp_path}/b.pcap"]) == 3
    assert capsys.readouterr().err == (
        f"fetchgate replay measure: {tmp_path}/a.pcap: the file is empty; "
        f"{tmp_path}/b.pcap: neither pcap nor pcapng\n"
    )


def test_a_key_makes_pseudonyms_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    assert parsed(["x.pcap"]).anonymize_key is None
    assert parsed(["x.pcap"], FETCHGATE_ANONYMIZE_KEY="secret").anonymize_key == b"secret"


def test_the_gateways_option_of_the_same_name_is_another() -> None:
    assert parsed(["x.pcap"], FETCHGATE_COOPERATIVE="billing").cooperative_members is None
    assert parsed(["x.pcap"], FETCHGATE_COOPERATIVE_MEMBERS="6").cooperative_members == 6


def test_a_table_has_no_keys(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_table(tmp_path)

    assert cli.main(["measure", str(tmp_path), "--cooperative", "4"]) == 2
    assert "is a table, which has no records; name the captures" in capsys.readouterr().err


def test_keys_need_the_packages_of_cooperative_consuming(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delitem(sys.modules, "replay.measure.keys", raising=False)
    for name in ("batches", "codecs"):
        monkeypatch.delitem(sys.modules, f"proxy.features.cooperative.{name}", raising=False)
    monkeypatch.setitem(sys.modules, "cramjam", None)

    assert cli.main(["measure", CAPTURE, "--cooperative", "4"]) == 2
    assert "pip install '.[cooperative]'" in capsys.readouterr().err
    assert cli.main(["measure", CAPTURE]) == 0


def test_a_table_is_measured_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_table(tmp_path)

    assert cli.main(["measure", str(tmp_path), CAPTURE]) == 2
    assert "must be the only input" in capsys.readouterr().err


def test_without_java_it_fails_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("JAVA_HOME", "/nowhere")

    assert cli.main(["measure", CAPTURE, "--master", "local[1]"]) == 1
    assert capsys.readouterr().err == (
        "Starting Spark ...\n"
        "fetchgate replay measure: JAVA_HOME is /nowhere, but /nowhere/bin/java does not run: "
        "correct it, or unset it\n"
    )


@pytest.mark.parametrize("pipx", [False, True])
def test_without_the_extra_it_is_said_how_to_get_it(
    *, pipx: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if pipx:
        monkeypatch.setattr(sys, "prefix", str(tmp_path))
        metadata = {"main_package": {"package_or_url": "/src/gateway[tls]"}}
        (tmp_path / "pipx_metadata.json").write_text(json.dumps(metadata))
    how = "pipx install --force '.[tls," if pipx else f"{sys.executable} -m pip install '.["
    for package in ("capture", "measure"):  # importing them anew would change these
        monkeypatch.setattr(replay, package, sys.modules[f"replay.{package}"])
    monkeypatch.delitem(sys.modules, "replay.measure.command")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    for name in [name for name in sys.modules if name.startswith("replay.capture")]:
        monkeypatch.delitem(sys.modules, name)

    assert cli.main(["measure", CAPTURE]) == 2
    assert capsys.readouterr().err == (
        f"fetchgate replay: pyarrow is not installed; in fetchgate's source folder: {how}measure]'\n"
    )


@pytest.fixture
def without_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take pyspark away, and let the captures of the tests be large ones."""
    for name in [name for name in sys.modules if name.startswith("replay.measure.spark.run")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pyspark", None)
    monkeypatch.setattr(Work, "size", MOST + 1)


SOURCES = f"in fetchgate's source folder: {sys.executable} -m pip install '.[replay]', and Java 17 or later"
NEEDS_SPARK = f"which is not installed; {SOURCES}"
OR_HERE = f"which is not installed; add --in-process (slower, one core), or install it {SOURCES}"


@pytest.mark.usefixtures("without_spark")
@pytest.mark.parametrize(
    ("options", "told"),
    [
        ([], f"captures of more than 256 MiB are measured on Spark, {OR_HERE}"),
        (["--master", "local[1]"], f"--master needs Spark, {NEEDS_SPARK}"),
        (["--conf", "spark.a=b"], f"--conf needs Spark, {NEEDS_SPARK}"),
        (["--parquet", "{folder}/new"], f"--parquet needs Spark, {NEEDS_SPARK}"),
    ],
)
def test_without_spark_one_line_says_why_it_is_needed_and_what_it_needs(
    options: list[str], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["measure", CAPTURE, *(option.format(folder=tmp_path) for option in options)]) == 2
    assert capsys.readouterr() == ("", f"fetchgate replay measure: {told}\n")


@pytest.mark.usefixtures("without_spark")
def test_a_table_can_not_be_measured_without_spark(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_table(tmp_path)
    assert cli.main(["measure", str(tmp_path)]) == 2
    told = capsys.readouterr().err
    assert told == f"fetchgate replay measure: a table is measured on Spark, {NEEDS_SPARK}\n"


@pytest.mark.usefixtures("without_spark")
def test_more_than_is_held_in_memory_needs_spark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "a.pcap.gz"
    file.write_bytes(gzip.compress(Path(CAPTURE).read_bytes()))
    monkeypatch.setattr(Work, "size", 1)
    monkeypatch.setattr(here, "_HELD", 1 << 10)
    assert cli.main(["measure", str(file)]) == 2
    told = "MiB of memory are measured on Spark, which is not installed; "
    assert told in capsys.readouterr().err


@pytest.mark.usefixtures("without_spark")
def test_in_process_large_captures_are_measured_without_spark(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["measure", CAPTURE, "--in-process", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["fetch"]["actual"]["requests"]


def test_in_process_captures_that_do_not_fit_into_memory_are_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "room", lambda: 1000)
    assert cli.main(["measure", CAPTURE, "--in-process"]) == 1
    assert capsys.readouterr().err == (
        "fetchgate replay measure: --in-process: more than 1.00 kB of segments would have to be in memory; "
        "measure fewer captures at a time, or measure on Spark (without --in-process)\n"
    )


@pytest.mark.parametrize(
    "options",
    [["--master", "local[1]"], ["--conf", "spark.a=b"], ["--parquet", "new"]],
    ids=lambda one: one[0],
)
def test_in_process_leaves_no_work_to_spark(options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["measure", CAPTURE, "--in-process", *options]) == 2
    assert f"--in-process measures without Spark, but {options[0]} needs Spark: " in capsys.readouterr().err


def test_in_process_measures_no_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_table(tmp_path)
    assert cli.main(["measure", str(tmp_path), "--in-process"]) == 2
    assert f"but the table {tmp_path} needs Spark: " in capsys.readouterr().err


def test_a_module_of_our_own_that_is_missing_is_no_users_mistake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(cli.COMMANDS, "measure", cli.Command(InspectOptions, "replay.no_such_module", ""))

    with pytest.raises(ModuleNotFoundError):
        cli.main(["measure", "x.pcap"])


@pytest.mark.parametrize(
    ("raised", "code", "told"),
    [
        (KeyboardInterrupt(), 130, ""),
        (BrokenPipeError(32, "Broken pipe"), 1, ""),
        (
            OSError(28, "No space left on device"),
            1,
            "fetchgate replay x: [Errno 28] No space left on device\n",
        ),
    ],
)
def test_what_stops_a_command_is_no_stack_trace(
    raised: BaseException,
    code: int,
    told: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def run(_: InspectOptions) -> int:
        raise raised

    stopped = types.ModuleType("stopped")
    vars(stopped).update(run=run)
    monkeypatch.setitem(sys.modules, "stopped", stopped)
    monkeypatch.setitem(cli.COMMANDS, "x", cli.Command(InspectOptions, "stopped", ""))

    assert cli.main(["x", "x.pcap"]) == code
    assert capsys.readouterr().err == told


def test_an_interrupt_while_a_command_is_imported_is_no_stack_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "interrupted_import.py").write_text("raise KeyboardInterrupt\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(cli.COMMANDS, "x", cli.Command(InspectOptions, "interrupted_import", ""))

    assert cli.main(["x", "x.pcap"]) == 130
    assert capsys.readouterr().err == ""


def test_settings_of_spark_may_be_repeated() -> None:
    found = parsed(["x.pcap", "--conf", "spark.a=1", "--conf=spark.b=x=y"])

    assert found.conf == (("spark.a", "1"), ("spark.b", "x=y"))
    assert found.master is None


def test_help_shows_examples(capsys: pytest.CaptureFixture[str]) -> None:
    for argv in (["--help"], ["measure", "--help"]):
        with pytest.raises(SystemExit, match="0"):
            cli.main(argv)
        assert "examples:" in capsys.readouterr().out


def written(monkeypatch: pytest.MonkeyPatch, *argv: str, result: Report | None = None) -> int:
    """Run `measure` on a capture, but with this report as the result. Return the exit code."""
    monkeypatch.setattr(command, "_measured", lambda *_: result or sample.report())
    return cli.main(["measure", CAPTURE, *argv])


def test_a_file_that_can_not_be_written_costs_no_other_form_of_the_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tmp_path / "r.html"
    code = written(monkeypatch, "--csv", "/dev/full", "--html", str(page))
    told = capsys.readouterr()

    assert code == 1
    assert told.err == (
        f"Written to {page}\n"
        "fetchgate replay measure: --csv /dev/full: No space left on device; the file is not complete\n"
    )
    assert "Sessions would save 12.0 GB a day" in told.out
    assert page.read_text().startswith("<!doctype html>")


def test_files_are_written_although_the_output_is_full(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tmp_path / "r.csv"
    for form in ([], ["--json"]):
        table.unlink(missing_ok=True)
        with Path("/dev/full").open("w") as full, monkeypatch.context() as context:
            context.setattr(sys, "stdout", full)
            code = written(monkeypatch, "--csv", str(table), *form)

        assert code == 1
        assert capsys.readouterr().err.startswith(
            f"Written to {table}\n"
            "fetchgate replay measure: standard output: No space left on device; the report is not complete\n"
        )
        assert table.read_text().startswith("by,client_id")


def test_each_form_of_the_report_may_go_to_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    table, page, data, other = (tmp_path / name for name in ("r.csv", "r.html", "r.json", "other"))
    named = ["--csv", str(table), "--html", str(page), "--json", str(data)]
    assert written(monkeypatch, *named) == 3
    told = capsys.readouterr()
    assert told.err == f"Written to {table}\nWritten to {page}\nWritten to {data}\n"
    assert "Sessions would save 12.0 GB a day" in told.out
    assert json.loads(data.read_text()) == sample.report()

    assert written(monkeypatch, f"--json={other}") == 3
    assert json.loads(other.read_text()) == sample.report()
    capsys.readouterr()
    monkeypatch.setenv("FETCHGATE_JSON", str(data))
    data.unlink()
    assert written(monkeypatch) == 3
    assert json.loads(data.read_text()) == sample.report()


@pytest.mark.parametrize("order", [["--json", CAPTURE], [CAPTURE, "--json"], ["--json", "--", CAPTURE]])
def test_a_capture_after_json_is_no_file_to_write(
    order: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "_measured", lambda *_: sample.report())
    before = Path(CAPTURE).read_bytes()
    assert cli.main(["measure", *order]) == 3
    assert json.loads(capsys.readouterr().out) == sample.report()
    assert Path(CAPTURE).read_bytes() == before


def test_a_pipe_that_does_not_fit_into_the_scratch_folder_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> Source:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(command, "spool", full)
    monkeypatch.setattr(tempfile, "tempdir", "/scratch")

    with pytest.raises(OSError, match="-: can't be copied to /scratch: No space left on device; set TMPDIR"):
        command._readable(Source(name="-"), "/scratch/x")


@pytest.mark.parametrize("connections", [0, 1])
def test_a_capture_without_a_fetch_that_was_asked_for_is_no_success(
    connections: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = sample.empty()
    report: Report = {**plain, "input": {**plain["input"], "connections": connections}}

    assert written(monkeypatch, result=report) == 3
    assert "Next: capture again." in capsys.readouterr().out


def test_a_client_or_topic_that_is_in_no_fetch_is_told_with_those_that_are_there() -> None:
    rows = rows_of(table(RowFilter(clients=frozenset({"nobody"})), CAPTURES / "librdkafka-100p.pcap"))
    found = collect(single(rows))
    filters: Filters = {**NO_FILTERS, "clients": ["nobody", "\x1b"], "topics": ["nothing"]}

    assert list(
        command._absent(found, report(found, About(version="", policy="gateway", filters=filters)))
    ) == [
        "no fetch that passes the other filters is of --client nobody; the capture has the client ids: rdk",
        r"no fetch that passes the other filters is of --client \x1b; the capture has the client ids: rdk",
        "no fetch that passes the other filters is of --topic nothing; the capture has the topics: events",
    ]
    alone: Filters = {**NO_FILTERS, "clients": ["nobody"]}
    assert list(
        command._absent(found, report(found, About(version="", policy="gateway", filters=alone)))
    ) == ["no fetch is of --client nobody; the capture has the client ids: rdk"]


def test_a_saving_that_can_not_be_told_is_no_success(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = sample.report()
    whole: Report = {**plain, "input": {**plain["input"], "problems": []}}
    cut: Report = {**whole, "decision": {**whole["decision"], "reason": "unpaired"}}
    cut["passed"] = {"unpaired": {"exchanges": 9, "bytes": 600_000_000}}

    assert written(monkeypatch, result=whole) == 0
    assert written(monkeypatch, result=cut) == 3


def test_a_price_between_zones_without_a_rack_is_said() -> None:
    asked = CAPTURE, "--zone-price-per-gb", "0.01", "--currency", "EUR"
    assert (
        "--zone-price-per-gb: no rack is known, so no bytes between zones can be counted; name racks with"
    ) in shown(*asked).err
    assert "zones" not in shown_as_json(*asked)


def test_a_price_between_zones_without_a_known_zone_is_no_cost_of_nothing() -> None:
    asked = CAPTURE, "--client-rack", "127.0.0.1=b", "--zone-price-per-gb", "2", "--currency", "EUR"
    found = shown(*asked)
    assert (
        "--zone-price-per-gb: no bytes have a known zone at both ends, so their cost is not known"
    ) in found.err
    for text in found.both:
        assert (
            "The cost of bytes between zones is not known: no bytes have a known zone at both ends." in text
        )
        assert "0.00 EUR" not in text
    assert shown_as_json(*asked)["zones"]["money"]["cost_per_month"] is None


def test_zones_have_a_price() -> None:
    named = "--broker-rack", "1=a", "--client-rack", "127.0.0.1=b"
    zones = shown_as_json(CAPTURE, *named, "--zone-price-per-gb", "2", "--currency", "EUR")["zones"]
    pairs = {(row["from"], row["to"]): row["bytes"] for row in zones["pairs"]}
    money = zones["money"]
    assert (money["currency"], money["price_per_gb"]) == ("EUR", 2.0)
    assert money["to_clients"] == {"bytes": pairs["a", "b"], "cost": pairs["a", "b"] / 10**9 * 2}
    assert money["to_brokers"] == {"bytes": pairs["b", "a"], "cost": pairs["b", "a"] / 10**9 * 2}
    assert money["cost_both_ends"] == 2 * money["cost"]
    days = money["captured_seconds"] / 86_400
    assert money["cost_per_month"] == pytest.approx(money["cost"] / days * 30)
