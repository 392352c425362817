"""Ends the child processes of this process when this process ends, even if it is killed.

A child process reads from a pipe that only this process has. When the pipe closes, by an exit or by SIGKILL,
the child kills the registered processes and removes the registered folders. (PR_SET_PDEATHSIG
would kill a broker when the *thread* that started it ends. That may be long before the process ends.)
"""

import atexit
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

_lock = threading.Lock()
_child: subprocess.Popen[str] | None = None


# Registered on import, so that it runs after the functions that close brokers and call `forget`.
@atexit.register
def _end() -> None:
    """Close the pipe and wait: else Python warns at its end of a process that still runs."""
    if _child is not None:
        _child.communicate()


def watch(pid: int) -> None:
    """Kill a process when the calling process has ended."""
    _send(f"pid {pid}")


def forget(pid: int) -> None:
    """Undo `watch`: the process has ended, and another one may get its id."""
    _send(f"gone {pid}")


def remove(folder: Path) -> None:
    """Remove a folder when this process has ended, if it still exists then."""
    _send(f"folder {folder}")


def _send(line: str) -> None:
    global _child  # noqa: PLW0603 - one child for this process, started when it is first needed
    with _lock:
        if _child is None:
            _child = subprocess.Popen(
                [sys.executable, "-I", "-S", __file__],
                stdin=subprocess.PIPE,
                text=True,
                start_new_session=True,  # Ctrl-C is for the parent
            )
        if _child.stdin is None:
            raise RuntimeError("the reaper has no pipe")
        _child.stdin.write(line + "\n")
        _child.stdin.flush()


def main() -> None:
    """Read the processes and folders to watch until the pipe closes, then clean up."""
    pids: set[int] = set()
    folders: set[str] = set()
    for line in sys.stdin:
        kind, _, value = line.rstrip("\n").partition(" ")
        match kind:
            case "pid":
                pids.add(int(value))
            case "gone":
                pids.discard(int(value))
            case "folder":
                folders.add(value)
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
