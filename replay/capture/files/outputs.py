"""Checks a file to write to, before the work whose result is to be written there."""

import os
from pathlib import Path

from replay.capture.files.formats import HEADER, NotACaptureError, identify
from replay.capture.files.streams import compression, first_line


def why_not(file: Path) -> str | None:
    """Return why a report can't or must not be written to a file, and the remedy. None if it can be written.

    A capture is never overwritten: after `--html *.pcap`, the first capture is the value of the option.
    """
    folder = file.absolute().parent
    try:
        if not folder.is_dir():
            return "there is no such directory to write to"
        if file.is_dir():
            return "it is a directory; name a file"
        exists = file.exists()
    except OSError as error:
        return f"{first_line(error)}; name another file"
    if not os.access(file if exists else folder, os.W_OK):
        return "no permission to write there; name another file"
    if _is_capture(file):
        return "it is a capture, and would be overwritten; name a new file before the captures"
    return None


def _is_capture(file: Path) -> bool:
    if not file.is_file() or not os.access(file, os.R_OK):
        return False
    with file.open("rb") as opened:
        head = opened.read(HEADER)
    if compression(head[:4]):
        return True
    try:
        identify(head)
    except NotACaptureError:
        return False
    return True
