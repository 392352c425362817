"""Helm for tests of the chart, built once into `.cache/helm`, where there is Go.

    python -m tools.helm

Helm comes as a Go module; Go downloads it, and checks it by its checksum database. A helm that is installed
is used instead. Without both, the tests of the chart are skipped. `make clients` builds it: two minutes on
two cores are too many for `make test`.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

MODULE: Final = "helm.sh/helm/v3/cmd/helm@v3.18.6"
SECONDS: Final = 900.0
"""For the build: two minutes on two cores."""


def folder() -> Path:
    """Return the folder of the program, beside Kafka's jars."""
    root = os.environ.get("FETCHGATE_CACHE")
    place = Path(root) if root else Path(__file__).parents[1] / ".cache"
    return (place / "helm" / MODULE.rpartition("@")[2]).absolute()


def program() -> str | None:
    """Return the path of helm; None if there is none."""
    return shutil.which("helm") or shutil.which("helm", path=str(folder()))


def build() -> None:
    """Build helm.

    Raises:
        RuntimeError: there is no Go, or it failed.
    """
    if shutil.which("go") is None:
        raise RuntimeError("no helm and no Go here: tests of the Helm chart are skipped")
    print(f"Building helm into {folder()} (once; some minutes) ...", flush=True)
    environment = {**os.environ, "GOBIN": str(folder()), "GOFLAGS": "-trimpath"}
    done = subprocess.run(
        ["go", "install", MODULE],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        timeout=SECONDS,
    )
    if done.returncode:
        raise RuntimeError(f"go install {MODULE}: {done.stderr[-500:]}")


def main() -> None:
    """Build helm if it is missing. A failure is printed; the tests can run without."""
    if program() is not None:
        return
    try:
        build()
    except (RuntimeError, OSError, subprocess.TimeoutExpired) as error:
        print(f"tools.helm: {error}", file=sys.stderr)


if __name__ == "__main__":
    main()
