"""Gives the policy ``always`` the gateway's outcomes, while their sessions are in the same state. Sans-IO.

A full fetch and its full response determine the state of a session, apart from the order of its partitions.
In a session with one topic, this order changes no size. So once both policies have had such a fetch through
their sessions, a fetch that the gateway sends as a plain incremental one costs the same with ``always``. The
first full fetch itself costs the same, too.

In a session with several topics, the order decides into how many elements a topic is split. So ``always``
processes all fetches that are in no run. In a run, both sessions take each fetch (`SteadySession.other`). It
ends where the order would change a size.

When the gateway does anything else, ``always`` gets the last fetch that it missed, and goes on by itself.
"""

from replay.capture.kafka.exchange import Exchange
from replay.simulate.lists import SeveralTopics
from replay.simulate.outcome import CapturedFetch, Outcome, TopicShare, read_fetch
from replay.simulate.policies import AlwaysPolicy, GatewayPolicy
from replay.simulate.runs import SteadySession


class Follower:
    """Adds fetches to the policy ``always``, or lets it take over the gateway's outcomes.

    Nothing else adds fetches to `policy`. At most three fetches are in memory. With `waits`, outcomes of
    single fetches are taken over as well, not only those of runs.
    """

    def __init__(self, policy: AlwaysPolicy, *, waits: bool) -> None:
        self._policy = policy
        self._waits = waits
        self._fresh = waits
        """Whether no fetch has come yet. If the first one begins a session, it costs both the same."""
        self._follows = False
        """Whether both sessions are in the same state, before the fetch that waits."""
        self._missed: CapturedFetch | Exchange | None = None
        """The last fetch that the policy did not process, because it took over the gateway's outcome."""
        self._waiting: CapturedFetch | None = None
        """A fetch whose outcome the gateway does not know yet."""
        self._last: tuple[CapturedFetch, Outcome] | None = None
        """The gateway's last fetch in `add`, with its outcome in the policy. None after `part`."""

    def __repr__(self) -> str:
        return f"<Follower follows={self._follows}>"

    def steady(self, gateway: GatewayPolicy) -> SteadySession | None:
        """Return what the gateway's next fetch is compared with, if it may be in a run for both policies."""
        steady = gateway.steady() if self._follows and self._waiting is None else None
        if steady is not None and isinstance(steady.lists, SeveralTopics) and steady.other is None:
            self._catch_up()
            steady.other = self._policy.beside(steady.lists)
            return steady if steady.other is not None else None
        return steady

    def add(self, fetch: CapturedFetch, own: CapturedFetch | None = None) -> list[Outcome]:
        """Add the next fetch, which the gateway has got. Return the outcomes of ``always`` that are final.

        `own` is the same fetch for the policy. If None, it is made only if it is needed.
        """
        takes_over = self._waits and (self._fresh or (self._follows and _topics(fetch) == 1))
        if takes_over and self._waiting is None and fetch.response:
            self._waiting = fetch
            return []
        outcomes = self.part()
        own = own or for_other(fetch)
        outcomes += self._policy.add(own)
        self._last = fetch, own.outcome
        return outcomes

    def note(self, final: list[Outcome]) -> list[Outcome]:
        """Note final outcomes of the gateway. Return the outcomes of ``always`` that are final now."""
        outcomes: list[Outcome] = []
        for outcome in final:
            if self._waiting is not None and outcome is self._waiting.outcome:
                if _plain(outcome) and bool(outcome.full) == self._fresh and _complete(self._waiting):
                    self._missed, self._waiting = self._waiting, None
                    self._follows, self._fresh = True, False
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

    def skip(self, last: Exchange) -> None:
        """Note a run of the gateway, whose outcome was taken over. `last` is its last fetch."""
        self._missed = last

    def part(self) -> list[Outcome]:
        """Bring the policy up to date, and stop following. Return the outcome of the fetch that waited."""
        waiting = self._waiting
        self._fresh = self._follows = False
        self._waiting = self._last = None
        self._catch_up()
        return self._policy.add(for_other(waiting)) if waiting is not None else []

    def _catch_up(self) -> None:
        missed, self._missed = self._missed, None
        if isinstance(missed, Exchange):
            missed, _ = read_fetch(Outcome(missed), None)
        if missed is not None:
            self._policy.add(for_other(missed))

    def end(self) -> list[Outcome]:
        """Return the outcome of the fetch that waits, when no other fetch comes."""
        return self.part() if self._waiting is not None else []


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


def _topics(fetch: CapturedFetch) -> int:
    listing = fetch.request.listing
    return len(listing.keys) if listing is not None else 0


def _complete(fetch: CapturedFetch) -> bool:
    """Return whether the response of a fetch has exactly the same partitions."""
    response, listing = fetch.response, fetch.request.listing
    if response is None or listing is None:
        return False
    walk = response.walk
    return not (walk.error_code or walk.session_id) and response.lists(listing)
