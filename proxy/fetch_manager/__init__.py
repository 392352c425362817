"""The client-facing half of KIP-227: fetch sessions toward clients, where the broker gives none. Sans-IO.

- **FetchManager** takes a client's fetch and says in which context it is (fetch-semantics 2.2).
- A **context** has the full fetch that goes on toward the broker, and makes the client's response from the
  full response that comes back: full, sessionless, incremental, error.
- **FetchSessionCache** has the slots, in shards, and decides who gives way to whom (fetch-semantics 2.7).
- A **FetchSession** is what is known of one client session; its partitions are columns.

What is between this stage and the broker may use a session of its own. The two are independent
(fetch-semantics 6.11).
"""
