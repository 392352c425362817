"""The gateway as a sidecar: an unprivileged process that shares a network namespace with the client."""

import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Final

from tests.integration.gateway import GatewayProcess
from tools.netns import Namespace

USER: Final = 65532
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
