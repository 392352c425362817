"""Runs the exchanges of a connection through simulated sessions, to compute their cost. Sans-IO."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Final, Literal, TypeAlias
from zlib import crc32

from proxy.core.plans import FetchTemplate
from proxy.protocol.api import ApiKey
from proxy.protocol.primitives import ProtocolError
from proxy.session.partitions import PartitionTable
from replay.capture.kafka.exchange import ConnectionEnd, Exchange
from replay.simulate.following import Follower, for_other
from replay.simulate.outcome import UNPAIRED, CapturedFetch, Outcome, read_fetch, share_captured
from replay.simulate.policies import AlwaysPolicy, GatewayPolicy
from replay.simulate.runs import SessionRun, SteadySession, TakesNews, costs_of

CHECKED: Final = 1_000
"""One of so many fetches of runs is processed by the core, and its costs are compared with those of a run."""
_MOST: Final = 1_000
"""The maximum number of fetches in a run. The times and sizes of each are in memory until its end."""
Policy: TypeAlias = Literal["gateway", "always"]


def _takes_all(_: PartitionTable) -> bool:
    return True


class Engine:
    """Turns the exchanges of one connection into outcomes. `add` and `end` return those of the chosen policy.

    Both policies get the same parsed fetches, so that they can be compared. With `plain`, each policy
    processes each fetch. Otherwise the gateway adds runs of fetches, and ``always`` follows it. With
    `merges`, a run has one outcome. Otherwise each fetch has one. See `SessionRun` for `takes_news`.
    """

    def __init__(
        self,
        policy: Policy,
        *,
        plain: bool = False,
        merges: bool = False,
        takes_news: TakesNews = _takes_all,
    ) -> None:
        self._gateway, self._always = GatewayPolicy(), AlwaysPolicy()
        self._policy: Policy = policy
        self._follower = None if plain else Follower(self._always, waits=policy == "gateway")
        self._most, self._takes_news = _MOST if merges else 1, takes_news
        self._number = -1
        """The number of the last exchange that the policies got."""
        self._final: dict[Policy, list[Outcome]] = {"gateway": [], "always": []}
        """The final outcomes that were not returned yet."""
        self._unanswered: list[CapturedFetch] = []
        self._run: SessionRun | None = None
        """The fetches before the next one, if they are in a run that it may join."""
        self._waiting: Exchange | None = None
        """A fetch of a steady session. It waits until it is known whether anything comes before its
        response."""
        self._template: FetchTemplate | None = None
        self._shift = -1
        """A number that a hash of the connection's name gives: it decides which fetches are checked."""
        self._checked: tuple[Exchange, Sequence[int]] | None = None
        """A fetch that the core processes, and what it would cost in a run."""

    def add(self, exchange: Exchange) -> list[Outcome]:
        """Add an exchange. Return the outcomes of all fetches that are final now."""
        if exchange.api_key == ApiKey.FETCH:
            self._play_waiting(exchange.request_time)
            if self._may_be_in_run(exchange):
                self._waiting = exchange
            else:
                self._end_run()
                self._add_fetch(exchange)
        elif exchange.api_key == ApiKey.API_VERSIONS:
            self._play_waiting(exchange.request_time)
            self._end_run()
            with suppress(ProtocolError):
                self._always.versions(exchange)
                self._note(self._gateway.versions(exchange))
        return self._drain(self._policy)

    def drain_other(self) -> list[Outcome]:
        """Return the other policy's final outcomes since the last call, and forget them.

        In these outcomes, only `eligible`, the sizes in bytes and the keys of topics belong to the other
        policy. A fetch that costs both the same has one outcome object for both.
        """
        return self._drain("always" if self._policy == "gateway" else "gateway")

    @property
    def differing(self) -> int:
        """How many responses the core expanded to another size than the captured one. 0 with ``always``."""
        return self._gateway.differing if self._policy == "gateway" else 0

    def end(self, end: ConnectionEnd) -> tuple[list[Outcome], Outcome | None]:
        """End the connection. Return the last outcomes, and that of closing the gateway's session.

        The latter is None if there was no session to close, if the capture does not show when the client
        left, or with the policy ``always``.
        """
        self._play_waiting(end.closed_time if end.closed else None)
        self._end_run()
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
            closing = None
        return self._drain(self._policy), closing

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

    def _may_be_in_run(self, exchange: Exchange) -> bool:
        if not exchange.response or exchange.response_missing or self._unanswered:
            return False
        if self._run is None:
            self._note(self._gateway.settle(exchange.request_time))
        return self._run is not None or self._steady() is not None

    def _play_waiting(self, until: int | None) -> None:
        """Add the fetch that waits. The next thing comes at `until`, or never."""
        exchange, self._waiting = self._waiting, None
        if exchange is None:
            return
        undisturbed = until is None or exchange.response_time <= until
        if undisturbed and self._is_checked(exchange):
            self._end_run()
            steady = self._steady()
            self._checked = None if steady is None else (exchange, steady.costs(exchange))
        elif undisturbed and self._add_to_run(exchange):
            return
        self._end_run()
        self._add_fetch(exchange)

    def _is_checked(self, exchange: Exchange) -> bool:
        if self._shift < 0:
            self._shift = crc32(exchange.connection.encode()) % CHECKED
        return (self._shift + exchange.number) % CHECKED == 0

    def _add_to_run(self, exchange: Exchange) -> bool:
        """Add a fetch to the run, or begin another one. Return False if the core has to process the fetch."""
        if self._run is None or not self._run.add(exchange):
            self._end_run()
            steady = self._steady()
            run = None if steady is None else SessionRun(steady, exchange, self._takes_news, self._most)
            if run is None or not run.add(exchange):
                return False
            self._run = run
        if self._run.over:
            self._end_run()
        return True

    def _end_run(self) -> None:
        run, self._run = self._run, None
        if run is None:
            return
        self._number = run.last.number
        outcome = run.finish()
        for outcomes in self._final.values():
            outcomes.append(outcome)
        if self._follower is not None and not run.in_both:
            self._follower.skip(run.last)

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
