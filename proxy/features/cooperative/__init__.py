"""Cooperative consuming: members of a group share a partition, and each gets some of its keys. Sans-IO.

The stage of each connection with ``--cooperative``:

- `member_stage`: reads the requests of one client, and makes the client's responses.
- `responses`: types for the functions that process responses.
- `identity`: the client's group and lane, from its client.id.
- `lane_fetch`, `shared_fetch`: a member's fetch, and fetches that serve several members.
- `commits`: commits, and requests for committed offsets.
- `joining`: how a member joins its group, gets its lanes, and leaves.

The state:

- `member`, `members`, `group`: the state of a member, of all members, and of a group.
- `positions`: the committed offset of each hash, and its text in commits.
- `slots`: what each member has committed, if members are behind several gateways.
- `plan`: assigns lanes to members.
- `claims`, `declared`: key ranges that clients declare, and their present owners.
- `tally`: counts of records, fetches and other events.

Records and messages:

- `key_hash`, `ranges`: hashes, key ranges, and how a partition is split into lanes.
- `batches`, `codecs`, `filtered`: split batches and responses by lane.
- `membership`, `offsets`, `wire`: read and write messages of groups, and committed offsets.
"""

from typing import TYPE_CHECKING, Final

from proxy.features.cooperative.options import CooperativeOptions
from proxy.features.cooperative.words import EXCLUSIVE
from proxy.features.feature import Feature, Process, Reports

if TYPE_CHECKING:
    from proxy.features.cooperative.running import Groups
    from proxy.features.cooperative.tally import Cooperative


def _begin(process: Process, options: CooperativeOptions) -> "Groups | None":
    if not options.cooperative:
        return None
    # These modules need optional libraries, which are only installed for cooperative groups.
    from proxy.features.cooperative.running import Groups  # noqa: PLC0415

    return Groups(process, options)


def _reports() -> "Reports[CooperativeOptions, Cooperative]":
    from proxy.features.cooperative.figures import REPORTS  # noqa: PLC0415 - as `Feature.reports` asks

    return REPORTS


FEATURE: Final = Feature(
    options=CooperativeOptions,
    after="max_sessions",
    begin=_begin,
    reports=_reports,
    page="/cooperative",
    words=EXCLUSIVE,
)
