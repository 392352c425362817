"""Draws the docs' picture of the HTML report: `python -m tools.report_picture` writes docs/users/report.png.

The picture is the first part of the report of a capture, in Chromium (`python -m tools.debian` fetches it).
It also has the hash of the report, so a test notices a picture of an older report without a browser.
"""

import hashlib
import os
import sys
import tempfile
import zlib
from base64 import b64decode
from pathlib import Path
from typing import Final

from replay import cli
from tools import debian

ROOT: Final = Path(__file__).parent.parent
PICTURE: Final = ROOT / "docs" / "users" / "report.png"
CAPTURE: Final = ROOT / "captures" / "many-clients-any.pcap"
OPTIONS: Final = ("--price-per-gb", "0.02", "--currency", "USD")
"""The options of the report, which docs/users/report.md names, too."""
WIDTH: Final = 960
HEIGHT: Final = 1360
_LAST_CHUNK: Final = 12


def main(out: Path = PICTURE) -> int:
    """Write the picture and return the exit code."""
    os.environ["PATH"] += f"{os.pathsep}{debian.programs()}"
    from tests.replay.report.browser import PROGRAM, Browser  # noqa: PLC0415 - it looks for Chromium in PATH

    if PROGRAM is None:
        sys.stderr.write("report_picture: no Chromium or Chrome here: python -m tools.debian fetches it\n")
        return 1
    # Processes of Chromium may still write to its profile for a moment after it has ended.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        page = Path(folder, "report.html")
        if code := write_report(page):
            return code
        report = page.read_bytes()
        with Browser(Path(folder, "profile")) as browser:
            browser.emulate(width=WIDTH)
            browser.open(page.as_uri())
            clip = {"x": 0, "y": 0, "width": WIDTH, "height": HEIGHT, "scale": 1}
            image = browser.call("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)
    drawn = b64decode(image["data"])
    out.write_bytes(drawn[:-_LAST_CHUNK] + stamp(report) + drawn[-_LAST_CHUNK:])
    return 0


def write_report(page: Path) -> int:
    """Write the report that the picture shows, and return the exit code."""
    return cli.main(["measure", str(CAPTURE), *OPTIONS, "--html", str(page)])


def stamp(report: bytes) -> bytes:
    """Return the hash of a report as a text chunk of a PNG."""
    text = b"tEXtreport\0" + hashlib.sha256(report).hexdigest().encode()
    return (len(text) - 4).to_bytes(4) + text + zlib.crc32(text).to_bytes(4)


if __name__ == "__main__":
    raise SystemExit(main())
