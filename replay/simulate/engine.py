"""Runs the exchanges of a connection through simulated sessions, to compute their cost. Sans-IO."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias
from zlib import crc32

from proxy.core.plans import FetchTemplate
from proxy.protocol.api import ApiKey
from proxy.protocol.primitives import ProtocolError
from proxy.session.partitions import PartitionTable
from replay.capture.kafka.exchange import ConnectionEnd, Exchange
from replay.capture.kafka.pairs import Pairs
from replay.simulate.following import Follower, for_other
from replay.simulate.outcome import UNPAIRED, CapturedFetch, Outcome, read_fetch, share_captured
from replay.simulate.policies import AlwaysPolicy, GatewayPolicy
from replay.simulate.runs import SessionRun, SteadySession, TakesNews, costs_of

CHECKED: Final = 1_000
"""One of so many fetches of runs is processed by the core, and its costs are compared with those of a run."""
_READ: Final = (ApiKey.FETCH, ApiKey.API_VERSIONS)
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


def _before_check(connection: str, number: int) -> int:
    """Return how many fetches come before the next one that is checked."""
    return -(crc32(connection.encode()) + number) % CHECKED


def _takes_all(_: PartitionTable) -> bool:
    return True


class Engine:
    """Turns the exchanges of one connection into outcomes. `add` and `end` return those of the chosen policy.

    Both policies get the same parsed fetches, so that they can be compared. With `plain`, each policy
    processes each fetch. Otherwise the gateway adds runs of fetches, and ``always`` follows it. `SessionRun`
    has the argument `takes_news`.
    """

    def __init__(self, policy: Policy, *, plain: bool = False) -> None:
        self._gateway, self._always = GatewayPolicy(), AlwaysPolicy()
        self._policy: Policy = policy
        self._follower = None if plain else Follower(self._always, waits=policy == "gateway")
        self._number = -1
        """The number of the last exchange that the policies got."""
        self._final: dict[Policy, list[Outcome]] = {"gateway": [], "always": []}
        """The final outcomes that were not returned yet."""
        self._unanswered: list[CapturedFetch] = []
        self._waiting: Exchange | None = None
        """A fetch of a steady session. It waits until it is known whether anything comes before its
        response."""
        self._template: FetchTemplate | None = None
        self._checked: tuple[Exchange, Sequence[int]] | None = None
        """A fetch that the core processes, and what it would cost in a run."""

    def add(self, exchange: Exchange, takes_news: TakesNews = _takes_all) -> list[Outcome]:
        """Add an exchange. Return the outcomes of all fetches that are final now."""
        if exchange.api_key not in _READ:
            return []
        self._play_waiting(exchange.request_time, takes_news)
        if exchange.api_key == ApiKey.API_VERSIONS:
            with suppress(ProtocolError):
                self._always.versions(exchange)
                self._note(self._gateway.versions(exchange))
        elif not exchange.response or exchange.response_missing or self._unanswered:
            self._add_fetch(exchange)
        else:
            self._note(self._gateway.settle(exchange.request_time))
            if self._steady() is not None:
                self._waiting = exchange
            else:
                self._add_fetch(exchange)
        return self._drain(self._policy)

    def add_run(self, pairs: Pairs, at: int, takes_news: TakesNews = _takes_all) -> tuple[int, list[Outcome]]:
        """Add the fetches of `pairs` from index `at` on, up to the first that is no part of a run.

        Return how many were added, and the outcomes that are final now, as `add` does. The last fetch of
        `pairs` is not added, because it is unknown what comes before the next request.
        """
        self._play_waiting(pairs.request_times[at], takes_news)
        if self._unanswered:
            return 0, self._drain(self._policy)
        self._note(self._gateway.settle(pairs.request_times[at]))
        steady, end = self._steady(), at
        if steady is not None:
            most = min(len(pairs) - 1, at + _before_check(pairs.connection, pairs.number + at))
            run = SessionRun(steady, takes_news)
            asked, told = pairs.request_times, pairs.response_times
            while end < most and run.add(pairs.request(end), pairs.response(end), asked[end], told[end]):
                end += 1
            if end > at:
                self._end_run(run, pairs.merged(at, end), pairs.exchange(end - 1))
        return end - at, self._drain(self._policy)

    def drain_other(self) -> list[Outcome]:
        """Return the other policy's final outcomes since the last call, and forget them.

        In these outcomes, only `eligible`, the sizes in bytes and the keys of topics belong to the other
        policy. A fetch that costs both the same has one outcome object for both.
        """
        return self._drain("always" if self._policy == "gateway" else "gateway")

    def end(self, end: ConnectionEnd, takes_news: TakesNews = _takes_all) -> tuple[list[Outcome], Ending]:
        self._play_waiting(end.closed_time if end.closed else None, takes_news)
        last = self._number
        chosen = self._final[self._policy]
        chosen += [self._left_out(f) for f in self._unanswered if f.outcome.exchange.number < last]
        trailing = [f for f in self._unanswered if f.outcome.exchange.number >= last]
        for fetch in trailing:
            self._take(fetch)
            if fetch is not trailing[-1] and fetch.outcome.reason:
                fetch.outcome.reason = UNPAIRED  # the client went on, so its response is missing
        outcomes, closing = self._gateway.end(end)
        self._note(outcomes)
        if self._follower is not None:
            self._final["always"] += self._follower.end()
        if self._policy == "always":
            self._final["gateway"] += [closing] if closing is not None else []
            return self._drain(self._policy), Ending(end, None, self._always.differing)
        return self._drain(self._policy), Ending(end, closing, self._gateway.differing)

    def _add_fetch(self, exchange: Exchange) -> None:
        outcome = Outcome(exchange)
        fetch, self._template = read_fetch(outcome, self._template)
        if fetch is None:
            self._final[self._policy].append(outcome)
        elif fetch.response is None:
            self._unanswered.append(fetch)
        else:
            self._final[self._policy] += [self._left_out(earlier) for earlier in self._unanswered]
            self._unanswered.clear()
            self._take(fetch)

    def _take(self, fetch: CapturedFetch) -> None:
        share_captured(fetch)
        self._number = fetch.outcome.exchange.number
        if self._policy == "gateway":
            of_gateway, own = fetch, None
        else:
            of_gateway, own = for_other(fetch), fetch
        self._note(self._gateway.add(of_gateway))
        if self._follower is not None:
            self._final["always"] += self._follower.add(of_gateway, own)
        else:
            self._final["always"] += self._always.add(own or for_other(fetch))

    # Runs

    def _steady(self) -> SteadySession | None:
        """Return what the next fetch is compared with, or None if it begins no run."""
        return self._follower.steady(self._gateway) if self._follower is not None else None

    def _play_waiting(self, until: int | None, takes_news: TakesNews) -> None:
        exchange, self._waiting = self._waiting, None
        if exchange is None:
            return
        asked, told = exchange.request_time, exchange.response_time
        steady = self._steady() if until is None or told <= until else None
        if steady is not None and not _before_check(exchange.connection, exchange.number):
            self._checked = exchange, steady.costs(exchange.request, b"".join(exchange.response), asked)
        elif steady is not None:
            run = SessionRun(steady, takes_news)
            if run.add(exchange.request, b"".join(exchange.response), asked, told):
                self._end_run(run, exchange, exchange)
                return
        self._add_fetch(exchange)

    def _end_run(self, run: SessionRun, merged: Exchange, last: Exchange) -> None:
        self._number = last.number
        outcome = run.finish(merged)
        for outcomes in self._final.values():
            outcomes.append(outcome)
        if self._follower is not None and not run.in_both:
            self._follower.skip(last)

    # Outcomes

    def _drain(self, policy: Policy) -> list[Outcome]:
        outcomes, self._final[policy] = self._final[policy], []
        return outcomes

    def _note(self, outcomes: list[Outcome]) -> None:
        """Keep final outcomes of the gateway, and those of ``always`` that follow from them."""
        for outcome in outcomes if self._checked is not None else ():
            self._check(outcome)
        self._final["gateway"] += outcomes
        if self._follower is not None:
            self._final["always"] += self._follower.note(outcomes)

    def _check(self, outcome: Outcome) -> None:
        if self._checked is None or outcome.exchange is not self._checked[0]:
            return
        (exchange, costs), self._checked = self._checked, None
        found = costs_of(outcome)
        if costs and costs != found:
            place = f"{exchange.connection}, exchange {exchange.number}"
            raise RuntimeError(f"{place}: a run would cost {costs}, the core {found}")

    def _left_out(self, fetch: CapturedFetch) -> Outcome:
        """Count a fetch at its captured cost: without its response, the session's next state is unknown."""
        share_captured(fetch)
        fetch.outcome.reason = UNPAIRED
        return fetch.outcome
