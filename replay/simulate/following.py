"""Gives the policy ``always`` the gateway's outcomes, while their sessions are in the same state. Sans-IO.

A full fetch and its full response determine the state of a session, apart from the order of its partitions.
In a session with one topic, this order changes no size. So once both policies have had such a fetch through
their sessions, a fetch that the gateway sends as a plain incremental one costs the same with ``always``.

When the gateway does anything else, ``always`` gets the last fetch that it missed, and goes on by itself.
"""

from replay.simulate.outcome import CapturedFetch, Outcome, TopicShare
from replay.simulate.policies import AlwaysPolicy


class Follower:
    """Adds fetches to the policy ``always``, or lets it take over the gateway's outcomes.

    Nothing else adds fetches to `policy`. At most three fetches are in memory.
    """

    def __init__(self, policy: AlwaysPolicy) -> None:
        self._policy = policy
        self._follows = False
        """Whether both sessions are in the same state, before the fetch that waits."""
        self._missed: CapturedFetch | None = None
        """The last fetch that the policy did not process, because it took over the gateway's outcome."""
        self._waiting: CapturedFetch | None = None
        """A fetch whose outcome the gateway does not know yet."""
        self._last: tuple[CapturedFetch, Outcome] | None = None
        """The last fetch that the policy got in `add`, with its outcome there. None after `part`."""

    def __repr__(self) -> str:
        return f"<Follower follows={self._follows}>"

    def add(self, fetch: CapturedFetch) -> list[Outcome]:
        """Add the next fetch, which the gateway has got. Return the outcomes of ``always`` that are final."""
        if self._follows and self._waiting is None and fetch.response is not None:
            self._waiting = fetch
            return []
        outcomes = self.part()
        own = for_other(fetch)
        outcomes += self._policy.add(own)
        self._last = fetch, own.outcome
        return outcomes

    def note(self, final: list[Outcome]) -> list[Outcome]:
        """Note final outcomes of the gateway. Return the outcomes of ``always`` that are final now."""
        outcomes: list[Outcome] = []
        for outcome in final:
            if self._waiting is not None and outcome is self._waiting.outcome:
                if _plain(outcome) and not outcome.full and _complete(self._waiting):
                    self._missed, self._waiting = self._waiting, None
                    outcomes.append(outcome)
                else:
                    outcomes += self.part()
            elif self._follows:
                if not _plain(outcome):
                    outcomes += self.part()
            elif self._last is not None and outcome is self._last[0].outcome:
                fetch, own = self._last
                self._follows = _plain(outcome) and _plain(own) and _complete(fetch)
        return outcomes

    def part(self) -> list[Outcome]:
        """Bring the policy up to date, and stop following. Return the outcome of the fetch that waited."""
        missed, waiting = self._missed, self._waiting
        self._follows, self._missed, self._waiting, self._last = False, None, None, None
        if missed is not None:
            self._policy.add(for_other(missed))
        return self._policy.add(for_other(waiting)) if waiting is not None else []


def for_other(fetch: CapturedFetch) -> CapturedFetch:
    """Return a copy of a fetch, with a new outcome, for the policy that was not chosen."""
    topics = dict.fromkeys(fetch.outcome.topics, TopicShare())
    outcome = Outcome(fetch.outcome.exchange, topics=topics)
    return CapturedFetch(outcome, fetch.request, fetch.elements, fetch.response)


def _plain(outcome: Outcome) -> bool:
    """Return whether a fetch began the session, or went through it without a change of membership."""
    return (
        outcome.eligible
        and not outcome.reason
        and outcome.full + outcome.incremental == 1
        and not (outcome.sessionless or outcome.closes or outcome.added or outcome.forgotten)
        and outcome.session_response_bytes > 0
    )


def _complete(fetch: CapturedFetch) -> bool:
    """Return whether a fetch lists one topic, and its response has exactly the same partitions."""
    response, listing = fetch.response, fetch.request.listing
    if response is None or listing is None or len(listing.keys) != 1:
        return False
    walk = response.walk
    return not (walk.error_code or walk.session_id) and response.lists(listing)
