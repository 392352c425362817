"""Reads secrets of TLS connections from key logs, and from captures that contain secrets (pcapng)."""

from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from pathlib import Path

from replay.capture.files.counts import FileCounts
from replay.capture.files.formats import NotACaptureError, identify
from replay.capture.files.pcapng import PcapngRecords
from replay.capture.files.sources import InputError, Source
from replay.capture.files.streams import first_line, open_stream
from replay.capture.files.window import FileWindow
from replay.capture.tls.keylog import KeyLogReader, Secrets


def load(keylogs: Sequence[str], sources: Iterable[Source]) -> tuple[Secrets | None, list[str]]:
    """Read the TLS secrets of the files of --keylog (key logs, or pcapng files with secrets) and of captures.

    If a capture has secrets among its first blocks, it is read to its end.

    Returns:
        The secrets, or None if `keylogs` is empty and no capture has secrets. The second value has one line
            for each part that could not be read.

    Raises:
        InputError: a key log can't be read, or has no secrets.
    """
    embedded = [source.path for source in sources if source.secrets]
    if not keylogs and not embedded:
        return None, []
    import_module("replay.capture.tls.keys")  # what is not installed is told before captures are read
    secrets = Secrets()
    problems = []
    for name in keylogs:
        try:
            if Path(name).is_dir():
                raise InputError(f"--keylog {name}: it is a directory; name a file")
            found, damage = _read(name)
        except OSError as error:
            raise InputError(f"--keylog {name}: {first_line(error)}") from error
        if damage and not found:
            raise InputError(f"--keylog {name}: {damage}")
        if not found:
            raise InputError(
                f"--keylog {name}: no secrets in it; a key log has lines such as CLIENT_RANDOM HEX HEX "
                "(the format of SSLKEYLOGFILE)"
            )
        problems += [f"--keylog {name}: {damage}"] if damage else []
        problems += _left_out(f"--keylog {name}", "lines", found)
        secrets.merge(found)
    for name in embedded:
        try:
            found, _ = _read(name)
        except OSError as error:
            problems.append(f"{name}: TLS secrets can't be read: {first_line(error)}")
            continue
        problems += _left_out(name, "lines of its TLS secrets", found)
        secrets.merge(found)
    return secrets, problems


def _left_out(name: str, lines: str, found: Secrets) -> list[str]:
    told = (
        f"{name}: {found.bad_lines:,} of {found.lines:,} {lines} are left out: a key log has no such "
        f"lines; the first is line {found.first_bad_line}"
    )
    return [told] if found.bad_lines else []


def _read(name: str) -> tuple[Secrets, str]:
    """Return the secrets in a file, and what is damaged in its compression. What precedes damage is read."""
    stream, _ = open_stream(name)
    reader = KeyLogReader()
    window = FileWindow(0)
    damage = ""

    def fill() -> bool:
        nonlocal damage
        try:
            return window.fill(stream)
        except OSError as error:
            if error.errno is not None:
                raise
            damage = first_line(error)
            return False

    with stream:
        more = fill()
        if _is_pcapng(window):
            for found in _embedded(window, fill, more=more):
                reader.feed(found + b"\n")
        else:
            while True:
                reader.feed(bytes(window.data[window.begin : window.end]))
                window.begin = window.end
                if not more:
                    break
                more = fill()
    return reader.finish(), damage


def _is_pcapng(window: FileWindow) -> bool:
    try:
        return identify(bytes(window.data[: min(window.end, 24)])).kind == "pcapng"
    except NotACaptureError:
        return False


def _embedded(window: FileWindow, fill: Callable[[], bool], *, more: bool) -> Iterable[bytes]:
    """Yield the key logs in a pcapng file. `fill` reads more of its bytes, and returns False at the end."""
    found: list[bytes] = []
    records = PcapngRecords(FileCounts(file=""), found)
    while True:
        while records.read(window, final=not more) is not None:
            pass
        yield from found
        found.clear()
        if not more:
            return
        more = fill()
