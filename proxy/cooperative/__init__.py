"""Cooperative consuming, sans-IO: members of a group share a partition, each with some of the keys.

The stage, which `proxy.server` adds to each connection:

- `member_stage`: one client. It reads requests, and makes the client's responses.
- `responses`: handlers of responses.
- `identity`: the client's identity, and its lane.
- `lane_fetch`, `shared_fetch`: one fetch of a member, and one fetch for several members.
- `commits`: commits, and requests for committed offsets.
- `joining`: a member joins its group, gets its lanes, and leaves.

State:

- `member`, `members`, `group`: the state of a member, of all members, and of a group.
- `positions`: the progress of each hash, and its form in commits.
- `plan`: assigns lanes to members.
- `claims`, `declared`: key ranges that clients hold, and their declaration by clients or the operator.
- `tally`: figures.

Records and the wire:

- `key_hash`, `murmur2`, `ranges`: hashes, key ranges, and the split of a partition into lanes.
- `batches`, `codecs`, `filtered`: a batch, or a response, without the records of others; scanned offsets.
- `membership`, `offsets`, `wire`: messages of groups, and committed offsets.

`client_ids` is for applications.
"""
