"""Kafka's wire protocol, sans-IO: bytes in, values and bytes out. It imports nothing else of `proxy`.

- `primitives`: readers and writers of single values, and the exception classes.
- `api`: keys, error codes, flexible versions, and headers.
- `fetch_layout`: offsets and sizes of the fields of Fetch (v4 to v18).
- `fetch_request`, `fetch_response`: read and build fetch frames.
- `versions`: convert Fetch v4 to v6 to the v7 of a session, and back.
- `messages`, `schemas`: messages described by one line of text each; fields are read and replaced.
- `addresses`: replace hosts and ports in responses that name brokers.
- `metadata`, `leader_requests`: the leaders of partitions.
- `api_versions`: the versions that a broker offers, cut to those that the gateway understands.
- `produce`: acks, which decides whether there is a response; batches to retry.

Every reader has one contract: `(buffer, offset) -> (value, next_offset)`.
"""
