"""Renews the digests of the images that the Containerfile begins with.

    python -m tools.base_images    # asks the registry, by skopeo or docker

A tag says which image is meant, a digest which one it was. With both, a build has the same base each time,
and a renewal is a change that somebody sees. A digest comes from a registry alone, never from a guess.
"""

import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

CONTAINERFILE: Final = Path(__file__).parent / "deploy" / "Containerfile"
_FROM: Final = re.compile(r"^FROM ([\w./-]+:[\w.-]+)(?:@(sha256:[0-9a-f]{64}))?(?= |$)", re.MULTILINE)
_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}")
_ASK: Final = (
    ("skopeo", "inspect", "--no-tags", "--format", "{{.Digest}}", "docker://"),
    ("docker", "buildx", "imagetools", "inspect", "--format", "{{.Manifest.Digest}}", ""),
)
"""The commands that tell the digest of an image; the name goes behind the last word."""


def digest_of(image: str) -> str:
    """Ask the registry for the digest of an image, of all its platforms together.

    Raises:
        RuntimeError: there is no program that could ask, or the registry did not answer.
    """
    problems = []
    for *command, last in _ASK:
        if shutil.which(command[0]) is None:
            problems.append(f"no {command[0]} here")
            continue
        done = subprocess.run(
            [*command, f"{last}{image}"], capture_output=True, text=True, check=False, timeout=120
        )
        if done.returncode == 0 and _DIGEST.fullmatch(done.stdout.strip()):
            return done.stdout.strip()
        problems.append(f"{command[0]}: {' '.join((done.stderr or done.stdout).split())[:300]}")
    raise RuntimeError(f"{image}: {'; '.join(problems)}")


def renewed(text: str, ask: Callable[[str], str]) -> str:
    """Return a Containerfile with a digest behind each tag of a `FROM`.

    Args:
        text: the file.
        ask: gives the digest of an image.
    """
    known: dict[str, str] = {}

    def pin(match: re.Match[str]) -> str:
        image = match[1]
        if image not in known:
            known[image] = ask(image)
        return f"FROM {image}@{known[image]}"

    return _FROM.sub(pin, text)


def without_digests(text: str) -> str:
    """Return a Containerfile that takes whatever its tags name."""
    return _FROM.sub(r"FROM \1", text)


def main() -> int:
    """Renew the Containerfile."""
    try:
        after = renewed(CONTAINERFILE.read_text(), digest_of)
    except (RuntimeError, OSError, subprocess.TimeoutExpired) as error:
        print(f"tools.base_images: nothing is changed: {error}", file=sys.stderr)
        return 1
    CONTAINERFILE.write_text(after)
    for image, digest in _FROM.findall(after):
        print(f"{image} {digest}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
