"""A model of a Kafka broker's fetch path, for tests: simple, slow, and independent of the gateway.

- **primitives**, **wire**: convert between dataclasses and bytes for Fetch v0-v18. All fields and tags are
  kept.
- **releases**: the differences between broker releases, by name.
- **log**: topics, partitions and their logs of opaque batches.
- **sessions**: the fetch session cache of KIP-227: slots, shards, eviction.
- **reading**: reads partitions within the byte limits of KIP-74.
- **broker**: takes a request frame and returns the response frame.
- **asker**, **world**: send a client's requests in a short form, and set up a few topics.
- **gate**: connects a client to the model through the gateway's code, without sockets.
- **compare**: compares a response through a gateway with a direct one.

Only `gate` shares code with ``proxy``. So the gateway and the model can be compared. If a live broker
disagrees with the model, the model is wrong.
"""
