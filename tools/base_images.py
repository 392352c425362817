"""Renews the digests of the Containerfile's base images from a registry: `python -m tools.base_images`."""

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
"""The commands that print the digest of an image. The name of the image is appended to the last word."""


def digest_of(image: str) -> str:
    """Ask the registry for the digest of an image. The digest covers the image for all platforms."""
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
    """Return a Containerfile with a digest, which `ask` gives, after the tag of each `FROM`."""
    known: dict[str, str] = {}

    def pin(match: re.Match[str]) -> str:
        image = match[1]
        if image not in known:
            known[image] = ask(image)
        return f"FROM {image}@{known[image]}"

    return _FROM.sub(pin, text)


def without_digests(text: str) -> str:
    """Return a Containerfile without the digests of its base images."""
    return _FROM.sub(r"FROM \1", text)


def main() -> int:
    """Write the current digests into the Containerfile, and print them. Return the exit status."""
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
