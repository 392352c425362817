"""Writes the golden files in the folder of this module again."""

from tests.golden.made import CAPTURES, FILES, FOLDER, measured

for name, make in FILES.items():
    (FOLDER / name).write_text(make())
for capture in CAPTURES:
    (FOLDER / f"{capture.stem}.json").write_text(measured(capture))
