"""Compares captured responses with the ones that come now (`replay drive --compare`). Sans-IO.

The rest of `drive` knows it by two hooks: `Keeper.keep` gets every captured exchange that becomes a step, and
`Comparison.sent` every request that is sent and gets a response. `Difference` and `_RULES` decide what may
differ.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, TypeAlias, TypedDict, TypeVar

import numpy as np
import numpy.typing as npt
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from proxy.protocol.api import ApiKey, ErrorCode, request_header
from proxy.protocol.fetch_response import NO_ABORTED
from proxy.protocol.messages import read
from replay.capture.kafka.exchange import Exchange
from replay.drive.asked import asked
from replay.drive.differences import NOT_ALLOWED, Difference
from replay.drive.mapping import bounds_of
from replay.drive.options import OffsetPolicy
from replay.drive.script import PlayedConnection, Script, Step
from replay.drive.side import ABSENT, UNSPOKEN, TargetSide
from replay.drive.summaries import NO_VALUES, UNKNOWN, WHOLE, Summary, can_be_read, numbers, summarize
from replay.drive.target import Destination
from replay.protocol.errors import error_name
from replay.protocol.names import name_of
from replay.report.wording import number, percent, plural, shown

SHOWN: Final = 5
"""For how many places (topic, client, broker) a difference is shown on a terminal."""
MOST_UNCOMPARED: Final = 0.05
"""If a larger share of the captured responses was not compared, the run is no success."""


@dataclass(frozen=True, slots=True)
class _Rule:
    """Which difference it is if a value of an entry is lower, or higher, than the captured one."""

    name: str
    lower: Difference
    higher: Difference


_RULES: Final[dict[int, tuple[_Rule, ...]]] = {
    ApiKey.FETCH: (
        _Rule("record bytes", Difference.FEWER, Difference.MORE),
        _Rule("first offset", Difference.FIRST, Difference.FIRST),
        _Rule("CRC", Difference.CONTENTS, Difference.CONTENTS),
        _Rule("high watermark", Difference.OFFSETS, Difference.OFFSETS),
        _Rule("aborted transactions", Difference.ABORTED, Difference.ABORTED),
    ),
    ApiKey.PRODUCE: (_Rule("base offset", Difference.OFFSETS, Difference.OFFSETS),),
    ApiKey.LIST_OFFSETS: (_Rule("offset", Difference.OFFSETS, Difference.OFFSETS),),
    ApiKey.API_VERSIONS: (
        _Rule("lowest version", Difference.WIDER, Difference.NARROWER),
        _Rule("highest version", Difference.NARROWER, Difference.WIDER),
    ),
}
"""API key -> the rules for the values of its entries, in the order of `Summary.rows`."""
_TOPIC_IDS_FROM: Final = {int(ApiKey.FETCH): 13, int(ApiKey.PRODUCE): 13}
"""The versions from which on topics are named by ids."""

_FETCH: Final = "int32@0-14 int32 int32 max_bytes:int32 int8 int32@7+ session_epoch:int32@7+"
_NOT_COORDINATOR: Final = 16
_INTERNAL: Final = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})
_DENIED: Final = frozenset({29, 30, 31, 53})
"""TOPIC_, GROUP_, CLUSTER_ and TRANSACTIONAL_ID_AUTHORIZATION_FAILED."""
_EVERY: Final = -1
"""Stands in place of an API key: a missing ACL is one difference, whatever APIs notice it."""

NO_RESPONSE: Final = "its response was not captured"
CUT_RESPONSE: Final = "its response was not captured whole"
NOT_READ: Final = "replay does not read responses of this API"
NOT_PARSED: Final = "the captured response does not parse"
LOST: Final = "no response came"
THROTTLED: Final = "the target throttles: it responded without partitions"
SHIFTED: Final = "partitions whose offsets --offsets changes: only errors are compared"
ELSEWHERE: Final = "partitions that another broker of the target leads"
COORDINATED: Final = "another broker of the target coordinates its group"
UNCAPTURED: Final = "partitions whose first batch was not captured: its offset is not compared"
INTERNAL: Final = "internal topics, which a cluster creates when it first needs them"
REDIRECTED: Final = "partitions for which the target names another replica"

_T = TypeVar("_T")
OnFrame: TypeAlias = Callable[[bytes], None]
Entry: TypeAlias = tuple[str, int]
"""A topic and a partition, or `WHOLE`; or "" and an API key."""
Entries: TypeAlias = dict[tuple[str, int], tuple[int, tuple[int, ...]]]
"""Topic and number -> error code and values."""
Listed: TypeAlias = dict[str, npt.NDArray[np.int32]]
"""Topic -> the ascending numbers of its entries."""


class ComparedExample(TypedDict):
    """One place where a response differs."""

    connection: str
    correlation_id: int
    version: int
    client: str
    broker: str
    api: str
    topic: str
    entry: str
    """A topic, a partition (topic-number) or an API; "" for the whole response."""
    captured: str
    now: str


class PlaceRow(TypedDict):
    """Where a kind of difference is."""

    topic: str
    client: str
    broker: str
    count: int


class DifferenceRow(TypedDict):
    """A kind of difference in the responses of one API."""

    api: str
    """The API's name, or "all"."""
    difference: str
    allowed: bool
    count: int
    """How many entries, or whole responses, differ like this."""
    places: list[PlaceRow]
    examples: list[ComparedExample]
    """All of them, by topic, client and broker."""


class ComparedRow(TypedDict):
    """The responses of one API."""

    api: str
    compared: int
    same: int
    allowed: int
    """Responses that differ only in what may differ."""
    not_allowed: int


class NotComparedRow(TypedDict):
    """Responses or partitions that were not compared for the same reason."""

    api: str
    reason: str
    count: int


class CompareFigures(TypedDict):
    """The comparison."""

    apis: list[ComparedRow]
    differences: list[DifferenceRow]
    not_compared: list[NotComparedRow]
    uncompared_ratio: float
    """The share of captured responses, or of those to fetches if it is higher, that was not compared."""


@dataclass(frozen=True, slots=True)
class Kept:
    """What is known of a captured response."""

    correlation_id: int
    summary: Summary | None
    reason: str = ""


class Keeper:
    """Reduces captured responses, for the script. Equal summaries and equal listings are one object."""

    def __init__(self) -> None:
        self._known: dict[Any, Any] = {}

    def keep(self, item: Exchange, step: Step) -> Kept:
        summary = None
        if not item.response_time:
            reason = NO_RESPONSE
        elif not can_be_read(item.api_key):
            reason = NOT_READ
        elif not item.response or item.response_missing:
            reason = CUT_RESPONSE
        else:
            summary = summarize(item.api_key, item.api_version, step.isolation_level, item.response)
            reason = NOT_PARSED if summary is None else ""
        if summary is not None:
            summary = self._one(replace(summary, listing=self._one(summary.listing)))
        return Kept(item.correlation_id, summary, reason)

    def _one(self, value: _T) -> _T:
        found: _T = self._known.setdefault(value, value)
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sent:
    """A request that was sent, or that could not be."""

    connection: PlayedConnection
    correlation_id: int
    step: Step
    captured: Summary
    place: Destination
    full: bool
    """Whether the response has all partitions: it is not of an incremental fetch."""
    max_bytes: int
    """The limit for the records in the response to a fetch."""


class Comparison:
    """Compares the responses of one run. Requests that can't be sent to the target are compared at once.

    Args:
        script: as captured, with the results of a `Keeper`.
        routes: the brokers of each connection, by its name. The first one is that of `side`.
        played: the connections of the script, with the steps that can be sent.
        allow: the differences that are allowed, in addition to those that always are.
    """

    def __init__(
        self,
        script: Script,
        side: TargetSide,
        routes: Mapping[str, Sequence[Destination]],
        played: Sequence[PlayedConnection],
        policy: OffsetPolicy,
        allow: Iterable[Difference] = (),
    ) -> None:
        self._allowed = frozenset(allow) | (frozenset(Difference) - NOT_ALLOWED)
        self._used = script.versions
        self._target = side.target
        self._captured_names = script.topics
        here = {topic.topic_id: name for name, topic in side.target.topics.items()}
        self._names = dict(script.topics) | here
        self._shifted = {} if policy is OffsetPolicy.KEEP else _shifted(script, side, policy)
        self._rows: dict[int, Counter[str]] = {}
        self._found: dict[tuple[int, Difference], list[ComparedExample]] = {}
        self._not_compared: Counter[tuple[int, str]] = Counter()
        self._waiting: Counter[int] = Counter()
        self._expected = Counter({each.api_key: n for each, n in script.left_out.items() if not each.wanted})
        """API key -> how many responses a whole comparison compares."""
        self._differences: set[Difference] = set()
        for connection, kept in zip(script.connections, played, strict=True):
            sent = {id(step) for step in kept.steps}
            for step in connection.steps:
                self._expected[step.api_key] += (
                    isinstance(step.kept, Kept) and step.kept.reason != NO_RESPONSE
                )
                if id(step) not in sent:
                    place = routes[connection.name][0]
                    self._left_out(connection, step, place, side.why_not(step, place))

    def sent(self, connection: PlayedConnection, place: Destination, step: Step, frame: bytes) -> OnFrame:
        """Return what to call with the response to a request: `step` as captured, `frame` as sent."""
        one = _sent(connection, step, place, frame)
        if one is None:
            reason = step.kept.reason if isinstance(step.kept, Kept) else NO_RESPONSE
            self._not_compared[step.api_key, reason] += 1
            return lambda _: None
        self._waiting[step.api_key] += 1
        return partial(self._responded, one)

    def figures(self, times: int = 1) -> CompareFigures:
        """Return the comparison so far. `times` is how often each request is played."""
        lost = Counter({(key, LOST): count for key, count in self._waiting.items() if count})
        return {
            "apis": [
                {
                    "api": name_of(key),
                    "compared": row.total(),
                    "same": row["same"],
                    "allowed": row["allowed"],
                    "not_allowed": row["not_allowed"],
                }
                for key, row in sorted(self._rows.items())
            ],
            "differences": [
                {
                    "api": "all" if key == _EVERY else name_of(key),
                    "difference": difference.value,
                    "allowed": difference in self._allowed,
                    "count": len(found),
                    "places": _places(found),
                    "examples": sorted(found, key=_order),
                }
                for (key, difference), found in sorted(self._found.items(), key=self._importance)
            ],
            "not_compared": [
                {"api": name_of(key), "reason": reason, "count": count}
                for (key, reason), count in sorted((self._not_compared + lost).items())
            ],
            "uncompared_ratio": round(self._uncompared(times), 4),
        }

    def _importance(
        self, item: tuple[tuple[int, Difference], list[ComparedExample]]
    ) -> tuple[bool, int, int, str]:
        (key, difference), found = item
        return difference in self._allowed, key, -len(found), difference

    def _uncompared(self, times: int) -> float:
        """Return which share of all responses was not compared, or of those to fetches if that is larger."""
        missing = Counter({key: count * times for key, count in self._expected.items()})
        for key, row in self._rows.items():
            missing[key] -= row.total()
        for (key, reason), count in self._not_compared.items():
            missing[key] -= count if reason == COORDINATED else 0  # the target is as good as any other
        expected = self._expected.total() * times, self._expected[ApiKey.FETCH] * times
        shares = zip((missing.total(), missing[ApiKey.FETCH]), expected, strict=True)
        return max(max(gone, 0) / whole if whole else 0.0 for gone, whole in shares)

    def _left_out(self, connection: PlayedConnection, step: Step, place: Destination, reason: str) -> None:
        """Note the differences if the target lacks a request's version, or its partitions."""
        one = _sent(connection, step, place)
        if one is None:
            return
        self._differences.clear()
        if reason == UNSPOKEN.format(step.version):
            span = self._target.versions.get(step.api_key)
            now = "none" if span is None else f"v{span[0]} to v{span[1]}"
            self._note(one, Difference.VERSION, None, f"v{step.version}", now)
        elif reason == ABSENT and not one.captured.errors:
            self._entries(one, Summary())
        if self._differences:
            self._count(step.api_key)

    def _responded(self, one: _Sent, response: bytes) -> None:
        step = one.step
        self._waiting[step.api_key] -= 1
        now = summarize(step.api_key, step.version, step.isolation_level, (response,))
        if now is None:
            self._differences.clear()
            self._note(one, Difference.UNREADABLE, None, "parses", "does not parse")
            self._count(step.api_key)
        else:
            self._compare(one, now)

    def _compare(self, one: _Sent, now: Summary) -> None:
        captured, key = one.captured, one.step.api_key
        if now.throttled:
            self._not_compared[key, THROTTLED] += 1
            return
        new = {*now.errors, *now.entry_errors} - {*captured.errors, *captured.entry_errors}
        if _NOT_COORDINATOR in new and len(self._target.brokers) > 1:
            # `drive` sends a connection to the broker that leads its partitions, whatever its group.
            self._not_compared[key, COORDINATED] += 1
            return
        self._differences.clear()
        self._errors(one, captured.errors, now.errors)
        if not captured.errors and not now.errors:
            self._errors(one, captured.entry_errors, now.entry_errors)
            if captured.size != now.size:
                self._note(one, Difference.SIZE, None, f"{captured.size} bytes", f"{now.size} bytes")
            self._entries(one, now)
        self._count(key)

    def _errors(self, one: _Sent, captured: Iterable[int], now: Iterable[int]) -> None:
        """Compare how often each error code occurs, no matter where in the response."""
        before, after = Counter(captured), Counter(now)
        gone, new = [*(before - after).elements()], [*(after - before).elements()]
        for place, code in enumerate(new):
            self._note_error(one, None, gone[place] if place < len(gone) else 0, code)
        for code in gone[len(new) :]:
            self._note_error(one, None, code, 0)

    def _entries(self, one: _Sent, now: Summary) -> None:
        before, was = self._resolved(one.step, one.captured, self._captured_names)
        after, has = self._resolved(one.step, now, self._names)
        captured_full = one.step.session_epoch <= 0
        if one.full and captured_full:
            self._listings(one, before, after, was, has)
        total = sum(values[0] for _, values in has.values() if values[0] > 0)
        for entry in dict.fromkeys((*was, *has)):
            old, new = was.get(entry), has.get(entry)
            if old is not None and new is None:
                new = self._unsaid(one, entry, old[0], after)
            if old is None and (not captured_full or _lists(before, entry)):
                old = 0, NO_VALUES
            if old is None or new is None:
                continue
            self._entry(one, entry, old, new, total)

    def _unsaid(
        self, one: _Sent, entry: tuple[str, int], error: int, after: Listed
    ) -> tuple[int, tuple[int, ...]] | None:
        """Return the values of an entry that the response has no row for, or None if they are not compared.

        If the response should have the entry, note that it is missing. `error` is that of the captured entry.
        """
        if _lists(after, entry):
            return 0, NO_VALUES
        if one.full and one.step.session_epoch <= 0:
            return None  # `_listings` has compared it
        if self._is_elsewhere(one, entry):
            return None
        if one.full or self._lacks(entry):
            if not error:
                self._note(one, Difference.MISSING, entry, "there", "missing")
            return None
        return 0, NO_VALUES

    def _entry(
        self,
        one: _Sent,
        entry: tuple[str, int],
        captured: tuple[int, tuple[int, ...]],
        now: tuple[int, tuple[int, ...]],
        total: int,
    ) -> None:
        key = one.step.api_key
        if now[0] and now[0] != captured[0]:
            moved = now[0] == ErrorCode.NOT_LEADER_OR_FOLLOWER and self._is_elsewhere(one, entry)
            if not moved:
                self._note_error(one, entry, captured[0], now[0])
        elif captured[0] and not now[0]:
            self._note_error(one, entry, captured[0], 0)
        if captured[0] or now[0]:
            return
        if key == ApiKey.FETCH:
            self._fetched(one, entry, captured[1], now[1], total)
        else:
            self._values(one, entry, _RULES.get(key, ()), captured[1], now[1])

    def _fetched(
        self, one: _Sent, entry: tuple[str, int], captured: tuple[int, ...], now: tuple[int, ...], total: int
    ) -> None:
        key, rules = one.step.api_key, _RULES[ApiKey.FETCH]
        shifted = self._shifted.get(entry[0])
        if shifted is not None and entry[1] < len(shifted) and shifted[entry[1]]:
            self._not_compared[key, SHIFTED] += 1
            return
        if now[0] == UNKNOWN:
            self._not_compared[key, REDIRECTED] += 1
            return
        if captured[0] > 0 and captured[1] == UNKNOWN:
            self._not_compared[key, UNCAPTURED] += 1
        if now[-1] > captured[-1] >= NO_ABORTED:
            # Brokers also list later ones, up to the next entry of their offset index.
            now = (*now[:-1], captured[-1])
        if 0 <= now[0] < captured[0] and total - now[0] + captured[0] > one.max_bytes:
            texts = (f"{rules[0].name} {each}" for each in (captured[0], now[0]))
            self._note(one, Difference.FULL, entry, *texts)
            captured = (UNKNOWN, *captured[1:])
        self._values(one, entry, rules, captured, now)

    def _values(
        self,
        one: _Sent,
        entry: tuple[str, int],
        rules: Iterable[_Rule],
        captured: Iterable[int],
        now: Iterable[int],
    ) -> None:
        for rule, old, new in zip(rules, captured, now, strict=False):
            if old != new and UNKNOWN not in {old, new}:
                difference = rule.lower if new < old else rule.higher
                if difference is Difference.NARROWER and not self._uses(entry[1], old, new):
                    difference = Difference.UNUSED
                self._note(one, difference, entry, f"{rule.name} {old}", f"{rule.name} {new}")

    def _uses(self, api_key: int, old: int, new: int) -> bool:
        """Return whether a captured request has one of the versions between an old and a new bound."""
        gone = range(old, new) if old < new else range(new + 1, old + 1)
        return not self._used.get(api_key, frozenset()).isdisjoint(gone)

    def _listings(self, one: _Sent, before: Listed, after: Listed, was: Entries, has: Entries) -> None:
        nobody = np.empty(0, np.int32)
        for name in dict.fromkeys((*before, *after)):
            if (name, WHOLE) in was or (name, WHOLE) in has:
                continue  # a topic with an error has no partitions
            if name in _INTERNAL and (name in before) != (name in after):
                self._not_compared[one.step.api_key, INTERNAL] += 1
                continue
            old, new = before.get(name, nobody), after.get(name, nobody)
            if not np.array_equal(old, new):
                self._lost(one, name, _first_if_whole(np.setdiff1d(old, new)), was)
                for entry in _first_if_whole(np.setdiff1d(new, old)):
                    self._note(one, Difference.ADDED, (name, entry), "not there", "there")

    def _lost(self, one: _Sent, name: str, missing: Iterable[int], was: Entries) -> None:
        for entry in missing:
            if was.get((name, entry), (0,))[0]:
                continue  # the captured broker did not have it, either
            if one.step.api_key == ApiKey.FETCH and self._is_elsewhere(one, (name, entry)):
                continue
            unused = one.step.api_key == ApiKey.API_VERSIONS and entry not in self._used
            difference = Difference.UNUSED if unused else Difference.MISSING
            self._note(one, difference, (name, entry), "there", "missing")

    def _lacks(self, entry: tuple[str, int]) -> bool:
        topic = self._target.topics.get(entry[0])
        return topic is None or entry[1] >= topic.partitions

    def _is_elsewhere(self, one: _Sent, entry: tuple[str, int]) -> bool:
        """Return whether another broker of the target leads a partition. Count the partition if so."""
        topic = self._target.topics.get(entry[0])
        node_id = one.place.node_id
        if node_id is None or topic is None or not 0 <= entry[1] < topic.partitions:
            return False
        found = int(topic.leaders[entry[1]]) not in {node_id, -1}
        self._not_compared[one.step.api_key, ELSEWHERE] += found
        return found

    @staticmethod
    def _resolved(step: Step, summary: Summary, names: Mapping[bytes, str]) -> tuple[Listed, Entries]:
        by_id = step.version >= _TOPIC_IDS_FROM.get(step.api_key, step.version + 1)

        def name(key: bytes) -> str:
            return names.get(key, key.hex()) if by_id else key.decode(errors="replace")

        listed = {name(key): numbers(packed) for key, packed in summary.listing}
        return listed, {(name(key), each): (error, values) for key, each, error, values in summary.rows()}

    def _note_error(self, one: _Sent, entry: Entry | None, captured: int, now: int) -> None:
        difference = Difference.ERROR if now else Difference.RECOVERED
        self._note(
            one, Difference.DENIED if now in _DENIED else difference, entry, _error(captured), _error(now)
        )

    def _note(self, one: _Sent, difference: Difference, entry: Entry | None, captured: str, now: str) -> None:
        """Count a difference of the response that is being compared, as a whole if `entry` is None."""
        topic, place = entry or ("", WHOLE)
        if topic in self._target.denied and difference in {Difference.ERROR, Difference.MISSING}:
            difference = Difference.DENIED
        self._differences.add(difference)
        name = f"{topic}-{place}" if topic and place != WHOLE else topic
        key = _EVERY if difference is Difference.DENIED else one.step.api_key
        self._found.setdefault((key, difference), []).append(
            {
                "connection": one.connection.name,
                "correlation_id": one.correlation_id,
                "version": one.step.version,
                "client": one.connection.client_id,
                "broker": one.connection.broker,
                "api": name_of(one.step.api_key),
                "topic": topic,
                "entry": name_of(place) if entry and not topic else name,
                "captured": captured,
                "now": now,
            }
        )

    def _count(self, api_key: int) -> None:
        worst = "same"
        if self._differences:
            worst = "allowed" if self._differences <= self._allowed else "not_allowed"
        self._rows.setdefault(api_key, Counter())[worst] += 1


def _sent(connection: PlayedConnection, step: Step, place: Destination, frame: bytes = b"") -> _Sent | None:
    """Return a request with its captured response. Return None if this response can't be compared.

    `frame` is the request as sent, or empty if it can't be sent.
    """
    kept = step.kept
    if not isinstance(kept, Kept) or kept.summary is None:
        return None
    full, max_bytes = True, 0
    if frame and step.api_key == ApiKey.FETCH:
        found = read(_FETCH, ApiKey.FETCH, step.version, frame, request_header(frame, 4)[-1], whole=False)
        full, max_bytes = found.get("session_epoch", 0) <= 0, found["max_bytes"]
    return _Sent(
        connection=connection,
        correlation_id=kept.correlation_id,
        step=step,
        captured=kept.summary,
        place=place,
        full=full,
        max_bytes=max_bytes,
    )


def _shifted(script: Script, side: TargetSide, policy: OffsetPolicy) -> dict[str, npt.NDArray[np.bool_]]:
    """Return for each topic which of its partitions some fetch reads from another offset than captured."""
    found: dict[str, npt.NDArray[np.bool_]] = {}
    for name, captured in asked(script, script.topics).items():
        topic = side.target.topics.get(name)
        bounds = None if topic is None else bounds_of(policy, topic, captured)
        if topic is not None and bounds is not None:
            size = min(len(captured.lowest), topic.partitions)
            found[name] = (
                (bounds.shift[:size] != 0)
                | (captured.lowest[:size] < bounds.low[:size])
                | (captured.highest[:size] > bounds.high[:size])
            )
    return found


def _lists(listed: Listed, entry: tuple[str, int]) -> bool:
    found = listed.get(entry[0])
    if found is None:
        return False
    place = int(np.searchsorted(found, entry[1]))
    return place < len(found) and int(found[place]) == entry[1]


def _first_if_whole(entries: npt.NDArray[np.int32]) -> list[int]:
    found: list[int] = entries.tolist()
    return found[:1] if found[:1] == [WHOLE] else found


def _error(code: int) -> str:
    return f"error {error_name(code)}" if code else "no error"


def _place(example: ComparedExample) -> tuple[str, str, str]:
    return example["topic"], example["client"], example["broker"]


def _order(example: ComparedExample) -> tuple[object, ...]:
    """Return a key to sort by, which does not depend on the order in which responses came."""
    partition = int(example["entry"].removeprefix(example["topic"])[1:] or WHOLE) if example["topic"] else 0
    return *_place(example), partition, example["connection"], example["correlation_id"], example["now"]


def _places(examples: Iterable[ComparedExample]) -> list[PlaceRow]:
    counts = Counter(map(_place, examples))
    return [
        {"topic": topic, "client": client, "broker": broker, "count": count}
        for (topic, client, broker), count in sorted(counts.items())
    ]


def differs(figures: CompareFigures) -> bool:
    """Return whether there is a difference that is not allowed."""
    return any(not row["allowed"] for row in figures["differences"])


def render_comparison(figures: CompareFigures) -> RenderableType:
    """Render the comparison for a terminal."""
    kinds = sum(not row["allowed"] for row in figures["differences"])
    responses = plural(sum(row["compared"] for row in figures["apis"]), "response")
    verdict = f"{plural(kinds, 'kind')} of difference not allowed" if kinds else "no difference that matters"
    if uncompared := figures["uncompared_ratio"]:
        verdict += f", but {percent(uncompared)} of the captured responses could not be compared"
    bad = kinds or uncompared > MOST_UNCOMPARED
    lines: list[RenderableType] = [
        Text(f"\nCompared with the capture, {responses}: {verdict}", style="bold red" if bad else "bold")
    ]
    if figures["apis"]:
        lines.append(_by_api(figures))
    for allowed, title in ((False, "Differences that are not allowed:"), (True, "Allowed differences:")):
        if rows := [row for row in figures["differences"] if row["allowed"] is allowed]:
            lines += [Text(title), _differences(rows)]
    if figures["not_compared"]:
        lines.append(Text("Not compared:"))
    lines += [
        Text(f"  {number(row['count'])} {row['api']}: {row['reason']}") for row in figures["not_compared"]
    ]
    return Group(*lines)


def plain_table(*columns: str) -> Table:
    """Return a table without lines, whose columns are numbers except the first one. "" has no title."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=bool(columns))
    for place, column in enumerate(columns):
        table.add_column(column, justify="right" if column and place else "left")
    return table


def _by_api(figures: CompareFigures) -> Table:
    table = plain_table("", "compared", "same", "allowed", "not allowed")
    for row in figures["apis"]:
        counts = (row["compared"], row["same"], row["allowed"], row["not_allowed"])
        table.add_row(f"  {row['api']}", *map(number, counts))
    return table


def _differences(rows: Iterable[DifferenceRow]) -> Table:
    table = plain_table()
    for row in rows:
        table.add_row(f"  {row['api']}", f"{row['difference']}: {number(row['count'])}")
        first = {_place(each): each for each in reversed(row["examples"])}
        for place in row["places"][:SHOWN]:
            each = first[place["topic"], place["client"], place["broker"]]
            entry = f"{shown(each['entry'])}: " if each["entry"] else ""
            api = f"{each['api']} " if row["api"] == "all" else ""
            where = f"{api}{each['connection']}, correlation id {each['correlation_id']}, v{each['version']}"
            times = f"{shown(place['client'])} {number(place['count'])} x, such as "
            table.add_row(
                "", Text(f"{times}{entry}{each['captured']} -> {each['now']}  ({where})", style="dim")
            )
        if (more := len(row["places"]) - SHOWN) > 0:
            table.add_row("", Text(f"and {number(more)} more of topic, client and broker (--json has all)"))
    return table
