"""Programs of Debian are downloaded into the cache folder. Scripts replace apt-get and dpkg-deb."""

import os
import subprocess
from pathlib import Path

import pytest

from tools import debian

APT_GET = """#!/bin/sh
echo "$@" >>"$(dirname "$0")/asked"
for word in "$@"; do package=$word; done
archives=$(sed -n 's/^Dir::Cache "\\(.*\\)";/\\1/p' "$2")/archives
lists=$(sed -n 's/^Dir::State "\\(.*\\)";/\\1/p' "$2")/lists
case $package in
update) {update} ;;
tshark) echo tshark >"$archives/tshark.deb"; echo librdp.so.1 >"$archives/librdp.deb" ;;
tcpdump) exec sleep 60 ;;
nftables) ;;
*) echo "E: Unable to locate package $package" >&2; exit 100 ;;
esac
"""
FOUND = 'touch "$lists/somewhere_Packages.lz4"; echo "W: one source of many" >&2; exit 100'
OFFLINE = 'echo "W: Temporary failure resolving" >&2'
DPKG_DEB = """#!/bin/sh
read -r name <"$2"
libraries=$3/usr/lib/here/deep programs=$3/usr/bin
mkdir -p "$libraries" "$programs" "$3/usr/share/fonts"
case $name in
*.so.*) echo "the library" >"$libraries/$name" ;;
*)
    cat >"$programs/$name" <<'END'
#!/bin/sh
cat "${LD_LIBRARY_PATH%%:*}/librdp.so.1"
ls "$XDG_DATA_HOME"
echo "$@"
END
    chmod +x "$programs/$name"
    ;;
esac
"""


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put a folder for replacement programs first in PATH. Set a cache folder whose name needs quotes in a
    shell.
    """
    monkeypatch.setenv("FETCHGATE_CACHE", str(tmp_path / "a cache"))
    played = tmp_path / "played"
    played.mkdir()
    monkeypatch.setenv("PATH", f"{played}{os.pathsep}{os.environ['PATH']}")
    return played


def play(stage: Path, update: str = FOUND) -> None:
    for name, text in (("apt-get", APT_GET.replace("{update}", update)), ("dpkg-deb", DPKG_DEB)):
        (stage / name).write_text(text)
        (stage / name).chmod(0o755)


def test_a_program_is_fetched_with_what_it_depends_on_and_finds_it(stage: Path) -> None:
    play(stage)
    assert debian.fetch(["tshark"]) == {}
    done = subprocess.run(
        [debian.programs() / "tshark", "a b", "c"], capture_output=True, text=True, check=True
    )
    assert done.stdout == "the library\nfonts\na b c\n"
    assert {path.name for path in debian.folder().iterdir()} == {"bin", "lock", "root"}


def test_the_system_s_lists_and_archives_are_left_alone(stage: Path) -> None:
    play(stage)
    debian.fetch(["tshark"])
    for line in (stage / "asked").read_text().splitlines():
        assert line.startswith(f"-c {debian.folder()}/"), line
        assert "update" in line or "--download-only install" in line


def test_what_is_not_to_be_had_takes_nothing_else_with_it(stage: Path) -> None:
    play(stage)
    assert debian.fetch(["nothing", "nftables", "tshark"]) == {
        "nothing": "apt-get: E: Unable to locate package nothing",
        "nftables": "the package has no nft; is it installed, but not on PATH?",
    }
    assert (debian.programs() / "tshark").exists()


def test_time_is_bounded(stage: Path) -> None:
    play(stage)
    failed = debian.fetch(["tcpdump", "tshark"], seconds=1)
    assert failed == dict.fromkeys(["tcpdump", "tshark"], "apt-get took too long")


def test_without_a_network_the_reason_is_apt_get_s_own(stage: Path) -> None:
    play(stage, OFFLINE)
    reason = "apt-get has no list of packages: W: Temporary failure resolving"
    assert debian.fetch(["tshark", "nftables"]) == {"tshark": reason, "nftables": reason}


def test_elsewhere_than_on_debian_it_is_told_and_nothing_fails(
    stage: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(stage))
    monkeypatch.setattr(debian, "INSTALLED", str(stage))
    debian.main()
    assert capsys.readouterr().err == (
        f"Not fetched: {', '.join(debian.PACKAGES)}: [Errno 2] No such file or directory: 'apt-get'\n"
        "Tests that need them are skipped, with this reason. Or install them yourself.\n"
    )


def test_what_is_there_is_not_fetched(
    stage: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in (
        "google-chrome",
        *(programs[0] for programs in debian.PACKAGES.values() if programs[1:] == ()),
    ):
        (stage / name).touch(mode=0o755)
    assert debian.lacking(debian.PACKAGES, str(stage)) == []
    monkeypatch.setenv("PATH", str(stage))
    debian.main()
    assert not debian.folder().exists()
    assert capsys.readouterr() == ("", "")


def test_what_is_installed_and_not_on_path_is_linked(
    stage: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sbin = tmp_path / "sbin"
    sbin.mkdir()
    for package in debian.PACKAGES:
        (sbin / debian.PACKAGES[package][-1]).touch(mode=0o755)
    monkeypatch.setattr(debian, "INSTALLED", str(sbin))
    monkeypatch.setenv("PATH", str(stage))
    debian.main()
    assert (debian.programs() / "nft").readlink() == sbin / "nft"
    assert debian.lacking(debian.PACKAGES, str(debian.programs())) == []
    assert capsys.readouterr() == ("", "")


def test_a_link_to_a_program_that_has_gone_is_replaced_and_not_followed(stage: Path, tmp_path: Path) -> None:
    debian.programs().mkdir(parents=True)
    (debian.programs() / "tshark").symlink_to(tmp_path / "gone")
    play(stage)
    assert debian.fetch(["tshark"]) == {}
    assert (debian.programs() / "tshark").is_file()
    assert not (tmp_path / "gone").exists()
