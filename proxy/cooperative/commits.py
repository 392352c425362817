"""A member's commits, and its requests for committed offsets (OffsetFetch). Sans-IO."""

from collections.abc import Callable
from dataclasses import replace
from math import inf
from typing import Final

from proxy.cooperative.group import Group, own_offset, with_positions
from proxy.cooperative.identity import MemberIdentity
from proxy.cooperative.member import Member, State
from proxy.cooperative.members import INVALID_RANGES, OVERLAPS, Members
from proxy.cooperative.offsets import (
    ASKS,
    FLEXIBLE_ASKS,
    GROUPS_SINCE,
    Commit,
    FetchedGroup,
    OffsetFetch,
    offset_fetch,
    read_answered,
    read_fetched_offsets,
)
from proxy.cooperative.positions import Positions, TopicPartition
from proxy.cooperative.responses import Reply, Send
from proxy.protocol.api import ApiKey

_NOT_ALLOWED: Final = 35
"""UNSUPPORTED_VERSION: a client that declares a lane may not commit for this group here
(`MemberIdentity.may_commit`)."""
_SHARED: Final = 44
"""POLICY_VIOLATION: a transaction would commit for all keys of a partition."""
_REBALANCING: Final = 27
"""REBALANCE_IN_PROGRESS: the gateway does not know the member's lanes, or the member does not have a
partition, or has not requested its committed offset."""
_TOO_LARGE: Final = 12
"""OFFSET_METADATA_TOO_LARGE."""


class CommitRequest:
    """A commit of a member. The gateway adds a *map*: the offsets of all hashes of the partition.

    Commits of one group are sent one after another. If the gateway does not know the committed offsets, it
    first requests them from the broker.

    Args:
        commit: the request.
        identity: the client that sent it.
        members: the members of the process.
        send: sends a request to the broker.
        wake: continues the commit with `go` when its turn has come. Takes the time in seconds.
    """

    __slots__ = (
        "_asks",
        "_commit",
        "_group",
        "_identity",
        "_maps",
        "_member",
        "_members",
        "_moved",
        "_send",
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
    ) -> None:
        self._commit, self._identity, self._members = commit, identity, members
        self._send, self._wake = send, wake
        self._group: Group | None = None
        """The group, while the commit is being sent or waits for its turn. Otherwise None."""
        self._member: Member | None = None
        self._turn = False
        self.waits = False
        """Whether the commit waits until another member's commit is done."""
        self._asks = False
        """Whether the gateway is requesting the committed offsets from the broker before the commit."""
        self._moved: dict[TopicPartition, Positions] = {}
        """The committed offsets of all hashes as they will be when Kafka has accepted the commit."""
        self._maps = True
        """Whether the commit is sent with the map of all hashes in its metadata."""

    def go(self, now: float) -> Reply | None:
        """Send the commit to the broker, or wait for its turn, or refuse it."""
        if self.waits and not self._turn:
            return None
        self.waits = False
        commit, member = self._commit, self._identity.member
        group = self._members.group(commit.group)
        code = INVALID_RANGES if member is None else self._refusal(member, group)
        if code or member is None:
            self._members.tally.refused[code] += len(commit.entries)
            self._leave(now)
            return self._refused(code)
        if group is None or not group.shares(member, commit):
            self._send(commit.frame, None)
            self._leave(now)
            return None
        self._group, self._member = group, member
        if not group.takes(self, self._take_turn):
            self.waits = True
            return None
        group.joined(member)
        self._asks = group.unknown(commit)
        if self._asks:
            self._send(offset_fetch(commit), self.response)
        else:
            self._send_commit(group, member)
        return None

    def response(self, frame: bytes, now: float) -> Reply | None:
        """Process a response of the broker: the committed offsets, or the result of the commit."""
        group, member = self._group, self._member
        assert group is not None  # noqa: S101 - `go` has sent something
        assert member is not None  # noqa: S101 - the same
        take = self._asked if self._asks else self._committed
        reply = take(group, member, frame)
        if reply is not None:
            self._leave(now)
        return reply

    def close(self, now: float) -> None:
        """Drop the commit if it still waits for its turn, because the gateway is closing the connection."""
        if self.waits:
            self.waits = False
            self._leave(now)

    def end(self, now: float) -> None:
        """End the commit, because the connection has ended. It is unknown whether Kafka has accepted it."""
        if self._group is not None and not self.waits:
            self._group.forget(self._commit.places)
        self._leave(now)

    def _refusal(self, member: Member, group: Group | None) -> int:
        """Return the error code if the commit must not go to the broker, else 0."""
        commit, identity = self._commit, self._identity
        if not identity.may_commit(commit.group):
            return _NOT_ALLOWED
        if not identity.is_of(commit.group):
            return OVERLAPS
        if code := identity.denied(commit.places, claims=False):
            return code
        if group is None:
            return 0
        if (
            member.state is State.UNKNOWN
            or group.strange(member, commit)
            or not member.goes_on(commit.places)
        ):
            return _REBALANCING
        if not group.shares(member, commit):
            return 0
        if commit.api_key == ApiKey.TXN_OFFSET_COMMIT:
            return _SHARED
        return INVALID_RANGES if any(each.offset < 0 for each in commit.entries) else 0

    def _refused(self, code: int) -> Reply:
        return Reply([self._commit.response([code] * len(self._commit.entries))])

    def _take_turn(self, now: float) -> None:
        self._turn = True
        self._wake(now)

    def _leave(self, now: float) -> None:
        """End the turn of this commit, or its wait for the turn. The group's next commit may begin."""
        group, self._group = self._group, None
        if group is not None:
            group.release(self, now)

    def _send_commit(self, group: Group, member: Member) -> None:
        self._moved = group.moved(member, self._commit)
        self._send(with_positions(self._commit, self._moved, maps=self._maps), self.response)

    def _asked(self, group: Group, member: Member, frame: bytes) -> Reply | None:
        """Note the committed offsets in the broker's response, then send the commit, or refuse it."""
        commit, self._asks = self._commit, False
        said = read_fetched_offsets(frame, FLEXIBLE_ASKS if commit.flexible else ASKS)
        error = next((each.error_code for each in said.groups if each.error_code), 0)
        error = error or group.learn(entry for each in said.groups for entry in each.entries)
        if error or group.unknown(commit):
            return self._refused(error or -1)
        self._send_commit(group, member)
        return None

    def _committed(self, group: Group, member: Member, frame: bytes) -> Reply | None:
        """Note which commits the broker has accepted.

        If the map is too large for the broker, commit again without it.
        """
        commit = self._commit
        errors = {(entry.topic, entry.partition): entry.error_code for entry in read_answered(frame, commit)}
        self._members.tally.commits["error" if any(errors.values()) else "ok"] += 1
        if self._maps and _TOO_LARGE in errors.values() and not group.unknown(commit):
            self._maps = False
            self._send_commit(group, member)
            return None
        group.positions.update(
            (place, positions) for place, positions in self._moved.items() if errors.get(place) == 0
        )
        return Reply([frame])


class OffsetFetchRequest:
    """A member's request for committed offsets. The response has the member's own offsets.

    Args:
        asked: the parsed OffsetFetch request.
        identity: the client.
        members: the members of the process.
    """

    __slots__ = ("_asked", "_changes", "_identity", "_members")

    def __init__(self, asked: OffsetFetch, identity: MemberIdentity, members: Members) -> None:
        self._asked, self._identity, self._members = asked, identity, members
        self._changes = {
            each.group: group.changes for each in asked.groups if (group := members.group(each.group))
        }
        """`Group.changes` of each cooperative group when the request arrived."""

    def edit(self, frame: bytes, _now: float) -> bytes:
        """Return the response with the member's own offsets. Also note these offsets for later commits.

        Raises:
            ProtocolError: the frame can't be read.
        """
        asked = self._asked
        said = read_fetched_offsets(frame, asked.version)
        member = self._identity.member
        if member is None:
            return frame
        names = [each.group for each in (asked.groups if said.version < GROUPS_SINCE else said.groups)]
        everything = {each.group for each in asked.groups if each.everything}
        groups: list[FetchedGroup] = []
        for name, each in zip(names, said.groups, strict=True):
            group = self._members.group(name)
            if group is None or not self._identity.is_of(name):
                groups.append(each)
                continue
            self._learn(group, member, each, self._changes.get(name))
            entries = tuple(own_offset(member, entry) for entry in each.entries)
            if not each.error_code:
                told = {(entry.topic, entry.partition) for entry in each.entries if not entry.error_code}
                member.unasked = set() if name in everything else member.unasked - told
            groups.append(replace(each, entries=entries))
        return said.with_groups(groups)

    @staticmethod
    def _learn(group: Group, member: Member, said: FetchedGroup, changes: int | None) -> None:
        """Note the committed offsets in the response, unless a commit was in progress since the request.

        Partitions without a committed offset are forgotten in any case.
        """
        group.joined(member)
        if not group.busy and group.changes == changes:
            group.learn(entry for entry in said.entries if entry.offset >= 0)
        group.forget((entry.topic, entry.partition) for entry in said.entries if entry.offset < 0)
