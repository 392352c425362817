"""Makes ready what brokers of the newest release start from, once: their jars, an archive of their classes.

    python -m tools.kafka

Without the archive, whatever starts brokers works as well, and takes longer (`tools.kafka.sharing`).
"""

import sys
import tempfile
import time
from pathlib import Path

from tools.kafka import LATEST, Broker
from tools.kafka.jars import cache_folder, fetch
from tools.kafka.sharing import archive, making


def make_ready(version: str) -> None:
    """Fetch a release's jars, and make the archive of what its broker has loaded when it is up.

    Raises:
        RuntimeError: the jars could not be fetched, the broker did not come up, or Java made no archive.
    """
    fetch(version)
    file = archive(version)
    if file.exists():
        return
    print(f"Making an archive of the classes of Kafka {version} (once, about 10 s) ...", flush=True)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(dir=cache_folder(), prefix="archiving-") as scratch:
        made = Path(scratch) / "classes.jsa"
        with Broker(version, options=making(made)) as broker:
            broker.stop()
            if not made.exists():
                raise RuntimeError(f"Java made no archive of Kafka {version}:\n{broker.log()}")
        made.rename(file)
    size, took = file.stat().st_size >> 20, time.monotonic() - began
    print(f"Made {file.name}, {size} MB, in {took:.0f} s", flush=True)


if __name__ == "__main__":
    try:
        make_ready(LATEST)
    except RuntimeError as error:
        sys.exit(f"tools.kafka: {error}")
