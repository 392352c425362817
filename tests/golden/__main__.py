"""Writes the golden files again: those in the folder of this module, and the pieces of features.

``python -m tests.golden state.json metrics.txt`` writes files of these names alone. It measures no capture.
"""

import sys
from functools import partial

from proxy.features.declared import NAMES
from tests.golden.made import base, piece
from tests.golden.measured import CAPTURES, REPORTS, file_of, measured, reports

texts = base()
for name in NAMES:
    texts |= piece(name)
makers = {path: partial(str, text) for path, text in texts.items()} | {REPORTS: reports}
makers |= {file_of(capture): partial(measured, capture) for capture in CAPTURES}
for path, make in makers.items():
    if not sys.argv[1:] or path.name in sys.argv[1:]:
        path.write_text(make())
