"""The version of fetchgate."""

from importlib.metadata import version
from typing import Final

VERSION: Final = version("kafka-fetchgate")
