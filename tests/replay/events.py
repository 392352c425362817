"""Reads captures in this process, as the Spark tasks of `fetchgate replay` do."""

from pathlib import Path

from replay.capture.files import sources
from replay.capture.kafka.exchanges import Connections, Event
from replay.capture.packets import segments


def captured_events(*inputs: Path) -> list[Event]:
    """Return the exchanges and the ends of all connections in some captures, or in folders of captures."""
    shares = sources.plan(sources.expand([str(path) for path in inputs]), 1 << 30)
    return [*Connections().read(batch for share in shares for batch in segments.read(share))]
