"""Creates the contents of the golden files of `replay measure`, with which tests compare later results."""

import io
import json
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from replay import cli
from replay.report.model import Report
from tests.replay.measure.consumers import CLIENT, captured_twice

FOLDER: Final = Path(__file__).parent
REPORTS: Final = FOLDER / "reports.txt"
CAPTURES: Final = sorted((FOLDER.parents[1] / "captures").glob("*.pcap"))


def file_of(capture: Path) -> Path:
    """Return the file with the report of a capture."""
    return FOLDER / f"{capture.stem}.json"


def measured(capture: Path) -> str:
    """Return the report of `replay measure --json`."""
    return _printed("measure", str(capture), "--json")


def _printed(*arguments: str) -> str:
    said = io.StringIO()
    with redirect_stdout(said), redirect_stderr(io.StringIO()):
        assert cli.main([*arguments]) in {0, 3}
    return said.getvalue()


def kept(capture: Path) -> Report:
    """Return the golden report of a capture, for tests that need not measure it again."""
    found: Report = json.loads(file_of(capture).read_text())
    return found


def reports() -> str:
    """Return what `measure` says first of a broker's capture, of two hosts, and of both sides of a router."""
    with TemporaryDirectory() as folder:
        router = str(captured_twice(Path(folder) / "router.pcap", CLIENT))
        hosts = [
            str(FOLDER.parents[1] / "captures" / f"librdkafka-{name}.pcap") for name in ("100p", "rebalance")
        ]
        of_each = {
            "captures/followers.pcap": [str(FOLDER.parents[1] / "captures" / "followers.pcap")],
            "captures of two hosts": hosts,
            "before and after NAT": [router],
        }
        told = {name: _printed("measure", *given).split("\n\n")[0] for name, given in of_each.items()}
    return "\n".join(f"# {name}\n{text}\n" for name, text in told.items())
