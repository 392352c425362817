"""The SBOM (CycloneDX 1.6) of requirements.txt, with licences from the packages in this environment."""

import re
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, metadata, requires
from typing import Any, Final
from uuid import NAMESPACE_URL, uuid5

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tools.lock import Pinned

NAME: Final = "kafka-fetchgate"
EXTRA: Final = "cooperative"
_CLASSIFIER: Final = "License :: OSI Approved :: "


def sbom(*, wheel: str, version: str, sha256: str, made_at: str, pinned: Sequence[Pinned]) -> dict[str, Any]:
    """Return the same SBOM for the same arguments. `made_at` is in ISO 8601."""
    by_name: dict[str, list[str]] = {}
    for each in pinned:
        by_name.setdefault(canonicalize_name(each.name), []).append(_purl(each))
    own = f"pkg:pypi/{NAME}@{version}"
    edges = {own: _needed(NAME, by_name)}
    edges |= {_purl(each): _needed(each.name, by_name) for each in pinned}
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid5(NAMESPACE_URL, f'{wheel}#{sha256}')}",
        "version": 1,
        "metadata": {
            "timestamp": made_at,
            "component": {
                "type": "application",
                "bom-ref": own,
                "name": NAME,
                "version": version,
                "purl": own,
                "hashes": [{"alg": "SHA-256", "content": sha256}],
                "licenses": _licences(NAME),
                "properties": [{"name": "fetchgate:file", "value": wheel}],
            },
        },
        "components": [_component(each) for each in pinned],
        "dependencies": [{"ref": ref, "dependsOn": needs} for ref, needs in edges.items()],
    }


def _component(pinned: Pinned) -> dict[str, Any]:
    component: dict[str, Any] = {
        "type": "library",
        "bom-ref": _purl(pinned),
        "name": pinned.name,
        "version": pinned.version,
        "purl": _purl(pinned),
        "licenses": _licences(pinned.name),
    }
    if pinned.marker:
        component["properties"] = [{"name": "fetchgate:marker", "value": pinned.marker}]
    return component


def _purl(pinned: Pinned) -> str:
    return f"pkg:pypi/{canonicalize_name(pinned.name)}@{pinned.version}"


def _needed(name: str, known: dict[str, list[str]]) -> list[str]:
    """Return the pinned requirements of a package. For fetchgate itself, add those of the extra `EXTRA`."""
    needed: set[str] = set()
    try:
        wanted = [Requirement(text) for text in requires(name) or ()]
    except PackageNotFoundError:
        raise RuntimeError(f"{name} is not in this environment: make test installs what it needs") from None
    for requirement in wanted:
        marker = str(requirement.marker or "")
        if "extra" not in marker or (name == NAME and marker == f'extra == "{EXTRA}"'):
            needed.update(known.get(canonicalize_name(requirement.name), ()))
    return sorted(needed)


def _licences(name: str) -> list[dict[str, Any]]:
    """Return the licences that a package declares, as an SPDX expression if it gives one."""
    declared = metadata(name)
    if expressions := declared.get_all("License-Expression"):
        return [{"expression": expressions[0]}]
    names = [
        text.removeprefix(_CLASSIFIER)
        for text in declared.get_all("Classifier") or ()
        if text.startswith(_CLASSIFIER)
    ]
    line = str((declared.get_all("License") or [""])[0]).partition("\n")[0]
    if not names and re.fullmatch(r"[\w .()+-]{1,60}", line):
        names = [line]
    return [{"license": {"name": each}} for each in names]
