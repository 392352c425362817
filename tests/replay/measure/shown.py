"""Runs `measure` as users do, once for the same arguments, and returns what it said in each form."""

import json
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import cache
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from replay import cli


@dataclass(frozen=True, kw_only=True)
class Shown:
    """The text and the page of a report, both with single ordinary spaces."""

    text: str
    """The text without line ends, so that a sentence is found where it was broken."""
    html: str
    err: str

    @property
    def both(self) -> tuple[str, str]:
        """Return the text and the page, for what both of them have."""
        return self.text, self.html


@cache
def shown(*arguments: str, code: int = 0) -> Shown:
    """Return what `measure` says as text and as a page. Its exit code must be `code`."""
    with TemporaryDirectory() as folder:
        page = Path(folder) / "report.html"
        out, err = _ran(*arguments, "--html", str(page), code=code)
        html = page.read_text(encoding="utf-8").replace("\N{NO-BREAK SPACE}", " ")
    return Shown(text=" ".join(out.split()), html=html, err=err)


def shown_as_json(*arguments: str, code: int = 0) -> Any:
    """Return the report that `measure --json` prints. Its exit code must be `code`."""
    return json.loads(_ran(*arguments, "--json", code=code)[0])


@cache
def _ran(*arguments: str, code: int) -> tuple[str, str]:
    out, err = StringIO(), StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        assert cli.main(["measure", *arguments]) == code
    return out.getvalue(), err.getvalue()
