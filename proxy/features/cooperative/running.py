"""The cooperative groups of one process."""

import os
from collections.abc import Iterable, Sequence
from functools import partial
from time import monotonic

from proxy.core.connection import MakeStage
from proxy.features.cooperative.group import SLOTS
from proxy.features.cooperative.member_stage import MemberStage
from proxy.features.cooperative.members import Members
from proxy.features.cooperative.options import CooperativeOptions
from proxy.features.cooperative.tally import Cooperative, GroupNotice
from proxy.features.feature import LinkInfo, Process, Running


class Groups(Running[CooperativeOptions, Cooperative]):
    """The members of all cooperative groups. Each connection has a stage."""

    def __init__(self, process: Process, options: CooperativeOptions) -> None:
        self._process = process
        self._refused = process.repeated(GroupNotice.REFUSED)
        self.members = Members(
            options.cooperative,
            os.urandom(16),
            self._tell,
            slots=options.cooperative_slots.encode() or SLOTS,
        )
        self.reloaded(options)

    def stages(self, _link: LinkInfo) -> Sequence[MakeStage]:
        return (partial(MemberStage, self.members),)

    def reloaded(self, options: CooperativeOptions) -> None:
        self.members.lanes = options.cooperative_lanes

    def counted(self, _links: Iterable[LinkInfo]) -> Cooperative:
        return self.members.seen(monotonic())

    def problems(self) -> list[str]:
        return self.members.problems(monotonic())

    def _tell(self, what: GroupNotice, who: str, text: str) -> None:
        log, note = self._process.log, self._process.note
        if what is GroupNotice.REFUSED:
            if self._refused.happens(who, text, monotonic()):
                note("refused", f"a client is refused: {text}", warning=True)
        elif what is GroupNotice.EXCLUSIVE:
            log.warning(what, group=who, reason=text)
            note("exclusive", f"group {who} shares no partition: {text}", warning=True)
        elif what is GroupNotice.AWAY:
            log.warning(what, client=who, reason=text)
            note("away", text, warning=True)
        elif what is GroupNotice.SLOT:
            log.warning(what, group=who, reason=text)
            note("exclusive", f"slots of group {who} are refused: {text}", warning=True)
        else:
            log.info(what, group=who, lanes=text)
            note("rebalanced", f"group {who}: {text}")
