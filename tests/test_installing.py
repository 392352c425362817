"""The commands that install what is missing."""

import json

import pytest

from proxy.installing import command_for_extra


def metadata(spec: object) -> str:
    return json.dumps({"main_package": {"package": "kafka-fetchgate", "package_or_url": spec}})


@pytest.mark.parametrize(
    ("spec", "extras"),
    [
        ("/src/gateway", "measure"),
        ("/src/gateway[tls]", "tls,measure"),
        ("/src/gateway[tls, cooperative]", "tls,cooperative,measure"),
        ("/src/gateway[measure,tls]", "measure,tls"),
        ("/src/gateway[Measure]", "measure"),
        ("/src/[old]/gateway", "measure"),
        ("/src/[old]/gateway[tls]", "tls,measure"),
        ("kafka-fetchgate[tls]==0.2.0", "tls,measure"),
        ("kafka-fetchgate[tls] @ git+https://host/[old]/gateway", "tls,measure"),
        ("/src/gateway[tls']; rm x[']", "measure"),
        (None, "measure"),
    ],
)
def test_pipx_keeps_the_extras_that_are_installed(spec: object, extras: str) -> None:
    """pipx installs the extras of its last command again when it makes the environment anew."""
    command = command_for_extra("measure", "python3", pipx=metadata(spec))
    assert command == f"pipx install --force '.[{extras}]'"


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"main_package": 1}', "[" * 100_000])
def test_metadata_that_is_not_understood_has_no_extras(text: str) -> None:
    assert command_for_extra("tls", "python3", pipx=text) == "pipx install --force '.[tls]'"


def test_without_pipx_pip_keeps_what_is_there() -> None:
    assert (
        command_for_extra("tls", "/env/bin/python3", pipx=None) == "/env/bin/python3 -m pip install '.[tls]'"
    )
