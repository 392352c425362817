"""Kafka's wire protocol, sans-IO: bytes in, values and bytes out. It imports nothing else of `proxy`.

- `primitives`: the readers and writers of single values, and the tree of exceptions.
- `api`: keys, error codes, flexible versions, and headers.
- `fetch_layout`: where the fields of fetch requests and responses stand (v4 to v18).
- `fetch_request`, `fetch_response`: fetch frames read and built.
- `versions`: what differs between Fetch v4 to v6 and the v7 of a session.
- `messages`, `schemas`: a message by one line of text; its fields are read and replaced.
- `addresses`: new hosts and ports in responses that name brokers.
- `metadata`, `leader_requests`: who leads partitions.
- `api_versions`: the versions that a broker offers, cut to those that the gateway understands.
- `produce`: acks, which decides whether a response will come.

Every reader has one contract: `(buffer, offset) -> (value, next_offset)`.
"""
