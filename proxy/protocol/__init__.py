"""Kafka's wire, sans-IO: bytes in, values and bytes out; nothing here imports anything else of `proxy`.

- `primitives`: the readers and writers of single values, and the tree of exceptions.
- `api`: keys, error codes, flexible versions and headers.
- `fetch_request`, `fetch_response`: the fetch path (v4 to v18).
- `schemas`, `walk`, `addresses`: responses that name brokers, and the rewriting of host and port in them.
- `api_versions`: what a broker may promise a client, and what its promises tell about the broker.
- `produce`: acks, the one thing that decides whether a response will come.

Every reader has one contract: `(buffer, offset) -> (value, next_offset)`.
"""
