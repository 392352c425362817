"""Drives a real browser over a pipe (Chrome DevTools Protocol, a NUL after each JSON message)."""

import json
import os
import shutil
import subprocess
import sys
from base64 import b64decode
from pathlib import Path
from typing import Any, Self

PROGRAM = next(
    filter(
        None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable"))
    ),
    None,
)
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)
_LAUNCH = """
import os, sys
ours, theirs = int(sys.argv[1]), int(sys.argv[2])
spare = [os.dup(0), os.dup(0)]  # so that 3 and 4 are taken before the pipes go there
os.dup2(ours, 3); os.dup2(theirs, 4)
os.execv(sys.argv[3], sys.argv[3:])
"""
"""A Python program that becomes the browser. The browser reads messages from file descriptor 3, and writes to
4."""


class Browser:
    """A page in a headless browser. `requests` has the network requests that the page sent."""

    def __init__(self, profile: Path) -> None:
        assert PROGRAM
        read, self._write = os.pipe()
        self._read, write = os.pipe()
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-c", _LAUNCH, str(read), str(write)),
                *(PROGRAM, *FLAGS, f"--user-data-dir={profile}"),
            ],
            pass_fds=(read, write),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(read)
        os.close(write)
        self._buffer = bytearray()
        self._id = 0
        self._session: dict[str, str] = {}
        self.requests: list[str] = []
        self.events: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = {"sessionId": session["sessionId"]}
        for domain in ("Page", "Network", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(20)
        os.close(self._read)
        os.close(self._write)

    def call(self, method: str, **params: object) -> Any:
        """Call a method and wait for its result. Events that come before the result are recorded."""
        self._id += 1
        message = {"id": self._id, "method": method, "params": params, **self._session}
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while (response := self._next()).get("id") != self._id:
            self._note(response)
        assert "error" not in response, response
        return response["result"]

    def open(self, address: str) -> None:
        """Open an address and wait until everything is loaded."""
        self.requests.clear()
        self.events.clear()
        self.call("Page.navigate", url=address)
        while "Page.loadEventFired" not in self.events:
            self._note(self._next())
        self.evaluate("new Promise(done => setTimeout(done, 100))")  # what begins after the load event

    def evaluate(self, expression: str) -> Any:
        """Return the value of a JavaScript expression in the page."""
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def emulate(self, *, width: int, scheme: str = "light", media: str = "screen") -> None:
        """Set the width of the window, the colour scheme, and the medium: screen or print."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False
        )
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self.call("Emulation.setEmulatedMedia", media=media, features=[feature])

    def screenshot(self) -> bytes:
        """Return the whole page as PNG."""
        image = self.call("Page.captureScreenshot", captureBeyondViewport=True)
        return b64decode(image["data"])

    def _note(self, event: dict[str, Any]) -> None:
        self.events.append(event["method"])
        if event["method"] == "Network.requestWillBeSent":
            self.requests.append(event["params"]["request"]["url"])

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            chunk = os.read(self._read, 1 << 16)
            assert chunk, "the browser ended"
            self._buffer += chunk
        message, _, rest = self._buffer.partition(b"\0")
        self._buffer = bytearray(rest)
        parsed: dict[str, Any] = json.loads(message)
        return parsed
