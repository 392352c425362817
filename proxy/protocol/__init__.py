"""Kafka's wire protocol, sans-IO: bytes in, values and bytes out. It imports no other package of `proxy`.

- `primitives`: readers and writers of single values, and the exception classes.
- `api`, `framing`: API keys, error codes, flexible versions, and headers; frames in a stream of bytes.
- `fetch_layout`: offsets and sizes of the fields of Fetch (v4 to v18).
- `fetch_request`, `fetch_response`: read and build fetch frames.
- `versions`: converts Fetch v4, v5 and v6 to v7 for a session, and back.
- `old_fetch`: limits the records that a fetch of v2 or v3 requests.
- `messages`, `schemas`: read and replace fields of messages. One line of text describes each message.
- `addresses`: replaces hosts and ports in responses that contain brokers.
- `metadata`, `leader_requests`: the leaders of partitions.
- `api_versions`: limits a broker's version ranges to versions that the gateway understands.
- `produce`: reads acks, which decides whether there is a response, and reads batches to retry.

Every reader in `primitives` has the same form: `(buffer, offset) -> (value, next_offset)`.
"""
