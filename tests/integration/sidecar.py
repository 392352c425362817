"""The gateway as a sidecar: an unprivileged process in the client's network namespace."""

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
"""The user id of the gateway. Connections of this user are not redirected."""


class Sidecar(GatewayProcess):
    """`fetchgate proxy` in a namespace, as `USER` and only with the given rights.

    Args:
        place: the namespace.
        options: the command line.
        rights: the capabilities that the gateway needs, with setpriv's names.
        user: the user who runs the gateway.
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
    """The gateway as in a container: with its command line and environment, and without a writable file
    system.

    Args:
        place: the namespace.
        command: the command in the manifest.
        environment: the environment in the manifest.
        user: the container's user. 0 is root.
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
    """The gateway, started by a command line from a page of the documentation.

    Args:
        place: the namespace.
        line: the command. It uses this repository's `fetchgate`.
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
"""The command line before a program, to give it a read-only root file system."""
_ROOT: Final = Path(__file__).parents[2]


def confined(user: int, rights: Iterable[str]) -> list[str]:
    """Return the words to put before a command, to run it with only these rights, like in a container."""
    if user:
        return as_user(user, [*rights])
    kept = [*rights] if _reaches(USER) else [*rights, "dac_read_search"]
    bounds = ",".join(["-all", *(f"+{right}" for right in kept)])
    return ["setpriv", "--no-new-privs", "--clear-groups", "--inh-caps=-all", f"--bounding-set={bounds}"]


def _opened() -> list[str]:
    """Return the command line before a program, so that any user can reach the interpreter.

    Folders on the path that other users can't open (such as a home folder) are opened in a private layer in
    memory.
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
    """Return a setpriv argument with the additional rights that are needed to read the interpreter."""
    is_set = word.startswith(("--inh-caps=", "--ambient-caps=", "--bounding-set="))
    return f"{word},+dac_read_search" if is_set and not _reaches(USER) else word


def as_user(user: int, rights: Sequence[str] = ()) -> list[str]:
    """Return the command line before a program, to run it as a user without rights.

    If this user can't reach the interpreter, because it is in another user's home, the program may read all
    files.
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
