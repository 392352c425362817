"""Decides whether a session saves bytes for one connection: law 6 of docs/developers/design.md. Sans-IO.

A fetch can be forwarded unchanged, sent as a delta, or sent in full to create a session with its exact list.
`Savings` chooses the cheapest form. The sizes of the requests are known, and the sizes of responses are
estimated from earlier responses. One rule looks ahead: a new session may cost as many bytes as the *regret*.
The regret is the number of bytes that earlier fetches would have saved if a session had had their exact list.

Estimates can be wrong. So the real cost of sessions is added up. A connection that lost bytes *pauses*: it
uses no session until it has transferred many times the lost bytes. Nothing here depends on a clock.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Final

from proxy.protocol.fetch_layout import FetchLayout
from proxy.protocol.fetch_request import FetchRequest, Listing
from proxy.session.decision import Delta

PLAIN_PER_LOST: Final = 256
"""The bytes without a session for each byte that sessions have lost. Only then may the connection use a
session again, so it loses less than 0.4 %."""
CREDIT_EXCHANGES: Final = 4
"""The bytes that sessions may lose before they are stopped, in full exchanges. A connection begins with this
credit. Losses reduce it, and savings restore it up to this amount. One full exchange is the bytes of one full
fetch and its response."""
FIRST_WAIT: Final = 8
LONGEST_WAIT: Final = 1024
"""The first and the longest wait, in fetches, after an expense that did not pay: a new session, or a new list
for a session."""
_CLOSES: Final = 8
"""A session is requested when the fetches so far have cost this many times the bytes of closing a session."""
_ALIKE: Final = 2
"""A session is requested earlier if it would have saved bytes in this many consecutive fetches."""
_CLOSE_RESPONSE: Final = 40
"""The approximate size of the response to the close of a session."""
_VERSIONS: Final = 500
"""Approximate bytes of an ApiVersions request and its response."""
_WEIGHT: Final = 0.5
"""The weight of the latest response in moving averages."""
_RETURN: Final = 0.25
"""The first estimate of the share of dropped partitions that soon return to the client's list."""
_MOST_RETURN: Final = 0.6
"""The upper limit of this estimate. If a client's list changes all the time, partitions return with other
offsets, so that dropping them costs little."""


class SessionForm(Enum):
    """How to send a fetch on a connection that has a session."""

    DELTA = "delta"
    RENEW = "renew"
    """In full, for a new session with the fetch's exact list. The broker drops the old session."""
    FORWARD = "forward"
    """Forwarded unchanged. The session is not affected."""


@dataclass(slots=True, eq=False)
class Savings:
    """The bytes that sessions have saved, and are expected to save, for one connection."""

    _credit: int = 0
    """Bytes that sessions may lose before the connection pauses."""
    _limit: int = 0
    _pause: int = 0
    """Bytes that must be transferred without a session before a fetch uses a session again."""
    _spent: int = 0
    """Bytes of fetches without a session, and of their responses."""
    _news: float = 0.0
    """The average number of new entries in a response: without the session, those with records."""
    _excess: float = 0.0
    """The average number of additional bytes for each entry in the session's responses. A broker may
    split a topic into several elements."""
    _added: int = 0
    _alike: int = 0
    """Consecutive fetches without a session for which a session would have saved bytes."""
    _regret: float = 0.0
    """Bytes that a session would have saved in the fetches since the last saving, expense or close, if it
    had had their exact list."""
    _owed: float = 0.0
    """Bytes that the session must still save to pay for the last expense."""
    _patience: int = 0
    """The last wait after an expense that did not pay, in fetches. 0 if the last expense has paid."""
    _wait: int = 0
    _waited: bool = False
    """Whether the wait after the last failed expense has begun. After it, a new expense is allowed."""
    _returns: float = _RETURN
    _away: float = 0.0
    """What it would cost to add recently dropped partitions to the session again, in bytes."""

    def __repr__(self) -> str:
        return f"<Savings credit={self._credit} pause={self._pause} regret={self._regret:.0f}>"

    @property
    def paused(self) -> bool:
        """Whether the connection uses no session now, because sessions have lost bytes."""
        return self._pause > 0

    # Before a fetch is sent

    def promises(
        self, fetch: FetchRequest, listing: Listing, delta: Delta | None, *, asks: bool = False
    ) -> bool:
        """Return whether to request a session for a fetch of a connection that has none.

        Args:
            fetch: the fetch.
            listing: its partitions, in the session's version.
            delta: the changes since the previous fetch, or None if they can't be compared.
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
        # A session on v7 or later can cost nothing but its close: an eighth of what has passed pays for that.
        at_once = not self._patience and self._spent + full >= _CLOSES * close
        if not at_once and self._alike < _ALIKE:
            return False
        self._invest(full + _raised(count, narrow, wide))
        return True

    def weigh(self, fetch: FetchRequest, listing: Listing, delta: Delta, size: int) -> SessionForm:
        """Decide how to send a fetch on a connection that has a session.

        `listing` and `delta` are in the session's version. The delta's frame has `size` bytes.
        """
        count, narrow, wide = len(listing), fetch.layout, listing.layout
        added, forgotten = len(delta.added), len(delta.forgotten)
        entry = wide.request_entry + wide.response_entry
        gain = self.gain(len(fetch.frame) - size, count, added, narrow, wide)
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
        # A list that has just lost partitions may get them back: then only what earlier fetches have shown
        # counts, not what this one would have saved.
        if self._waits() or (regret if forgotten else self._regret) < price:
            return SessionForm.FORWARD
        # The last expense has not paid yet. Without a wait, a list that changes with each fetch would be paid
        # for with each fetch.
        if self._owed > 0 and not self._waited:
            self.failed()
            return SessionForm.FORWARD
        self._away += forgotten * entry
        if -gain > renewing:
            self._invest(full + renewing)
            return SessionForm.RENEW
        self._invest(-gain)
        self._added = added
        return SessionForm.DELTA

    def gain(self, less: int, count: int, added: int, narrow: FetchLayout, wide: FetchLayout) -> float:
        """Return how many bytes a delta probably saves.

        It is `less` bytes smaller than the fetch, which has `count` partitions. The delta adds `added` of
        them. Without added and forgotten partitions, `weigh` decides for a delta that loses no bytes.
        """
        return less + self._spared(count, added, narrow, wide)

    # After its response

    def passed(self, size: int, news: int) -> None:
        """Note a fetch and its response without the session: their bytes, and the entries with records."""
        self._spent += size
        self._news += _WEIGHT * (news - self._news)
        if self._pause:
            self._pause = max(0, self._pause - size)

    def answered(self, saved: int, entries: int) -> bool:
        """Note one exchange in the session, and the number of entries in its response.

        `saved` is negative if the exchange cost more. The result is that of `add`.
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
        return self.add(saved)

    def tore(self, count: int, entries: int, saved: int, narrow: FetchLayout, wide: FetchLayout) -> None:
        """Note how many bytes larger the entries of a session's response are, because topics are split up.

        Args:
            count: the number of partitions in the fetch.
            entries: the number of entries in the session's response.
            saved: by how many bytes the session's response was smaller than the full response.
            narrow: the client's layout.
            wide: the session's layout.
        """
        if entries:
            expected = count * narrow.response_entry - entries * wide.response_entry - _head(narrow, wide)
            self._excess += _WEIGHT * (max(0.0, (expected - saved) / entries) - self._excess)

    def add(self, saved: int) -> bool:
        """Add saved bytes to the account. The number is negative if bytes were lost.

        Return whether the connection begins to pause, because more bytes were lost than allowed.
        """
        credit = self._credit + saved
        if credit >= 0:
            self._credit = min(credit, self._limit)
            return False
        was_paused = self._pause > 0
        self._pause += -credit * PLAIN_PER_LOST
        self._credit = 0
        return not was_paused

    def failed(self) -> None:
        """Record that the session or list of the last expense is not used any more.

        If this expense has not paid for itself, the next one must wait, each time twice as long.
        """
        if self._owed > 0:
            self._patience = self._wait = min(2 * self._patience or FIRST_WAIT, LONGEST_WAIT)
            self._waited = True

    def closed(self, size: int) -> None:
        """Record that the session is closed with a frame of `size` bytes."""
        self._regret = self._away = 0.0
        self._alike = 0
        self.add(-size - _CLOSE_RESPONSE)

    # Within

    def _spared(self, count: int, added: int, narrow: FetchLayout, wide: FetchLayout) -> float:
        """Return how many bytes smaller the session's response probably is than the full response."""
        entries = added + min(1.0, self._news / count) * (count - added) if count else 0.0
        most = entries * (wide.response_entry + self._excess) + _head(narrow, wide)
        return count * narrow.response_entry - most

    def _note_full(self, size: int, count: int, narrow: FetchLayout) -> int:
        """Return the bytes of a fetch and of its full response, without records. They set the limit."""
        full = size + count * narrow.response_entry
        if CREDIT_EXCHANGES * full > self._limit:
            if not self._limit:
                self._credit = CREDIT_EXCHANGES * full
            self._limit = CREDIT_EXCHANGES * full
        return full

    def _note_added(self, size: int) -> None:
        # Some of them may have been dropped from the list before.
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
    """Return how many bytes more a full fetch and its response have in the session's version."""
    if narrow is wide:
        return 0
    entry = wide.request_entry - narrow.request_entry + wide.response_entry - narrow.response_entry
    head = wide.request_head - narrow.request_head + len(wide.count(0))
    return count * entry + head + _head(narrow, wide)
