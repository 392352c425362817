"""Computes the cost of captured fetches: most in runs, the others with the gateway's core. Sans-IO.

One of 1,000 fetches of runs is checked with the core. Behind the core is a simulated broker.

- ``captured_response``: one captured fetch response, parsed.
- ``captured_broker``: the broker's responses in a session, computed from captured full responses.
- ``outcome``: one captured fetch, and its cost with sessions.
- ``policies``: decide which connections get a session: as in the gateway, or all of them.
- ``runs``, ``lists``: take the fetches of a steady session without the rest of the core.
- ``following``: gives one policy the outcomes of the other, while both cost the same.
- ``engine``: turns the exchanges of one connection into outcomes.
- ``session_cache``: the broker's limited number of sessions, as Kafka's FetchSessionCache manages them.
"""
