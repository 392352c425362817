"""A release has fixed versions of its requirements, and digests of its base images.

Two builds of the same release give the same files.
"""

import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path
from typing import Any, Final

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from proxy import version
from tests.tools.test_deploy import DEPLOY, ROOT, instructions
from tools import base_images, dist, lock, one_file
from tools.lock import BUILD, INJECTOR, PEX, RUN, Pinned, parse
from tools.sbom import sbom

PROJECT: Final = tomllib.loads((ROOT / "pyproject.toml").read_text())
VERSION: Final = PROJECT["project"]["version"]
DIGESTS: Final = ["sha256:" + digit * 64 for digit in "ab"]


def program(folder: Path, name: str, script: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)


# -- the version


def test_the_program_has_the_version_of_the_package() -> None:
    assert version.VERSION == VERSION


def test_the_changelog_begins_with_the_release_or_with_what_comes_after_it() -> None:
    headings = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    released = [heading for heading in headings if heading != "Unreleased"]
    assert re.fullmatch(rf"{re.escape(VERSION)} - \d{{4}}-\d\d-\d\d", released[0])
    assert headings[0] in {released[0], "Unreleased"}


def test_all_images_have_the_tag_of_the_release() -> None:
    files = [
        *DEPLOY.rglob("*.yaml"),
        DEPLOY / "Containerfile",
        *(ROOT / "docs" / "users" / "deploy").glob("*.md"),
    ]
    pattern = r"\bfetchgate(?:-rules|-injector)?:(\d\S*)"
    tags = {tag for file in files for tag in re.findall(pattern, file.read_text())}
    assert tags == {VERSION}


# -- pinned requirements


@pytest.mark.parametrize(
    ("file", "wanted"),
    [
        (RUN, lock.wanted_at_run_time(PROJECT)),
        (BUILD, PROJECT["build-system"]["requires"]),
        (PEX, lock.wanted_by_one_file(PROJECT)),
        (INJECTOR, lock.wanted_by_injector()),
    ],
    ids=["run", "build", "pex", "injector"],
)
def test_what_is_wanted_is_pinned_with_hashes_and_without_addresses(file: Path, wanted: list[str]) -> None:
    text = file.read_text()
    assert "://" not in text
    assert "index" not in text
    pinned = parse(text)
    assert all(re.fullmatch("sha256:[0-9a-f]{64}", told) for each in pinned for told in each.hashes)
    for requirement in map(Requirement, wanted):
        versions = [each.version for each in pinned if canonicalize_name(each.name) == requirement.name]
        assert versions, requirement
        assert all(requirement.specifier.contains(version) for version in versions), requirement


def test_the_injector_is_tested_with_the_requirements_of_its_image() -> None:
    assert set(lock.wanted_by_injector()) <= set(PROJECT["project"]["optional-dependencies"]["dev"])


@pytest.mark.parametrize(
    "line",
    ["rich>=13", "rich==15.0.0", "--index-url https://example.org", "rich @ https://example.org/rich.whl"],
)
def test_a_line_that_pins_nothing_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match="no pinned requirement"):
        parse(f"{line}\n")


def test_renewed_are_versions_and_hashes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path, "uv", f"cat > {tmp_path}/wanted; printf 'rich==15.0.0 \\\\\\n    --hash=sha256:ab\\n'")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    file = tmp_path / "requirements.txt"
    lock.renew(file, ["rich>=13", "dpkt"])
    assert (tmp_path / "wanted").read_text() == "rich>=13\ndpkt"
    assert parse(file.read_text()) == [
        Pinned(name="rich", version="15.0.0", marker="", hashes=("sha256:ab",))
    ]
    before = file.read_text()
    program(tmp_path, "uv", "echo no solution >&2; exit 1")
    with pytest.raises(RuntimeError, match="uv: no solution"):
        lock.renew(file, ["rich>=99"])
    assert file.read_text() == before


def test_that_uv_is_missing_is_told_with_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RuntimeError, match=r"pip install -e '.\[release\]'"):
        lock.renew(tmp_path / "requirements.txt", [])


# -- digests


FILE: Final = """\
FROM docker.io/library/python:3.13-slim-bookworm AS build
RUN true
FROM docker.io/library/debian:bookworm-slim
FROM docker.io/library/python:3.13-slim-bookworm AS gateway
COPY --from=build /opt /opt
"""


def test_digests_stand_behind_all_tags_and_are_renewed() -> None:
    asked: list[str] = []

    def ask(image: str) -> str:
        asked.append(image)
        return DIGESTS["debian" in image]

    pinned = base_images.renewed(FILE, ask)
    assert len(asked) == 2, "an image is asked for once"
    assert pinned.count(f"python:3.13-slim-bookworm@{DIGESTS[0]} AS ") == 2
    assert f"debian:bookworm-slim@{DIGESTS[1]}\n" in pinned
    again = base_images.renewed(pinned, lambda _: DIGESTS[1])
    assert re.findall("@(sha256:[0-9a-f]+)", again) == [DIGESTS[1]] * 3
    assert base_images.without_digests(again) == FILE


def test_the_containerfile_s_own_images_are_found() -> None:
    pinned = base_images.renewed(base_images.CONTAINERFILE.read_text(), lambda _: DIGESTS[0])
    begins = [line for line in pinned.splitlines() if line.startswith("FROM docker.io/")]
    assert len(begins) == 3
    assert all(f"@{DIGESTS[0]} AS " in line for line in begins)


def test_a_registry_is_asked_by_the_program_that_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin")
    program(tmp_path, "docker", f'[ "$3" = inspect ] && echo {DIGESTS[0]}')
    program(tmp_path, "skopeo", f'case "$*" in *docker://example/image:1) echo {DIGESTS[1]} ;; esac')
    assert base_images.digest_of("example/image:1") == DIGESTS[1]
    program(tmp_path, "skopeo", "echo no such host >&2; exit 1")
    assert base_images.digest_of("example/image:1") == DIGESTS[0]
    program(tmp_path, "docker", "echo something else")
    with pytest.raises(RuntimeError, match="skopeo: no such host; docker: something else"):
        base_images.digest_of("example/image:1")


def test_what_no_registry_told_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    file = tmp_path / "Containerfile"
    file.write_text(FILE)
    monkeypatch.setattr(base_images, "CONTAINERFILE", file)
    assert base_images.main() == 1
    assert file.read_text() == FILE
    assert "nothing is changed" in capsys.readouterr().err


# -- the files


def test_files_that_differ_are_named() -> None:
    assert dist.differing({"a": b"1", "b": b"2"}, {"a": b"1", "b": b"3", "c": b""}) == ["b", "c"]


@pytest.mark.nightly
@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="no commit here")
def test_a_release_is_built_twice_to_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(dist, "DIST", tmp_path / "dist")
    monkeypatch.setattr(one_file, "build", lambda wheel, *_: wheel.name.encode())
    assert dist.main() == 0
    files = {file.name: file.read_bytes() for file in (tmp_path / "dist").iterdir()}
    sums = files.pop(dist.SUMS).decode()
    assert sums in capsys.readouterr().out
    assert dict(line.split("  ")[::-1] for line in sums.splitlines()) == {
        name: hashlib.sha256(data).hexdigest() for name, data in files.items()
    }
    (wheel,) = (name for name in files if name.endswith(".whl"))
    (sdist,) = (name for name in files if name.endswith(".tar.gz"))
    (bill,) = (name for name in files if name.endswith(".cdx.json"))
    assert files[one_file.name(VERSION)] == wheel.encode()
    assert (tmp_path / "dist" / one_file.name(VERSION)).stat().st_mode & 0o777 == 0o755
    own = json.loads(files[bill])["metadata"]["component"]
    assert own["hashes"] == [{"alg": "SHA-256", "content": hashlib.sha256(files[wheel]).hexdigest()}]
    with zipfile.ZipFile(tmp_path / "dist" / wheel) as packed:
        assert {name.split("/")[0] for name in packed.namelist()} >= {"proxy", "replay"}
    with tarfile.open(tmp_path / "dist" / sdist) as packed:
        members = packed.getmembers()
    assert {member.uname for member in members} == {""}
    assert len({member.mtime for member in members}) == 1


def test_the_name_of_the_file_that_runs_tells_where_it_runs() -> None:
    told = one_file.name("1.2.3", "aarch64")
    assert told == "fetchgate-1.2.3-cp311.cp312.cp313.cp314-manylinux_2_28_aarch64.pyz"
    assert PROJECT["project"]["requires-python"] == f">={one_file.PYTHONS[0]}"


def test_the_file_that_runs_has_pinned_packages_alone() -> None:
    pinned = [
        Pinned(
            name="numpy", version="2.4", marker="python_version < '3.12'", hashes=("sha256:aa", "sha256:bb")
        ),
        Pinned(name="lz4", version="4", marker="", hashes=("sha256:cc",)),
        Pinned(name="rich", version="15.0.0", marker="", hashes=("sha256:dd",)),
    ]
    told = one_file.requirements("kafka_fetchgate-0.2.0-py3-none-any.whl", "00", pinned, ["lz4"])
    assert told == (
        "kafka-fetchgate==0.2.0 --hash=sha256:00\n"
        "numpy==2.4 ; python_version < '3.12' --hash=sha256:aa --hash=sha256:bb\n"
        "rich==15.0.0 --hash=sha256:dd\n"
    )


@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_the_file_runs_where_nothing_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`make dist` builds the file twice to the same bytes. It runs in an empty environment."""
    monkeypatch.setattr(dist, "DIST", tmp_path / "dist")
    assert dist.main() == 0, capsys.readouterr().err
    file = tmp_path / "dist" / one_file.name(VERSION)
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    python = os.path.realpath(sys.executable)  # not that of the virtual environment, which has packages

    def said(*command: str) -> subprocess.CompletedProcess[str]:
        environment = {"HOME": str(home), "PATH": f"{Path(python).parent}:/usr/bin:/bin"}
        return subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120, check=False
        )

    assert said(str(file), "--version").stdout == f"fetchgate {VERSION}\n"
    assert "--bootstrap" in said(python, "-I", str(file), "proxy", "--help").stdout
    addresses = ["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--bootstrap", "127.0.0.1:1"]
    checked = said(python, "-I", str(file), "proxy", *addresses, "--check")
    assert checked.returncode == 1
    assert "--bootstrap can't be used: 127.0.0.1:1: Connection refused" in checked.stdout
    watched = said(python, "-I", str(file), "top", "--once", "--admin", "127.0.0.1:1")
    assert watched.returncode == 1
    assert "no gateway at 127.0.0.1:1" in watched.stderr
    assert {path.name for path in home.iterdir()} == {".cache"}
    writable = [path for path in home.rglob("*") if not path.is_symlink() and path.stat().st_mode & 0o022]
    assert writable == []


def test_a_bill_of_materials_names_what_needs_what() -> None:
    pinned = parse(RUN.read_text())

    def made() -> dict[str, Any]:
        return sbom(
            wheel="a.whl", version="1", sha256="00", made_at="2026-01-01T00:00:00+00:00", pinned=pinned
        )

    told = made()
    assert told == made(), "nothing in it is by chance"
    assert (told["bomFormat"], told["specVersion"]) == ("CycloneDX", "1.6")
    refs = {component["bom-ref"] for component in told["components"]}
    assert len(refs) == len(pinned)
    edges = {edge["ref"]: edge["dependsOn"] for edge in told["dependencies"]}
    own = told["metadata"]["component"]["bom-ref"]
    assert edges.keys() == {own, *refs}
    assert {ref for needs in edges.values() for ref in needs} == refs, (
        "each is there because something needs it"
    )
    names = {Requirement(each).name for each in lock.wanted_at_run_time(PROJECT)}
    assert {ref.partition("@")[0] for ref in edges[own]} == {f"pkg:pypi/{name}" for name in names}
    assert all(component["licenses"] for component in told["components"])


# -- what the image holds


@pytest.mark.nightly
def test_the_steps_of_the_image_s_build_give_the_gateway_alone(tmp_path: Path) -> None:
    """The build steps of the image install only the gateway. The test runs them in temporary folders."""
    source = tmp_path / "src"
    source.mkdir()
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # where `python` is one
    environment = {**os.environ, "PATH": path, "PIP_NO_CACHE_DIR": ""}
    within = False
    for word, rest in instructions():
        if word == "FROM":
            within = rest.endswith(" AS build")
        elif within and word == "ENV":
            environment |= dict(part.split("=", 1) for part in shlex.split(rest))
        elif within and word == "COPY":
            *sources, target = rest.split()
            for name in sources:
                into = source / target
                if (ROOT / name).is_dir():
                    shutil.copytree(ROOT / name, into, ignore=shutil.ignore_patterns("__pycache__"))
                else:
                    shutil.copy(ROOT / name, into)
        elif within and word == "RUN":
            command = rest.replace("/opt/", f"{tmp_path}/opt/")
            done = subprocess.run(
                ["sh", "-c", command],
                cwd=source,
                env=environment,
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.returncode == 0, done.stderr[-2000:]
    made = tmp_path / "opt" / "fetchgate"
    (packages,) = made.glob("lib/python3*/site-packages")
    installed = {
        file.name.split("-")[0].replace("_", "-")
        for file in packages.iterdir()
        if file.suffix == ".dist-info"
    }
    assert installed == {"kafka-fetchgate", *(each.name for each in parse(RUN.read_text()))}
    assert (packages / "proxy").is_dir()
    assert not (packages / "replay").exists()
    assert not [file for file in made.glob("bin/*") if file.name.lower().startswith("activate")]
    fetchgate = made / "bin" / "fetchgate"

    def said(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([fetchgate, *arguments], capture_output=True, text=True, check=False)

    assert said("--version").stdout == f"fetchgate {VERSION}\n"
    assert "--bootstrap" in said("proxy", "--help").stdout
    lacking = said("replay", "measure")
    assert lacking.returncode == 1
    assert lacking.stderr.startswith("fetchgate replay: not installed")
