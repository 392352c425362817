"""A model of a Kafka broker's fetch path, for tests: plain, slow, and written apart from the gateway.

- **primitives**, **wire**: dataclasses <-> bytes for Fetch v0-v18, every field and every tag kept.
- **releases**: what differs between broker releases, by name.
- **log**: topics, partitions and their logs of opaque batches.
- **sessions**: the fetch session cache of KIP-227: slots, shards, eviction.
- **reading**: one partition read by KIP-74's limits.
- **broker**: a request frame in, the response's frame out.
- **asker**, **world**: the client's half in few words, and a small world to begin with.
- **gate**: a gateway's connection between a client and the model, no socket anywhere.
- **compare**: what came through a gateway against a direct response.

But for `gate`, which drives it, nothing here shares code with ``proxy``, so that the two can be held against
each other. Live brokers have the last word: where one disagrees with the model, the model is wrong.
"""
