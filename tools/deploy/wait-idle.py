#!/usr/bin/env python3
"""Waits until no client is connected to the gateway, or for a time limit: a container's preStop hook.

Before Kubernetes 1.29 sidecars have no order, and a pod stops all its containers at once. With this hook the
gateway stays until its clients have finished. The exit code is always 0, because a failed hook would help
nobody. Two environment variables are the same as for the gateway: FETCHGATE_ADMIN_TOKEN_FILE is the file with
the admin endpoint's token, and FETCHGATE_ADMIN_CERT is its certificate. An expired certificate is not
trusted. The hook then waits for the time limit.
"""

import json
import os
import ssl
import sys
import time
import urllib.request
from http.client import HTTPException
from pathlib import Path
from urllib.error import URLError


def main() -> None:
    """Wait until no client is connected. Check every half second."""
    admin, seconds = sys.argv[1], float(sys.argv[2])
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and not is_left(admin):
        time.sleep(0.5)


def is_left(admin: str) -> bool:
    """Return whether no client is connected, or the gateway has ended and refuses connections.

    If the gateway gives no correct response, it may be busy. Then the result is False.
    """
    cert = os.environ.get("FETCHGATE_ADMIN_CERT")
    address = f"{'https' if cert else 'http'}://{admin}/state?connections=0"
    request = urllib.request.Request(address)  # noqa: S310 - http or https
    try:
        context = _trusting(cert) if cert else None
        if file := os.environ.get("FETCHGATE_ADMIN_TOKEN_FILE"):
            token = Path(file).read_text(encoding="ascii").partition("\n")[0].strip()
            request.add_header("Authorization", f"Bearer {token}")
        with urllib.request.urlopen(request, timeout=2, context=context) as response:  # noqa: S310 - http or https
            return not json.load(response)["connections_open"]
    except URLError as error:
        return isinstance(error.reason, ConnectionRefusedError)
    except (OSError, HTTPException, ValueError, KeyError):
        return False


def _trusting(cert: str) -> ssl.SSLContext:
    """Return a TLS context that trusts exactly this certificate, under any host name.

    The host name does not matter, because the gateway runs on the same machine as this hook.
    """
    context = ssl.create_default_context(cafile=cert)
    context.check_hostname = False
    # Without VERIFY_X509_STRICT, a default from Python 3.13 on: many CAs do not satisfy it.
    context.verify_flags = ssl.VERIFY_X509_PARTIAL_CHAIN
    return context


if __name__ == "__main__":
    main()
