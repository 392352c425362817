"""Cooperative consuming, sans-IO: members of a group share a partition, each with some of the keys.

The stage, which `proxy.server` adds to each connection:

- `member_stage`: one client. It reads requests, and makes what the client gets of the responses.
- `responses`: what becomes of a response.
- `identity`: who the client is, and which lane it has.
- `lane_fetch`, `shared_fetch`: one fetch of a member, and one fetch for several members.
- `commits`: commits, and requests for committed offsets.
- `joining`: a member joins its group, gets its lanes, and leaves.

What is known:

- `member`, `members`, `group`: of a member, of all of them, and of a group.
- `positions`: how far each hash is done, and how that is committed.
- `plan`: who has which lane.
- `claims`, `declared`: key ranges that clients have, and how they and the operator declare them.
- `tally`: figures.

Records and the wire:

- `key_hash`, `murmur2`, `ranges`: hashes, key ranges, and the split of a partition into lanes.
- `batches`, `codecs`, `filtered`: a batch, or a response, without the records of others; what was scanned.
- `membership`, `offsets`, `wire`: messages of groups, and committed offsets.

`client_ids` is for applications.
"""
