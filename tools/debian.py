"""Debian's programs that tests and benchmarks run: fetched once, kept in `.cache/debian`, nothing installed.

    python -m tools.debian     # fetches those that this machine has not; any user may

A program that is installed, but in a folder that is not on PATH (/usr/sbin of most users), is linked instead.

apt-get itself says where packages are and checks their signatures, with lists and archives in a folder of
ours instead of the system's. They are unpacked, and a script for each program in `bin` finds their libraries.
"""

import fcntl
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from tools.kafka import jars

PACKAGES: Final = {
    "haproxy": ("haproxy",),
    "iproute2": ("ip",),
    "nftables": ("nft",),
    "procps": ("sysctl",),
    "prometheus": ("promtool",),
    "tcpdump": ("tcpdump",),
    "tshark": ("tshark",),
    "chromium": ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable"),
}
"""The program that is wanted of a package, and others that will do."""

INSTALLED: Final = "/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin"
"""Where Debian puts programs. Only root has the folders of sbin on PATH."""

SECONDS: Final = 300.0
"""For everything; what is not there by then is done without. 150 MB take 20 s on a good line."""

APT: Final = """
Dir::State "{folder}/state";
Dir::Cache "{folder}/cache";
#clear APT::Update::Post-Invoke;
#clear APT::Update::Post-Invoke-Success;
Acquire::Languages "none";
Acquire::Retries "1";
Acquire::http::Timeout "20";
Acquire::https::Timeout "20";
APT::Sandbox::User "root";
APT::Install-Recommends "no";
Debug::NoLocking "true";
"""
"""Read after the system's settings: proxies and certificates stay, hooks on the system's folders do not."""

SCRIPT: Final = """#!/bin/sh
export LD_LIBRARY_PATH={libraries}${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}}
export XDG_DATA_HOME={data}
exec {program} "$@"
"""
"""Libraries are found, and fonts, where the machine has none."""


def folder() -> Path:
    """Where all of it is kept: beside Kafka's jars."""
    return jars.cache_folder().with_name("debian").absolute()


def programs() -> Path:
    """Where the fetched programs are; for the end of PATH, so that what is installed comes first."""
    return folder() / "bin"


def lacking(packages: Iterable[str], path: str) -> list[str]:
    """Name the packages of which no program is on a PATH."""
    return [
        package
        for package in packages
        if not any(shutil.which(program, path=path) for program in PACKAGES[package])
    ]


def link_installed(package: str) -> bool:
    """Link a program of a package from where Debian puts it; False where it is not installed."""
    found = next(filter(None, (shutil.which(name, path=INSTALLED) for name in PACKAGES[package])), None)
    if found is None:
        return False
    programs().mkdir(parents=True, exist_ok=True)
    link = programs() / Path(found).name
    link.unlink(missing_ok=True)  # of a program that has gone since
    link.symlink_to(found)
    return True


def fetch(packages: Sequence[str], seconds: float = SECONDS) -> dict[str, str]:
    """Fetch packages and what they depend on, as far as this machine has not got it.

    Args:
        packages: names, of `PACKAGES`.
        seconds: after so many, the rest is given up.

    Returns:
        What could not be had: package to reason, each one line.
    """
    if not packages:
        return {}
    ends = time.monotonic() + seconds
    folder().mkdir(parents=True, exist_ok=True)
    with (folder() / "lock").open("w") as lock, tempfile.TemporaryDirectory(dir=folder()) as scratch:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            apt = _Apt(Path(scratch), ends)
        except (OSError, RuntimeError) as error:
            return dict.fromkeys(packages, str(error))
        failed = {}
        for package in packages:
            began = time.monotonic()
            print(f"Fetching {package} into {folder()} (once) ...", flush=True)
            try:
                apt.unpack(package, folder() / "root")
                _write_script(PACKAGES[package][0])
            except (OSError, RuntimeError) as error:
                failed[package] = str(error)
            else:
                print(f"Fetched {package} in {time.monotonic() - began:.0f} s", flush=True)
        return failed


class _Apt:
    """apt-get with lists and archives of its own.

    Args:
        folder: where they lie, one for each run.
        ends: when it is to be done, by `time.monotonic()`.

    Raises:
        OSError: there is no apt-get.
        RuntimeError: no list of packages could be fetched, or not in time.
    """

    def __init__(self, folder: Path, ends: float) -> None:
        self._archives = folder / "cache" / "archives"
        self._settings = folder / "apt.conf"
        self._ends = ends
        lists = folder / "state" / "lists"
        for partial in (self._archives / "partial", lists / "partial"):
            partial.mkdir(parents=True, exist_ok=True)
        self._settings.write_text(APT.format(folder=folder))
        # It may fail for one source of many; what is missed then is told by install.
        told = self._run("apt-get", "-c", str(self._settings), "-qq", "update", check=False)
        if not any(lists.glob("*_Packages*")):
            raise RuntimeError(f"apt-get has no list of packages: {told}")

    def unpack(self, package: str, root: Path) -> None:
        """Fetch a package and unpack it, and what it depends on and is not installed, into a folder.

        Raises:
            OSError: there is no dpkg-deb.
            RuntimeError: it is not to be had, or not in time.
        """
        self._run("apt-get", "-c", str(self._settings), "-qqy", "--download-only", "install", package)
        for archive in sorted(self._archives.glob("*.deb")):
            self._run("dpkg-deb", "--extract", str(archive), str(root))
            archive.unlink()

    def _run(self, *command: str, check: bool = True) -> str:
        """Run a program and give its complaints, in a line."""
        left = max(self._ends - time.monotonic(), 0)
        try:
            done = subprocess.run(
                command,
                env={**os.environ, "LC_ALL": "C"},
                capture_output=True,
                text=True,
                check=False,
                timeout=left,
            )
        except subprocess.TimeoutExpired:
            raise RuntimeError(f"{command[0]} took too long") from None
        told = " ".join(done.stderr.split())
        if check and done.returncode:
            raise RuntimeError(f"{command[0]}: {told}")
        return told


def _write_script(program: str) -> None:
    """Make a program of the unpacked packages one that can be started by its name.

    Raises:
        FileNotFoundError: the package has no such program.
    """
    root = folder() / "root"
    # Chromium's own folder comes first: in usr/bin is a script that expects it to be installed.
    places = (f"usr/lib/{program}", "usr/sbin", "usr/bin", "sbin", "bin")
    found = next((root / place / program for place in places if (root / place / program).is_file()), None)
    if found is None:
        raise FileNotFoundError(f"{program} is not in it; is it installed, but not on PATH?")
    libraries = sorted({str(library.parent) for library in root.rglob("*.so*")})
    programs().mkdir(exist_ok=True)
    script = programs() / program
    script.unlink(missing_ok=True)  # it may be a link: what it leads to is not ours
    names = {"libraries": ":".join(libraries), "data": str(root / "usr" / "share"), "program": str(found)}
    script.write_text(SCRIPT.format_map({key: shlex.quote(value) for key, value in names.items()}))
    script.chmod(0o755)


def main() -> None:
    """Fetch what this machine has not; the tests can run, whatever comes of it."""
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), str(programs())])
    failed = fetch([package for package in lacking(PACKAGES, path) if not link_installed(package)])
    for reason in sorted(set(failed.values())):
        packages = ", ".join(package for package in failed if failed[package] == reason)
        print(f"Not fetched: {packages}: {reason[:500]}", file=sys.stderr)
    if failed:
        print(
            "Tests that need them are skipped and say so; installing them will do as well.", file=sys.stderr
        )


if __name__ == "__main__":
    main()
