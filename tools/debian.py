"""Programs from Debian for tests and benchmarks: downloaded once into `.cache/debian`, not installed.

    python -m tools.debian     # downloads the missing programs; no rights needed

If a program is installed in a folder that is not on PATH (often /usr/sbin), it is linked instead.

apt-get itself finds the packages and checks their signatures. Its lists and archives are in a folder of this
project instead of the system's. The packages are unpacked. For each program, `bin` has a script that sets the
path to the program's libraries.
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
    "kcat": ("kcat",),
    "nftables": ("nft",),
    "procps": ("sysctl",),
    "prometheus": ("promtool",),
    "tcpdump": ("tcpdump",),
    "tshark": ("tshark",),
    "chromium": ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable"),
}
"""For each package: the needed program, and other programs that can replace it."""

INSTALLED: Final = "/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin"
"""The folders of programs on Debian. Only root has the sbin folders on PATH."""

SECONDS: Final = 300.0
"""The time limit for downloading all packages, in seconds. On a fast connection, 150 MB take 20 s."""

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
"""apt-get reads them after the system's: they remove its hooks, and keep its proxies."""

SCRIPT: Final = """#!/bin/sh
export LD_LIBRARY_PATH={libraries}${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}}
export XDG_DATA_HOME={data}
exec {program} "$@"
"""
"""It sets the path to a program's libraries, and to downloaded fonts for machines without any."""


def folder() -> Path:
    """Return the folder for the downloaded packages and programs, beside Kafka's jars."""
    return jars.cache_folder().with_name("debian").absolute()


def programs() -> Path:
    """Return the folder of downloaded programs. Callers add it at the end of PATH."""
    return folder() / "bin"


def lacking(packages: Iterable[str], path: str) -> list[str]:
    """Return the packages whose programs are not on the given PATH."""
    return [
        package
        for package in packages
        if not any(shutil.which(program, path=path) for program in PACKAGES[package])
    ]


def link_installed(package: str) -> bool:
    """Link the package's program into `programs()` if it is in `INSTALLED`. Return whether it is."""
    found = next(filter(None, (shutil.which(name, path=INSTALLED) for name in PACKAGES[package])), None)
    if found is None:
        return False
    programs().mkdir(parents=True, exist_ok=True)
    link = programs() / Path(found).name
    link.unlink(missing_ok=True)  # it may lead to a program that was removed
    link.symlink_to(found)
    return True


def fetch(packages: Sequence[str], seconds: float = SECONDS) -> dict[str, str]:
    """Download packages with what they need. Return the reason of each that failed, in one line."""
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
    """apt-get with its own lists and archives. It gives up at the time `ends` (monotonic)."""

    def __init__(self, folder: Path, ends: float) -> None:
        self._archives = folder / "cache" / "archives"
        self._settings = folder / "apt.conf"
        self._ends = ends
        lists = folder / "state" / "lists"
        for partial in (self._archives / "partial", lists / "partial"):
            partial.mkdir(parents=True, exist_ok=True)
        self._settings.write_text(APT.format(folder=folder))
        # It may fail for one source of many. If a package is then missing, install says so.
        problems = self._run("apt-get", "-c", str(self._settings), "-qq", "update", check=False)
        if not any(lists.glob("*_Packages*")):
            raise RuntimeError(f"apt-get has no list of packages: {problems}")

    def unpack(self, package: str, root: Path) -> None:
        """Download a package and its missing dependencies, and unpack them into a folder."""
        self._run("apt-get", "-c", str(self._settings), "-qqy", "--download-only", "install", package)
        for archive in sorted(self._archives.glob("*.deb")):
            self._run("dpkg-deb", "--extract", str(archive), str(root))
            archive.unlink()

    def _run(self, *command: str, check: bool = True) -> str:
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
        problems = " ".join(done.stderr.split())
        if check and done.returncode:
            raise RuntimeError(f"{command[0]}: {problems}")
        return problems


def _write_script(program: str) -> None:
    """Write the script that starts an unpacked program. FileNotFoundError: there is none."""
    root = folder() / "root"
    # Chromium's own folder comes first: in usr/bin is a script that expects it to be installed.
    places = (f"usr/lib/{program}", "usr/sbin", "usr/bin", "sbin", "bin")
    found = next((root / place / program for place in places if (root / place / program).is_file()), None)
    if found is None:
        raise FileNotFoundError(f"the package has no {program}; is it installed, but not on PATH?")
    libraries = sorted({str(library.parent) for library in root.rglob("*.so*")})
    programs().mkdir(exist_ok=True)
    script = programs() / program
    script.unlink(missing_ok=True)  # it may be a link to an installed program
    names = {"libraries": ":".join(libraries), "data": str(root / "usr" / "share"), "program": str(found)}
    script.write_text(SCRIPT.format_map({key: shlex.quote(value) for key, value in names.items()}))
    script.chmod(0o755)


def main() -> None:
    """Download the missing programs. Failures are printed; the tests can run without them."""
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), str(programs())])
    failed = fetch([package for package in lacking(PACKAGES, path) if not link_installed(package)])
    for reason in sorted(set(failed.values())):
        packages = ", ".join(package for package in failed if failed[package] == reason)
        print(f"Not fetched: {packages}: {reason[:500]}", file=sys.stderr)
    if failed:
        print(
            "Tests that need them are skipped, with this reason. Or install them yourself.", file=sys.stderr
        )


if __name__ == "__main__":
    main()
