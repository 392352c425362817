"""A member's commits, and its requests for committed offsets (OffsetFetch). Sans-IO."""

from collections.abc import Callable, Generator, Iterable
from dataclasses import replace
from math import inf
from typing import Final, TypeAlias

from proxy.features.cooperative.group import Group, Read, own_offset, slot_entry, with_positions
from proxy.features.cooperative.identity import MemberIdentity
from proxy.features.cooperative.member import Member
from proxy.features.cooperative.members import INVALID_RANGES, OVERLAPS, TOO_LARGE, Members
from proxy.features.cooperative.offsets import (
    GROUPS_SINCE,
    Commit,
    Entry,
    FetchedGroup,
    OffsetFetch,
    Sender,
    offset_fetch,
    read_answered,
    read_fetched_offsets,
    sender_of,
)
from proxy.features.cooperative.positions import TopicPartition
from proxy.features.cooperative.presence import State
from proxy.features.cooperative.responses import Reply, Send
from proxy.protocol.api import ApiKey

Steps: TypeAlias = Generator[bytes, tuple[bytes, float], Reply]
"""Yields requests for the broker, one after another. It is sent each response with the time in seconds."""
_NOT_ALLOWED: Final = 35
"""UNSUPPORTED_VERSION: a client that declares a lane may commit only for cooperative groups. In others its
commit would replace the offsets of all lanes."""
_SHARED: Final = 44
"""POLICY_VIOLATION: a transaction would commit for all keys of a partition."""
_REBALANCING: Final = 27
"""REBALANCE_IN_PROGRESS: the gateway does not know the member's lanes, or the member does not have a
partition, or has not requested its committed offset."""


class Exchanges:
    """Requests that the gateway sends one after another in the place of a client's request."""

    __slots__ = ("_send", "_steps")

    def __init__(self, steps: Steps, send: Send) -> None:
        self._steps, self._send = steps, send

    def begin(self) -> Reply | None:
        """Send the first request. Return the client's response if there is none to send."""
        try:
            request = next(self._steps)
        except StopIteration as end:
            reply: Reply = end.value
            return reply
        self._send(request, self.response)
        return None

    def response(self, frame: bytes, now: float) -> Reply | None:
        """Process a response of the broker. Send the next request, or return the client's response."""
        try:
            request = self._steps.send((frame, now))
        except StopIteration as end:
            reply: Reply = end.value
            return reply
        self._send(request, self.response)
        return None


class CommitRequest(Exchanges):
    """A commit of a member. The gateway adds a *map*: the offsets of all hashes of the partition.

    Commits of one group are sent one after another: `wake` continues a commit when its turn has come. If the
    gateway does not know the committed offsets, it first requests them from the broker. If members behind
    other gateways share the partitions, it requests them from time to time. The member's slot is written in
    the same commit.

    If the gateway itself commits, `then` takes whether the group has these offsets now, and returns the
    response for the client, or sends another request. With `first`, only partitions without a committed
    offset are committed.
    """

    __slots__ = (
        "_accepted",
        "_commit",
        "_first",
        "_group",
        "_identity",
        "_members",
        "_then",
        "_turn",
        "_wake",
        "waits",
    )
    wait_until = inf

    def __init__(
        self,
        commit: Commit,
        identity: MemberIdentity,
        members: Members,
        send: Send,
        wake: Callable[[float], None],
        then: Callable[[bool], Reply | None] | None = None,
        *,
        first: bool = False,
    ) -> None:
        self._commit, self._identity, self._members = commit, identity, members
        self._send, self._wake, self._then = send, wake, then
        self._first = first
        self._group: Group | None = None
        """The group, while the commit is being sent or waits for its turn. Otherwise None."""
        self._turn = self._accepted = False
        self.waits = False
        """Whether the commit waits until another member's commit is done."""

    def go(self, now: float) -> Reply | None:
        """Send the commit to the broker, or wait for its turn, or refuse it."""
        if self.waits and not self._turn:
            return None
        self.waits = False
        commit, member = self._commit, self._identity.member
        group = self._members.group(commit.group)
        code = INVALID_RANGES if member is None else self._refusal(member, group)
        if code or member is None:
            self._members.tally.refused[code] += len(commit.entries) if self._then is None else 0
            self._leave(now)
            return self._done(self._refused(code))
        if group is None or not group.shares(member, commit):
            self._leave(now)
            if self._then is not None:
                return self._then(False)
            self._send(commit.frame, None)
            return None
        self._group = group
        if not group.takes(self, self._take_turn):
            self.waits = True
            return None
        group.members.add(member)
        self._steps = self._committed(group, member, now)
        return self.begin()

    def response(self, frame: bytes, now: float) -> Reply | None:
        reply = super().response(frame, now)
        if reply is None:
            return None
        self._leave(now)
        return self._done(reply)

    def _done(self, reply: Reply) -> Reply | None:
        return reply if self._then is None else self._then(self._accepted)

    def close(self, now: float) -> None:
        if self.waits:
            self.waits = False
            self._leave(now)

    def end(self, now: float) -> None:
        """End the commit, because the connection has ended. It is unknown whether Kafka has accepted it."""
        if self._group is not None and not self.waits:
            self._group.forget(self._commit.places)
        self._leave(now)

    def _refusal(self, member: Member, group: Group | None) -> int:
        commit, identity = self._commit, self._identity
        if group is None:
            return _NOT_ALLOWED if identity.declares else 0
        if not identity.is_of(commit.group):
            return OVERLAPS
        if code := identity.denied(commit.places, claims=False):
            return code
        if (
            member.presence.state is State.UNKNOWN
            or member.is_behind(commit.generation)
            or group.strange(member, commit)
            or not member.goes_on(commit.places)
            or not all(self._was_sent(member, group, entry) for entry in commit.entries)
        ):
            return _REBALANCING
        if not group.shares(member, commit):
            return 0
        if commit.api_key == ApiKey.TXN_OFFSET_COMMIT:
            return _SHARED
        return INVALID_RANGES if any(each.offset < 0 for each in commit.entries) else 0

    @staticmethod
    def _was_sent(member: Member, group: Group, entry: Entry) -> bool:
        return member.may_commit(entry.place, entry.offset, group.positions.get(entry.place))

    def _refused(self, code: int) -> Reply:
        return Reply([self._commit.response([code] * len(self._commit.entries))])

    def _take_turn(self, now: float) -> None:
        self._turn = True
        self._wake(now)

    def _leave(self, now: float) -> None:
        group, self._group = self._group, None
        if group is not None:
            group.release(self, now)

    def _committed(self, group: Group, member: Member, now: float) -> Steps:
        commit = self._commit
        seat = group.seat(member, commit.places)
        began = group.changes
        stale = seat is not None and group.is_stale(seat, commit.places, now)
        while self._first or group.unknown(commit) or stale:
            slots = 0 if seat is None else seat.slots
            read = yield from reading(group, sender_of(commit.frame), commit.places, slots)
            if read.error:
                return self._refused(read.error)
            if group.changes != began:
                began = group.changes  # members of other gateways may have committed in between
                continue
            self._members.slot_refused(group, read.slots_error)
            group.learn(read)
            if group.unknown(commit):
                return self._refused(-1)
            group.learned(commit.places, now)
            if self._first:
                absent = {entry.place for entry in read.entries if entry.offset < 0}
                entries = (entry for entry in commit.entries if entry.place in absent)
                commit = replace(commit, entries=tuple(entries))
                if not commit.entries:
                    self._accepted = True
                    return self._refused(0)
            break
        maps, slotless = True, False
        while True:
            moved = group.moved(member, commit)
            said = with_positions(commit, moved, seat, maps=maps)
            slot = {} if seat is None else group.slot(member, seat, moved)
            if seat is not None:
                said.append(slot_entry(group.slots_topic, seat.number, slot))
            frame, _ = yield commit.with_entries(said)
            errors = {each.place: each.error_code for each in read_answered(frame, commit)}
            if seat is not None:
                refused = errors.pop((group.slots_topic, seat.number), 0)
                if not refused and group.changes == began:
                    group.slots[seat.number] = slot
                elif refused and not any(errors.values()):  # else the member is refused, and not the slot
                    self._members.slot_refused(group, refused)
                    slotless = True
                frame = commit.without(frame, group.slots_topic)
            self._members.tally.commits["error" if any(errors.values()) else "ok"] += 1
            if maps and TOO_LARGE in errors.values() and not group.unknown(commit):
                maps = False
                continue
            self._accepted = not any(errors.values())
            if group.changes == began:
                group.positions.update(
                    (place, positions) for place, positions in moved.items() if errors.get(place) == 0
                )
            else:
                group.forget(moved)
            # Only the map has it: what the next commit of another member knows may be earlier.
            return self._refused(_REBALANCING) if slotless else Reply([frame])


def reading(
    group: Group, sender: Sender, places: Iterable[TopicPartition], slots: int
) -> Generator[bytes, tuple[bytes, float], Read]:
    """Request the committed offsets of partitions and of this many slots: once more if others are needed."""
    wanted = list(places)
    while True:
        asked = wanted + [(group.slots_topic, number) for number in range(slots)]
        frame, _ = yield offset_fetch(sender, group.name.encode(), asked)
        read = read_committed_of(frame, sender, group, slots)
        if read.failed or not read.needed:
            return read
        slots = read.needed


def read_committed_of(frame: bytes, sender: Sender, group: Group, slots: int = 0) -> Read:
    """Return the committed offsets in the response to `offset_fetch`, with which `slots` were requested."""
    said = read_fetched_offsets(frame, sender.asks)
    read = Read((entry for each in said.groups for entry in each.entries), group.slots_topic, slots)
    read.failed = next((each.error_code for each in said.groups if each.error_code), 0)
    read.error = read.failed or read.error
    return read


def own_offsets(asked: OffsetFetch, identity: MemberIdentity, members: Members) -> Steps:
    """Answer a member's OffsetFetch request with its own offsets. Note them for later commits."""
    changes = {each.group: group.changes for each in asked.groups if (group := members.group(each.group))}
    # Slots are requested only if the response shows that there are some.
    frame, _ = yield asked.frame
    said = read_fetched_offsets(frame, asked.version)
    member = identity.member
    if member is None:
        return Reply([frame])
    names = [each.group for each in (asked.groups if said.version < GROUPS_SINCE else said.groups)]
    everything = {each.group for each in asked.groups if each.everything}
    groups: list[FetchedGroup] = []
    for name, each in zip(names, said.groups, strict=True):
        group = members.group(name)
        if group is None or not identity.is_of(name):
            groups.append(each)
            continue
        read = Read(each.entries, group.slots_topic)
        if read.needed and not each.error_code:
            places = [entry.place for entry in read.entries]
            read = yield from reading(group, sender_of(asked.frame), places, read.needed)
            if read.failed:
                groups.append(said.refused(each, read.failed))
                continue
        members.slot_refused(group, read.slots_error)
        _learn(group, member, read, changes.get(name))
        entries = tuple(own_offset(member, entry, read) for entry in each.entries)
        if not each.error_code:
            for entry in entries:
                if not entry.error_code:
                    member.tracked(entry.place).told(entry.offset)
            if name in everything:
                for progress in member.progress.values():
                    progress.jumped = False
        groups.append(replace(each, entries=entries))
    return Reply([said.with_groups(groups)])


def _learn(group: Group, member: Member, read: Read, changes: int | None) -> None:
    """Note committed offsets. `changes` is `Group.changes` of the time before they were requested."""
    group.members.add(member)
    absent = [entry.place for entry in read.entries if entry.offset < 0]
    if not (group.busy or group.changes != changes or read.error or read.needed):
        group.learn(read)
    group.forget(absent)
