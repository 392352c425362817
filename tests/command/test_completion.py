"""``fetchgate completion``: the bash script is run. The scripts for zsh and fish are only read as text."""

import shutil
import subprocess
from pathlib import Path

import pytest

from proxy.__main__ import main
from proxy.command.config import OPTIONS, TOP_OPTIONS

PRINTS = """
complete_line() {
  COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=()
  _fetchgate
  printf '%s\\n' "${COMPREPLY[@]}"
}
complete_line "$@"
"""


@pytest.fixture
def bash(capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["completion", "bash"]) == 0
    return capsys.readouterr().out


def _offered(script: str, *words: str, folder: Path | None = None) -> set[str]:
    """Return the completions that bash offers for the last of the words."""
    command = [shutil.which("bash") or "bash", "--norc", "-c", script + PRINTS, "bash", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30, cwd=folder)
    assert done.stderr == ""
    return set(done.stdout.split("\n")) - {""}


def test_commands_are_completed(bash: str) -> None:
    offered = _offered(bash, "fetchgate", "")
    assert {"proxy", "top", "replay", "completion"} <= offered
    assert _offered(bash, "fetchgate", "pr") == {"proxy"}
    assert {"inspect", "measure", "drive"} <= _offered(bash, "fetchgate", "replay", "")
    assert {"bash", "zsh", "fish"} <= _offered(bash, "fetchgate", "completion", "")


def test_every_option_is_completed(bash: str) -> None:
    flags = {"--config", "--check", "--gateways", "--show-config", *(option.flag for option in OPTIONS)}
    assert flags <= _offered(bash, "fetchgate", "proxy", "--")
    assert {option.flag for option in TOP_OPTIONS} | {"--token-file"} <= _offered(
        bash, "fetchgate", "top", "--"
    )
    assert _offered(bash, "fetchgate", "proxy", "--sess") == {"--sessions", "--sessions-off-for"}
    assert "--max-fetch-bytes" in _offered(bash, "fetchgate", "replay", "measure", "--max")
    assert "--target" in _offered(bash, "fetchgate", "replay", "drive", "x.pcap", "--")


def test_the_words_of_a_value_are_completed(bash: str) -> None:
    proxy = ("fetchgate", "proxy", "-b", "k:1")
    assert _offered(bash, *proxy, "--transparent", "") == {"off", "redirect", "tproxy"}
    assert _offered(bash, *proxy, "--transparent", "=", "t") == {"tproxy"}
    assert _offered(bash, *proxy, "--transparent", "=") == {"off", "redirect", "tproxy"}
    assert _offered(bash, *proxy, "--log-level", "w") == {"warning"}
    assert _offered(bash, *proxy, "--admin", "") == {"off"}
    assert _offered(bash, *proxy, "--max-sessions", "") == set()
    assert _offered(bash, "fetchgate", "replay", "measure", "--policy", "") == {"gateway", "always"}


def test_files_and_directories_are_completed(bash: str, tmp_path: Path) -> None:
    (tmp_path / "my captures").mkdir()
    (tmp_path / "my key.pem").touch()
    both = {"my captures", "my key.pem"}
    assert _offered(bash, "fetchgate", "proxy", "--tls-cert", "my", folder=tmp_path) == both
    assert _offered(bash, "fetchgate", "proxy", "--capture", "my", folder=tmp_path) == {"my captures"}
    assert _offered(bash, "fetchgate", "replay", "inspect", "my", folder=tmp_path) == both
    assert _offered(bash, "fetchgate", "proxy", "my", folder=tmp_path) == set()


def test_zsh_runs_the_script_of_bash(bash: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "zsh"]) == 0
    text = capsys.readouterr().out
    assert text.endswith(bash)
    assert "bashcompinit\n" in text


def test_fish_has_each_option_with_a_description(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "fish"]) == 0
    lines = capsys.readouterr().out.splitlines()
    (line,) = [line for line in lines if " -l transparent " in line]
    assert line.startswith("complete -c fetchgate -n '__fish_seen_subcommand_from proxy' -l transparent -x")
    assert "-a 'off redirect tproxy' -d 'accept the connections that netfilter redirects to --listen" in line
    (line,) = [line for line in lines if " -l bootstrap " in line]
    assert " -s b -l bootstrap -x " in line
    (line,) = [line for line in lines if " -l check " in line]
    assert " -l check -d " in line
    assert any("-l tls-cert -r -F -d" in line for line in lines)
    for option in OPTIONS:
        assert any(f" -l {option.flag[2:]} " in line for line in lines)


def test_an_unknown_shell_is_one_line_and_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["completion", "tcsh"])
    assert left.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1
