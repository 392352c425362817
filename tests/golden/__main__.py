"""Writes the golden files again: those in the folder of this module, and the pieces of features."""

from proxy.features.declared import NAMES
from tests.golden.made import base, piece
from tests.golden.measured import CAPTURES, REPORTS, file_of, measured, reports

texts = base() | {REPORTS: reports()} | {file_of(capture): measured(capture) for capture in CAPTURES}
for name in NAMES:
    texts |= piece(name)
for path, text in texts.items():
    path.write_text(text)
