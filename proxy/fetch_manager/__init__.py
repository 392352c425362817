"""The server half of KIP-227: the gateway gives fetch sessions to clients whose broker gives none. Sans-IO.

- **FetchManager** decides the context of a client's fetch (fetch-semantics 2.2).
- A **context** is full, sessionless, incremental or an error. It has the full fetch to send toward the
  broker, and makes the client's response from the full response.
- **FetchSessionCache** holds the slots, in shards, and decides evictions (fetch-semantics 2.7).
- A **FetchSession** is one client's session. Its partitions are stored as columns.

Toward the broker, the gateway may use a session of its own. The two sessions are independent (fetch-semantics
6.11).
"""
