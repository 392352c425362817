"""The server half of KIP-227: the gateway itself gives fetch sessions to clients. Sans-IO.

- **FetchManager** decides the context of a client's fetch (fetch-semantics 2.2).
- A **context** is full, sessionless or incremental: it has the full fetch to send toward the broker, and
  makes the client's response from the full response. Or it is an error or the end of a session: it has the
  client's response at once.
- **FetchSessionCache** holds the slots, in shards, and decides evictions (fetch-semantics 2.7).
- A **FetchSession** is one client's session. Its partitions are stored as columns.

Toward the broker, the gateway may use a session of its own. The two sessions are independent (fetch-semantics
6.11).
"""
