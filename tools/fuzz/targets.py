"""All targets of the fuzzer, by name."""

from collections.abc import Mapping
from typing import Final

from tools.fuzz import admin, captures, connection
from tools.fuzz.target import FuzzTarget

TARGETS: Final[Mapping[str, FuzzTarget]] = {
    target.name: target for target in (*connection.TARGETS, *captures.TARGETS, *admin.TARGETS)
}
