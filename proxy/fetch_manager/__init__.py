"""The client-facing half of KIP-227: fetch sessions for clients whose broker gives none. Sans-IO.

- **FetchManager** returns the context of a client's fetch (fetch-semantics 2.2).
- A **context** is full, sessionless, incremental or an error. It holds the full fetch to send toward the
  broker, and makes the client's response from the full response.
- **FetchSessionCache** holds the slots, in shards, and decides evictions (fetch-semantics 2.7).
- A **FetchSession** is one client's session; its partitions are columns.

The stages toward the broker may use a session of their own. The two are independent (fetch-semantics 6.11).
"""
