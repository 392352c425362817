"""What sessions would have cost: a connection's exchanges, played through the session engine. Sans-IO."""

from contextlib import suppress
from dataclasses import dataclass
from typing import Literal, TypeAlias

from proxy.core.last_seen import LastSeen
from proxy.protocol.api import ApiKey
from proxy.protocol.primitives import ProtocolError
from replay.capture.kafka.exchange import ConnectionEnd, Exchange
from replay.simulate.outcome import UNPAIRED, CapturedFetch, Outcome, TopicShare, read_fetch, share_captured
from replay.simulate.policies import AlwaysPolicy, GatewayPolicy

Policy: TypeAlias = Literal["gateway", "always"]


@dataclass(slots=True)
class Ending:
    """What is known of a connection when all of it was taken."""

    end: ConnectionEnd
    closing: Outcome | None
    """The close of its session, as an exchange of its own; None if there was none."""
    differing: int
    """Responses that the core would not have expanded to the size that was captured."""


class Engine:
    """One connection's exchanges in, their outcomes out; exchanges come in the order of their requests.

    The other policy takes the same parsed fetches beside it, so that both can be compared.

    Args:
        policy: ``gateway`` or ``always``.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy: AlwaysPolicy | GatewayPolicy
        self._other: AlwaysPolicy | GatewayPolicy
        self._policy, self._other = GatewayPolicy(), AlwaysPolicy()
        if policy == "always":
            self._policy, self._other = self._other, self._policy
        self._of_other: list[Outcome] = []
        self._unchanged: Outcome | None = None
        """Of the other policy: the last fetch, if it changed nothing and neither did its response."""
        self._unanswered: list[CapturedFetch] = []
        self._repeated = LastSeen()

    def add(self, exchange: Exchange) -> list[Outcome]:
        """Take an exchange; return the outcomes of fetches that are settled by now."""
        if exchange.api_key == ApiKey.API_VERSIONS:
            with suppress(ProtocolError):
                self._of_other += self._other.versions(exchange)
                return self._policy.versions(exchange)
        if exchange.api_key != ApiKey.FETCH:
            return []
        settled = []
        if not self._unanswered and exchange.response and not exchange.response_missing:
            settled = self._policy.settle(exchange.request_time)
            if self._policy.repeats(exchange):
                self._repeat_in_other(exchange)
                return settled
        outcome = Outcome(exchange)
        fetch = read_fetch(outcome, self._repeated)
        if fetch is None:
            return [*settled, outcome]
        if fetch.response is None:
            self._unanswered.append(fetch)
            return settled
        settled += [self._left_out(earlier) for earlier in self._unanswered]
        self._unanswered.clear()
        return settled + self._take(fetch)

    def drain_other(self) -> list[Outcome]:
        """Return the outcomes with the other policy that are settled by now.

        Their topics have no figures, and a fetch that repeats the one before has the outcome of that one.
        """
        outcomes, self._of_other = self._of_other, []
        return outcomes

    def end(self, end: ConnectionEnd) -> tuple[list[Outcome], Ending]:
        """Take the connection's end; return the outcomes of all fetches not yet told, and the ending."""
        last = self._policy.number
        settled = [self._left_out(f) for f in self._unanswered if f.outcome.exchange.number < last]
        trailing = [f for f in self._unanswered if f.outcome.exchange.number >= last]
        for fetch in trailing:
            settled += self._take(fetch)
        outcomes, closing = self._policy.end(end)
        others, other_closing = self._other.end(end)
        self._of_other += others
        if other_closing is not None:
            self._of_other.append(other_closing)
        ending = Ending(end, closing, self._policy.differing)
        return settled + outcomes, ending

    def _take(self, fetch: CapturedFetch) -> list[Outcome]:
        share_captured(fetch)
        topics = dict.fromkeys(fetch.outcome.topics, TopicShare())
        other = Outcome(fetch.outcome.exchange, topics=topics)
        self._of_other += self._other.add(CapturedFetch(other, fetch.request, fetch.elements, fetch.response))
        self._unchanged = other if _changes_nothing(other) else None
        return self._policy.add(fetch)

    def _repeat_in_other(self, exchange: Exchange) -> None:
        """Have the other policy take a fetch like the last one, which nothing changed since."""
        if self._unchanged is not None:
            self._of_other.append(self._unchanged)
            return
        outcome = Outcome(exchange)
        fetch = read_fetch(outcome, self._repeated)
        if fetch is not None:
            share_captured(fetch)
            self._of_other += self._other.add(fetch)
            self._unchanged = outcome if _changes_nothing(outcome) else None

    def _left_out(self, fetch: CapturedFetch) -> Outcome:
        """Leave out a fetch of which the capture lost the response: what the session learnt is not known."""
        share_captured(fetch)
        fetch.outcome.reason = UNPAIRED
        return fetch.outcome


def _changes_nothing(outcome: Outcome) -> bool:
    """Whether a fetch went through a session, and neither it nor its response had anything new."""
    alone = outcome.incremental == 1 and not (outcome.full or outcome.sessionless or outcome.closes)
    news = outcome.session_partitions_requested or outcome.forgotten or outcome.session_partitions_answered
    return alone and not news
