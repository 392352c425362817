"""Builds the site from copies of the pages in their places: `python -m tools.docs_site`, to `.cache/site`."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parent.parent
CONFIG: Final = ROOT / "mkdocs.yml"
SITE: Final = ROOT / ".cache" / "site"
FAILED: Final = 1
CSS: Final = ".md-typeset code.flag { white-space: nowrap; }\n"
_LINK: Final = re.compile(r"\]\(([^)\s#]+)(?:#[^)]*)?\)")
_NESTED: Final = re.compile(r"^ {2,3}(?=(?:[-*]|\d+\.) )", re.MULTILINE)
"""An item in a list of a list. mkdocs reads it as such with four spaces only, Git forges with two as well."""
_CODE_IN_LIST: Final = re.compile(r"^ {7}(?=\S)", re.MULTILINE)
"""Code in an item of a numbered list, which needs seven spaces in Git forges, and eight in mkdocs."""
_FLAG: Final = re.compile(r"(?<!`)`(--[a-z][\w-]{1,25})`(?!`)")
"""An option in a sentence. Its class in the site keeps a browser from breaking the line within it."""


def pages() -> list[Path]:
    """Return the pages of the site: README.md, those in docs/, and others that these link to."""
    found: dict[Path, None] = {}
    todo = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    while todo:
        page = todo.pop(0)
        if page not in found:
            found[page] = None
            todo += [target for target in linked(page) if target.suffix == ".md"]
    return list(found)


def linked(page: Path) -> list[Path]:
    """Return the files of the repository that a page links to, without itself."""
    links = _LINK.findall(page.read_text(encoding="utf-8"))
    return [(page.parent / link).resolve() for link in links if not link.startswith("http")]


def lay(folder: Path) -> None:
    """Copy the pages, and what they link to, to a folder."""
    for page in pages():
        text = _CODE_IN_LIST.sub(" " * 8, _NESTED.sub(" " * 4, page.read_text(encoding="utf-8")))
        text = _FLAG.sub(r"`\1`{.flag}", text)
        to = folder / page.relative_to(ROOT)
        to.parent.mkdir(parents=True, exist_ok=True)
        to.write_text(text, encoding="utf-8")
        for file in linked(page):
            if file.suffix != ".md" and file.is_file():
                (copy := folder / file.relative_to(ROOT)).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(file, copy)


def main(site: Path = SITE) -> int:
    """Build the site and return the exit code: 1 if a page is not well, as with a link that leads nowhere."""
    with tempfile.TemporaryDirectory() as folder:
        laid, config = Path(folder, "docs"), Path(folder, "mkdocs.yml")
        lay(laid)
        (laid / "site.css").write_text(CSS, encoding="utf-8")
        config.write_text(f"INHERIT: {CONFIG}\ndocs_dir: {laid}\nsite_dir: {site}\n", encoding="utf-8")
        done = subprocess.run(
            [sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file", config],
            env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
    sys.stdout.write(done.stdout if done.returncode else f"{site / 'index.html'}\n")
    return FAILED if done.returncode else 0


if __name__ == "__main__":
    raise SystemExit(main())
