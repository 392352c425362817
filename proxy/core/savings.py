"""Decides whether a session pays for one connection: law 6 of docs/design.md, in bytes. Sans-IO.

A fetch can be forwarded unchanged, sent as a delta, or sent in full to create a session with its exact list.
The sizes of these requests can be compared before they are sent. The sizes of responses are estimated from
earlier ones. `Savings` chooses the cheapest form. It looks ahead in one way: the bytes that fetches have lost
without a session with their list (the *regret*) may be spent on a new session.

Estimates can be wrong. So the real cost of sessions is added up, and a connection that lost bytes *rests*: it
uses no session until many times the lost bytes have passed. Nothing here depends on a clock.
"""

from enum import Enum
from typing import Final

from proxy.protocol.fetch_layout import FetchLayout
from proxy.protocol.fetch_request import FetchRequest, Listing
from proxy.session.decision import Delta

PLAIN_PER_LOST: Final = 256
"""For each lost byte, a connection uses no session for this many bytes. So it loses less than 0.4 %."""
CREDIT_EXCHANGES: Final = 4
"""Earlier savings may be lost again without a rest, up to this many full exchanges."""
FIRST_WAIT: Final = 8
LONGEST_WAIT: Final = 1024
"""The first and the longest wait, in fetches, after an expense (a new session, or a new list for it) that
did not pay."""
_CLOSES: Final = 8
"""A session is requested once fetches, including the present one, have cost this many times the cost of
its close."""
_ALIKE: Final = 2
"""A client with a shorter list gets a session if it would have saved bytes this many consecutive times."""
_CLOSE_RESPONSE: Final = 40
"""Approximate bytes of the response to a close."""
_VERSIONS: Final = 500
"""Approximate bytes of ApiVersions and its response."""
_WEIGHT: Final = 0.5
"""The weight of the latest response in averages."""
_RETURN: Final = 0.25
"""The probability that a partition which was removed from the list returns soon, before the client has
shown its own."""
_MOST_RETURN: Final = 0.6
"""The maximum of that probability. If a client's list changes all the time, partitions return with other
offsets, and dropping them costs little."""


class SessionForm(Enum):
    """The form in which a fetch of a session is sent."""

    DELTA = "delta"
    RENEW = "renew"
    """In full, for a new session with its exact list. The broker drops the old session."""
    WIRE = "wire"
    """Unchanged. The session is not affected."""


class Savings:
    """The savings of sessions for one connection, so far and expected."""

    __slots__ = (
        "_added",
        "_alike",
        "_away",
        "_credit",
        "_excess",
        "_limit",
        "_news",
        "_owed",
        "_patience",
        "_regret",
        "_rest",
        "_returns",
        "_spent",
        "_wait",
        "_waited",
    )

    def __init__(self) -> None:
        self._credit = 0
        """Bytes that may be lost before the connection rests."""
        self._limit = 0
        self._rest = 0
        """Bytes that still have to pass before a fetch uses a session again."""
        self._spent = 0
        """Bytes of fetches without a session."""
        self._news = 0.0
        """The average number of changed entries in a response."""
        self._excess = 0.0
        """Bytes by which such an entry is larger in a session: topics whose entries are torn apart."""
        self._added = 0
        self._alike = 0
        """The number of consecutive fetches, before a session, for which one would have saved bytes."""
        self._regret = 0.0
        """Bytes that fetches without a session would have saved with a session of exactly their list."""
        self._owed = 0.0
        """Bytes that must still be saved before the last expense (a new session, or its list) has paid."""
        self._patience = 0
        """How many fetches had to pass after the last session that did not pay. 0 if the last one paid."""
        self._wait = 0
        self._waited = False
        """Whether the wait after the last failed expense has begun. After it, the next one is paid for."""
        self._returns = _RETURN
        self._away = 0.0
        """The bytes needed to list recently dropped partitions again."""

    def __repr__(self) -> str:
        return f"<Savings credit={self._credit} rest={self._rest} regret={self._regret:.0f}>"

    @property
    def rests(self) -> bool:
        """Whether sessions lost bytes recently, so that fetches use no session for now."""
        return self._rest > 0

    # Before a fetch is sent

    def promises(
        self, fetch: FetchRequest, listing: Listing, delta: Delta | None, *, asks: bool = False
    ) -> bool:
        """Return whether to request a session.

        Args:
            fetch: the fetch. The connection has no session.
            listing: its partitions, in the session's version.
            delta: its changes against the previous fetch, or None if they can't be compared.
            asks: whether the broker has to be asked for its versions first.
        """
        count, narrow, wide = len(listing), fetch.layout, listing.layout
        size = len(fetch.frame)
        bare = size - count * narrow.request_entry
        if delta is not None:
            would = size - bare - delta.size + self._spared(count, len(delta.added), narrow, wide)
            self._alike = self._alike + 1 if would > 0 else 0
        full = self._note_full(size, count, narrow)
        close = bare + _CLOSE_RESPONSE + (_VERSIONS if asks else 0)
        if self._waits():
            return False
        at_once = not self._patience and self._spent + full >= _CLOSES * close
        if not at_once and self._alike < _ALIKE:
            return False
        self._invest(full + _raised(count, narrow, wide))
        return True

    def weigh(self, fetch: FetchRequest, listing: Listing, delta: Delta, size: int) -> SessionForm:
        """Return the form for a fetch that differs from the session's list.

        Args:
            fetch: the fetch.
            listing: its partitions, in the session's version.
            delta: its changes against the session.
            size: the size of the delta's frame.
        """
        count, narrow, wide = len(listing), fetch.layout, listing.layout
        added, forgotten = len(delta.added), len(delta.forgotten)
        entry = wide.request_entry + wide.response_entry
        spared = self._spared(count, added, narrow, wide)
        gain = len(fetch.frame) - size + spared
        # One that has records comes back with another offset: it would have to be sent anyway.
        back = forgotten * entry * self._returns * (1 - min(1.0, self._news / max(count, 1)))
        full = self._note_full(len(fetch.frame), count, narrow)
        self._note_added(added * entry)
        ahead = added * entry * (1 - self._returns)
        if gain + ahead >= back:
            self._away += forgotten * entry
            self._added = added
            return SessionForm.DELTA
        renewing = _raised(count, narrow, wide)
        price = min(-gain, renewing) + back
        changed = min(count, self._news) * wide.request_entry
        lost = count * narrow.request_entry - changed + self._spared(count, 0, narrow, wide)
        regret, self._regret = self._regret, self._regret + max(0.0, lost)
        if self._waits() or (regret if forgotten else self._regret) < price:
            return SessionForm.WIRE
        if self._owed > 0 and not self._waited:
            self.failed()
            return SessionForm.WIRE
        self._away += forgotten * entry
        if -gain > renewing:
            self._invest(full + renewing)
            return SessionForm.RENEW
        self._invest(-gain)
        self._added = added
        return SessionForm.DELTA

    # After its response

    def passed(self, size: int, news: int) -> None:
        """Note an exchange without the session.

        Args:
            size: bytes of request and response.
            news: how many entries of the response have records.
        """
        self._spent += size
        self._news += _WEIGHT * (news - self._news)
        if self._rest:
            self._rest = max(0, self._rest - size)

    def answered(self, saved: int, entries: int) -> bool:
        """Note an exchange through the session.

        Args:
            saved: bytes that it saved, negative if it cost more.
            entries: the number of entries in the session's response.

        Returns:
            See `settle`.
        """
        self._news += _WEIGHT * (entries - self._added - self._news)
        self._added = 0
        if saved > 0:
            self._regret = 0.0
            self._owed = max(0.0, self._owed - saved)
            if not self._owed:
                self._patience = self._wait = 0
                self._waited = False
            if self._away:
                self._away = max(0.0, self._away - saved)
                if not self._away:  # it has paid that they are not listed any more
                    self._returns /= 2
        return self.settle(saved)

    def tore(self, count: int, entries: int, saved: int, narrow: FetchLayout, wide: FetchLayout) -> None:
        """Note how much larger entries are in the session's responses, because topics are split up.

        Args:
            count: the number of partitions in the fetch.
            entries: the number of entries in the session's response.
            saved: how many bytes smaller it was than the full one.
            narrow: the client's layout.
            wide: the session's layout.
        """
        if entries:
            expected = count * narrow.response_entry - entries * wide.response_entry - _head(narrow, wide)
            self._excess += _WEIGHT * (max(0.0, (expected - saved) / entries) - self._excess)

    def settle(self, saved: int) -> bool:
        """Add bytes that were saved, negative if they were lost.

        Returns:
            True if more was lost than allowed, so that the connection rests from now on.
        """
        credit = self._credit + saved
        if credit >= 0:
            self._credit = max(min(credit, self._limit), min(credit, self._credit))
            return False
        rested = self._rest > 0
        self._rest += -credit * PLAIN_PER_LOST
        self._credit = 0
        return not rested

    def failed(self) -> None:
        """Note that nothing uses the last expense. If it has not paid, wait, each time twice as long."""
        if self._owed > 0:
            self._patience = self._wait = min(2 * self._patience or FIRST_WAIT, LONGEST_WAIT)
            self._waited = True

    def closed(self, size: int) -> None:
        """Note that the session is closed, with a frame of this size."""
        self._regret = self._away = 0.0
        self._alike = 0
        self.settle(-size - _CLOSE_RESPONSE)

    # Within

    def _spared(self, count: int, added: int, narrow: FetchLayout, wide: FetchLayout) -> float:
        """Return the expected difference in size between the full response and the session's response."""
        entries = added + min(1.0, self._news / count) * (count - added) if count else 0.0
        most = entries * (wide.response_entry + self._excess) + _head(narrow, wide)
        return count * narrow.response_entry - most

    def _note_full(self, size: int, count: int, narrow: FetchLayout) -> int:
        """Note a fetch's size, and return that of its full exchange without records."""
        full = size + count * narrow.response_entry
        if CREDIT_EXCHANGES * full > self._limit:
            if not self._limit:
                self._credit = CREDIT_EXCHANGES * full
            self._limit = CREDIT_EXCHANGES * full
        return full

    def _note_added(self, size: int) -> None:
        """Note the bytes of newly listed partitions, which may include dropped ones."""
        if self._away and 2 * size >= self._away:
            self._returns += (_MOST_RETURN - self._returns) / 2
            self._away = 0.0

    def _waits(self) -> bool:
        if not self._wait:
            return False
        self._wait -= 1
        return True

    def _invest(self, price: float) -> None:
        self._owed = max(price, 1.0)
        self._regret = 0.0
        self._waited = False


def _head(narrow: FetchLayout, wide: FetchLayout) -> int:
    return wide.response_head - narrow.response_head


def _raised(count: int, narrow: FetchLayout, wide: FetchLayout) -> int:
    """Return how many more bytes a full exchange has in the session's version."""
    if narrow is wide:
        return 0
    entry = wide.request_entry - narrow.request_entry + wide.response_entry - narrow.response_entry
    head = wide.request_head - narrow.request_head + len(wide.count(0))
    return count * entry + head + _head(narrow, wide)
