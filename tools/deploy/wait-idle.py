#!/usr/bin/env python3
"""Wait until no client is connected to the gateway any more, or so many seconds; a container's preStop.

A pod that ends stops its containers together where sidecars have no order (before Kubernetes 1.29): the
gateway then stays for those who still finish. It always leaves with 0: a hook that fails helps nobody.
"""

import json
import sys
import time
import urllib.request
from http.client import HTTPException
from urllib.error import URLError


def main() -> None:
    """Ask every half second."""
    admin, seconds = sys.argv[1], float(sys.argv[2])
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and not is_left(admin):
        time.sleep(0.5)


def is_left(admin: str) -> bool:
    """Ask whether no client is connected, or the gateway is gone: it refuses then.

    One that does not answer, or not as it should, may have its hands full: it has clients.
    """
    try:
        with urllib.request.urlopen(f"http://{admin}/state?connections=0", timeout=2) as response:
            return not json.load(response)["connections_open"]
    except URLError as error:
        return isinstance(error.reason, ConnectionRefusedError)
    except (OSError, HTTPException, ValueError, KeyError):
        return False


if __name__ == "__main__":
    main()
