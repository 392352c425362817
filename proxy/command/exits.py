"""Ends a command that has failed: exit codes, and lines on stderr."""

import os
import sys
from typing import Final

from proxy.command.config import misspelt_variables
from proxy.text.printable import printable

EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
"""Wrong usage or a wrong configuration."""
EXIT_INTERRUPTED: Final = 130
"""What shells use for a command that SIGINT has ended."""


def complain(command: str, text: str, code: int) -> int:
    """Print an error in one line, without control characters, with the command's name. Return `code`."""
    sys.stderr.write(f"fetchgate {command}: {printable(text)}\n")
    return code


def complain_of_variables(command: str) -> None:
    """Print the environment variables that fetchgate ignores although their names look like options."""
    for text in misspelt_variables(os.environ):
        sys.stderr.write(f"fetchgate {command}: {text}\n")
