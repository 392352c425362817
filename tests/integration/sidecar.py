"""The gateway as a sidecar: an unprivileged process that shares a network namespace with the client."""

import os
import shlex
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from tools.gateway import GatewayProcess
from tools.netns import Namespace

USER: Final = 61092
"""The gateway's own, whose connections the rules leave alone."""


class Sidecar(GatewayProcess):
    """`fetchgate proxy` in a namespace, as `USER` and with no right but those named.

    Args:
        place: the namespace.
        options: the command line.
        rights: capabilities that it needs, as setpriv names them.
        user: who runs it.
    """

    def __init__(self, place: Namespace, *options: str, rights: Sequence[str] = (), user: int = USER) -> None:
        super().__init__("")
        self._place = place
        self.admin = "127.0.0.1:9464"
        self._command = [
            *as_user(user, rights),
            *(sys.executable, "-m", "proxy", "proxy"),
            *options,
        ]

    def start(self) -> None:
        with self._place.inside():
            super().start()

    def _get(self, page: str) -> str:
        with self._place.inside():
            return super()._get(page)


class Shipped(Sidecar):
    """The gateway as a container of it is started: command line and environment, and nothing to write to.

    Args:
        place: the namespace.
        command: as the manifest has it.
        environment: as well.
        user: whom the container starts as; 0 is root.
        rights: capabilities that the container adds.
    """

    def __init__(
        self,
        place: Namespace,
        command: Sequence[str],
        environment: Mapping[str, str],
        *,
        user: int,
        rights: Iterable[str],
    ) -> None:
        super().__init__(place)
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        self._environment = {**os.environ, "PATH": path, "PYTHONPATH": str(_ROOT), **environment}
        self._command = [*READ_ONLY, *confined(user, rights), *map(_reading, command)]


class Written(Sidecar):
    """The gateway as a line of a page starts it.

    Args:
        place: the namespace.
        line: the command; `fetchgate` in it is this repository's.
    """

    def __init__(self, place: Namespace, line: str) -> None:
        super().__init__(place)
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        self._environment = {**os.environ, "PATH": path, "PYTHONPATH": str(_ROOT)}
        self._command = [*_opened(), *line.split()]


READ_ONLY: Final = (
    *("unshare", "--mount", "--propagation", "private"),
    *("sh", "-c", 'mount -o remount,bind,ro / && exec "$@"', "sh"),
)
"""In front of a program that gets a root file system that can't be written."""
_ROOT: Final = Path(__file__).parents[2]


def confined(user: int, rights: Iterable[str]) -> list[str]:
    """Give the command line in front of a program that runs as in a container: without rights but these."""
    if user:
        return as_user(user, [*rights])
    kept = [*rights] if _reaches(USER) else [*rights, "dac_read_search"]
    bounds = ",".join(["-all", *(f"+{right}" for right in kept)])
    return ["setpriv", "--no-new-privs", "--clear-groups", "--inh-caps=-all", f"--bounding-set={bounds}"]


def _opened() -> list[str]:
    """Give the command line in front of a program that may reach the interpreter as whoever it becomes.

    Folders on the way that are closed to others (somebody's home) are opened in a layer of memory above them,
    which nobody else sees.
    """
    needed = (os.path.realpath(sys.executable), sys.executable, __file__)
    parents = {folder for path in needed for folder in Path(path).parents}
    steps = ["mount -t tmpfs tmpfs /mnt"]
    for number, folder in enumerate(sorted(each for each in parents if not each.stat().st_mode & 0o001)):
        layer, below = f"/mnt/{number}", shlex.quote(str(folder))
        options = f"lowerdir={below},upperdir={layer}/upper,workdir={layer}/work"
        steps.append(f"mkdir -p {layer}/upper {layer}/work")
        steps.append(f"mount -t overlay -o {options} overlay {below} && chmod o+x {below}")
    script = " && ".join([*steps, 'exec "$@"'])
    return ["unshare", "--mount", "--propagation", "private", "sh", "-c", script, "sh"]


def _reading(word: str) -> str:
    """Let a word of a setpriv command keep what the interpreter's place asks for."""
    is_set = word.startswith(("--inh-caps=", "--ambient-caps=", "--bounding-set="))
    return f"{word},+dac_read_search" if is_set and not _reaches(USER) else word


def as_user(user: int, rights: Sequence[str] = ()) -> list[str]:
    """Give the command line in front of a program that runs it as somebody without rights.

    Where that one could not reach the interpreter (it lies in somebody's home), reading goes without asking.
    """
    needed = [*rights] if _reaches(user) else [*rights, "dac_read_search"]
    command = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", "--no-new-privs"]
    if needed:
        kept = ",".join(f"+{right}" for right in needed)
        command += [f"--inh-caps=-all,{kept}", f"--ambient-caps=-all,{kept}"]
    return command


def _reaches(user: int) -> bool:
    command = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", "test", "-x"]
    return not any(
        subprocess.run([*command, path], check=False).returncode
        for path in (os.path.realpath(sys.executable), sys.executable, __file__)
    )
