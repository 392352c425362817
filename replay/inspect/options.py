"""The options of ``fetchgate replay inspect``."""

from dataclasses import dataclass

from replay.options import ReplayOptions, key_logs, on, ports


@dataclass(frozen=True, slots=True, kw_only=True)
class InspectOptions(ReplayOptions):
    """The options, already checked."""

    description = (
        "Show what is in captures: which connections speak Kafka, what they request, and what is missing."
    )
    takes = ("FILE|GLOB|DIR|-", "pcap or pcapng, also .gz, .zst and .lz4")
    examples = """\
examples:
  fetchgate replay inspect fetches.pcap
  fetchgate replay inspect captures/ --json
  zcat old.pcap.gz | fetchgate replay inspect -
  fetchgate replay inspect any.pcap --port 9092
      reads only this port, and reads it as Kafka, whatever the bytes look like

Exit codes: 0 done, 1 failed, 2 wrong usage, 3 done, but a file is not a capture, is damaged or
incomplete, or has no Kafka.
"""

    port: tuple[int, ...] = ports(
        "a port on which brokers listen (repeatable; default: Kafka is recognised by its bytes)"
    )
    keylog: tuple[str, ...] = key_logs()
    json: bool = on(help="print one JSON object")
