"""Exit codes of ``fetchgate replay``. 0 means done."""

import os
import sys
from contextlib import suppress
from typing import Final

EXIT_FAILED: Final = 1
"""The command failed at run time."""
EXIT_USAGE: Final = 2
"""Wrong usage or configuration."""
EXIT_PARTLY: Final = 3
"""The command is done, but parts of the input could not be read, or there was nothing to do."""
EXIT_SILENT: Final = 4
"""A broker did not respond in time (`drive`)."""
EXIT_DIFFERS: Final = 5
"""Responses differ from the captured ones in what may not differ (`drive --compare`)."""
EXIT_INTERRUPTED: Final = 130
"""The exit code that shells use if SIGINT has ended a command."""
EXIT_TERMINATED: Final = 143
"""The exit code for SIGTERM."""


def discard_output() -> None:
    """Drop the output that could not be printed. Otherwise Python would print it again at exit, and fail."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
