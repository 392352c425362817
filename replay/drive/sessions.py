"""The fetch sessions of the capture's clients at the target. Sans-IO.

A client with its own sessions (KIP-227) sends the session id that its broker gave. The target gives another
id, and its epochs start again. If the target loses a session, a new session is created with all partitions of
the lost one, as a real client does.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import groupby

from proxy.protocol.fetch_request import FIRST_EPOCH, INITIAL_EPOCH, SESSIONLESS_EPOCH, next_epoch
from replay.drive.mapping import MappedFetch
from replay.drive.reads import Place, Reads
from replay.drive.script import Step


@dataclass(slots=True, eq=False)
class Session:
    """The target's session that replaces one captured session."""

    session_id: int = 0
    """The one that the target gave. 0 if it gave none, or lost the session."""
    next_epoch: int = FIRST_EPOCH
    listed: dict[Place, bytes] = field(default_factory=dict)
    """For each partition, the last entry of the captured session, for the target."""
    sent: dict[Place, bytes] = field(default_factory=dict)
    """For each partition, the entry that the target has."""
    limited: set[Place] = field(default_factory=set)
    """The partitions whose entries at the target have a limit of their own, for one read."""

    def apply(self, fetch: MappedFetch) -> None:
        self.listed.update(fetch.entries)
        for key, partitions in fetch.forgotten:
            for at in range(0, len(partitions), 4):
                self.listed.pop((key, partitions[at : at + 4]), None)
                self.sent.pop((key, partitions[at : at + 4]), None)

    def changes(self, fetch: MappedFetch, reads: Reads | None) -> Iterable[tuple[bytes, bytes]]:
        """Return the elements of an incremental fetch: its own, and those whose limits change."""
        own = {place for place, _ in fetch.entries}
        read = set() if reads is None else set(reads.found)
        changed = {}
        for place in dict.fromkeys((*(place for place, _ in fetch.entries), *sorted(self.limited | read))):
            if place in self.listed:
                entry = _limited(place, self.listed[place], reads)
                if place in own or entry != self.sent.get(place):
                    changed[place] = entry
        self.sent.update(changed)
        self.limited = read
        return _elements(changed)

    def whole(self, reads: Reads | None) -> Iterable[tuple[bytes, bytes]]:
        self.sent = {place: _limited(place, entry, reads) for place, entry in self.listed.items()}
        self.limited = set() if reads is None else set(reads.found)
        return _elements(self.sent)

    def responded(self, error_code: int, session_id: int) -> None:
        self.session_id = 0 if error_code else session_id


def _limited(place: Place, entry: bytes, reads: Reads | None) -> bytes:
    return entry if reads is None else reads.limited(place, entry)


def _elements(entries: Mapping[Place, bytes]) -> Iterator[tuple[bytes, bytes]]:
    for key, items in groupby(entries.items(), lambda item: item[0][0]):
        yield key, b"".join(entry for _, entry in items)


def _own(fetch: MappedFetch, reads: Reads | None) -> Iterable[tuple[bytes, bytes]] | None:
    """Return the elements of a fetch without a session. None for those that it has anyway."""
    return (
        None
        if reads is None
        else _elements({place: reads.limited(place, entry) for place, entry in fetch.entries})
    )


class SideSessions:
    """The sessions of all connections to one broker: a client may continue one on another connection."""

    def __init__(self) -> None:
        self._by_captured: dict[int, Session] = {}
        self._nameless: Session | None = None
        """The last session whose captured id is unknown: its response was not captured, or gave none."""

    def frame(
        self, step: Step, fetch: MappedFetch, reads: Reads | None = None
    ) -> tuple[bytes, Session | None] | None:
        """Build the frame of a fetch, which reads what the captured response had if `reads` is given.

        Return it with the session that it creates or continues. None if the session began before the capture:
        its partitions are unknown.
        """
        if step.session_epoch == INITIAL_EPOCH:
            return self._first(step, fetch, reads)
        if step.session_id == 0:
            return fetch.frame(0, SESSIONLESS_EPOCH, _own(fetch, reads)), None
        session = self._find(step)
        if session is None:
            return None
        if step.session_epoch == SESSIONLESS_EPOCH:
            del self._by_captured[step.session_id]
            return fetch.frame(session.session_id, SESSIONLESS_EPOCH, _own(fetch, reads)), None
        session.apply(fetch)
        if not session.session_id:
            session.next_epoch = FIRST_EPOCH
            return fetch.frame(0, INITIAL_EPOCH, session.whole(reads), forgets=False), session
        epoch = session.next_epoch
        session.next_epoch = next_epoch(epoch)
        return fetch.frame(session.session_id, epoch, session.changes(fetch, reads)), session

    def _first(self, step: Step, fetch: MappedFetch, reads: Reads | None) -> tuple[bytes, Session]:
        """Create a session. Its request closes one that the client gives up or that has its captured id."""
        before = self._by_captured.pop(step.session_id or step.given, None)
        session = Session()
        session.apply(fetch)
        if step.given:
            self._by_captured[step.given] = session
        else:
            self._nameless = session
        return fetch.frame(before.session_id if before else 0, INITIAL_EPOCH, session.whole(reads)), session

    def _find(self, step: Step) -> Session | None:
        session = self._by_captured.get(step.session_id)
        if session is None and self._nameless is not None:
            session, self._nameless = self._nameless, None
            self._by_captured[step.session_id] = session
        return session
