"""Ends what this process started, when this process itself ends, in whatever way.

A child of our own reads from a pipe that only we hold: when it closes, by an exit or by SIGKILL, the child
kills the processes that it was told of and removes their folders. (PR_SET_PDEATHSIG would do it when the
*thread* that started a broker ends, which may be long before.)
"""

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


def watch(pid: int) -> None:
    """Have a process killed when this one is gone."""
    _tell(f"pid {pid}")


def forget(pid: int) -> None:
    """Take back `watch`: the process has ended and its number may come again."""
    _tell(f"gone {pid}")


def remove(folder: Path) -> None:
    """Have a folder removed when this process is gone (no harm when it is gone before)."""
    _tell(f"folder {folder}")


def _tell(line: str) -> None:
    global _child  # noqa: PLW0603 - one child for the process, started when first needed
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
    """Read what there is to watch until the pipe closes, then clean up."""
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
