"""Prepares the newest Kafka release: downloads its jars, and makes an archive of its classes.

    python -m tools.kafka
    python -m tools.kafka --serve orders    then runs a broker with this topic, until Ctrl-C

Without the archive, brokers only take longer to start (`tools.kafka.sharing`). If the archive can't be made,
a message says so, and the command succeeds.
"""

import argparse
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from tools.kafka import LATEST, Broker
from tools.kafka.admin import Admin
from tools.kafka.jars import cache_folder, classpath, fetch
from tools.kafka.sharing import archive, listing, make

_PARTITIONS: Final = 100


def make_ready(version: str) -> None:
    """Fetch a release's jars, and make an archive of the classes that its broker loads when it starts."""
    fetch(version)
    file = archive(version)
    if file.exists():
        return
    print(f"Making an archive of the classes of Kafka {version} (once, about 10 s) ...", flush=True)
    began = time.monotonic()
    try:
        _make_archive(version, file)
    except (OSError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        print(f"No archive could be made, so brokers take longer to start: {reason[:500]}", flush=True)
        return
    size, took = file.stat().st_size >> 20, time.monotonic() - began
    print(f"Made {file.name}, {size} MB, in {took:.0f} s", flush=True)


def _make_archive(version: str, file: Path) -> None:
    with tempfile.TemporaryDirectory(dir=cache_folder(), prefix="archiving-") as scratch:
        classes, made = Path(scratch) / "classes", Path(scratch) / file.name
        with Broker(version, options=listing(classes)) as broker:
            broker.stop()
        make(made, classes, classpath(version))
        made.rename(file)


def _serve(topic: str) -> None:
    """Run a broker with a topic until Ctrl-C or SIGTERM. With one partition, sessions would save nothing."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with Broker(LATEST) as broker:
        with Admin(broker.address) as admin:
            admin.create_topic(topic, partitions=_PARTITIONS)
        print(
            f"{broker.address} has the topic {topic} of {_PARTITIONS} partitions; Ctrl-C ends it", flush=True
        )
        try:
            signal.pause()
        except KeyboardInterrupt:
            print("Ending it ...", flush=True)


def main() -> None:
    """Parse the command line, and prepare the newest Kafka release."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("python -m tools.kafka", description=__doc__, formatter_class=raw)
    parser.add_argument("--serve", metavar="TOPIC", help="run a broker with this topic, until Ctrl-C")
    given = parser.parse_args()
    try:
        make_ready(LATEST)
        if given.serve:
            _serve(given.serve)
    except RuntimeError as error:
        sys.exit(f"tools.kafka: {error}")


if __name__ == "__main__":
    main()
