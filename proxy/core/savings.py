"""Whether a session pays for one connection: law 6 of docs/design.md, in bytes. Sans-IO.

A fetch can go on as it came, go as a delta, or be sent in full for a session with just its list. Their
requests can be compared before they are sent. What a response would be is estimated from those that came.
`Savings` sends what is cheapest, and looks ahead in one way: what fetches have lost for want of a session
with their list (the *regret*) may be spent on one.

Estimates can be wrong. So what sessions really cost is added up, and a connection that lost bytes *rests*: it
goes without until many times as many bytes have passed. Nothing here looks at a clock.
"""

from enum import Enum
from typing import Final

from proxy.protocol.fetch_layout import FetchLayout
from proxy.protocol.fetch_request import FetchRequest, Listing
from proxy.session.decision import Delta

PLAIN_PER_LOST: Final = 256
"""A connection that lost a byte goes without a session for this many bytes: less than 0.4 % is lost."""
CREDIT_EXCHANGES: Final = 4
"""What sessions saved before may be lost again without a rest, up to this many full exchanges."""
FIRST_WAIT: Final = 8
LONGEST_WAIT: Final = 1024
"""So many fetches pass before the next session, or the next change of a session's list, is paid for: after
the first one that did not pay, and at most."""
_CLOSES: Final = 8
"""A session is asked for when fetches, the present one included, have cost so many times what its close
will."""
_ALIKE: Final = 2
"""A client with a shorter list gets a session when it would have saved bytes so many times in a row."""
_CLOSE_RESPONSE: Final = 40
"""Bytes of the response to a close, about."""
_VERSIONS: Final = 500
"""Bytes of ApiVersions and its response, about."""
_WEIGHT: Final = 0.5
"""Of the latest response, in averages."""
_RETURN: Final = 0.25
"""How likely partitions that a fetch no longer lists come back soon, before a client has shown it."""
_MOST_RETURN: Final = 0.6
"""And at most. Those of a client whose list changes all the time come back with other offsets, and then it
would cost little to have dropped them."""


class Form(Enum):
    """How a fetch of a session goes."""

    DELTA = "delta"
    RENEW = "renew"
    """In full, for a new session with just its list. The broker drops the old one."""
    WIRE = "wire"
    """As it came. The session stays as it is."""


class Savings:
    """What sessions saved one connection, and what they are expected to save."""

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
        """Bytes that still have to pass before a fetch goes through a session again."""
        self._spent = 0
        """Bytes of fetches that went without a session."""
        self._news = 0.0
        """How many entries of a response say something new, on average."""
        self._excess = 0.0
        """Bytes by which such an entry is larger in a session: topics whose entries are torn apart."""
        self._added = 0
        self._alike = 0
        """Fetches in a row for which a session would have saved bytes, before there was one."""
        self._regret = 0.0
        """Bytes that fetches without a session would have saved, had the session had their list."""
        self._owed = 0.0
        """Bytes that must be saved before what was last paid for has paid: a new session, or its list."""
        self._patience = 0
        """How many fetches passed after the last session that did not pay; 0 if the last one did."""
        self._wait = 0
        self._waited = False
        """The wait for the last thing that did not pay has begun: the next one is paid for after it."""
        self._returns = _RETURN
        self._away = 0.0
        """Bytes that it would take to list partitions again that were dropped lately."""

    def __repr__(self) -> str:
        return f"<Savings credit={self._credit} rest={self._rest} regret={self._regret:.0f}>"

    @property
    def rests(self) -> bool:
        """Whether sessions lost bytes recently, so that fetches go without for now."""
        return self._rest > 0

    # Before a fetch is sent

    def promises(
        self, fetch: FetchRequest, listing: Listing, delta: Delta | None, *, asks: bool = False
    ) -> bool:
        """Say whether a session is to be asked for.

        Args:
            fetch: the fetch; the connection has no session.
            listing: what it lists, in the session's version.
            delta: what it changes against the fetch before; None if that can't be compared.
            asks: the broker has to be asked for its versions first.
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

    def weigh(self, fetch: FetchRequest, listing: Listing, delta: Delta, size: int) -> Form:
        """Say how a fetch goes that differs from the session's list.

        Args:
            fetch: the fetch.
            listing: what it lists, in the session's version.
            delta: what it changes in the session.
            size: that of the delta's frame.
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
            return Form.DELTA
        renewing = _raised(count, narrow, wide)
        price = min(-gain, renewing) + back
        changed = min(count, self._news) * wide.request_entry
        lost = count * narrow.request_entry - changed + self._spared(count, 0, narrow, wide)
        regret, self._regret = self._regret, self._regret + max(0.0, lost)
        if self._waits() or (regret if forgotten else self._regret) < price:
            return Form.WIRE
        if self._owed > 0 and not self._waited:
            self.failed()
            return Form.WIRE
        self._away += forgotten * entry
        if -gain > renewing:
            self._invest(full + renewing)
            return Form.RENEW
        self._invest(-gain)
        self._added = added
        return Form.DELTA

    # After its response

    def passed(self, size: int, news: int) -> None:
        """Note an exchange without the session.

        Args:
            size: bytes of request and response.
            news: entries of the response that have records.
        """
        self._spent += size
        self._news += _WEIGHT * (news - self._news)
        if self._rest:
            self._rest = max(0, self._rest - size)

    def answered(self, saved: int, entries: int) -> bool:
        """Note an exchange through the session.

        Args:
            saved: bytes that it saved, negative if it cost more.
            entries: how many entries the session's response has.

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
        """Note how much larger entries are in the session's responses, where topics are torn apart.

        Args:
            count: partitions of the fetch.
            entries: entries of the session's response.
            saved: bytes by which it was smaller than the full one.
            narrow: the client's layout.
            wide: the session's.
        """
        if entries:
            expected = count * narrow.response_entry - entries * wide.response_entry - _head(narrow, wide)
            self._excess += _WEIGHT * (max(0.0, (expected - saved) / entries) - self._excess)

    def settle(self, saved: int) -> bool:
        """Add bytes that were saved, negative if they were lost.

        Returns:
            True if more was lost than may be: from now on the connection rests.
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
        """Note that nothing uses what was paid for. If it has not paid: wait, each time twice as long."""
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
        """Return by how much the session's response is expected to be smaller than the full one."""
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
        """Note the bytes of partitions that are listed anew: those that were dropped may be among them."""
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
    """Return by how much a full exchange is larger in the session's version."""
    if narrow is wide:
        return 0
    entry = wide.request_entry - narrow.request_entry + wide.response_entry - narrow.response_entry
    head = wide.request_head - narrow.request_head + len(wide.count(0))
    return count * entry + head + _head(narrow, wide)
