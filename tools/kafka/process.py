"""A Java process whose output goes to a file. It ends at the latest when the Python process ends."""

import contextlib
import signal
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path

from tools.kafka import reaper
from tools.kafka.java import java

TAIL = 40


class JavaProcess:
    """A Java program (main class and arguments) that runs until `end`, with its output in `log`."""

    def __init__(
        self,
        class_path: str,
        arguments: Sequence[str],
        *,
        log: Path,
        heap: str = "512m",
        options: Sequence[str] = (),
    ) -> None:
        self.log = log
        command = [str(java()), f"-Xmx{heap}", *JVM, *options, "-cp", class_path, *arguments]
        with log.open("ab") as output:
            self._popen = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
            )
        self._lock = threading.Lock()
        reaper.watch(self.pid)

    @property
    def pid(self) -> int:
        """The process id."""
        return self._popen.pid

    @property
    def running(self) -> bool:
        """Whether the process is running."""
        return self._popen.poll() is None

    def end(self, *, kill: bool = False, timeout: float = 30.0) -> int:
        """End the process with SIGTERM, after `timeout` seconds or with `kill` with SIGKILL."""
        with self._lock:
            if self.running:
                self._popen.send_signal(signal.SIGKILL if kill else signal.SIGTERM)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._popen.wait(timeout)
                if self.running:
                    self._popen.kill()
            code = self._popen.wait()
            reaper.forget(self.pid)
            return code

    def tail(self) -> str:
        """Return the last lines of the process's log."""
        lines = self.log.read_text(errors="replace").splitlines()
        return "\n".join(lines[-TAIL:])


JVM = (
    "-Xms64m",
    "-XX:+UseSerialGC",
    "-Djava.awt.headless=true",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS",
)
"""Options for a small heap, a garbage collector with one thread, and a log of warnings and errors only."""
