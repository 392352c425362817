"""The options `--rack` and `--rack-clients`."""

import re
from pathlib import Path

import pytest

from proxy.command.config import changes, load
from proxy.features.racks.options import RackOptions
from proxy.text.options import ConfigError
from tests.command.loading import NEEDED, error_of
from tests.server.test_imported import imported


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("", "it is empty"),
        ("  ", "it is empty"),
        ("R" * 250, "the name has 250 bytes; give a rack's name of at most 249 bytes"),
        ("\u00e9" * 125, "the name has 250 bytes"),
    ],
)
def test_a_rack_has_a_name_that_brokers_can_have(written: str, said: str) -> None:
    assert error_of(NEEDED | {"rack": written}).startswith(f"--rack: {said}")
    assert error_of(NEEDED, {"FETCHGATE_RACK": written}).startswith(f"FETCHGATE_RACK: {said}")
    assert load(NEEDED | {"rack": "R" * 249}, {}, None).of(RackOptions).rack == "R" * 249


def test_a_rack_can_be_in_a_file_of_one_line(tmp_path: Path) -> None:
    file = tmp_path / "zone"
    for text in ("eu-west-1a", "eu-west-1a\n", "  eu-west-1a \r\n\n"):
        file.write_text(text)
        assert load(NEEDED | {"rack": f"@{file}"}, {}, None).of(RackOptions).rack == "eu-west-1a"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "has no lines; it must have one"),
        (b"\n\n", "has no lines; it must have one"),
        (b"eu-west-1a\neu-west-1b\n", "has 2 lines; it must have one"),
        (b"\xff", "is not text in UTF-8"),
        (b"R" * 250, "has 250 bytes; give a rack's name of at most 249"),
        (None, "can't be read: No such file or directory; name a readable file, or give the name without @"),
    ],
)
def test_a_file_that_has_no_rack_is_named(content: bytes | None, said: str, tmp_path: Path) -> None:
    file = tmp_path / "zone"
    if content is not None:
        file.write_bytes(content)
    told = error_of(NEEDED | {"rack": f"@{file}"})
    assert told.startswith("--rack: ")
    assert f"{file} {said}" in told


def test_a_rack_in_a_file_needs_the_name_of_the_file() -> None:
    assert error_of(NEEDED | {"rack": "@"}) == (
        "--rack: @ needs the name of a file; write @FILE, or the rack's name"
    )


def test_a_rack_needs_a_restart() -> None:
    config, other = load(NEEDED, {}, None), load(NEEDED | {"rack": "R1"}, {}, None)
    assert changes(config, other) == ([], ["rack"])


def test_replicas_as_leaders_need_a_rack_and_brokers_with_listeners() -> None:
    told = "--rack-clients has no effect alone: give --rack NAME|@FILE as well"
    with pytest.raises(ConfigError, match=re.escape(told)):
        load(NEEDED | {"rack_clients": "app"}, {}, None)
    config = load(NEEDED | {"rack": "R2", "rack_clients": "app, other"}, {}, None)
    assert config.of(RackOptions).rack_clients == {"app", "other"}
    assert changes(config, config.having(rack_clients=frozenset())) == (["rack_clients"], [])
    transparent = {"transparent": "redirect", "listen": "127.0.0.1:1", "rack": "R2", "rack_clients": "app"}
    with pytest.raises(ConfigError, match="--rack-clients: leave it out with --transparent"):
        load(transparent, {}, None)


def test_a_former_option_is_an_error_that_names_what_to_use(tmp_path: Path) -> None:
    (file := tmp_path / "gate.toml").write_text('rack_reads = "client"\n')
    told = (
        "was removed: set client.rack in the client, or use --rack-clients; --rack alone counts "
        "(docs/users/upgrade.md)"
    )

    assert error_of(NEEDED, {}, str(file)) == f"rack_reads in {file} {told}"
    file.write_text('rack-reads = "client"\n')
    assert error_of(NEEDED, {}, str(file)) == f"rack-reads in {file} {told}"
    assert error_of(NEEDED, {"FETCHGATE_RACK_READS": ""}) == f"FETCHGATE_RACK_READS {told}"


@pytest.mark.slow
def test_only_a_gateway_with_a_rack_imports_the_rest_of_the_folder() -> None:
    rest = {f"proxy.features.racks.{name}" for name in ("running", "rack_leaders", "rack_clients")}
    assert not imported()[0] & rest
    assert rest <= imported("--rack", "a")[0]
