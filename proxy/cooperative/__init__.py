"""Cooperative consuming, sans-IO: several members share a partition, each with a part of the hashes of keys.

- `client_ids`: for applications, the client.id of one of several consumers.
- `key_hash`: the hash of a record.
- `ranges`: key ranges, and the split of a partition into the lanes of its members.
- `codecs`: the compression of a batch, within bounds.
- `batches`: a record batch without the records of others.
- `declared`: ranges and lanes in a client.id.
- `named`: lanes with names, as the operator declares them.
- `claims`: which client has which ranges at the moment.
- `filtered`: the records of a partition in a Fetch response, for each lane.
- `positions`: how far each hash is done, and how that is committed.
- `scan`: what is known to hold nothing for a lane, so that it is not fetched again.
"""
