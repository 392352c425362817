"""The fetch sessions of the capture's clients, as the target gives them. Sans-IO.

A client with sessions of its own (KIP-227) asks with an id that its broker gave. The target gives another;
epochs count up anew. A session that the target loses is made again with all that it held, as such a client
does.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import groupby
from typing import Final

from replay.drive.mapping import MappedFetch
from replay.drive.script import Step

SESSIONLESS: Final = -1
FIRST: Final = 0
_LAST_EPOCH: Final = 0x7FFF_FFFF


@dataclass(slots=True, eq=False)
class Session:
    """One session: what a captured id stands for at the target."""

    session_id: int = 0
    """The target's; 0: it gave none, or has lost it."""
    next_epoch: int = 1
    listed: dict[tuple[bytes, bytes], bytes] = field(default_factory=dict)
    """(topic key, partition as on the wire) -> the entry that was last sent."""

    def take(self, fetch: MappedFetch) -> None:
        """Note what a fetch lists and forgets."""
        size = fetch.layout.request_entry
        for key, block in fetch.topics:
            for at in range(0, len(block), size):
                self.listed[key, block[at : at + 4]] = block[at : at + size]
        for key, partitions in fetch.forgotten:
            for at in range(0, len(partitions), 4):
                self.listed.pop((key, partitions[at : at + 4]), None)

    def elements(self) -> Iterable[tuple[bytes, bytes]]:
        """Give all that it holds as elements of a request."""
        for key, items in groupby(self.listed.items(), lambda item: item[0][0]):
            yield key, b"".join(entry for _, entry in items)


class SideSessions:
    """The sessions of all connections to one broker, since a client may go on in its session on another."""

    def __init__(self) -> None:
        self._by_captured: dict[int, Session] = {}
        self._nameless: Session | None = None
        """Made last, by a request whose captured response was not seen."""

    def frame(self, step: Step, fetch: MappedFetch) -> tuple[bytes, Session | None] | None:
        """Build the frame of a fetch.

        Returns:
            The frame, and the session that it makes or goes on in; None: its session began before the
            capture, so nobody knows what it holds.
        """
        if step.session_epoch == FIRST:
            return self._first(step, fetch)
        if step.session_id == 0:
            return fetch.frame(0, SESSIONLESS), None
        session = self._find(step)
        if session is None:
            return None
        if step.session_epoch == SESSIONLESS:
            del self._by_captured[step.session_id]
            return fetch.frame(session.session_id, SESSIONLESS), None
        session.take(fetch)
        if not session.session_id:
            session.next_epoch = 1
            return fetch.frame(0, FIRST, session.elements()), session
        epoch = session.next_epoch
        session.next_epoch = epoch + 1 if epoch < _LAST_EPOCH else 1
        return fetch.frame(session.session_id, epoch), session

    def _first(self, step: Step, fetch: MappedFetch) -> tuple[bytes, Session]:
        """Make a session; one that the same id stood for, or that the client gives up, is closed by it."""
        before = self._by_captured.pop(step.session_id or step.given, None)
        session = Session()
        session.take(fetch)
        if step.given:
            self._by_captured[step.given] = session
        else:
            self._nameless = session
        return fetch.frame(before.session_id if before else 0, FIRST), session

    def _find(self, step: Step) -> Session | None:
        session = self._by_captured.get(step.session_id)
        if session is None and self._nameless is not None:
            session, self._nameless = self._nameless, None
            self._by_captured[step.session_id] = session
        return session


def answered(session: Session, error_code: int, session_id: int) -> None:
    """Note what the target answered to a fetch that makes a session or goes on in it."""
    session.session_id = 0 if error_code else session_id
