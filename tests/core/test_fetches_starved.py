"""With read_committed, a partition that got no records because of a byte limit has the same entry as without
a session.

Section 1.4: if the first batch of the partition did not fit, its entry has no list of aborted transactions.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import pytest

from proxy.session.rotation import Rotation
from tests.frames import Want, entry, fetch, fetch_response
from tests.model import wire
from tests.playbook import SESSION_ID, Playbook

RECORDS = b"r" * 300
LIMIT = 1_000
WANTS: dict[str, list[tuple[str, int, int]]] = {
    "one topic": [("t", number, 5) for number in range(12)],
    "two topics": [("t" if number < 6 else "u", number, 5) for number in range(12)],
}
BACK = range(3)
"""The partitions in which the client seeks back to offset 2."""


def responds(
    version: int, wants: Iterable[Want], given: dict[int, wire.PartitionData], **fields: Any
) -> bytes:
    """Build a response. Partitions that are not in `given` have an unchanged entry."""
    elements: list[tuple[str, list[wire.PartitionData]]] = []
    for name, number, *_ in wants:
        data = given.get(number) or idle(version, number)
        if elements and elements[-1][0] == name:
            elements[-1][1].append(data)
        else:
            elements.append((name, [data]))
    return fetch_response(version, *elements, **fields)


def idle(version: int, number: int, **fields: Any) -> wire.PartitionData:
    if version == 4:
        fields["log_start_offset"] = -1
    return entry(number, 5, **{"aborted": ()} | fields)


class Scene:
    """A session of a read_committed client. Every high watermark and last stable offset is 5."""

    def __init__(self, version: int, wants: Sequence[Want]) -> None:
        self.version, self.wants = version, wants
        self.spoken = max(version, 7)
        self.correlation = 0
        self.play = Playbook().knows()
        while not self.play.connection.session_id:
            asked = self.fetch(wants)
            asks = self.play.client(asked).takes_broker() != asked
            session = {"session_id": SESSION_ID} if asks else {}
            spoken = self.spoken if asks else version
            told = responds(spoken, wants, {}, correlation_id=self.correlation, **session)
            self.play.broker(told).to_client(responds(version, wants, {}, correlation_id=self.correlation))

    def fetch(self, wants: Sequence[Want]) -> bytes:
        self.correlation += 1
        return fetch(self.version, *wants, correlation=self.correlation, isolation_level=1, max_bytes=LIMIT)

    def turn(
        self, wants: Sequence[Want], told: dict[int, wire.PartitionData], given: dict[int, wire.PartitionData]
    ) -> None:
        """Play one fetch, and check the response that the client gets.

        Args:
            wants: the partitions that the client fetches.
            told: the entries that the broker sends.
            given: entries that the client must get in place of `told`, or in addition. All others must be
                unchanged.
        """
        self.play.client(self.fetch(wants))
        assert len(self.play.takes_broker()) < len(fetch(self.version, *wants))
        sent = [want for want in wants if want[1] in told]
        fields = {"correlation_id": self.correlation, "session_id": SESSION_ID}
        self.play.broker(responds(self.spoken, sent, told, **fields))
        self.play.to_client(responds(self.version, wants, told | given, correlation_id=self.correlation))


@pytest.mark.parametrize("version", [4, 7, 11, 12, 16])
@pytest.mark.parametrize("what", WANTS)
def test_what_did_not_fit_has_no_list_of_aborted_transactions(version: int, what: str) -> None:
    wants = WANTS[what]
    scene = Scene(version, wants)
    back = [(name, number, 2 if number in BACK else 5) for name, number, _ in wants]
    starved = {number: idle(version, number, aborted=None) for number in BACK}
    first = {0: idle(version, 0, records=RECORDS)}
    scene.turn(back, first, {1: starved[1], 2: starved[2]})
    back[0] = wants[0]
    second = {1: idle(version, 1, records=RECORDS)}
    scene.turn(back, second, {2: starved[2]})
    # Nothing is left of max_bytes: the broker reads nothing at all then, and tells of no transaction.
    scene.turn(back, {1: idle(version, 1, records=bytes(LIMIT))}, {})
    # No partition had records: there was nothing to read.
    scene.turn(back, {}, {})
    scene.turn(wants, {}, {})
    scene.turn(wants, {7: idle(version, 7, records=RECORDS)}, {})


def test_who_is_not_behind_stays_on_the_short_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """If no partition lacks records because of the byte limit, the response is built in the fast way.

    A partition that just got records does not count as lacking them, although the client has not fetched the
    rest yet.
    """
    ways: list[int] = []
    expand, full = Rotation.expand, Rotation.full

    def counted(self: Rotation, first: int, *rest: Any, **fields: Any) -> Any:
        ways.append(first)
        return expand(self, first, *rest, **fields)

    def counted_fast(self: Rotation, first: int, *rest: Any) -> Any:
        ways.append(first)
        return full(self, first, *rest)

    monkeypatch.setattr(Rotation, "expand", counted)
    monkeypatch.setattr(Rotation, "full", counted_fast)
    wants = WANTS["one topic"]
    scene = Scene(12, wants)
    for _ in range(2):
        scene.turn(wants, {}, {})
    for offset in range(6, 9):
        told = {3: entry(3, offset, aborted=(), records=RECORDS)}
        wants = [(name, number, offset - 1 if number == 3 else 5) for name, number, _ in wants]
        cached = {3: entry(3, offset, aborted=(), records=RECORDS)}
        scene.turn(wants, told, cached)
    assert len(ways) == 2 * 4  # with the fast path and without: the playbook plays both
    table = scene.play.connection.session_table
    assert table is not None
    assert table.behind == {3}
