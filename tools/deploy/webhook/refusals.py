"""Tells which refusals are new: a controller asks for a refused pod again and again. Sans-IO."""

from typing import Final

from .injection import Json

AGAIN_SECONDS: Final = 3600.0
"""How long the same refusal is not new again, in seconds."""
MAX_REFUSALS: Final = 1000
"""How many refusals are remembered. Above that, the oldest is forgotten."""
_MAX_WORDS: Final = 1000
"""How many characters of an owner and of a reason are kept. Users of the cluster choose parts of them."""


class Refusals:
    """The refusals of the last hour."""

    def __init__(self) -> None:
        self._told: dict[tuple[str, str], float] = {}
        """When each was new, by owner and reason. The oldest is the first."""

    def is_new(self, owner: str, reason: str, now: float) -> bool:
        """Return whether a refusal is new, and remember it.

        Args:
            owner: who makes the pod, see `owner_of`.
            reason: why it is refused.
            now: the time in seconds.
        """
        key = owner[:_MAX_WORDS], reason[:_MAX_WORDS]
        if now - self._told.get(key, -AGAIN_SECONDS) < AGAIN_SECONDS:
            return False
        self._told.pop(key, None)
        if len(self._told) >= MAX_REFUSALS:
            del self._told[next(iter(self._told))]
        self._told[key] = now
        return True


def owner_of(pod: Json) -> str:
    """Return the uid of the controller that makes a pod, such as a ReplicaSet. Empty if it has none."""
    for reference in pod["metadata"].get("ownerReferences") or ():
        if reference.get("controller"):
            return str(reference["uid"])
    return ""
