"""The bytes of captured packets as columns of TCP fields."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Filter:
    """Which connections are wanted: one of its hosts and one of its ports must be among those named."""

    hosts: frozenset[str] = frozenset()
    """Addresses or networks (`10.0.0.0/8`); none: all."""
    ports: frozenset[int] = frozenset()
    """None: all."""
