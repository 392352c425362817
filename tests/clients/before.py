"""A gateway for one cluster, for a test in another language.

Run as ``python -m tests.clients.before BOOTSTRAP``. The program prints the gateway's address, and ends when
its stdin is closed. Then it appends the gateway's counts to the file in $FETCHGATE_COUNTED, as a JSON object
in a line.
"""

import json
import os
import sys
from pathlib import Path

from tools.gateway import GatewayProcess


def main() -> None:
    """Run a gateway until stdin is closed. Then write its metrics to the file `FETCHGATE_COUNTED`."""
    with GatewayProcess(sys.argv[1]) as gateway:
        sys.stdout.write(f"{gateway.address}\n")
        sys.stdout.flush()
        sys.stdin.read()
        line = json.dumps(gateway.metrics()) + "\n"
        with Path(os.environ["FETCHGATE_COUNTED"]).open("a") as file:
            file.write(line)


if __name__ == "__main__":
    main()
