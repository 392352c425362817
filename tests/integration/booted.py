"""Boots a machine with systemd on this machine's own files. Its changes to files are lost at its end."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Self

import psutil

from tests.integration.bystander import until
from tools.kafka import reaper
from tools.netns import Namespace

ROOT: Final = Path(__file__).parents[2]
PROGRAMS: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""The PATH of system programs only. systemd units can't read programs in a user's home."""

BOOT: Final = """
set -e
folder=$1 prepare=$2
shift 2
mount -t tmpfs tmpfs "$folder"
mkdir "$folder/upper" "$folder/work" "$folder/root"
mount -t overlay -o "lowerdir=/,upperdir=$folder/upper,workdir=$folder/work" overlay "$folder/root"
mount --rbind /dev "$folder/root/dev"
mount -t proc proc "$folder/root/proc"
chroot "$folder/root" sh -ec "$prepare"
umount --lazy "$folder/root/dev" "$folder/root/proc"
exec systemd-nspawn --directory="$folder/root" "$@"
"""


class Machine:
    """A booted machine; `with` ends it.

    The booted machine sees the files of the host, and writes to a layer in memory. Other processes do not see
    its mounts.

    Args:
        network: the network namespace of the machine.
        prepare: shell commands that run in the machine's files, from the folder of this repository, before
            the machine boots. They use the network of the host.
    """

    def __init__(self, network: Namespace, prepare: Sequence[str] = ()) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="fetchgate-machine-"))
        reaper.remove(self.folder)
        self._network = network
        self._prepare = "\n".join([f"cd {ROOT}", *prepare])
        self._process: subprocess.Popen[bytes] | None = None
        self._first = 0

    def __enter__(self) -> Self:
        command = ["unshare", "--mount", "--propagation", "private", "sh", "-c", BOOT, "sh"]
        command += [str(self.folder), self._prepare]
        command += ["--boot", "--register=no", "--keep-unit", "--console=read-only", "--resolv-conf=off"]
        command += [f"--network-namespace-path={self._network.path}", "--capability=CAP_NET_ADMIN"]
        command += ["systemd.unit=basic.target"]
        with (self.folder.with_suffix(".log")).open("wb") as log:
            self._process = subprocess.Popen(
                command,
                env={**os.environ, "PATH": PROGRAMS},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        reaper.watch(self._process.pid)
        try:
            until(self._is_up, "the machine does not boot", patience=240)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(self, line: str, *, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a shell command on the machine, as root, from the folder of this repository.

        Raises:
            RuntimeError: the command failed. The message has its output.
        """
        inside = ("--mount", "--uts", "--ipc", "--net", "--pid", "--cgroup", "--root")
        done = subprocess.run(
            ["nsenter", f"--target={self._first}", *inside, "sh", "-c", f"cd {ROOT} && {line}"],
            env={"PATH": PROGRAMS, "SYSTEMD_PAGER": "cat"},
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        if check and done.returncode:
            raise RuntimeError(f"{line}: {done.stderr or done.stdout}")
        return done

    def close(self) -> None:
        """End the machine and all its processes."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(30)
        reaper.forget(self._process.pid)
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.with_suffix(".log").unlink()

    def _is_up(self) -> bool:
        if self._process is None or self._process.poll() is not None:
            raise RuntimeError(self.folder.with_suffix(".log").read_text(errors="replace"))
        children = psutil.Process(self._process.pid).children()
        if not children or children[0].name() != "systemd":
            return False
        self._first = children[0].pid
        return self.run("systemctl is-active basic.target", check=False).returncode == 0


def absent() -> str:
    """Describe the programs or rights that are missing for `Machine`. Return "" if nothing is missing."""
    programs = ("systemd-nspawn", "nsenter", "unshare", "useradd", "journalctl")
    lacking = [program for program in programs if shutil.which(program) is None]
    if lacking:
        return f"no {', '.join(lacking)} here"
    for program in ("python3", "nft"):
        if shutil.which(program, path=PROGRAMS) is None:
            return f"no {program} of the system here"
    return "" if os.geteuid() == 0 else "only root boots a machine"
