"""The ids that a cluster gives to its clients: those of the capture become those of the target. Sans-IO.

Group members have an id and a generation, producers an id and an epoch. The target gives others. They are
learned from its responses. What no response of the target replaces is left out of a request, if the request
has a meaning without it.
"""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, Final

from proxy.protocol.api import ApiKey
from proxy.protocol.messages import Edit, Struct
from replay.drive.batches import Producer, with_producers
from replay.drive.script import Step
from replay.protocol.naming import changed, given, own

_NO_EPOCH: Final = -1
_NO_MEMBER: Final[dict[int, dict[str, Any]]] = {
    ApiKey.OFFSET_FETCH: {"member": None, "generation": -1},
    ApiKey.OFFSET_COMMIT: {"member": b"", "generation": -1, "instance": None},
    ApiKey.TXN_OFFSET_COMMIT: {"member": b"", "generation": -1, "instance": None},
}
"""API key -> the values of a request that comes from no member of a group."""


class Identities:
    """The ids at one target, for one copy of the capture, with suffixes for groups and transactions."""

    def __init__(self, groups: bytes = b"", transactions: bytes = b"") -> None:
        self._groups = groups
        self._transactions = transactions
        self._members: dict[bytes, bytes] = {}
        self._generations: dict[tuple[bytes, int], int] = {}
        """Captured member id and generation -> generation at the target."""
        self._producers: dict[Producer, Producer] = {}

    def frame(self, step: Step, frame: bytes) -> bytes:
        """Return a request with the target's ids, and without leader epochs."""
        return changed(step.api_key, step.version, frame, step.body, partial(self._edits, step.api_key))

    def learn(self, step: Step, response: bytes) -> None:
        """Note the ids in a response of the target, for those in the captured response."""
        captured = step.identities
        now = given(step.api_key, step.version, response) if captured else None
        if captured is None or now is None:
            return
        if captured.get("member") and now.get("member"):
            self._members[captured["member"]] = now["member"]
            self._generations[captured["member"], captured["generation"]] = now["generation"]
        if captured.get("producer_id", -1) >= 0:
            self._producers[_producer(captured)] = _producer(now)

    def _edits(self, api_key: int, struct: Struct) -> Iterator[Edit]:
        yield from own(struct, self._groups, self._transactions)
        # A captured leader epoch means nothing in another cluster, or after an election: brokers would
        # respond with error 74 or 75.
        values: dict[str, Any] = {"leader_epoch": _NO_EPOCH}
        member = struct.get("member")
        if member in self._members:
            values["member"] = self._members[member]
            generation = struct.get("generation", -1)
            values["generation"] = self._generations.get((member, generation), generation)
        elif "member" in struct:
            values |= _NO_MEMBER.get(api_key, {})
        here = self._producers.get(_producer(struct))
        if here is not None:
            values["producer_id"], values["producer_epoch"] = here
        if struct.get("records"):
            values["records"] = with_producers(struct["records"], self._producers)
        yield from struct.edits(**values)


def _producer(ids: Mapping[str, Any]) -> Producer:
    return ids.get("producer_id", -1), ids.get("producer_epoch", -1)
