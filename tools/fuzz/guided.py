"""Fuzzes one target with atheris. libFuzzer ends its process, so each target has its own process.

    python -m tools.fuzz.guided TARGET MODULES COUNT SECONDS SEED FOLDER

The file `result.json` is written to FOLDER. The inputs that reached new code are kept there, too.
"""

import json
import os
import sys
import time
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

SLOWER: Final = 4.0
"""The factor by which traced code is slower. Suspicious inputs are checked again without tracing."""
_SAY_SECONDS: Final = 5.0


def available() -> bool:
    """Return whether atheris is installed."""
    return find_spec("atheris") is not None


def main() -> None:
    """Fuzz until the count or the time is reached."""
    name, modules, count, seconds, seed, folder = sys.argv[1:]
    atheris: Any = import_module("atheris")
    with atheris.instrument_imports(include=modules.split(",")):
        targets = import_module("tools.fuzz.targets")
    target = targets.TARGETS[name]
    watch = import_module("tools.fuzz.plain").Watch(target, slower=SLOWER)
    place = Path(folder)
    corpus = place / "corpus"
    corpus.mkdir(parents=True, exist_ok=True)
    for number, content in enumerate(target.seeds()):
        (corpus / f"seed-{number}").write_bytes(content[: target.most_bytes])
    began = said = time.monotonic()

    def feed(data: bytes) -> None:
        nonlocal said
        watch.feed(data)
        now = time.monotonic()
        over = watch.inputs >= int(count) or now - began >= float(seconds)
        if over or now - said >= _SAY_SECONDS:
            said = now
            suspects = {key: value.hex() for key, value in watch.suspects.items()}
            figures = {"inputs": watch.inputs, "seconds": now - began, "suspects": suspects}
            part = place / "result.part"
            part.write_text(json.dumps(figures))
            part.replace(place / "result.json")
        if over:
            os._exit(0)  # libFuzzer would end the process silently

    options = [f"-seed={int(seed) + 1}", f"-max_len={target.most_bytes}", "-timeout=60", "-rss_limit_mb=2048"]
    options += ["-verbosity=0", f"-artifact_prefix={place}/"]
    atheris.Setup([sys.argv[0], *options, str(corpus)], feed, enable_python_coverage=True)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
