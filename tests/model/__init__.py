"""A model of a Kafka broker's fetch path, for tests: simple, slow, and independent of the gateway.

- **primitives**, **wire**: dataclasses <-> bytes for Fetch v0-v18, every field and every tag kept.
- **releases**: the differences between broker releases, by name.
- **log**: topics, partitions and their logs of opaque batches.
- **sessions**: the fetch session cache of KIP-227: slots, shards, eviction.
- **reading**: one partition read by KIP-74's limits.
- **broker**: a request frame in, the response's frame out.
- **asker**, **world**: a short form of the client's half, and a few topics to begin with.
- **gate**: a gateway's connection between a client and the model, without sockets.
- **compare**: compares a response through a gateway with a direct one.

Except `gate`, nothing here shares code with ``proxy``, so that the two can be compared. If a live broker
disagrees with the model, the model is wrong.
"""
