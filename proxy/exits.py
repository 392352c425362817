"""The end of a command that fails: exit codes, and lines on stderr."""

import os
import sys
from typing import Final

from proxy.config import misspelt_variables

EXIT_FAILED: Final = 1
"""Failure at run time."""
EXIT_USAGE: Final = 2
"""Wrong usage or configuration."""
EXIT_INTERRUPTED: Final = 130
"""The exit code that shells use for a command ended by SIGINT."""


def complain(command: str, text: str, code: int) -> int:
    """Print an error in one line, and return the exit code."""
    sys.stderr.write(f"fetchgate {command}: {text}\n")
    return code


def complain_of_variables(command: str) -> None:
    """Print the environment variables that are ignored. One may be the misspelt name of a missing option."""
    for text in misspelt_variables(os.environ):
        sys.stderr.write(f"fetchgate {command}: {text}\n")
