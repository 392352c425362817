"""Finds records that were lost, twice, out of order, or processed by a member that did not own the key."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from tools.soak.groups.history import Did, MemberLife

EXAMPLES: Final = 5
BEFORE_NS: Final = 10**9
"""The story of a record (`_story`) begins this many nanoseconds before the record was first processed."""
REJOINED_SECONDS: Final = 10

Span = tuple[int, int]

Down = Mapping[int, Sequence[Span]]
"""When each gateway, by its number, was not running or cut off from the broker."""

Log = Mapping[tuple[int, int], str]


@dataclass(slots=True)
class GroupsVerdict:
    """The counts of events in several groups, and examples of the forbidden events."""

    counts: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)

    def wrong(self, what: str, example: str) -> None:
        """Count a forbidden event. Keep the first examples of each kind."""
        self.counts[what] += 1
        if self.counts[what] <= EXAMPLES:
            self.problems.append(f"{what}: {example}")


@dataclass(slots=True)
class _Processed:
    """A record that a member processed."""

    did: Did
    life: MemberLife
    assignment: int
    """The number of the assignment, from 0 on in each process of the member."""
    in_hand: bool
    """Whether the group may have gone on without the member: what it already had is not judged."""


LOST: Final = "lost"
WRONG: Final = "to a wrong member"
UNORDERED: Final = "out of order"
TWICE_COMMITTED: Final = "twice, though committed"
TWICE: Final = "twice without a crash"
BEYOND: Final = "fetched by a zombie"
PROBLEMS: Final = (LOST, WRONG, UNORDERED, TWICE_COMMITTED, TWICE, BEYOND)
EXCUSED: Final = "twice after a crash"
FENCED: Final = "twice after a fenced commit"
"""A record was processed twice because the commit after the first time was rejected (fenced). The client was
already in a newer generation, so its member could not commit. This can also happen without a gateway."""
REFUSED: Final = "twice after a commit refused in a rebalance"
"""A record was processed twice because the commit after the first time got error 27 (REBALANCE_IN_PROGRESS),
and the member ended its assignment before a commit was accepted. Without a gateway, a broker that gets the
commit behind the JoinGroup request of the same connection rejects it with error 22 (`FENCED`)."""
IN_HAND: Final = "in hand of a zombie"


def judge(log: Log, lives: Sequence[MemberLife], gateway_down: Down, verdict: GroupsVerdict) -> None:
    """Judge one group with one topic. Only the down times of a member's own gateway excuse it."""
    processed = [
        each for life in lives for each in _processed(life, gateway_down.get(life.gateway, ()), verdict)
    ]
    processed.sort(key=lambda each: each.did.at)
    commits = {id(life): _commits(life) for life in lives}
    crashes = {id(life): _crashes(life, gateway_down.get(life.gateway, ())) for life in lives}
    seen = {(each.did.partition, each.did.offset) for each in processed}
    verdict.counts["records"] += len(log)
    verdict.counts["processed"] += len(processed)
    for place in sorted(log.keys() - seen):
        verdict.wrong(LOST, f"partition {place[0]} offset {place[1]} key {log[place]}")
    by_key: dict[tuple[int, str], list[_Processed]] = defaultdict(list)
    for each in processed:
        if log.get((each.did.partition, each.did.offset)) != each.did.key:
            verdict.wrong("invented", f"{each.did} of {each.life.name}")
        by_key[each.did.partition, each.did.key].append(each)
    twice: list[tuple[_Processed, _Processed]] = []
    for events in by_key.values():
        twice += _judge_key(events, commits, crashes, verdict)
    if twice:
        verdict.problems.append(_story(*twice[0], lives, gateway_down))


def _judge_key(
    events: list[_Processed],
    commits: Mapping[int, Mapping[int, list[Did]]],
    crashes: Mapping[int, list[Span]],
    verdict: GroupsVerdict,
) -> list[tuple[_Processed, _Processed]]:
    found: list[tuple[_Processed, _Processed]] = []
    first: dict[int, _Processed] = {}
    highest = -1
    owners: list[tuple[int, int]] = []
    last: dict[tuple[int, int], int] = {}
    for each in events:
        did, life = each.did, each.life
        text = f"partition {did.partition} offset {did.offset} key {did.key} "
        text += f"by {life.name} at {did.at / 1e9:.3f}"
        if each.in_hand:
            verdict.counts[IN_HAND] += 1
            continue
        owner = id(life), each.assignment
        if not owners or owners[-1] != owner:
            if owner in owners:
                verdict.wrong(WRONG, f"{text}, which goes on after another one had the key")
            owners.append(owner)
        if did.offset <= last.get(owner, -1):
            verdict.wrong(UNORDERED, f"{text}, which had {last[owner]} before")
        last[owner] = did.offset
        before = first.get(did.offset)
        if before is None:
            first[did.offset] = each
            if did.offset < highest:
                verdict.wrong(UNORDERED, f"{text}: {highest} was processed before it")
            highest = max(highest, did.offset)
            continue
        text += f", before by {before.life.name} at {before.did.at / 1e9:.3f}"
        done = commits[id(before.life)].get(did.partition, [])
        if any(
            before.did.at < commit.at < did.at and commit.offset > did.offset
            for commit in done
            if _of_same(before, commit)
        ):
            verdict.wrong(TWICE_COMMITTED, text)
            found.append((before, each))
        elif _between(crashes[id(before.life)], before.did.at, did.at):
            verdict.counts[EXCUSED] += 1
        elif any(before.did.at < each.at < did.at for each in before.life.did if each.kind == "fenced"):
            verdict.counts[FENCED] += 1
        elif _was_refused(before, did.at):
            verdict.counts[REFUSED] += 1
        else:
            verdict.wrong(TWICE, text)
            found.append((before, each))
        first[did.offset] = each
    return found


def _story(before: _Processed, again: _Processed, lives: Sequence[MemberLife], gateway_down: Down) -> str:
    """Describe what a group went through from shortly before a record until it came again."""
    low, high = before.did.at - BEFORE_NS, again.did.at
    lines = [
        (at, f"gateway {number} gone until {back / 1e9:.3f}")
        for number, spans in gateway_down.items()
        for at, back in spans
    ]
    for life in lives:
        lines += [(at, f"{life.name} stopped until {on / 1e9:.3f}") for at, on, _ in life.stopped]
        lines += [(life.killed_at, f"{life.name} killed")] if life.killed_at else []
        lines += [
            (did.at, f"{life.name} {did.kind} {did.partition} {did.offset}")
            for did in life.did
            if did.kind != "record"
        ]
    story = [f"{at / 1e9:.3f} {text}" for at, text in sorted(lines) if low <= at <= high]
    return f"offset {before.did.offset} of partition {before.did.partition}: " + "; ".join(story)


def _of_same(before: _Processed, commit: Did) -> bool:
    """Return whether a commit belongs to the assignment in which a record was processed."""
    ends = [each.at for each in before.life.did if each.kind == "assigned" and each.at > before.did.at]
    return not ends or commit.at < ends[0]


def _was_refused(before: _Processed, again_at: int) -> bool:
    """Whether a member's last commit after a record, before `again_at` (ns), was refused."""
    later = [
        did
        for did in before.life.did
        if before.did.at < did.at < again_at
        and did.kind in {"refused", "committed"}
        and _of_same(before, did)
    ]
    return bool(later) and later[-1].kind == "refused"


def _between(spans: Iterable[Span], low: int, high: int) -> bool:
    return any(began <= high and ended >= low for began, ended in spans)


def _commits(life: MemberLife) -> dict[int, list[Did]]:
    found: dict[int, list[Did]] = defaultdict(list)
    for did in life.did:
        if did.kind == "committed":
            found[did.partition].append(did)
    return found


def _crashes(life: MemberLife, gateway_down: Iterable[Span]) -> list[Span]:
    """Return when a member could not commit: after a gateway's restart not before it joins again."""
    points = [did.at for did in life.did if did.kind == "lost"]
    points += [at for at, _, _ in life.stopped]
    points += [life.killed_at] if life.killed_at else []
    found = [(at, at) for at in points]
    for killed, back in gateway_down:
        joined = min((did.at for did in life.did if did.kind == "assigned" and did.at > back), default=back)
        found.append((killed, min(joined, back + REJOINED_SECONDS * 10**9)))
    return found


def _processed(
    life: MemberLife, gateway_down: Sequence[Span], verdict: GroupsVerdict
) -> Iterable[_Processed]:
    for number, assignment in enumerate(_assignments(life.did)):
        verdict.counts["assignments"] += bool(number)
        began, ended = assignment[0].at, assignment[-1].at
        ended_lost = assignment[-1].kind == "lost"
        verdict.counts["assignments lost"] += ended_lost
        known = max((did.at for did in assignment if did.kind == "committed"), default=began)
        stops = [each for each in life.stopped if began < each[1] and each[0] <= ended]
        doubts = [*(at for at, _, _ in stops), *(at for at, _ in gateway_down if began < at)]
        # A member may leave before it learns that its group went on without it. It learns it from its last
        # commit.
        lost = ended_lost or (bool(stops) and any(did.kind == "fenced" for did in assignment))
        if lost:
            doubtful = known
        elif life.killed_at and assignment[-1].kind not in {"revoked", "left"} and doubts:
            doubtful = max(known, min(doubts))
        else:
            doubtful = ended
        for did in assignment:
            if did.kind != "record":
                continue
            for _, went_on, ends in stops:
                if lost and went_on <= did.at and did.offset >= ends.get(did.partition, did.offset + 1):
                    verdict.wrong(BEYOND, f"{did} of {life.name}, when the log ended at {ends}")
            yield _Processed(did, life, number, did.at > doubtful)


def _assignments(all_did: Iterable[Did]) -> list[list[Did]]:
    """Return a member's actions, grouped by assignment. The first group has only the start of the process."""
    found: list[list[Did]] = [[Did(0, "started")]]
    for did in all_did:
        if did.kind == "assigned":
            found.append([did])
        elif found[-1][-1].kind not in {"revoked", "lost"}:
            found[-1].append(did)
    return found
