"""Runs the exchanges of a connection through simulated sessions, to compute their cost. Sans-IO."""

from contextlib import suppress
from dataclasses import dataclass
from typing import Literal, TypeAlias

from proxy.core.plans import FetchTemplate
from proxy.protocol.api import ApiKey
from proxy.protocol.primitives import ProtocolError
from replay.capture.kafka.exchange import ConnectionEnd, Exchange
from replay.capture.kafka.pairs import Pairs
from replay.simulate.following import Follower, for_other
from replay.simulate.outcome import UNPAIRED, CapturedFetch, Outcome, read_fetch, share_captured
from replay.simulate.policies import AlwaysPolicy, GatewayPolicy

Policy: TypeAlias = Literal["gateway", "always"]


@dataclass(slots=True)
class Ending:
    """The results at the end of a captured connection."""

    end: ConnectionEnd
    closing: Outcome | None
    """The outcome of closing the gateway's session. None if there was no session to close, if the capture
    does not show when the client left, or with the policy ``always``."""
    differing: int
    """How many responses the core expanded to another size than the captured one. With ``always``: 0."""


@dataclass(frozen=True, slots=True)
class Repeats:
    """Fetches that repeat the one before them. Nothing changes, so all have the same cost."""

    times: int
    outcome: Outcome
    """The outcome of the first repeated fetch in the chosen policy."""
    other: Outcome
    """The outcome of an earlier fetch in the other policy, with the same cost. See `Engine.drain_other`."""


class Engine:
    """Turns the exchanges of one connection into outcomes. `add` and `end` return those of the chosen policy.

    Both policies get the same parsed fetches, so that they can be compared.

    With `plain`, fewer fetches are recognised as repeats. With the policy ``always``, every fetch then goes
    through both policies. With ``gateway``, no `Follower` is used, but ``always`` still does not get a fetch
    that repeats one which changed nothing.
    """

    def __init__(self, policy: Policy, *, plain: bool = False) -> None:
        self._gateway, self._always = GatewayPolicy(), AlwaysPolicy()
        self._policy: AlwaysPolicy | GatewayPolicy
        self._other: AlwaysPolicy | GatewayPolicy
        self._policy, self._other = self._gateway, self._always
        if policy == "always":
            self._policy, self._other = self._other, self._policy
        self._recognises = policy == "gateway" or not plain
        self._follower = Follower(self._always) if policy == "gateway" and not plain else None
        self._number = -1
        """The number of the last exchange that the policies got."""
        self._of_other: list[Outcome] = []
        self._unchanged: Outcome | None = None
        """The last outcome of ``always``, if neither the fetch nor its response changed anything."""
        self._unanswered: list[CapturedFetch] = []
        self._template: FetchTemplate | None = None

    def add(self, exchange: Exchange) -> list[Outcome]:
        """Add an exchange. Return the outcomes of all fetches that are final now."""
        if exchange.api_key == ApiKey.API_VERSIONS:
            with suppress(ProtocolError):
                self._of_other += self._other.versions(exchange)
                return self._noted(self._policy.versions(exchange))
        if exchange.api_key != ApiKey.FETCH:
            return []
        settled = []
        whole = exchange.response and not exchange.response_missing
        if whole and not self._unanswered:
            settled = self._chosen(self._gateway, self._gateway.settle(exchange.request_time))
            if self._recognises and self._gateway.repeats(exchange):
                self._number = exchange.number
                return settled + self._chosen(self._always, self._repeat_in_always(exchange))
        outcome = Outcome(exchange)
        fetch, self._template = read_fetch(outcome, self._template)
        if fetch is None:
            return [*settled, outcome]
        if fetch.response is None:
            self._unanswered.append(fetch)
            return settled
        settled += [self._left_out(earlier) for earlier in self._unanswered]
        self._unanswered.clear()
        return settled + self._take(fetch)

    def repeat(self, pairs: Pairs, at: int) -> tuple[list[Outcome], Repeats | None]:
        """Add the fetches of `pairs` from index `at` on, as long as each repeats the fetch before it.

        Only fetches that are final at once are added. Return the outcomes of earlier fetches that became
        final, and what the repeated fetches cost.
        """
        unchanged = self._unchanged
        if unchanged is None or self._unanswered or self._gateway.repeated is None:
            return [], None
        settled = self._chosen(self._gateway, self._gateway.settle(pairs.request_times[at]))
        repeated = self._gateway.repeated
        times = self._gateway.repeat(pairs, at)
        if not times or repeated is None:
            return settled, None
        self._number = pairs.number + at + times - 1
        own, other = (repeated, unchanged) if self._policy is self._gateway else (unchanged, repeated)
        return settled, Repeats(times, own.repeated_by(pairs.exchange(at)), other)

    def drain_other(self) -> list[Outcome]:
        """Return the other policy's final outcomes since the last call, and forget them.

        In these outcomes, only `eligible`, the sizes in bytes and the keys of topics belong to the other
        policy. Fetches that repeat the previous fetch share its outcome object.
        """
        outcomes, self._of_other = self._of_other, []
        return outcomes

    def end(self, end: ConnectionEnd) -> tuple[list[Outcome], Ending]:
        last = self._number
        settled = [self._left_out(f) for f in self._unanswered if f.outcome.exchange.number < last]
        trailing = [f for f in self._unanswered if f.outcome.exchange.number >= last]
        for fetch in trailing:
            settled += self._take(fetch)
            if fetch is not trailing[-1] and fetch.outcome.reason:
                fetch.outcome.reason = UNPAIRED  # the client went on, so its response is missing
        outcomes, closing = self._policy.end(end)
        self._noted(outcomes)
        if self._follower is not None:
            self._take_over(self._follower.part())
        others, other_closing = self._other.end(end)
        self._of_other += others
        if other_closing is not None:
            self._of_other.append(other_closing)
        ending = Ending(end, closing, self._policy.differing)
        return settled + outcomes, ending

    def _take(self, fetch: CapturedFetch) -> list[Outcome]:
        share_captured(fetch)
        settled = self._noted(self._policy.add(fetch))
        self._number = fetch.outcome.exchange.number
        if self._follower is not None:
            self._unchanged = None
            self._take_over(self._follower.add(fetch))
            return settled
        other = for_other(fetch)
        self._of_other += self._other.add(other)
        own = fetch.outcome if self._policy is self._always else other.outcome
        self._unchanged = own if _changes_nothing(own) else None
        return settled

    def _repeat_in_always(self, exchange: Exchange) -> list[Outcome]:
        """Return the outcome in ``always`` of a fetch that repeats the last one in ``gateway``."""
        like = self._unchanged
        if like is not None:
            return [like if self._other is self._always else like.repeated_by(exchange)]
        if self._follower is not None:
            self._take_over(self._follower.part())
        outcome = Outcome(exchange)
        fetch, self._template = read_fetch(outcome, self._template)
        if fetch is not None:
            share_captured(fetch)
            self._always.add(fetch)
            self._unchanged = outcome if _changes_nothing(outcome) else None
        return [outcome]

    def _chosen(self, policy: AlwaysPolicy | GatewayPolicy, outcomes: list[Outcome]) -> list[Outcome]:
        """Return the outcomes of the chosen policy. Keep those of the other one for `drain_other`."""
        if policy is self._policy:
            return self._noted(outcomes)
        self._of_other += outcomes
        return []

    def _noted(self, outcomes: list[Outcome]) -> list[Outcome]:
        """Keep the outcomes of ``always`` that result from outcomes of the chosen policy. Return these."""
        if self._follower is not None:
            self._take_over(self._follower.note(outcomes))
        return outcomes

    def _take_over(self, outcomes: list[Outcome]) -> None:
        if outcomes:
            self._of_other += outcomes
            self._unchanged = outcomes[-1] if _changes_nothing(outcomes[-1]) else None

    def _left_out(self, fetch: CapturedFetch) -> Outcome:
        """Count a fetch at its captured cost: without its response, the session's next state is unknown."""
        share_captured(fetch)
        fetch.outcome.reason = UNPAIRED
        return fetch.outcome


def _changes_nothing(outcome: Outcome) -> bool:
    """Return whether a fetch was incremental, and neither it nor its response listed any partition."""
    alone = outcome.incremental == 1 and not (outcome.full or outcome.sessionless or outcome.closes)
    news = outcome.session_partitions_requested or outcome.forgotten or outcome.session_partitions_answered
    return alone and not news
