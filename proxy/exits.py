"""How a command ends that can't do its work: exit codes, and lines on stderr."""

import os
import sys
from typing import Final

from proxy.config import misspelt_variables

EXIT_FAILED: Final = 1
"""It failed at run time."""
EXIT_USAGE: Final = 2
"""Wrong usage or configuration."""
EXIT_INTERRUPTED: Final = 130
"""The exit code that shells give for a command that SIGINT ended."""


def complain(command: str, text: str, code: int) -> int:
    """Print what is wrong and return the exit code.

    Args:
        command: `proxy` or `top`.
        text: one line.
        code: one of the above.
    """
    sys.stderr.write(f"fetchgate {command}: {text}\n")
    return code


def complain_of_variables(command: str) -> None:
    """Print which environment variables are ignored: a missing option may be misspelt in one of them."""
    for text in misspelt_variables(os.environ):
        sys.stderr.write(f"fetchgate {command}: {text}\n")
