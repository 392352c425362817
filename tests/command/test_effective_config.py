import json
import re
import shlex
from pathlib import Path
from typing import Final

import pytest

from proxy.__main__ import main
from proxy.command.config import OPTIONS, Config, load
from proxy.command.effective_config import MAX_SHOWN, as_json, as_toml

PAGE: Final = Path(__file__).parents[2] / "docs" / "users" / "incidents.md"


@pytest.fixture
def config(tmp_path: Path) -> Config:
    file = tmp_path / "gate.toml"
    file.write_text('max_inflight_bytes = "128MiB"\nsessions_off_for = ["a", "b\\u001b[31m"]\n')
    return load({"bootstrap": "kafka:9092"}, {"FETCHGATE_DRAIN_TIMEOUT": "20s"}, str(file))


def test_each_option_is_a_line_that_says_where_it_came_from(config: Config, tmp_path: Path) -> None:
    first, *lines = as_toml(config).splitlines()

    assert first.startswith("# The options of fetchgate ")
    assert [line.partition(" ")[0] for line in lines] == [option.name for option in OPTIONS]
    told = {line.partition(" ")[0]: " ".join(line.split()) for line in lines}
    assert told["bootstrap"] == 'bootstrap = "kafka:9092" # flag: --bootstrap'
    assert told["drain_timeout"] == 'drain_timeout = "20s" # environment: FETCHGATE_DRAIN_TIMEOUT'
    assert told["max_inflight_bytes"] == f'max_inflight_bytes = "128MiB" # file: {tmp_path / "gate.toml"}'
    assert told["max_connections"] == 'max_connections = "5000" # default'
    assert "\x1b" not in as_toml(config)


def test_what_is_shown_is_a_file_of_options(config: Config, tmp_path: Path) -> None:
    file = tmp_path / "shown.toml"
    file.write_text(as_toml(config))

    assert load({}, {}, str(file)) == config


def test_in_transparent_mode_as_well(tmp_path: Path) -> None:
    config = load({"transparent": "redirect"}, {}, None)
    file = tmp_path / "shown.toml"
    file.write_text(as_toml(config))

    assert load({}, {}, str(file)) == config


def test_the_state_has_each_value_and_its_source(config: Config) -> None:
    shown = as_json(config)

    assert list(shown) == [option.name for option in OPTIONS]
    assert shown["drain_timeout"] == {"value": "20s", "source": "environment"}
    assert shown["max_inflight_bytes"] == {"value": "128MiB", "source": "file"}
    assert shown["max_connections"] == {"value": "5000", "source": "default"}


def test_a_long_value_is_cut_in_the_state_alone() -> None:
    config = load({"bootstrap": "kafka:9092", "sessions_off_for": "x" * 5000}, {}, None)

    assert as_json(config)["sessions_off_for"]["value"] == "x" * MAX_SHOWN + "..."
    assert "x" * 5000 in as_toml(config)


def test_the_command_prints_it_and_starts_nothing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FETCHGATE_MAX_SESSIONS", "7")
    monkeypatch.setenv("FETCHGATE_LISTN", "x")

    assert main(["proxy", "-b", "nobody.invalid:1", "--idle-timeout", "5m", "--show-config"]) == 0

    out, err = capsys.readouterr()
    shown = {line.split(" = ")[0]: line.split(" = ")[1] for line in out.splitlines()[1:]}
    assert json.loads(shown["max_sessions"].split("  ")[0]) == "7"
    assert shown["idle_timeout"].endswith("# flag: --idle-timeout")
    assert err.count("\n") == 1
    assert "FETCHGATE_LISTN is not an option" in err


def test_the_command_reports_what_can_not_be_used(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["proxy", "-b", "kafka:9092", "--idle-timeout", "x", "--show-config"]) == 2
    assert "--idle-timeout: 'x' is not a time" in capsys.readouterr().err


@pytest.mark.parametrize("named", ["fetchgate.toml", ""], ids=["file", "folder"])
@pytest.mark.parametrize(
    ("written", "text", "code"),
    [
        ("fetchgate.toml", "sessions = false\n", 0),
        ("fetchgate.toml", "sesions = false\n", 2),
        ("fetchgate.yml", "sessions = false\n", 2),
    ],
    ids=["right", "wrong", "misnamed"],
)
def test_the_command_of_incidents_finds_a_mistake_before_a_rollout(
    named: str, written: str, text: str, code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / written).write_text(text)
    (command,) = re.findall(r"```sh\n(.+)\n```", PAGE.read_text(encoding="utf-8"))
    program, *arguments = shlex.split(command.replace("fetchgate.toml", str(tmp_path / named)))
    assert program == "fetchgate"
    assert main(arguments) == code
    if code == 2:
        assert "fetchgate.toml" in capsys.readouterr().err
