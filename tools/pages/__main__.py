"""Writes the reference pages: `python -m tools.pages`."""

from tools.pages.all import PAGES

for path, page in PAGES.items():
    path.write_text(page(), encoding="utf-8")
